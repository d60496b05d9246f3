//! Chooses integers one input after another, each making up for the errors of those before it.
//!
//! With the activations x a layer was seen to take, GPTQ (Frantar et al., 2022) minimises
//! |(W - Ŵ)x|² + damping.  Write H = XᵀX + λI = M D Mᵀ with M unit upper triangular: input k is rounded at
//! w_k + Σ_{j<k} e_j M[j,k] (Chee et al., 2023, theorem 6), e_j being w_j - ŵ_j.  [`super::carry`] says how
//! the sum is had.  Knows nothing of files.

use pulp::{Arch, Simd, WithSimd};

use super::activations::Activations;
use super::carry::{Carry, Met};
use super::figures::{RowSums, Sums};
use super::group::{QuantParams, Rounded, Rounder};

/// λ as a part of the mean of H's diagonal, at least: the value of the paper, which knows 64 activations for each input
/// and more.
pub(super) const DAMPING: f64 = 0.01;

/// What λ is where activations are few, times as many as there are for each input, as a part of the median of H's diagonal.
const DAMPING_OF_FEW: f64 = 0.5;

/// Inputs rounded between two products, where a group does not say: one panel of products.
const BLOCK: usize = 128;

/// What earlier errors ask of each input.
pub(super) struct Feedback {
    inputs: usize,
    /// Inputs rounded between two products.
    block: usize,
    /// To later blocks.
    carry: Carry,
    /// `[inputs, block]`: M inside each block, row j holding M[j,k] for the k of its block.
    inside: Vec<f32>,
    /// Where groups stay as they lie while inputs are rounded in another order.
    places: Option<RoundingOrder>,
}

/// How groups that stay as they lie are rounded.
struct RoundingOrder {
    /// The inputs in the order they are rounded.
    order: Vec<usize>,
    /// What errors of each input cost, in the inputs' own order: groups choose their clips by it.
    importance: Vec<f32>,
}

/// What was seen of some inputs, in the order in which they are rounded.
pub(super) struct Basis {
    inputs: usize,
    block: usize,
    /// Mean of H's diagonal.
    energy: f64,
    /// λ as a part of it, which is right for as many activations.
    damping: f64,
    met: Met,
}

impl Basis {
    /// Of `x`, the inputs of which share scales by `group`.
    pub(super) fn new(x: Activations, group: Option<usize>, threads: usize) -> Self {
        let inputs = x.inputs();
        let block = group.unwrap_or(BLOCK).min(inputs);
        let energies = x.energy();
        let energy = energies.iter().sum::<f64>() / inputs as f64;
        let damping = damping(energies, energy, x.samples);
        Self { inputs, block, energy, damping, met: Met::new(x, block, threads) }
    }

    /// The feedback for the λ that is right for as many activations as are known.
    pub(super) fn usual(&self, threads: usize) -> Feedback {
        self.feedback(self.damping, threads)
    }

    /// The feedback for λ as the part `damping` of the mean of H's diagonal.
    pub(super) fn feedback(&self, damping: f64, threads: usize) -> Feedback {
        // Layers that were never fed are rounded as they are.
        let damping = if self.energy > 0.0 { damping * self.energy } else { 1.0 };
        let (carry, inside) = self.met.carry(damping, self.block, threads);
        Feedback { inputs: self.inputs, block: self.block, carry, inside, places: None }
    }
}

/// λ as a part of `mean`, that of H's diagonal `energies`, of which `samples` activations are known.
///
/// Few activations have directions in which they hardly differ, by chance.  With the paper's λ errors of weights are carried
/// there, where others cost much: of 2,048 for the 1,536 inputs of SmolLM2-135M's `down_proj`, those that it was not fitted to
/// cost three times as much as those that it was.  How far chance goes says the median: inputs that are loud are few.
fn damping(mut energies: Vec<f64>, mean: f64, samples: usize) -> f64 {
    let inputs = energies.len();
    energies.sort_by(f64::total_cmp);
    let part = if mean > 0.0 { energies[inputs / 2] / mean } else { 0.0 };
    DAMPING.max(DAMPING_OF_FEW * part * inputs as f64 / samples.max(1) as f64)
}

impl Feedback {
    /// The same for inputs that were put in `order` before, while groups stay as they lie; their clips are
    /// chosen by `importance`, one of each input in its own place.
    pub(super) fn in_places(self, order: Vec<usize>, importance: Vec<f32>) -> Self {
        Self { places: Some(RoundingOrder { order, importance }), ..self }
    }

    /// Rounds `rows` of weights `[rows, inputs]` and appends them to `out`; adds to `sums` what each costs, or says
    /// which row holds a value that no scale can.
    pub(super) fn round(
        &self,
        rows: &[f32],
        rounder: Rounder,
        out: &mut Rounded,
        sums: &mut Sums,
    ) -> Result<(), usize> {
        self.solve(rows, rounder)?.put(rows, rounder, out, sums);
        Ok(())
    }

    /// What `rows` `[rows, inputs]` would be rounded to, in their own order of inputs.
    pub(super) fn rounded(&self, rows: &[f32], rounder: Rounder) -> Result<Vec<f32>, usize> {
        Ok(self.solve(rows, rounder)?.values)
    }

    fn solve(&self, rows: &[f32], rounder: Rounder) -> Result<Solved, usize> {
        let width = self.inputs;
        let mut solved = Solved::new(rows.len() / width, width, rounder.grid.groups(width));
        let group = rounder.grid.group.unwrap_or(width);
        let Some(RoundingOrder { order, importance }) = &self.places else {
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
        let mut carried = self.carry.nothing(rows.len() / self.inputs, self.inputs);
        for first in (0..self.inputs).step_by(self.block) {
            let block = (first, self.block.min(self.inputs - first), self.block);
            let mut wanted = of_block(rows, self.inputs, first, block.1);
            self.carry.ask(&carried, block, &mut wanted);
            if let Some(rounder) = rounder {
                let settled = self.settled(rows, first, &wanted);
                solved.fit(&settled, block.1, group_of(first), (rounder, None))?;
            }
            let errors = self.round_block(rows, first, &mut wanted, (solved, &group_of));
            self.carry.take(&mut carried, block, &errors);
        }
        Ok(())
    }

    /// What a block would be rounded at if its own inputs were exact, which is what its scales are
    /// for: the errors of earlier blocks, made up for by all later inputs together.
    fn settled(&self, rows: &[f32], first: usize, wanted: &[f32]) -> Vec<f32> {
        let (mut settled, width) = (wanted.to_vec(), self.inputs);
        let block = wanted.len() * width / rows.len();
        let inside = &self.inside[first * self.block..];
        let all = rows.chunks(width).zip(settled.chunks_mut(block));
        for (row, settled) in all {
            let weights = &row[first..first + block];
            Arch::new().dispatch(Settle { weights, inside, stride: self.block, settled });
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
        let inside = &self.inside[first * self.block..];
        let all = wanted.chunks_mut(block).zip(errors.chunks_mut(block));
        for (n, (wanted, errors)) in all.enumerate() {
            let steps = &solved.steps[n * solved.groups..][..solved.groups];
            let steps = (0..block).map(|k| steps[group_of(first + k)]).collect::<Vec<_>>();
            let here = n * width + first..n * width + first + block;
            let quants = &mut solved.quants[here.clone()];
            let values = &mut solved.values[here.clone()];
            let weights = &rows[here];
            let row = Row { weights, steps: &steps, wanted, quants, values, errors };
            Arch::new().dispatch(RoundRow { row, inside, stride: self.block });
        }
        errors
    }
}

/// Takes what the inputs of a block ask of each other back out of one row of `settled`.
struct Settle<'a> {
    weights: &'a [f32],
    /// `[inputs, stride]` from the block's first input on.
    inside: &'a [f32],
    stride: usize,
    settled: &'a mut [f32],
}

impl WithSimd for Settle<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { weights, inside, stride, settled } = self;
        for (k, inside) in inside.chunks(stride).take(weights.len()).enumerate() {
            add_scaled(weights[k] - settled[k], &inside[k + 1..], &mut settled[k + 1..]);
        }
    }
}

/// One row of a block.
struct Row<'a> {
    weights: &'a [f32],
    /// Of each input.
    steps: &'a [QuantParams],
    wanted: &'a mut [f32],
    quants: &'a mut [u8],
    values: &'a mut [f32],
    errors: &'a mut [f32],
}

/// Rounds one row of a block input by input.
struct RoundRow<'a> {
    row: Row<'a>,
    /// `[inputs, stride]` from the block's first input on.
    inside: &'a [f32],
    stride: usize,
}

impl WithSimd for RoundRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Row { weights, steps, wanted, quants, values, errors } = self.row;
        for (k, inside) in self.inside.chunks(self.stride).take(weights.len()).enumerate() {
            (quants[k], values[k]) = steps[k].round(wanted[k]);
            errors[k] = weights[k] - values[k];
            add_scaled(errors[k], &inside[k + 1..], &mut wanted[k + 1..]);
        }
    }
}

/// `to += scale * values`.
#[inline(always)]
fn add_scaled(scale: f32, values: &[f32], to: &mut [f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += scale * value;
    }
}

/// The columns of a block: `[rows, block]`.
fn of_block(rows: &[f32], width: usize, first: usize, block: usize) -> Vec<f32> {
    rows.chunks(width).flat_map(|row| &row[first..first + block]).copied().collect()
}

/// The rows being rounded.
struct Solved {
    /// `[rows, inputs]`, one integer a byte.
    quants: Vec<u8>,
    /// `[rows, inputs]`: what the integers stand for.
    values: Vec<f32>,
    /// `[rows, groups]`.
    steps: Vec<QuantParams>,
    groups: usize,
    width: usize,
}

impl Solved {
    fn new(rows: usize, width: usize, groups: usize) -> Self {
        Self {
            quants: vec![0; rows * width],
            values: vec![0.0; rows * width],
            steps: vec![QuantParams::ZERO; rows * groups],
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
        let (mut quants, mut values) = (vec![0; self.width], vec![0.0; self.width]);
        let rows = self.quants.chunks_mut(self.width).zip(self.values.chunks_mut(self.width));
        for (row_quants, row_values) in rows {
            for (k, input) in order.iter().enumerate() {
                (quants[*input], values[*input]) = (row_quants[k], row_values[k]);
            }
            row_quants.copy_from_slice(&quants);
            row_values.copy_from_slice(&values);
        }
    }

    /// Appends all rows as they are stored.
    fn put(&self, rows: &[f32], rounder: Rounder, out: &mut Rounded, sums: &mut Sums) {
        for (n, row) in rows.chunks(self.width).enumerate() {
            let steps = &self.steps[n * self.groups..][..self.groups];
            steps.iter().for_each(|step| rounder.put_step(*step, out));
            let here = n * self.width..(n + 1) * self.width;
            rounder.put_quants(&self.quants[here.clone()], out);
            let mut row_sums = RowSums::default();
            row_sums.add_row(row, &self.values[here]);
            sums.add(row_sums.sums());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use crate::quantize::group::CLIPS;
    use crate::scheme::Scheme;

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
                Basis::new(x, grid.group, 2)
                    .feedback(DAMPING, 2)
                    .round(&rows, rounder, &mut found, &mut Sums::default())
                    .unwrap();
                assert_eq!(found.quants, alone.quants, "{scheme}");
                assert_eq!(
                    (found.scales, found.zeros),
                    (alone.scales.clone(), alone.zeros.clone())
                );
            }
        }
    }

    #[test]
    fn the_fewer_activations_the_larger_the_damping() {
        let of = |inputs: usize, samples: usize| damping(vec![3.0; inputs], 3.0, samples);
        assert_eq!(of(4096, 128 * 2048), DAMPING);
        assert_eq!([of(576, 2048), of(1536, 2048), of(80, 40)], [0.140625, 0.375, 1.0]);
        // Of four inputs one is loud: what the others need is less beside the mean.
        assert_eq!(damping(vec![97.0, 1.0, 1.0, 1.0], 25.0, 2), 0.04);
        assert_eq!(damping(vec![0.0; 4], 0.0, 2), DAMPING);
    }

    /// Activations `[samples, inputs]` of a few causes, and of each input's own.
    fn caused(seed: u32, inputs: usize, samples: usize) -> Vec<f32> {
        const CAUSES: usize = 16;
        let (shares, causes) = (noise(99, inputs * CAUSES), noise(seed, samples * CAUSES));
        let own = noise(seed + 1, samples * inputs);
        let of = |(sample, input): (usize, usize)| {
            let shares = &shares[input * CAUSES..][..CAUSES];
            let causes = &causes[sample * CAUSES..][..CAUSES];
            let sum: f32 = shares.iter().zip(causes).map(|(share, cause)| share * cause).sum();
            sum + 2.0 * own[sample * inputs + input]
        };
        (0..samples)
            .flat_map(|sample| (0..inputs).map(move |input| (sample, input)))
            .map(of)
            .collect()
    }

    #[test]
    fn what_was_fitted_to_few_activations_holds_for_others() {
        let (inputs, samples) = (128, 160);
        let (seen, other) = (caused(1, inputs, samples), caused(5, inputs, samples));
        let rows = noise(8, 24 * inputs);
        let rounder = Rounder { grid: Scheme::Int4G32.grid().unwrap(), clips: CLIPS };
        let basis = Basis::new(Activations::from_rows(&seen, inputs), Some(32), 2);
        let cost = |feedback: &Feedback| -> f64 {
            let found = feedback.rounded(&rows, rounder).unwrap();
            let missed = |(x, (w, r)): (&f32, (&f32, &f32))| f64::from(x * (w - r));
            let pairs = rows.chunks(inputs).zip(found.chunks(inputs));
            let outputs = pairs.flat_map(|(row, found)| {
                other.chunks(inputs).map(move |x| {
                    let sum: f64 = x.iter().zip(row.iter().zip(found)).map(missed).sum();
                    sum.powi(2)
                })
            });
            outputs.sum()
        };
        let (paper, ours) = (cost(&basis.feedback(DAMPING, 2)), cost(&basis.usual(2)));
        assert!(ours < 0.9 * paper, "{ours} of {paper}");
    }

    #[test]
    fn a_value_that_is_not_finite_names_its_row() {
        let mut rows = noise(1, 3 * 40);
        rows[40 + 7] = f32::NAN;
        let rounder = Rounder { grid: Scheme::Int4G32.grid().unwrap(), clips: CLIPS };
        let x = Activations::from_rows(&noise(2, 5 * 40), 40);
        let feedback = Basis::new(x, Some(32), 1).feedback(DAMPING, 1);
        assert_eq!(
            feedback.round(&rows, rounder, &mut Rounded::default(), &mut Sums::default()),
            Err(1)
        );
    }
}
