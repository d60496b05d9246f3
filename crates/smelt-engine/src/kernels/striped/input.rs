//! Brings activations into the form that stripes are multiplied by.
//!
//! Rows of f32 in, tiles of tokens out: the numbers of a tile's tokens for the same columns lie side
//! by side, so that a kernel reads them in order.  Knows nothing of weights.

use super::RUN;
use crate::kernels::activation::ROUND;
use crate::kernels::isa::Isa;
use crate::kernels::lanes::{Lanes, OverLanes};
use crate::kernels::threads::Threads;

/// Tokens of a tile, unless there is but one token.
const TILE_TOKENS: usize = 4;
/// Columns of half a run.
const HALF: usize = RUN / 2;
/// The largest quant: -127..=127 is symmetric, and products of two quants then fit 16 bits in pairs.
const QUANT_MAX: f32 = 127.0;

/// What becomes of activations before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// They stay f32.
    None,
    /// Each token's run of [`RUN`] columns becomes 8-bit quants with a scale.
    Runs,
}

/// Activations `[tokens, columns]` in tiles.  Kept from product to product for its memory.
#[derive(Debug)]
pub(crate) struct Input {
    rounding: Rounding,
    tokens: usize,
    columns: usize,
    /// Tokens of a tile; those that fill the last one are zero.
    width: usize,
    /// `[tiles, columns, width]`, of [`Rounding::None`].
    floats: Vec<f32>,
    /// `[tiles, columns / 4, width, 4 columns]`, columns a multiple of [`RUN`].
    quants: Vec<i8>,
    /// `[tiles, runs, width]`.
    scales: Vec<f32>,
    /// Sums of quants, `[tiles, runs, width]`.
    sums: Vec<i32>,
    /// The same of the first half of each run.
    firsts: Vec<i32>,
}

/// Tokens of rounded activations.
#[derive(Clone, Copy)]
pub(super) struct QuantTile<'a> {
    /// `[runs * 8, width, 4]`.
    pub(super) quants: &'a [i8],
    /// `[runs, width]`.
    pub(super) scales: &'a [f32],
    /// `[runs, width]`.
    pub(super) sums: &'a [i32],
    /// `[runs, width]`.
    pub(super) firsts: &'a [i32],
}

impl QuantTile<'_> {
    /// Panics unless every part is as long as kernels read for `runs` of `width` tokens.
    pub(super) fn check(&self, runs: usize, width: usize) {
        assert_eq!(self.quants.len(), runs * RUN * width, "levels of a tile");
        assert_eq!(self.scales.len(), runs * width, "scales of a tile");
        assert_eq!(self.sums.len(), runs * width, "sums of a tile");
        assert_eq!(self.firsts.len(), runs * width, "sums of first halves");
    }
}

impl Default for Input {
    fn default() -> Self {
        Self {
            rounding: Rounding::None,
            tokens: 0,
            columns: 0,
            width: 1,
            floats: Vec::new(),
            quants: Vec::new(),
            scales: Vec::new(),
            sums: Vec::new(),
            firsts: Vec::new(),
        }
    }
}

impl Input {
    /// Takes the rows `x` `[tokens, columns]`.
    pub(crate) fn fill(
        &mut self,
        x: &[f32],
        columns: usize,
        rounding: Rounding,
        isa: Isa,
        threads: &Threads,
    ) {
        let tokens = x.len() / columns.max(1);
        assert_eq!(x.len(), tokens * columns, "whole rows of {columns}");
        let width = if tokens == 1 { 1 } else { TILE_TOKENS };
        (self.rounding, self.tokens, self.columns, self.width) = (rounding, tokens, columns, width);
        match rounding {
            Rounding::None => self.fill_floats(x, threads),
            Rounding::Runs => self.fill_quants(x, isa, threads),
        }
    }

    fn fill_floats(&mut self, x: &[f32], threads: &Threads) {
        let (columns, width) = (self.columns, self.width);
        self.floats.clear();
        self.floats.resize(self.tiles() * columns * width, 0.0);
        let team = threads.for_work(x.len());
        team.rows(&mut self.floats, (columns * width).max(1), |first, tiles| {
            for (tile, out) in (first..).zip(tiles.chunks_exact_mut(columns * width)) {
                let rows = x[tile * width * columns..].chunks_exact(columns).take(width);
                for (token, row) in rows.enumerate() {
                    let places = out[token..].iter_mut().step_by(width);
                    places.zip(row).for_each(|(place, &value)| *place = value);
                }
            }
        });
    }

    fn fill_quants(&mut self, x: &[f32], isa: Isa, threads: &Threads) {
        let (columns, width, runs) = (self.columns, self.width, self.runs());
        let tiles = self.tiles();
        self.quants.clear();
        self.quants.resize(tiles * runs * RUN * width, 0);
        self.scales.clear();
        self.scales.resize(tiles * runs * width, 0.0);
        self.sums.clear();
        self.sums.resize(tiles * runs * width, 0);
        self.firsts.clear();
        self.firsts.resize(tiles * runs * width, 0);
        let mut parts: Vec<TileParts<'_>> = self
            .quants
            .chunks_exact_mut((runs * RUN * width).max(1))
            .zip(self.scales.chunks_exact_mut((runs * width).max(1)))
            .zip(self.sums.chunks_exact_mut((runs * width).max(1)))
            .zip(self.firsts.chunks_exact_mut((runs * width).max(1)))
            .map(|(((quants, scales), sums), firsts)| TileParts { quants, scales, sums, firsts })
            .collect();
        // A number takes about as long as four products.
        threads.for_work(x.len() * 4).rows(&mut parts, 1, |first, parts| {
            for (tile, parts) in (first..).zip(parts) {
                let rows = x[tile * width * columns..].chunks_exact(columns).take(width);
                isa.over_lanes(Round { parts, rows, width });
            }
        });
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn rounding(&self) -> Rounding {
        self.rounding
    }

    /// Tokens of a tile.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn tiles(&self) -> usize {
        self.tokens.div_ceil(self.width)
    }

    fn runs(&self) -> usize {
        self.columns.div_ceil(RUN)
    }

    /// Tile `index` of activations that were not rounded: `[columns, width]`.
    pub(super) fn float_tile(&self, index: usize) -> &[f32] {
        let len = self.columns * self.width;
        &self.floats[index * len..][..len]
    }

    /// Tile `index` of rounded activations.
    pub(super) fn quant_tile(&self, index: usize) -> QuantTile<'_> {
        let runs = self.runs() * self.width;
        QuantTile {
            quants: &self.quants[index * runs * RUN..][..runs * RUN],
            scales: &self.scales[index * runs..][..runs],
            sums: &self.sums[index * runs..][..runs],
            firsts: &self.firsts[index * runs..][..runs],
        }
    }
}

/// Where the tokens of one tile go.
struct TileParts<'a> {
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    firsts: &'a mut [i32],
}

/// The rounding of a tile's `rows`.
struct Round<'a, 'b, R> {
    parts: &'a mut TileParts<'b>,
    rows: R,
    width: usize,
}

impl<'x, R: Iterator<Item = &'x [f32]>> OverLanes for Round<'_, '_, R> {
    // The compiler makes vectors of these loops by itself.
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        for (token, row) in self.rows.enumerate() {
            self.parts.round(row, token, self.width);
        }
    }
}

impl TileParts<'_> {
    /// Rounds the `row` of one token.
    #[inline(always)]
    fn round(&mut self, row: &[f32], token: usize, width: usize) {
        let mut quants = [0; RUN];
        let (full, rest) = row.as_chunks::<RUN>();
        let mut last = [0.0; RUN];
        last[..rest.len()].copy_from_slice(rest);
        let runs = full.iter().chain((!rest.is_empty()).then_some(&last));
        for (run, numbers) in runs.enumerate() {
            let at = run * width + token;
            let (scale, [first, second]) = round_run(numbers, &mut quants);
            (self.scales[at], self.sums[at], self.firsts[at]) = (scale, first + second, first);
            let quads = quants.as_chunks::<4>().0;
            let out = self.quants[run * RUN * width..][..RUN * width].as_chunks_mut::<4>().0;
            for (out, quad) in out[token..].iter_mut().step_by(width).zip(quads) {
                *out = *quad;
            }
        }
    }
}

/// Rounds `numbers` to `quants`; gives their scale and the sums of the two halves of the quants.
#[inline(always)]
fn round_run(numbers: &[f32; RUN], quants: &mut [i8; RUN]) -> (f32, [i32; 2]) {
    // Without their signs, floats are in the order of their bits, and NaN is above all.
    let size = |number: &f32| number.to_bits() & (u32::MAX >> 1);
    let max = f32::from_bits(numbers.iter().map(size).fold(0, u32::max));
    // Beside anything else, numbers this small are zeros; their inverse might be infinite.
    let inverse = if max > f32::MIN_POSITIVE * QUANT_MAX { QUANT_MAX / max } else { 0.0 };
    let mut sum = 0;
    for (quant, number) in quants.iter_mut().zip(numbers) {
        let whole = (number * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        *quant = whole as i8;
        sum += i32::from(*quant);
    }
    // In a loop of its own: two sums in the one above, and the compiler makes no vectors of it.
    let first = quants[..HALF].iter().copied().map(i32::from).sum();
    (max / QUANT_MAX, [first, sum - first])
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::kernels::testing::rounds;

    #[test]
    fn levels_are_within_half_a_step_and_sums_are_theirs() {
        let mut random = Random::new(11);
        for round in (0..200).take(rounds(200)) {
            let mut numbers = [0.0; RUN];
            let size = 10f32.powi(round % 60 - 30);
            numbers.iter_mut().for_each(|number| *number = random.signed() * size);
            let mut quants = [9; RUN];
            let (scale, sums) = round_run(&numbers, &mut quants);
            let sum = |half: &[i8]| half.iter().copied().map(i32::from).sum::<i32>();
            assert_eq!(sums, [sum(&quants[..HALF]), sum(&quants[HALF..])]);
            for (number, quant) in numbers.iter().zip(quants) {
                let apart = (number - f32::from(quant) * scale).abs();
                assert!(apart <= scale * 0.501, "{number} became {quant} of {scale}");
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_no_number_is_kept_as_such() {
        let mut quants = [9; RUN];
        assert_eq!(round_run(&[0.0; RUN], &mut quants), (0.0, [0, 0]));
        assert_eq!(quants, [0; RUN]);
        for odd in [f32::NAN, f32::INFINITY] {
            let mut numbers = [1.0; RUN];
            numbers[7] = odd;
            assert!(!round_run(&numbers, &mut quants).0.is_finite());
        }
    }
}
