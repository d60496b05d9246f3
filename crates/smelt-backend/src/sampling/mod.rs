//! Says how tokens are chosen, within the ranges that have a meaning.
//!
//! The steps, in order: logit bias, repetition penalty, frequency and presence penalty, temperature,
//! top-k, top-p, min-p, draw.  Greedy decoding is the largest logit after the penalties.  The order is that of
//! transformers (`GenerationMixin._get_logits_processor`); llama.cpp cuts in the same order.
//! Tokens that a mask does not allow are as if the row had none of them.  Knows nothing of engines, texts or who asks.

use std::fmt::Display;

mod buckets;
mod chooser;
mod draw;
mod logprobs;
mod mask;
mod philox;
mod select;
#[cfg(test)]
mod tests;
mod weights;

pub use chooser::{Chooser, Chosen, NotFinite};
pub use draw::{Draw, GREEDY, OwnDraw, Sampler, TokenCount};
pub use logprobs::Logprobs;
pub use mask::Mask;

/// Most top logprobs of a token, as in OpenAI's API.
pub const TOP_LOGPROBS_MAX: usize = 20;

/// Most entries of a logit bias: each is looked at for every token.
pub const BIASES_MAX: usize = 1024;

/// Temperatures below are greedy decoding, as in vLLM: their logits leave the range of floats.
const TEMPERATURE_MIN: f32 = 1e-5;

/// How tokens are chosen.  The default is greedy decoding.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Divides the logits; 0 to 2 as in OpenAI's API, 0 for greedy decoding.
    pub temperature: f32,
    /// Only so many of the largest logits; 0 for all.  Of equal ones the smaller token counts, so that
    /// 1 is greedy decoding (transformers' `TopKLogitsWarper` keeps all equal to the last).
    pub top_k: usize,
    /// Only the smallest set of the likeliest tokens that together have this probability; more than
    /// 0, 1 for all (`TopPLogitsWarper`; Holtzman et al., "The Curious Case of Neural Text Degeneration").
    pub top_p: f32,
    /// Only tokens at least so likely as a part of the likeliest; 0 to 1, 0 for all (`MinPLogitsWarper`;
    /// Nguyen et al., "Turning Up the Heat").
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens of the prompt or the answer; 0.1 to
    /// 10, 1 for none (`RepetitionPenaltyLogitsProcessor`; Keskar et al., "CTRL").
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens of the answer; -2 to 2 (OpenAI's API).
    pub presence_penalty: f32,
    /// Subtracted from logits of tokens of the answer for each time; -2 to 2 (OpenAI's API).
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; each -100 to 100 (OpenAI's API).
    pub logit_bias: Vec<(u32, f32)>,
    /// Equal seeds give equal answers, whatever else runs.
    pub seed: u64,
    /// How many of the likeliest tokens are told with each, at most [`TOP_LOGPROBS_MAX`]; nothing is told
    /// if there is no number.
    pub top_logprobs: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// A setting that has no meaning.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// A number is outside of its range.
    #[error("{name} must be {range}, not {value}")]
    Range {
        /// The setting, as in OpenAI's API.
        name: &'static str,
        /// What it may be.
        range: &'static str,
        /// What it is, as it was given.
        value: String,
    },
    /// Too many of something.
    #[error("{name} must be at most {max}, not {count}")]
    TooMany {
        /// The setting.
        name: &'static str,
        /// Most of them.
        max: usize,
        /// How many there are.
        count: usize,
    },
    /// A token that the model does not have.
    #[error("logit_bias names token {token}, but the model has {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// The model's tokens.
        vocab: usize,
    },
}

impl Settings {
    /// The largest logit as it is; every other setting is where it changes nothing.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: Vec::new(),
        seed: 0,
        top_logprobs: None,
    };

    /// Whether the largest logit is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < TEMPERATURE_MIN
    }

    /// Whether penalties change logits.
    pub fn is_penalizing(&self) -> bool {
        let Self { repetition_penalty, presence_penalty, frequency_penalty, .. } = *self;
        repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0
    }

    /// Whether every setting has a meaning.
    ///
    /// # Errors
    /// [`SettingError`] naming the first that has none.
    pub fn check(&self) -> Result<(), SettingError> {
        check_number("temperature", self.temperature)?;
        check_number("top_p", self.top_p)?;
        check_number("min_p", self.min_p)?;
        check_number("repetition_penalty", self.repetition_penalty)?;
        check_number("presence_penalty", self.presence_penalty)?;
        check_number("frequency_penalty", self.frequency_penalty)?;
        self.logit_bias.iter().try_for_each(|&(_, bias)| check_number("logit_bias", bias))?;
        at_most("entries of logit_bias", self.logit_bias.len(), BIASES_MAX)?;
        at_most("top_logprobs", self.top_logprobs.unwrap_or(0), TOP_LOGPROBS_MAX)
    }
}

/// Whether a number has a meaning as a setting.  One that is wider than a setting is judged before it is rounded.
///
/// # Errors
/// [`SettingError::Range`] if it has none.
///
/// # Panics
/// If no setting has this name.
pub fn check_number<N: Copy + Display + Into<f64>>(
    name: &'static str,
    number: N,
) -> Result<(), SettingError> {
    let value = number.into();
    let (is_in_range, range) = match name {
        "temperature" => ((0.0..=2.0).contains(&value), "0 to 2"),
        "top_p" => (value > 0.0 && value <= 1.0, "more than 0 and at most 1"),
        "min_p" => ((0.0..=1.0).contains(&value), "0 to 1"),
        "repetition_penalty" => ((0.1..=10.0).contains(&value), "0.1 to 10"),
        "presence_penalty" | "frequency_penalty" => ((-2.0..=2.0).contains(&value), "-2 to 2"),
        "logit_bias" => ((-100.0..=100.0).contains(&value), "-100 to 100"),
        _ => unreachable!("{name} is no setting"),
    };
    if is_in_range {
        Ok(())
    } else {
        Err(SettingError::Range { name, range, value: number.to_string() })
    }
}

fn at_most(name: &'static str, count: usize, max: usize) -> Result<(), SettingError> {
    if count > max { Err(SettingError::TooMany { name, max, count }) } else { Ok(()) }
}
