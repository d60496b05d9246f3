//! What is heard of an answer while it is said.

use smelt_runtime::sampling::Logprobs;
use smelt_runtime::speaker::Finish;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenSaid {
    pub(crate) token: u32,
    pub(crate) text: Vec<u8>,
    pub(crate) logprobs: Option<Logprobs>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Read { prompt_tokens: usize, cached_tokens: usize },
    Said { choice: usize, text: String, tokens: Vec<TokenSaid> },
    Ended { choice: usize, finish: Finish, tokens: usize },
    Failed(String),
}
