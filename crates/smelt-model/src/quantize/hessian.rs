//! The factor of the Hessian by which errors go on to later inputs, for inputs of many samples.
//!
//! H = XᵀX + λI = M D Mᵀ with M unit upper triangular: taking inputs out from the last on leaves the column
//! M[·,k] = H[·,k] / D[k] of each, K³/3 products in all and nothing inverted.

use super::activations::Activations;
use super::eliminate::{Eliminated, TOGETHER, for_chunks, lower};
use crate::reference::matmul::{Panels, Target, View};

/// Samples whose products are summed in f32 before f64 takes the sums.
const SAMPLES: usize = 256;

/// Rows of H made at once: with [`SAMPLES`] of each they stay in a core's cache.
const ROWS: usize = 48;

/// XᵀX of some inputs.
pub(super) struct Hessian {
    inputs: usize,
    /// `[inputs, inputs]`.
    values: Vec<f64>,
}

impl Hessian {
    /// The products of all pairs of inputs of `x`.
    pub(super) fn of(x: &Activations, threads: usize) -> Self {
        let inputs = x.inputs();
        let mut values = vec![0.0; inputs * inputs];
        let mut panels = Panels::default();
        for first in (0..x.samples).step_by(SAMPLES) {
            let count = SAMPLES.min(x.samples - first);
            let part = View::rows(&x.values[first..], x.samples);
            panels.pack(part, inputs, count, threads);
            for_chunks(threads, &mut values, ROWS * inputs, |index, rows| {
                let mut products = vec![0.0; rows.len()];
                let mut target = Target { values: &mut products, stride: inputs, column: 0 };
                panels.add_product(part.skip_rows(index * ROWS), &mut target);
                rows.iter_mut().zip(&products).for_each(|(sum, part)| *sum += f64::from(*part));
            });
        }
        Self { inputs, values }
    }

    /// How many inputs there are.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// M for λ = `damping`: `[inputs, inputs]`, of which only what is right of the diagonal counts.
    pub(super) fn factor(&self, damping: f64, threads: usize) -> Vec<f32> {
        let inputs = self.inputs;
        let mut rest = self.values.clone();
        rest.iter_mut().step_by(inputs + 1).for_each(|value| *value += damping);
        let mut factor = vec![0.0; inputs * inputs];
        for first in (0..inputs).step_by(TOGETHER).rev() {
            let gone = self.taken_out(&rest, first, damping);
            for_chunks(threads, &mut rest[..first * inputs], inputs, |n, row| {
                lower(n, &mut row[..=n], &gone);
            });
            for (k, gone) in (first..).zip(&gone) {
                for (row, u) in factor.chunks_mut(inputs).zip(&gone.u) {
                    row[k] = (u / gone.pivot) as f32;
                }
            }
        }
        factor
    }

    /// Takes the inputs of the block that begins with `first` out of `rest`, the last one first: each with what
    /// it has to do with the inputs up to itself.  Returned in the order of the block.
    fn taken_out(&self, rest: &[f64], first: usize, damping: f64) -> Vec<Eliminated> {
        let end = self.inputs.min(first + TOGETHER);
        let mut gone: Vec<Eliminated> = Vec::new();
        for k in (first..end).rev() {
            let mut u = rest[k * self.inputs..][..=k].to_vec();
            gone.iter().for_each(|later| later.leave(&mut u, later.u[k]));
            // No less is left of λ, whatever was lost in rounding.
            let pivot = u[k].max(damping);
            gone.push(Eliminated { u, pivot });
        }
        gone.reverse();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use crate::quantize::activations::dot;
    use crate::quantize::gains::gains;

    #[test]
    fn the_factor_multiplied_out_is_the_matrix() {
        let (inputs, samples) = (53, 300);
        let x = Activations::from_rows(&noise(4, inputs * samples), inputs);
        let found = Hessian::of(&x, 2).factor(3.0, 2);
        let m = |j: usize, k: usize| match j.cmp(&k) {
            std::cmp::Ordering::Less => f64::from(found[j * inputs + k]),
            std::cmp::Ordering::Equal => 1.0,
            std::cmp::Ordering::Greater => 0.0,
        };
        let h = |j: usize, k: usize| dot(x.of(j), x.of(k)) + if j == k { 3.0 } else { 0.0 };
        // D from the last on, then every entry.
        let mut d = vec![0.0; inputs];
        for k in (0..inputs).rev() {
            d[k] = h(k, k) - (k + 1..inputs).map(|l| m(k, l) * d[l] * m(k, l)).sum::<f64>();
        }
        for j in 0..inputs {
            for k in 0..inputs {
                let product: f64 = (0..inputs).map(|l| m(j, l) * d[l] * m(k, l)).sum();
                assert!((product - h(j, k)).abs() < 1e-3, "{j} {k}: {product} {}", h(j, k));
            }
        }
    }

    #[test]
    fn both_forms_are_one_matrix() {
        let (inputs, samples) = (40, 70);
        let x = Activations::from_rows(&noise(6, inputs * samples), inputs);
        let (square, gains) = (Hessian::of(&x, 1).factor(0.5, 1), gains(&x, 0.5, 1));
        for j in 0..inputs {
            for k in j + 1..inputs {
                let other = dot(x.of(j), &gains[k * samples..][..samples]);
                assert!((f64::from(square[j * inputs + k]) - other).abs() < 1e-4, "{j} {k}");
            }
        }
    }
}
