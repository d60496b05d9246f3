//! Frames an answer as server-sent events (WHATWG HTML, section 9.2), each as soon as it is said.

use super::{Said, Shape, Usage};
use crate::error::ApiError;
use crate::heard::Event;

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
    wants_usage: bool,
}

impl Stream {
    /// An answer of so many choices.
    pub(crate) fn new(shape: Box<dyn Shape>, choices: usize, wants_usage: bool) -> Self {
        Self { shape, choices, has_begun: false, wants_usage }
    }

    /// Writes what was heard behind `out`.
    pub(crate) fn hear(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Read { .. } => self.begin(out),
            Event::Said { choice, text, tokens } => {
                frame(out, &self.shape.said(&Said { choice: *choice, text, tokens }));
            }
            Event::Ended { choice, finish, .. } => {
                frame(out, &self.shape.ended(*choice, finish.reason()));
            }
            Event::Failed(why) => frame(out, &ApiError::failed(why.as_str()).json()),
        }
    }

    /// Writes the end behind `out`.
    pub(crate) fn end(&self, usage: Usage, out: &mut Vec<u8>) {
        if self.wants_usage {
            frame(out, &self.shape.usage(usage));
        }
        frame(out, DONE);
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

/// JSON of one line is one line of data.
fn frame(out: &mut Vec<u8>, data: &str) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests;
