//! Answers `/v1/score`, `/v1/rerank` and `/predict`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use smelt_runtime::embed::{EmbedService, RequestGuard};
use smelt_runtime::prepare::ImageUsage;
use smelt_runtime::score::{Activation, CrossEncoder, Score};
use smelt_runtime::service::Failure;
use smelt_runtime::tokenizer::PairTokens;
use tokio::sync::oneshot;

use super::WeighedBody;
use super::answers::{heading, telling};
use super::call::Call;
use crate::answer::stream::error;
use crate::answer::{self, Usage};
use crate::api::predict::{PREDICT_KNOWN, PredictFields};
use crate::api::score::{
    Custom, RERANK_KNOWN, RerankFields, SCORE_KNOWN, ScoreFields, ScoreOptions,
};
use crate::api::{foreign, read};
use crate::ask::{self, work::Asker};
use crate::error::ApiError;
use crate::models::Model;

/// The scores of pairs.
pub(super) async fn score(call: Call, body: Body) -> Result<Response, ApiError> {
    let held = call.shared.read(&call.headers, body).await?;
    let models = Arc::clone(&call.shared.models);
    let prepared = call.shared.preparing.run(move |asker| {
        let body = held.bytes.body();
        let fields: ScoreFields = read::json(body)?;
        let over = foreign::passed_over(body, &SCORE_KNOWN)?;
        let (model, score_options) =
            (models.ask(fields.model.as_deref())?, fields.score_options()?);
        let (pairs, is_one) = (fields.pairs()?, fields.is_one());
        let names = |at: usize, text: usize| match text {
            0 => format!("text_1[{}]", if is_one { 0 } else { at }),
            _ => format!("text_2[{at}]"),
        };
        let service = model.scores()?;
        let pairs = ask::score::tokens(&pairs, names, &score_options, service.encoder(), asker)?;
        Ok((submit(&model, service, pairs, &score_options)?, over))
    });
    let (asked, over) = prepared.await?;
    let Scored { model, scores, tokens } = scored(&call, asked, &over).await?;
    let scores = scores.concat();
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
    let WeighedBody { bytes, budget } = call.shared.read(&call.headers, body).await?;
    let models = Arc::clone(&call.shared.models);
    let prepared = call.shared.preparing.run(move |asker| {
        let body = bytes.body();
        let fields: RerankFields = read::json(body)?;
        let over = foreign::passed_over(body, &RERANK_KNOWN)?;
        let (model, score_options) =
            (models.ask(fields.model.as_deref())?, fields.score_options(custom)?);
        let pairs: Vec<[&str; 2]> =
            fields.documents.iter().map(|document| [&fields.query[..], &document.0]).collect();
        let names = |at: usize, text: usize| match text {
            0 => "query".to_owned(),
            _ => format!("documents[{at}]"),
        };
        let service = model.scores()?;
        let pairs = ask::score::tokens(&pairs, names, &score_options, service.encoder(), asker)?;
        let (asked, top) = (submit(&model, service, pairs, &score_options)?, fields.top());
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
        let scores = scores.concat();
        Ok(answer::score::ranking(&heading, &scores, documents, top, tokens))
    };
    let json = call.shared.preparing.run(write).await?;
    Ok(telling(whole(json), &over))
}

fn whole(json: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

/// The labels of texts, as text-embeddings-inference has it.
pub(super) async fn predict(call: Call, body: Body) -> Result<Response, ApiError> {
    let held = call.shared.read(&call.headers, body).await?;
    let models = Arc::clone(&call.shared.models);
    let prepared = call.shared.preparing.run(move |asker| {
        let body = held.bytes.body();
        let fields: PredictFields = read::json(body)?;
        let over = foreign::passed_over(body, &PREDICT_KNOWN)?;
        let (model, score_options) =
            (models.ask(fields.model.as_deref())?, fields.score_options()?);
        let service = model.classifies()?;
        let texts = fields.inputs.texts(service.encoder().spec().labels.len())?;
        let names = |at: usize, text: usize| fields.inputs.name(at, text);
        let tokens = ask::score::tokens(&texts, names, &score_options, service.encoder(), asker)?;
        Ok((submit(&model, service, tokens, &score_options)?, fields.inputs.is_batch(), over))
    });
    let (asked, is_batch, over) = prepared.await?;
    let Scored { model, scores, .. } = scored(&call, asked, &over).await?;
    // Many labels of many texts take longer to write than connections may wait for.
    let write = move |_: &Asker| {
        let labels = &model.classifies()?.encoder().spec().labels;
        Ok(answer::score::predictions(labels, &scores, is_batch))
    };
    let json = call.shared.preparing.run(write).await?;
    Ok(telling(whole(json), &over))
}

/// What a model scores.
struct Asked {
    model: Model,
    /// What becomes of the head's numbers.
    activation: Activation,
    /// Dropped when the client leaves.
    _guard: RequestGuard,
    told: oneshot::Receiver<Result<Vec<Score>, Failure>>,
}

fn submit(
    model: &Model,
    service: &EmbedService<CrossEncoder>,
    asked: Vec<PairTokens>,
    score_options: &ScoreOptions,
) -> Result<Asked, ApiError> {
    let (tell, told) = oneshot::channel();
    // Who has left hears nothing.
    let reply = Box::new(move |done| drop(tell.send(done)));
    let guard = service.submit(asked, reply).map_err(ask::embedding::refused)?;
    let own = service.encoder().spec().activation;
    let activation = if score_options.is_raw { Activation::Identity } else { own };
    Ok(Asked { model: model.clone(), activation, _guard: guard, told })
}

/// What a model gave.
struct Scored {
    model: Model,
    /// Of each text or pair: one, or one for each label.
    scores: Vec<Vec<f32>>,
    tokens: usize,
}

async fn scored(call: &Call, asked: Asked, over: &[String]) -> Result<Scored, ApiError> {
    let Asked { model, activation, _guard, told } = asked;
    let facts = &call.facts;
    facts.model(&model.name);
    facts.prepared();
    facts.passed_over(over);
    let done = told.await.unwrap_or(Err(Failure::Stopped));
    let done = done.map_err(|failure| error(&failure))?;
    let tokens = done.iter().map(|score| score.tokens).sum();
    facts.usage(Usage::of_prompt(tokens, 0, ImageUsage::default()));
    let scores = done.iter().map(|score| activation.of(&score.logits)).collect();
    Ok(Scored { scores, tokens, model })
}
