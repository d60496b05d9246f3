//! Chooses integers one input after another, each making up for the errors of those before it.
//!
//! With the activations x a layer was seen to take, GPTQ (Frantar et al., 2022) minimises
//! |(W - Ŵ)x|² + damping.  Its usual form inverts the Hessian H = XᵀX + λI, K² numbers; the same
//! answer needs only the n rows of X.  Write H = M D Mᵀ with M unit upper triangular: input k is
//! rounded at w_k + Σ_{j<k} e_j M[j,k] (Chee et al., 2023, theorem 6), e_j being w_j - ŵ_j.
//! Eliminating inputs from the last on leaves H = X P Xᵀ + λI with P of n by n, so M[j,k] is
//! x_j · g_k with g_k = P x_k / (λ + x_k · P x_k), and the sum is the dot product of g_k with the
//! output error so far, n numbers a row.  Knows nothing of files.

use std::sync::Arc;
use std::thread;

use pulp::{Arch, Simd, WithSimd};

use super::figures::{RowSums, Sums};
use super::group::{Rounded, Rounder, Step};
use crate::reference::matmul::{Panels, Target, View};

/// λ as a part of the mean of H's diagonal; the value of the paper.
pub(super) const DAMPING: f64 = 0.01;

/// Sums of a dot product that are kept apart.
const DOT_LANES: usize = 8;

/// Inputs eliminated together: their products with a row of P stay in registers.
const TOGETHER: usize = 16;

/// Inputs rounded between two products, where a group does not say: one panel of products.
const BLOCK: usize = 128;

/// Activations of one layer: `[inputs, samples]`, an input's samples side by side.
#[derive(Clone, Debug)]
pub(super) struct Activations {
    pub(super) values: Vec<f32>,
    pub(super) samples: usize,
}

impl Activations {
    /// From `rows` `[samples, width]`.
    pub(super) fn from_rows(rows: &[f32], width: usize) -> Self {
        let column = |input| rows.iter().skip(input).step_by(width).copied();
        Self { values: (0..width).flat_map(column).collect(), samples: rows.len() / width }
    }

    pub(super) fn inputs(&self) -> usize {
        self.values.len() / self.samples
    }

    fn of(&self, input: usize) -> &[f32] {
        &self.values[input * self.samples..][..self.samples]
    }

    /// Σ x² of each input.
    pub(super) fn energy(&self) -> Vec<f64> {
        self.values.chunks(self.samples).map(|x| dot(x, x)).collect()
    }

    /// Inputs by falling energy; equal ones keep their order.
    pub(super) fn order(&self) -> Vec<usize> {
        let energy = self.energy();
        let mut order: Vec<usize> = (0..self.inputs()).collect();
        order.sort_by(|a, b| energy[*b].total_cmp(&energy[*a]));
        order
    }

    /// The same with inputs in another order.
    pub(super) fn reordered(&self, order: &[usize]) -> Self {
        let values = order.iter().flat_map(|input| self.of(*input)).copied().collect();
        Self { values, samples: self.samples }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    struct Dot<'a>(&'a [f32], &'a [f32]);
    impl WithSimd for Dot<'_> {
        type Output = f64;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> f64 {
            let ((a, a_last), (b, b_last)) =
                (self.0.as_chunks::<DOT_LANES>(), self.1.as_chunks::<DOT_LANES>());
            let mut sums = [0.0; DOT_LANES];
            for (a, b) in a.iter().zip(b) {
                for lane in 0..DOT_LANES {
                    sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
                }
            }
            let last = a_last.iter().zip(b_last).map(|(a, b)| f64::from(*a) * f64::from(*b));
            sums.iter().sum::<f64>() + last.sum::<f64>()
        }
    }
    Arch::new().dispatch(Dot(a, b))
}

/// The activations of some inputs side by side, packed so that errors of blocks of inputs become output errors.
#[derive(Clone)]
pub(super) struct Packed(Arc<Vec<Panels>>);

/// What earlier errors ask of each input.
pub(super) struct Feedback {
    inputs: usize,
    samples: usize,
    /// Inputs rounded between two products.
    block: usize,
    /// Of each block: x, `[inputs of the block, samples]` as errors meet it.
    x: Packed,
    /// Of each block: the vectors g as output errors meet them.
    gain: Vec<Panels>,
    /// `[inputs, block]`: M inside each block, row j holding x_j · g_k for the k of its block.
    inside: Vec<f32>,
    /// Where groups stay as they lie while inputs are rounded in another order.
    places: Option<Places>,
}

/// How groups that stay as they lie are rounded.
struct Places {
    /// The inputs in the order they are rounded.
    order: Vec<usize>,
    /// What errors of each input cost, in the inputs' own order: groups choose their clips by it.
    importance: Vec<f32>,
}

impl Packed {
    /// `x`, in blocks of `block` inputs.
    pub(super) fn new(x: &Activations, block: usize) -> Self {
        let pack = |inputs: &[f32]| {
            let mut panels = Panels::default();
            let view = View::rows(inputs, x.samples).transposed();
            panels.pack(view, x.samples, inputs.len() / x.samples, 1);
            panels
        };
        Self(Arc::new(x.values.chunks(block * x.samples).map(pack).collect()))
    }
}

/// Inputs rounded between two products where scales are shared by `group`.
pub(super) fn block_of(inputs: usize, group: Option<usize>) -> usize {
    group.unwrap_or(BLOCK).min(inputs)
}

impl Feedback {
    /// The feedback for inputs in the order of `x`, rounded `group` at a time.
    pub(super) fn new(x: &Activations, group: Option<usize>, threads: usize) -> Self {
        let packed = Packed::new(x, block_of(x.inputs(), group));
        Self::damped(x, packed, group, (DAMPING, threads))
    }

    /// The same with λ as `damping` has it, `packed` being `x`.
    pub(super) fn damped(
        x: &Activations,
        packed: Packed,
        group: Option<usize>,
        (damping, threads): (f64, usize),
    ) -> Self {
        let (inputs, samples) = (x.inputs(), x.samples);
        let block = block_of(inputs, group);
        let gain = gains(x, damping, threads);
        let mut inside = vec![0.0; inputs * block];
        for_chunks(threads, &mut inside, block, |j, row| {
            let first = j / block * block;
            for k in j + 1..inputs.min(first + block) {
                row[k - first] = dot(x.of(j), &gain[k * samples..][..samples]) as f32;
            }
        });
        let pack = |gain: &[f32]| {
            let mut panels = Panels::default();
            panels.pack(View::rows(gain, samples), gain.len() / samples, samples, 1);
            panels
        };
        let gain = gain.chunks(block * samples).map(pack).collect();
        Self { inputs, samples, block, x: packed, gain, inside, places: None }
    }

    /// The same for inputs that were put in `order` before, while groups stay as they lie; their clips are
    /// chosen by `importance`, one of each input in its own place.
    pub(super) fn in_places(self, order: Vec<usize>, importance: Vec<f32>) -> Self {
        Self { places: Some(Places { order, importance }), ..self }
    }

    /// Rounds `rows` of weights `[rows, inputs]` and appends them to `out`; says what that costs, or
    /// which row holds a value that no scale can.
    pub(super) fn round(
        &self,
        rows: &[f32],
        rounder: Rounder,
        out: &mut Rounded,
    ) -> Result<Sums, usize> {
        Ok(self.solve(rows, rounder)?.put(rows, rounder, out))
    }

    /// What `rows` `[rows, inputs]` would be rounded to, in their own order of inputs.
    pub(super) fn rounded(&self, rows: &[f32], rounder: Rounder) -> Result<Vec<f32>, usize> {
        Ok(self.solve(rows, rounder)?.values)
    }

    fn solve(&self, rows: &[f32], rounder: Rounder) -> Result<Solved, usize> {
        let width = self.inputs;
        let mut solved = Solved::new(rows.len() / width, width, rounder.grid.groups(width));
        let group = rounder.grid.group.unwrap_or(width);
        let Some(Places { order, importance }) = &self.places else {
            if rounder.grid.group.is_none() {
                solved.fit(rows, width, 0, (rounder, None))?;
            }
            self.go(rows, &mut solved, |k| k / group, Some(rounder))?;
            return Ok(solved);
        };
        for (index, importance) in importance.chunks(group).enumerate() {
            let values: Vec<f32> = rows
                .chunks(width)
                .flat_map(|row| &row[index * group..][..importance.len()])
                .copied()
                .collect();
            solved.fit(&values, importance.len(), index, (rounder, Some(importance)))?;
        }
        let ordered: Vec<f32> =
            rows.chunks(width).flat_map(|row| order.iter().map(|input| row[*input])).collect();
        self.go(&ordered, &mut solved, |k| order[k] / group, None)?;
        solved.put_back(order);
        Ok(solved)
    }

    /// Rounds `rows`, in the order of this, block by block; input k belongs to the group `group_of(k)`,
    /// the steps of which are found at the beginning of its block by `rounder` where one is given.
    fn go(
        &self,
        rows: &[f32],
        solved: &mut Solved,
        group_of: impl Fn(usize) -> usize,
        rounder: Option<Rounder>,
    ) -> Result<(), usize> {
        let rounder = rounder.filter(|rounder| rounder.grid.group.is_some());
        let mut missed = vec![0.0; rows.len() / self.inputs * self.samples];
        for first in (0..self.inputs).step_by(self.block) {
            let block = self.block.min(self.inputs - first);
            let mut wanted = self.wanted(rows, first, block, &missed);
            if let Some(rounder) = rounder {
                let settled = self.settled(rows, first, &wanted);
                solved.fit(&settled, block, group_of(first), (rounder, None))?;
            }
            let errors = self.round_block(rows, first, &mut wanted, (solved, &group_of));
            self.add_missed(&errors, first, &mut missed);
        }
        Ok(())
    }

    /// `w_k` plus what the errors of earlier blocks ask for: `[rows, block]`.
    fn wanted(&self, rows: &[f32], first: usize, block: usize, missed: &[f32]) -> Vec<f32> {
        let mut wanted: Vec<f32> =
            rows.chunks(self.inputs).flat_map(|row| &row[first..first + block]).copied().collect();
        let mut target = Target { values: &mut wanted, stride: block, column: 0 };
        self.gain[first / self.block].add_product(View::rows(missed, self.samples), &mut target);
        wanted
    }

    /// What a block would be rounded at if its own inputs were exact, which is what its scales are
    /// for: the errors of earlier blocks, made up for by all later inputs together.
    fn settled(&self, rows: &[f32], first: usize, wanted: &[f32]) -> Vec<f32> {
        let width = self.inputs;
        let block = wanted.len() * width / rows.len();
        let mut settled = wanted.to_vec();
        for (row, settled) in rows.chunks(width).zip(settled.chunks_mut(block)) {
            for k in 0..block {
                let moved = settled[k] - row[first + k];
                let inside = &self.inside[(first + k) * self.block..][..block];
                for (settled, gain) in settled[k + 1..].iter_mut().zip(&inside[k + 1..]) {
                    *settled -= moved * gain;
                }
            }
        }
        settled
    }

    /// Rounds one block input by input; returns the errors `[rows, block]`.
    fn round_block(
        &self,
        rows: &[f32],
        first: usize,
        wanted: &mut [f32],
        (solved, group_of): (&mut Solved, &impl Fn(usize) -> usize),
    ) -> Vec<f32> {
        let width = self.inputs;
        let block = wanted.len() * width / rows.len();
        let mut errors = vec![0.0; wanted.len()];
        for (n, (wanted, errors)) in
            wanted.chunks_mut(block).zip(errors.chunks_mut(block)).enumerate()
        {
            for k in 0..block {
                let column = first + k;
                let step = solved.steps[n * solved.groups + group_of(column)];
                let (level, value) = step.round(wanted[k]);
                solved.levels[n * width + column] = level;
                solved.values[n * width + column] = value;
                let error = rows[n * width + column] - value;
                errors[k] = error;
                let inside = &self.inside[column * self.block..][..block];
                for (wanted, gain) in wanted[k + 1..].iter_mut().zip(&inside[k + 1..]) {
                    *wanted += error * gain;
                }
            }
        }
        errors
    }

    /// Adds a block's errors to the output errors: `[rows, samples]`.
    fn add_missed(&self, errors: &[f32], first: usize, missed: &mut [f32]) {
        let block = errors.len() * self.samples / missed.len();
        let mut target = Target { values: missed, stride: self.samples, column: 0 };
        self.x.0[first / self.block].add_product(View::rows(errors, block), &mut target);
    }
}

/// The rows being rounded.
struct Solved {
    /// `[rows, inputs]`, one integer a byte.
    levels: Vec<u8>,
    /// `[rows, inputs]`: what the integers stand for.
    values: Vec<f32>,
    /// `[rows, groups]`.
    steps: Vec<Step>,
    groups: usize,
    width: usize,
}

impl Solved {
    fn new(rows: usize, width: usize, groups: usize) -> Self {
        Self {
            levels: vec![0; rows * width],
            values: vec![0.0; rows * width],
            steps: vec![Step::ZERO; rows * groups],
            groups,
            width,
        }
    }

    /// Finds the steps of the group `index` in all rows, the values of which lie in `rows` `width` apart.
    fn fit(
        &mut self,
        rows: &[f32],
        width: usize,
        index: usize,
        (rounder, importance): (Rounder, Option<&[f32]>),
    ) -> Result<(), usize> {
        for (n, row) in rows.chunks(width).enumerate() {
            self.steps[n * self.groups + index] = rounder.fit(row, importance).ok_or(n)?;
        }
        Ok(())
    }

    /// Puts columns that were rounded in `order` back to where they belong.
    fn put_back(&mut self, order: &[usize]) {
        let (mut levels, mut values) = (vec![0; self.width], vec![0.0; self.width]);
        let rows = self.levels.chunks_mut(self.width).zip(self.values.chunks_mut(self.width));
        for (row_levels, row_values) in rows {
            for (k, input) in order.iter().enumerate() {
                (levels[*input], values[*input]) = (row_levels[k], row_values[k]);
            }
            row_levels.copy_from_slice(&levels);
            row_values.copy_from_slice(&values);
        }
    }

    /// Appends all rows as they are stored.
    fn put(&self, rows: &[f32], rounder: Rounder, out: &mut Rounded) -> Sums {
        let mut sums = Sums::default();
        for (n, row) in rows.chunks(self.width).enumerate() {
            let steps = &self.steps[n * self.groups..][..self.groups];
            steps.iter().for_each(|step| rounder.put_step(*step, out));
            let here = n * self.width..(n + 1) * self.width;
            rounder.put_levels(&self.levels[here.clone()], out);
            let mut row_sums = RowSums::default();
            row_sums.add_row(row, &self.values[here]);
            sums.add(row_sums.sums());
        }
        sums
    }
}

/// The vectors g of all inputs, found from the last to the first.
fn gains(x: &Activations, damping: f64, threads: usize) -> Vec<f32> {
    let (inputs, samples) = (x.inputs(), x.samples);
    let mean = x.energy().iter().sum::<f64>() / inputs as f64;
    // Layers that were never fed are rounded as they are.
    let damping = if mean > 0.0 { damping * mean } else { 1.0 };
    let mut gain = vec![0.0; inputs * samples];
    let mut p = vec![0.0; samples * samples];
    (0..samples).for_each(|n| p[n * samples + n] = 1.0);
    for first in (0..inputs).step_by(TOGETHER).rev() {
        let block = first..inputs.min(first + TOGETHER);
        let eliminated = eliminate(x, block.clone(), &p, damping, threads);
        for (input, gone) in block.zip(&eliminated).rev() {
            let gain = &mut gain[input * samples..][..samples];
            gain.iter_mut().zip(&gone.u).for_each(|(gain, u)| *gain = (u / gone.pivot) as f32);
        }
        for_chunks(threads, &mut p, samples, |n, row| {
            Arch::new().dispatch(Lower { n, row, eliminated: &eliminated });
        });
    }
    gain
}

/// One input taken out: u = P x and λ + x · u, all later inputs taken out before.
struct Eliminated {
    u: Vec<f64>,
    pivot: f64,
}

/// Takes what was eliminated out of row `n` of P.
struct Lower<'a> {
    n: usize,
    row: &'a mut [f64],
    eliminated: &'a [Eliminated],
}

impl WithSimd for Lower<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { n, row, eliminated } = self;
        /// Values of a row that stay in registers while all of a block is taken out of them.
        const PART: usize = 32;
        let factors: Vec<f64> = eliminated.iter().map(|gone| gone.u[n] / gone.pivot).collect();
        let (parts, last) = row.as_chunks_mut::<PART>();
        let first = parts.len() * PART;
        for (index, part) in parts.iter_mut().enumerate() {
            for (gone, factor) in eliminated.iter().zip(&factors) {
                let u = &gone.u.as_chunks::<PART>().0[index];
                for lane in 0..PART {
                    part[lane] -= factor * u[lane];
                }
            }
        }
        for (gone, factor) in eliminated.iter().zip(&factors) {
            last.iter_mut().zip(&gone.u[first..]).for_each(|(p, u)| *p -= factor * u);
        }
    }
}

/// The products of one row of P with the samples of a block of inputs.
struct Meet<'a> {
    row: &'a [f64],
    beside: &'a [[f64; TOGETHER]],
}

impl WithSimd for Meet<'_> {
    type Output = [f64; TOGETHER];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f64; TOGETHER] {
        let mut sums = [0.0; TOGETHER];
        for (p, lanes) in self.row.iter().zip(self.beside) {
            for lane in 0..TOGETHER {
                sums[lane] += p * lanes[lane];
            }
        }
        sums
    }
}

/// Takes the inputs of `block` out of `p`, the last one first; returned in the order of the block.
fn eliminate(
    x: &Activations,
    block: std::ops::Range<usize>,
    p: &[f64],
    damping: f64,
    threads: usize,
) -> Vec<Eliminated> {
    let samples = x.samples;
    // The samples of the block side by side, so that a row of P meets all of them at once.
    let mut beside = vec![[0.0; TOGETHER]; samples];
    for (lane, input) in block.clone().enumerate() {
        beside.iter_mut().zip(x.of(input)).for_each(|(lanes, x)| lanes[lane] = f64::from(*x));
    }
    let mut products = vec![0.0; samples * TOGETHER];
    for_chunks(threads, &mut products, TOGETHER, |n, out| {
        let row = &p[n * samples..][..samples];
        out.copy_from_slice(&Arch::new().dispatch(Meet { row, beside: &beside }));
    });
    let mut gone: Vec<Eliminated> = Vec::new();
    for (lane, _) in block.enumerate().rev() {
        let mut u: Vec<f64> = products.chunks(TOGETHER).map(|lanes| lanes[lane]).collect();
        let along = |u: &[f64]| u.iter().zip(&beside).map(|(u, x)| u * x[lane]).sum::<f64>();
        for later in &gone {
            let factor = along(&later.u) / later.pivot;
            u.iter_mut().zip(&later.u).for_each(|(u, later)| *u -= factor * later);
        }
        let pivot = damping + along(&u).max(0.0);
        gone.push(Eliminated { u, pivot });
    }
    gone.reverse();
    gone
}

/// Calls `work(index, chunk)` for all chunks of `values`, shared out to `threads` threads.
fn for_chunks<T: Send>(
    threads: usize,
    values: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let share = values.len().div_ceil(chunk).div_ceil(threads.max(1)).max(1);
    let work = &work;
    thread::scope(|scope| {
        for (n, values) in values.chunks_mut(share * chunk).enumerate() {
            let mut run = move || {
                for (index, values) in values.chunks_mut(chunk).enumerate() {
                    work(n * share + index, values);
                }
            };
            if n + 1 == threads { run() } else { drop(scope.spawn(run)) }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::group::CLIPS;
    use crate::scheme::Scheme;

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    /// Inputs that never occur together teach nothing, so each is rounded for itself.
    #[test]
    fn unrelated_inputs_are_rounded_as_they_are() {
        let width = 70;
        let rows = noise(5, 3 * width);
        for scheme in [Scheme::Int8, Scheme::Int8G32, Scheme::Int4G64, Scheme::Int4G32Asym] {
            let grid = scheme.grid().unwrap();
            let rounder = Rounder { grid, clips: CLIPS };
            let mut alone = Rounded::default();
            rounder.rows(&rows, width, None, &mut alone).unwrap();
            let mut one_each = vec![0.0; width * width];
            (0..width).for_each(|n| one_each[n * width + n] = 1.0 + n as f32);
            for x in [one_each, vec![0.0; 2 * width]] {
                let x = Activations::from_rows(&x, width);
                let mut found = Rounded::default();
                Feedback::new(&x, grid.group, 2).round(&rows, rounder, &mut found).unwrap();
                assert_eq!(found.levels, alone.levels, "{scheme}");
                assert_eq!(
                    (found.scales, found.zeros),
                    (alone.scales.clone(), alone.zeros.clone())
                );
            }
        }
    }

    /// The vectors g by their definition, the matrix to invert written out.
    #[test]
    fn gains_are_those_of_the_definition() {
        let (inputs, samples) = (37, 6);
        let x = Activations::from_rows(&noise(9, inputs * samples), inputs);
        let damping = DAMPING * x.energy().iter().sum::<f64>() / inputs as f64;
        let found = gains(&x, DAMPING, 3);
        for k in 0..inputs {
            // (λI + Σ_{j≥k} x_j x_jᵀ) g = x_k, since P_k x_k / (λ + x_k · P_k x_k) is its solution.
            let gain = &found[k * samples..][..samples];
            for n in 0..samples {
                let later = (k..inputs).map(|j| f64::from(x.of(j)[n]) * dot(x.of(j), gain));
                let product = damping * f64::from(gain[n]) + later.sum::<f64>();
                let expect = f64::from(x.of(k)[n]);
                assert!((product - expect).abs() < 1e-4, "{k} {n}: {product} {expect}");
            }
        }
    }

    #[test]
    fn a_value_that_is_not_finite_names_its_row() {
        let mut rows = noise(1, 3 * 40);
        rows[40 + 7] = f32::NAN;
        let rounder = Rounder { grid: Scheme::Int4G32.grid().unwrap(), clips: CLIPS };
        let feedback = Feedback::new(&Activations::from_rows(&noise(2, 5 * 40), 40), Some(32), 1);
        assert_eq!(feedback.round(&rows, rounder, &mut Rounded::default()), Err(1));
    }
}
