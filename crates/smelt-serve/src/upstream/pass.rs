//! Passes a request on to another program's server, and its answer back.
//!
//! One connection for each request: dropping the answer closes it, by which servers know that nobody listens any more.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited};
use memchr::{memchr, memmem};
use serde::Deserialize;
use serde_json::Value;
use smelt_runtime::prepare::ImageUsage;
use tokio::time::sleep;

use super::exchange::{AnswerBody, send};
use super::seat::Seat;
use super::watcher::{Standing, Upstream};
use crate::account::Facts;
use crate::answer::Usage;
use crate::api::read;
use crate::error::ApiError;

/// A whole answer that is longer is none: the longest texts take a few MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// What is read of a complaint.
const COMPLAINT_BYTES_MAX: usize = 64 << 10;
/// A line of events that is longer is passed on and not looked at.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// How long is waited for the reason why a server broke off: it is looked at twice a second.
const REASON_TIME_MAX: Duration = Duration::from_secs(2);
const REASON_TICK: Duration = Duration::from_millis(50);
/// When to come again where too many wait.
const BUSY_RETRY: Duration = Duration::from_secs(2);

/// The event that ends a stream.
const DONE: &[u8] = b"[DONE]";
/// What an event of tokens begins with.
const DATA: &[u8] = b"data:";

/// A request's fields.
type Fields = serde_json::Map<String, Value>;

impl Upstream {
    /// Passes a request, as [`Self::asked`] gives it, on to the server's `path`.
    ///
    /// # Errors
    /// 429 where too many wait, 502 with the reason where it breaks off, 503 while it is not there; what it complains of
    /// itself, with its status.
    pub(crate) async fn pass(
        &self,
        path: &str,
        asked: Vec<u8>,
        facts: &Facts,
    ) -> Result<Response, ApiError> {
        let mut seat = self.seat().await?;
        let addr = self.ready()?;
        facts.prepared();
        self.shared().counts.requests.fetch_add(1, Ordering::Relaxed);
        let sent = send(addr, path, asked, &mut seat).await;
        let answer = match sent {
            Ok(answer) => answer,
            Err(why) => {
                seat.is_done();
                return Err(self.broke_off(&why).await);
            }
        };
        self.shared().hears();
        match answer.status() {
            status if status.is_success() => self.answered(answer, seat, facts).await,
            status => {
                let complaint = self.complained(status, answer.into_body()).await;
                seat.is_done();
                Err(complaint)
            }
        }
    }

    /// The request as the server is sent it: under the name by which it knows the model.
    ///
    /// # Errors
    /// 400 for a field that the server is not said to know.
    pub(crate) fn asked(&self, body: read::Body<'_>) -> Result<Vec<u8>, ApiError> {
        let mut fields: Fields = read::json(body)?;
        let spec = self.spec();
        let given = fields.iter().filter(|(_, value)| !value.is_null());
        if let Some(field) = spec.unknown(given.map(|(name, _)| name.as_str())) {
            let why = format!(
                "the server of {:?} is not said to know it; if it does, name it in \"fields\" of its deployment",
                spec.model
            );
            return Err(ApiError::field(field, why));
        }
        fields.insert("model".to_owned(), spec.model.clone().into());
        Ok(serde_json::to_vec(&fields).expect("JSON that was read is JSON"))
    }

    /// A place among those that the server is sent at once, in turn.
    async fn seat(&self) -> Result<Seat, ApiError> {
        let shared = self.shared();
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(ApiError::draining("the model leaves and takes nothing new"));
        }
        let room = shared.launch.spec.slots + shared.launch.queue_max;
        let before = shared.live.fetch_add(1, Ordering::AcqRel);
        let mut seat = Seat::new(shared);
        if before >= room {
            shared.counts.refused.fetch_add(1, Ordering::Relaxed);
            let why = format!("{before} requests are being answered or wait; try again");
            return Err(ApiError::busy(why, BUSY_RETRY));
        }
        self.ready()?;
        // Nobody closes it while there is a handle.
        seat.takes(Arc::clone(&shared.seats).acquire_owned().await.ok());
        Ok(seat)
    }

    /// Where it listens.
    fn ready(&self) -> Result<SocketAddr, ApiError> {
        let down = |why: &str, retry: Duration| {
            let why = format!("the server {} of this model: {why}", self.shared().program());
            ApiError::unavailable(why, "upstream_down", retry.max(Duration::from_secs(1)))
        };
        match self.shared().standing() {
            Standing::Ready(addr) => Ok(addr),
            Standing::Starting => Err(down("it starts", BUSY_RETRY)),
            Standing::Down(why, until) => {
                Err(down(&why, until.saturating_duration_since(Instant::now())))
            }
        }
    }

    /// 502: it broke off, with the reason once that is known.
    async fn broke_off(&self, how: &str) -> ApiError {
        self.shared().counts.failed.fetch_add(1, Ordering::Relaxed);
        let reason = self.reason().await;
        ApiError::new(StatusCode::BAD_GATEWAY, self.words(how, reason.as_deref()))
            .code("upstream_failed")
    }

    fn words(&self, how: &str, reason: Option<&str>) -> String {
        let (program, how) = (self.shared().program(), reason.unwrap_or(how));
        format!("the server {program} of this model broke off: {how}")
    }

    /// Why it is down, if it is soon.
    async fn reason(&self) -> Option<String> {
        let ticks = REASON_TIME_MAX.as_millis() / REASON_TICK.as_millis();
        for _ in 0..ticks {
            if let Standing::Down(why, _) = self.shared().standing() {
                return Some(why);
            }
            sleep(REASON_TICK).await;
        }
        None
    }

    /// What it complained of, as it was: a client's fault is the client's, and one of its own is a bad gateway.
    async fn complained(&self, status: StatusCode, body: AnswerBody) -> ApiError {
        let text = Limited::new(body, COMPLAINT_BYTES_MAX).collect().await;
        let text = text.map(|text| text.to_bytes()).unwrap_or_default();
        let message = complaint(&text);
        match status {
            StatusCode::TOO_MANY_REQUESTS => ApiError::busy(message, BUSY_RETRY),
            StatusCode::SERVICE_UNAVAILABLE => {
                ApiError::unavailable(message, "upstream_busy", BUSY_RETRY)
            }
            // It has no such route, or was started without.
            status if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
                ApiError::new(status, message)
            }
            status => {
                self.shared().counts.failed.fetch_add(1, Ordering::Relaxed);
                let why =
                    format!("the server {} answers {status}: {message}", self.shared().program());
                ApiError::new(StatusCode::BAD_GATEWAY, why).code("upstream_failed")
            }
        }
    }

    /// The answer, whole or event by event.
    async fn answered(
        &self,
        answer: Response<AnswerBody>,
        mut seat: Seat,
        facts: &Facts,
    ) -> Result<Response, ApiError> {
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        if kind.starts_with("text/event-stream") {
            let events = Passed {
                body: answer.into_body(),
                watch: EventWatch::default(),
                upstream: self.clone(),
                facts: facts.clone(),
                seat,
                breaking: None,
                is_over: false,
            };
            return Ok(([(CONTENT_TYPE, kind)], Body::new(events)).into_response());
        }
        let text = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        seat.is_done();
        let text = match text {
            Ok(text) => text.to_bytes(),
            Err(error) => return Err(self.broke_off(&error.to_string()).await),
        };
        let Ok(Answered { usage }) = serde_json::from_slice(&text) else {
            self.shared().counts.failed.fetch_add(1, Ordering::Relaxed);
            let why = format!("the server {} answers what is no JSON", self.shared().program());
            return Err(ApiError::new(StatusCode::BAD_GATEWAY, why).code("upstream_failed"));
        };
        facts.said();
        usage.into_iter().for_each(|usage| facts.usage(usage.into()));
        Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
    }
}

/// What is read of an answer.
#[derive(Deserialize)]
struct Answered {
    #[serde(default)]
    usage: Option<Used>,
}

/// The tokens of an answer, as OpenAI's API tells them.
#[derive(Deserialize)]
struct Used {
    #[serde(default)]
    prompt_tokens: usize,
    #[serde(default)]
    completion_tokens: usize,
}

impl From<Used> for Usage {
    fn from(used: Used) -> Self {
        Self::of_prompt(used.prompt_tokens, 0, ImageUsage::default()).said(used.completion_tokens)
    }
}

/// The message of a complaint, in whichever of the usual shapes.
pub(super) fn complaint(text: &[u8]) -> String {
    let read: Option<Value> = serde_json::from_slice(text).ok();
    let message = read.as_ref().and_then(|read| {
        let error = read.get("error").unwrap_or(read);
        let places = [error.get("message"), Some(error), read.get("detail"), read.get("message")];
        places.into_iter().flatten().find_map(Value::as_str)
    });
    let message = message.map_or_else(|| String::from_utf8_lossy(text).into_owned(), str::to_owned);
    if message.trim().is_empty() { "it says nothing of it".to_owned() } else { message }
}

/// Looks through events as they pass.
#[derive(Default)]
struct EventWatch {
    line: Vec<u8>,
    is_done: bool,
    usage: Option<Usage>,
}

impl EventWatch {
    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            self.line_goes_on(&rest[..end]);
            self.line_ends();
            rest = &rest[end + 1..];
        }
        self.line_goes_on(rest);
    }

    fn line_goes_on(&mut self, bytes: &[u8]) {
        let room = EVENT_BYTES_MAX - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn line_ends(&mut self) {
        if let Some(data) = self.line.strip_prefix(DATA) {
            let data = data.trim_ascii();
            self.is_done |= data == DONE;
            if memmem::find(data, b"\"usage\"").is_some()
                && let Ok(Answered { usage: Some(usage) }) = serde_json::from_slice(data)
            {
                self.usage = Some(usage.into());
            }
        }
        self.line.clear();
    }
}

/// A stream of events that is passed on.
struct Passed {
    body: AnswerBody,
    watch: EventWatch,
    upstream: Upstream,
    facts: Facts,
    seat: Seat,
    /// Finds out why the server broke off.
    breaking: Option<Pin<Box<dyn Future<Output = ApiError> + Send>>>,
    is_over: bool,
}

impl Passed {
    /// The server broke off.
    fn breaks(&mut self, how: String) {
        self.seat.is_done();
        let upstream = self.upstream.clone();
        self.breaking = Some(Box::pin(async move { upstream.broke_off(&how).await }));
    }

    /// The event that says so: nobody may take what there is for the whole.
    fn poll_broken(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Some(breaking) = &mut self.breaking else { return Poll::Ready(Bytes::new()) };
        let error = ready!(breaking.as_mut().poll(context));
        self.is_over = true;
        self.facts.failure(&error.message);
        Poll::Ready(Bytes::from(format!("data: {}\n\n", error.json())))
    }
}

impl http_body::Body for Passed {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.breaking.is_none() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let bytes = frame.into_data().unwrap_or_default();
                    self.facts.said();
                    self.upstream.shared().hears();
                    self.watch.take(&bytes);
                    if let Some(usage) = self.watch.usage.take() {
                        self.facts.usage(usage);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                None if self.watch.is_done => {
                    self.seat.is_done();
                    return Poll::Ready(None);
                }
                None => self.breaks("its events ended without [DONE]".to_owned()),
                Some(Err(error)) => self.breaks(error.to_string()),
            }
        }
        let event = ready!(self.poll_broken(context));
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_read_in_the_usual_shapes() {
        let check = |text: &str, expect: &str| assert_eq!(complaint(text.as_bytes()), expect);
        check(r#"{"error": {"message": "too long", "code": 400}}"#, "too long");
        check(r#"{"error": "no such model"}"#, "no such model");
        check(r#"{"detail": "not here"}"#, "not here");
        check(r#"{"object": "error", "message": "bad"}"#, "bad");
        check("<h1>502</h1>", "<h1>502</h1>");
        check("  ", "it says nothing of it");
    }

    #[test]
    fn events_are_looked_through_however_they_are_cut() {
        let text = b"data: {\"choices\": []}\r\n\ndata: {\"usage\": {\"prompt_tokens\": 7, \
            \"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut watch = EventWatch::default();
            text.chunks(size).for_each(|part| watch.take(part));
            assert!(watch.is_done, "{size}");
            let expect = Used { prompt_tokens: 7, completion_tokens: 3 };
            assert_eq!(watch.usage, Some(expect.into()), "{size}");
        }
        let mut watch = EventWatch::default();
        watch.take(b"data: \"[DONE]\"\n");
        watch.take(&vec![b'x'; EVENT_BYTES_MAX * 3]);
        assert!(!watch.is_done && watch.line.len() <= EVENT_BYTES_MAX);
    }
}
