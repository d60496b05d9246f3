//! Computes attention of all queries over all keys: softmax(q · kᵀ · scale + mask) · v.
//!
//! Queries go in blocks of 32 against one head's keys and values, which are packed once; what is
//! held of the scores is one such block's.  Scores lie key by key, so that a softmax needs no sum
//! across a register.  A row depends on its own query, the keys and the values alone.  Knows nothing
//! of caches or of what is before and after a place.

#![allow(unsafe_code)]

use std::ops::Range;

use super::isa::{Isa, TILE_COLUMNS, TILE_ROWS, Tile};
use super::lanes::{LANES, Lanes, OverLanes, exp_of_negative};
use super::matrix::{Elements, Matrix};
use super::target::Target;
use super::threads::Threads;

/// Queries that are computed together.
const QUERIES: usize = TILE_COLUMNS;

/// Rows of every head: numbers, and the distance of neighbours along batch, head, row and column.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) numbers: Elements<'a>,
    pub(crate) steps: [usize; 4],
}

/// What is computed.
#[derive(Clone, Copy)]
pub(crate) struct Attention<'a> {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Numbers of a query and of a key.
    pub(crate) depth: usize,
    /// Numbers of a value.
    pub(crate) width: usize,
    pub(crate) scale: f32,
    /// `[batch, heads, queries, depth]`
    pub(crate) q: Rows<'a>,
    /// `[batch, heads, keys, depth]`
    pub(crate) k: Rows<'a>,
    /// `[batch, heads, keys, width]`
    pub(crate) v: Rows<'a>,
    /// `[batch, heads, queries, keys]`, added to the scores.
    pub(crate) mask: Option<Rows<'a>>,
}

impl<'a> Rows<'a> {
    /// The rows of one head.
    fn head(&self, [batch, head]: [usize; 2], rows: usize, columns: usize) -> Matrix<'a> {
        let [by_batch, by_head, by_row, by_column] = self.steps;
        let start = batch * by_batch + head * by_head;
        let rest = self.numbers.part(start, self.numbers.len() - start);
        Matrix::strided(rest, rows, columns, [by_row, by_column])
    }
}

impl Attention<'_> {
    /// Fills `out` `[batch, queries, heads, width]`.  Panics where it has another length.
    pub(crate) fn run(&self, isa: Isa, threads: &Threads, out: &mut [f32]) {
        let rows = self.batch * self.queries * self.heads;
        assert_eq!(out.len(), rows * self.width, "the output holds every row");
        let target = Target::new(out, self.width);
        let work = rows * self.keys * (self.depth + self.width);
        let units = self.batch * self.heads * self.queries.div_ceil(QUERIES);
        threads.for_work(work).ranges(units, 1, |units| self.units(isa, units, target));
    }

    /// Does the blocks `units`, counted through all queries of all heads.
    fn units(&self, isa: Isa, units: Range<usize>, out: Target<'_>) {
        let blocks = self.queries.div_ceil(QUERIES);
        let mut head = Head::new(self);
        for unit in units {
            let (at, block) =
                ([unit / blocks / self.heads, unit / blocks % self.heads], unit % blocks);
            if head.at != Some(at) {
                head.pack(self, at);
            }
            head.block(self, isa, at, block * QUERIES, out);
        }
    }
}

/// One head's keys and values, packed, and space for a block of queries.
struct Head {
    at: Option<[usize; 2]>,
    /// Panels of 12 keys: `depth` by 12 numbers each.
    keys: Vec<f32>,
    /// Panels of 12 columns of the values: `keys` by 12 numbers each.
    values: Vec<f32>,
    /// `depth` by 32.
    queries: Vec<f32>,
    /// `keys` by 32.
    scores: Vec<f32>,
    /// As `scores`, where there is a mask.
    mask: Vec<f32>,
}

impl Head {
    fn new(of: &Attention<'_>) -> Self {
        let panels = |count: usize| count.div_ceil(TILE_ROWS) * TILE_ROWS;
        let masked = if of.mask.is_some() { of.keys * QUERIES } else { 0 };
        Self {
            at: None,
            keys: vec![0.0; panels(of.keys) * of.depth],
            values: vec![0.0; panels(of.width) * of.keys],
            queries: vec![0.0; of.depth * QUERIES],
            scores: vec![0.0; of.keys * QUERIES],
            mask: vec![0.0; masked],
        }
    }

    fn pack(&mut self, of: &Attention<'_>, at: [usize; 2]) {
        self.at = Some(at);
        let keys = of.k.head(at, of.keys, of.depth);
        let panels = self.keys.chunks_exact_mut((of.depth * TILE_ROWS).max(1));
        for (index, panel) in panels.enumerate() {
            keys.pack::<TILE_ROWS>(index * TILE_ROWS, 0, of.depth, panel);
        }
        let values = of.v.head(at, of.keys, of.width).transposed();
        let panels = self.values.chunks_exact_mut((of.keys * TILE_ROWS).max(1));
        for (index, panel) in panels.enumerate() {
            values.pack::<TILE_ROWS>(index * TILE_ROWS, 0, of.keys, panel);
        }
    }

    /// Computes up to 32 rows from `first`.
    fn block(
        &mut self,
        of: &Attention<'_>,
        isa: Isa,
        at: [usize; 2],
        first: usize,
        out: Target<'_>,
    ) {
        let queries = of.q.head(at, of.queries, of.depth);
        queries.pack::<QUERIES>(first, 0, of.depth, &mut self.queries);
        self.queries.iter_mut().for_each(|value| *value *= of.scale);
        self.score(of.depth, isa);
        if let Some(mask) = &of.mask {
            let mask = mask.head(at, of.queries, of.keys);
            mask.pack::<QUERIES>(first, 0, of.keys, &mut self.mask);
            isa.vectorised(|| {
                self.scores.iter_mut().zip(&self.mask).for_each(|(score, mask)| *score += mask);
            });
        }
        let mut inverse = [0.0; QUERIES];
        isa.over_lanes(Softmax { scores: &mut self.scores, inverse: &mut inverse });
        self.mix(of, isa, at, first, &inverse, out);
    }

    /// `scores[key][query]` of the packed queries.
    fn score(&mut self, depth: usize, isa: Isa) {
        let mut tile: Tile = [0.0; TILE_ROWS * TILE_COLUMNS];
        let panels = self.keys.chunks_exact((depth * TILE_ROWS).max(1));
        for (keys, scores) in panels.zip(self.scores.chunks_mut(TILE_ROWS * QUERIES)) {
            isa.tile(depth, keys, &self.queries, &mut tile);
            scores.copy_from_slice(&tile[..scores.len()]);
        }
    }

    /// Adds up the values by the scores, now weights, and divides each row by its sum.
    fn mix(
        &self,
        of: &Attention<'_>,
        isa: Isa,
        [batch, head]: [usize; 2],
        first: usize,
        inverse: &[f32; QUERIES],
        out: Target<'_>,
    ) {
        let mut tile: Tile = [0.0; TILE_ROWS * TILE_COLUMNS];
        let panels = self.values.chunks_exact((of.keys * TILE_ROWS).max(1));
        for (index, values) in panels.enumerate() {
            isa.tile(of.keys, values, &self.scores, &mut tile);
            let column = index * TILE_ROWS;
            let columns = TILE_ROWS.min(of.width - column);
            for query in 0..QUERIES.min(of.queries - first) {
                let row = (batch * of.queries + first + query) * of.heads + head;
                let mut line = [0.0; TILE_ROWS];
                for (line, sums) in line.iter_mut().zip(tile.chunks_exact(TILE_COLUMNS)) {
                    *line = sums[query] * inverse[query];
                }
                // SAFETY: the row is one of this block's, which is this thread's alone.
                unsafe { out.line(row, column, columns) }.copy_from_slice(&line[..columns]);
            }
        }
    }
}

/// Keys whose weights are summed before they join the sum of those before them: the error of a long
/// sum grows with the length of its parts.
const SUM_KEYS: usize = 64;

/// Turns scores, 32 queries side by side, into weights; gives what each query's weights are to be
/// multiplied with to sum to one.
struct Softmax<'a> {
    /// `[keys, 32]`
    scores: &'a mut [f32],
    inverse: &'a mut [f32; QUERIES],
}

impl OverLanes for Softmax<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let scores = self.scores.as_chunks_mut::<LANES>().0;
        for (half, inverse) in self.inverse.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut most = lanes.splat(f32::NEG_INFINITY);
            for scores in scores[half..].iter().step_by(QUERIES / LANES) {
                most = lanes.max(most, lanes.load(scores));
            }
            let less = lanes.mul(most, lanes.splat(-1.0));
            let mut total = lanes.splat(0.0);
            for part in scores.chunks_mut(SUM_KEYS * QUERIES / LANES) {
                let mut sum = lanes.splat(0.0);
                for scores in part[half..].iter_mut().step_by(QUERIES / LANES) {
                    let weight = exp_of_negative(lanes, lanes.add(lanes.load(scores), less));
                    lanes.store(weight, scores);
                    sum = lanes.add(sum, weight);
                }
                total = lanes.add(total, sum);
            }
            lanes.store(total, inverse);
            inverse.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::kernels::testing::{close, rounds, size};

    /// Shapes of a case: batch, heads, queries, keys, depth, width.
    type Sizes = [usize; 6];

    /// The definition, in f64; q, k and v lie as `[batch, row, head, column]`.
    fn naive(sizes: Sizes, scale: f32, parts: [&[f32]; 3], mask: Option<&[f32]>) -> Vec<f64> {
        let [batch, heads, queries, keys, depth, width] = sizes;
        let mut out = vec![0.0; batch * queries * heads * width];
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            let (b, head) = (row / (queries * heads), row % heads);
            let at = |x: &[f32], row: usize, width: usize, c: usize| {
                f64::from(x[(row * heads + head) * width + c])
            };
            let query = row / heads;
            let score = |key: usize| {
                let dot: f64 = (0..depth)
                    .map(|c| at(parts[0], query, depth, c) * at(parts[1], b * keys + key, depth, c))
                    .sum();
                let mask = mask.map_or(0.0, |m| f64::from(m[query % queries * keys + key]));
                (dot * f64::from(scale) + mask).exp()
            };
            let weights: Vec<f64> = (0..keys).map(score).collect();
            let sum: f64 = weights.iter().sum();
            for (c, out) in out.iter_mut().enumerate() {
                let mixed =
                    (0..keys).map(|key| weights[key] * at(parts[2], b * keys + key, width, c));
                *out = mixed.sum::<f64>() / sum;
            }
        }
        out
    }

    fn attention<'a>(
        sizes: Sizes,
        scale: f32,
        [q, k, v]: [&'a [f32]; 3],
        mask: Option<&'a [f32]>,
    ) -> Attention<'a> {
        let [batch, heads, queries, keys, depth, width] = sizes;
        let rows = |numbers, rows: usize, width: usize| Rows {
            numbers: Elements::F32(numbers),
            steps: [rows * heads * width, width, heads * width, 1],
        };
        let (q, k, v) = (rows(q, queries, depth), rows(k, keys, depth), rows(v, keys, width));
        let mask = mask.map(|m| Rows { numbers: Elements::F32(m), steps: [0, 0, keys, 1] });
        Attention { batch, heads, queries, keys, depth, width, scale, q, k, v, mask }
    }

    fn answer(isa: Isa, threads: usize, attention: &Attention<'_>) -> Vec<f32> {
        let Attention { batch, queries, heads, width, .. } = *attention;
        let mut out = vec![9.0; batch * queries * heads * width];
        attention.run(isa, &Threads::new(threads), &mut out);
        out
    }

    #[test]
    fn odd_shapes_match_the_definition_on_every_path() {
        let mut random = Random::new(31);
        for round in 0..rounds(40) {
            let sizes = [
                1 + random.below(2),
                1 + random.below(3),
                1 + random.below(size(70)),
                1 + random.below(size(if round % 8 == 0 { 600 } else { 60 })),
                1 + random.below(size(80)),
                1 + random.below(size(80)),
            ];
            let [batch, heads, queries, keys, depth, width] = sizes;
            let q = random.noise(batch * queries * heads * depth);
            let k = random.noise(batch * keys * heads * depth);
            let v = random.noise(batch * keys * heads * width);
            let mut mask = random.noise(queries * keys);
            for (index, value) in mask.iter_mut().enumerate() {
                // Some places are hidden, never all of a row's.
                if index % keys > 0 && random.below(3) == 0 {
                    *value = if round % 2 == 0 { f32::NEG_INFINITY } else { -30_000.0 };
                }
            }
            let mask = (round % 3 > 0).then_some(&mask[..]);
            let scale = 0.1 + random.signed().abs();
            let expect = naive(sizes, scale, [&q, &k, &v], mask);
            let given = attention(sizes, scale, [&q, &k, &v], mask);
            for isa in Isa::all() {
                let one = answer(isa, 1, &given);
                close(&one, &expect, 3e-6, &format!("{isa:?} {sizes:?}"));
                assert_eq!(one, answer(isa, 3, &given), "{isa:?} {sizes:?}: threads");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_row_is_the_same_whatever_else_is_asked() {
        let mut random = Random::new(32);
        let sizes = [1, 2, 45, 50, 24, 20];
        let (q, k, v) = (random.noise(45 * 48), random.noise(50 * 48), random.noise(50 * 40));
        let all = answer(Isa::detect(), 1, &attention(sizes, 0.3, [&q, &k, &v], None));
        for row in [0, 31, 44] {
            let alone = [1, 2, 1, 50, 24, 20];
            let query = &q[row * 48..][..48];
            let one = answer(Isa::detect(), 1, &attention(alone, 0.3, [query, &k, &v], None));
            assert_eq!(one, all[row * 40..][..40]);
        }
    }

    #[test]
    fn a_row_that_sees_nothing_is_no_number() {
        let (x, mask) = ([1.0, 2.0], [f32::NEG_INFINITY; 2]);
        let sizes = [1, 1, 1, 2, 1, 1];
        let out = answer(Isa::detect(), 1, &attention(sizes, 1.0, [&x[..1], &x, &x], Some(&mask)));
        assert!(out[0].is_nan());
    }
}
