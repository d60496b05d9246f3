//! The shapes in which answers are told: the response, its items, and the events of a stream.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::answer::logprobs::ChatToken;
use crate::protocols::events;
use crate::protocols::sections::{Kind, Section};

/// A response (`openai.types.responses.Response`).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Response {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    pub(crate) completed_at: Option<u64>,
    pub(crate) status: Status,
    pub(crate) background: bool,
    pub(crate) error: Option<Failure>,
    pub(crate) incomplete_details: Option<Incomplete>,
    pub(crate) model: String,
    pub(crate) output: Vec<Item>,
    pub(crate) usage: Option<Usage>,
    #[serde(flatten)]
    pub(crate) asked: Asked,
}

/// What a response repeats of its request.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Asked {
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<usize>,
    pub(crate) max_tool_calls: Option<usize>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) reasoning: Value,
    /// Whether it can be gone on from.
    pub(crate) store: bool,
    pub(crate) temperature: f64,
    pub(crate) text: Value,
    pub(crate) top_logprobs: usize,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_p: f64,
    pub(crate) truncation: &'static str,
    pub(crate) user: Option<String>,
}

/// How far a response, or an item of it, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Why a response broke off.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// Why a response is not whole.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Incomplete {
    pub(crate) reason: &'static str,
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) input_tokens: usize,
    pub(crate) input_tokens_details: InputDetails,
    pub(crate) output_tokens: usize,
    pub(crate) output_tokens_details: OutputDetails,
    pub(crate) total_tokens: usize,
}

/// What the prompt's tokens are.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct InputDetails {
    /// Of those, read from the cache.
    pub(crate) cached_tokens: usize,
    /// Of those, paid for to be cached: none.
    pub(crate) cache_write_tokens: usize,
    /// Of those, standing for pictures; ours.
    pub(crate) image_tokens: usize,
}

/// What the answer's tokens are.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct OutputDetails {
    pub(crate) reasoning_tokens: usize,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    Reasoning { id: String, status: Status, summary: [(); 0], content: Vec<OutputPart> },
    Message { id: String, status: Status, role: &'static str, content: Vec<OutputPart> },
    FunctionCall { id: String, status: Status, call_id: String, name: String, arguments: String },
}

/// A piece of an item.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<ChatToken> },
    ReasoningText { text: String },
}

impl OutputPart {
    /// The piece of a section that is no call, with its tokens where those are told.
    pub(crate) fn of(kind: &Kind, text: &str, logprobs: Vec<ChatToken>) -> Self {
        let text = text.to_owned();
        match kind {
            Kind::Thought => Self::ReasoningText { text },
            Kind::Said | Kind::Call(_) => Self::OutputText { text, annotations: [], logprobs },
        }
    }
}

impl Item {
    /// The item of a section, of the answer `of` the section `at`.
    pub(crate) fn new(
        section: &Section,
        (of, at): (&str, usize),
        status: Status,
        logprobs: Vec<ChatToken>,
    ) -> Self {
        let (id, Section { kind, text }) = (id(kind_word(&section.kind), of, at), section);
        let content = vec![OutputPart::of(kind, text, logprobs)];
        match kind {
            Kind::Thought => Self::Reasoning { id, status, summary: [], content },
            Kind::Said => Self::Message { id, status, role: "assistant", content },
            Kind::Call(name) => Self::FunctionCall {
                id,
                status,
                call_id: self::id("call", of, at),
                name: name.clone(),
                arguments: text.clone(),
            },
        }
    }

    /// The item of a section that begins.
    pub(crate) fn begun(kind: &Kind, of: &str, at: usize) -> Self {
        let section = Section { kind: kind.clone(), text: String::new() };
        let mut item = Self::new(&section, (of, at), Status::InProgress, Vec::new());
        match &mut item {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content.clear(),
            Self::FunctionCall { .. } => {}
        }
        item
    }

    /// What it is called.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. } => id,
        }
    }
}

fn kind_word(kind: &Kind) -> &'static str {
    match kind {
        Kind::Thought => "rs",
        Kind::Said => "msg",
        Kind::Call(_) => "fc",
    }
}

fn id(kind: &str, of: &str, at: usize) -> String {
    format!("{kind}_{of}_{at}")
}

/// The name of the response `of`.
pub(crate) fn response_id(of: &str) -> String {
    format!("resp_{of}")
}

/// The name of the response that has the item of this name.
pub(crate) fn response_of(item: &str) -> Option<String> {
    let (_, rest) = item.split_once('_')?;
    Some(response_id(rest.rsplit_once('_')?.0))
}

/// What an event tells.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Tells<'a> {
    Response {
        response: &'a Response,
    },
    Item {
        output_index: usize,
        item: &'a Item,
    },
    Part {
        #[serde(flatten)]
        place: ContentLocation<'a>,
        part: OutputPart,
    },
    Text {
        #[serde(flatten)]
        place: ContentLocation<'a>,
        #[serde(flatten)]
        text: Text<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<ChatToken>>,
    },
    Call {
        item_id: &'a str,
        output_index: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<&'a str>,
        #[serde(flatten)]
        text: Text<'a>,
    },
}

/// Where in a response.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct ContentLocation<'a> {
    pub(crate) item_id: &'a str,
    pub(crate) output_index: usize,
    /// Of the item's pieces, of which there is one.
    pub(crate) content_index: usize,
}

/// More of a text, or all of it.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Text<'a> {
    Delta(&'a str),
    #[serde(rename = "text")]
    All(&'a str),
    Arguments(&'a str),
}

/// The events of a stream, counted.
#[derive(Debug, Default)]
pub(crate) struct Events {
    told: usize,
}

#[derive(Serialize)]
struct Numbered<'a> {
    sequence_number: usize,
    #[serde(flatten)]
    tells: Tells<'a>,
}

impl Events {
    /// Writes the next event behind `out`.
    pub(crate) fn tell(&mut self, out: &mut Vec<u8>, kind: &str, tells: Tells<'_>) {
        let numbered = Numbered { sequence_number: self.told, tells };
        self.told += 1;
        events::put(out, kind, &numbered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_names_its_response() {
        let section = Section { kind: Kind::Said, text: "a".to_owned() };
        let item = Item::new(&section, ("0f1e", 3), Status::Completed, Vec::new());
        assert_eq!(item.id(), "msg_0f1e_3");
        assert_eq!(response_of(item.id()), Some(response_id("0f1e")));
        assert_eq!(response_of("msg"), None);
    }
}
