//! Answers `/v1/score` and `/v1/rerank`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use smelt_runtime::embed::Ticket;
use smelt_runtime::prepare::Seen;
use smelt_runtime::score::Score;
use smelt_runtime::service::Failure;
use smelt_runtime::tokenizer::PairTokens;
use tokio::sync::oneshot;

use super::answers::{heading, telling};
use super::call::Call;
use crate::answer::stream::error;
use crate::answer::{self, Usage};
use crate::api::score::{Custom, Manner, RERANK_KNOWN, RerankFields, SCORE_KNOWN, ScoreFields};
use crate::api::{foreign, read, weigh::weigh};
use crate::ask::{self, work::Asker};
use crate::body::Held;
use crate::error::ApiError;
use crate::models::Model;

/// The scores of pairs.
pub(super) async fn score(call: Call, body: Body) -> Result<Response, ApiError> {
    let held = call.shared.read(&call.headers, body).await?;
    let models = Arc::clone(&call.shared.models);
    let prepared = call.shared.preparing.run(move |asker| {
        let body = weigh(&held.bytes)?;
        let fields: ScoreFields = read::json(body)?;
        let over = foreign::passed_over(body, &SCORE_KNOWN)?;
        let (model, manner) = (models.ask(fields.model.as_deref())?, fields.manner()?);
        let (pairs, is_one) = (fields.pairs()?, fields.is_one());
        let names = |at: usize| {
            let first = if is_one { 0 } else { at };
            [format!("text_1[{first}]"), format!("text_2[{at}]")]
        };
        let encoder = model.scores()?.encoder();
        let pairs = ask::score::pairs(&pairs, names, &manner, encoder, asker)?;
        Ok((submit(model, pairs, manner)?, over))
    });
    let (asked, over) = prepared.await?;
    let Scored { model, scores, tokens, .. } = scored(&call, asked, &over).await?;
    let json = answer::score::scores(&heading("score", &call.id, &model), &scores, tokens);
    Ok(telling(whole(json), &over))
}

/// Documents by how well they answer a query, as vLLM and Jina have it.
pub(super) async fn rerank(call: Call, body: Body) -> Result<Response, ApiError> {
    ranked(call, body, Custom::First).await
}

/// The same, as Cohere has it.
pub(super) async fn rerank_second(call: Call, body: Body) -> Result<Response, ApiError> {
    ranked(call, body, Custom::Second).await
}

async fn ranked(call: Call, body: Body, custom: Custom) -> Result<Response, ApiError> {
    let Held { bytes, budget } = call.shared.read(&call.headers, body).await?;
    let models = Arc::clone(&call.shared.models);
    let prepared = call.shared.preparing.run(move |asker| {
        let body = weigh(&bytes)?;
        let fields: RerankFields = read::json(body)?;
        let over = foreign::passed_over(body, &RERANK_KNOWN)?;
        let (model, manner) = (models.ask(fields.model.as_deref())?, fields.manner(custom)?);
        let pairs: Vec<[&str; 2]> =
            fields.documents.iter().map(|document| [&fields.query[..], &document.0]).collect();
        let names = |at: usize| ["query".to_owned(), format!("documents[{at}]")];
        let encoder = model.scores()?.encoder();
        let pairs = ask::score::pairs(&pairs, names, &manner, encoder, asker)?;
        let (asked, top) = (submit(model, pairs, manner)?, fields.top());
        // Texts that come back take what their body may take until they are written.
        let kept = fields.is_returning(custom).then_some((fields.documents, budget));
        Ok((asked, top, kept, over))
    });
    let (asked, top, kept, over) = prepared.await?;
    let Scored { model, scores, tokens } = scored(&call, asked, &over).await?;
    let heading = heading("rerank", &call.id, &model);
    // Thousands of documents take longer to write than connections may wait for.
    let write = move |_: &Asker| {
        let documents = kept.as_ref().map(|(documents, _)| &documents[..]);
        Ok(answer::score::ranking(&heading, &scores, documents, top, tokens))
    };
    let json = call.shared.preparing.run(write).await?;
    Ok(telling(whole(json), &over))
}

fn whole(json: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

/// Pairs that a model scores.
struct Asked {
    model: Model,
    manner: Manner,
    /// Dropped when the client leaves.
    _ticket: Ticket,
    told: oneshot::Receiver<Result<Vec<Score>, Failure>>,
}

fn submit(model: Model, pairs: Vec<PairTokens>, manner: Manner) -> Result<Asked, ApiError> {
    let (tell, told) = oneshot::channel();
    // Who has left hears nothing.
    let reply = Box::new(move |done| drop(tell.send(done)));
    let ticket = model.scores()?.submit(pairs, reply).map_err(ask::embedding::refused)?;
    Ok(Asked { model, manner, _ticket: ticket, told })
}

/// What a model gave.
struct Scored {
    model: Model,
    scores: Vec<f32>,
    tokens: usize,
}

async fn scored(call: &Call, asked: Asked, over: &[String]) -> Result<Scored, ApiError> {
    let Asked { model, manner, _ticket, told } = asked;
    let facts = &call.facts;
    facts.model(&model.name);
    facts.prepared();
    facts.passed_over(over);
    let done = told.await.unwrap_or(Err(Failure::Stopped));
    let done = done.map_err(|failure| error(&failure))?;
    let tokens = done.iter().map(|score| score.tokens).sum();
    facts.usage(Usage::of_prompt(tokens, 0, Seen::default()));
    let activation = model.scores()?.encoder().spec().activation;
    let of = |score: &Score| if manner.is_raw { score.logit } else { activation.of(score.logit) };
    Ok(Scored { scores: done.iter().map(of).collect(), tokens, model })
}
