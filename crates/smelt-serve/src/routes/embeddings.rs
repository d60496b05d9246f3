//! Answers `/v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use smelt_runtime::embed::Embedding;
use smelt_runtime::prepare::ImageUsage;
use smelt_runtime::service::Failure;
use tokio::sync::oneshot;

use super::answers::telling;
use super::{Passing, Shared};
use crate::account::Facts;
use crate::answer::stream::error;
use crate::answer::{self, Usage};
use crate::api::embedding::{EMBEDDING_KNOWN, EmbeddingFields, Encoding};
use crate::api::{foreign, read, weigh::WeighedBytes};
use crate::ask::{self, work::Asker};
use crate::error::ApiError;

/// What an encoder gave.
pub(super) struct Embedded {
    pub(super) model: String,
    pub(super) embeddings: Vec<Embedding>,
    pub(super) tokens: usize,
    /// Fields that nobody knows.
    passed_over: Vec<String>,
}

/// The embeddings of texts, or of lists of tokens.
pub(super) async fn embeddings(
    State(shared): State<Arc<Shared>>,
    Extension(facts): Extension<Facts>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let held = shared.read(&headers, body).await?;
    let held = match shared.pass(held, "/v1/embeddings", &facts).await? {
        Passing::Answered(answer) => return Ok(answer),
        Passing::Own(held) => held,
    };
    let (embedded, encoding) = embed(&shared, &facts, held.bytes).await?;
    let Embedded { model, embeddings, passed_over, .. } = embedded;
    // Thousands of rows take longer to write than connections may wait for.
    let write = move |_: &Asker| Ok(answer::embedding::whole(&model, &embeddings, encoding));
    let json = shared.preparing.run(write).await?;
    let answer = ([(CONTENT_TYPE, "application/json")], json).into_response();
    Ok(telling(answer, &passed_over))
}

/// Has embedded what a body asks for, and says how numbers are written.
///
/// # Errors
/// As reading does, and the service.
pub(super) async fn embed(
    shared: &Shared,
    facts: &Facts,
    bytes: WeighedBytes,
) -> Result<(Embedded, Encoding), ApiError> {
    let models = Arc::clone(&shared.models);
    let prepared = shared.preparing.run(move |_| {
        let body = bytes.body();
        let fields: EmbeddingFields = read::json(body)?;
        let over = foreign::passed_over(body, &EMBEDDING_KNOWN)?;
        let encoding = fields.encoding()?;
        let model = models.ask(fields.model.as_deref())?;
        let service = model.embeds()?;
        let texts = ask::embedding::texts(&fields, service)?;
        let (tell, told) = oneshot::channel();
        // Who has left hears nothing.
        let reply = Box::new(move |done| drop(tell.send(done)));
        let guard = service.submit(texts, reply).map_err(ask::embedding::refused)?;
        Ok((model.name, encoding, over, guard, told))
    });
    // The guard is dropped with this future when the client leaves.
    let (model, encoding, passed_over, _guard, told) = prepared.await?;
    facts.model(&model);
    facts.prepared();
    facts.passed_over(&passed_over);
    let done = told.await.unwrap_or(Err(Failure::Stopped));
    let embeddings = done.map_err(|failure| error(&failure))?;
    let tokens = answer::embedding::tokens(&embeddings);
    facts.usage(Usage::of_prompt(tokens, 0, ImageUsage::default()));
    Ok((Embedded { model, embeddings, tokens, passed_over }, encoding))
}
