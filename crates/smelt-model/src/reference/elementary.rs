//! Computes exp, sin and cos from sums and products alone.
//!
//! The mathematics library rounds the last bit as its version and the processor have it; here equal
//! arguments give equal bits on every machine, which statistics that are sealed need.  Each is
//! within two units in the last place.

/// The high 33 bits of ln 2, and the rest: `k * LN2_HIGH` is exact for every k used here.
const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Half of π in pieces of 33 bits (fdlibm's), so that products with k below 2^20 are exact.
const HALF_PI: [f64; 3] =
    [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];
/// Coefficients of eˣ that bring the series to f64 rounding on the reduced arguments: 1/n!.
const EXP: [f64; 15] = reciprocal_factorials();
const CIRCLE_TERMS: u32 = 9;
/// Added to a small number and taken away again, it leaves the nearest integer, ties to even; while it is
/// there, the low bits are that integer.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

const fn reciprocal_factorials() -> [f64; 15] {
    let (mut all, mut factorial, mut n) = ([1.0; 15], 1.0, 1);
    while n < all.len() {
        factorial *= n as f64;
        all[n] = 1.0 / factorial;
        n += 1;
    }
    all
}

/// eˣ.  Without a branch, so that loops over it run in vector registers.
#[inline(always)]
pub(super) fn exp(x: f64) -> f64 {
    // Beyond these nothing but zero and infinity is left.
    let x = x.clamp(-745.2, 709.8);
    let k = (x * std::f64::consts::LOG2_E + ROUNDER) - ROUNDER;
    let rest = (x - k * LN2_HIGH) - k * LN2_LOW;
    let mut sum = EXP[EXP.len() - 1];
    for coefficient in EXP[..EXP.len() - 1].iter().rev() {
        sum = sum * rest + coefficient;
    }
    // Two factors, since 2^k itself may not be a normal number.
    let half = (k * 0.5 + ROUNDER) - ROUNDER;
    sum * power_of_two(half) * power_of_two(k - half)
}

/// 2^k for whole k of at most 1022 in size.
#[inline(always)]
fn power_of_two(k: f64) -> f64 {
    f64::from_bits((k + 1023.0 + ROUNDER).to_bits() << 52)
}

/// sin and cos of an angle below a million radians in size.
pub(super) fn sin_cos(x: f64) -> (f64, f64) {
    let k = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let rest = HALF_PI.into_iter().fold(x, |rest, part| rest - k * part);
    let square = rest * rest;
    let (mut sin, mut cos) = (1.0, 1.0);
    for n in (1..=CIRCLE_TERMS).map(f64::from).rev() {
        sin = 1.0 - square / (2.0 * n * (2.0 * n + 1.0)) * sin;
        cos = 1.0 - square / ((2.0 * n - 1.0) * 2.0 * n) * cos;
    }
    let sin = rest * sin;
    match (k as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_library() {
        for n in -7450..=7090 {
            let x = f64::from(n) * 0.1 + 0.037;
            let (found, expect) = (exp(x), x.exp());
            assert!((found - expect).abs() <= 4e-16 * expect + f64::from_bits(2), "{x}: {found}");
        }
        assert_eq!((exp(0.0), exp(f64::NEG_INFINITY)), (1.0, 0.0));
        assert_eq!(exp(1000.0), f64::INFINITY);
        assert!(exp(f64::NAN).is_nan());
    }

    #[test]
    fn angles_turn_as_in_the_library() {
        for n in -20_000..=20_000 {
            let x = f64::from(n) * 6.5537;
            let (sin, cos) = sin_cos(x);
            assert!((sin - x.sin()).abs() < 4e-16, "sin {x}: {sin} {}", x.sin());
            assert!((cos - x.cos()).abs() < 4e-16, "cos {x}: {cos} {}", x.cos());
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }
}
