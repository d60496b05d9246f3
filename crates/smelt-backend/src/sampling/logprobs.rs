//! Says how likely a model found a token, and what it found likeliest.

use super::select::{self, Candidate};
use super::{NotFinite, weights};

/// Natural logarithms of probabilities in the model's own distribution: before bias, penalties,
/// temperature and cuts, as OpenAI's API and vLLM tell them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the token that stands there.
    pub chosen: f32,
    /// Of the likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Computes logprobs row by row; what it holds are buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Scorer {
    candidates: Vec<Candidate>,
    blocks: Vec<f64>,
}

impl Scorer {
    /// Writes to `out` how likely a row of `logits` finds `token`, one of its tokens, and the `top` likeliest.
    ///
    /// # Errors
    /// [`NotFinite`] if a logit is infinite or not a number.
    pub(super) fn score(
        &mut self,
        logits: &[f32],
        token: u32,
        top: usize,
        out: &mut Logprobs,
    ) -> Result<(), NotFinite> {
        let largest = weights::largest(logits).ok_or(NotFinite)?;
        let all = weights::sum(logits, largest, 1.0, &mut self.blocks).ln();
        let logprob = |logit: f32| (f64::from(logit) - f64::from(largest) - all) as f32;
        select::largest(logits, top, &mut self.candidates);
        out.chosen = logprob(logits[token as usize]);
        out.top.clear();
        out.top.extend(self.candidates.iter().map(|top| (top.token(), logprob(top.logit()))));
        Ok(())
    }
}
