//! Sees stored numbers as a matrix: any dtype, any strides, widened to f32 on the way out.
//!
//! Slices of mapped weights or of activations in, f32 runs out.  Knows nothing of products.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Numbers as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Bits of IEEE half precision.
    F16(&'a [u16]),
    /// Bits of bf16, the upper half of an f32.
    Bf16(&'a [u16]),
    /// Signed bytes, to be multiplied with their row's scale.
    I8(&'a [i8]),
}

/// The value of bf16 bits.
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl<'a> Elements<'a> {
    /// How many numbers.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(all) => all.len(),
            Self::F16(all) | Self::Bf16(all) => all.len(),
            Self::I8(all) => all.len(),
        }
    }

    /// `len` numbers from `start`.
    pub(crate) fn part(&self, start: usize, len: usize) -> Self {
        match self {
            Self::F32(all) => Self::F32(&all[start..start + len]),
            Self::F16(all) => Self::F16(&all[start..start + len]),
            Self::Bf16(all) => Self::Bf16(&all[start..start + len]),
            Self::I8(all) => Self::I8(&all[start..start + len]),
        }
    }

    /// Fills `out` with the numbers from `start`; i8 without its scale.
    pub(crate) fn widen(&self, start: usize, out: &mut [f32]) {
        match self.part(start, out.len()) {
            Self::F32(run) => out.copy_from_slice(run),
            Self::F16(run) => run.reinterpret_cast::<f16>().convert_to_f32_slice(out),
            Self::Bf16(run) => each(run, out, widen_bf16),
            Self::I8(run) => each(run, out, f32::from),
        }
    }

    fn at(&self, index: usize) -> f32 {
        let mut one = [0.0];
        self.widen(index, &mut one);
        one[0]
    }
}

fn each<T: Copy>(run: &[T], out: &mut [f32], widen: impl Fn(T) -> f32) {
    for (out, &value) in out.iter_mut().zip(run) {
        *out = widen(value);
    }
}

/// `rows` by `columns` numbers: element (r, c) lies at `r * row_stride + c * column_stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    elements: Elements<'a>,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix stored row after row.
    pub(crate) fn new(elements: Elements<'a>, rows: usize, columns: usize) -> Self {
        Self::strided(elements, rows, columns, [columns, 1])
    }

    /// A matrix with strides `[row, column]`.  Panics where an element would lie outside: shapes
    /// are checked before a matrix is made.
    pub(crate) fn strided(
        elements: Elements<'a>,
        rows: usize,
        columns: usize,
        [row_stride, column_stride]: [usize; 2],
    ) -> Self {
        if rows > 0 && columns > 0 {
            let last = (rows - 1) * row_stride + (columns - 1) * column_stride;
            assert!(last < elements.len(), "a {rows}x{columns} matrix ends outside its numbers");
        }
        Self { elements, rows, columns, row_stride, column_stride }
    }

    /// Rows and columns exchanged; nothing moves.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Row `row` as stored, where its numbers lie side by side.
    pub(crate) fn row(&self, row: usize) -> Option<Elements<'a>> {
        self.is_by_rows().then(|| self.elements.part(row * self.row_stride, self.columns))
    }

    /// Whether the numbers of a row lie side by side.
    pub(crate) fn is_by_rows(&self) -> bool {
        self.column_stride == 1 || self.columns <= 1
    }

    /// Row `row` in f32.
    pub(crate) fn widen_row(&self, row: usize, out: &mut [f32]) {
        self.widen(row, 0, &mut out[..self.columns]);
    }

    /// Numbers `column..column + out.len()` of row `row`.
    fn widen(&self, row: usize, column: usize, out: &mut [f32]) {
        let start = row * self.row_stride + column * self.column_stride;
        if self.column_stride == 1 {
            return self.elements.widen(start, out);
        }
        for (index, out) in out.iter_mut().enumerate() {
            *out = self.elements.at(start + index * self.column_stride);
        }
    }

    /// Fills `panel` with rows `row..row + W` and columns `column..column + depth`,
    /// so that the `W` numbers of one column lie side by side; rows past the end are zero.
    pub(crate) fn pack<const W: usize>(
        &self,
        row: usize,
        column: usize,
        depth: usize,
        panel: &mut [f32],
    ) {
        let here = W.min(self.rows - row);
        let panel = &mut panel[..depth * W];
        if here < W {
            panel.fill(0.0);
        }
        if self.row_stride == 1 {
            for (p, out) in panel.chunks_exact_mut(W).enumerate() {
                let start = row + (column + p) * self.column_stride;
                self.elements.widen(start, &mut out[..here]);
            }
            return;
        }
        let mut line = [0.0; PACK_RUN];
        for first in (0..depth).step_by(PACK_RUN) {
            let run = PACK_RUN.min(depth - first);
            for lane in 0..here {
                self.widen(row + lane, column + first, &mut line[..run]);
                let out = panel[first * W..].chunks_exact_mut(W);
                for (out, &value) in out.zip(&line[..run]) {
                    out[lane] = value;
                }
            }
        }
    }
}

/// Numbers widened at a time while packing, so that the line stays in the first cache.
const PACK_RUN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_widen_exactly() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; bits.len()];
        Elements::F16(&bits).widen(0, &mut wide);
        for (&bits, &wide) in bits.iter().zip(&wide) {
            let expect = f16::from_bits(bits).to_f32();
            assert!(wide == expect || (wide.is_nan() && expect.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn packing_is_the_same_through_either_stride() {
        let numbers: Vec<f32> = (0..35).map(|n| n as f32).collect();
        let rows = Matrix::new(Elements::F32(&numbers), 5, 7);
        let mut turned = vec![0.0; 35];
        for r in 0..5 {
            for c in 0..7 {
                turned[c * 5 + r] = numbers[r * 7 + c];
            }
        }
        let columns = Matrix::new(Elements::F32(&turned), 7, 5).transposed();
        for (row, column, depth) in [(0, 0, 7), (4, 1, 6), (2, 3, 2)] {
            let (mut a, mut b) = (vec![9.0; 7 * 4], vec![8.0; 7 * 4]);
            rows.pack::<4>(row, column, depth, &mut a);
            columns.pack::<4>(row, column, depth, &mut b);
            assert_eq!(a[..depth * 4], b[..depth * 4]);
            assert_eq!(a[0], numbers[row * 7 + column]);
        }
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_matrix_past_its_numbers_is_a_bug() {
        Matrix::new(Elements::I8(&[0; 5]), 2, 3);
    }
}
