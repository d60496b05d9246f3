//! Writes one tensor of the result: its own bytes, or integers with what belongs to them.
//!
//! Row blocks are read and rounded by as many threads as there are, and written in order.  Scales,
//! zero points and sums are all that is kept until the end of a tensor.

use super::QuantizeError;
use super::figures::{RowSums, Sums};
use super::gptq::Feedback;
use super::group::{Rounded, Rounder};
use super::targets::Target;
use crate::checkpoint::Checkpoint;
use crate::in_order::in_order;
use crate::safetensors::Writer;

/// The f32 bytes of a block of rows: small enough for a core's cache.
const BLOCK_BYTES: usize = 256 << 10;

/// The same where each row meets every activation: blocks of rows share the packing of those.
const FEEDBACK_BLOCK_BYTES: usize = 2 << 20;

/// The same of what all threads have in hand at once, each with some five times as much for its work: a board of twelve
/// cores holds no more than one of four.
const FEEDBACK_BYTES: usize = 8 << 20;

/// Blocks of rows that a thread makes before it writes: the system takes few large writes at less
/// cost than many small ones.
const TURN_BLOCKS: usize = 4;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// How a weight is changed before it is rounded: w[r, c] * columns[c] / rows[r].
#[derive(Default)]
pub(super) struct Change {
    pub(super) columns: Option<Vec<f32>>,
    pub(super) rows: Option<Vec<f32>>,
}

impl Change {
    fn is_none(&self) -> bool {
        self.columns.is_none() && self.rows.is_none()
    }

    fn apply(&self, row: usize, values: &mut [f32]) {
        if let Some(columns) = &self.columns {
            values.iter_mut().zip(columns).for_each(|(value, scale)| *value *= scale);
        }
        if let Some(rows) = &self.rows {
            values.iter_mut().for_each(|value| *value /= rows[row]);
        }
    }

    fn undo(&self, row: usize, values: &mut [f32]) {
        if let Some(columns) = &self.columns {
            values.iter_mut().zip(columns).for_each(|(value, scale)| *value /= scale);
        }
        if let Some(rows) = &self.rows {
            values.iter_mut().for_each(|value| *value *= rows[row]);
        }
    }
}

/// How integers are chosen for one tensor.
pub(super) enum Choice<'a> {
    /// Each group for itself, after a change, the inputs mattering as given.
    Alone { change: Change, importance: Option<Vec<f32>> },
    /// Each input making up for those before it, in an order.
    Feedback { feedback: &'a Feedback, order: Option<&'a [usize]> },
}

/// Copies the bytes of `target` as they are; floats must be finite.
pub(super) fn copy(
    ckpt: &Checkpoint,
    target: &Target,
    writer: &mut Writer,
) -> Result<(), QuantizeError> {
    let size = target.shape.iter().product::<usize>() * target.dtype.size_bytes();
    let mut block = vec![0; COPY_BYTES.min(size)];
    let mut at = 0;
    while at < size {
        let part = block.len().min(size - at);
        let bytes = &mut block[..part];
        ckpt.read_finite(&target.source, at as u64, bytes)?;
        writer.write(bytes)?;
        at += part;
    }
    Ok(())
}

/// What one thread works with.
#[derive(Default)]
struct Scratch {
    stored: Vec<u8>,
    values: Vec<f32>,
    changed: Vec<f32>,
    rounded: Rounded,
    sums: Sums,
}

/// How many rows of `width` values in f32 so many bytes hold, at least one.
fn rows_in(bytes: usize, width: usize) -> usize {
    (bytes / size_of::<f32>() / width).max(1)
}

/// Writes the integers of `target`, then its scales, zero points and order; says what it cost.
pub(super) fn round(
    ckpt: &Checkpoint,
    target: &Target,
    (rounder, choice): (Rounder, &Choice<'_>),
    writer: &mut Writer,
    threads: usize,
) -> Result<Sums, QuantizeError> {
    let (rows, width) = (target.shape[0], target.shape[1]);
    let block_bytes = match choice {
        Choice::Alone { .. } => BLOCK_BYTES,
        Choice::Feedback { .. } => FEEDBACK_BLOCK_BYTES,
    };
    let step = rows_in(block_bytes, width);
    let part = step.min(rows_in(FEEDBACK_BYTES / threads, width));
    let turn = step * TURN_BLOCKS;
    let (mut scales, mut zeros, mut sums) = (Vec::new(), Vec::new(), Sums::default());
    let make = |scratch: &mut Scratch, index: usize| {
        scratch.rounded.clear();
        scratch.sums = Sums::default();
        let end = rows.min((index + 1) * turn);
        for first in (index * turn..end).step_by(step) {
            let block = first..end.min(first + step);
            // Of each block in the order of its rows, so that sums depend on no number of threads.
            let mut sums = Sums::default();
            for first in block.clone().step_by(part) {
                let Scratch { stored, values, .. } = scratch;
                let rows = first..block.end.min(first + part);
                ckpt.read_rows_through(&target.source, rows, stored, values)?;
                let bad = |row| {
                    let (tensor, row) = (target.source.clone(), first + row);
                    QuantizeError::NotFinite { tensor, row }
                };
                scratch.round(first, width, (rounder, choice), &mut sums).map_err(bad)?;
            }
            scratch.sums.add(sums);
        }
        Ok(())
    };
    let take = |scratch: &mut Scratch| {
        scales.extend_from_slice(&scratch.rounded.scales);
        zeros.extend_from_slice(&scratch.rounded.zeros);
        sums.add(scratch.sums);
        Ok(writer.write(&scratch.rounded.quants)?)
    };
    in_order::<Scratch, QuantizeError>(rows.div_ceil(turn), threads, make, take)?;
    writer.write(&scales)?;
    writer.write(&zeros)?;
    if let (true, Choice::Feedback { order: Some(order), .. }) = (target.is_ordered, choice) {
        let order = order.iter().flat_map(|input| (*input as i32).to_le_bytes());
        writer.write(&order.collect::<Vec<u8>>())?;
    }
    Ok(sums)
}

impl Scratch {
    /// Rounds the rows in `values`, the first of which is `first`, into `rounded`; adds to `sums` what each costs, or says
    /// which of them cannot be rounded.
    fn round(
        &mut self,
        first: usize,
        width: usize,
        (rounder, choice): (Rounder, &Choice<'_>),
        sums: &mut Sums,
    ) -> Result<(), usize> {
        match choice {
            Choice::Feedback { feedback, order } => {
                for row in self.values.chunks_mut(width) {
                    let Some(order) = order else { break };
                    self.changed.clear();
                    self.changed.extend(order.iter().map(|input| row[*input]));
                    row.copy_from_slice(&self.changed);
                }
                return feedback.round(&self.values, rounder, &mut self.rounded, sums);
            }
            Choice::Alone { change, importance } if change.is_none() => {
                let importance = importance.as_deref();
                sums.add(rounder.rows(&self.values, width, importance, &mut self.rounded)?);
            }
            Choice::Alone { change, importance } => {
                let importance = importance.as_deref();
                sums.add(self.round_changed(first, width, rounder, (change, importance))?);
            }
        }
        Ok(())
    }

    /// The same after a change; the cost is that of the weights before it.
    fn round_changed(
        &mut self,
        first: usize,
        width: usize,
        rounder: Rounder,
        (change, importance): (&Change, Option<&[f32]>),
    ) -> Result<Sums, usize> {
        let mut sums = Sums::default();
        let (mut one, mut restored) = (Rounded::default(), vec![0.0; width]);
        for (n, row) in self.values.chunks(width).enumerate() {
            self.changed.clear();
            self.changed.extend_from_slice(row);
            change.apply(first + n, &mut self.changed);
            one.clear();
            rounder.rows(&self.changed, width, importance, &mut one).map_err(|_| n)?;
            self.rounded.append(&one);
            one.restore(rounder.grid, &mut restored);
            change.undo(first + n, &mut restored);
            let mut cost = RowSums::default();
            cost.add_row(row, &restored);
            sums.add(cost.sums());
        }
        Ok(sums)
    }
}
