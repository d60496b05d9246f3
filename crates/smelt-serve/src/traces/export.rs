//! Sends spans to a collector, in a thread of its own.
//!
//! A collector that is slow, gone or confused costs spans, which are counted, and nothing else.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde::Deserialize;
use serde_json::Value;
use ureq::Agent;
use ureq::config::Config;

use super::line::Line;
use super::otlp::{self, Span};
use super::{Counts, TraceOptions, drawn};

/// How often spans are sent, where the collector asks to come again or does not answer.
const ATTEMPTS_MAX: u32 = 5;

/// The first pause between two attempts; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause, whatever the collector wishes: what waits meanwhile is limited.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Most bytes of a collector's answer that are read; it has a number and a sentence.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// What a collector made of spans.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// It took them but so many.
    Taken { rejected: usize },
    /// It wants them again, after this time if it says so.
    Later(Option<Duration>),
    /// It does not want them.
    Refused,
}

/// What a collector says beside 200.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    partial_success: Partial,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Partial {
    /// A number, which OTLP writes as a text and some do not.
    rejected_spans: Value,
}

/// Sends what waits in a line.
pub(super) struct Exporter {
    options: TraceOptions,
    line: Arc<Line>,
    counts: Counts,
    agent: Agent,
}

impl Exporter {
    pub(super) fn new(options: TraceOptions, line: Arc<Line>, counts: Counts) -> Self {
        let config = Config::builder()
            // Spans, and the headers that let them in, are for the collector that was named.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("smelt-otlp/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { options, line, counts, agent: config.into() }
    }

    /// Sends until the server ends.
    pub(super) fn run(self) {
        let mut is_told = false;
        while let Some(spans) = self.line.take() {
            let count = spans.len();
            let (taken, why) = self.deliver(&spans);
            self.counts.sent.inc_by(taken as u64);
            self.counts.dropped.inc_by((count - taken) as u64);
            // Once, and again when it has been well between.
            match why {
                Some(why) if !is_told => {
                    tracing::warn!("traces are lost: the collector {why}");
                    is_told = true;
                }
                None if is_told => {
                    tracing::info!("the collector takes traces again");
                    is_told = false;
                }
                _ => {}
            }
        }
        self.counts.dropped.inc_by(self.line.leave() as u64);
    }

    /// Sends spans until they are taken or it is of no use.  Gives how many were taken, and why not all.
    fn deliver(&self, spans: &[Span]) -> (usize, Option<String>) {
        let body = otlp::export(&self.options.resource, spans);
        let mut why = String::new();
        for attempt in 0..ATTEMPTS_MAX {
            let verdict;
            (verdict, why) = self.send(&body);
            match verdict {
                Verdict::Taken { rejected: 0 } => return (spans.len(), None),
                Verdict::Taken { rejected } => {
                    return (spans.len().saturating_sub(rejected), Some(why));
                }
                Verdict::Refused => break,
                // A server that ends sends once.
                Verdict::Later(_) if self.line.left().is_some() => break,
                Verdict::Later(wish) => self.line.rest(pause(attempt, wish, drawn())),
            }
        }
        (0, Some(why))
    }

    /// What the collector makes of `body`, in words too.
    fn send(&self, body: &[u8]) -> (Verdict, String) {
        let TraceOptions { url, headers, timeout, .. } = &self.options;
        let left = self.line.left().map_or(*timeout, |left| left.min(*timeout));
        if left.is_zero() {
            return (Verdict::Refused, "has no time left".to_owned());
        }
        let mut request = self.agent.post(url).header(CONTENT_TYPE, "application/json");
        for (name, value) in &headers.0 {
            request = request.header(name, value);
        }
        let request = request.config().timeout_global(Some(left)).build();
        let mut response = match request.send(body) {
            Ok(response) => response,
            Err(error) => return (Verdict::Later(None), format!("is not reached: {error}")),
        };
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER);
        let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok());
        let mut answer = Vec::new();
        let reader = response.body_mut().as_reader().take(ANSWER_BYTES_MAX);
        if status.is_success() && { reader }.read_to_end(&mut answer).is_err() {
            answer.clear();
        }
        let verdict = judge(status, after.map(Duration::from_secs), &answer);
        (verdict, told(status, verdict))
    }
}

/// What a collector's answer means, by the specification of OTLP.
fn judge(status: StatusCode, after: Option<Duration>, answer: &[u8]) -> Verdict {
    match status.as_u16() {
        200..=299 => {
            let answer: Answer = serde_json::from_slice(answer).unwrap_or_default();
            let rejected = match answer.partial_success.rejected_spans {
                Value::String(count) => count.parse().unwrap_or(0),
                count => count.as_u64().unwrap_or(0),
            };
            Verdict::Taken { rejected: usize::try_from(rejected).unwrap_or(usize::MAX) }
        }
        429 | 502 | 503 | 504 => Verdict::Later(after),
        _ => Verdict::Refused,
    }
}

fn told(status: StatusCode, verdict: Verdict) -> String {
    match verdict {
        Verdict::Taken { rejected } => format!("rejected {rejected} spans"),
        // Where there is a redirect, the address it names is the one to be given.
        _ => format!("answers {status}"),
    }
}

/// How long to wait behind attempt `attempt`: as long as the collector wishes, or twice as long each time, and a little
/// more, so that many servers do not come at once.
fn pause(attempt: u32, wish: Option<Duration>, drawn: u64) -> Duration {
    let pause = wish.unwrap_or(PAUSE_MIN * 2u32.saturating_pow(attempt)).min(PAUSE_MAX);
    pause + pause.mul_f64(drawn as f64 / u64::MAX as f64 / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collectors_answer_is_read_as_the_specification_says() {
        let of = |status: u16, answer: &str| {
            judge(StatusCode::from_u16(status).unwrap(), None, answer.as_bytes())
        };
        let taken = |rejected| Verdict::Taken { rejected };
        for answer in
            ["", "{}", "nonsense", "[]", r#"{"partialSuccess":{}}"#, r#"{"partialSuccess":3}"#]
        {
            assert_eq!(of(200, answer), taken(0), "{answer}");
        }
        assert_eq!(
            of(200, r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"x"}}"#),
            taken(3)
        );
        assert_eq!(of(200, r#"{"partialSuccess":{"rejectedSpans":4}}"#), taken(4));
        for status in [429, 502, 503, 504] {
            assert_eq!(of(status, ""), Verdict::Later(None));
        }
        for status in [301, 307, 400, 401, 404, 413, 500] {
            assert_eq!(of(status, ""), Verdict::Refused);
        }
    }

    #[test]
    fn pauses_grow_and_have_an_end() {
        let seconds = |attempt, wish: Option<u64>, drawn| {
            pause(attempt, wish.map(Duration::from_secs), drawn).as_secs_f64()
        };
        assert_eq!([0, 1, 2, 40].map(|attempt| seconds(attempt, None, 0)), [1.0, 2.0, 4.0, 30.0]);
        assert_eq!((seconds(0, Some(7), 0), seconds(3, Some(100_000), 0)), (7.0, 30.0));
        assert_eq!(seconds(0, Some(4), u64::MAX), 5.0);
    }
}
