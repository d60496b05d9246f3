//! Answers chats and completions, whole or as they are said.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http_body::Frame;
use smelt_runtime::dialect::Reader;
use smelt_runtime::generation::Constraint;
use smelt_runtime::service::Event;
use tokio::time::Sleep;

use super::call::{Call, Spoken, of_service};
use super::{Passing, WeighedBody};
use crate::account::RequestId;
use crate::answer::accumulator::Accumulator;
use crate::answer::stream::{Stream, error};
use crate::answer::{self, Heading, Shape, Wire};
use crate::api::common::{Common, Delivery};
use crate::api::structured_output::StructuredOutputFields;
use crate::ask::completion::Completion;
use crate::ask::work::Asker;
use crate::ask::{self, chat::Chat};
use crate::error::ApiError;
use crate::models::Model;
use crate::response_stream::ResponseStream;

/// How long nothing is said before proxies are told that the answer goes on.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Tells which fields of a request nobody knows.
pub(super) const PASSED_OVER: HeaderName = HeaderName::from_static("x-smelt-passed-over");

/// Asks nginx not to gather events.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Answers a chat.
pub(super) async fn chat(call: Call, body: Body) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let held = call.held(body).await?;
    let WeighedBody { bytes, budget } =
        match call.shared.pass(held, "/v1/chat/completions", &call.facts).await? {
            Passing::Answered(answer) => return Ok(answer),
            Passing::Own(held) => held,
        };
    let read = move || Ok((Chat::of(bytes.body())?, ()));
    let spoken = call.spoken(begun, budget, read).await?;
    let Spoken { model, common, dialect, is_thinking, words, response_stream, passed_over, .. } =
        spoken;
    let heading = heading("chatcmpl", &call.id, &model);
    let usage = wants_usage(&common)?;
    let readers = vec![Reader::new(dialect, is_thinking); response_stream.choices()];
    let shape = answer::chat::Chat { heading, usage, words, dialect, is_thinking, readers };
    let answer = as_asked(Box::new(shape), response_stream, &common).await?;
    Ok(telling(answer, &passed_over))
}

/// Answers completions.
pub(super) async fn completion(call: Call, body: Body) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let Call { shared, facts, client, id, headers, .. } = call;
    let held = shared.read(&headers, body).await?;
    let held = match shared.pass(held, "/v1/completions", &facts).await? {
        Passing::Answered(answer) => return Ok(answer),
        Passing::Own(held) => held,
    };
    let (models, is_shared) = (Arc::clone(&shared.models), shared.is_cache_shared);
    let read = move |_: &Asker| {
        let completion = Completion::read(held.bytes.body())?;
        Ok((completion, held.budget))
    };
    let (completion, mut budget) = shared.preparing.run(read).await?;
    shared.bodies.encoded(&mut budget, completion.fields.prompt.longest()).await?;
    let compiled = shared.bodies.compiled(completion.held.compiled_bytes()).await?;
    let prepared = shared.preparing.run(move |_| {
        let model = models.ask(completion.common.model.as_deref())?;
        let max_seq_len = model.speaks()?.text().max_seq_len;
        let limit = completion.new_tokens_max(max_seq_len)?;
        let logprobs = completion.fields.logprobs()?;
        let choice_params = completion.common.choice_params(logprobs, limit)?;
        let (prompts, echo) = completion.prepare(model.speaks()?.text())?;
        let answers = choice_params.len();
        let constraint = constraint(&model, &completion.held)?;
        let scored = logprobs.filter(|_| completion.fields.echo());
        let client = of_service(&client, &completion.common, is_shared)?;
        let (common, choice_params) = (&completion.common, &choice_params[..]);
        let answer_options =
            ask::AnswerOptions { client, common, choice_params, constraint, scored, begun };
        let event_streams = ask::submit(model.speaks()?, prompts, &answer_options)?;
        drop(budget);
        // With what was compiled, also where who asked has left meanwhile.
        Ok((completion, model, (event_streams, answers, compiled), echo))
    });
    let (completion, model, (event_streams, answers, compiled), echo) = prepared.await?;
    let (common, passed_over) = (completion.common, completion.passed_over);
    facts.model(&model.name);
    facts.prepared();
    facts.passed_over(&passed_over);
    let response_stream = ResponseStream::new(event_streams, answers, facts, compiled);
    let heading = heading("cmpl", &id, &model);
    let (usage, words) = (wants_usage(&common)?, ask::words(model.speaks()?));
    let offsets = match echo.is_empty() {
        true => vec![0; response_stream.choices()],
        false => echo.iter().map(|text| text.chars().count()).collect(),
    };
    let shape = answer::completion::Completion { heading, usage, words, echo, offsets };
    let answer = as_asked(Box::new(shape), response_stream, &common).await?;
    Ok(telling(answer, &passed_over))
}

/// The answer with what was passed over of its request.
pub(super) fn telling(mut answer: Response, passed_over: &[String]) -> Response {
    let names = HeaderValue::from_str(&passed_over.join(","));
    if let (false, Ok(names)) = (passed_over.is_empty(), names) {
        answer.headers_mut().insert(PASSED_OVER, names);
    }
    answer
}

/// What each answer must be.
fn constraint(model: &Model, held: &StructuredOutputFields) -> Result<Constraint, ApiError> {
    let grammar = held.grammar()?;
    let compile = |(grammar, param)| model.constraint(&grammar, param);
    Ok(Constraint { matcher: grammar.map(compile).transpose()?, ..Constraint::default() })
}

pub(super) fn heading(kind: &str, id: &RequestId, model: &Model) -> Heading {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Heading { id: format!("{kind}-{}", id.0), created, model: model.name.clone() }
}

fn wants_usage(common: &Common) -> Result<bool, ApiError> {
    Ok(common.delivery()? == Delivery::Stream { usage: true })
}

/// Sends the answer in OpenAI's form, as it was asked for.
async fn as_asked(
    shape: Box<dyn Shape>,
    response_stream: ResponseStream,
    common: &Common,
) -> Result<Response, ApiError> {
    let delivery = common.delivery()?;
    let usage = delivery == Delivery::Stream { usage: true };
    let wire = Stream::new(shape, response_stream.choices(), usage);
    deliver(Box::new(wire), response_stream, delivery != Delivery::Whole).await
}

/// Sends the answer, event by event or when all is said.
///
/// The status waits for the first event: what fails before anything is said fails with a status.
pub(super) async fn deliver(
    wire: Box<dyn Wire>,
    mut response_stream: ResponseStream,
    is_stream: bool,
) -> Result<Response, ApiError> {
    let first = match response_stream.next().await {
        Some(Event::Failed(failure)) => return Err(error(&failure)),
        first => first,
    };
    match is_stream {
        false => whole(wire, response_stream, first).await,
        true => Ok(stream(wire, response_stream, first)),
    }
}

async fn whole(
    mut wire: Box<dyn Wire>,
    mut response_stream: ResponseStream,
    mut next: Option<Event>,
) -> Result<Response, ApiError> {
    let mut gathered = Accumulator::new(response_stream.choices());
    while let Some(event) = next {
        if let Event::Failed(failure) = &event {
            return Err(error(failure));
        }
        gathered.hear(event);
        next = response_stream.next().await;
    }
    let json = wire.whole(&gathered.choices, response_stream.usage());
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}

fn stream(
    mut wire: Box<dyn Wire>,
    response_stream: ResponseStream,
    first: Option<Event>,
) -> Response {
    let mut begun = Vec::new();
    if let Some(event) = first {
        wire.hear(&event, &mut begun);
    }
    let keep_alive = Box::pin(tokio::time::sleep(KEEP_ALIVE_EVERY));
    let headers =
        [(CONTENT_TYPE, wire.media_type()), (CACHE_CONTROL, "no-cache"), (BUFFERING, "no")];
    let body = Events { response_stream, wire, begun, keep_alive, is_over: false };
    (headers, Body::new(body)).into_response()
}

/// A stream's body: what was said since it was last asked is one frame.
struct Events {
    response_stream: ResponseStream,
    wire: Box<dyn Wire>,
    /// What is written and not sent.
    begun: Vec<u8>,
    keep_alive: Pin<Box<Sleep>>,
    is_over: bool,
}

impl Events {
    /// Writes what was said meanwhile.
    fn write(&mut self, context: &mut Context<'_>) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.begun);
        while let Poll::Ready(event) = self.response_stream.poll_next(context) {
            let Some(event) = event else {
                self.wire.end(self.response_stream.usage(), &mut out);
                self.is_over = true;
                break;
            };
            self.wire.hear(&event, &mut out);
        }
        out
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut out = self.write(context);
        if out.is_empty() && self.is_over {
            return Poll::Ready(None);
        }
        if out.is_empty() && self.wire.keep_alive().is_empty() {
            return Poll::Pending;
        }
        if out.is_empty() {
            ready!(self.keep_alive.as_mut().poll(context));
            out.extend_from_slice(self.wire.keep_alive());
        }
        let next = tokio::time::Instant::now() + KEEP_ALIVE_EVERY;
        self.keep_alive.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }
}
