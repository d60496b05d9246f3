//! Turns texts into tokens and back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use smelt_runtime::deployment::Text;
use smelt_runtime::identity::Identity;

use super::call::{Call, of_service};
use super::{Shared, WeighedBody};
use crate::api::read;
use crate::ask::resolved_message::Limits;
use crate::ask::work::Asker;
use crate::ask::{
    self,
    chat::{Brought, Chat},
};
use crate::body::Budget;
use crate::error::ApiError;
use crate::films::Films;
use crate::models::{Model, Running};

/// Most tokens that are written out at once: a quarter of a million take some ten MB.
const TOKENS_MAX: usize = 1 << 18;

/// A text, or what a chat is asked.
#[derive(Deserialize)]
struct Tokenize {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    prompt: Option<String>,
    /// Of a prompt, whose tokens are those that `/v1/completions` reads unless this says otherwise.
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    messages: Option<IgnoredAny>,
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: Option<usize>,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Detokenize {
    #[serde(default)]
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Prompt {
    prompt: String,
}

/// The tokens of `prompt`, or of the whole prompt that `messages` become, pictures included.
pub(super) async fn tokenize(call: Call, body: Body) -> Result<Response, ApiError> {
    let WeighedBody { bytes, mut budget } = call.shared.read(&call.headers, body).await?;
    let read = call.shared.preparing.run(move |_| {
        let asked: Tokenize = read::json(bytes.body())?;
        if asked.prompt.is_some() && asked.messages.is_some() {
            return Err(ApiError::field("prompt", "is given together with messages"));
        }
        let chat = asked.prompt.is_none().then(|| Chat::of(bytes.body())).transpose()?;
        Ok((asked, chat))
    });
    let (asked, chat) = read.await?;
    let (model, tokens) = match chat {
        Some(chat) => prompted(&call, chat, budget).await?,
        None => {
            let model = call.shared.models.ask(asked.model.as_deref())?;
            let asked_model = model.clone();
            let longest = asked.prompt.as_ref().map_or(0, String::len);
            call.shared.bodies.encoded(&mut budget, longest).await?;
            let encode = call.shared.preparing.run(move |_| {
                let text = asked.prompt.as_deref().unwrap_or_default();
                let is_whole = asked.add_special_tokens.unwrap_or(true);
                let tokens = encoded(&asked_model, (text, is_whole));
                drop(budget);
                tokens
            });
            (model, encode.await?)
        }
    };
    let max_model_len = model.running.tokens_max();
    Ok(axum::Json(Tokens { count: tokens.len(), max_model_len, tokens }).into_response())
}

/// The text of the prompt that a chat becomes, as llama-server tells it.
pub(super) async fn apply_template(call: Call, body: Body) -> Result<Response, ApiError> {
    let WeighedBody { bytes, budget } = call.shared.read(&call.headers, body).await?;
    let chat = call.shared.preparing.run(move |_| Chat::of(bytes.body())).await?;
    let (model, tokens) = prompted(&call, chat, budget).await?;
    let prompt = call.shared.preparing.run(move |_| {
        let prompt = model.tokenizer()?.decode(&tokens, false);
        Ok(Prompt { prompt: prompt.map_err(|error| ApiError::field("messages", error))? })
    });
    Ok(axum::Json(prompt.await?).into_response())
}

/// The tokens of the prompt that a chat becomes, and the model whose they are; its body holds so much of what bodies may
/// take.
///
/// # Errors
/// As preparing does; 400 if pictures lie elsewhere.
pub(super) async fn prompted(
    call: &Call,
    mut chat: Chat,
    mut budget: Budget,
) -> Result<(Model, Vec<u32>), ApiError> {
    let shared = &call.shared;
    let name = shared.models.known(chat.common.model.take());
    shared.models.wake(name.as_deref()).await?;
    let model = shared.models.ask(name.as_deref())?;
    let chat = shared.weighed(chat, &model, &mut budget).await?;
    let reuse = of_service(&call.client, &chat.common, shared.is_cache_shared)?.reuse;
    let (limits, films, asked) = (shared.limits, shared.films.clone(), model.clone());
    let work = if chat.may_show_films(limits)? { &shared.filming } else { &shared.preparing };
    let tokens = work.run(move |asker| {
        let tokens = counted(&chat, asked.speaks()?.text(), (limits, films), (asker, reuse));
        drop(budget);
        tokens
    });
    let tokens = tokens.await?;
    Ok((model, tokens))
}

/// The tokens of a text, with those around it if it `is_whole`.
fn encoded(model: &Model, (text, is_whole): (&str, bool)) -> Result<Vec<u32>, ApiError> {
    if let Running::Speaks(service) = &model.running {
        let tokens = service.text().encode(text, is_whole);
        return tokens.map_err(|error| ask::unprepared("prompt", error));
    }
    let (Some(tokenizer), Some(max)) = (model.running.tokenizer(), model.running.tokens_max())
    else {
        return Err(model.unable(""));
    };
    ask::embedding::encoded(tokenizer, max, (text, is_whole), "prompt")
}

/// The tokens of the prompt that a chat becomes.
///
/// # Errors
/// As preparing does; 400 if pictures lie elsewhere.
fn counted(
    chat: &Chat,
    text: &Text,
    (limits, films): (Limits, Films),
    asker: (&Asker, Option<Identity>),
) -> Result<Vec<u32>, ApiError> {
    if let Some((at, _)) = chat.elsewhere(limits)?.first() {
        let why = "pictures of other hosts are not counted; send a data: URI";
        return Err(ApiError::field(at, why));
    }
    let brought = Brought { fetched: Vec::new(), films };
    Ok(chat.prepare(text, brought, limits, asker)?.tokens)
}

/// The text of `tokens`, special ones included.
pub(super) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let held = shared.read(&headers, body).await?;
    let models = Arc::clone(&shared.models);
    let prompt = shared.preparing.run(move |_| {
        let asked: Detokenize = read::json(held.bytes.body())?;
        if asked.tokens.len() > TOKENS_MAX {
            let why = format!("{} tokens are more than {TOKENS_MAX}", asked.tokens.len());
            return Err(ApiError::field("tokens", why));
        }
        let model = models.ask(asked.model.as_deref())?;
        let tokenizer = model.tokenizer()?;
        let vocab = match &model.running {
            Running::Speaks(service) => service.text().vocab,
            Running::Embeds(_) | Running::Scores(_) | Running::Relays(_) => tokenizer.vocab(),
        };
        if let Some(token) = asked.tokens.iter().find(|token| **token as usize >= vocab) {
            let why = format!("{token} is not one of the model's {vocab} tokens");
            return Err(ApiError::field("tokens", why));
        }
        let prompt = tokenizer.decode(&asked.tokens, false);
        Ok(Prompt { prompt: prompt.map_err(|error| ApiError::field("tokens", error))? })
    });
    Ok(axum::Json(prompt.await?).into_response())
}
