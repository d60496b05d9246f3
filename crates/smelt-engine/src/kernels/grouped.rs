//! Sees packed weights as rows of numbers: 4- or 8-bit levels with a scale for each group.
//!
//! Stored levels, scales and zeros in, f32 runs out: `(level - zero) * scale`.  Columns stay in
//! their stored order.  Knows nothing of products or of why columns were sorted.

use super::matrix::Elements;

/// The level that means 0 where a 4-bit weight has no zeros.
const MIDDLE: u8 = 8;

/// Levels of a row, as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Levels<'a> {
    /// Two columns a byte, the low nibble the even one; a row is whole bytes.
    Nibbles(&'a [u8]),
    /// A byte each.
    Bytes(&'a [i8]),
}

/// Packed weights `[rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouped<'a> {
    /// The levels, row after row.
    pub(crate) levels: Levels<'a>,
    /// How many rows.
    pub(crate) rows: usize,
    /// Levels of a row.
    pub(crate) columns: usize,
    /// Groups of a row.
    pub(crate) groups: usize,
    /// Columns of a group; the last may have fewer.
    pub(crate) group: usize,
    /// `[rows, groups]`.
    pub(crate) scales: Elements<'a>,
    /// `[rows, groups]`; only nibbles have them.
    pub(crate) zeros: Option<&'a [u8]>,
}

impl Grouped<'_> {
    /// Panics where a part is too short: shapes are checked before a matrix is made.
    pub(crate) fn check(&self) {
        let groups = self.rows * self.groups;
        let levels = match self.levels {
            Levels::Nibbles(bytes) => bytes.len() == self.rows * self.columns.div_ceil(2),
            Levels::Bytes(bytes) => bytes.len() == self.rows * self.columns,
        };
        assert!(levels, "a {}x{} matrix has other levels", self.rows, self.columns);
        assert_eq!(self.scales.len(), groups, "one scale a group");
        assert!(self.zeros.is_none_or(|zeros| zeros.len() == groups), "one zero a group");
        assert!(self.group > 0 && self.groups == self.columns.div_ceil(self.group).max(1));
    }

    /// Fills `out` with the numbers of `row` from `column` on.
    pub(crate) fn widen(&self, row: usize, column: usize, out: &mut [f32]) {
        let (mut column, mut rest) = (column, out);
        while !rest.is_empty() {
            let group = column / self.group;
            let end = ((group + 1) * self.group).min(column + rest.len());
            let (here, later) = rest.split_at_mut(end - column);
            self.widen_run(row, column, group, here);
            (column, rest) = (end, later);
        }
    }

    /// As [`Self::widen`], inside one group.
    fn widen_run(&self, row: usize, column: usize, group: usize, out: &mut [f32]) {
        let at = row * self.groups + group;
        let mut scale = [0.0];
        self.scales.widen(at, &mut scale);
        let [scale] = scale;
        match self.levels {
            Levels::Bytes(bytes) => {
                let run = &bytes[row * self.columns + column..][..out.len()];
                for (out, &level) in out.iter_mut().zip(run) {
                    *out = f32::from(level) * scale;
                }
            }
            Levels::Nibbles(bytes) => {
                let zero = f32::from(self.zeros.map_or(MIDDLE, |zeros| zeros[at]));
                let line = &bytes[row * self.columns.div_ceil(2)..];
                let number = |nibble: u8| (f32::from(nibble) - zero) * scale;
                // Groups begin at even columns, and so do the runs that products ask for.
                let (odd, even) = out.split_at_mut((column % 2).min(out.len()));
                odd.iter_mut().for_each(|out| *out = number(line[column / 2] >> 4));
                let line = &line[column.div_ceil(2)..];
                let (pairs, last) = even.as_chunks_mut::<2>();
                for ([low, high], &byte) in pairs.iter_mut().zip(line) {
                    (*low, *high) = (number(byte & 15), number(byte >> 4));
                }
                last.iter_mut().for_each(|out| *out = number(line[pairs.len()] & 15));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Random;

    /// Every run of every row must be the plain formula.
    #[test]
    fn any_run_is_levels_less_zero_times_scale() {
        let mut random = Random::new(8);
        for columns in [1, 16, 31, 48, 65] {
            let (rows, group) = (3, 16);
            let groups = usize::div_ceil(columns, group);
            let stride = usize::div_ceil(columns, 2);
            let nibbles: Vec<u8> = (0..rows * stride).map(|_| random.below(256) as u8).collect();
            let bytes: Vec<i8> =
                (0..rows * columns).map(|_| random.below(256) as u8 as i8).collect();
            let scales = random.floats(rows * groups);
            let zeros: Vec<u8> = (0..rows * groups).map(|_| random.below(16) as u8).collect();
            let whole = Grouped {
                levels: Levels::Nibbles(&nibbles),
                rows,
                columns,
                groups,
                group,
                scales: Elements::F32(&scales),
                zeros: Some(&zeros),
            };
            let eight = Grouped { levels: Levels::Bytes(&bytes), zeros: None, ..whole };
            let plain = Grouped { zeros: None, ..whole };
            for (index, matrix) in [whole, plain, eight].into_iter().enumerate() {
                matrix.check();
                let expect = |row: usize, column: usize| {
                    let at = row * groups + column / group;
                    let nibble = (nibbles[row * stride + column / 2] >> (4 * (column % 2))) & 15;
                    let level = match index {
                        0 => f32::from(nibble) - f32::from(zeros[at]),
                        1 => f32::from(nibble) - 8.0,
                        _ => f32::from(bytes[row * columns + column]),
                    };
                    level * scales[at]
                };
                for row in 0..rows {
                    let start = random.below(columns);
                    let mut out = vec![9.0; 1 + random.below(columns - start)];
                    matrix.widen(row, start, &mut out);
                    for (offset, found) in out.iter().enumerate() {
                        assert_eq!(*found, expect(row, start + offset), "{columns} {index}");
                    }
                }
            }
        }
    }
}
