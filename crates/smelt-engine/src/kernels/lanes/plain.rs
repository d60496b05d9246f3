//! Sixteen numbers in portable Rust.

use std::array::from_fn;

use half::f16;

use super::{LANES, Lanes};

/// Every processor.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Lanes for Plain {
    type V = [f32; LANES];
    const ROWS: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::V {
        from.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V {
        from.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::V {
        from.map(f32::from)
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32; LANES]) {
        *to = value;
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn unless_below(self, value: Self::V, x: Self::V, limit: Self::V) -> Self::V {
        from_fn(|i| if x[i] < limit[i] { 0.0 } else { value[i] })
    }

    #[inline(always)]
    fn power(self, shifted: Self::V) -> Self::V {
        shifted.map(|value| f32::from_bits((value.to_bits() << 23).wrapping_add(1.0f32.to_bits())))
    }
}
