//! Holds weights in the forms of ggml's blocks, in stripes, and multiplies by them.
//!
//! A group's sum of quants times activations is an exact integer; it joins the output times the
//! activations' scale, then times the group's.  Where groups have minima, the sum of the activations
//! times their scale follows, times the minimum and subtracted.  That order is the same on every
//! path.  The scale of a group and its minimum are multiplied out as they are met, and exact.
//! Source of the forms: [`BlockForm`].

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod plain;
#[cfg(test)]
mod tests;

use half::f16;
use smelt_tensor::packed::BlockForm;

use super::input::QuantTile;
use super::{RUN, STRIPE, stripes};

/// Columns of a step: sixteen rows of them are a line of nibbles.
const STEP_COLUMNS: usize = 8;

/// Quants in a form of blocks, with what turns them into numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks<'a> {
    pub(crate) form: BlockForm,
    /// The low four bits of the quants, `[stripes, runs * 4, 16 rows, 4 columns]`; see
    /// [`QuantizedStripes`](super::QuantizedStripes).
    pub(crate) nibbles: &'a [u8],
    /// What is above them, `[stripes, words, 16 rows, 4 bytes]`; empty where there is nothing.
    pub(crate) high: &'a [u8],
    pub(crate) scales: Halves<'a>,
    pub(crate) mins: Option<Halves<'a>>,
}

/// Numbers of groups: f16, or products of f16 and factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves<'a> {
    /// `[stripes, spans, 16]`.
    pub(crate) halves: &'a [u16],
    /// `[stripes, groups, 16]`, signed; none where groups are spans.
    pub(crate) factors: Option<&'a [u8]>,
}

impl<'a> Halves<'a> {
    /// Those of stripe `index` of `count`.
    fn stripe(self, index: usize, count: usize) -> Self {
        let factors = self.factors.map(|factors| part(factors, index, count));
        Self { halves: part(self.halves, index, count), factors }
    }

    /// Panics unless there are as many as kernels read, of one stripe.
    fn check(&self, form: BlockForm, columns: usize) {
        assert_eq!(self.halves.len(), columns / form.span * STRIPE, "an f16 for each span");
        let factors = self.factors.map(<[u8]>::len);
        let expect = form.has_factors().then_some(columns / form.group * STRIPE);
        assert_eq!(factors, expect, "a factor for each group");
    }

    /// The number of row `lane` in `group`.
    fn get(&self, form: BlockForm, group: usize, lane: usize) -> f32 {
        let span = group * form.group / form.span;
        let half = f16::from_bits(self.halves[span * STRIPE + lane]).to_f32();
        let factor = |all: &[u8]| f32::from(all[group * STRIPE + lane].cast_signed());
        self.factors.map_or(half, |factors| half * factor(factors))
    }
}

/// Part `index` of `count` equal ones.
fn part<T>(all: &[T], index: usize, count: usize) -> &[T] {
    let len = all.len() / count;
    &all[index * len..][..len]
}

impl<'a> Blocks<'a> {
    /// Whether a weight of `columns` columns may have this form: it has whole spans and runs.
    pub(crate) fn fits(form: BlockForm, columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(form.span.max(RUN))
    }

    /// Panics unless every part is as long as `rows` of `columns` need: shapes are checked before.
    pub(super) fn check(&self, rows: usize, columns: usize) {
        assert!(Self::fits(self.form, columns), "whole spans of columns");
        if rows > 0 {
            self.stripe(0, rows, columns).check();
        }
        let lines = stripes(rows) * columns * STRIPE;
        assert_eq!(self.nibbles.len(), lines / 2, "nibbles");
    }

    /// Stripe `index` of a weight of `rows` by `columns`.
    pub(super) fn stripe(&self, index: usize, rows: usize, columns: usize) -> BlockStripe<'a> {
        let count = stripes(rows);
        BlockStripe {
            form: self.form,
            columns,
            nibbles: part(self.nibbles, index, count),
            high: part(self.high, index, count),
            scales: self.scales.stripe(index, count),
            mins: self.mins.map(|mins| mins.stripe(index, count)),
        }
    }
}

/// Sixteen rows.
#[derive(Clone, Copy)]
pub(super) struct BlockStripe<'a> {
    pub(super) form: BlockForm,
    columns: usize,
    nibbles: &'a [u8],
    high: &'a [u8],
    scales: Halves<'a>,
    mins: Option<Halves<'a>>,
}

impl BlockStripe<'_> {
    /// Panics unless every part is as long as kernels read.
    fn check(&self) {
        let (form, columns) = (self.form, self.columns);
        assert!(Blocks::fits(form, columns), "whole spans of columns");
        assert_eq!(self.nibbles.len(), columns * STRIPE / 2, "nibbles");
        let words = form.word_columns().map_or(0, |width| columns / width);
        assert_eq!(self.high.len(), words * STRIPE * 4, "high bits");
        self.scales.check(form, columns);
        assert_eq!(self.mins.is_some(), form.has_mins, "minima");
        if let Some(mins) = self.mins {
            mins.check(form, columns);
        }
    }

    /// Runs of activations.
    fn runs(&self) -> usize {
        self.columns / RUN
    }

    fn groups(&self) -> usize {
        self.columns / self.form.group
    }

    /// The quant of `lane` in `column`.
    fn quant(&self, lane: usize, column: usize) -> u8 {
        let byte = self.nibbles[(column / 8 * STRIPE + lane) * 4 + column % 4];
        let low = if column % 8 < 4 { byte & 15 } else { byte >> 4 };
        let Some(width) = self.form.word_columns() else { return low };
        let (bits, inside) = (self.form.high_bits() as usize, column % width);
        let byte = self.high[(column / width * STRIPE + lane) * 4 + inside % 4];
        low | (byte >> (inside / 4 * bits) & ((1 << bits) - 1)) << 4
    }

    /// The quants of `lane` in eight columns from `column` on, a multiple of 8.
    fn eight(&self, lane: usize, column: usize) -> [u8; 8] {
        if self.form.high_bits() > 0 {
            return std::array::from_fn(|index| self.quant(lane, column + index));
        }
        let bytes = &self.nibbles[(column / 8 * STRIPE + lane) * 4..][..4];
        std::array::from_fn(|index| bytes[index % 4] >> (index / 4 * 4) & 15)
    }

    /// The numbers of `lane` in the columns of `group`, eight at a time, with the first of these columns.
    fn numbers(&self, lane: usize, group: usize) -> impl Iterator<Item = (usize, [f32; 8])> {
        let (scale, min) = (self.scales.get(self.form, group, lane), self.min(group, lane));
        let middle = i16::from(self.form.middle());
        let number = move |quant: u8| {
            let product = f32::from(i16::from(quant) - middle) * scale;
            min.map_or(product, |min| product - min)
        };
        let columns = (group * self.form.group..(group + 1) * self.form.group).step_by(8);
        columns.map(move |column| (column, self.eight(lane, column).map(number)))
    }

    fn min(&self, group: usize, lane: usize) -> Option<f32> {
        self.mins.map(|mins| mins.get(self.form, group, lane))
    }

    /// All sixteen rows in f32, `[columns, 16]`.
    pub(super) fn widen(&self, out: &mut [f32]) {
        for group in 0..self.groups() {
            for lane in 0..STRIPE {
                for (column, numbers) in self.numbers(lane, group) {
                    let places = out[column * STRIPE + lane..].iter_mut().step_by(STRIPE);
                    places.zip(numbers).for_each(|(out, number)| *out = number);
                }
            }
        }
    }

    /// One row in f32.
    pub(super) fn widen_lane(&self, lane: usize, out: &mut [f32]) {
        for (column, numbers) in (0..self.groups()).flat_map(|group| self.numbers(lane, group)) {
            out[column..][..8].copy_from_slice(&numbers);
        }
    }
}

/// The sum of a token's activations in a group of `columns` columns.
fn group_sum(tile: &QuantTile<'_>, columns: usize, group: usize, at: usize) -> i32 {
    match (columns, group % 2) {
        (RUN, _) => tile.sums[at],
        (_, 0) => tile.firsts[at],
        _ => tile.sums[at] - tile.firsts[at],
    }
}
