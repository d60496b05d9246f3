//! Sixteen numbers in four registers of NEON, which every aarch64 has.

#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::{LANES, Lanes, OverLanes};

/// An aarch64.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// Does `work` with these vectors.
    pub(crate) fn run(work: impl OverLanes) {
        work.run(Self(()));
    }
}

type Quad = [float32x4_t; 4];

#[inline(always)]
fn each(of: impl Fn(usize) -> float32x4_t) -> Quad {
    [of(0), of(1), of(2), of(3)]
}

impl Lanes for Neon {
    type V = Quad;
    const ROWS: usize = 4;

    methods! {
        splat(value: f32) -> Quad = [vdupq_n_f32(value); 4];
        load(from: &[f32; LANES]) -> Quad = each(|i| vld1q_f32(from.as_ptr().add(4 * i)));
        load_f16(from: &[u16; LANES]) -> Quad = each(|i| widen(vld1_u16(from.as_ptr().add(4 * i))));
        load_bf16(from: &[u16; LANES]) -> Quad = each(|i| {
            let halves = vld1_u16(from.as_ptr().add(4 * i));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(halves)))
        });
        load_i8(from: &[i8; LANES]) -> Quad = {
            let bytes = vld1q_s8(from.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        };
        store(value: Quad, to: &mut [f32; LANES]) -> () = {
            for (i, value) in value.into_iter().enumerate() {
                vst1q_f32(to.as_mut_ptr().add(4 * i), value);
            }
        };
        add(a: Quad, b: Quad) -> Quad = each(|i| vaddq_f32(a[i], b[i]));
        mul(a: Quad, b: Quad) -> Quad = each(|i| vmulq_f32(a[i], b[i]));
        div(a: Quad, b: Quad) -> Quad = each(|i| vdivq_f32(a[i], b[i]));
        fma(a: Quad, b: Quad, c: Quad) -> Quad = each(|i| vfmaq_f32(c[i], a[i], b[i]));
        max(a: Quad, b: Quad) -> Quad = each(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]));
        min(a: Quad, b: Quad) -> Quad = each(|i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]));
        unless_below(value: Quad, x: Quad, limit: Quad) -> Quad =
            each(|i| vbslq_f32(vcltq_f32(x[i], limit[i]), vdupq_n_f32(0.0), value[i]));
        power(shifted: Quad) -> Quad = each(|i| {
            let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted[i]));
            vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(1.0f32.to_bits())))
        });
    }
}

/// Four halves, widened; the intrinsic is not stable.
#[inline(always)]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: one instruction of base NEON, registers in, register out.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = out(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}
