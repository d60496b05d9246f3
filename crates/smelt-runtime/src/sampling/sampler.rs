//! Chooses the tokens of one answer, each from a row of logits.
//!
//! A choice depends on the settings, the tokens before it and its row, on nothing else: the random number
//! of the answer's token `n` is a function of the seed and `n`.  Buffers are kept from token to token.

use super::buckets::{Buckets, Kept, Scale, along};
use super::logprobs::{Logprobs, Scorer};
use super::philox::uniform;
use super::select::{self, Candidate};
use super::weights;
use super::{Mask, SettingError, Settings};

/// Candidates looked at first where a probability decides how many count; most rows need no more.
const CANDIDATES_FIRST: usize = 64;

/// A row of logits from which nothing can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the logits are not all finite")]
pub struct NotFinite;

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<'a> {
    /// The token.
    pub token: u32,
    /// How likely the model finds it, and what it finds likeliest, if asked for.
    pub logprobs: Option<&'a Logprobs>,
}

/// A token that penalties touch.
#[derive(Clone, Copy, Debug)]
struct Seen {
    token: u32,
    /// How many times the answer has it.
    said: u32,
}

/// Chooses the tokens of one answer.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    /// In the order of tokens.
    seen: Vec<Seen>,
    /// Tokens chosen so far.
    chosen: u64,
    row: Vec<f32>,
    /// The tokens of `row`, where a mask leaves only some.
    allowed: Vec<u32>,
    candidates: Vec<Candidate>,
    buckets: Buckets,
    blocks: Vec<f64>,
    scorer: Scorer,
    logprobs: Logprobs,
}

/// What counts of a row.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// So many of the candidates.
    Few(usize),
    /// More, which the buckets know.
    Many(Kept),
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
        let mut seen = Vec::new();
        if settings.repetition_penalty != 1.0 {
            let mut tokens = prompt.to_vec();
            tokens.sort_unstable();
            tokens.dedup();
            seen.extend(tokens.into_iter().map(|token| Seen { token, said: 0 }));
        }
        Ok(Self {
            settings: settings.clone(),
            seen,
            chosen: 0,
            row: Vec::new(),
            allowed: Vec::new(),
            candidates: Vec::new(),
            buckets: Buckets::default(),
            blocks: Vec::new(),
            scorer: Scorer::default(),
            logprobs: Logprobs::default(),
        })
    }

    /// Chooses the next token from `logits`, one for each token of the vocabulary, of those that `mask`
    /// allows.
    ///
    /// # Errors
    /// [`NotFinite`] if there is none, or one is infinite or not a number, allowed or not.
    pub fn choose(
        &mut self,
        logits: &[f32],
        mask: Option<Mask<'_>>,
    ) -> Result<Choice<'_>, NotFinite> {
        let token = if mask.is_some() || self.is_adjusting() {
            let mut row = std::mem::take(&mut self.row);
            row.clear();
            row.extend_from_slice(logits);
            self.adjust(&mut row);
            let token = match mask {
                Some(mask) => self.pick_allowed(&mut row, mask),
                None => self.pick(&row),
            };
            self.row = row;
            token?
        } else {
            self.pick(logits)?
        };
        self.tell(logits, token)?;
        self.count(token);
        let logprobs = self.settings.top_logprobs.is_some().then_some(&self.logprobs);
        Ok(Choice { token, logprobs })
    }

    /// The tokens that may come next and their probabilities, in the order of tokens.
    #[cfg(test)]
    pub(super) fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>, NotFinite> {
        let mut row = logits.to_vec();
        self.adjust(&mut row);
        let largest = weights::largest(&row).ok_or(NotFinite)?;
        let scale = Scale { largest, scale: 1.0 / self.settings.temperature };
        let kept = match self.cut(&row, scale) {
            Cut::Few(count) => self.candidates[..count].to_vec(),
            Cut::Many(kept) => self.buckets.kept(&row, scale, kept),
        };
        let all = weight_of(&kept, scale);
        let part = |c: &Candidate| (c.token(), f64::from(scale.weight(c.logit())) / all);
        let mut kept: Vec<_> = kept.iter().map(part).collect();
        kept.sort_by_key(|(token, _)| *token);
        Ok(kept)
    }

    fn is_penalizing(&self) -> bool {
        let Settings { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.settings;
        repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0
    }

    fn is_adjusting(&self) -> bool {
        !self.settings.logit_bias.is_empty() || self.is_penalizing()
    }

    /// Puts bias and penalties on a row.
    fn adjust(&self, row: &mut [f32]) {
        let settings = &self.settings;
        for &(token, bias) in &settings.logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for seen in &self.seen {
            let Some(logit) = row.get_mut(seen.token as usize) else { continue };
            let penalty = settings.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            if seen.said > 0 {
                *logit -= settings.frequency_penalty * seen.said as f32;
                *logit -= settings.presence_penalty;
            }
        }
    }

    /// The token of an adjusted row of which only some may come next; the row is closed up to those.
    fn pick_allowed(&mut self, row: &mut Vec<f32>, mask: Mask<'_>) -> Result<u32, NotFinite> {
        weights::largest(row).ok_or(NotFinite)?;
        let mut allowed = std::mem::take(&mut self.allowed);
        allowed.clear();
        allowed.extend(mask.tokens().take_while(|token| (*token as usize) < row.len()));
        for (place, &token) in allowed.iter().enumerate() {
            row[place] = row[token as usize];
        }
        row.truncate(allowed.len());
        let place = self.pick(row);
        let token = place.map(|place| allowed[place as usize]);
        self.allowed = allowed;
        token
    }

    /// The token of an adjusted row.
    fn pick(&mut self, row: &[f32]) -> Result<u32, NotFinite> {
        let largest = weights::largest(row).ok_or(NotFinite)?;
        if self.settings.is_greedy() {
            return first(row, largest).ok_or(NotFinite);
        }
        let scale = Scale { largest, scale: 1.0 / self.settings.temperature };
        let draw = uniform(self.settings.seed, self.chosen);
        let Settings { top_k, top_p, min_p, .. } = self.settings;
        if top_k == 0 && top_p >= 1.0 && min_p == 0.0 {
            return Ok(self.draw_of_all(row, scale, draw));
        }
        Ok(match self.cut(row, scale) {
            Cut::Few(count) => {
                let counting = &self.candidates[..count];
                along(counting, scale, draw * weight_of(counting, scale))
            }
            Cut::Many(kept) => self.buckets.draw(row, scale, kept, draw),
        })
    }

    /// Draws from the whole row, in the order of tokens.
    fn draw_of_all(&mut self, row: &[f32], scale: Scale, draw: f64) -> u32 {
        let all = weights::sum(row, scale.largest, scale.scale, &mut self.blocks);
        let mut left = draw * all;
        let mut last = 0;
        for (block, weight) in self.blocks.iter().enumerate() {
            last = block;
            if left <= *weight {
                break;
            }
            left -= weight;
        }
        let start = last * weights::BLOCK;
        let end = row.len().min(start + weights::BLOCK);
        let block = (start as u32..).zip(&row[start..end]);
        self.candidates.clear();
        self.candidates.extend(block.map(|(token, logit)| Candidate::new(token, *logit)));
        along(&self.candidates, scale, left)
    }

    /// Finds what counts of `row`, likeliest first.
    fn cut(&mut self, row: &[f32], scale: Scale) -> Cut {
        let Settings { top_k, top_p, min_p, .. } = self.settings;
        if top_k > 0 {
            select::largest(row, top_k, &mut self.candidates);
            let enough = enough(top_p, || weight_of(&self.candidates, scale));
            return Cut::Few(counting(&self.candidates, scale, enough, min_p));
        }
        let blocks = &mut self.blocks;
        let enough = enough(top_p, || weights::sum(row, scale.largest, scale.scale, blocks));
        select::largest(row, CANDIDATES_FIRST, &mut self.candidates);
        let count = counting(&self.candidates, scale, enough, min_p);
        // If all of these count, others may, too.
        if count < CANDIDATES_FIRST {
            return Cut::Few(count);
        }
        Cut::Many(self.buckets.keep(row, scale, enough, min_p))
    }

    /// Writes the model's logprobs, if asked for.
    fn tell(&mut self, logits: &[f32], token: u32) -> Result<(), NotFinite> {
        let Some(count) = self.settings.top_logprobs else { return Ok(()) };
        self.scorer.score(logits, token, count, &mut self.logprobs)
    }

    /// Takes note of a token of the answer.
    pub(super) fn count(&mut self, token: u32) {
        self.chosen += 1;
        if !self.is_penalizing() {
            return;
        }
        match self.seen.binary_search_by_key(&token, |seen| seen.token) {
            Ok(place) => self.seen[place].said += 1,
            Err(place) => self.seen.insert(place, Seen { token, said: 1 }),
        }
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
