//! Frames an answer as server-sent events (WHATWG HTML, section 9.2), each as soon as it is said.

use axum::http::StatusCode;

use super::{ChoiceDelta, Shape, Usage, Wire, accumulator};
use crate::error::ApiError;
use smelt_runtime::service::{Event, Failure};

/// The last event of a stream.
const DONE: &str = "[DONE]";

/// What keeps proxies from ending a connection on which nothing is said: a comment.
pub(crate) const KEEP_ALIVE: &[u8] = b":\n\n";

/// An answer's events as they are written.
pub(crate) struct Stream {
    shape: Box<dyn Shape>,
    /// Choices, each of which begins and ends.
    choices: usize,
    has_begun: bool,
    has_failed: bool,
    wants_usage: bool,
}

impl Stream {
    /// An answer of so many choices.
    pub(crate) fn new(shape: Box<dyn Shape>, choices: usize, wants_usage: bool) -> Self {
        Self { shape, choices, has_begun: false, has_failed: false, wants_usage }
    }

    /// All choices begin once, however many prompts are read.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        for choice in 0..self.choices {
            if let Some(part) = self.shape.begin(choice) {
                frame(out, &part);
            }
        }
    }
}

impl Wire for Stream {
    fn media_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    fn keep_alive(&self) -> &'static [u8] {
        KEEP_ALIVE
    }

    fn whole(&mut self, choices: &[accumulator::Choice], usage: Usage) -> String {
        self.shape.whole(choices, usage)
    }

    fn hear(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Looking { part, parts } => comment(out, *part, *parts),
            Event::Read { .. } => self.begin(out),
            Event::Scored { choice, tokens } => {
                if let Some(part) = self.shape.scored(*choice, tokens) {
                    frame(out, &part);
                }
            }
            Event::Emitted { choice, text, tokens } => {
                if let Some(part) = self.shape.said(&ChoiceDelta { choice: *choice, text, tokens })
                {
                    frame(out, &part);
                }
            }
            Event::Ended { choice, finish, .. } => {
                frame(out, &self.shape.ended(*choice, finish.reason()));
            }
            Event::Failed(failure) => {
                self.has_failed = true;
                frame(out, &error(failure).json());
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        if self.wants_usage && !self.has_failed {
            frame(out, &self.shape.usage(usage));
        }
        frame(out, DONE);
    }
}

/// Why there is no more of an answer.
pub(crate) fn error(failure: &Failure) -> ApiError {
    let message = failure.to_string();
    match failure {
        Failure::Deadline => {
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("deadline_exceeded")
        }
        Failure::Engine(_) => ApiError::failed(message).code("engine_failed"),
        Failure::Form(_) => ApiError::bad(message).code("form_not_held"),
        Failure::Stopped => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("stopped"),
    }
}

/// Tells those who look at comments how far the pictures are; all others pass over it.
pub(crate) fn comment(out: &mut Vec<u8>, part: usize, parts: usize) {
    out.extend_from_slice(format!(": looking at tile {part} of {parts}\n\n").as_bytes());
}

/// JSON of one line is one line of data.
fn frame(out: &mut Vec<u8>, data: &str) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests;
