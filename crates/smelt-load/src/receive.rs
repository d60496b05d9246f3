//! Reads the answer to one request as it comes: server-sent events, or one JSON document.
//!
//! Bytes and moments in, what was heard out.  Knows nothing of sockets or clocks.

use std::time::Duration;

use serde_json::Value;

/// The longest line of a stream, in bytes; a token's logprobs take some kilobytes.
const LINE_BYTES_MAX: usize = 4 << 20;

/// An answer that is not what the API says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HearError {
    /// A line goes on and on.
    #[error("a line of the answer has more than {LINE_BYTES_MAX} bytes")]
    Long,
    /// An event is not JSON.
    #[error("the answer is not JSON: {0}")]
    NotJson(String),
    /// The server said what went wrong.
    #[error("the server said: {0}")]
    Said(String),
    /// The stream ended too early.
    #[error("the stream ended before it was done")]
    Cut,
    /// There was no token in it.
    #[error("the answer has no text")]
    Empty,
}

/// What was heard of one answer.  Moments are counted from the sending of the request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReceivedAnswer {
    /// When the first text came.
    pub first: Option<Duration>,
    /// When the last text came.
    pub last: Duration,
    /// Events that had text.
    pub pieces: usize,
    /// Tokens of the prompt and of the answer, where the server told.
    pub usage: Option<[usize; 2]>,
    /// Whether it came as a stream.
    pub is_streamed: bool,
    /// How long the server says reading the prompt took, in milliseconds (llama-server's `timings`).
    pub prompt_ms: Option<f64>,
}

impl ReceivedAnswer {
    /// As it was for whom the request came so much earlier than it was sent.
    #[must_use]
    pub(crate) fn after(self, late: Duration) -> Self {
        Self { first: self.first.map(|first| first + late), last: self.last + late, ..self }
    }

    /// Tokens of the answer; where the server did not tell, the pieces.
    pub fn tokens(&self) -> usize {
        self.usage.map_or(self.pieces, |[_, answer]| answer)
    }
}

/// Reads one answer.
#[derive(Debug, Default)]
pub struct Ear {
    line: Vec<u8>,
    /// What is no event: a whole document, or an error.
    plain: Vec<u8>,
    received: ReceivedAnswer,
    is_done: bool,
}

impl Ear {
    /// Takes bytes that came at a moment.
    ///
    /// # Errors
    /// [`HearError`] if they cannot be understood.
    pub fn push(&mut self, bytes: &[u8], at: Duration) -> Result<(), HearError> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                return Err(HearError::Long);
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.line(&line, at)?;
            }
        }
        Ok(())
    }

    /// What was heard, as nothing more comes.
    ///
    /// # Errors
    /// [`HearError`] if that is no whole answer.
    pub fn finish(mut self, at: Duration) -> Result<ReceivedAnswer, HearError> {
        let line = std::mem::take(&mut self.line);
        self.line(&line, at)?;
        if !self.received.is_streamed {
            let plain = std::mem::take(&mut self.plain);
            self.event(&plain, at)?;
            self.is_done = true;
        }
        match self.received {
            _ if !self.is_done => Err(HearError::Cut),
            received if received.first.is_none() && received.tokens() == 0 => Err(HearError::Empty),
            received => Ok(received),
        }
    }

    fn line(&mut self, line: &[u8], at: Duration) -> Result<(), HearError> {
        let Some(event) = line.strip_prefix(b"data:") else {
            // Names, comments and empty lines of a stream say nothing.
            if !self.received.is_streamed {
                if self.plain.len() + line.len() > LINE_BYTES_MAX {
                    return Err(HearError::Long);
                }
                self.plain.extend_from_slice(line);
            }
            return Ok(());
        };
        self.received.is_streamed = true;
        let event = event.trim_ascii();
        if event == b"[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        self.event(event, at)
    }

    fn event(&mut self, json: &[u8], at: Duration) -> Result<(), HearError> {
        let event: Value =
            serde_json::from_slice(json).map_err(|error| HearError::NotJson(error.to_string()))?;
        if let Some(said) = error(&event) {
            return Err(HearError::Said(said));
        }
        if event["choices"].as_array().is_some_and(|all| all.iter().any(has_text)) {
            self.received.first.get_or_insert(at);
            self.received.last = at;
            self.received.pieces += 1;
        }
        let count = |name: &str| usize::try_from(event["usage"][name].as_u64()?).ok();
        if let (Some(prompt), Some(answer)) = (count("prompt_tokens"), count("completion_tokens")) {
            self.received.usage = Some([prompt, answer]);
        }
        self.received.prompt_ms =
            event["timings"]["prompt_ms"].as_f64().or(self.received.prompt_ms);
        Ok(())
    }
}

/// What a document says went wrong.
pub fn error(document: &Value) -> Option<String> {
    let error = document.get("error").filter(|error| !error.is_null())?;
    let message = error["message"].as_str().or_else(|| error.as_str());
    Some(message.map_or_else(|| error.to_string(), str::to_owned))
}

/// Whether a choice has words, thoughts or a call: of a stream in `delta`, of a document in `message`, of
/// a completion in `text`.
fn has_text(choice: &Value) -> bool {
    let is_said = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let said = [&choice["delta"], &choice["message"]];
    is_said(&choice["text"])
        || said.iter().any(|said| {
            ["content", "reasoning_content", "reasoning"].iter().any(|name| is_said(&said[name]))
                || said["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Pieces that come 10 ms after each other.
    fn received(pieces: &[&str]) -> Result<ReceivedAnswer, HearError> {
        let mut ear = Ear::default();
        for (index, piece) in (1..).zip(pieces) {
            ear.push(piece.as_bytes(), ms(10 * index))?;
        }
        ear.finish(ms(10 * (pieces.len() as u64 + 1)))
    }

    const SAID: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

    #[test]
    fn streams_are_read_however_they_are_cut() {
        let role =
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n";
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3},\"timings\":{\"prompt_ms\":2.5}}\r\n\r\n";
        let done = "data: [DONE]\n\n";
        let all = received(&[": hello\n", role, SAID, SAID, usage, done]).unwrap();
        assert_eq!((all.first, all.last, all.pieces), (Some(ms(30)), ms(40), 2));
        assert_eq!((all.usage, all.tokens(), all.prompt_ms), (Some([7, 3]), 3, Some(2.5)));
        let text = [role, SAID, SAID, usage, done].concat();
        let (one, two) = text.split_at(text.find("\"a\"").unwrap());
        let cut = received(&[one, two]).unwrap();
        assert_eq!((cut.first, cut.pieces, cut.tokens()), (Some(ms(20)), 2, 3));
        let untold = received(&[SAID, SAID, "data: [DONE]"]).unwrap();
        assert_eq!((untold.tokens(), untold.usage), (2, None));
    }

    #[test]
    fn a_document_is_an_answer_too() {
        let document = "{\n \"choices\": [{\"message\": {\"content\": \"ab\"}}],\n \"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 2}\n}";
        let received = received(&[document]).unwrap();
        assert!(!received.is_streamed);
        assert_eq!((received.first, received.tokens()), (Some(ms(20)), 2));
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let check = |pieces: &[&str], error: HearError| assert_eq!(received(pieces), Err(error));
        check(&[SAID], HearError::Cut);
        check(&["data: [DONE]\n"], HearError::Empty);
        check(
            &[SAID, "data: {\"error\":{\"message\":\"no\"}}\n"],
            HearError::Said("no".to_owned()),
        );
        check(&["{\"error\":\"busy\"}"], HearError::Said("busy".to_owned()));
        assert!(matches!(received(&["<html>"]), Err(HearError::NotJson(_))));
        assert!(matches!(received(&["data: {\n"]), Err(HearError::NotJson(_))));
        let long = "x".repeat(LINE_BYTES_MAX / 2 + 1);
        check(&["data: ", &long, &long], HearError::Long);
    }
}
