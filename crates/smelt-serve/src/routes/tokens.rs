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

use super::Shared;
use super::call::{Call, of_service};
use crate::api::{read, weigh::weigh};
use crate::ask::shown::Limits;
use crate::ask::work::Asker;
use crate::ask::{
    self,
    chat::{Brought, Chat},
};
use crate::error::ApiError;
use crate::films::Films;
use crate::models::Running;

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
    max_model_len: usize,
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
    let Call { shared, client, headers, .. } = call;
    let held = shared.read(&headers, body).await?;
    let limits = shared.limits;
    let (is_shared, films) = (shared.is_cache_shared, shared.films.clone());
    let read = shared.preparing.run(move |_| {
        let asked: Tokenize = read::json(weigh(&held.bytes)?)?;
        let is_chat = asked.messages.is_some();
        let chat = is_chat.then(|| Chat::read(&held.bytes)).transpose()?;
        let may_show_films = chat.as_ref().map_or(Ok(false), |chat| chat.may_show_films(limits))?;
        Ok((held, asked, chat, may_show_films))
    });
    let (mut held, asked, chat, may_show_films) = read.await?;
    let model = shared.models.ask(asked.model.as_deref())?;
    let chat = match chat {
        Some(chat) => Some(shared.weighed(chat, &model, &mut held.budget).await?),
        None => None,
    };
    let work = if may_show_films { &shared.filming } else { &shared.preparing };
    let tokens = work.run(move |asker| {
        let tokens = match (asked.prompt, asked.messages) {
            (Some(_), Some(_)) => {
                return Err(ApiError::field("prompt", "is given together with messages"));
            }
            (Some(prompt), None) => {
                encoded(&model.running, (&prompt, asked.add_special_tokens.unwrap_or(true)))?
            }
            (None, _) => {
                let chat = chat.map_or_else(|| Chat::read(&held.bytes), Ok)?;
                let reuse = of_service(&client, &chat.common, is_shared)?.reuse;
                counted(&chat, model.speaks()?.text(), (limits, films), (asker, reuse))?
            }
        };
        Ok(Tokens { count: tokens.len(), max_model_len: model.running.tokens_max(), tokens })
    });
    Ok(axum::Json(tokens.await?).into_response())
}

/// The tokens of a text, with those around it if it `is_whole`.
fn encoded(model: &Running, (text, is_whole): (&str, bool)) -> Result<Vec<u32>, ApiError> {
    if let Running::Speaks(service) = model {
        let tokens = service.text().encode(text, is_whole);
        return tokens.map_err(|error| ask::unprepared("prompt", error));
    }
    ask::embedding::encoded(model.tokenizer(), model.tokens_max(), (text, is_whole), "prompt")
}

/// The tokens of the prompt that a chat becomes.
///
/// # Errors
/// As preparing does; 400 if pictures lie elsewhere.
pub(super) fn counted(
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
        let asked: Detokenize = read::json(weigh(&held.bytes)?)?;
        if asked.tokens.len() > TOKENS_MAX {
            let why = format!("{} tokens are more than {TOKENS_MAX}", asked.tokens.len());
            return Err(ApiError::field("tokens", why));
        }
        let model = models.ask(asked.model.as_deref())?;
        let tokenizer = model.running.tokenizer();
        let vocab = match &model.running {
            Running::Speaks(service) => service.text().vocab,
            Running::Embeds(_) | Running::Scores(_) => tokenizer.vocab(),
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
