//! Says where each number lies for tensor cores: the Rust side of what `product.cu` reads.
//!
//! Weights lie in strips of 64 rows, so that a strip is packed alone: `[k / read][4 tiles][32 lanes][16 bytes]` of levels,
//! and `[groups][8][4 tiles][row g, row g + 8]` of what groups have.  Activations lie in blocks of 8 tokens by 8 numbers.
//! A lane's fragment is that of `mma.m16n8k16`: lane `4g + t` has rows g and g + 8 in columns 2t, 2t + 1, and the same
//! eight columns on.

use super::form::{Levels, SPAN_COLUMNS, ScaleKind, WeightForm, WeightPart};

/// Rows of a strip.
pub const STRIP_ROWS: usize = 64;
/// Columns of which weights have a multiple; what fills them is zero.
pub const COLUMN_ALIGN: usize = 128;
/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;

/// Rows of whole strips.
pub const fn padded_rows(rows: usize) -> usize {
    rows.next_multiple_of(STRIP_ROWS)
}

/// Columns that a weight of so many is filled up to.
pub const fn padded_columns(columns: usize) -> usize {
    columns.next_multiple_of(COLUMN_ALIGN)
}

/// Bytes of a strip's part, of `columns` padded columns.
pub fn part_bytes(form: WeightForm, part: WeightPart, columns: usize) -> usize {
    let groups = columns / form.group * STRIP_ROWS;
    let spans = columns.div_ceil(SPAN_COLUMNS) * STRIP_ROWS * 2;
    let number = if form.scales == ScaleKind::Factors { 1 } else { 2 };
    match part {
        WeightPart::Levels => STRIP_ROWS * columns * form.levels.bits() / 8,
        WeightPart::Scales | WeightPart::Mins => groups * number,
        WeightPart::Zeros => groups,
        WeightPart::Spans | WeightPart::MinSpans => spans,
        WeightPart::RowScales => STRIP_ROWS * 4,
    }
}

/// Where a level lies in its strip: the byte, and the bit in it.
pub(super) fn level_at(levels: Levels, row: usize, column: usize) -> (usize, usize) {
    let width = levels.read_columns();
    let (read, step, inside) = (column / width, column % width / 16, column % 16);
    let (tile, high, g) = (row / TILE_ROWS, row % TILE_ROWS / 8, row % 8);
    let (far, t, odd) = (inside / 8, inside % 8 / 2, inside % 2);
    let lane = ((read * 4 + tile) * 32 + g * 4 + t) * 16;
    match levels {
        Levels::Half => (lane + (far * 2 + high) * 4 + odd * 2, 0),
        Levels::Eight => (lane + (step * 2 + far) * 4 + high * 2 + odd, 0),
        Levels::Four => {
            let nibble = far * 2 + high + 4 * odd;
            (lane + step * 4 + nibble / 2, nibble % 2 * 4)
        }
    }
}

/// Which of a strip's numbers of groups is that of `row` in `group`.
pub(super) fn group_at(row: usize, group: usize) -> usize {
    (group * 8 + row % 8) * 8 + row / TILE_ROWS * 2 + row % TILE_ROWS / 8
}

/// Halves of activations of `tokens` tokens, of `columns` padded columns.
pub const fn activation_len(tokens: usize, columns: usize) -> usize {
    columns * tokens.next_multiple_of(8)
}

/// Which half of activations is number `k` of `token`, of `tokens` tokens.
pub const fn activation_at(k: usize, token: usize, tokens: usize) -> usize {
    let eights = tokens.div_ceil(8);
    (((k / 64) * eights + token / 8) * 8 + k % 64 / 8) * 64 + token % 8 * 8 + k % 8
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_level_has_a_place_of_its_own_and_no_byte_is_left() {
        for form in WeightForm::ALL {
            let columns = 2 * COLUMN_ALIGN;
            let bytes = part_bytes(form, WeightPart::Levels, columns);
            let places: BTreeSet<(usize, usize)> = (0..STRIP_ROWS * columns)
                .map(|at| level_at(form.levels, at / columns, at % columns))
                .collect();
            assert_eq!(places.len(), STRIP_ROWS * columns, "{}", form.name);
            assert_eq!(places.len() * form.levels.bits() / 8, bytes);
            assert!(places.iter().all(|(byte, _)| *byte < bytes));
        }
    }

    #[test]
    fn every_group_has_a_place_of_its_own() {
        let places: BTreeSet<usize> =
            (0..STRIP_ROWS * 5).map(|at| group_at(at / 5, at % 5)).collect();
        assert_eq!(places, (0..STRIP_ROWS * 5).collect());
    }

    #[test]
    fn every_activation_has_a_place_of_its_own() {
        for tokens in [1_usize, 7, 8, 9, 100] {
            let columns = 3 * 64;
            let all = tokens.next_multiple_of(8);
            let places: BTreeSet<usize> = (0..all * columns)
                .map(|at| activation_at(at % columns, at / columns, tokens))
                .collect();
            assert_eq!(places, (0..activation_len(tokens, columns)).collect());
        }
    }

    /// The fragments of PTX's manual for `mma.m16n8k16`: which row and column register `register` of a lane holds.
    fn fragment(lane: usize, register: usize, odd: usize) -> (usize, usize) {
        let row = lane / 4 + register % 2 * 8;
        let column = lane % 4 * 2 + register / 2 * 8 + odd;
        (row, column)
    }

    #[test]
    fn halves_lie_in_the_registers_of_the_manual() {
        for lane in 0..32 {
            for register in 0..4 {
                for odd in 0..2 {
                    let (row, column) = fragment(lane, register, odd);
                    let place = level_at(Levels::Half, row, column);
                    assert_eq!(place, (lane * 16 + register * 4 + odd * 2, 0));
                }
            }
        }
    }

    #[test]
    fn nibbles_come_out_of_a_word_as_the_kernel_takes_them() {
        for lane in 0..32 {
            for (register, shift) in [(0, 0), (1, 4), (2, 8), (3, 12)] {
                for odd in 0..2 {
                    let (row, column) = fragment(lane, register, odd);
                    for step in 0..4 {
                        let (byte, bit) = level_at(Levels::Four, row, step * 16 + column);
                        assert_eq!(byte / 4, lane * 4 + step);
                        assert_eq!(byte % 4 * 8 + bit, shift + odd * 16);
                    }
                    for step in 0..2 {
                        let (byte, _) = level_at(Levels::Eight, row, step * 16 + column);
                        assert_eq!(byte / 4, lane * 4 + step * 2 + register / 2);
                        assert_eq!(byte % 4, register % 2 * 2 + odd);
                    }
                }
            }
        }
    }
}
