//! Presents packed weights in the canonical form, a stripe of rows at a time.
//!
//! A [`Stored`] becomes the canonical tensors of a weight, each with a [`Recipe`] that makes any of
//! its rows from stored bytes.  A stripe is read, its quants are moved to their places, and only
//! the bytes asked for are kept, so memory does not grow with the tensor.
//! Knows nothing of formats beyond what `Stored` says.

use std::ops::Range;
use std::sync::Arc;

use crate::dtype::Dtype;
use crate::safetensors::{SafetensorsError, Shards, Tensor};

use super::gguf::blocks::Blocks;
use super::stored::Stored;
use super::words::{Runs, WordLayout};
use super::zeros::{Meaning, StoredZeros};

/// Stored bytes held at a time.  A turned tensor is read in one piece per input channel, so a
/// larger stripe means fewer, longer pieces.
const STRIPE_BYTES: usize = 2 << 20;

/// Rows are taken in multiples of this, which is the most that share a word.
const ROWS_TOGETHER: usize = 8;

/// The quant of a symmetric 4-bit weight that means 0.
pub(crate) const MIDDLE: u8 = 8;

/// A canonical tensor of a weight.
#[derive(Debug)]
pub(crate) struct Made {
    /// What follows the weight's name: nothing, `_scale`, `_zero` or `_order`.
    pub(crate) suffix: &'static str,
    /// The element type.
    pub(crate) dtype: Dtype,
    /// The shape.
    pub(crate) shape: Vec<usize>,
    /// How rows are made.
    pub(crate) recipe: Recipe,
}

/// How rows of a canonical tensor are made.
#[derive(Debug)]
pub(crate) enum Recipe {
    /// Quants moved to their columns: nibbles of two columns a byte, or bytes less 128.
    Quants {
        /// The stored words.
        words: (Tensor, WordLayout),
        /// Quants of a row.
        columns: usize,
        /// The column each stored column moves to, if they move.
        places: Option<Arc<[u32]>>,
    },
    /// Zeros, a byte each.
    Zeros {
        /// The stored words.
        words: (Tensor, WordLayout),
        /// Groups of a row.
        groups: usize,
        /// Added to each stored zero.
        shift: u8,
    },
    /// Elements stored as they are.
    Plain(Tensor),
    /// Elements stored `[columns, rows]`.
    Turned(Tensor),
    /// The input channel of each column, I32.
    Order(Arc<[u32]>),
    /// Parts of GGUF's blocks.
    Blocks(Blocks),
}

/// Takes note of the zeros of a weight.
///
/// # Errors
/// The reader's.
pub(crate) fn note_zeros(
    files: &Shards,
    stored: &Stored,
    seen: &mut StoredZeros,
) -> Result<(), SafetensorsError> {
    let Some((tensor, grid)) = &stored.zeros else { return Ok(()) };
    let shape = [stored.shape[0], stored.groups];
    for rows in stripes(0..shape[0], shape[1]) {
        let bytes = read_runs(files, tensor, grid.runs(&rows, shape))?;
        grid.unpack(&bytes, &rows, shape[1], |_, _, zero| seen.note(zero));
    }
    Ok(())
}

/// The canonical tensors of a weight, whose zeros have `meaning`.
pub(crate) fn tensors(stored: Stored, meaning: &Meaning) -> Vec<Made> {
    let Stored { shape: [rows, columns], groups, quants, scales, zeros, order } = stored;
    let places = order.as_deref().map(inverse);
    let (dtype, row_bytes) = match quants.1.bits {
        4 => (Dtype::U8, columns.div_ceil(2)),
        _ => (Dtype::I8, columns),
    };
    let recipe = Recipe::Quants { words: quants, columns, places };
    let mut all = vec![Made { suffix: "", dtype, shape: vec![rows, row_bytes], recipe }];
    let shape = if groups == 1 { vec![rows] } else { vec![rows, groups] };
    let (scales, is_turned) = scales;
    let dtype = scales.dtype;
    let recipe = if is_turned { Recipe::Turned(scales) } else { Recipe::Plain(scales) };
    all.push(Made { suffix: "_scale", dtype, shape, recipe });
    if let Some(words) = zeros.filter(|_| !meaning.is_symmetric) {
        let recipe = Recipe::Zeros { words, groups, shift: meaning.shift };
        all.push(Made { suffix: "_zero", dtype: Dtype::U8, shape: vec![rows, groups], recipe });
    }
    if let Some(order) = order {
        let recipe = Recipe::Order(order.into());
        all.push(Made { suffix: "_order", dtype: Dtype::I32, shape: vec![columns], recipe });
    }
    all
}

/// The place of each channel in `order`.
pub(crate) fn inverse(order: &[u32]) -> Arc<[u32]> {
    let mut places = vec![0; order.len()];
    for (place, &channel) in order.iter().enumerate() {
        places[channel as usize] = place as u32;
    }
    places.into()
}

impl Recipe {
    /// Fills `out` with the bytes from `at` on of a tensor whose rows take `row_bytes`.
    ///
    /// The range must lie in the tensor: the caller knows its shape.
    ///
    /// # Errors
    /// The reader's.
    pub(crate) fn read(
        &self,
        files: &Shards,
        row_bytes: usize,
        at: u64,
        out: &mut [u8],
    ) -> Result<(), SafetensorsError> {
        let start = at as usize;
        let end = start + out.len();
        let rows = start / row_bytes..end.div_ceil(row_bytes);
        for stripe in stripes(rows, row_bytes) {
            let bytes = self.stripe(files, &stripe, row_bytes)?;
            let first = stripe.start * row_bytes;
            let (from, to) = (start.max(first), end.min(first + bytes.len()));
            out[from - start..to - start].copy_from_slice(&bytes[from - first..to - first]);
        }
        Ok(())
    }

    /// The canonical bytes of rows `rows`.
    fn stripe(
        &self,
        files: &Shards,
        rows: &Range<usize>,
        row_bytes: usize,
    ) -> Result<Vec<u8>, SafetensorsError> {
        let (first, mut out) = (rows.start * row_bytes, vec![0; rows.len() * row_bytes]);
        match self {
            Self::Plain(tensor) => files.read_at(tensor, first as u64, &mut out)?,
            Self::Order(order) => {
                for (out, channel) in out.as_chunks_mut().0.iter_mut().zip(&order[rows.clone()]) {
                    *out = channel.to_le_bytes();
                }
            }
            Self::Quants { words: (tensor, grid), columns, places } => {
                let shape = [row_count(tensor, *grid), *columns];
                let bytes = read_runs(files, tensor, grid.runs(rows, shape))?;
                let place = |column: usize| {
                    places.as_ref().map_or(column, |places| places[column] as usize)
                };
                let lines = &mut out;
                if grid.bits == 4 {
                    grid.unpack(&bytes, rows, *columns, |row, column, quant| {
                        let place = place(column);
                        lines[row * row_bytes + place / 2] |= quant << (4 * (place % 2));
                    });
                } else {
                    grid.unpack(&bytes, rows, *columns, |row, column, quant| {
                        // An offset of 128 is the sign bit of two's complement, turned.
                        lines[row * row_bytes + place(column)] = quant ^ 0x80;
                    });
                }
            }
            Self::Zeros { words: (tensor, grid), groups, shift } => {
                let shape = [row_count(tensor, *grid), *groups];
                let bytes = read_runs(files, tensor, grid.runs(rows, shape))?;
                grid.unpack(&bytes, rows, *groups, |row, group, zero| {
                    out[row * row_bytes + group] = zero.wrapping_add(*shift) & 15;
                });
            }
            Self::Turned(tensor) => turn(files, tensor, rows, row_bytes, &mut out)?,
            Self::Blocks(blocks) => blocks.read_rows(files, rows, row_bytes, &mut out)?,
        }
        Ok(out)
    }
}

/// Rows that a tensor of words has room for; padding counts, and no caller asks for it.
fn row_count(tensor: &Tensor, grid: WordLayout) -> usize {
    let words = if grid.turned { tensor.shape[1] } else { tensor.shape[0] };
    match grid.along {
        super::words::Along::Rows => words * grid.per_word(),
        super::words::Along::Columns => words,
    }
}

/// Reads `rows` of a tensor stored `[columns, rows]`.
fn turn(
    files: &Shards,
    tensor: &Tensor,
    rows: &Range<usize>,
    row_bytes: usize,
    out: &mut [u8],
) -> Result<(), SafetensorsError> {
    let size = tensor.dtype.size_bytes();
    let runs = Runs::of_columns(rows.clone(), [tensor.shape[0], tensor.shape[1]], size);
    let bytes = read_runs(files, tensor, runs)?;
    for (column, line) in bytes.chunks_exact(runs.bytes).enumerate() {
        for (row, element) in line.chunks_exact(size).enumerate() {
            out[row * row_bytes + column * size..][..size].copy_from_slice(element);
        }
    }
    Ok(())
}

fn read_runs(files: &Shards, tensor: &Tensor, runs: Runs) -> Result<Vec<u8>, SafetensorsError> {
    let mut bytes = vec![0; runs.total()];
    let mut rest = bytes.as_mut_slice();
    for (at, len) in runs.stretches() {
        let (here, later) = rest.split_at_mut(len);
        files.read_at(tensor, at, here)?;
        rest = later;
    }
    Ok(bytes)
}

/// `rows` in runs of at most [`STRIPE_BYTES`] of `row_bytes` each, cut at multiples of
/// [`ROWS_TOGETHER`].
fn stripes(rows: Range<usize>, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (STRIPE_BYTES / row_bytes.max(1) / ROWS_TOGETHER).max(1) * ROWS_TOGETHER;
    let first = rows.start / ROWS_TOGETHER * ROWS_TOGETHER;
    (first..rows.end)
        .step_by(step)
        .map(move |start| start.max(rows.start)..rows.end.min(start + step))
        .filter(|stripe| !stripe.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_the_rows_and_are_cut_where_words_end() {
        let check = |rows: Range<usize>, row_bytes: usize, expect: &[Range<usize>]| {
            assert_eq!(stripes(rows, row_bytes).collect::<Vec<_>>(), expect);
        };
        check(0..20, 1 << 18, &[0..8, 8..16, 16..20]);
        check(3..20, 1 << 18, &[3..8, 8..16, 16..20]);
        check(9..11, 1 << 30, std::slice::from_ref(&(9..11)));
        check(0..100, 0, std::slice::from_ref(&(0..100)));
        check(5..5, 64, &[]);
    }

    #[test]
    fn an_order_and_its_inverse_undo_each_other() {
        let order = [3, 0, 2, 1];
        let places = inverse(&order);
        assert_eq!(*places, [1, 3, 2, 0]);
        assert!((0..4).all(|channel| order[places[channel] as usize] == channel as u32));
    }
}
