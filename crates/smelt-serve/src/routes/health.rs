//! Tells how the server is, what it counts and which models it has.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, VARY};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use smelt_runtime::service::ReplicaState;

use super::Shared;
use super::call::Call;
use crate::error::ApiError;
use crate::metrics::Format;
use crate::models::{Health, LoadingStep, Model, Models};

/// 200 when there is an answer to be had, else 503 and why there is none.
pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (status, body) = match shared.models.health() {
        Health::Ready => (StatusCode::OK, with_devices("ok", &shared.models)),
        Health::Loading(LoadingStep { words, done, left_s }) => {
            let body = json!({
                "status": "loading", "progress": words, "done": done, "left_s": left_s,
            });
            (StatusCode::SERVICE_UNAVAILABLE, body)
        }
        Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "draining" })),
        Health::Failed => (StatusCode::SERVICE_UNAVAILABLE, with_devices("failed", &shared.models)),
    };
    let mut response = (status, axum::Json(body)).into_response();
    if status != StatusCode::OK {
        response.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    response
}

/// How the server is, and how its devices are where models have several, or one was lost.
fn with_devices(status: &str, models: &Models) -> Value {
    let devices = models.devices();
    if devices.len() <= 1 && devices.iter().all(|(_, state)| state.losses == 0) {
        return json!({ "status": status });
    }
    let told = devices.into_iter().map(|(model, state)| {
        let ReplicaState { name, status: own, losses, why, owes, .. } = state;
        json!({
            "model": model, "device": name, "status": own.word(), "owes": owes,
            "losses": losses, "why": why,
        })
    });
    json!({ "status": status, "devices": told.collect::<Vec<_>>() })
}

/// 200 as long as restarting would help nobody: while it loads or ends it lives; without its engine's thread it does
/// not.
pub(super) async fn live(State(shared): State<Arc<Shared>>) -> Response {
    match shared.models.health() {
        Health::Failed => {
            let body = json!({ "status": "failed" });
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
        }
        _ => axum::Json(json!({ "status": "ok" })).into_response(),
    }
}

/// Which smelt this is, as vLLM's clients ask.
pub(super) async fn version() -> Response {
    axum::Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// What is counted, in the format that is asked for; of keys, what its own uses unless it may know of all.
pub(super) async fn metrics(call: Call) -> Response {
    let accept = call.headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::wanted(accept);
    let headers = [(CONTENT_TYPE, format.media_type()), (VARY, "accept")];
    let text = call.shared.metrics.told_to(call.client.sees_only(), format);
    (headers, text).into_response()
}

/// The models that can be asked.
pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Response {
    axum::Json(json!({ "object": "list", "data": listed(&shared.models) })).into_response()
}

/// All models; those that are not in memory are loaded when they are asked for.
fn listed(models: &Models) -> Vec<Value> {
    let away = |name| json!({ "id": name, "object": "model", "created": 0, "owned_by": "smelt" });
    let all = models.listed().into_iter();
    all.map(|(name, model)| model.map_or_else(|| away(name), |model| told(&model))).collect()
}

/// One model, as it is in the list.
pub(super) async fn model(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::bad(error.body_text()))?;
    let found = listed(&shared.models).into_iter().find(|model| model["id"] == name);
    Ok(axum::Json(found.ok_or_else(|| shared.models.unknown(&name))?).into_response())
}

fn told(model: &Model) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "smelt",
        "max_model_len": model.running.tokens_max(),
        "quantization": model.running.scheme(),
        "input_modalities": model.running.takes(),
    })
}
