//! Writes the answers of `/v1/chat/completions`.

use serde::Serialize;
use smelt_runtime::dialect::{Dialect, Reader};

use super::parts::{Parts, ToldCall};
use super::{ChoiceDelta, Heading, Shape, Usage, Words, accumulator, json, logprobs};

/// The shape of chats.
pub(crate) struct Chat {
    pub(crate) heading: Heading,
    /// Whether parts of a stream say that the usage is to come.
    pub(crate) usage: bool,
    pub(crate) words: Words,
    /// How the model marks the parts of its answer.
    pub(crate) dialect: Dialect,
    /// Whether the prompt ends inside of the model's thinking.
    pub(crate) is_thinking: bool,
    /// Who reads each choice.
    pub(crate) readers: Vec<Reader>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<logprobs::OfChat>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToldCall<'a>>,
}

#[derive(Serialize)]
struct Whole<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<WholeChoice<'a>>,
    usage: Usage,
}

#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<logprobs::OfChat>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    /// Null where there are calls instead.
    content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToldCall<'a>>,
}

impl Chat {
    fn chunk(&self, choices: &[ChunkChoice<'_>], usage: Option<Usage>) -> String {
        let Heading { id, created, model } = &self.heading;
        let usage = self.usage.then_some(usage);
        let object = "chat.completion.chunk";
        json(&Chunk { id, object, created: *created, model, choices, usage })
    }

    /// What calls of a choice are called after.
    fn calls_of(&self, choice: usize) -> String {
        format!("{}_{choice}", self.heading.id)
    }

    fn part(
        &self,
        index: usize,
        parts: &Parts,
        logprobs: Option<logprobs::OfChat>,
        finish_reason: Option<&'static str>,
    ) -> String {
        let some = |text: &'_ str| !text.is_empty();
        let of = self.calls_of(index);
        let delta = Delta {
            role: None,
            content: some(&parts.content).then_some(&parts.content[..]),
            reasoning_content: some(&parts.reasoning).then_some(&parts.reasoning[..]),
            tool_calls: parts.calls.iter().map(|call| call.part(&of)).collect(),
        };
        self.chunk(&[ChunkChoice { index, delta, logprobs, finish_reason }], None)
    }
}

/// Calls are why an answer ended that would else have ended by itself.
fn reason(reason: &'static str, calls: usize) -> &'static str {
    if calls > 0 && reason == "stop" { "tool_calls" } else { reason }
}

impl Shape for Chat {
    fn begin(&mut self, choice: usize) -> Option<String> {
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        let choice = ChunkChoice { index: choice, delta, logprobs: None, finish_reason: None };
        Some(self.chunk(&[choice], None))
    }

    fn said(&mut self, said: &ChoiceDelta<'_>) -> Option<String> {
        let parts = Parts::of(self.readers[said.choice].push(said.text));
        let logprobs = logprobs::of_chat(said.tokens, &self.words);
        let is_silent = parts.is_empty() && logprobs.is_none();
        (!is_silent).then(|| self.part(said.choice, &parts, logprobs, None))
    }

    fn ended(&mut self, choice: usize, why: &'static str) -> String {
        let reader = &mut self.readers[choice];
        let parts = Parts::of(reader.finish());
        let why = reason(why, reader.calls());
        self.part(choice, &parts, None, Some(why))
    }

    fn usage(&self, usage: Usage) -> String {
        self.chunk(&[], Some(usage))
    }

    fn whole(&self, choices: &[accumulator::Choice], usage: Usage) -> String {
        let Heading { id, created, model } = &self.heading;
        let read = |choice: &accumulator::Choice| {
            let mut reader = Reader::new(self.dialect, self.is_thinking);
            let mut deltas = reader.push(&choice.text);
            deltas.extend(reader.finish());
            Parts::of(deltas)
        };
        let read: Vec<(Parts, String)> =
            choices.iter().enumerate().map(|(at, one)| (read(one), self.calls_of(at))).collect();
        let choices = choices.iter().zip(&read).enumerate();
        let choices = choices.map(|(index, (choice, (parts, of)))| WholeChoice {
            index,
            message: Message::new(parts, of),
            logprobs: logprobs::of_chat(&choice.tokens, &self.words),
            finish_reason: reason(choice.reason, parts.calls.len()),
        });
        let choices = choices.collect();
        let object = "chat.completion";
        json(&Whole { id, object, created: *created, model, choices, usage })
    }
}

impl<'a> Message<'a> {
    fn new(parts: &'a Parts, of: &str) -> Self {
        let is_said = parts.calls.is_empty() || !parts.content.is_empty();
        Self {
            role: "assistant",
            content: is_said.then_some(&parts.content[..]),
            refusal: None,
            reasoning_content: (!parts.reasoning.is_empty()).then_some(&parts.reasoning[..]),
            tool_calls: parts.calls.iter().map(|call| call.whole(of)).collect(),
        }
    }
}
