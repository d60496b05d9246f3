//! Gathers how likely the tokens of a prompt are while it is read.

use std::ops::Range;

use smelt_backend::Scores as Wanted;

use super::TokenInfo;
use crate::sampling::Logprobs;

/// A prompt's tokens as far as they were read.
#[derive(Debug)]
pub(super) struct Scores {
    /// How many of the likeliest are told with each.
    top: usize,
    /// All of them; nothing is known of the first one.
    pub(super) tokens: Vec<TokenInfo>,
}

impl Scores {
    /// Of a prompt of which nothing is read.
    pub(super) fn new(tokens: &[u32], top: usize) -> Self {
        let unread = |token: &u32| TokenInfo { token: *token, logprobs: None };
        Self { top, tokens: tokens.iter().map(unread).collect() }
    }

    /// What is to be found out with a run of the prompt's tokens from `start` on.
    pub(super) fn wanted<'a>(&self, prompt: &'a [u32], run: &Range<usize>) -> Wanted<'a> {
        let next = run.start + 1..(run.end + 1).min(prompt.len());
        Wanted { next: prompt.get(next).unwrap_or_default(), top: self.top }
    }

    /// Takes what was found out of that run.  Of logits that were not finite nothing is known; the answer then fails of
    /// them.
    pub(super) fn take(&mut self, start: usize, found: Vec<Option<Logprobs>>) {
        for (emitted, found) in self.tokens.iter_mut().skip(start + 1).zip(found) {
            emitted.logprobs = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_scored_by_what_is_before_it() {
        let prompt = [2, 0, 1];
        let mut scores = Scores::new(&prompt, 1);
        assert_eq!(scores.wanted(&prompt, &(0..2)).next, [0, 1]);
        assert_eq!(scores.wanted(&prompt, &(1..2)).next, [1]);
        // Nothing is known to follow the last one.
        assert_eq!(scores.wanted(&prompt, &(1..3)).next, [1]);
        assert!(scores.wanted(&prompt, &(2..3)).next.is_empty());
        let of = |chosen| Some(Logprobs { chosen, top: Vec::new() });
        scores.take(0, vec![of(-1.0)]);
        scores.take(1, vec![of(-2.0)]);
        let chosen =
            |emitted: &TokenInfo| emitted.logprobs.as_ref().map(|logprobs| logprobs.chosen);
        let chosen: Vec<_> = scores.tokens.iter().map(chosen).collect();
        assert_eq!(chosen, [None, Some(-1.0), Some(-2.0)]);
    }
}
