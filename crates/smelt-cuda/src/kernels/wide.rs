//! Cuts products of many tokens for Hopper: `wide.cu`, whose bits are those of [`super::product`]'s other kernels.
//!
//! A block stays for all its tiles, so there are no more blocks than multiprocessors.  Knows sizes alone.

use super::form::{Levels, ScaleKind, WeightForm};
use super::layout::{STRIP_ROWS, TILE_ROWS};
use crate::Processors;

/// Rows of a tile.
pub(super) const ROWS: u32 = 8 * TILE_ROWS as u32;
/// Threads of a block: two groups of four warps that multiply, and one that copies.
pub(super) const THREADS: u32 = 384;
/// Strips of a tile.
const STRIPS: u32 = ROWS / STRIP_ROWS as u32;
/// Columns of a stage.
const STAGE_COLUMNS: u32 = 64;
/// Stages that are copied ahead, where there is room.
const STAGES: u32 = 8;
/// Shared memory of a block that has a multiprocessor for itself, without what it declares.
const SHARED_BYTES_MAX: u32 = 226 << 10;
/// Fewer tokens are left to kernels with smaller tiles.
const TOKENS_MIN: u32 = 256;

/// Most blocks of eight tokens of a tile beside whose sums there are registers for those of one more group.
pub(super) const GROUPS_EIGHTS_MAX: u32 = 20;

/// A kernel: the tokens of its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WideShape {
    /// Blocks of eight tokens of a tile.
    pub(super) eights: u32,
    /// Whether two blocks share a tile, and have one group of columns each.
    pub(super) is_split: bool,
}

impl WideShape {
    /// One of so many blocks of tokens, whose tiles a block has for itself.
    pub(super) const fn whole(eights: u32) -> Self {
        Self { eights, is_split: false }
    }

    /// The same of two blocks.
    pub(super) const fn split(eights: u32) -> Self {
        Self { eights, is_split: true }
    }

    /// Every kernel of any form.
    const ALL: [Self; 8] = [
        Self::whole(6),
        Self::whole(9),
        Self::whole(12),
        Self::whole(16),
        Self::whole(17),
        Self::whole(20),
        Self::whole(26),
        Self::split(17),
    ];

    /// Whether weights of a form are multiplied so: a stage is of one group, which has no more than a scale and a zero point.
    /// Rows of halves are so many bytes that the smallest tiles win nothing.  Tiles of 136 and 208 tokens are for the 1,025 of
    /// pictures.
    pub(super) fn fits(self, form: WeightForm) -> bool {
        let is_of_one_group = form.group >= STAGE_COLUMNS as usize;
        let is_plain = !form.has_mins && form.scales != ScaleKind::Factors;
        let is_for_pictures = self.eights == 17 || self.eights > GROUPS_EIGHTS_MAX;
        let is_worth = match form.levels {
            Levels::Half if form.is_of_graphs() => !matches!(self.eights, 6 | 16),
            Levels::Half => self.eights != 6 && !is_for_pictures,
            Levels::Four | Levels::Eight => !is_for_pictures,
        };
        is_of_one_group && is_plain && is_worth
    }

    /// Whether so many columns are as many groups as it has: two where tiles are split, one where they are largest.
    pub(super) const fn has_room(self, form: WeightForm, columns: u32) -> bool {
        let groups = columns.div_ceil(form.group as u32);
        match self.is_split {
            true => groups == 2,
            false => self.eights <= GROUPS_EIGHTS_MAX || groups == 1,
        }
    }

    /// The kernel that multiplies so many rows and tokens soonest on such processors; none where there is little to do or
    /// there are no such kernels.
    pub(super) fn of(
        form: WeightForm,
        [rows, columns]: [u32; 2],
        tokens: u32,
        processors: Processors,
    ) -> Option<Self> {
        if tokens < TOKENS_MIN || !processors.has_wgmma() {
            return None;
        }
        let time = |shape: &Self| {
            let tiles = rows.div_ceil(ROWS) * tokens.div_ceil(shape.eights * 8);
            let tile = shape.eights * 8 + tokens_beside(form);
            let (blocks, block) =
                if shape.is_split { (tiles * 2, tile / 2 + SPLIT_TOKENS) } else { (tiles, tile) };
            blocks.div_ceil(processors.count.max(1)) * block
        };
        let all = Self::ALL.into_iter().filter(|shape| shape.fits(form));
        all.filter(|shape| shape.has_room(form, columns)).min_by_key(time)
    }

    /// Bytes of a stage: rows, the scales and zero points of their group, tokens.
    pub(super) fn stage_bytes(self, form: WeightForm) -> u32 {
        let scales = if form.scales == ScaleKind::Row { 0 } else { 2 };
        let numbers = scales + u32::from(form.has_zeros);
        let rows = STRIPS * STRIP_ROWS as u32;
        rows * (STAGE_COLUMNS * form.levels.bits() as u32 / 8 + numbers) + self.eights * 1024
    }

    /// Stages that are copied ahead.
    pub(super) fn stages(self, form: WeightForm) -> u32 {
        STAGES.min((SHARED_BYTES_MAX - self.joined_bytes()) / self.stage_bytes(form))
    }

    /// Bytes of a split tile's sums that come from the other block: those of half of its tokens.
    const fn joined_bytes(self) -> u32 {
        if self.is_split { self.eights.div_ceil(2) * 8 * ROWS * 4 } else { 0 }
    }

    /// Bytes of shared memory of a block.
    pub(super) fn shared_bytes(self, form: WeightForm) -> u32 {
        self.stages(form) * self.stage_bytes(form) + self.joined_bytes()
    }
}

/// What a tile takes beside its tokens, in tokens: its rows, and waiting.  Of halves by an H200, where 64 columns of 72
/// tokens take 0.22 us and those of 136 0.29: shared memory bounds both, since it takes in rows and tokens and gives rows to
/// registers once, and tokens to tensor cores twice.  Rows of fewer bits are so many bytes less.
fn tokens_beside(form: WeightForm) -> u32 {
    if form.is_of_graphs() { 120 } else { 20 + form.levels.bits() as u32 * 5 }
}

/// What it takes to join sums of two blocks, in tokens of all columns.
const SPLIT_TOKENS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sm;

    const H200: Processors = Processors { count: 132, sm: Sm(90) };

    fn chosen(form: &str, rows: u32, tokens: u32) -> Option<u32> {
        let form = WeightForm::parse(form).unwrap();
        WideShape::of(form, [rows, 2048], tokens, H200).map(|shape| shape.eights * 8)
    }

    #[test]
    fn tiles_are_as_large_as_waves_of_blocks_allow() {
        // A tile of InternViT-300M, and twelve.
        let of = |rows, columns, tokens| {
            let shape = WideShape::of(WeightForm::OF_GRAPHS, [rows, columns], tokens, H200);
            shape.map(|shape| (shape.eights * 8, shape.is_split))
        };
        assert_eq!(of(1024, 1024, 1025), Some((72, false)));
        assert_eq!(of(3072, 1024, 1025), Some((208, false)));
        assert_eq!(of(4096, 1024, 1025), Some((136, false)));
        assert_eq!(of(1024, 4096, 1025), Some((136, true)));
        assert_eq!(of(3072, 1024, 12_300), Some((208, false)));
        assert_eq!(of(1024, 4096, 12_300), Some((160, false)));
        assert_eq!(of(1024, 1024, 255), None);
        // Prompts of Qwen3-1.7B.
        assert_eq!(chosen("i4g128", 4096, 356), Some(96));
        assert_eq!(chosen("i4g128", 2048, 356), Some(48));
        assert_eq!(chosen("i4g128", 12_288, 356), Some(96));
        assert_eq!(chosen("i4g128", 2048, 2048), Some(128));
    }

    #[test]
    fn forms_whose_stages_are_of_several_groups_have_no_such_kernels() {
        let of = |form| chosen(form, 2048, 2048).is_some();
        assert!(["half", "i4", "i4z", "i4g64z", "i4g128z", "i8", "i8g128"].into_iter().all(of));
        assert!(!["i4g32", "i4g32m", "i8g16", "i8g16f", "i8g32fm"].into_iter().any(of));
        let orin = Processors { count: 8, sm: Sm(87) };
        let form = WeightForm::parse("i4").unwrap();
        assert_eq!(WideShape::of(form, [2048, 2048], 2048, orin), None);
    }

    #[test]
    fn a_block_has_the_shared_memory_of_a_multiprocessor() {
        for form in WeightForm::every() {
            for shape in WideShape::ALL.into_iter().filter(|shape| shape.fits(form)) {
                let (stages, bytes) = (shape.stages(form), shape.stage_bytes(form));
                assert!(stages >= 5 && shape.shared_bytes(form) + 1024 <= 227 << 10, "{shape:?}");
                assert!(bytes.is_multiple_of(128), "tokens begin where tensor cores read them");
                // Eight tokens of a piece of what is added to.
                assert!(8 * 132 * 4 <= bytes, "{shape:?}: {bytes}");
            }
        }
    }
}
