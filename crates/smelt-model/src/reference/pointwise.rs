//! Applies what looks at one row or one element at a time: norms, sums, softmax, GELU, SiLU, rotation.
//!
//! Sums and transcendental functions are taken in f64 and rounded once.  Reads no files.

use pulp::{Arch, Simd, WithSimd};

use super::elementary::{exp, sin_cos};

/// `(x - mean) / sqrt(variance + eps) * weight + bias`, row by row, in place.
pub(super) fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let width = weight.len() as f64;
    for row in x.chunks_mut(weight.len()) {
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / width;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / width;
        let scale = (variance + f64::from(eps)).sqrt().recip();
        for (x, (weight, bias)) in row.iter_mut().zip(weight.iter().zip(bias)) {
            *x = ((f64::from(*x) - mean) * scale * f64::from(*weight) + f64::from(*bias)) as f32;
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * weight`, row by row, in place.
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let width = weight.len() as f64;
    for row in x.chunks_mut(weight.len()) {
        let mean_square = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width;
        let scale = (mean_square + f64::from(eps)).sqrt().recip();
        for (x, weight) in row.iter_mut().zip(weight) {
            *x = (f64::from(*x) * scale * f64::from(*weight)) as f32;
        }
    }
}

/// `x + branch`, in place.
pub(super) fn add(x: &mut [f32], branch: &[f32]) {
    x.iter_mut().zip(branch).for_each(|(x, branch)| *x += branch);
}

/// Softmax of `scale * row` over its first `visible` entries; the rest become zero.
pub(super) fn softmax(row: &mut [f32], visible: usize, scale: f32) {
    let (seen, hidden) = row.split_at_mut(visible);
    hidden.fill(0.0);
    Arch::new().dispatch(Softmax { seen, scale });
}

/// Exponentials that are summed side by side.
const SUM_LANES: usize = 8;

struct Softmax<'a> {
    seen: &'a mut [f32],
    scale: f32,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { seen, scale } = self;
        let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0.0; SUM_LANES];
        for x in seen.iter_mut() {
            *x = exp(f64::from((*x - largest) * scale)) as f32;
        }
        let (chunks, last) = seen.as_chunks::<SUM_LANES>();
        for chunk in chunks {
            sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        sums.iter_mut().zip(last).for_each(|(sum, x)| *sum += f64::from(*x));
        let sum: f64 = sums.iter().sum();
        for x in seen {
            *x = (f64::from(*x) / sum) as f32;
        }
    }
}

/// `gate * sigmoid(gate) * up`, in place of `gate`.
pub(super) fn swiglu(gate: &mut [f32], up: &[f32]) {
    Arch::new().dispatch(Swiglu { gate, up });
}

struct Swiglu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl WithSimd for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            *gate = silu(*gate) * up;
        }
    }
}

/// `x * sigmoid(x)`.
#[inline(always)]
fn silu(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + exp(-x))) as f32
}

/// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, the GELU of `gelu_pytorch_tanh`.
pub(super) fn gelu_tanh(x: f32) -> f32 {
    let x = f64::from(x);
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
    (x / (1.0 + exp(-2.0 * inner))) as f32
}

/// `x * sigmoid(1.702 x)`, the quick GELU.
pub(super) fn quick_gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + exp(-1.702 * x))) as f32
}

/// Elements whose series are summed side by side, so that the loop runs in vector registers.
const SERIES_LANES: usize = 16;

/// `x/2 (1 + erf(x/√2))`, the exact GELU, in place.
pub(super) fn gelu(values: &mut [f32]) {
    Arch::new().dispatch(Gelu(values));
}

struct Gelu<'a>(&'a mut [f32]);

impl WithSimd for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for chunk in self.0.chunks_mut(SERIES_LANES) {
            let mut x = [0.0; SERIES_LANES];
            for (x, value) in x.iter_mut().zip(&*chunk) {
                *x = f64::from(*value);
            }
            let erf = erf(x.map(|x| x * std::f64::consts::FRAC_1_SQRT_2));
            for ((value, x), erf) in chunk.iter_mut().zip(x).zip(erf) {
                *value = (0.5 * x * (1.0 + erf)) as f32;
            }
        }
    }
}

/// Beyond this `1 - |erf(x)|` is under 2e-12, a hundred-thousandth of an f32 rounding step of 1.
const ERF_ARGUMENT_MAX: f64 = 5.0;
/// Terms that bring the series to f64 rounding at [`ERF_ARGUMENT_MAX`].
const ERF_TERMS: usize = 96;

/// The error function by DLMF 7.6.2, `2/√π · exp(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n+1))`.
///
/// All terms have one sign, so nothing cancels; the sum is taken from its far end inward.
#[inline(always)]
fn erf(x: [f64; SERIES_LANES]) -> [f64; SERIES_LANES] {
    let x = x.map(|x| x.clamp(-ERF_ARGUMENT_MAX, ERF_ARGUMENT_MAX));
    let doubled = x.map(|x| 2.0 * x * x);
    let mut sums = [1.0; SERIES_LANES];
    for n in (1..=ERF_TERMS).rev() {
        let reciprocal = ((2 * n + 1) as f64).recip();
        for (sum, doubled) in sums.iter_mut().zip(&doubled) {
            *sum = 1.0 + doubled * reciprocal * *sum;
        }
    }
    let mut erf = [0.0; SERIES_LANES];
    for ((erf, sum), x) in erf.iter_mut().zip(sums).zip(x) {
        *erf = std::f64::consts::FRAC_2_SQRT_PI * exp(-x * x) * x * sum;
    }
    erf
}

/// Rotates the halves of each head of each row of `x [positions, heads * 2 * half]` in place: the
/// pair (i, i + half) of row p turns by `angle(p, i)`.
///
/// Angles are in f32, as the models were trained; cosines and sines are multiplied by `factor`, 1
/// where positions are turned as they are.
pub(super) fn rotate_half(
    x: &mut [f32],
    row: usize,
    half: usize,
    factor: f32,
    angle: impl Fn(usize, usize) -> f32,
) {
    for (position, row) in x.chunks_mut(row).enumerate() {
        let angles = (0..half).map(|pair| f64::from(angle(position, pair)));
        let turns: Vec<(f32, f32)> =
            angles.map(sin_cos).map(|(s, c)| (s as f32 * factor, c as f32 * factor)).collect();
        for head in row.chunks_mut(2 * half) {
            let (low, high) = head.split_at_mut(half);
            for ((low, high), (sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_its_tabled_values() {
        // DLMF table 7.23 / Abramowitz and Stegun table 7.1, and the limits.
        let x = [0.0, 0.5, 1.0, -1.0, 2.0, 3.0, 4.0, 9.0];
        let tabled = [
            0.0,
            0.520_499_877_813_046_5,
            0.842_700_792_949_714_9,
            -0.842_700_792_949_714_9,
            0.995_322_265_018_952_7,
            0.999_977_909_503_001_4,
            0.999_999_984_582_742_1,
            1.0,
        ];
        let mut lanes = [0.0; SERIES_LANES];
        lanes[..x.len()].copy_from_slice(&x);
        for (found, tabled) in erf(lanes).into_iter().zip(tabled) {
            assert!((found - tabled).abs() < 2e-12, "{found} {tabled}");
        }
    }

    #[test]
    fn gelu_is_the_exact_one_not_the_tanh_form() {
        let mut x = [-2.0_f32, 1.0, 0.0, 30.0, -30.0];
        gelu(&mut x);
        // The tanh form gives -0.045402 and 0.841192.
        let expect = [-0.045_500_264, 0.841_344_8, 0.0, 30.0, 0.0];
        assert!(x.iter().zip(expect).all(|(x, e)| (x - e).abs() < 1e-7), "{x:?}");
    }

    #[test]
    fn the_tanh_gelu_is_its_own() {
        for x in [-4.0f32, -1.0, -0.1, 0.0, 0.7, 3.0] {
            let z = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044_715 * z.powi(3));
            let expect = (z / 2.0 * (1.0 + inner.tanh())) as f32;
            assert!((gelu_tanh(x) - expect).abs() < 1e-7, "{x}");
        }
    }

    #[test]
    fn layer_norm_centres_scales_and_shifts() {
        let mut x = [1.0_f32, 3.0, 10.0, 10.0];
        layer_norm(&mut x, &[1.0, 2.0], &[0.0, 0.5], 0.0);
        assert_eq!(x[..2], [-1.0, 2.5]);
        assert!(x[2].is_nan(), "a constant row has no scale without eps");
        let mut constant = [10.0_f32, 10.0];
        layer_norm(&mut constant, &[1.0, 2.0], &[0.0, 0.5], 1e-6);
        assert_eq!(constant, [0.0, 0.5]);
    }

    #[test]
    fn rms_norm_does_not_centre() {
        let mut x = [3.0_f32, 4.0];
        rms_norm(&mut x, &[1.0, 0.5], 0.0);
        let rms = 12.5_f32.sqrt();
        assert!((x[0] - 3.0 / rms).abs() < 1e-6 && (x[1] - 2.0 / rms).abs() < 1e-6);
    }

    #[test]
    fn softmax_sees_only_what_is_visible() {
        let mut row = [0.0_f32, 2.0_f32.ln() * 4.0, 99.0];
        softmax(&mut row, 2, 0.25);
        assert!((row[0] - 1.0 / 3.0).abs() < 1e-7 && (row[1] - 2.0 / 3.0).abs() < 1e-7);
        assert_eq!(row[2], 0.0);
    }

    #[test]
    fn silu_halves_nothing_at_zero_and_keeps_large_values() {
        assert_eq!(silu(0.0), 0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
        assert_eq!((silu(200.0), silu(-200.0)), (200.0, 0.0));
    }

    #[test]
    fn rotation_pairs_halves_and_leaves_position_zero_alone() {
        // Two positions, one head of four: pairs (0, 2) at 1 rad and (1, 3) at 0.01 rad.
        let mut x = [1.0_f32, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0];
        rotate_half(&mut x, 4, 2, 1.0, |position, pair| position as f32 * [1.0, 0.01][pair]);
        assert_eq!(x[..4], [1.0, 1.0, 0.0, 0.0]);
        let expect = [1.0_f32.cos(), 0.01_f32.cos(), 1.0_f32.sin(), 0.01_f32.sin()];
        assert!(x[4..].iter().zip(expect).all(|(x, e)| (x - e).abs() < 1e-6), "{x:?}");
    }
}
