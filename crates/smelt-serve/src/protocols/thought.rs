//! Counts the tokens with which a model thinks.

use smelt_runtime::dialect::THINK_TAGS;
use smelt_runtime::service::TokenInfo;

use crate::answer::Words;

/// The tokens of an answer up to the mark that ends the thinking.
pub(crate) struct Thought {
    words: Words,
    /// The end of what was said so far, in which the mark may begin.
    end: Vec<u8>,
    tokens: usize,
    is_over: bool,
}

impl Thought {
    pub(crate) fn new(words: Words) -> Self {
        Self { words, end: Vec::new(), tokens: 0, is_over: false }
    }

    /// Takes more of the answer's tokens.
    pub(crate) fn take(&mut self, tokens: &[TokenInfo]) {
        let mark = THINK_TAGS[1].as_bytes();
        for said in tokens {
            if self.is_over {
                return;
            }
            self.tokens += 1;
            self.end.extend((self.words)(said.token));
            self.is_over = self.end.windows(mark.len()).any(|end| end == mark);
            let from = self.end.len().saturating_sub(mark.len());
            self.end.drain(..from);
        }
    }

    /// The tokens of thinking, its marks included, of an answer in which the model thinks.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn tokens_count_until_the_mark_however_it_is_cut() {
        let words = ["<think>", "hm ", "a</th", "ink>", "b"];
        let mut thought = Thought::new(Arc::new(move |token| words[token as usize].into()));
        let said: Vec<TokenInfo> =
            (0..5).map(|token| TokenInfo { token, logprobs: None }).collect();
        thought.take(&said[..3]);
        assert_eq!(thought.tokens(), 3);
        thought.take(&said[3..]);
        thought.take(&said);
        assert_eq!(thought.tokens(), 4);
    }
}
