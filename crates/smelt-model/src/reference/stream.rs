//! Multiplies activations by weights that stream from a checkpoint, one block of rows at a time.
//!
//! While a block is multiplied, the next one is read into the buffer the first was packed from.
//! Knows nothing of layers.

use std::ops::Range;
use std::thread;

use super::matmul::{Panels, ROWS, Target, View};
use super::peaks::Peaks;
use super::pointwise::layer_norm;
use super::{Effort, ReferenceError, threads};
use crate::checkpoint::{Checkpoint, CheckpointError};

/// A checkpoint being read, with the buffers its blocks pass through.
pub(super) struct Stream<'a> {
    pub(super) ckpt: &'a Checkpoint,
    pub(super) effort: Effort,
    /// The largest activations so far, where someone asked for them.
    pub(super) peaks: Option<Peaks>,
    rows: Vec<f32>,
    panels: Panels,
}

impl<'a> Stream<'a> {
    pub(super) fn new(ckpt: &'a Checkpoint, effort: Effort) -> Self {
        Self { ckpt, effort, peaks: None, rows: Vec::new(), panels: Panels::default() }
    }

    /// Looks at the activations `values` beside the tensor `name`.
    pub(super) fn note(&mut self, name: &str, values: &[f32]) {
        if let Some(peaks) = &mut self.peaks {
            peaks.note(name, values);
        }
    }

    /// A whole small tensor: a norm, a bias.
    pub(super) fn vector(&self, name: &str) -> Result<Vec<f32>, ReferenceError> {
        Ok(self.ckpt.read_f32(name)?)
    }

    /// `x · weightᵀ + bias` of the layer `name`: `[rows, in]` to `[rows, out]`.
    pub(super) fn linear(&mut self, name: &str, x: &[f32]) -> Result<Vec<f32>, ReferenceError> {
        let bias = self.vector(&format!("{name}.bias"))?;
        let rows = x.len() / self.depth(&format!("{name}.weight"))?;
        let out = bias.repeat(rows);
        self.add_product(&format!("{name}.weight"), x, out)
    }

    /// `x · weightᵀ` of the tensor `weight`: `[rows, in]` to `[rows, out]`.
    pub(super) fn product(&mut self, weight: &str, x: &[f32]) -> Result<Vec<f32>, ReferenceError> {
        let rows = x.len() / self.depth(weight)?;
        let out = vec![0.0; rows * self.ckpt.shape(weight)?[0]];
        self.add_product(weight, x, out)
    }

    /// The rows `x` normed by the LayerNorm `name`.
    pub(super) fn layer_normed(
        &self,
        name: &str,
        eps: f32,
        x: &[f32],
    ) -> Result<Vec<f32>, ReferenceError> {
        let weight = self.vector(&format!("{name}.weight"))?;
        let bias = self.vector(&format!("{name}.bias"))?;
        let mut normed = x.to_vec();
        layer_norm(&mut normed, &weight, &bias, eps);
        Ok(normed)
    }

    /// Length of one row of a tensor, dimensions after the first flattened.
    fn depth(&self, name: &str) -> Result<usize, CheckpointError> {
        Ok(self.ckpt.shape(name)?[1..].iter().product())
    }

    fn add_product(
        &mut self,
        weight: &str,
        x: &[f32],
        mut out: Vec<f32>,
    ) -> Result<Vec<f32>, ReferenceError> {
        let (columns, depth) = (self.ckpt.shape(weight)?[0], self.depth(weight)?);
        self.note(weight, x);
        let blocks = blocks(columns, depth, self.effort.block_bytes);
        let mut blocks = blocks.peekable();
        if let Some(first) = blocks.peek() {
            self.ckpt.read_rows_f32(weight, first.clone(), &mut self.rows)?;
        }
        while let Some(block) = blocks.next() {
            let rows = View::rows(&self.rows, depth);
            self.panels.pack(rows, block.len(), depth, self.effort.threads);
            let target = Target { values: &mut out, stride: columns, column: block.start };
            self.multiply_and_read(View::rows(x, depth), target, weight, blocks.peek().cloned())?;
        }
        self.note(weight, &out);
        Ok(out)
    }

    /// Adds the packed block's product to `target` while rows `next` are read.
    fn multiply_and_read(
        &mut self,
        x: View<'_>,
        target: Target<'_>,
        weight: &str,
        next: Option<Range<usize>>,
    ) -> Result<(), ReferenceError> {
        let (ckpt, rows, panels) = (self.ckpt, &mut self.rows, &self.panels);
        let Target { values, stride, column } = target;
        let read = thread::scope(|scope| {
            let reader = next.map(|next| scope.spawn(|| ckpt.read_rows_f32(weight, next, rows)));
            threads::for_rows(self.effort.threads, values, stride, ROWS, |first, values| {
                panels.add_product(x.skip_rows(first), &mut Target { values, stride, column });
            });
            reader.map_or(Ok(()), |reader| reader.join().expect("reading rows does not panic"))
        });
        Ok(read?)
    }
}

/// Runs of rows of at most `block_bytes` as f32, and at least one row.
fn blocks(rows: usize, row_len: usize, block_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (block_bytes / (row_len * size_of::<f32>())).max(1);
    (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: usize, row_len: usize, block_bytes: usize, expect: &[Range<usize>]) {
        assert_eq!(blocks(rows, row_len, block_bytes).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn blocks_cover_all_rows_within_the_limit() {
        check(7, 4, 48, &[0..3, 3..6, 6..7]);
        check(6, 4, 48, &[0..3, 3..6]);
        check(2, 4, 1 << 20, std::slice::from_ref(&(0..2)));
    }

    #[test]
    fn a_row_longer_than_the_limit_is_a_block() {
        check(2, 1000, 48, &[0..1, 1..2]);
    }
}
