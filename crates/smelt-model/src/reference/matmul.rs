//! Multiplies f32 matrices on the widest vectors that the processor has, with the same bits on all.
//!
//! The right side is packed into panels of [`LANES`] columns; a tile of [`ROWS`] rows by one panel
//! is summed over [`DEPTH`] terms in registers, and tile sums are added in order of depth.  So each
//! element is a sum of short sums (its rounding error grows with their number, not with the depth)
//! and is the same bits however rows and columns are cut.  Products are added by fused operations, which are
//! rounded once: every processor with AVX2 or NEON has them, and others get the same bits from f64.  Reads no files.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::threads;

/// Columns of one panel: two of the widest vectors.
const LANES: usize = 32;
/// Rows of one tile: with [`VECTORS`], the sums fill twelve of the sixteen registers that most have.
pub(super) const ROWS: usize = 6;
/// Vectors of one row of a tile that are summed at once.
const VECTORS: usize = 2;
/// Terms summed before they are added to the result: one panel of them is 32 KiB, and a tile 6.
const DEPTH: usize = 256;
/// Panels that are used in turn for all rows: 128 KiB at [`DEPTH`] terms, which stays in L2.
const GROUP: usize = 4;

/// The sums of one tile of rows and one panel.
type Sums = [[f32; LANES]; ROWS];

/// A matrix inside a slice: element (r, c) is `values[r * row_stride + c * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    values: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Rows that start `row_stride` apart, each dense.
    pub(crate) fn rows(values: &'a [f32], row_stride: usize) -> Self {
        Self { values, row_stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// The same matrix without its first `rows` rows.
    pub(crate) fn skip_rows(self, rows: usize) -> Self {
        Self { values: &self.values[rows * self.row_stride..], ..self }
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[row * self.row_stride + column * self.column_stride]
    }
}

/// Where a product goes: `values` holds dense rows of `stride`, columns start at `column`.
pub(crate) struct Target<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) column: usize,
}

/// The right side of a product, `depth` by `columns`, stored as `[panel][depth][LANES]`.
///
/// Columns that pad the last panel hold zeros and are never written to a target.
#[derive(Default)]
pub(crate) struct Panels {
    values: Vec<f32>,
    columns: usize,
    depth: usize,
}

impl Panels {
    /// Packs `weights`, whose rows become the columns here: `[columns, depth]`.
    pub(crate) fn pack(&mut self, weights: View<'_>, columns: usize, depth: usize, threads: usize) {
        (self.columns, self.depth) = (columns, depth);
        self.values.clear();
        self.values.resize(columns.div_ceil(LANES) * depth * LANES, 0.0);
        threads::for_rows(threads, &mut self.values, depth * LANES, 1, |first, panels| {
            for (index, panel) in panels.chunks_mut(depth * LANES).enumerate() {
                pack_panel(weights, (first + index) * LANES, columns, panel);
            }
        });
    }

    /// Adds `x · self` to `target`; `x` has as many rows as `target` and `depth` columns.
    pub(crate) fn add_product(&self, x: View<'_>, target: &mut Target<'_>) {
        let rows = target.values.len() / target.stride;
        let mut tiles = Vec::new();
        for start in (0..self.depth).step_by(DEPTH) {
            let terms = start..self.depth.min(start + DEPTH);
            pack_tiles(x, rows, terms.clone(), &mut tiles);
            Arch::new().dispatch(Terms { panels: self, tiles: &tiles, terms, target });
        }
    }

    /// Adds the sums of the tile that begins at `row` and of panel `index` to `target`.
    #[inline(always)]
    fn add(&self, sums: &Sums, row: usize, index: usize, target: &mut Target<'_>) {
        let column = index * LANES;
        let width = LANES.min(self.columns - column);
        let first = row * target.stride + target.column + column;
        for (out, sums) in target.values[first..].chunks_mut(target.stride).zip(sums) {
            for (out, sum) in out[..width].iter_mut().zip(sums) {
                *out += sum;
            }
        }
    }
}

/// The products of all tiles with all panels over some of the terms.
struct Terms<'a, 'b> {
    panels: &'a Panels,
    /// `[tiles, terms]`.
    tiles: &'a [[f32; ROWS]],
    terms: Range<usize>,
    target: &'a mut Target<'b>,
}

impl WithSimd for Terms<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { panels, tiles, terms, target } = self;
        let all: Vec<&[f32]> = panels.values.chunks(panels.depth * LANES).collect();
        for (group, members) in all.chunks(GROUP).enumerate() {
            for (tile, x) in tiles.chunks(terms.len()).enumerate() {
                for (index, panel) in members.iter().enumerate() {
                    let panel = &panel.as_chunks::<LANES>().0[terms.clone()];
                    let sums = multiply(simd, x, panel);
                    panels.add(&sums, tile * ROWS, group * GROUP + index, target);
                }
            }
        }
    }
}

fn pack_panel(weights: View<'_>, first: usize, columns: usize, panel: &mut [f32]) {
    /// A line of the first cache of each lane's row is used up before the next is met.
    const STEP: usize = 16;
    for (block, lanes) in panel.chunks_mut(STEP * LANES).enumerate() {
        for lane in 0..LANES.min(columns - first) {
            for (term, lanes) in lanes.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                lanes[lane] = weights.at(first + lane, block * STEP + term);
            }
        }
    }
}

/// The terms `terms` of `rows` rows of `x`, [`ROWS`] rows interleaved; rows that are missing are zero.
fn pack_tiles(x: View<'_>, rows: usize, terms: Range<usize>, tiles: &mut Vec<[f32; ROWS]>) {
    tiles.clear();
    tiles.resize(rows.div_ceil(ROWS) * terms.len(), [0.0; ROWS]);
    for (tile, lanes) in tiles.chunks_mut(terms.len()).enumerate() {
        for lane in 0..ROWS.min(rows - tile * ROWS) {
            for (term, lanes) in terms.clone().zip(&mut *lanes) {
                lanes[lane] = x.at(tile * ROWS + lane, term);
            }
        }
    }
}

/// One tile of sums, [`VECTORS`] vectors of each row at a time in registers.
#[inline(always)]
fn multiply<S: Simd>(simd: S, x: &[[f32; ROWS]], panel: &[[f32; LANES]]) -> Sums {
    let mut all = [[0.0; LANES]; ROWS];
    if S::F32_LANES == 1 {
        // Without vectors to ask for, the compiler knows best.
        multiply_plainly(x, panel, &mut all);
        return all;
    }
    for first in (0..LANES / S::F32_LANES).step_by(VECTORS) {
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        for (x, weights) in x.iter().zip(panel) {
            let weights = &S::as_simd_f32s(weights).0[first..first + VECTORS];
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = simd.splat_f32s(*x);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_f32s(x, *weights, *sum);
                }
            }
        }
        for (all, sums) in all.iter_mut().zip(sums) {
            S::as_mut_simd_f32s(all).0[first..first + VECTORS].copy_from_slice(&sums);
        }
    }
    all
}

/// The same without vectors, a part of a tile at a time that fits the registers of any processor.
fn multiply_plainly(x: &[[f32; ROWS]], panel: &[[f32; LANES]], all: &mut Sums) {
    const PART: usize = 8;
    for first in (0..LANES).step_by(PART) {
        let mut sums = [[0.0; PART]; ROWS];
        for (x, weights) in x.iter().zip(panel) {
            for (sums, x) in sums.iter_mut().zip(x) {
                for (sum, weight) in sums.iter_mut().zip(&weights[first..first + PART]) {
                    *sum = fused(*x, *weight, *sum);
                }
            }
        }
        for (all, sums) in all.iter_mut().zip(sums) {
            all[first..first + PART].copy_from_slice(&sums);
        }
    }
}

/// `a * b + c` rounded once, for processors that have no such operation.
///
/// The product is exact in f64.  Its sum with `c` is rounded to odd: where the last bit is even and something
/// was lost, the neighbour on the side of what was lost is taken, so that rounding it to f32 is never a second
/// rounding of a tie (Boldo and Melquiond, 2008).
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    let is_even = lost != 0.0 && sum.is_finite() && bits & 1 == 0;
    let away = (lost > 0.0) == (sum > 0.0);
    let odd = if away { bits + u64::from(is_even) } else { bits - u64::from(is_even) };
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::noise::noise;

    /// `x [rows, depth] · w [columns, depth]` transposed, in f64.
    fn exact(x: &[f32], w: &[f32], depth: usize) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        x.chunks(depth).flat_map(|x| w.chunks(depth).map(move |w| dot(x, w))).collect()
    }

    #[track_caller]
    fn check(rows: usize, depth: usize, columns: usize) {
        let (x, w) = (noise(1, rows * depth), noise(2, columns * depth));
        let mut panels = Panels::default();
        panels.pack(View::rows(&w, depth), columns, depth, 2);
        // Two columns more than the product needs, to see that the others stay untouched.
        let mut out = vec![7.0; rows * (columns + 2)];
        let mut target = Target { values: &mut out, stride: columns + 2, column: 1 };
        panels.add_product(View::rows(&x, depth), &mut target);
        let exact = exact(&x, &w, depth);
        for (out, exact) in out.chunks(columns + 2).zip(exact.chunks(columns)) {
            assert_eq!((out[0], out[columns + 1]), (7.0, 7.0));
            for (out, exact) in out[1..].iter().zip(exact) {
                let bound = 1e-6 * (depth as f64).sqrt() + 1e-6;
                assert!((f64::from(*out) - 7.0 - exact).abs() < bound, "{out} {exact}");
            }
        }
    }

    #[test]
    fn a_product_is_the_sum_of_products_at_any_shape() {
        check(1, 1, 1);
        check(3, 5, 7);
        check(4, 8, 8);
        check(5, 257, 9);
        check(13, 600, 200);
    }

    #[test]
    fn vectors_give_the_bits_of_plain_loops() {
        struct OnVectors<'a>(&'a [[f32; ROWS]], &'a [[f32; LANES]]);
        impl WithSimd for OnVectors<'_> {
            type Output = Sums;
            fn with_simd<S: Simd>(self, simd: S) -> Sums {
                multiply(simd, self.0, self.1)
            }
        }
        let (x, w) = (noise(5, 250 * ROWS), noise(6, 250 * LANES));
        let (x, w) = (x.as_chunks().0, w.as_chunks().0);
        let mut plain = [[0.0; LANES]; ROWS];
        multiply_plainly(x, w, &mut plain);
        assert_eq!(Arch::new().dispatch(OnVectors(x, w)), plain);
    }

    #[test]
    fn what_is_fused_in_software_has_the_bits_of_the_operation() {
        let mut random = Random::new(7);
        let mut next = || random.next_u64() as u32;
        let same = |a: f32, b: f32, c: f32| {
            let (ours, theirs) = (fused(a, b, c), a.mul_add(b, c));
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{a} {b} {c}"
            );
        };
        for _ in 0..200_000 {
            let [a, b, c] = [next(), next(), next()].map(f32::from_bits);
            same(a, b, c);
            // Terms of one size, products that end in ties, and sums that nearly vanish.
            let near = |x: u32| f32::from_bits(x & 0x807F_FFFF | (0x3F00_0000 + (x & 0x0300_0000)));
            let [a, b] = [next(), next()].map(near);
            same(a, b, -(a * b));
            same(a, b, near(next()) * f32::EPSILON);
            same(
                f32::from_bits(a.to_bits() & !0xFFF),
                f32::from_bits(b.to_bits() & !0xFFF),
                near(next()),
            );
            same(a * 1e-20, b * 1e-20, near(next()) * 1e-38);
        }
    }

    #[test]
    fn every_cut_of_the_rows_gives_the_same_bits() {
        let (x, w) = (noise(3, 20 * 300), noise(4, 70 * 300));
        let mut panels = Panels::default();
        panels.pack(View::rows(&w, 300), 70, 300, 1);
        let product = |first: usize, rows: usize| {
            let mut out = vec![0.5; rows * 70];
            let mut target = Target { values: &mut out, stride: 70, column: 0 };
            panels.add_product(View::rows(&x, 300).skip_rows(first), &mut target);
            out
        };
        let whole = product(0, 20);
        for cut in [1, 5, 6, 13] {
            assert!([product(0, cut), product(cut, 20 - cut)].concat() == whole, "{cut}");
        }
    }

    #[test]
    fn a_transposed_view_swaps_rows_and_columns() {
        let values = noise(3, 12);
        let view = View::rows(&values, 4);
        assert_eq!(view.at(2, 1), view.transposed().at(1, 2));
        assert_eq!(view.skip_rows(1).at(1, 1), view.at(2, 1));
    }
}
