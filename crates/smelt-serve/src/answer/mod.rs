//! Writes answers in OpenAI's shapes, as they are said or when all is said.
//!
//! Events of the service come in, JSON goes out.  Knows nothing of connections.

pub(crate) mod accumulator;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod logprobs;
mod parts;
pub(crate) mod score;
pub(crate) mod stream;

use serde::Serialize;

/// What every part of an answer says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    /// The answer's name, which its request's is part of.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Who answers.
    pub(crate) model: String,
}

/// A shape of answers: OpenAI's API has two.
pub(crate) trait Shape: Send + Sync + 'static {
    /// The part that begins choice `choice`, if the shape has one.
    fn begin(&mut self, choice: usize) -> Option<String>;
    /// The part that tells how likely the prompt of a choice is; only completions are asked.
    fn scored(&mut self, _choice: usize, _tokens: &[TokenInfo]) -> Option<String> {
        None
    }
    /// The part that tells more of a choice, if there is more to tell.
    fn said(&mut self, said: &ChoiceDelta<'_>) -> Option<String>;
    /// The part that ends a choice.
    fn ended(&mut self, choice: usize, reason: &'static str) -> String;
    /// The part that tells the tokens, when all has ended.
    fn usage(&self, usage: Usage) -> String;
    /// All in one.
    fn whole(&self, choices: &[accumulator::Choice], usage: Usage) -> String;
}

/// How an answer goes out in a protocol: event by event, or when all is said.
pub(crate) trait Wire: Send + Sync + 'static {
    /// The type of a stream.
    fn media_type(&self) -> &'static str;
    /// Writes what was heard behind `out`.
    fn hear(&mut self, event: &Event, out: &mut Vec<u8>);
    /// Writes the end behind `out`.
    fn end(&mut self, usage: Usage, out: &mut Vec<u8>);
    /// What tells proxies that a silent stream goes on; nothing where the protocol has no word for it.
    fn keep_alive(&self) -> &'static [u8];
    /// All in one.
    fn whole(&mut self, choices: &[accumulator::Choice], usage: Usage) -> String;
}

pub(crate) use crate::api::usage::Usage;
use smelt_runtime::service::{Event, TokenInfo};

/// A piece of a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChoiceDelta<'a> {
    pub(crate) choice: usize,
    pub(crate) text: &'a str,
    pub(crate) tokens: &'a [TokenInfo],
}

/// The text of tokens, by which logprobs name them.
pub(crate) type Words = std::sync::Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// Plain data as JSON.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with text keys is JSON")
}
