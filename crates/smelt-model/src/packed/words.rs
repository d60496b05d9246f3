//! Unpacks small integers from 32-bit words, and packs them.
//!
//! A [`WordLayout`] says how a matrix of quants `[rows, columns]` lies in a matrix of words: which way
//! quants run inside a word, in which order, and whether the words are stored turned (columns
//! first).  Rows are taken in stripes, so that a turned matrix is read and written without being
//! held.  Knows neither the formats that use it nor files: a stripe's bytes come from a closure.

use std::ops::Range;

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 4;

/// The way quants run inside a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// Through neighbouring rows (output channels).
    Rows,
    /// Through neighbouring columns (input channels, or groups of them).
    Columns,
}

/// How quants lie in words.  Quants past the end of a row or column pad the last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordLayout {
    /// Bits of a quant: 4 or 8.
    pub(crate) bits: u32,
    /// The way quants run.
    pub(crate) along: Along,
    /// Whether the words of one column lie side by side, instead of those of one row.
    pub(crate) turned: bool,
    /// Lane `i` of a word, from the lowest bits, holds quant `lanes[i]` of its run.
    pub(crate) lanes: [u8; 8],
}

/// Lanes in their natural order.
pub(crate) const NATURAL: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Where a stripe's bytes lie in the stored tensor: `runs` pieces of `bytes`, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    /// The first piece's offset.
    pub(crate) start: u64,
    /// Bytes of a piece.
    pub(crate) bytes: usize,
    /// Bytes from one piece to the next.
    pub(crate) step: u64,
    /// How many pieces.
    pub(crate) count: usize,
}

impl Runs {
    /// The pieces that hold columns `columns` of the rows of a matrix of `height` rows of `width`
    /// elements of `size` bytes.
    pub(crate) fn of_columns(
        columns: Range<usize>,
        [height, width]: [usize; 2],
        size: usize,
    ) -> Self {
        Self {
            start: (columns.start * size) as u64,
            bytes: columns.len() * size,
            step: (width * size) as u64,
            count: height,
        }
    }

    /// Bytes of all pieces.
    pub(crate) fn total(&self) -> usize {
        self.bytes * self.count
    }

    /// Offset and length of each stretch of bytes without a gap.
    pub(crate) fn stretches(self) -> impl Iterator<Item = (u64, usize)> {
        let whole = self.step == self.bytes as u64;
        let (count, bytes) = if whole { (1, self.total()) } else { (self.count, self.bytes) };
        (0..count as u64).map(move |index| (self.start + index * self.step, bytes))
    }
}

impl WordLayout {
    /// Quants in a word.
    pub(crate) fn per_word(&self) -> usize {
        (u32::BITS / self.bits) as usize
    }

    /// The stored shape of a matrix of quants.
    pub(crate) fn stored_shape(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let [high, wide] = self.words([rows, columns]);
        if self.turned { [wide, high] } else { [high, wide] }
    }

    /// Words down and across, not turned.
    fn words(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self.along {
            Along::Rows => [rows.div_ceil(self.per_word()), columns],
            Along::Columns => [rows, columns.div_ceil(self.per_word())],
        }
    }

    /// The rows of words that hold rows `rows`.
    fn word_rows(&self, rows: &Range<usize>) -> Range<usize> {
        match self.along {
            Along::Rows => rows.start / self.per_word()..rows.end.div_ceil(self.per_word()),
            Along::Columns => rows.clone(),
        }
    }

    /// Where the words of rows `rows` of a matrix of `shape` lie.
    pub(crate) fn runs(&self, rows: &Range<usize>, shape: [usize; 2]) -> Runs {
        let [high, wide] = self.words(shape);
        let here = self.word_rows(rows);
        if self.turned {
            return Runs::of_columns(here, [wide, high], WORD_BYTES);
        }
        let start = (here.start * wide * WORD_BYTES) as u64;
        let bytes = here.len() * wide * WORD_BYTES;
        Runs { start, bytes, step: bytes as u64, count: 1 }
    }

    /// Hands every quant of rows `rows` to `put(row - rows.start, column, quant)`; `stripe` holds
    /// the bytes of [`WordLayout::runs`], one piece after another.
    pub(crate) fn unpack(
        &self,
        stripe: &[u8],
        rows: &Range<usize>,
        columns: usize,
        mut put: impl FnMut(usize, usize, u8),
    ) {
        let words = stripe.as_chunks::<WORD_BYTES>().0;
        for cell in self.cells(rows, columns) {
            let word = u32::from_le_bytes(words[cell.at]);
            for (shift, row, column) in self.quants(cell, rows, columns) {
                put(row, column, (word >> shift) as u8 & self.mask());
            }
        }
    }

    /// The bytes of [`WordLayout::runs`] for rows `rows`, one piece after another, made of the quants
    /// `get(row - rows.start, column)`; padding is zero.
    pub(crate) fn pack(
        &self,
        rows: &Range<usize>,
        columns: usize,
        mut get: impl FnMut(usize, usize) -> u8,
    ) -> Vec<u8> {
        let [_, wide] = self.words([1, columns]);
        let mut stripe = vec![0; self.word_rows(rows).len() * wide * WORD_BYTES];
        let words = stripe.as_chunks_mut::<WORD_BYTES>().0;
        for cell in self.cells(rows, columns) {
            let mut word = 0;
            for (shift, row, column) in self.quants(cell, rows, columns) {
                word |= u32::from(get(row, column)) << shift;
            }
            words[cell.at] = word.to_le_bytes();
        }
        stripe
    }

    fn mask(&self) -> u8 {
        if self.bits == 4 { 15 } else { 255 }
    }

    /// Every word of the stripe of rows `rows`.
    fn cells(&self, rows: &Range<usize>, columns: usize) -> impl Iterator<Item = Cell> + use<> {
        let here = self.word_rows(rows);
        let ([_, wide], high, turned) = (self.words([1, columns]), here.len(), self.turned);
        (0..high * wide).map(move |at| {
            let (down, across) =
                if turned { (at % high, at / high) } else { (at / wide, at % wide) };
            Cell { at, down: here.start + down, across }
        })
    }

    /// Shift, row in the stripe and column of each quant of a word that is no padding and belongs
    /// to `rows`.
    fn quants(
        &self,
        cell: Cell,
        rows: &Range<usize>,
        columns: usize,
    ) -> impl Iterator<Item = (u32, usize, usize)> {
        let per_word = self.per_word();
        let places = self.lanes[..per_word].iter().enumerate().map(move |(lane, &quant)| {
            let (row, column) = match self.along {
                Along::Rows => (cell.down * per_word + usize::from(quant), cell.across),
                Along::Columns => (cell.down, cell.across * per_word + usize::from(quant)),
            };
            (lane as u32 * self.bits, row, column)
        });
        let (start, end) = (rows.start, rows.end);
        let inside = move |&(_, row, column): &(u32, usize, usize)| {
            (start..end).contains(&row) && column < columns
        };
        places.filter(inside).map(move |(shift, row, column)| (shift, row - start, column))
    }
}

/// A word of a stripe: its index there, and its place in the matrix of words.
#[derive(Clone, Copy)]
struct Cell {
    at: usize,
    down: usize,
    across: usize,
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    fn grids() -> impl Iterator<Item = WordLayout> {
        let lanes = [NATURAL, [0, 2, 4, 6, 1, 3, 5, 7]];
        let alongs = [Along::Rows, Along::Columns];
        alongs.into_iter().flat_map(move |along| {
            let four = lanes.map(|lanes| [(4, lanes)]).concat().into_iter().chain([(8, NATURAL)]);
            four.flat_map(move |(bits, lanes)| {
                [false, true].map(|turned| WordLayout { bits, along, turned, lanes })
            })
        })
    }

    /// The stored tensor cut to the bytes of `runs`.
    fn cut(stored: &[u8], runs: Runs) -> Vec<u8> {
        let stretch = |(at, len): (u64, usize)| &stored[at as usize..at as usize + len];
        runs.stretches().flat_map(|place| stretch(place).to_vec()).collect()
    }

    #[test]
    fn stripes_of_what_was_packed_unpack_to_it() {
        let mut random = Random::new(7);
        for grid in grids() {
            for _ in 0..40 {
                let shape = [1 + random.below(40), 1 + random.below(40)];
                let [rows, columns] = shape;
                let quants: Vec<u8> =
                    (0..rows * columns).map(|_| random.below(1 << grid.bits) as u8).collect();
                let whole = 0..rows;
                let stored =
                    grid.pack(&whole, columns, |row, column| quants[row * columns + column]);
                let [high, wide] = grid.stored_shape(shape);
                assert_eq!(stored.len(), high * wide * WORD_BYTES, "{grid:?} {shape:?}");
                let start = random.below(rows);
                let part = start..start + 1 + random.below(rows - start);
                let mut seen = vec![None; part.len() * columns];
                let stripe = cut(&stored, grid.runs(&part, shape));
                grid.unpack(&stripe, &part, columns, |row, column, quant| {
                    assert_eq!(seen[row * columns + column].replace(quant), None);
                });
                let expect: Vec<_> = quants[part.start * columns..part.end * columns]
                    .iter()
                    .map(|&quant| Some(quant))
                    .collect();
                assert_eq!(seen, expect, "{grid:?} {shape:?} {part:?}");
            }
        }
    }

    #[test]
    fn lanes_are_counted_from_the_lowest_bits() {
        let grid = WordLayout { bits: 4, along: Along::Rows, turned: true, lanes: NATURAL };
        let word = |lanes| {
            let stored = WordLayout { lanes, ..grid }.pack(&(0..8), 1, |row, _| row as u8);
            u32::from_le_bytes(stored.try_into().unwrap())
        };
        assert_eq!(word(NATURAL), 0x7654_3210);
        assert_eq!(word([0, 2, 4, 6, 1, 3, 5, 7]), 0x7531_6420);
    }

    #[test]
    fn whole_matrices_are_one_stretch() {
        let grid = WordLayout { bits: 4, along: Along::Columns, turned: true, lanes: NATURAL };
        assert_eq!(grid.runs(&(0..6), [6, 16]).stretches().collect::<Vec<_>>(), [(0, 48)]);
        let places: Vec<_> = grid.runs(&(2..4), [6, 16]).stretches().collect();
        assert_eq!(places, [(8, 8), (32, 8)]);
    }
}
