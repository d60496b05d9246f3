//! Says what choosing one token needs, and keeps that of an answer from token to token.
//!
//! A [`Draw`] is plain data, so whoever has the logits chooses: the host's [`Chooser`](super::Chooser), or a device.  The random
//! number of an answer's token `n` is a function of the seed and `n`.

use super::philox::uniform;
use super::{Mask, SettingError, Settings};

/// A token that penalties touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// The token.
    pub token: u32,
    /// How many times the answer has it; the prompt alone may, too.
    pub count: u32,
}

/// What choosing one token needs beside its row of logits.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// How it is chosen.
    pub settings: &'a Settings,
    /// Tokens that penalties touch, in rising order.
    pub counts: &'a [TokenCount],
    /// Tokens that may come next, if not all.
    pub mask: Option<Mask<'a>>,
    /// Evenly distributed between zero and one, never either.
    pub uniform: f64,
}

/// A draw that is kept, for devices that choose later.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnDraw {
    /// How it is chosen.
    pub settings: Settings,
    /// Tokens that penalties touch, in rising order.
    pub counts: Vec<TokenCount>,
    /// Words of the [`Mask`], if there is one.
    pub mask: Option<Vec<u32>>,
    /// Evenly distributed between zero and one, never either.
    pub uniform: f64,
}

impl OwnDraw {
    /// What `draw` borrows.
    pub fn of(draw: &Draw<'_>) -> Self {
        Self {
            settings: draw.settings.clone(),
            counts: draw.counts.to_vec(),
            mask: draw.mask.map(|mask| mask.words().to_vec()),
            uniform: draw.uniform,
        }
    }

    /// As it was given.
    pub fn as_draw(&self) -> Draw<'_> {
        let Self { settings, counts, mask, uniform } = self;
        Draw { settings, counts, mask: mask.as_deref().map(Mask::new), uniform: *uniform }
    }
}

/// The likeliest token.
pub const GREEDY: Draw<'static> =
    Draw { settings: &Settings::GREEDY, counts: &[], mask: None, uniform: 0.5 };

impl Draw<'_> {
    /// Whether bias or penalties change the row.
    pub(super) fn is_adjusting(&self) -> bool {
        !self.settings.logit_bias.is_empty() || self.settings.is_penalizing()
    }

    /// Puts bias and penalties on a row.
    pub(super) fn adjust(&self, row: &mut [f32]) {
        let settings = self.settings;
        for &(token, bias) in &settings.logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for seen in self.counts {
            let Some(logit) = row.get_mut(seen.token as usize) else { continue };
            let penalty = settings.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            if seen.count > 0 {
                *logit -= settings.frequency_penalty * seen.count as f32;
                *logit -= settings.presence_penalty;
            }
        }
    }
}

/// What the draws of one answer share, as it grows.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    /// In the order of tokens.
    counts: Vec<TokenCount>,
    /// Tokens chosen so far.
    chosen: u64,
}

impl Sampler {
    /// Starts an answer to `prompt` by a model of `vocab` tokens.
    ///
    /// # Errors
    /// [`SettingError`] if a setting has no meaning.
    pub fn new(settings: &Settings, prompt: &[u32], vocab: usize) -> Result<Self, SettingError> {
        settings.check()?;
        let unknown = settings.logit_bias.iter().find(|(token, _)| *token as usize >= vocab);
        if let Some(&(token, _)) = unknown {
            return Err(SettingError::Token { token, vocab });
        }
        let mut counts = Vec::new();
        if settings.repetition_penalty != 1.0 {
            let mut tokens = prompt.to_vec();
            tokens.sort_unstable();
            tokens.dedup();
            counts.extend(tokens.into_iter().map(|token| TokenCount { token, count: 0 }));
        }
        Ok(Self { settings: settings.clone(), counts, chosen: 0 })
    }

    /// What the next token is chosen by.
    pub fn draw<'a>(&'a self, mask: Option<Mask<'a>>) -> Draw<'a> {
        let Self { settings, counts, chosen } = self;
        Draw { settings, counts, mask, uniform: uniform(settings.seed, *chosen) }
    }

    /// Takes note of a token of the answer.
    pub fn count(&mut self, token: u32) {
        self.chosen += 1;
        if !self.settings.is_penalizing() {
            return;
        }
        match self.counts.binary_search_by_key(&token, |seen| seen.token) {
            Ok(place) => self.counts[place].count += 1,
            Err(place) => self.counts.insert(place, TokenCount { token, count: 1 }),
        }
    }
}
