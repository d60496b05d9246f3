//! Tells how likely tokens were, in the shapes of chats and of completions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Words;
use smelt_runtime::service::TokenSaid;

/// What OpenAI's API tells of tokens that are all but impossible; JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// Of a chat.
#[derive(Serialize)]
pub(super) struct OfChat {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: Likely,
    top_logprobs: Vec<Likely>,
}

#[derive(Serialize)]
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
pub(super) fn of_chat(tokens: &[TokenSaid], words: &Words) -> Option<OfChat> {
    let content: Vec<ChatToken> = tokens
        .iter()
        .filter_map(|said| {
            let logprobs = said.logprobs.as_ref()?;
            let top = logprobs.top.iter().map(|(token, log)| Likely::new(words(*token), *log));
            let token = Likely::new(words(said.token), logprobs.chosen);
            Some(ChatToken { token, top_logprobs: top.collect() })
        })
        .collect();
    (!content.is_empty()).then_some(OfChat { content, refusal: None })
}

/// Of a completion.
#[derive(Serialize)]
pub(super) struct OfCompletion {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

/// The shape of completions, whose first token begins `offset` characters into the answer; nothing
/// where none were asked for.  Gives the offset behind the last token too.
pub(super) fn of_completion(
    tokens: &[TokenSaid],
    words: &Words,
    mut offset: usize,
) -> (Option<OfCompletion>, usize) {
    let word = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut all = OfCompletion {
        tokens: Vec::new(),
        token_logprobs: Vec::new(),
        top_logprobs: Vec::new(),
        text_offset: Vec::new(),
    };
    for said in tokens {
        let Some(logprobs) = &said.logprobs else { continue };
        let text = word(&words(said.token));
        let top =
            logprobs.top.iter().map(|(token, log)| (word(&words(*token)), log.max(LOGPROB_MIN)));
        all.text_offset.push(offset);
        offset += text.chars().count();
        all.tokens.push(text);
        all.token_logprobs.push(logprobs.chosen.max(LOGPROB_MIN));
        all.top_logprobs.push(top.collect());
    }
    ((!all.tokens.is_empty()).then_some(all), offset)
}
