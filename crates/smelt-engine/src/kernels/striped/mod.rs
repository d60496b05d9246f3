//! Multiplies by weights that lie in stripes: sixteen rows side by side, column after column.
//!
//! A vector of a stripe holds the same columns of sixteen rows, so one instruction feeds sixteen
//! outputs with one broadcast activation, and nothing is ever summed across a vector.  One layout
//! serves every processor.  Mapped weights and activations in, f32 out.
//!
//! Each output is summed in one order that depends on the weight's columns alone: any path, any
//! number of threads and any company of other tokens give the same bits.  Quants (4 or 8 bits) are
//! multiplied by activations rounded to 8 bits for each token and run of [`RUN`] columns; their
//! integer sums are exact.  So are quants in the forms of ggml's blocks ([`Blocks`]).  Floats are
//! multiplied in f32.  Knows nothing of layers or files.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod floats;
mod input;
mod multiply;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod plain;
#[cfg(test)]
mod tests;

use super::matrix::Elements;
use blocks::BlockStripe;

pub(crate) use blocks::{Blocks, Halves};
pub(crate) use input::{Input, Rounding};
pub(crate) use multiply::{Job, multiply};
pub use pack::{stripe_bytes, stripe_elements, stripe_nibbles};

/// Rows of a stripe: the f32 lanes of the widest register.
pub const STRIPE: usize = 16;
/// Columns whose activations are rounded with one scale.
pub const RUN: usize = 32;
/// Columns of floats that are summed before they join the sum of those before them: the error of a
/// long sum grows with the length of its parts, and a processor works at several parts at once where
/// one long chain of sums would wait for itself.
const FLOAT_RUN: usize = 32;
/// The quant that means 0 where a 4-bit weight has no zero points.
const MIDDLE_NIBBLE: u8 = 8;
/// The quant that means 0 in 8 bits.
const MIDDLE_BYTE: u8 = 128;

/// How weights that are quants are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// By activations rounded to 8 bits, in integers.
    Integers,
    /// Multiplied out, by activations as they are: slower, and as exact as f32 is.
    Floats,
}

/// Bits of a quant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    Four,
    Eight,
}

/// Weights `[rows, columns]` in stripes; rows that fill the last stripe are zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Striped<'a> {
    rows: usize,
    columns: usize,
    numbers: Numbers<'a>,
}

/// The numbers of the stripes.
#[derive(Clone, Copy, Debug)]
enum Numbers<'a> {
    /// `[stripes, columns, 16]`.
    Floats(Elements<'a>),
    Quants(QuantizedStripes<'a>),
    Blocks(Blocks<'a>),
}

/// Quants with what turns them into numbers: `(quant - zero) * scale`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedStripes<'a> {
    pub(crate) bits: Bits,
    /// 8 bits: `[stripes, runs * 8, 16 rows, 4 columns]`.  4 bits: `[stripes, runs * 4, 16 rows, 4
    /// columns]`, a low half being of columns `8i..8i + 4`, a high one of the four behind them.
    pub(crate) quants: &'a [u8],
    /// Runs that share a scale; all of a row where there is one group.
    pub(crate) group_runs: usize,
    /// `[stripes, groups, 16]`.
    pub(crate) scales: Elements<'a>,
    /// `[stripes, groups, 16]`, of 4-bit quants; without them zero is the middle quant.
    pub(crate) zeros: Option<&'a [u8]>,
}

/// Stripes of `rows` rows.
pub(crate) fn stripes(rows: usize) -> usize {
    rows.div_ceil(STRIPE)
}

impl Bits {
    /// Bytes of a stripe of `columns` columns; `None` when no memory is that large.
    pub(crate) fn checked_stripe_bytes(self, columns: usize) -> Option<usize> {
        let quants = columns.checked_next_multiple_of(RUN)?.checked_mul(STRIPE)?;
        Some(match self {
            Self::Four => quants / 2,
            Self::Eight => quants,
        })
    }

    /// Bytes of a stripe of `columns` columns.  Panics when no memory is that large.
    pub(crate) fn stripe_bytes(self, columns: usize) -> usize {
        self.checked_stripe_bytes(columns).expect("columns that were stored were counted")
    }
}

impl<'a> Striped<'a> {
    /// Floats `[stripes, columns, 16]`.  Panics where they are not that many: shapes are checked
    /// before.
    pub(crate) fn floats(numbers: Elements<'a>, rows: usize, columns: usize) -> Self {
        assert!(!matches!(numbers, Elements::I8(_)), "bytes are levels");
        assert_eq!(numbers.len(), stripes(rows) * columns * STRIPE, "one float a place");
        Self { rows, columns, numbers: Numbers::Floats(numbers) }
    }

    /// Quants of `columns` columns.  Panics where a part is too short: shapes are checked before.
    pub(crate) fn quants(quants: QuantizedStripes<'a>, rows: usize, columns: usize) -> Self {
        let stripes = stripes(rows);
        assert_eq!(quants.quants.len(), stripes * quants.bits.stripe_bytes(columns), "levels");
        assert!(quants.group_runs > 0, "a group has columns");
        let groups = columns.div_ceil(RUN).div_ceil(quants.group_runs);
        assert_eq!(quants.scales.len(), stripes * groups * STRIPE, "one scale a row and group");
        let zeros = quants.zeros.is_none_or(|zeros| zeros.len() == quants.scales.len());
        assert!(zeros, "one zero a row and group");
        assert!(quants.zeros.is_none() || quants.bits == Bits::Four, "only nibbles have zeros");
        Self { rows, columns, numbers: Numbers::Quants(quants) }
    }

    /// Quants in a form of blocks.  Panics where a part is too short: shapes are checked before.
    pub(crate) fn blocks(blocks: Blocks<'a>, rows: usize, columns: usize) -> Self {
        blocks.check(rows, columns);
        Self { rows, columns, numbers: Numbers::Blocks(blocks) }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    fn is_quantized(&self) -> bool {
        matches!(self.numbers, Numbers::Quants(_) | Numbers::Blocks(_))
    }

    /// What becomes of activations that meet these weights.
    pub(crate) fn rounding(&self, arithmetic: Arithmetic) -> Rounding {
        match (self.numbers, arithmetic) {
            (Numbers::Floats(_), _) | (_, Arithmetic::Floats) => Rounding::None,
            (_, Arithmetic::Integers) => Rounding::Runs,
        }
    }

    /// Row `row` in f32, into `out` `[columns]`.
    pub(crate) fn widen_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns, "a row of {} numbers", self.columns);
        let (stripe, lane) = (row / STRIPE, row % STRIPE);
        match self.stripe(stripe) {
            Stripe::Floats(floats) => {
                let mut column = [0.0; STRIPE];
                for (index, out) in out.iter_mut().enumerate() {
                    floats.widen(index * STRIPE, &mut column);
                    *out = column[lane];
                }
            }
            Stripe::Quants(quants) => quants.widen_lane(lane, out),
            Stripe::Blocks(blocks) => blocks.widen_lane(lane, out),
        }
    }

    /// Stripe `index`.
    fn stripe(&self, index: usize) -> Stripe<'a> {
        match self.numbers {
            Numbers::Floats(floats) => {
                let len = self.columns * STRIPE;
                Stripe::Floats(floats.part(index * len, len))
            }
            Numbers::Blocks(blocks) => {
                Stripe::Blocks(blocks.stripe(index, self.rows, self.columns))
            }
            Numbers::Quants(quants) => {
                let runs = self.columns.div_ceil(RUN);
                let (bytes, scales) = (
                    quants.bits.stripe_bytes(self.columns),
                    runs.div_ceil(quants.group_runs) * STRIPE,
                );
                Stripe::Quants(QuantStripe {
                    bits: quants.bits,
                    quants: &quants.quants[index * bytes..][..bytes],
                    runs,
                    group_runs: quants.group_runs,
                    scales: quants.scales.part(index * scales, scales),
                    zeros: quants.zeros.map(|zeros| &zeros[index * scales..][..scales]),
                })
            }
        }
    }
}

/// Sixteen rows.
#[derive(Clone, Copy)]
enum Stripe<'a> {
    /// `[columns, 16]`.
    Floats(Elements<'a>),
    Quants(QuantStripe<'a>),
    Blocks(BlockStripe<'a>),
}

impl Stripe<'_> {
    /// All sixteen rows of quants in f32, `[columns, 16]`.
    fn widen(&self, out: &mut [f32]) {
        match self {
            Self::Floats(_) => unreachable!("floats are wide"),
            Self::Quants(quants) => quants.widen(out),
            Self::Blocks(blocks) => blocks.widen(out),
        }
    }
}

/// Sixteen rows of quants.
#[derive(Clone, Copy)]
struct QuantStripe<'a> {
    bits: Bits,
    quants: &'a [u8],
    runs: usize,
    group_runs: usize,
    /// `[groups, 16]`.
    scales: Elements<'a>,
    /// `[groups, 16]`.
    zeros: Option<&'a [u8]>,
}

impl QuantStripe<'_> {
    /// Panics unless every part is as long as kernels read.
    fn check(&self) {
        let groups = self.runs.div_ceil(self.group_runs);
        assert!(self.runs > 0, "a weight has columns");
        assert_eq!(self.quants.len(), self.bits.stripe_bytes(self.runs * RUN), "levels");
        assert_eq!(self.scales.len(), groups * STRIPE, "scales");
        assert!(self.zeros.is_none_or(|zeros| zeros.len() == groups * STRIPE), "zeros");
    }

    /// Whether rows have scales for parts of them, to be multiplied run by run.
    fn is_grouped(&self) -> bool {
        self.runs > self.group_runs
    }

    /// The quant of `lane` in `column`.
    fn quant(&self, lane: usize, column: usize) -> u8 {
        match self.bits {
            Bits::Eight => self.quants[(column / 4 * STRIPE + lane) * 4 + column % 4],
            Bits::Four => {
                let byte = self.quants[(column / 8 * STRIPE + lane) * 4 + column % 4];
                if column % 8 < 4 { byte & 15 } else { byte >> 4 }
            }
        }
    }

    /// The quant of `lane` that means 0 in `group`.
    fn zero(&self, lane: usize, group: usize) -> u8 {
        match self.bits {
            Bits::Eight => MIDDLE_BYTE,
            Bits::Four => self.zeros.map_or(MIDDLE_NIBBLE, |zeros| zeros[group * STRIPE + lane]),
        }
    }

    /// All sixteen rows in f32, `[columns, 16]`.
    fn widen(&self, out: &mut [f32]) {
        let mut scales = [0.0; STRIPE];
        for (group, out) in out.chunks_mut(self.group_runs * RUN * STRIPE).enumerate() {
            self.scales.widen(group * STRIPE, &mut scales);
            let first = group * self.group_runs * RUN;
            for (column, out) in (first..).zip(out.chunks_exact_mut(STRIPE)) {
                for (lane, (out, scale)) in out.iter_mut().zip(scales).enumerate() {
                    let quant = f32::from(self.quant(lane, column));
                    *out = (quant - f32::from(self.zero(lane, group))) * scale;
                }
            }
        }
    }

    fn widen_lane(&self, lane: usize, out: &mut [f32]) {
        let mut scales = [0.0; STRIPE];
        for (group, out) in out.chunks_mut(self.group_runs * RUN).enumerate() {
            self.scales.widen(group * STRIPE, &mut scales);
            let (scale, zero) = (scales[lane], self.zero(lane, group));
            for (column, out) in (group * self.group_runs * RUN..).zip(out) {
                let quant = self.quant(lane, column);
                *out = (f32::from(quant) - f32::from(zero)) * scale;
            }
        }
    }
}
