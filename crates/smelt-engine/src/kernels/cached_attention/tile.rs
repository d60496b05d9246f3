//! Attends a few query rows over one block: scores, weights, weighted values.
//!
//! The rows of a tile are as many as registers hold sums for, so that each stored number is read
//! once for all of them.  Every sum runs in one order: scores over the numbers of a head, weighted
//! values over positions.  Knows nothing of how numbers are kept.

use super::block::{BLOCK, Head, STRIPES};
use crate::kernels::lanes::{LANES, Lanes, Stored, exp_of_negative, highest, sum};

/// Most rows of a tile.
const ROWS_MAX: usize = 8;

/// Scores, and then weights, of `R` rows over one block.
type Scores<const R: usize> = [[[f32; LANES]; STRIPES]; R];

/// A few query rows on their way through the blocks.
pub(super) struct Tile {
    /// Rows, those that only fill up included.
    rows: usize,
    /// `[dim][rows]`.
    queries: Vec<f32>,
    /// Positions that each row sees.
    seen: [usize; ROWS_MAX],
    /// Largest score of each row so far.
    largest: [f32; ROWS_MAX],
    /// Sums of each row's weights so far, lane by lane.
    sums: [[f32; LANES]; ROWS_MAX],
    /// Weighted sums of values so far, `[rows][units]`.
    out: Vec<[f32; LANES]>,
}

impl Tile {
    /// A tile of `queries` `[up to 8, dim]`, each row at the position that `position` says.
    pub(super) fn new(queries: &[f32], dim: usize, position: impl Fn(usize) -> usize) -> Self {
        let count = queries.len() / dim;
        let rows = match count {
            ..=2 => count,
            3..=4 => 4,
            5..=6 => 6,
            _ => ROWS_MAX,
        };
        let mut turned = vec![0.0; rows * dim];
        for (row, query) in queries.chunks_exact(dim).enumerate() {
            turned[row..].iter_mut().step_by(rows).zip(query).for_each(|(to, from)| *to = *from);
        }
        // Rows that only fill up see what the last one sees.
        let seen = std::array::from_fn(|row| position(row.min(count - 1)) + 1);
        Self {
            rows,
            queries: turned,
            seen,
            largest: [f32::NEG_INFINITY; ROWS_MAX],
            sums: [[0.0; LANES]; ROWS_MAX],
            out: vec![[0.0; LANES]; rows * dim.div_ceil(LANES)],
        }
    }

    /// Goes through the block whose first position is `first`.
    #[inline(always)]
    pub(super) fn step<L: Lanes, T: Stored>(&mut self, lanes: L, head: Head<'_, T>, first: usize) {
        // Constant conditions keep what a set has no use for from being compiled.
        if L::IS_WIDE {
            match self.rows {
                1 => self.step_rows::<L, T, 1, 4>(lanes, head, first),
                2 => self.step_rows::<L, T, 2, 4>(lanes, head, first),
                4 => self.step_rows::<L, T, 4, 4>(lanes, head, first),
                6 => self.step_rows::<L, T, 6, 2>(lanes, head, first),
                _ => self.step_rows::<L, T, 8, 2>(lanes, head, first),
            }
        } else if L::ROWS == 4 {
            match self.rows {
                1 => self.step_rows::<L, T, 1, 2>(lanes, head, first),
                2 => self.step_rows::<L, T, 2, 2>(lanes, head, first),
                _ => self.step_rows::<L, T, 4, 1>(lanes, head, first),
            }
        } else {
            self.step_rows::<L, T, 1, 1>(lanes, head, first);
        }
    }

    /// The same for `R` rows, `C` vectors side by side.
    #[inline(always)]
    fn step_rows<L: Lanes, T: Stored, const R: usize, const C: usize>(
        &mut self,
        lanes: L,
        head: Head<'_, T>,
        first: usize,
    ) {
        let visible: [usize; R] =
            std::array::from_fn(|row| self.seen[row].saturating_sub(first).min(BLOCK));
        let most = visible[R - 1];
        if most == 0 {
            return;
        }
        let mut scores = [[[0.0; LANES]; STRIPES]; R];
        let queries = self.queries.as_chunks::<R>().0;
        let stripes = head.keys.len() / STRIPES * C;
        for (index, keys) in head.keys.chunks_exact(stripes).enumerate() {
            if index * C * LANES < most {
                score::<L, T, R, C>(lanes, queries, keys, index * C, &mut scores);
            }
        }
        if let Some(scales) = head.scales {
            for row in &mut scores {
                scale(lanes, row, scales.keys);
            }
        }
        for (row, visible) in scores.iter_mut().zip(visible) {
            row.as_flattened_mut()[visible..].fill(f32::NEG_INFINITY);
        }
        let factors = self.weigh(lanes, &mut scores);
        if let Some(scales) = head.scales {
            for row in &mut scores {
                scale(lanes, row, scales.values);
            }
        }
        let units = self.out.len() / R;
        let values = head.values.chunks_exact(units);
        let mut unit = 0;
        while unit + C <= units {
            let values = values.clone().take(most);
            add_values::<L, T, R, C>(lanes, &scores, factors, values, unit, &mut self.out);
            unit += C;
        }
        while unit < units {
            let values = values.clone().take(most);
            add_values::<L, T, R, 1>(lanes, &scores, factors, values, unit, &mut self.out);
            unit += 1;
        }
    }

    /// Turns scores into weights relative to the largest score so far; gives what earlier sums have
    /// to be multiplied with.
    #[inline(always)]
    fn weigh<L: Lanes, const R: usize>(
        &mut self,
        lanes: L,
        scores: &mut Scores<R>,
    ) -> [f32; LANES] {
        let mut falls = [0.0; LANES];
        for (row, scores) in scores.iter().enumerate() {
            let [a, b, c, d] = scores.each_ref().map(|stripe| lanes.load(stripe));
            let here = highest(lanes, lanes.max(lanes.max(a, b), lanes.max(c, d)));
            let before = self.largest[row];
            self.largest[row] = if before > here { before } else { here };
            falls[row] = before - self.largest[row];
        }
        let mut factors = [0.0; LANES];
        lanes.store(exp_of_negative(lanes, lanes.load(&falls)), &mut factors);
        for (row, scores) in scores.iter_mut().enumerate() {
            let down = lanes.splat(-self.largest[row]);
            let mut total = lanes.splat(0.0);
            for stripe in scores {
                let weight = exp_of_negative(lanes, lanes.add(lanes.load(stripe), down));
                lanes.store(weight, stripe);
                total = lanes.add(total, weight);
            }
            let before = lanes.load(&self.sums[row]);
            lanes.store(lanes.fma(before, lanes.splat(factors[row]), total), &mut self.sums[row]);
        }
        factors
    }

    /// Writes the rows `[count, dim]`, divided by the sums of their weights.
    #[inline(always)]
    pub(super) fn finish<L: Lanes>(&self, lanes: L, dim: usize, out: &mut [f32]) {
        let units = dim.div_ceil(LANES);
        let rows = self.out.chunks_exact(units).map(<[_]>::as_flattened);
        for ((sums, row), out) in self.sums.iter().zip(rows).zip(out.chunks_exact_mut(dim)) {
            let factor = sum(lanes, lanes.load(sums)).recip();
            out.iter_mut().zip(row).for_each(|(out, value)| *out = value * factor);
        }
    }
}

/// `scores[r][stripe + c] = Σ_d q[d][r] * keys[c][d]` for `C` stripes of keys from `stripe` on.
#[inline(always)]
fn score<L: Lanes, T: Stored, const R: usize, const C: usize>(
    lanes: L,
    queries: &[[f32; R]],
    keys: &[[T; LANES]],
    stripe: usize,
    scores: &mut Scores<R>,
) {
    let dim = queries.len();
    let keys: [&[[T; LANES]]; C] = std::array::from_fn(|c| &keys[c * dim..(c + 1) * dim]);
    let mut sums = [[lanes.splat(0.0); C]; R];
    for (d, query) in queries.iter().enumerate() {
        let keys: [L::V; C] = std::array::from_fn(|c| T::load(lanes, &keys[c][d]));
        for (sums, query) in sums.iter_mut().zip(query) {
            let query = lanes.splat(*query);
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = lanes.fma(query, key, *sum);
            }
        }
    }
    for (scores, sums) in scores.iter_mut().zip(sums) {
        for (score, sum) in scores[stripe..stripe + C].iter_mut().zip(sums) {
            lanes.store(sum, score);
        }
    }
}

/// `row[position] *= scales[position]`
#[inline(always)]
fn scale<L: Lanes>(lanes: L, row: &mut [[f32; LANES]; STRIPES], scales: &[[f32; LANES]; STRIPES]) {
    for (stripe, scales) in row.iter_mut().zip(scales) {
        lanes.store(lanes.mul(lanes.load(stripe), lanes.load(scales)), stripe);
    }
}

/// `out[r] = out[r] * factors[r] + Σ_p weights[r][p] * values[p]` for `C` vectors of a value from
/// `unit` on.
#[inline(always)]
fn add_values<'a, L: Lanes, T: Stored + 'a, const R: usize, const C: usize>(
    lanes: L,
    weights: &Scores<R>,
    factors: [f32; LANES],
    values: impl Iterator<Item = &'a [[T; LANES]]>,
    unit: usize,
    out: &mut [[f32; LANES]],
) {
    let units = out.len() / R;
    let mut sums = [[lanes.splat(0.0); C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let factor = lanes.splat(factors[r]);
        for (c, sum) in sums.iter_mut().enumerate() {
            *sum = lanes.mul(lanes.load(&out[r * units + unit + c]), factor);
        }
    }
    for (position, value) in values.enumerate().take(BLOCK) {
        let value = &value[unit..unit + C];
        let value: [L::V; C] = std::array::from_fn(|c| T::load(lanes, &value[c]));
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = lanes.splat(weights.as_flattened()[position]);
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = lanes.fma(weight, value, *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (c, sum) in sums.into_iter().enumerate() {
            lanes.store(sum, &mut out[r * units + unit + c]);
        }
    }
}
