//! Chooses by the host's own chooser, which is what the device's kernels follow step by step.

use smelt_backend::sampling::{Chooser, Chosen, Draw, NotFinite, Settings};

use super::{Given, number_at};
use crate::kernels::choose::{
    ADJUSTS, ASKS_SCORE, ASKS_TOKEN, CHOICE_BYTES, MASKS, RESULT_BYTES, SPAN, WEIGHT_BLOCK,
};
use crate::recording::{Astray, TwinMemory};
use crate::{DeviceAddress, Launch};

/// What the launches between [`adjust`] and [`pick`] do: the host's chooser needs nothing of them.
pub(super) fn nothing(_: &mut TwinMemory, _: &Launch) -> Result<(), Astray> {
    Ok(())
}

/// A choice as the device reads it.
struct Choice {
    words: Vec<u32>,
}

impl Choice {
    fn read(memory: &TwinMemory, base: DeviceAddress, index: usize) -> Result<Self, Astray> {
        let at = base.offset((index * CHOICE_BYTES) as u64);
        Ok(Self { words: memory.u32s(at, CHOICE_BYTES / 4)? })
    }

    fn uniform(&self) -> f64 {
        f64::from_bits(u64::from(self.words[0]) | u64::from(self.words[1]) << 32)
    }

    fn row(&self) -> usize {
        self.words[2] as usize
    }

    fn asks(&self, flag: u32) -> bool {
        self.words[3] & flag != 0
    }

    fn float(&self, word: usize) -> f32 {
        f32::from_bits(self.words[word])
    }

    /// First and count of biases, counts or words of the mask.
    fn piece(&self, which: usize) -> (usize, usize) {
        (self.words[11 + 2 * which] as usize, self.words[12 + 2 * which] as usize)
    }

    /// The settings that are left when a row is adjusted.
    fn settings(&self) -> Settings {
        let scale = self.float(4);
        // Its inverse is the scale again wherever the host's division rounded so, which tests see to.
        let temperature = if scale == 0.0 { 0.0 } else { scale.recip() };
        Settings {
            temperature,
            top_k: self.words[5] as usize,
            top_p: self.float(6),
            min_p: self.float(7),
            ..Settings::GREEDY
        }
    }
}

/// Pairs of a token and a number.
fn pairs(
    memory: &TwinMemory,
    base: DeviceAddress,
    (first, count): (usize, usize),
) -> Result<Vec<(usize, f32)>, Astray> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let words = memory.u32s(number_at(base, first * 2), count * 2)?;
    let (pairs, _) = words.as_chunks::<2>();
    Ok(pairs.iter().map(|[token, number]| (*token as usize, f32::from_bits(*number))).collect())
}

/// Puts biases and penalties on copies of rows, and closes them up to what masks allow.
pub(super) fn adjust(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let vocab = given.count(9);
    for index in 0..launch.grid[1] as usize {
        let choice = Choice::read(memory, given.address(5), index)?;
        let mut row = memory.f32s(number_at(given.address(4), choice.row() * vocab), vocab)?;
        for (token, bias) in pairs(memory, given.address(6), choice.piece(0))? {
            row[token] += bias;
        }
        for (token, count) in pairs(memory, given.address(7), choice.piece(1))? {
            let (penalty, logit) = (choice.float(8), row[token]);
            row[token] = if logit > 0.0 { logit / penalty } else { logit * penalty };
            if count > 0.0 {
                row[token] -= choice.float(10) * count;
                row[token] -= choice.float(9);
            }
        }
        let is_sound = row.iter().all(|logit| logit.is_finite());
        let mut length = vocab;
        if choice.asks(MASKS) {
            let (first, count) = choice.piece(2);
            let words = memory.u32s(number_at(given.address(8), first), count)?;
            let allows = |token: &usize| {
                words.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
            };
            let allowed: Vec<usize> = (0..vocab).filter(allows).collect();
            row = allowed.iter().map(|token| row[*token]).collect();
            length = row.len();
            let tokens: Vec<u32> = allowed.iter().map(|token| *token as u32).collect();
            memory.set_u32s(number_at(given.address(1), index * vocab), &tokens)?;
            if !is_sound {
                memory.set_u32s(number_at(given.address(3), index), &[1])?;
            }
        }
        memory.set_f32s(number_at(given.address(0), index * vocab), &row)?;
        memory.set_u32s(number_at(given.address(2), index), &[length as u32])?;
    }
    Ok(())
}

/// What came of a choice.
#[derive(Default)]
struct Outcome {
    weight: f64,
    status: u32,
    token: u32,
    logit: f32,
    largest: f32,
    top: Vec<(u32, f32)>,
}

impl Outcome {
    fn write(&self, memory: &mut TwinMemory, at: DeviceAddress) -> Result<(), Astray> {
        let mut bytes = vec![0; RESULT_BYTES];
        bytes[..8].copy_from_slice(&self.weight.to_le_bytes());
        let words = [self.status, self.token, self.logit.to_bits(), self.largest.to_bits()];
        bytes[8..24].copy_from_slice(&words.map(u32::to_le_bytes).concat());
        let half = (RESULT_BYTES - 24) / 2;
        for (at, (token, logit)) in self.top.iter().enumerate() {
            bytes[24 + at * 4..][..4].copy_from_slice(&token.to_le_bytes());
            bytes[24 + half + at * 4..][..4].copy_from_slice(&logit.to_le_bytes());
        }
        memory.write(at, RESULT_BYTES as u64)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// How likely a row finds the token, in the parts of which the host makes it.
    fn score(&mut self, row: &[f32], top: usize) -> Result<(), NotFinite> {
        let logprobs = Chooser::default().score(row, self.token, row.len().min(top))?;
        self.largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |block| self.block_weight(block);
        self.weight = row
            .chunks(WEIGHT_BLOCK * SPAN)
            .map(|span| by_halves(span.chunks(WEIGHT_BLOCK).map(weight).collect()))
            .sum();
        self.logit = row[self.token as usize];
        self.top = logprobs.top.iter().map(|(token, _)| (*token, row[*token as usize])).collect();
        Ok(())
    }

    /// The weight of some logits: sixteen sums side by side, then one after another.
    fn block_weight(&self, block: &[f32]) -> f64 {
        let mut sums = [0.0; 16];
        for (at, logit) in block.iter().enumerate() {
            sums[at % 16] += exp(logit - self.largest);
        }
        f64::from(sums.iter().sum::<f32>())
    }
}

/// The sum of a span's weights, whose halves are added to each other until one is left.
fn by_halves(mut weights: Vec<f64>) -> f64 {
    weights.resize(SPAN, 0.0);
    while weights.len() > 1 {
        let half = weights.split_off(weights.len() / 2);
        weights.iter_mut().zip(half).for_each(|(weight, other)| *weight += other);
    }
    weights[0]
}

/// The exponential of a number that is not positive, by the steps of the host's sampling.
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let twos = rounded - ROUND;
    let rest = (x - twos * 0.693_359_4) - twos * -2.121_944_4e-4;
    let factors = [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let series = factors.iter().fold(1.987_569_1e-4, |series, factor| series * rest + factor);
    let power = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    ((series * rest) * rest + rest + 1.0) * f32::from_bits(power)
}

/// Chooses from rows that are adjusted.
pub(super) fn pick(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let vocab = given.count(10);
    for index in 0..launch.grid[0] as usize {
        let choice = Choice::read(memory, given.address(9), index)?;
        let mut outcome = Outcome { token: choice.words[17], ..Outcome::default() };
        if choice.asks(ASKS_TOKEN) {
            let row = if choice.asks(ADJUSTS | MASKS) {
                let length = memory.u32s(number_at(given.address(6), index), 1)?[0] as usize;
                memory.f32s(number_at(given.address(4), index * vocab), length)?
            } else {
                memory.f32s(number_at(given.address(8), choice.row() * vocab), vocab)?
            };
            let is_faulty =
                choice.asks(MASKS) && memory.u32s(number_at(given.address(7), index), 1)?[0] == 1;
            let draw = Draw {
                settings: &choice.settings(),
                counts: &[],
                mask: None,
                uniform: choice.uniform(),
            };
            match Chooser::default().choose(&row, &draw) {
                Ok(Chosen { token, .. }) if !is_faulty => {
                    outcome.token = token;
                    if choice.asks(MASKS) {
                        let at = number_at(given.address(5), index * vocab + token as usize);
                        outcome.token = memory.u32s(at, 1)?[0];
                    }
                }
                _ => outcome.status = 1,
            }
        }
        if choice.asks(ASKS_SCORE) && outcome.status == 0 {
            let row = memory.f32s(number_at(given.address(8), choice.row() * vocab), vocab)?;
            if outcome.score(&row, choice.words[18] as usize).is_err() {
                outcome.status = 1;
            }
        }
        memory.set_u32s(number_at(given.address(7), index), &[0])?;
        if choice.words[19] != u32::MAX {
            let at = number_at(given.address(1), choice.words[19] as usize);
            memory.set_u32s(at, &[outcome.token])?;
        }
        outcome.write(memory, given.address(0).offset((index * RESULT_BYTES) as u64))?;
    }
    Ok(())
}
