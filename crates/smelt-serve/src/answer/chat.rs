//! Writes the answers of `/v1/chat/completions`.

use serde::Serialize;

use super::{Heading, Said, Shape, Usage, Words, json, logprobs, whole};

/// The shape of chats.
pub(crate) struct Chat {
    pub(crate) heading: Heading,
    /// Whether parts of a stream say that the usage is to come.
    pub(crate) usage: bool,
    pub(crate) words: Words,
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
    content: &'a str,
    refusal: Option<()>,
}

impl Chat {
    fn chunk(&self, choices: &[ChunkChoice<'_>], usage: Option<Usage>) -> String {
        let Heading { id, created, model } = &self.heading;
        let usage = self.usage.then_some(usage);
        let object = "chat.completion.chunk";
        json(&Chunk { id, object, created: *created, model, choices, usage })
    }
}

impl Shape for Chat {
    fn begin(&mut self, choice: usize) -> Option<String> {
        let delta = Delta { role: Some("assistant"), content: Some("") };
        let choice = ChunkChoice { index: choice, delta, logprobs: None, finish_reason: None };
        Some(self.chunk(&[choice], None))
    }

    fn said(&mut self, said: &Said<'_>) -> String {
        let delta = Delta { content: Some(said.text), ..Delta::default() };
        let logprobs = logprobs::of_chat(said.tokens, &self.words);
        let choice = ChunkChoice { index: said.choice, delta, logprobs, finish_reason: None };
        self.chunk(&[choice], None)
    }

    fn ended(&mut self, choice: usize, reason: &'static str) -> String {
        let (delta, finish_reason) = (Delta::default(), Some(reason));
        let choice = ChunkChoice { index: choice, delta, logprobs: None, finish_reason };
        self.chunk(&[choice], None)
    }

    fn usage(&self, usage: Usage) -> String {
        self.chunk(&[], Some(usage))
    }

    fn whole(&self, choices: &[whole::Choice], usage: Usage) -> String {
        let Heading { id, created, model } = &self.heading;
        let choices = choices.iter().enumerate().map(|(index, choice)| WholeChoice {
            index,
            message: Message { role: "assistant", content: &choice.text, refusal: None },
            logprobs: logprobs::of_chat(&choice.tokens, &self.words),
            finish_reason: choice.reason,
        });
        let choices = choices.collect();
        let object = "chat.completion";
        json(&Whole { id, object, created: *created, model, choices, usage })
    }
}
