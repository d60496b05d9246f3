//! Answers Ollama's routes.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smelt_runtime::dialect::Reader;

use super::Shared;
use super::answers::{deliver, telling};
use super::call::{Call, Spoken};
use super::embeddings::{Embedded, embed};
use crate::api::{read, weigh::WeighedBytes};
use crate::ask::chat::Chat;
use crate::error::ApiError;
use crate::protocols::ollama::answer::{self, Answer};
use crate::protocols::ollama::ask::{Ask, Embed, Route, Stay, Wanted};
use crate::protocols::ollama::{VERSION, tell};

/// What a request says of its answer, beside the chat.
struct Beside {
    /// As the client calls the model.
    model: Option<String>,
    is_stream: bool,
    /// Why the answer ends where it says nothing.
    reason: &'static str,
}

/// Continues a conversation.
pub(super) async fn chat(call: Call, body: Body) -> Result<Response, ApiError> {
    answered(call, body, Route::Chat).await
}

/// Continues a prompt.
pub(super) async fn generate(call: Call, body: Body) -> Result<Response, ApiError> {
    answered(call, body, Route::Generate).await
}

async fn answered(call: Call, body: Body, route: Route) -> Result<Response, ApiError> {
    // Who asks for nothing but the model is answered when it is there.
    let held = call.held(body).await?;
    let images_max = call.shared.limits.images_max;
    let read = call.shared.preparing.run(move |_| {
        let body = held.bytes.body();
        let (ask, over) = Ask::read(body, route)?;
        let (wanted, places) = (ask.wanted(route, images_max)?, ask.places(route));
        if wanted == Wanted::Load {
            let chat = Chat::read(ask.alone()?.to_string().as_bytes());
            let params = chat.and_then(|chat| chat.common.choice_params(None, 1));
            params.map_err(|error| places.told(error))?;
        }
        let reason = match wanted {
            Wanted::Load => read::json::<Stay>(body)?.reason(),
            Wanted::Chat(_) | Wanted::Raw(..) => "stop",
        };
        let beside = Beside { is_stream: ask.is_stream(), model: ask.model, reason };
        Ok((beside, wanted, over, held.budget, places))
    });
    let (beside, wanted, over, budget, places) = read.await?;
    call.facts.passed_over(&over);
    let chat = match wanted {
        Wanted::Load => return Ok(telling(loaded(&call, route, beside).await?, &over)),
        Wanted::Chat(chat) => (chat, None),
        Wanted::Raw(text, chat) => (chat, Some(text)),
    };
    let read = move || {
        let (fields, raw) = chat;
        Ok(Chat { raw, ..Chat::read(fields.to_string().as_bytes())? })
    };
    let spoken = call.spoken(Instant::now(), budget, move || Ok((read()?, beside))).await;
    let spoken = spoken.map_err(|error| places.told(error))?;
    call.facts.passed_over(&over);
    let Spoken { model, dialect, is_thinking, response_stream, beside, begun, .. } = spoken;
    let name = beside.model.unwrap_or_else(|| tell::name(&model.name));
    let wire = Answer::new(route, name, Reader::new(dialect, is_thinking), begun);
    let answer = deliver(Box::new(wire), response_stream, beside.is_stream).await?;
    Ok(telling(answer, &over))
}

async fn loaded(call: &Call, route: Route, beside: Beside) -> Result<Response, ApiError> {
    let Beside { model: name, reason, .. } = beside;
    let models = &call.shared.models;
    let known = models.known(name.clone());
    models.wake(known.as_deref()).await?;
    let model = models.ask(known.as_deref())?;
    let name = name.unwrap_or_else(|| tell::name(&model.name));
    Ok(json_text(answer::loaded(route, name, reason)))
}

/// What `/api/embed` is answered.
#[derive(Serialize)]
struct Rows<'a> {
    model: String,
    embeddings: Vec<&'a [f32]>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// What `/api/embeddings` is answered.
#[derive(Serialize)]
struct Row<'a> {
    embedding: &'a [f32],
}

/// The embeddings of texts.
pub(super) async fn embeddings(call: Call, body: Body) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let (embedded, over) = embed_of(&call, body).await?;
    let Embedded { model, embeddings, tokens, .. } = embedded;
    let rows: Vec<&[f32]> = embeddings.iter().map(|embedding| &embedding.row[..]).collect();
    let total_duration = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (model, load_duration) = (tell::name(&model), 0);
    let told =
        Rows { model, embeddings: rows, total_duration, load_duration, prompt_eval_count: tokens };
    Ok(telling(axum::Json(told).into_response(), &over))
}

/// The embedding of a text, as older clients ask for it.
pub(super) async fn embedding(call: Call, body: Body) -> Result<Response, ApiError> {
    let (embedded, over) = embed_of(&call, body).await?;
    let row = embedded.embeddings.first().map(|embedding| &embedding.row[..]);
    let told = axum::Json(Row { embedding: row.unwrap_or_default() }).into_response();
    Ok(telling(told, &over))
}

/// The embeddings, and which fields of the body nobody knows.
async fn embed_of(call: &Call, body: Body) -> Result<(Embedded, Vec<String>), ApiError> {
    let held = call.held(body).await?;
    let models = Arc::clone(&call.shared.models);
    let read = call.shared.preparing.run(move |_| {
        let (ask, over) = Embed::read(held.bytes.body())?;
        let mut fields = ask.fields()?;
        let name = models.known(ask.model);
        fields["model"] = name.clone().into();
        let (bytes, _) = WeighedBytes::of(fields.to_string().into())?;
        Ok((bytes, name, over, held.budget))
    });
    let (bytes, name, over, _budget) = read.await?;
    call.shared.models.wake(name.as_deref()).await?;
    let (embedded, _) = embed(&call.shared, &call.facts, bytes).await?;
    call.facts.passed_over(&over);
    Ok((embedded, over))
}

/// The models that can be asked.
pub(super) async fn tags(State(shared): State<Arc<Shared>>) -> Response {
    let all = shared.models.listed().into_iter();
    let all: Vec<Value> = all.map(|(name, model)| tell::listed(&name, model.as_ref())).collect();
    axum::Json(json!({ "models": all })).into_response()
}

/// The models that are in memory.
pub(super) async fn running(State(shared): State<Arc<Shared>>) -> Response {
    let all: Vec<Value> = shared.models.all().iter().map(tell::running).collect();
    axum::Json(json!({ "models": all })).into_response()
}

/// The name of a model, as newer and older clients say it.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

/// All that is known of a model.
pub(super) async fn show(call: Call, body: Body) -> Result<Response, ApiError> {
    let held = call.held(body).await?;
    let Named { model, name } = read::json(held.bytes.body())?;
    let models = &call.shared.models;
    let name = models.known(model.or(name));
    models.wake(name.as_deref()).await?;
    Ok(axum::Json(tell::shown(&models.ask(name.as_deref())?)).into_response())
}

/// The version whose API this is.
pub(super) async fn version() -> Response {
    axum::Json(json!({ "version": VERSION })).into_response()
}

/// Models are what pipelines build.
pub(super) async fn refused() -> ApiError {
    let why = "smelt serves what its pipelines build: it pulls, makes, copies and deletes no models; start it with another pipeline";
    ApiError::new(StatusCode::FORBIDDEN, why).code("not_supported")
}

fn json_text(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}
