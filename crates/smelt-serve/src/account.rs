//! Tells of each request: its name, one line of the log, its part of the metrics.
//!
//! A request is told of when its answer has gone out or its client has gone away, whatever comes
//! first, so nothing is told twice or never.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use smelt_runtime::service::{Failure, Marks};

use crate::answer::Usage;
use crate::client::Client;
use crate::ending::Ending;
use crate::error::ErrorMessage;
use crate::listen::Peer;
use crate::metrics::Metrics;
use crate::traces::{Answered, Context, Parent, TRACE_RESPONSE, Tracer, drawn, operation};

/// Names a request, in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest name that a client may give; more is no name but a way to fill a log.
const ID_BYTES_MAX: usize = 128;

/// What broke off an answer whose client went away, in a span.
const CANCELLED: &str = "cancelled";

/// Most reasons of which a span tells why answers ended.
const FINISHES_MAX: usize = 32;

/// What is written in place of a status when the client went away before there was one; nginx's number.
const CLIENT_GONE: u16 = 499;

/// How requests are told of.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    pub(crate) metrics: Arc<Metrics>,
    /// Requests that take longer are warned of.
    pub(crate) slow: Duration,
    /// Takes the spans of requests, where somebody wants them.
    pub(crate) tracer: Option<Tracer>,
}

/// What is known of an answer, filled in while it is given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    model: Option<String>,
    usage: Usage,
    prepared: Option<Instant>,
    first_token: Option<Instant>,
    failure: Option<String>,
    /// What broke the answer off, in one word.
    broken: Option<&'static str>,
    finishes: Vec<&'static str>,
    prompts: Vec<Marks>,
    client: Option<Client>,
    passed_over: Option<String>,
}

/// A request's name.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

impl Facts {
    fn with(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Who answers.
    pub(crate) fn model(&self, name: &str) {
        self.with(|facts| facts.model = Some(name.to_owned()));
    }

    /// The prompt is ready for the engine.
    pub(crate) fn prepared(&self) {
        self.with(|facts| facts.prepared = Some(Instant::now()));
    }

    /// Something was said.
    pub(crate) fn said(&self) {
        self.with(|facts| _ = facts.first_token.get_or_insert_with(Instant::now));
    }

    /// How many tokens there are so far.
    pub(crate) fn usage(&self, usage: Usage) {
        self.with(|facts| facts.usage = usage);
    }

    /// Whose key it has.
    pub(crate) fn client(&self, client: &Client) {
        self.with(|facts| facts.client = Some(client.clone()));
    }

    /// Fields of the request that nobody knows.
    pub(crate) fn passed_over(&self, names: &[String]) {
        let names = (!names.is_empty()).then(|| names.join(","));
        self.with(|facts| facts.passed_over = names);
    }

    /// Where to read when what happens to its prompts.
    pub(crate) fn marked(&self, prompts: Vec<Marks>) {
        self.with(|facts| facts.prompts = prompts);
    }

    /// One of its answers ended, for this reason.
    pub(crate) fn finished(&self, reason: &'static str) {
        self.with(|facts| {
            if facts.finishes.len() < FINISHES_MAX {
                facts.finishes.push(reason);
            }
        });
    }

    /// The service broke the answer off.
    pub(crate) fn broken(&self, failure: &Failure) {
        let word = match failure {
            Failure::Deadline => "timeout",
            Failure::Engine(_) => "engine_failed",
            Failure::Form(_) => "form_not_held",
            Failure::Stopped => "server_stopped",
        };
        self.with(|facts| facts.broken = Some(word));
        self.failure(&failure.to_string());
    }

    /// The answer broke off.
    pub(crate) fn failure(&self, why: &str) {
        self.with(|facts| facts.failure = Some(why.to_owned()));
    }
}

/// A request that is not told of yet.
struct Account {
    accounts: Accounts,
    facts: Facts,
    id: String,
    peer: Option<Peer>,
    method: Method,
    route: String,
    begun: Instant,
    status: Option<StatusCode>,
    is_whole: bool,
    /// What is done with a model, where something is.
    operation: Option<&'static str>,
    /// The trace that it belongs to, where somebody traces it.
    trace: Option<u128>,
    /// Its own place in it, where spans are told of.
    context: Option<Context>,
}

/// The outermost layer of all routes.
pub(crate) async fn keep(
    State(accounts): State<Accounts>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = given_id(request.headers()).unwrap_or_else(new_id);
    let facts = Facts::default();
    let route = request.extensions().get::<MatchedPath>();
    // What is no route has no name of its own, or anybody could fill the metrics.
    let route = route.map_or("other", MatchedPath::as_str).to_owned();
    let operation = operation(request.method(), &route);
    let parent = operation.and_then(|_| Parent::of(request.headers()));
    let trace = parent.as_ref().map(|parent| parent.trace);
    let tracer = accounts.tracer.as_ref().filter(|_| operation.is_some());
    let context = tracer.map(|tracer| tracer.begin(parent));
    let mut account = Account {
        facts: facts.clone(),
        peer: request.extensions().get::<Peer>().copied(),
        method: request.method().clone(),
        route,
        begun: Instant::now(),
        status: None,
        is_whole: false,
        operation,
        trace: context.as_ref().map(|context| context.trace).or(trace),
        context,
        id,
        accounts,
    };
    request.extensions_mut().insert(facts);
    request.extensions_mut().insert(RequestId(account.id.clone()));
    account.accounts.metrics.begin();
    let mut response = next.run(request).await;
    account.status = Some(response.status());
    if let Some(ErrorMessage(why)) = response.extensions().get() {
        account.facts.failure(why);
    }
    if let Ok(id) = HeaderValue::from_str(&account.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let traced = account.context.as_ref().map(|context| HeaderValue::try_from(context.response()));
    if let Some(Ok(traced)) = traced {
        response.headers_mut().insert(TRACE_RESPONSE, traced);
    }
    let whole = |account: &mut Account| account.is_whole = true;
    response.map(|body| Body::new(Ending { body, kept: account, whole }))
}

/// The name that a client gives its request, if it is one.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
    let is_name = !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(is_id);
    is_name.then(|| id.to_owned())
}

/// A name that no other request has: a number that counts, behind one that is drawn.
pub(crate) fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{:08x}", drawn(), count as u32)
}

impl Account {
    /// Whether its client had gone before all of the answer was sent.
    fn is_cut_off(&self) -> bool {
        !self.is_whole && self.method != Method::HEAD
    }

    /// Has its spans told, unless it was turned away at the door: whoever has no key could fill a collector.
    fn trace(&self, facts: &Inner, ended: Instant) {
        let (Some(tracer), Some(operation), Some(context), Some(client)) =
            (&self.accounts.tracer, self.operation, &self.context, &facts.client)
        else {
            return;
        };
        tracer.tell(&Answered {
            context,
            operation,
            route: &self.route,
            status: self.status.map(|status| status.as_u16()),
            broken: facts.broken.or(self.is_cut_off().then_some(CANCELLED)),
            model: facts.model.as_deref(),
            key: client.name(),
            usage: facts.usage,
            finishes: &facts.finishes,
            begun: self.begun,
            prepared: facts.prepared,
            ended,
            prompts: facts.prompts.iter().map(Marks::times).collect(),
        });
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let ended = Instant::now();
        let took = ended.saturating_duration_since(self.begun);
        let status = self.status.map_or(CLIENT_GONE, |status| status.as_u16());
        let facts = self.facts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |instant: Instant| instant.saturating_duration_since(self.begun);
        let first_token = facts.first_token.map(of);
        self.accounts.metrics.end(&self.route, status, took, first_token, facts.usage);
        self.trace(&facts, ended);
        if let Some(client) = &facts.client {
            client.spend(facts.usage.total_tokens as u64, Instant::now());
            self.accounts.metrics.of_key(client, status, facts.usage);
        }
        // Who looks after the server asks these often, and nothing is learned from it: while it loads and
        // while it ends, /health says so with a status of errors.
        let is_quiet = match self.route.as_str() {
            "/health" | "/livez" | "/readyz" => true,
            "/metrics" => status < 400,
            _ => false,
        };
        if is_quiet && took < self.accounts.slow {
            return;
        }
        let line = Line {
            took,
            status,
            first_token,
            prepared: facts.prepared.map(of),
            facts: &facts,
            account: self,
        };
        line.write(took >= self.accounts.slow);
    }
}

/// What one line of the log says.
struct Line<'a> {
    took: Duration,
    status: u16,
    prepared: Option<Duration>,
    first_token: Option<Duration>,
    facts: &'a Inner,
    account: &'a Account,
}

impl Line<'_> {
    fn write(&self, is_slow: bool) {
        let ms = |duration: Duration| (duration.as_secs_f64() * 1e3 * 10.0).round() / 10.0;
        let (account, facts, usage) = (self.account, self.facts, self.facts.usage);
        let (is_answer, details) = (facts.model.is_some(), usage.prompt_tokens_details);
        let is_smaller = details.smaller_images > 0;
        macro_rules! line {
            ($level:ident, $says:literal) => {
                tracing::$level!(
                    request_id = account.id,
                    trace_id = account.trace.map(|trace| tracing::field::display(format!("{trace:032x}"))),
                    peer = account.peer.map(|peer| tracing::field::display(peer.0)),
                    key = facts.client.as_ref().and_then(Client::name),
                    method = %account.method,
                    route = account.route,
                    status = self.status,
                    took_ms = ms(self.took),
                    cut_off = account.is_cut_off().then_some(true),
                    model = facts.model,
                    prepared_ms = self.prepared.map(ms),
                    first_token_ms = self.first_token.map(ms),
                    prompt_tokens = is_answer.then_some(usage.prompt_tokens),
                    cached_tokens =
                        is_answer.then_some(usage.prompt_tokens_details.cached_tokens),
                    image_tokens = is_answer.then_some(usage.prompt_tokens_details.image_tokens),
                    smaller_images = is_smaller.then_some(details.smaller_images),
                    wished_image_tokens = is_smaller.then_some(details.wished_image_tokens),
                    completion_tokens = is_answer.then_some(usage.completion_tokens),
                    passed_over = facts.passed_over,
                    failure = facts.failure,
                    $says
                )
            };
        }
        match (is_slow, self.status >= 500) {
            (_, true) => line!(error, "failed"),
            (true, false) => line!(warn, "slow"),
            (false, false) => line!(info, "request"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_fill_the_log_is_no_name() {
        let given = |value: &str| {
            let headers = [(REQUEST_ID, value.parse().unwrap())].into_iter().collect();
            given_id(&headers)
        };
        assert_eq!(given("a-1.b_2").as_deref(), Some("a-1.b_2"));
        assert_eq!(given(""), None);
        assert_eq!(given("two words"), None);
        assert_eq!(given("<script>"), None);
        assert_eq!(given(&"a".repeat(129)), None);
    }

    #[test]
    fn names_differ() {
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| new_id()).collect();
        assert_eq!(names.len(), 1000);
    }
}
