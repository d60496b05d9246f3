//! Multiplies out rows of packed weights.
//!
//! Quants and what belongs to their groups are read some rows at a time, scales and minima that are
//! products are made, and rows of f32 come out.  Knows nothing of formats.

use std::ops::Range;

use super::weight::{Groups, Packed};
use super::{
    Checkpoint, CheckpointError, FACTOR_SUFFIX, HIGH_SUFFIX, MIN_FACTOR_SUFFIX, MIN_SUFFIX,
    SCALE_SUFFIX, Weight, ZERO_SUFFIX,
};

/// Bytes of packed quants multiplied out at a time: rows of turned formats are cheap only together.
const QUANT_BYTES: usize = 1 << 20;

/// Some rows of a packed weight.
#[derive(Default)]
struct Rows {
    quants: Vec<u8>,
    high: Vec<u8>,
    zeros: Vec<u8>,
    factors: Vec<u8>,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    /// `[rows, groups]`.
    mins: Vec<f32>,
}

/// What stands beside the quants of a weight.
struct Beside<'a> {
    scales: &'a Weight,
    factors: Option<&'a Weight>,
    mins: Option<&'a Weight>,
    min_factors: Option<&'a Weight>,
    high: Option<&'a Weight>,
    zeros: Option<&'a Weight>,
}

impl Checkpoint {
    /// Appends rows of a packed weight, multiplied out, reading some rows of quants at a time;
    /// `stored` is a buffer for stored bytes.
    pub(super) fn read_packed(
        &self,
        weight: &Weight,
        rows: Range<usize>,
        columns: usize,
        stored: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<(), CheckpointError> {
        let Some(packed) = &weight.packed else { return Ok(()) };
        let beside = self.beside(weight, packed)?;
        let row_bytes = weight.row_bytes();
        let step = (QUANT_BYTES / row_bytes.max(1)).max(1);
        let mut some = Rows::default();
        for first in rows.clone().step_by(step) {
            let here = first..rows.end.min(first + step);
            self.read_whole_rows(weight, &here, &mut some.quants)?;
            self.read_groups(&beside, &here, &mut some, stored)?;
            for row in 0..here.len() {
                let quants = &some.quants[row * row_bytes..(row + 1) * row_bytes];
                packed.widen_row(quants, columns, &some.of_row(row, here.len()), out);
            }
        }
        Ok(())
    }

    fn beside(&self, weight: &Weight, packed: &Packed) -> Result<Beside<'_>, CheckpointError> {
        let find = |suffix: &str| self.tensor(&format!("{}{suffix}", weight.name));
        let find_if = |is_there: bool, suffix| is_there.then(|| find(suffix)).transpose();
        let form = packed.form;
        let (has_factors, has_mins) =
            form.map_or((false, false), |f| (f.has_factors(), f.has_mins));
        let has_high = form.is_some_and(|form| form.high_bits() > 0);
        Ok(Beside {
            scales: find(SCALE_SUFFIX)?,
            factors: find_if(has_factors, FACTOR_SUFFIX)?,
            mins: find_if(has_mins, MIN_SUFFIX)?,
            min_factors: find_if(has_mins && has_factors, MIN_FACTOR_SUFFIX)?,
            high: find_if(has_high, HIGH_SUFFIX)?,
            zeros: find_if(packed.has_zeros, ZERO_SUFFIX)?,
        })
    }

    /// Puts into `some` what stands beside the quants of `rows`.
    fn read_groups(
        &self,
        beside: &Beside<'_>,
        rows: &Range<usize>,
        some: &mut Rows,
        stored: &mut Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let pairs = [
            (Some(beside.scales), beside.factors, &mut some.scales),
            (beside.mins, beside.min_factors, &mut some.mins),
        ];
        for (halves, factors, out) in pairs {
            out.clear();
            let Some(halves) = halves else { continue };
            let width = halves.shape.get(1).copied().unwrap_or(1);
            self.read_elements(halves, rows.start * width..rows.end * width, stored, out)?;
            if let Some(factors) = factors {
                self.read_whole_rows(factors, rows, &mut some.factors)?;
                *out = products(out, &some.factors);
            }
        }
        if let Some(high) = beside.high {
            self.read_whole_rows(high, rows, &mut some.high)?;
        }
        if let Some(zeros) = beside.zeros {
            self.read_whole_rows(zeros, rows, &mut some.zeros)?;
        }
        Ok(())
    }

    fn read_whole_rows(
        &self,
        weight: &Weight,
        rows: &Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let row_bytes = weight.row_bytes();
        out.resize(rows.len() * row_bytes, 0);
        self.read_at(weight, (rows.start * row_bytes) as u64, out)
    }
}

/// Each of `factors`, signed, times the one of `halves` that it shares with its neighbours.
fn products(halves: &[f32], factors: &[u8]) -> Vec<f32> {
    let share = (factors.len() / halves.len().max(1)).max(1);
    let product = |(half, factor): (&f32, &u8)| half * f32::from(factor.cast_signed());
    let spread = halves.iter().flat_map(|half| std::iter::repeat_n(half, share));
    spread.zip(factors).map(product).collect()
}

impl Rows {
    /// What belongs to row `row` of `rows`.
    fn of_row(&self, row: usize, rows: usize) -> Groups<'_> {
        Groups {
            scales: part(&self.scales, row, rows),
            zeros: Some(part(&self.zeros, row, rows)).filter(|zeros| !zeros.is_empty()),
            mins: Some(part(&self.mins, row, rows)).filter(|mins| !mins.is_empty()),
            high: part(&self.high, row, rows),
        }
    }
}

/// Part `index` of `count` equal ones.
fn part<T>(all: &[T], index: usize, count: usize) -> &[T] {
    let len = all.len() / count;
    &all[index * len..(index + 1) * len]
}
