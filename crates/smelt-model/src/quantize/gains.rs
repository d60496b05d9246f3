//! The vectors g by which activations carry errors to later inputs, for wide inputs of few samples.
//!
//! Eliminating inputs from the last on leaves H = X P Xᵀ + λI with P of n by n, so M[j,k] is x_j · g_k with
//! g_k = P x_k / (λ + x_k · P x_k): n² numbers are held, and K² never.

use pulp::{Arch, Simd, WithSimd};

use super::activations::Activations;
use super::eliminate::{Eliminated, TOGETHER, for_chunks, lower};

/// The vectors g of all inputs, `[inputs, samples]`, where λ is `damping`; found from the last to the first.
pub(super) fn gains(x: &Activations, damping: f64, threads: usize) -> Vec<f32> {
    let (inputs, samples) = (x.inputs(), x.samples);
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
            lower(n, row, &eliminated);
        });
    }
    gain
}

/// Rows of P that meet samples at once, so that their sums do not wait for each other.
const ROWS: usize = 4;

/// The products of up to [`ROWS`] rows of P with the samples of a block of inputs.
struct Meet<'a> {
    /// `[rows, samples]`.
    rows: &'a [f64],
    beside: &'a [[f64; TOGETHER]],
}

impl WithSimd for Meet<'_> {
    type Output = [[f64; TOGETHER]; ROWS];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let mut all = [[0.0; TOGETHER]; ROWS];
        let rows: Vec<&[f64]> = self.rows.chunks(self.beside.len()).collect();
        let lanes = S::F64_LANES.min(TOGETHER);
        for first in (0..TOGETHER).step_by(lanes) {
            let mut sums = [simd.splat_f64s(0.0); ROWS];
            for (n, beside) in self.beside.iter().enumerate() {
                let beside = S::as_simd_f64s(&beside[first..first + lanes]).0[0];
                for (sum, row) in sums.iter_mut().zip(&rows) {
                    let products = simd.mul_f64s(simd.splat_f64s(row[n]), beside);
                    *sum = simd.add_f64s(*sum, products);
                }
            }
            for (all, sum) in all.iter_mut().zip(sums) {
                S::as_mut_simd_f64s(&mut all[first..first + lanes]).0[0] = sum;
            }
        }
        all
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
    for_chunks(threads, &mut products, ROWS * TOGETHER, |n, out| {
        let rows = &p[n * ROWS * samples..][..out.len() / TOGETHER * samples];
        let products = Arch::new().dispatch(Meet { rows, beside: &beside });
        out.copy_from_slice(&products.as_flattened()[..out.len()]);
    });
    let mut gone: Vec<Eliminated> = Vec::new();
    for (lane, _) in block.enumerate().rev() {
        let mut u: Vec<f64> = products.chunks(TOGETHER).map(|lanes| lanes[lane]).collect();
        let along = |u: &[f64]| u.iter().zip(&beside).map(|(u, x)| u * x[lane]).sum::<f64>();
        gone.iter().for_each(|later| later.leave(&mut u, along(&later.u)));
        let pivot = damping + along(&u).max(0.0);
        gone.push(Eliminated { u, pivot });
    }
    gone.reverse();
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use crate::quantize::activations::dot;

    /// The vectors g by their definition, the matrix to invert written out.
    #[test]
    fn gains_are_those_of_the_definition() {
        let (inputs, samples) = (37, 6);
        let x = Activations::from_rows(&noise(9, inputs * samples), inputs);
        let damping = 0.01 * x.energy().iter().sum::<f64>() / inputs as f64;
        let found = gains(&x, damping, 3);
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
}
