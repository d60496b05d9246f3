//! What every route that continues something is asked with, and the way of a conversation to those who answer it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::ORIGIN;
use axum::http::request::Parts;
use smelt_runtime::dialect::Dialect;
use smelt_runtime::service;

use super::{Shared, WeighedBody};
use crate::account::{Facts, RequestId};
use crate::answer::Words;
use crate::api::common::Common;
use crate::ask::chat::{Brought, Chat, Formed};
use crate::ask::{self, work::Asker};
use crate::body::{Budget, Kind};
use crate::client::Client;
use crate::error::ApiError;
use crate::models::Model;
use crate::protocols::Protocol;
use crate::response_stream::ResponseStream;

/// A request but for its body.
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    pub(super) facts: Facts,
    pub(super) client: Client,
    pub(super) id: RequestId,
    pub(super) headers: HeaderMap,
    /// What a body must say that it is.
    kind: Kind,
}

impl FromRequestParts<Arc<Shared>> for Call {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<Shared>,
    ) -> Result<Self, Infallible> {
        let id = parts.extensions.get::<RequestId>().cloned();
        // Ollama's clients say nothing, or that theirs is a form; a page says where it is from.
        let is_ollamas = Protocol::of(parts.uri.path()) == Protocol::Ollama;
        let kind = match is_ollamas && !parts.headers.contains_key(ORIGIN) {
            true => Kind::Any,
            false => Kind::Json,
        };
        Ok(Self {
            shared: Arc::clone(shared),
            facts: parts.extensions.get::<Facts>().cloned().unwrap_or_default(),
            client: parts.extensions.get::<Client>().cloned().unwrap_or_else(Client::anybody),
            id: id.unwrap_or_else(|| RequestId(String::new())),
            headers: std::mem::take(&mut parts.headers),
            kind,
        })
    }
}

/// A conversation that is being answered.
pub(super) struct Spoken<X> {
    pub(super) model: Model,
    pub(super) common: Common,
    /// How the answer's parts are told apart, and whether the prompt ends inside of the model's thinking.
    pub(super) dialect: Dialect,
    pub(super) is_thinking: bool,
    pub(super) words: Words,
    pub(super) response_stream: ResponseStream,
    pub(super) passed_over: Vec<String>,
    /// What the protocol said beside the conversation.
    pub(super) beside: X,
    pub(super) begun: Instant,
}

impl Call {
    /// Reads the request's body.
    ///
    /// # Errors
    /// As reading does.
    pub(super) async fn held(&self, body: Body) -> Result<WeighedBody, ApiError> {
        // Before a long body is read for nothing.
        self.shared.models.check()?;
        self.shared.held(&self.headers, body, self.kind).await
    }

    /// Has a conversation answered that `read` gives; its body holds so much of what bodies may take.
    ///
    /// # Errors
    /// As reading, fetching, preparing and the service do.
    pub(super) async fn spoken<X: Send + 'static>(
        &self,
        begun: Instant,
        mut budget: Budget,
        read: impl FnOnce() -> Result<(Chat, X), ApiError> + Send + 'static,
    ) -> Result<Spoken<X>, ApiError> {
        let shared = &self.shared;
        let (limits, is_shared) = (shared.limits, shared.is_cache_shared);
        let read = shared.preparing.run(move |_| {
            let (chat, beside) = read()?;
            let elsewhere = chat.elsewhere(limits)?;
            Ok((chat, beside, elsewhere))
        });
        let (mut chat, beside, elsewhere) = read.await?;
        let name = shared.models.known(chat.common.model.take());
        shared.models.wake(name.as_deref()).await?;
        let model = shared.models.ask(name.as_deref())?;
        chat.seen_by(model.speaks()?.text(), limits)?;
        let chat = shared.weighed(chat, &model, &mut budget).await?;
        let compiled = shared.bodies.compiled(chat.compiled_bytes()).await?;
        let words = ask::words(model.speaks()?);
        self.facts.model(&model.name);
        let fetched = self.fetched(elsewhere).await?;
        let (asked, client) = (model.clone(), self.client.clone());
        let work = if chat.may_show_films(limits)? { &shared.filming } else { &shared.preparing };
        let films = shared.films.clone();
        let prepared = work.run(move |asker| {
            let service = asked.speaks()?;
            let (logprobs, limit) = (chat.fields.logprobs()?, chat.new_tokens_max()?);
            let limit = limit.unwrap_or(service.text().max_seq_len);
            let choice_params = chat.common.choice_params(logprobs, limit)?;
            let client = of_service(&client, &chat.common, is_shared)?;
            let brought = Brought { fetched, films };
            let prompt = chat.prepare(service.text(), brought, limits, (asker, client.reuse))?;
            asker.check()?;
            let answers = choice_params.len();
            let Formed { constraint, dialect, is_thinking } = chat.constraint(&asked, &prompt)?;
            let (common, scored) = (&chat.common, None);
            let answer_options = ask::AnswerOptions {
                client,
                common,
                choice_params: &choice_params,
                constraint,
                scored,
                begun,
            };
            let event_streams = ask::submit(service, vec![prompt], &answer_options)?;
            drop(budget);
            // With what was compiled, also where who asked has left meanwhile.
            let answers = (event_streams, answers, compiled);
            Ok((chat.common, chat.passed_over, answers, dialect, is_thinking))
        });
        let (common, passed_over, answers, dialect, is_thinking) = prepared.await?;
        let (event_streams, answers, compiled) = answers;
        self.facts.prepared();
        self.facts.passed_over(&passed_over);
        let response_stream =
            ResponseStream::new(event_streams, answers, self.facts.clone(), compiled);
        Ok(Spoken {
            model,
            common,
            dialect,
            is_thinking,
            words,
            response_stream,
            passed_over,
            beside,
            begun,
        })
    }

    /// Files that other hosts have.
    async fn fetched(&self, elsewhere: Vec<(String, String)>) -> Result<Vec<Vec<u8>>, ApiError> {
        if elsewhere.is_empty() {
            return Ok(Vec::new());
        }
        let remote = self.shared.remote.clone();
        let fetch = move |asker: &Asker| {
            ask::chat::fetch(&elsewhere, remote.as_ref(), asker.clone().into())
        };
        self.shared.fetching.run(fetch).await
    }
}

/// For whom services answer.
pub(super) fn of_service(
    client: &Client,
    common: &Common,
    is_shared: bool,
) -> Result<service::Client, ApiError> {
    let reuse = client.reuse(common.cache_salt.as_deref(), is_shared)?;
    Ok(client.of_service(reuse))
}
