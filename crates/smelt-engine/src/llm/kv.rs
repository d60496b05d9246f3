//! Keeps the keys and values of the tokens a slot has seen, in blocks that are added when needed.
//!
//! Rows of keys and values in, per-head matrices out.  Knows nothing of how they are computed.

use std::ops::Range;

use crate::kernels::matrix::{Elements, Matrix};

/// Positions in one block.
pub(super) const BLOCK_POSITIONS: usize = 64;

/// The sizes that every slot of an engine shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvShape {
    pub(super) layers: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Keys or values.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Keys,
    Values,
}

impl KvShape {
    fn head_len(self) -> usize {
        BLOCK_POSITIONS * self.head_dim
    }

    fn block_len(self) -> usize {
        self.layers * 2 * self.kv_heads * self.head_len()
    }

    /// Where a head begins in a block: layer, keys before values, head, position.
    fn head_start(self, layer: usize, kind: Kind, head: usize) -> usize {
        let kind = match kind {
            Kind::Keys => 0,
            Kind::Values => 1,
        };
        ((layer * 2 + kind) * self.kv_heads + head) * self.head_len()
    }
}

/// What one sequence has left behind.
#[derive(Debug)]
pub(super) struct Slot {
    shape: KvShape,
    len: usize,
    blocks: Vec<Box<[f32]>>,
}

impl Slot {
    pub(super) fn new(shape: KvShape) -> Self {
        Self { shape, len: 0, blocks: Vec::new() }
    }

    /// Tokens held.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets everything and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.shape);
    }

    /// Forgets what is behind the first `len` tokens; their memory is kept for the next.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes room for `count` more tokens.
    pub(super) fn reserve(&mut self, count: usize) {
        let blocks = (self.len + count).div_ceil(BLOCK_POSITIONS);
        let block_len = self.shape.block_len();
        self.blocks
            .resize_with(blocks.max(self.blocks.len()), || vec![0.0; block_len].into_boxed_slice());
    }

    /// Counts `count` tokens, whose keys and values were stored for every layer.
    pub(super) fn advance(&mut self, count: usize) {
        self.len += count;
        debug_assert!(self.len <= self.blocks.len() * BLOCK_POSITIONS);
    }

    /// Stores one token's keys or values `[kv_heads, head_dim]` of a layer.
    pub(super) fn store(&mut self, layer: usize, kind: Kind, position: usize, row: &[f32]) {
        let (block, within) = (position / BLOCK_POSITIONS, position % BLOCK_POSITIONS);
        let dim = self.shape.head_dim;
        for (head, numbers) in row.chunks_exact(dim).enumerate() {
            let start = self.shape.head_start(layer, kind, head) + within * dim;
            self.blocks[block][start..start + dim].copy_from_slice(numbers);
        }
    }

    /// The matrices `[positions, head_dim]` of one head for positions `0..end`, block by block.
    pub(super) fn head(
        &self,
        layer: usize,
        kind: Kind,
        head: usize,
        end: usize,
    ) -> impl Iterator<Item = (Range<usize>, Matrix<'_>)> {
        let (start, dim) = (self.shape.head_start(layer, kind, head), self.shape.head_dim);
        let blocks = self.blocks.iter().take(end.div_ceil(BLOCK_POSITIONS));
        blocks.enumerate().map(move |(index, block)| {
            let first = index * BLOCK_POSITIONS;
            let count = BLOCK_POSITIONS.min(end - first);
            let numbers = &block[start..start + count * dim];
            (first..first + count, Matrix::new(Elements::F32(numbers), count, dim))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_every_block() {
        let shape = KvShape { layers: 3, kv_heads: 2, head_dim: 4 };
        let mut slot = Slot::new(shape);
        let number = |layer: usize, kind: usize, position: usize, index: usize| {
            (layer * 100_000 + kind * 50_000 + position * 10 + index) as f32
        };
        let count = BLOCK_POSITIONS + 3;
        slot.reserve(count);
        for layer in 0..3 {
            for position in 0..count {
                for (kind, which) in [(0, Kind::Keys), (1, Kind::Values)] {
                    let row: Vec<f32> =
                        (0..8).map(|index| number(layer, kind, position, index)).collect();
                    slot.store(layer, which, position, &row);
                }
            }
        }
        slot.advance(count);
        let mut seen = 0;
        let mut row = [0.0; 4];
        for (range, matrix) in slot.head(2, Kind::Values, 1, count) {
            for (index, position) in range.enumerate() {
                matrix.widen_row(index, &mut row);
                let expect: Vec<f32> = (4..8).map(|i| number(2, 1, position, i)).collect();
                assert_eq!(row[..], expect[..]);
                seen += 1;
            }
        }
        assert_eq!(seen, count);
        slot.clear();
        assert_eq!((slot.len(), slot.head(0, Kind::Keys, 0, 0).count()), (0, 0));
    }
}
