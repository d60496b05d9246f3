//! Attends: a few query heads of neighbouring tokens over the keys and values of one key head.
//!
//! Blocks of 64 positions come one after another and are gone through once: each row keeps the
//! largest score so far, the sum of its weights and the weighted sum of values (online softmax,
//! Milakov and Gimelshein 2018), so memory does not grow with the context.  What a row becomes
//! depends on its own position alone, bit for bit, not on the rows beside it or on how they came.
//! Knows nothing of layers, slots or where blocks lie.

mod block;
mod tile;

pub(crate) use block::{BLOCK, HeadBlock, HeadShape};

use super::isa::Isa;
use super::lanes::{Lanes, OverLanes, Stored};
use block::{Head, Wide};
use tile::Tile;

/// Query rows that share a key head, and where they stand.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[tokens, group, dim]`, already divided by √dim.
    pub(crate) queries: &'a [f32],
    /// Numbers of a head.
    pub(crate) dim: usize,
    /// Query heads of the key head.
    pub(crate) group: usize,
    /// Position of the first token; a token sees its own position and all before it.
    pub(crate) start: usize,
}

impl Rows<'_> {
    /// `softmax(q kᵀ) v` of every row into `out`, as large as the queries.  `blocks` begin with
    /// position 0 and hold, at least, all positions that the last token sees.
    pub(crate) fn attend<'b>(
        self,
        isa: Isa,
        blocks: &mut dyn Iterator<Item = HeadBlock<'b>>,
        out: &mut [f32],
    ) {
        assert_eq!(self.queries.len(), out.len(), "every query row has its output");
        isa.over_lanes(Attend { rows: self, blocks, out });
    }
}

struct Attend<'a, 'b> {
    rows: Rows<'a>,
    blocks: &'a mut dyn Iterator<Item = HeadBlock<'b>>,
    out: &'a mut [f32],
}

impl OverLanes for Attend<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Rows { dim, group, start, queries } = self.rows;
        let chunks = queries.chunks(L::ROWS * dim).enumerate();
        let position = |row: usize| start + row / group;
        let mut tiles: Vec<Tile> = chunks
            .map(|(index, queries)| Tile::new(queries, dim, |row| position(index * L::ROWS + row)))
            .collect();
        let mut wide = Wide::default();
        for (index, block) in self.blocks.enumerate() {
            let first = index * BLOCK;
            match block {
                HeadBlock::F32(head) => over_tiles(lanes, &mut tiles, head, first),
                HeadBlock::F16(head) => over_any(lanes, &mut tiles, head, first, &mut wide),
                HeadBlock::Int8(head) => over_any(lanes, &mut tiles, head, first, &mut wide),
            }
        }
        for (tile, out) in tiles.iter().zip(self.out.chunks_mut(L::ROWS * dim)) {
            tile.finish(lanes, dim, out);
        }
    }
}

/// Up to this many tiles, widening a block once costs more than each of them widening it.
const FEW_TILES: usize = 2;

/// Widens the block's numbers once for all tiles, or each time.
#[inline(always)]
fn over_any<L: Lanes, T: Stored>(
    lanes: L,
    tiles: &mut [Tile],
    head: Head<'_, T>,
    first: usize,
    wide: &mut Wide,
) {
    // Without vectors, loads widen one by one.
    if L::ROWS > 1 && tiles.len() <= FEW_TILES {
        over_tiles(lanes, tiles, head, first);
    } else {
        over_tiles(lanes, tiles, wide.of(lanes, head), first);
    }
}

#[inline(always)]
fn over_tiles<L: Lanes, T: Stored>(lanes: L, tiles: &mut [Tile], head: Head<'_, T>, first: usize) {
    for tile in tiles {
        tile.step(lanes, head, first);
    }
}

#[cfg(test)]
mod tests;
