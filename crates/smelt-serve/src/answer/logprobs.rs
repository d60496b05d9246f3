//! Tells how likely tokens were, in the shapes of chats and of completions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Words;
use smelt_runtime::sampling::Logprobs;
use smelt_runtime::service::TokenInfo;

/// What OpenAI's API tells of tokens that are all but impossible; JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// Of a chat.
#[derive(Serialize)]
pub(super) struct OfChat {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

/// A token of an answer, as chats and responses tell of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ChatToken {
    #[serde(flatten)]
    token: Likely,
    top_logprobs: Vec<Likely>,
}

impl ChatToken {
    /// How likely a token was, if that was asked.
    pub(crate) fn of(said: &TokenInfo, words: &Words) -> Option<Self> {
        let logprobs = said.logprobs.as_ref()?;
        let top = logprobs.top.iter().map(|(token, log)| Likely::new(words(*token), *log));
        let token = Likely::new(words(said.token), logprobs.chosen);
        Some(Self { token, top_logprobs: top.collect() })
    }

    /// The token's text in bytes, which need not be whole characters.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.token.bytes
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Likely {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl Likely {
    fn new(bytes: Vec<u8>, logprob: f32) -> Self {
        let token = String::from_utf8_lossy(&bytes).into_owned();
        Self { token, logprob: logprob.max(LOGPROB_MIN), bytes }
    }
}

/// The shape of chats; nothing where none were asked for.
pub(super) fn of_chat(tokens: &[TokenInfo], words: &Words) -> Option<OfChat> {
    let content: Vec<ChatToken> =
        tokens.iter().filter_map(|said| ChatToken::of(said, words)).collect();
    (!content.is_empty()).then_some(OfChat { content, refusal: None })
}

/// Of a completion; nothing is known of the first token of a prompt.
#[derive(Default, Serialize)]
pub(super) struct OfCompletion {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
}

/// The shape of completions, whose first token begins `offset` characters into the choice; nothing
/// where none were asked for.
pub(super) fn of_completion<'a>(
    tokens: impl IntoIterator<Item = &'a TokenInfo, IntoIter: Clone>,
    words: &Words,
    offset: &mut usize,
) -> Option<OfCompletion> {
    let tokens = tokens.into_iter();
    let is_asked = tokens.clone().any(|said| said.logprobs.is_some());
    is_asked.then(|| of_asked(tokens, words, offset))
}

/// As [`of_completion`], where they were asked for.
pub(super) fn of_asked<'a>(
    tokens: impl IntoIterator<Item = &'a TokenInfo>,
    words: &Words,
    offset: &mut usize,
) -> OfCompletion {
    let word = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let log = |log: f32| log.max(LOGPROB_MIN);
    let mut all = OfCompletion::default();
    for said in tokens {
        let (bytes, logprobs) = (words(said.token), said.logprobs.as_ref());
        let top = |logprobs: &Logprobs| {
            logprobs.top.iter().map(|(token, found)| (word(&words(*token)), log(*found))).collect()
        };
        all.text_offset.push(*offset);
        // A character of several tokens begins in the first of them.
        *offset += bytes.iter().filter(|byte| **byte & 0b1100_0000 != 0b1000_0000).count();
        all.tokens.push(word(&bytes));
        all.token_logprobs.push(logprobs.map(|logprobs| log(logprobs.chosen)));
        all.top_logprobs.push(logprobs.map(top));
    }
    all
}
