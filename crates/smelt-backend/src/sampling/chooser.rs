//! Chooses tokens on the host, each from a row of logits and its [`Draw`].
//!
//! A choice depends on the draw and its row, on nothing else.  Buffers are kept from token to token.

use super::buckets::{Buckets, Kept, Scale, along};
use super::draw::Draw;
use super::logprobs::{Logprobs, Scorer};
use super::select::{self, Candidate};
use super::{Mask, Settings, weights};

/// Candidates looked at first where a probability decides how many count; most rows need no more.
const CANDIDATES_FIRST: usize = 256;
/// The same of rows that have no more blocks than those: a device tells a row's largest from the largest of its blocks, which
/// have to be more.
const CANDIDATES_SHORT: usize = 64;

/// A row of logits from which nothing can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the logits are not all finite")]
pub struct NotFinite;

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The token.
    pub token: u32,
    /// How likely the model finds it, and what it finds likeliest, if asked for.
    pub logprobs: Option<Logprobs>,
}

/// Chooses tokens from rows of logits that lie on the host; what it holds are buffers.
#[derive(Clone, Debug, Default)]
pub struct Chooser {
    row: Vec<f32>,
    /// The tokens of `row`, where a mask leaves only some.
    allowed: Vec<u32>,
    candidates: Vec<Candidate>,
    buckets: Buckets,
    blocks: Vec<f64>,
    scorer: Scorer,
}

/// What counts of a row.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// So many of the candidates.
    Few(usize),
    /// More, which the buckets know.
    Many(Kept),
}

impl Chooser {
    /// Chooses the next token from `logits`, one for each token of the vocabulary.
    ///
    /// # Errors
    /// [`NotFinite`] if there is none, or one is infinite or not a number, allowed or not.
    pub fn choose(&mut self, logits: &[f32], draw: &Draw<'_>) -> Result<Chosen, NotFinite> {
        let token = if draw.mask.is_some() || draw.is_adjusting() {
            let mut row = std::mem::take(&mut self.row);
            row.clear();
            row.extend_from_slice(logits);
            draw.adjust(&mut row);
            let token = match draw.mask {
                Some(mask) => self.pick_allowed(&mut row, mask, draw),
                None => self.pick(&row, draw),
            };
            self.row = row;
            token?
        } else {
            self.pick(logits, draw)?
        };
        let logprobs = draw.settings.top_logprobs.map(|top| self.score(logits, token, top));
        Ok(Chosen { token, logprobs: logprobs.transpose()? })
    }

    /// How likely a row of `logits` finds `token`, one of its tokens, and the `top` likeliest.
    ///
    /// # Errors
    /// [`NotFinite`] if a logit is infinite or not a number.
    pub fn score(&mut self, logits: &[f32], token: u32, top: usize) -> Result<Logprobs, NotFinite> {
        let mut logprobs = Logprobs::default();
        self.scorer.score(logits, token, top, &mut logprobs)?;
        Ok(logprobs)
    }

    /// The tokens that may come next and their probabilities, in the order of tokens.
    #[cfg(test)]
    pub(super) fn distribution(
        &mut self,
        logits: &[f32],
        draw: &Draw<'_>,
    ) -> Result<Vec<(u32, f64)>, NotFinite> {
        let mut row = logits.to_vec();
        draw.adjust(&mut row);
        let largest = weights::largest(&row).ok_or(NotFinite)?;
        let scale = Scale { largest, scale: 1.0 / draw.settings.temperature };
        let kept = match self.cut(&row, scale, draw.settings) {
            Cut::Few(count) => self.candidates[..count].to_vec(),
            Cut::Many(kept) => self.buckets.kept(&row, scale, kept),
        };
        let all = weight_of(&kept, scale);
        let part = |c: &Candidate| (c.token(), f64::from(scale.weight(c.logit())) / all);
        let mut kept: Vec<_> = kept.iter().map(part).collect();
        kept.sort_by_key(|(token, _)| *token);
        Ok(kept)
    }

    /// The token of an adjusted row of which only some may come next; the row is closed up to those.
    fn pick_allowed(
        &mut self,
        row: &mut Vec<f32>,
        mask: Mask<'_>,
        draw: &Draw<'_>,
    ) -> Result<u32, NotFinite> {
        weights::largest(row).ok_or(NotFinite)?;
        let mut allowed = std::mem::take(&mut self.allowed);
        allowed.clear();
        allowed.extend(mask.tokens().take_while(|token| (*token as usize) < row.len()));
        for (place, &token) in allowed.iter().enumerate() {
            row[place] = row[token as usize];
        }
        row.truncate(allowed.len());
        let place = self.pick(row, draw);
        let token = place.map(|place| allowed[place as usize]);
        self.allowed = allowed;
        token
    }

    /// The token of an adjusted row.
    fn pick(&mut self, row: &[f32], draw: &Draw<'_>) -> Result<u32, NotFinite> {
        let largest = weights::largest(row).ok_or(NotFinite)?;
        let settings = draw.settings;
        if settings.is_greedy() {
            return first(row, largest).ok_or(NotFinite);
        }
        let scale = Scale { largest, scale: 1.0 / settings.temperature };
        let draw = draw.uniform;
        let Settings { top_k, top_p, min_p, .. } = *settings;
        if top_k == 0 && top_p >= 1.0 && min_p == 0.0 {
            return Ok(self.draw_of_all(row, scale, draw));
        }
        Ok(match self.cut(row, scale, settings) {
            Cut::Few(count) => {
                let counting = &self.candidates[..count];
                along(counting, scale, draw * weight_of(counting, scale))
            }
            Cut::Many(kept) => self.buckets.draw(row, scale, kept, draw),
        })
    }

    /// Draws from the whole row, in the order of tokens: among spans, then blocks, then tokens.
    fn draw_of_all(&mut self, row: &[f32], scale: Scale, draw: f64) -> u32 {
        let all = weights::sum(row, scale.largest, scale.scale, &mut self.blocks);
        let spans: Vec<f64> = weights::spans(&self.blocks).collect();
        let (span, left) = weights::fallen(&spans, draw * all);
        let first = span * weights::SPAN;
        let end = self.blocks.len().min(first + weights::SPAN);
        let (block, left) = weights::fallen(&self.blocks[first..end], left);
        let start = (first + block) * weights::BLOCK;
        let end = row.len().min(start + weights::BLOCK);
        let block = (start as u32..).zip(&row[start..end]);
        self.candidates.clear();
        self.candidates.extend(block.map(|(token, logit)| Candidate::new(token, *logit)));
        along(&self.candidates, scale, left)
    }

    /// Finds what counts of `row`, likeliest first.
    fn cut(&mut self, row: &[f32], scale: Scale, settings: &Settings) -> Cut {
        let Settings { top_k, top_p, min_p, .. } = *settings;
        if top_k > 0 {
            select::largest(row, top_k, &mut self.candidates);
            let enough = enough(top_p, || weight_of(&self.candidates, scale));
            return Cut::Few(counting(&self.candidates, scale, enough, min_p));
        }
        let blocks = &mut self.blocks;
        let enough = enough(top_p, || weights::sum(row, scale.largest, scale.scale, blocks));
        let is_long = row.len() > CANDIDATES_FIRST * weights::BLOCK;
        let first = if is_long { CANDIDATES_FIRST } else { CANDIDATES_SHORT };
        select::largest(row, first, &mut self.candidates);
        let count = counting(&self.candidates, scale, enough, min_p);
        // If all of these count, others may, too.
        if count < first {
            return Cut::Few(count);
        }
        Cut::Many(self.buckets.keep(row, scale, enough, min_p))
    }
}

/// The first token with this logit.
fn first(row: &[f32], logit: f32) -> Option<u32> {
    row.iter().position(|other| *other == logit).and_then(|token| u32::try_from(token).ok())
}

/// The weight that the kept tokens have together, of what `all` weigh.
fn enough(top_p: f32, all: impl FnOnce() -> f64) -> f64 {
    if top_p < 1.0 { f64::from(top_p) * all() } else { f64::INFINITY }
}

/// How many of `candidates`, likeliest first, weigh `enough` together, and each `min_p` of the
/// likeliest's weight, which is one; at least one.
fn counting(candidates: &[Candidate], scale: Scale, enough: f64, min_p: f32) -> usize {
    let mut before = 0.0;
    let counts = |candidate: &&Candidate| {
        let weight = scale.weight(candidate.logit());
        let does = before < enough && weight >= min_p;
        before += f64::from(weight);
        does
    };
    candidates.iter().take_while(counts).count().max(1)
}

fn weight_of(candidates: &[Candidate], scale: Scale) -> f64 {
    candidates.iter().map(|candidate| f64::from(scale.weight(candidate.logit()))).sum()
}
