//! Computes with sixteen numbers at a time, on whatever vectors a processor has.
//!
//! [`Lanes`] is what kernels of floats need of an instruction set; a kernel written once over it runs on
//! every one.  Each operation rounds once and the same way everywhere, so all sets give equal bits.
//! Knows nothing of what is computed, nor of detection: [`super::isa::Isa::over_lanes`] does.

use super::activation::{EXP, EXP_UNDERFLOW, LN2_HIGH, LN2_LOW, ROUND};

/// Writes the methods of [`Lanes`]: each is one expression of intrinsics.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! methods {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name(self, $($argument: $kind),*) -> $result {
            // SAFETY: a set's value is made where its features were detected, by its `run` alone;
            // loads and stores stay inside the array they were given.
            unsafe { $body }
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
pub(super) use plain::Plain;
#[cfg(target_arch = "x86_64")]
pub(super) use {avx2::Avx2, avx512::Avx512};

/// Numbers in one vector.
pub(crate) const LANES: usize = 16;

/// An instruction set.  A value of it exists only where the processor has the set, so its methods
/// are safe to call.
pub(crate) trait Lanes: Copy {
    /// Sixteen f32.
    type V: Copy;
    /// Rows whose sums fit its registers, two vectors or more of each: 1, 4 or 8.
    const ROWS: usize;
    /// Whether a register holds sixteen numbers, and there are 32 of them.
    const IS_WIDE: bool = Self::ROWS == 8;

    fn splat(self, value: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// The values of IEEE half precision bits.
    fn load_f16(self, from: &[u16; LANES]) -> Self::V;
    /// The values of bf16 bits, the upper halves of f32.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V;
    fn load_i8(self, from: &[i8; LANES]) -> Self::V;
    fn store(self, value: Self::V, to: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a` where it is larger than `b`, else `b`: a NaN in `b` stays.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a` where it is smaller than `b`, else `b`: a NaN in `b` stays.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `value` where `x` is not below `limit`, else 0; NaN is below nothing.
    fn unless_below(self, value: Self::V, x: Self::V, limit: Self::V) -> Self::V;
    /// 2^n, n being the lowest bits of `shifted` as adding 1.5 * 2^23 left them, in -126..=127.
    fn power(self, shifted: Self::V) -> Self::V;
}

/// Work that can be done over any [`Lanes`].
pub(crate) trait OverLanes {
    /// Does it.  Implementations are `inline(always)`: only then are they compiled for the set.
    fn run<L: Lanes>(self, lanes: L);
}

/// Numbers that are kept in some form and seen as f32.
pub(crate) trait Stored: Copy {
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::V;
}

impl Stored for f32 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::V {
        lanes.load(from)
    }
}

/// Bits of IEEE half precision.
impl Stored for u16 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::V {
        lanes.load_f16(from)
    }
}

/// Quants, without their scale.
impl Stored for i8 {
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::V {
        lanes.load_i8(from)
    }
}

/// The exponential of numbers up to zero, by the polynomial of [`super::activation::exp`]; relative error below 2e-7, results under 1.2e-38 are zero.
#[inline(always)]
pub(crate) fn exp_of_negative<L: Lanes>(lanes: L, x: L::V) -> L::V {
    power_of_e(lanes, x, lanes.max(lanes.splat(EXP_UNDERFLOW), x))
}

/// The exponential; as [`exp_of_negative`], but what is above 87 is taken for 87.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(lanes: L, x: L::V) -> L::V {
    /// Larger powers do not fit one factor.
    const END: f32 = 87.0;
    let held = lanes.max(lanes.splat(EXP_UNDERFLOW), lanes.min(lanes.splat(END), x));
    power_of_e(lanes, x, held)
}

/// The exponential of `held`, which is `x` held inside the range of normal numbers.
#[inline(always)]
fn power_of_e<L: Lanes>(lanes: L, x: L::V, held: L::V) -> L::V {
    let splat = |value| lanes.splat(value);
    let shifted = lanes.fma(held, splat(std::f32::consts::LOG2_E), splat(ROUND));
    let n = lanes.add(shifted, splat(-ROUND));
    let r = lanes.fma(n, splat(-LN2_LOW), lanes.fma(n, splat(-LN2_HIGH), held));
    let mut tail = splat(EXP[0]);
    for coefficient in &EXP[1..] {
        tail = lanes.fma(tail, r, splat(*coefficient));
    }
    let value = lanes.add(lanes.fma(tail, lanes.mul(r, r), r), splat(1.0));
    lanes.unless_below(lanes.mul(value, lanes.power(shifted)), x, splat(EXP_UNDERFLOW))
}

/// Folds sixteen numbers by halves, so that every set does it in one order.
#[inline(always)]
fn fold<L: Lanes>(lanes: L, value: L::V, both: impl Fn(f32, f32) -> f32) -> f32 {
    let mut all = [0.0; LANES];
    lanes.store(value, &mut all);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            all[i] = both(all[i], all[i + half]);
        }
    }
    all[0]
}

/// The sum of all lanes.
#[inline(always)]
pub(crate) fn sum<L: Lanes>(lanes: L, value: L::V) -> f32 {
    fold(lanes, value, |a, b| a + b)
}

/// The largest of all lanes.
#[inline(always)]
pub(crate) fn highest<L: Lanes>(lanes: L, value: L::V) -> f32 {
    fold(lanes, value, |a, b| if a > b { a } else { b })
}

#[cfg(test)]
mod tests {
    use half::f16;
    use smelt_random::Random;

    use super::*;
    use crate::kernels::isa::Isa;

    /// What every operation makes of sixteen numbers.
    struct Everything<'a> {
        numbers: [[f32; LANES]; 3],
        out: &'a mut Vec<u32>,
    }

    impl OverLanes for Everything<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let [a, b, c] = self.numbers.each_ref().map(|numbers| lanes.load(numbers));
            let halves = self.numbers[0].map(|number| f16::from_f32(number).to_bits());
            let bytes = self.numbers[0].map(|number| number as i8);
            let shifted = self.numbers[2].map(|c| (c * 60.0).round() + 12_582_912.0);
            let negative = lanes.load(&self.numbers[1].map(|b| -b.abs()));
            let all = [
                lanes.splat(self.numbers[0][3]),
                lanes.load_f16(&halves),
                lanes.load_i8(&bytes),
                lanes.add(a, b),
                lanes.mul(a, b),
                lanes.fma(a, b, c),
                lanes.div(a, b),
                lanes.max(a, b),
                lanes.min(a, b),
                lanes.unless_below(a, b, c),
                lanes.power(lanes.load(&shifted)),
                exp_of_negative(lanes, negative),
                exp(lanes, a),
                lanes.splat(sum(lanes, a)),
                lanes.splat(highest(lanes, a)),
            ];
            for value in all {
                let mut numbers = [0.0; LANES];
                lanes.store(value, &mut numbers);
                self.out.extend(numbers.map(f32::to_bits));
            }
        }
    }

    #[test]
    fn every_set_gives_the_same_bits() {
        let mut random = Random::new(11);
        for round in 0..2000 {
            let scale = [1e-6, 0.3, 20.0, 100.0, 1e5][round % 5];
            let numbers =
                [scale, scale, 1.0].map(|scale| std::array::from_fn(|_| random.signed() * scale));
            let of = |isa: Isa| {
                let mut out = Vec::new();
                isa.over_lanes(Everything { numbers, out: &mut out });
                out
            };
            let all: Vec<_> = Isa::all().into_iter().map(|isa| (isa, of(isa))).collect();
            for (isa, found) in &all {
                assert_eq!(*found, all[0].1, "{isa:?} {numbers:?}");
            }
        }
    }

    /// Loads halves.
    struct Widen<'a>(&'a [u16; LANES], &'a mut [f32; LANES]);

    impl OverLanes for Widen<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            lanes.store(lanes.load_f16(self.0), self.1);
        }
    }

    #[test]
    fn halves_widen_exactly() {
        for isa in Isa::all() {
            for first in (0..=u16::MAX).step_by(LANES) {
                let bits: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
                let mut wide = [0.0; LANES];
                isa.over_lanes(Widen(&bits, &mut wide));
                for (bits, wide) in bits.into_iter().zip(wide) {
                    let expect = f16::from_bits(bits).to_f32();
                    assert!(wide == expect || wide.is_nan() && expect.is_nan());
                }
            }
        }
    }

    struct Exp<'a>([f32; LANES], &'a mut [f32; LANES]);

    impl OverLanes for Exp<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            lanes.store(exp_of_negative(lanes, lanes.load(&self.0)), self.1);
        }
    }

    fn exps(isa: Isa, x: [f32; LANES]) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        isa.over_lanes(Exp(x, &mut out));
        out
    }

    #[test]
    fn exp_is_within_two_ulp_and_keeps_nan() {
        for isa in Isa::all() {
            for step in 0..10_000 {
                let x = std::array::from_fn(|i| -((step * LANES + i) as f32) * 87.0 / 160_000.0);
                for (x, found) in x.into_iter().zip(exps(isa, x)) {
                    let apart = (f64::from(found) / f64::from(x).exp() - 1.0).abs();
                    assert!(apart < 2e-7, "{isa:?}: exp({x}) is off by {apart}");
                }
            }
            let mut x = [0.0; LANES];
            x[1..4].copy_from_slice(&[-200.0, f32::NEG_INFINITY, f32::NAN]);
            let found = exps(isa, x);
            assert_eq!((found[0], found[1], found[2]), (1.0, 0.0, 0.0));
            assert!(found[3].is_nan() && found[4] == 1.0);
        }
    }
}
