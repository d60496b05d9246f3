//! Tells how the server is, what it counts and which models it has.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::Shared;
use crate::error::ApiError;
use crate::metrics::TEXT_TYPE;
use crate::models::{Health, Model};

/// 200 when there is an answer to be had, else 503 and why there is none.
pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let (status, body) = match shared.models.health() {
        Health::Ready => (StatusCode::OK, json!({ "status": "ok" })),
        Health::Loading(doing) => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "loading", "progress": doing }))
        }
        Health::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "draining" })),
        Health::Failed => (StatusCode::SERVICE_UNAVAILABLE, json!({ "status": "failed" })),
    };
    let mut response = (status, axum::Json(body)).into_response();
    if status != StatusCode::OK {
        response.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    response
}

/// What is counted, in the text format of OpenMetrics.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    ([(CONTENT_TYPE, TEXT_TYPE)], shared.metrics.text()).into_response()
}

/// The models that can be asked.
pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let mut all: Vec<Value> = shared.models.all().iter().map(told).collect();
    // Models that are not in memory are loaded when they are asked for.
    let away = |name| json!({ "id": name, "object": "model", "created": 0, "owned_by": "smelt" });
    all.extend(shared.models.away().into_iter().map(away));
    axum::Json(json!({ "object": "list", "data": all })).into_response()
}

/// One model.
pub(super) async fn model(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::bad(error.body_text()))?;
    Ok(axum::Json(told(&shared.models.ask(Some(&name))?)).into_response())
}

fn told(model: &Model) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "smelt",
        "max_model_len": model.running.tokens_max(),
    })
}
