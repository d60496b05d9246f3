//! Holds the figures of one deployment, and the sums they are made of.
//!
//! Sums run in the order of tokens and of the vocabulary, in f64, so that equal logits give equal
//! figures anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Right answers of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Answers that were right.
    pub right: u64,
    /// Answers in all.
    pub of: u64,
}

impl Tally {
    /// Takes one more answer.
    pub fn take(&mut self, is_right: bool) {
        self.right += u64::from(is_right);
        self.of += 1;
    }

    /// The share of right answers, 0 to 1; 0 of none.
    pub fn share(self) -> f64 {
        self.right as f64 / self.of.max(1) as f64
    }

    /// Where the share of endlessly many such answers would lie, in 95 of 100 cases (Wilson 1927).
    pub fn interval(self) -> [f64; 2] {
        const Z: f64 = 1.959_963_984_540_054;
        let (share, of) = (self.share(), self.of.max(1) as f64);
        let middle = share + Z * Z / (2.0 * of);
        let reach = Z * (share * (1.0 - share) / of + Z * Z / (4.0 * of * of)).sqrt();
        [middle - reach, middle + reach].map(|end| (end / (1.0 + Z * Z / of)).clamp(0.0, 1.0))
    }
}

/// The figures of one deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The scheme of its decoder's linear weights.
    pub scheme: String,
    /// Right greedy answers by task.
    pub tasks: BTreeMap<String, Tally>,
    /// Image tokens of a question, on average.
    pub image_tokens: f64,
    /// Questions whose pictures were shown smaller, since they did not fit the context.
    pub smaller: u64,
    /// Tokens of all right answers, as this deployment's tokenizer cuts them.
    pub answer_tokens: u64,
    /// Mean negative log-likelihood of those tokens, in nats.
    pub nll_nats: f64,
    /// Mean divergence of its distributions over those tokens from the first deployment's, in nats;
    /// none if they have not the same tokens.
    pub kl_nats: Option<f64>,
    /// The vision engine on disk.
    pub vision_bytes: u64,
    /// The decoder's engine on disk.
    pub llm_bytes: u64,
    /// Median time from the question, pictures decoded, to the first token.
    pub first_token_s: f64,
    /// Median decode steps per second; none if no answer took a step.
    pub tokens_per_second: Option<f64>,
}

impl Score {
    /// Right answers of all tasks.
    pub fn overall(&self) -> Tally {
        self.tasks.values().fold(Tally::default(), |sum, tally| Tally {
            right: sum.right + tally.right,
            of: sum.of + tally.of,
        })
    }

    /// The perplexity of the right answers, per token.
    pub fn perplexity(&self) -> f64 {
        self.nll_nats.exp()
    }

    /// Both engines on disk.
    pub fn engine_bytes(&self) -> u64 {
        self.vision_bytes + self.llm_bytes
    }
}

/// A mean under construction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    pub(super) count: u64,
}

impl Mean {
    pub(super) fn take(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// The mean; 0 of nothing.
    pub(super) fn value(self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

/// The middle of the values, of two the lower; none of none.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

/// The middle of the times in seconds, 0 of none.
pub(super) fn median_s(times: &[Duration]) -> f64 {
    median(times.iter().map(Duration::as_secs_f64).collect()).unwrap_or_default()
}

/// The logarithm of the sum of the exponentials of finite `logits`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    largest + sum.ln()
}

/// How surprised the distribution of `logits` is by `token`: -ln p, in nats.
pub(super) fn nll(logits: &[f32], token: u32) -> f64 {
    log_sum_exp(logits) - f64::from(logits[token as usize])
}

/// The divergence of `logits` from those of `baseline`, of the same length:
/// sum of p ln(p / q) with p the baseline's distribution, in nats.
pub(super) fn kl(baseline: &[f32], logits: &[f32]) -> f64 {
    let (log_p_sum, log_q_sum) = (log_sum_exp(baseline), log_sum_exp(logits));
    let term = |(&p, &q): (&f32, &f32)| {
        let (log_p, log_q) = (f64::from(p) - log_p_sum, f64::from(q) - log_q_sum);
        log_p.exp() * (log_p - log_q)
    };
    // Rounding may leave equal distributions a hair below 0.
    baseline.iter().zip(logits).map(term).sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    }

    #[test]
    fn surprise_is_the_log_of_the_probability() {
        near(nll(&[0.0; 8], 3), 8f64.ln());
        near(nll(&[1000.0, 0.0], 0), 0.0);
        near(nll(&[1000.0, 0.0], 1), 1000.0);
        let odds = [3f32.ln(), 0.0];
        near(nll(&odds, 0), (4.0f64 / 3.0).ln());
    }

    #[test]
    fn divergence_is_that_of_the_definition() {
        // p = 3/4, 1/4 and q = 1/2, 1/2; shifts of all logits change nothing.
        let p = [3f32.ln(), 0.0];
        near(kl(&p, &[0.0, 0.0]), 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln());
        near(kl(&[0.0, 0.0], &p), 0.5 * (2.0f64 / 3.0).ln() + 0.5 * 2f64.ln());
        near(kl(&p, &[3f32.ln() + 5.0, 5.0]), 0.0);
        assert!(kl(&p, &p) >= 0.0);
    }

    #[test]
    fn tallies_add_up() {
        let mut tally = Tally::default();
        near(tally.share(), 0.0);
        [true, true, false, true].into_iter().for_each(|is_right| tally.take(is_right));
        near(tally.share(), 0.75);
    }

    #[test]
    fn the_median_is_a_value_that_was_measured() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.0));
    }
}
