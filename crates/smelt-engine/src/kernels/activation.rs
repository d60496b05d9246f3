//! Computes exp, erf and what networks make of them: GELU, SiLU, sigmoid, tanh.
//!
//! Branch-free polynomials, so that the compiler makes vectors of every loop over them; the same
//! bits on every machine.  Knows nothing of layers.

/// Coefficients, highest power first, of the Chebyshev interpolation of `erf(√t)/√t` over
/// `t = 8(u + 1)`, u in -1..1 (|x| up to 4); computed with 40 digits, error below 2e-11.
const ERF: [f64; 21] = [
    1.287_405_469_822_422_4e-5,
    -3.668_360_645_354_812e-5,
    3.297_938_381_898_312_4e-5,
    -7.246_152_144_638_048e-5,
    2.951_384_370_466_126e-4,
    -6.727_975_797_938_545e-4,
    1.277_072_805_758_373e-3,
    -2.530_672_106_413_961_7e-3,
    4.861_257_452_313_889e-3,
    -8.629_832_983_801_853e-3,
    1.434_721_689_643_710_5e-2,
    -2.246_626_370_724_309_8e-2,
    3.306_107_366_347_555e-2,
    -4.576_646_346_621_056_3e-2,
    5.988_686_022_513_393e-2,
    -7.472_772_837_517_466e-2,
    9.020_899_619_070_06e-2,
    -1.077_104_489_095_233e-1,
    1.316_751_168_663_190_3e-1,
    -1.765_762_332_142_374e-1,
    3.535_309_956_434_049_5e-1,
];

/// Beyond this, `1 - erf` is below 1.6e-8: less than half the distance of two f32 below 1.
const ERF_END: f64 = 4.0;

fn erf_wide(x: f64) -> f64 {
    let x = x.clamp(-ERF_END, ERF_END);
    let u = x * x / 8.0 - 1.0;
    ERF.iter().fold(0.0, |sum, coefficient| sum * u + coefficient) * x
}

/// The error function; off by at most 5e-8.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    erf_wide(f64::from(x)) as f32
}

/// Coefficients, highest power first, of `(exp(r) - 1 - r) / r²` for |r| up to ln(2)/2.
pub(super) const EXP: [f32; 6] =
    [1.989_098_1e-4, 1.393_364e-3, 8.333_311e-3, 4.166_646_5e-2, 1.666_666_7e-1, 0.5];

/// Below this, exp is less than the smallest normal f32 and is given as zero.
pub(super) const EXP_UNDERFLOW: f32 = -87.336_54;
/// Above this, exp is infinite.
const EXP_OVERFLOW: f32 = 88.722_84;

/// ln(2) in two parts, the first exact in a product with any exponent.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding 1.5 * 2^23 rounds to a whole number.
pub(super) const ROUND: f32 = 12_582_912.0;

/// `x = n ln(2) + r` with |r| up to ln(2)/2, for an `x` of which exp is a normal number: n, and
/// `exp(r) - 1`, which keeps its relative precision where r is small.
#[inline(always)]
fn exp_parts(x: f32) -> (i32, f32) {
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let tail = EXP.iter().fold(0.0, |sum, coefficient| sum * r + coefficient) * (r * r);
    ((shifted.to_bits() as i32) - (ROUND.to_bits() as i32), tail + r)
}

/// 2 to the power of `n`, -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// The exponential; relative error below 2e-7, results under 1.2e-38 are zero.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, above_one) = exp_parts(x.clamp(EXP_UNDERFLOW, EXP_OVERFLOW));
    // Two factors, because 2^128 alone is no f32.
    let half = n >> 1;
    let value = (above_one + 1.0) * power_of_two(half) * power_of_two(n - half);
    let value = if x < EXP_UNDERFLOW { 0.0 } else { value };
    let value = if x > EXP_OVERFLOW { f32::INFINITY } else { value };
    if x.is_nan() { x } else { value }
}

/// Beyond this, tanh is 1 in f32.
const TANH_END: f32 = 9.1;

/// The hyperbolic tangent, `(e^2x - 1) / (e^2x + 1)`; relative error below 4e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let (n, above_one) = exp_parts(2.0 * x.clamp(-TANH_END, TANH_END));
    let power = power_of_two(n);
    // e^2x - 1, of which nothing is lost where x is small: n is 0 there.
    let above_one = above_one * power + (power - 1.0);
    let value = above_one / (above_one + 2.0);
    if x.is_nan() { x } else { value }
}

/// `x Φ(x)`, the exact GELU.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf_wide(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// GELU's tanh form.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    /// √(2/π)
    const FACTOR: f32 = 0.797_884_6;
    0.5 * x * (1.0 + tanh(FACTOR * (x + 0.044_715 * x * x * x)))
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The series `2/√π e^(-x²) Σ 2^n x^(2n+1) / (2n+1)!!`, whose terms all have one sign.
    fn erf_series(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..400 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
    }

    fn grid(limit: f32) -> impl Iterator<Item = f32> {
        (-20_000..=20_000).map(move |step| step as f32 / 20_000.0 * limit)
    }

    #[test]
    fn erf_is_within_1e7_everywhere() {
        for x in grid(7.0) {
            let apart = (f64::from(erf(x)) - erf_series(f64::from(x))).abs();
            assert!(apart < 1e-7, "erf({x}) is off by {apart}");
        }
        assert_eq!((erf(0.0), erf(f32::INFINITY), erf(-9.0)), (0.0, 1.0, -1.0));
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn small_arguments_keep_their_relative_precision() {
        for x in [1e-3f32, 1e-10, 1e-30] {
            let expect = f64::from(x) * std::f64::consts::FRAC_2_SQRT_PI;
            assert!((f64::from(erf(x)) / expect - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn exp_is_within_two_ulp() {
        for x in grid(87.0) {
            let expect = f64::from(x).exp();
            let apart = (f64::from(exp(x)) / expect - 1.0).abs();
            assert!(apart < 2e-7, "exp({x}) is off by {apart}");
        }
        assert_eq!((exp(0.0), exp(-200.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert_eq!((exp(89.0), exp(f32::INFINITY)), (f32::INFINITY, f32::INFINITY));
        assert!((exp(88.7) / 88.7f32.exp() - 1.0).abs() < 1e-6);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_keeps_its_relative_precision_everywhere() {
        for x in grid(12.0).chain([1e-30, -1e-10, 1e-4, 0.17, 0.18]) {
            let expect = f64::from(x).tanh();
            let apart = (f64::from(tanh(x)) - expect).abs();
            assert!(apart <= 4e-7 * expect.abs(), "tanh({x}) is off by {apart}");
        }
        let ends = (tanh(0.0), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY));
        assert_eq!(ends, (0.0, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_matches_its_definition_in_both_forms() {
        for x in grid(8.0) {
            let wide = f64::from(x);
            let expect = 0.5 * wide * (1.0 + erf_series(wide / 2f64.sqrt()));
            assert!((f64::from(gelu_erf(x)) - expect).abs() < 2e-7 * (1.0 + wide.abs()));
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            let expect = 0.5 * wide * (1.0 + inner.tanh());
            assert!((f64::from(gelu_tanh(x)) - expect).abs() < 1e-6);
        }
    }
}
