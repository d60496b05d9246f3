//! Says which function answers what is asked where.

mod answers;
mod anthropic;
mod call;
mod embeddings;
mod health;
mod ollama;
mod page;
mod query;
mod responses;
mod scores;
pub(crate) mod slots;
mod tokens;

#[cfg(test)]
pub(crate) use page::OPENAPI;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post};
use serde::Deserialize;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::account::{self, Accounts, Facts, REQUEST_ID};
use crate::api::{read, weigh::WeighedBytes};
use crate::ask::chat::{Chat, Weight};
use crate::ask::resolved_message::Limits;
use crate::ask::work::Work;
use crate::body::{Bodies, Budget, BufferedBody, Kind};
use crate::client;
use crate::current::Current;
use crate::error::{ApiError, ErrorMessage};
use crate::films::Films;
use crate::hosts::Hosts;
use crate::images::Remote;
use crate::keys::Keys;
use crate::listen::Crowded;
use crate::metrics::Metrics;
use crate::models::{Model, Models, Running};
use crate::protocols::Protocol;
use crate::protocols::responses::kept::Kept;
use crate::traces::{TRACE_RESPONSE, Tracer};
use crate::unread;
use slots::Slots;

/// How long a browser may believe what it was told of other origins.
const CORS_AGE: Duration = Duration::from_secs(3600);

/// When to come again where all places are taken.
const CROWDED_RETRY: Duration = Duration::from_secs(1);

/// The routes that need no key: whoever starts servers must see how they are.
const OPEN_ROUTES: [&str; 3] = ["/health", "/livez", "/readyz"];

/// What all routes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) models: Arc<Models>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bodies: Bodies,
    /// Answers that can be gone on from.
    pub(crate) kept: Arc<Kept>,
    pub(crate) remote: Option<Remote>,
    pub(crate) limits: Limits,
    /// Whether keys reuse what was read for others.
    pub(crate) is_cache_shared: bool,
    pub(crate) preparing: Work,
    pub(crate) fetching: Work,
    pub(crate) films: Films,
    pub(crate) filming: Work,
    pub(crate) slots: Slots,
}

/// The model that a request names, whatever else it says.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    model: Option<String>,
}

/// A body that was read and weighed, and its part of what bodies may take until it is dropped.
struct WeighedBody {
    bytes: WeighedBytes,
    budget: Budget,
}

/// Whether a request was passed on.
enum Passing {
    /// Another program's server answers it.
    Answered(Response),
    /// It is for a model of our own.
    Own(WeighedBody),
}

impl Shared {
    /// Reads a request's body, which has room for what is made of it.
    ///
    /// # Errors
    /// As reading and weighing do.
    async fn held(
        &self,
        headers: &HeaderMap,
        body: Body,
        kind: Kind,
    ) -> Result<WeighedBody, ApiError> {
        let BufferedBody { bytes, mut budget } = self.bodies.read_as(headers, body, kind).await?;
        let (bytes, values) = match budget.is_small() {
            true => WeighedBytes::of(bytes)?,
            // Looking through a long one takes longer than connections may wait for.
            false => self.preparing.run(move |_| WeighedBytes::of(bytes)).await?,
        };
        self.bodies.valued(&mut budget, values).await?;
        Ok(WeighedBody { bytes, budget })
    }

    /// Reads a request's body, and waits for the model it names if that is not in memory.
    ///
    /// # Errors
    /// As reading does; 404 if there is no such model.
    async fn read(&self, headers: &HeaderMap, body: Body) -> Result<WeighedBody, ApiError> {
        // Before a long body is read for nothing.
        self.models.check()?;
        let held = self.held(headers, body, Kind::Json).await?;
        if self.models.away().is_empty() {
            return Ok(held);
        }
        let (held, name) = self.named(held).await?;
        self.models.wake(name.as_deref()).await?;
        Ok(held)
    }

    /// The body, and the model that it names.
    async fn named(&self, held: WeighedBody) -> Result<(WeighedBody, Option<String>), ApiError> {
        let named = self.preparing.run(move |_| {
            let named: Named = read::json(held.bytes.body())?;
            Ok((held, named.model))
        });
        named.await
    }

    /// Has a request passed on to another program's server, at its `path`, if one answers for the model that it names.
    ///
    /// # Errors
    /// As the server does; 404 if there is no such model.
    async fn pass(
        &self,
        held: WeighedBody,
        path: &str,
        facts: &Facts,
    ) -> Result<Passing, ApiError> {
        if !self.models.has_upstream() {
            return Ok(Passing::Own(held));
        }
        let (held, name) = self.named(held).await?;
        let name = self.models.known(name);
        self.models.wake(name.as_deref()).await?;
        let model = self.models.ask(name.as_deref())?;
        let Running::Relays(upstream) = &model.running else { return Ok(Passing::Own(held)) };
        facts.model(&model.name);
        let (own, WeighedBody { bytes, budget }) = (upstream.clone(), held);
        let asked = self.preparing.run(move |_| own.asked(bytes.body())).await?;
        let answer = upstream.pass(path, asked, facts).await?;
        drop(budget);
        Ok(Passing::Answered(answer))
    }

    /// The chat, if no more is made of it than there is room for; its body holds so much of what bodies may take.
    ///
    /// # Errors
    /// 400 or 413 where its texts are far too long, 429 if too much is held already.
    async fn weighed(
        &self,
        chat: Chat,
        model: &Model,
        budget: &mut Budget,
    ) -> Result<Chat, ApiError> {
        if budget.is_small() {
            return Ok(chat);
        }
        let (model, limits) = (model.clone(), self.limits);
        let weighed = self.preparing.run(move |_| {
            let weight = chat.weight(model.speaks()?.text(), limits)?;
            Ok((chat, weight))
        });
        let (chat, Weight { guards, encoded }) = weighed.await?;
        self.bodies.more_made(budget, guards).await?;
        self.bodies.encoded(budget, encoded).await?;
        Ok(chat)
    }
}

/// Who may ask, and how it is told of.
pub(crate) struct Doors {
    pub(crate) keys: Current<Keys>,
    /// Under which names, and by whose pages.
    pub(crate) hosts: Hosts,
    /// Requests that take longer are warned of.
    pub(crate) slow: Duration,
    /// Takes the spans of requests, where somebody wants them.
    pub(crate) tracer: Option<Tracer>,
}

/// The routes, behind the doors.
pub(crate) fn router(shared: Arc<Shared>, doors: Doors) -> Router {
    let Doors { slow, tracer, .. } = doors;
    let accounts = Accounts { metrics: Arc::clone(&shared.metrics), slow, tracer };
    let router = Router::new()
        .route("/", get(page::page))
        .route("/page/{file}", get(page::file))
        .route("/openapi.json", get(page::openapi))
        .route("/health", get(health::health))
        .route("/readyz", get(health::health))
        .route("/livez", get(health::live))
        .route("/version", get(health::version))
        .route("/metrics", get(health::metrics))
        .route("/v1/models", get(health::models))
        .route("/v1/models/{*model}", get(health::model))
        .route("/v1/chat/completions", post(answers::chat))
        .route("/v1/completions", post(answers::completion))
        .route("/v1/embeddings", post(embeddings::embeddings))
        // Clients that were given the address without /v1 ask here.
        .route("/models", get(health::models))
        .route("/chat/completions", post(answers::chat))
        .route("/completions", post(answers::completion))
        .route("/embeddings", post(embeddings::embeddings))
        .route("/score", post(scores::score))
        .route("/v1/score", post(scores::score))
        .route("/predict", post(scores::predict))
        .route("/rerank", post(scores::rerank))
        .route("/v1/rerank", post(scores::rerank))
        .route("/v2/rerank", post(scores::rerank_second))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::forget))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/tokenizer_info", get(slots::tokenizer))
        .route("/props", get(slots::props))
        .route("/slots", get(slots::list))
        .route("/slots/{id}", post(slots::act))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embeddings))
        .route("/api/embeddings", post(ollama::embedding))
        .route("/api/show", post(ollama::show))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::running))
        .route("/api/version", get(ollama::version))
        .route("/api/pull", post(ollama::refused))
        .route("/api/push", post(ollama::refused))
        .route("/api/create", post(ollama::refused))
        .route("/api/copy", post(ollama::refused))
        .route("/api/delete", delete(ollama::refused))
        .route("/api/blobs/{digest}", post(ollama::refused))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
        .layer(middleware::from_fn_with_state(doors.keys, admit));
    let router = match doors.hosts.origins.is_empty() {
        true => router,
        false => router.layer(cors(doors.hosts.origins.clone())),
    };
    let router = router
        .layer(middleware::from_fn_with_state(Arc::new(doors.hosts), named))
        .layer(middleware::from_fn(in_own_shape));
    router
        .layer(middleware::from_fn_with_state(accounts, account::keep))
        .layer(middleware::from_fn(unread::closes))
}

/// Lets pages of these origins ask, and read what they are told.
fn cors(origins: Vec<HeaderValue>) -> CorsLayer {
    let origins = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients tell of themselves in headers of their own: openai-js in x-stainless-*.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, RETRY_AFTER, TRACE_RESPONSE, answers::PASSED_OVER])
        .max_age(CORS_AGE)
}

/// Says errors as the protocol of their route does.
async fn in_own_shape(request: Request, next: Next) -> Response {
    let protocol = Protocol::of(request.uri().path());
    let mut response = next.run(request).await;
    let told = response.extensions().get();
    let told = told.and_then(|ErrorMessage(why)| protocol.error(response.status(), why));
    if let Some(body) = told {
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
    response
}

/// Turns away who asks under a foreign name, or from a foreign page.
async fn named(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Turns away who has no key.
async fn admit(State(keys): State<Current<Keys>>, mut request: Request, next: Next) -> Response {
    let keys = keys.get();
    if OPEN_ROUTES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let is_crowded = request.extensions().get::<Crowded>().is_some();
    if is_crowded && keys.is_open() {
        return crowded().into_response();
    }
    if let Some(client) = keys.admit(request.headers()) {
        if let Some(facts) = request.extensions().get::<Facts>() {
            facts.client(&client);
        }
        if request.method() == Method::POST
            && let Err(error) = client.ask(Instant::now())
        {
            return error.into_response();
        }
        request.extensions_mut().insert(client);
        return next.run(request).await;
    }
    let error = client::unknown();
    // A browser asks its user for a password where the page is wanted, and for it alone.
    let scheme = if request.uri().path() == "/" { "Basic realm=\"smelt\"" } else { "Bearer" };
    let mut response = error.into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
    response
}

/// 503: all places are taken but those that are kept.
fn crowded() -> ApiError {
    let why = "too many connections; try again, or ask for more places by --max-connections";
    ApiError::unavailable(why, "too_many_connections", CROWDED_RETRY)
}

async fn unknown(request: Request) -> ApiError {
    nothing_at(request.uri().path())
}

/// 404: no route, or nothing of that name.
fn nothing_at(path: &str) -> ApiError {
    let why = format!("there is nothing at {path}; see /openapi.json");
    ApiError::new(StatusCode::NOT_FOUND, why).code("not_found")
}

async fn wrong_method(request: Request) -> ApiError {
    let why = format!("{} takes no {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, why).code("method_not_allowed")
}

#[cfg(test)]
mod tests;
