//! Multiplies f32 matrices in plain loops the compiler turns into vector code.
//!
//! The right side is packed into panels of [`LANES`] columns; a tile of [`ROWS`] rows by one panel
//! is summed over [`DEPTH`] terms in registers, and tile sums are added in order of depth.  So each
//! element is a sum of short sums (its rounding error grows with their number, not with the depth)
//! and is the same bits however rows and columns are cut.  Reads no files.

use super::threads;

/// Columns of one panel: two SSE or NEON registers, one AVX register.
const LANES: usize = 8;
/// Rows of one tile: with [`LANES`], the sums fill half of sixteen vector registers.
const ROWS: usize = 4;
/// Terms summed before they are added to the result: one panel of them is 8 KiB, a sixth of L1.
const DEPTH: usize = 256;
/// Panels that are used in turn for all rows: 128 KiB at [`DEPTH`] terms, which stays in L2.
const GROUP: usize = 16;

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
        let mut tile = [[0.0; ROWS]; DEPTH];
        for start in (0..self.depth).step_by(DEPTH) {
            let tile = &mut tile[..DEPTH.min(self.depth - start)];
            for group in (0..self.columns.div_ceil(LANES)).step_by(GROUP) {
                for row in (0..rows).step_by(ROWS) {
                    pack_rows(x, row..rows.min(row + ROWS), start, tile);
                    self.add_tiles(tile, start, group, row, target);
                }
            }
        }
    }

    /// Adds the products of one tile of rows with one group of panels.
    fn add_tiles(
        &self,
        tile: &[[f32; ROWS]],
        start: usize,
        group: usize,
        row: usize,
        target: &mut Target<'_>,
    ) {
        let panel_len = self.depth * LANES;
        let panels = self.values.chunks(panel_len).enumerate().skip(group).take(GROUP);
        for (index, panel) in panels {
            let sums = multiply(tile, &panel[start * LANES..][..tile.len() * LANES]);
            let column = index * LANES;
            let width = LANES.min(self.columns - column);
            let first = row * target.stride + target.column + column;
            for (out, sums) in target.values[first..].chunks_mut(target.stride).zip(&sums) {
                for (out, sum) in out[..width].iter_mut().zip(sums) {
                    *out += sum;
                }
            }
        }
    }
}

fn pack_panel(weights: View<'_>, first: usize, columns: usize, panel: &mut [f32]) {
    for lane in 0..LANES.min(columns - first) {
        for (depth, lanes) in panel.chunks_exact_mut(LANES).enumerate() {
            lanes[lane] = weights.at(first + lane, depth);
        }
    }
}

/// Interleaves up to [`ROWS`] rows of `x`; missing rows are zero.
fn pack_rows(x: View<'_>, rows: std::ops::Range<usize>, start: usize, tile: &mut [[f32; ROWS]]) {
    let present = rows.len();
    for (depth, lanes) in tile.iter_mut().enumerate() {
        for (lane, value) in lanes.iter_mut().enumerate() {
            *value = if lane < present { x.at(rows.start + lane, start + depth) } else { 0.0 };
        }
    }
}

/// One tile of sums, all in registers.
fn multiply(tile: &[[f32; ROWS]], panel: &[f32]) -> [[f32; LANES]; ROWS] {
    let mut sums = [[0.0; LANES]; ROWS];
    for (x, weights) in tile.iter().zip(panel.as_chunks::<LANES>().0) {
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += x * weight;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

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
    fn a_transposed_view_swaps_rows_and_columns() {
        let values = noise(3, 12);
        let view = View::rows(&values, 4);
        assert_eq!(view.at(2, 1), view.transposed().at(1, 2));
        assert_eq!(view.skip_rows(1).at(1, 1), view.at(2, 1));
    }
}
