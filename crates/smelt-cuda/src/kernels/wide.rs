//! Launches products of halves and many tokens on Hopper: `wide.cu`, whose bits are those of [`super::product`].
//!
//! A block stays for all its tiles, so there are no more blocks than multiprocessors.

use super::graph::weight_form;
use super::layout::TILE_ROWS;
use super::product::{Activations, DeviceWeight, Outcome, State, arguments};
use crate::{DeviceAddress, Function, Launch};

/// Rows of a tile.
const ROWS: u32 = 8 * TILE_ROWS as u32;
/// Threads of a block: two groups of four warps that multiply, and one that copies.
const THREADS: u32 = 384;
/// What a tile takes beside its tokens, in tokens: waiting and rows.  By an H200, where 128 columns of 72 tokens take
/// 0.85 us and those of 160 1.3.
const TOKENS_BESIDE: u32 = 100;
/// Fewer tokens are left to kernels with smaller tiles.
const TOKENS_MIN: u32 = 256;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideShape {
    /// Blocks of eight tokens of a tile.
    pub(super) eights: u32,
    /// Stages of 64 columns that are copied ahead.
    pub(super) stages: u32,
    /// Pieces in which comes what results are added to.
    pub(super) pieces: u32,
    pub(super) function: Function,
}

const fn wide(eights: u32, stages: u32, pieces: u32, name: &'static str) -> WideShape {
    WideShape { eights, stages, pieces, function: Function(name) }
}

impl WideShape {
    /// Every kernel.
    pub const ALL: [Self; 3] =
        [wide(9, 8, 2, "wide_72"), wide(12, 8, 3, "wide_96"), wide(20, 6, 3, "wide_160")];

    /// The kernel that multiplies so many rows and tokens soonest on a card of so many multiprocessors; none where there is
    /// little to do, or what is added to does not lie as it is copied.
    pub fn of(rows: u32, tokens: u32, outcome: Outcome, multiprocessors: u32) -> Option<Self> {
        let is_copied = match outcome {
            Outcome::Sum { stride, .. } | Outcome::Add { stride, .. } => {
                stride.is_multiple_of(4) && rows.is_multiple_of(4)
            }
            Outcome::Store { .. } | Outcome::Halves { .. } => true,
            Outcome::Swiglu { .. } => false,
        };
        let time = |shape: &Self| {
            let waves = shape.tiles(rows, tokens).div_ceil(multiprocessors.max(1));
            waves * (shape.eights * 8 + TOKENS_BESIDE)
        };
        let best = Self::ALL.into_iter().min_by_key(time);
        best.filter(|_| is_copied && tokens >= TOKENS_MIN)
    }

    fn tiles(&self, rows: u32, tokens: u32) -> u32 {
        rows.div_ceil(ROWS) * tokens.div_ceil(self.eights * 8)
    }

    /// Multiplies, as [`super::product::product`] does: `weight` is nothing but halves.
    pub fn product(
        &self,
        weight: &DeviceWeight,
        bias: DeviceAddress,
        x: Activations,
        outcome: Outcome,
        multiprocessors: u32,
    ) -> Launch {
        debug_assert_eq!(weight.form, weight_form());
        let blocks = self.tiles(weight.rows, x.tokens).min(multiprocessors);
        Launch {
            function: self.function,
            grid: [blocks, 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: self.stages * (ROWS * 128 + self.eights * 1024),
            early: true,
            args: arguments(weight, bias, (x, State::none()), outcome.words(), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_large_as_waves_of_blocks_allow() {
        let chosen = |rows, tokens| {
            let outcome = Outcome::Halves {
                out: DeviceAddress::NULL,
                turn: super::super::product::Turn::None,
            };
            WideShape::of(rows, tokens, outcome, 132).map(|shape| shape.function.0)
        };
        // A tile of InternViT-300M, and twelve.
        assert_eq!(chosen(1024, 1025), Some("wide_72"));
        assert_eq!(chosen(3072, 1025), Some("wide_96"));
        assert_eq!(chosen(4096, 1025), Some("wide_160"));
        assert_eq!(chosen(1024, 12_300), Some("wide_160"));
        assert_eq!(chosen(1024, 255), None);
    }

    #[test]
    fn what_is_added_to_is_copied_in_pieces_of_16_bytes() {
        let null = DeviceAddress::NULL;
        let sum = |stride| Outcome::Sum { out: null, before: null, gains: null, stride };
        assert!(WideShape::of(1024, 1025, sum(1024), 132).is_some());
        assert!(WideShape::of(1022, 1025, sum(1022), 132).is_none());
        assert!(WideShape::of(1024, 1025, Outcome::Swiglu { out: null }, 132).is_none());
    }

    #[test]
    fn a_block_has_the_shared_memory_of_a_multiprocessor() {
        for shape in WideShape::ALL {
            let bytes = shape.stages * (ROWS * 128 + shape.eights * 1024);
            assert!(bytes + 1024 <= 227 << 10, "{shape:?}: {bytes}");
            let piece = shape.eights.div_ceil(shape.pieces) * 8 * 132 * 4;
            assert!(piece <= ROWS * 128 + shape.eights * 1024, "{shape:?}: {piece}");
        }
    }
}
