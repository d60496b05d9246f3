//! Multiplies a matrix with the transpose of another: every output is a dot product of two rows.
//!
//! Two [`Matrix`] views in, f32 out.  Many rows go through packed tiles, a few rows (a decode step)
//! through dot products that read each stored row once.  Each output is summed in an order that
//! depends on the shapes alone.  Knows nothing of layers or models.

#![allow(unsafe_code)]

use std::ops::Range;

use super::isa::{Isa, TILE_COLUMNS, TILE_ROWS, Tile};
use super::matrix::Matrix;
use super::target::Target;
use super::threads::Threads;

/// Columns of `a` and `b` multiplied at a time: a packed panel of `b` then is 32 KiB.  Miri, to which
/// every number is work, gets less to clear, and meets a border in small products.
const DEPTH: usize = if cfg!(miri) { 8 } else { 256 };
/// Rows of `b` packed at a time: 256 KiB, at home in the second cache.
const B_ROWS: usize = 8 * TILE_COLUMNS;
/// Rows of `a` packed at a time: 96 KiB beside them.
const A_ROWS: usize = 8 * TILE_ROWS;
/// Up to this many rows of `a`, packing costs more than it saves.
const FEW_ROWS: usize = 4;

/// What is multiplied, and how it lands: `out[i * out_stride + j] = Σ_p a[i, p] * b[j, p]`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// `[m, k]`.
    pub(crate) a: Matrix<'a>,
    /// `[n, k]`.
    pub(crate) b: Matrix<'a>,
    /// Distance of two rows of the output, at least `n`.
    pub(crate) out_stride: usize,
    /// Adds to what `out` holds instead of replacing it.
    pub(crate) accumulate: bool,
}

/// Space for packed panels, kept from product to product.
#[derive(Default)]
pub(crate) struct Panels {
    a: Vec<f32>,
    b: Vec<f32>,
}

impl<'a> Product<'a> {
    /// `a` times `b` transposed, into rows that lie side by side.
    pub(crate) fn new(a: Matrix<'a>, b: Matrix<'a>) -> Self {
        Self { a, b, out_stride: b.rows(), accumulate: false }
    }

    /// Does it on `threads`, which share the rows of `b`.
    pub(crate) fn run(&self, isa: Isa, threads: &Threads, out: &mut [f32]) {
        let out = self.target(out);
        let work = self.a.rows() * self.b.rows() * self.a.columns();
        threads.for_work(work).ranges(self.b.rows(), TILE_COLUMNS, |columns| {
            // SAFETY: the ranges are disjoint, and `target` checked that all of them lie in `out`.
            unsafe { self.columns(isa, columns, out, &mut Panels::default()) }
        });
    }

    /// Does it on this thread.
    pub(crate) fn run_here(&self, isa: Isa, panels: &mut Panels, out: &mut [f32]) {
        let out = self.target(out);
        // SAFETY: one range covers everything, and `target` checked that it lies in `out`.
        unsafe { self.columns(isa, 0..self.b.rows(), out, panels) }
    }

    /// Checks shapes and the length of `out`: mistakes here are bugs of the caller.
    fn target<'o>(&self, out: &'o mut [f32]) -> Target<'o> {
        let (m, n) = (self.a.rows(), self.b.rows());
        assert_eq!(self.a.columns(), self.b.columns(), "rows of a and b have one length");
        assert!(self.out_stride >= n, "output rows overlap");
        if m > 0 && n > 0 {
            assert!((m - 1) * self.out_stride + n <= out.len(), "the output is too short");
        }
        Target::new(out, self.out_stride)
    }

    /// Computes `columns` of the output.
    ///
    /// # Safety
    /// `out` comes from [`Self::target`], its memory is alive, and nobody else touches `columns`.
    unsafe fn columns(
        &self,
        isa: Isa,
        columns: Range<usize>,
        out: Target<'_>,
        panels: &mut Panels,
    ) {
        if columns.is_empty() {
            return;
        }
        let few = self.a.rows() <= FEW_ROWS;
        // SAFETY: handed on unchanged.
        unsafe {
            if few && self.b.is_by_rows() {
                self.dots(isa, columns, out);
            } else {
                self.tiles(isa, columns, out, panels);
            }
        }
    }

    /// Computes `columns` by dot products.
    ///
    /// # Safety
    /// As [`Self::columns`].
    unsafe fn dots(&self, isa: Isa, columns: Range<usize>, out: Target<'_>) {
        let (m, k) = (self.a.rows(), self.a.columns());
        let mut a = vec![0.0; m * k];
        for (row, line) in a.chunks_exact_mut(k.max(1)).enumerate() {
            self.a.widen_row(row, line);
        }
        for column in columns {
            let b = self.b.row(column).expect("the caller saw that rows lie side by side");
            for row in 0..m {
                let sum = isa.dot(b, &a[row * k..(row + 1) * k]);
                // SAFETY: row < m, and the column is ours.
                unsafe { put(out, row, column, &[sum], self.accumulate) };
            }
        }
    }

    /// Computes `columns` by packed tiles.
    ///
    /// # Safety
    /// As [`Self::columns`].
    unsafe fn tiles(&self, isa: Isa, columns: Range<usize>, out: Target<'_>, panels: &mut Panels) {
        if self.a.columns() == 0 {
            // SAFETY: handed on unchanged.
            return unsafe { self.clear(columns, out) };
        }
        panels.a.resize(A_ROWS * DEPTH, 0.0);
        panels.b.resize(B_ROWS * DEPTH, 0.0);
        for start in columns.clone().step_by(B_ROWS) {
            let block = start..(start + B_ROWS).min(columns.end);
            for first in (0..self.a.columns()).step_by(DEPTH) {
                let depth = DEPTH.min(self.a.columns() - first);
                for (index, column) in block.clone().step_by(TILE_COLUMNS).enumerate() {
                    let panel = &mut panels.b[index * TILE_COLUMNS * DEPTH..];
                    self.b.pack::<TILE_COLUMNS>(column, first, depth, panel);
                }
                for row in (0..self.a.rows()).step_by(A_ROWS) {
                    let rows = row..(row + A_ROWS).min(self.a.rows());
                    for (index, row) in rows.clone().step_by(TILE_ROWS).enumerate() {
                        let panel = &mut panels.a[index * TILE_ROWS * DEPTH..];
                        self.a.pack::<TILE_ROWS>(row, first, depth, panel);
                    }
                    // SAFETY: the block lies in `columns`, the rows in `a`.
                    unsafe {
                        self.block(isa, rows, block.clone(), first..first + depth, out, panels)
                    };
                }
            }
        }
    }

    /// Multiplies what is packed, for the `depth` columns of `a` and `b`.
    ///
    /// # Safety
    /// As [`Self::columns`]; `rows` are rows of `a`.
    unsafe fn block(
        &self,
        isa: Isa,
        rows: Range<usize>,
        columns: Range<usize>,
        depth: Range<usize>,
        out: Target<'_>,
        panels: &Panels,
    ) {
        let add = self.accumulate || depth.start > 0;
        let mut tile: Tile = [0.0; TILE_ROWS * TILE_COLUMNS];
        for (b_index, column) in columns.clone().step_by(TILE_COLUMNS).enumerate() {
            let b = &panels.b[b_index * TILE_COLUMNS * DEPTH..];
            let width = TILE_COLUMNS.min(columns.end - column);
            for (a_index, row) in rows.clone().step_by(TILE_ROWS).enumerate() {
                let a = &panels.a[a_index * TILE_ROWS * DEPTH..];
                isa.tile(depth.len(), a, b, &mut tile);
                let height = TILE_ROWS.min(rows.end - row);
                for (i, line) in tile.chunks_exact(TILE_COLUMNS).take(height).enumerate() {
                    let line = &line[..width];
                    // SAFETY: the row is one of `a`, the columns are ours.
                    unsafe { put(out, row + i, column, line, add) };
                }
            }
        }
    }

    /// Gives the sum of nothing.
    ///
    /// # Safety
    /// As [`Self::columns`].
    unsafe fn clear(&self, columns: Range<usize>, out: Target<'_>) {
        for row in 0..self.a.rows() {
            for column in columns.clone() {
                // SAFETY: row < m, and the column is ours.
                unsafe { put(out, row, column, &[0.0], self.accumulate) };
            }
        }
    }
}

/// Writes `values`, or adds them to what is there.
///
/// # Safety
/// Nobody else holds or touches the elements from `(row, column)` on.
unsafe fn put(out: Target<'_>, row: usize, column: usize, values: &[f32], add: bool) {
    // SAFETY: promised by the caller.
    let line = unsafe { out.line(row, column, values.len()) };
    if add {
        line.iter_mut().zip(values).for_each(|(out, value)| *out += value);
    } else {
        line.copy_from_slice(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matrix::Elements;
    use crate::kernels::testing::{close, rounds, size};
    use half::{bf16, f16};
    use smelt_random::Random;

    fn naive(a: &Matrix<'_>, b: &Matrix<'_>) -> Vec<f64> {
        let (m, n, k) = (a.rows(), b.rows(), a.columns());
        let (mut row_a, mut row_b) = (vec![0.0; k], vec![0.0; k]);
        let mut out = vec![0.0; m * n];
        for i in 0..m {
            a.widen_row(i, &mut row_a);
            for j in 0..n {
                b.widen_row(j, &mut row_b);
                let pairs = row_a.iter().zip(&row_b);
                out[i * n + j] = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            }
        }
        out
    }

    #[track_caller]
    fn check(a: Matrix<'_>, b: Matrix<'_>, what: &str) {
        let expect = naive(&a, &b);
        for isa in Isa::all() {
            let mut one = vec![5.0; expect.len()];
            Product::new(a, b).run(isa, &Threads::new(1), &mut one);
            close(&one, &expect, 2e-6, &format!("{what} {isa:?}"));
            let mut many = vec![6.0; expect.len()];
            Product::new(a, b).run(isa, &Threads::new(5), &mut many);
            assert_eq!(one, many, "{what} {isa:?}: threads");
        }
    }

    #[test]
    fn odd_shapes_and_every_dtype_match_naive_sums() {
        let mut random = Random::new(3);
        for round in 0..rounds(60) {
            let (m, n) = (1 + random.below(size(40)), 1 + random.below(size(90)));
            let k = 1 + random.below(size(if round % 10 == 9 { 700 } else { 70 }));
            let a = random.noise(m * k);
            let b = random.noise(n * k);
            let halves: Vec<u16> = b.iter().map(|&b| f16::from_f32(b).to_bits()).collect();
            let brains: Vec<u16> = b.iter().map(|&b| bf16::from_f32(b).to_bits()).collect();
            let bytes: Vec<i8> = b.iter().map(|&b| (b * 127.0) as i8).collect();
            let a = Matrix::new(Elements::F32(&a), m, k);
            let what = format!("{m}x{k} by {n}x{k}");
            check(a, Matrix::new(Elements::F32(&b), n, k), &format!("f32 {what}"));
            check(a, Matrix::new(Elements::F16(&halves), n, k), &format!("f16 {what}"));
            check(a, Matrix::new(Elements::Bf16(&brains), n, k), &format!("bf16 {what}"));
            check(a, Matrix::new(Elements::I8(&bytes), n, k), &format!("i8 {what}"));
            let turned = Matrix::new(Elements::F16(&halves), k, n).transposed();
            check(a, turned, &format!("f16 transposed {what}"));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn large_products_use_every_block_border() {
        let mut random = Random::new(4);
        let (m, n, k) = (A_ROWS + 13, B_ROWS + 45, 2 * DEPTH + 3);
        let (a, b) = (random.noise(m * k), random.noise(n * k));
        let a = Matrix::new(Elements::F32(&a), m, k);
        check(a, Matrix::new(Elements::F32(&b), n, k), "blocks");
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn accumulating_adds_and_strides_leave_gaps_alone() {
        let mut random = Random::new(5);
        for (m, k) in [(3, 5), (20, 300), (2, 0), (9, 0)] {
            let n = 7;
            let (a, b) = (random.noise(m * k), random.noise(n * k));
            let a = Matrix::new(Elements::F32(&a), m, k);
            let b = Matrix::new(Elements::F32(&b), n, k);
            let sums = naive(&a, &b);
            for accumulate in [false, true] {
                let mut out = vec![2.0; m * 10];
                let product = Product { out_stride: 10, accumulate, ..Product::new(a, b) };
                product.run_here(Isa::detect(), &mut Panels::default(), &mut out);
                let base = if accumulate { 2.0 } else { 0.0 };
                for (i, line) in out.chunks_exact(10).enumerate() {
                    let expect: Vec<f64> = (0..n).map(|j| base + sums[i * n + j]).collect();
                    close(&line[..n], &expect, 2e-6, &format!("row {i} {accumulate}"));
                    assert_eq!(line[n..], [2.0; 3], "the gap stays");
                }
            }
        }
    }
}
