//! Gathers how likely the tokens of a prompt are while it is read.

use super::TokenSaid;
use crate::sampling::{Logprobs, Scorer};

/// A prompt's tokens as far as they were read.
#[derive(Debug)]
pub(super) struct Scores {
    scorer: Scorer,
    /// How many of the likeliest are told with each.
    top: usize,
    /// All of them; nothing is known of the first one.
    pub(super) tokens: Vec<TokenSaid>,
}

impl Scores {
    /// Of a prompt of which nothing is read.
    pub(super) fn new(tokens: &[u32], top: usize) -> Self {
        let unread = |token: &u32| TokenSaid { token: *token, logprobs: None };
        Self { scorer: Scorer::default(), top, tokens: tokens.iter().map(unread).collect() }
    }

    /// Takes the logits that were found for the token at `at`, which the prompt need not have.  Of logits
    /// that are not finite nothing is known; the answer then fails of them.
    pub(super) fn put(&mut self, at: usize, logits: &[f32]) {
        let Some(said) = self.tokens.get_mut(at) else { return };
        let mut logprobs = Logprobs::default();
        let scored = self.scorer.score(logits, said.token, self.top, &mut logprobs);
        said.logprobs = scored.ok().map(|()| logprobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_scored_by_what_is_before_it() {
        let mut scores = Scores::new(&[2, 0, 1], 1);
        // Half and half of two tokens, next to nothing of the third.
        for (at, logits) in [(1, [5.0, 5.0, -50.0]), (2, [0.0; 3]), (3, [1.0, 2.0, 3.0])] {
            scores.put(at, &logits);
        }
        let chosen =
            |said: &TokenSaid| said.logprobs.as_ref().map(|logprobs| logprobs.chosen.exp());
        let chosen: Vec<_> = scores.tokens.iter().map(chosen).collect();
        assert_eq!(chosen.len(), 3);
        assert_eq!(chosen[0], None);
        assert!(
            (chosen[1].unwrap() - 0.5).abs() < 1e-6
                && (chosen[2].unwrap() - 1.0 / 3.0).abs() < 1e-6
        );
        assert_eq!(scores.tokens[1].logprobs.as_ref().unwrap().top.len(), 1);
    }
}
