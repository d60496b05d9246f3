//! Computes the kernels of quants with NEON's dot products: a stripe is four registers wide.
//!
//! Callers have detected the feature.

#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::input::QuantTile;
use super::multiply::Outputs;
use super::{Bits, MIDDLE_BYTE, MIDDLE_NIBBLE, QuantStripe, RUN, STRIPE};
use crate::kernels::matrix::Elements;

/// Bytes of sixteen rows by four columns.
pub(super) const STEP: usize = 64;
/// Rows of a register.
pub(super) const QUAD: usize = 4;

/// Four registers: rows 0..4, 4..8, 8..12, 12..16.
pub(super) type Rows<T> = [T; 4];

/// Adds to each of four sums the products of its four quants with those at `LANE` of `x`.  The
/// intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const LANE: usize>(mut sum: int32x4_t, quants: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction of the feature that this function is compiled for, registers in,
    // register out.
    unsafe {
        asm!("sdot {sum:v}.4s, {quants:v}.16b, {x:v}.4b[{lane}]",
            sum = inlateout(vreg) sum, quants = in(vreg) quants, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Adds the products of four columns for `W` tokens.
///
/// # Safety
/// At `quads` lie the four activations of each token.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn dots<const W: usize>(
    quants: Rows<int8x16_t>,
    quads: *const i8,
    sums: &mut [Rows<int32x4_t>; W],
) {
    if W == 1 {
        // SAFETY: promised by the caller.
        let x = vreinterpretq_s8_s32(unsafe { vld1q_dup_s32(quads.cast()) });
        for (sum, quants) in sums[0].iter_mut().zip(quants) {
            *sum = dot::<0>(*sum, quants, x);
        }
        return;
    }
    // SAFETY: promised by the caller, and tiles have one token or four.
    let x = unsafe { vld1q_s8(quads) };
    for (part, quants) in quants.into_iter().enumerate() {
        sums[0][part] = dot::<0>(sums[0][part], quants, x);
        sums[1][part] = dot::<1>(sums[1][part], quants, x);
        sums[2][part] = dot::<2>(sums[2][part], quants, x);
        sums[3][part] = dot::<3>(sums[3][part], quants, x);
    }
}

/// Sixteen scales at `index`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn load(scales: Elements<'_>, index: usize) -> Rows<float32x4_t> {
    let mut wide = [0.0; STRIPE];
    scales.widen(index, &mut wide);
    // SAFETY: each load reads four of sixteen floats.
    [0, 4, 8, 12].map(|lane| unsafe { vld1q_f32(wide.as_ptr().add(lane)) })
}

/// The quants that mean 0 in `group`, negated; bytes are made signed instead.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn minus_zeros(stripe: &QuantStripe<'_>, group: usize) -> Rows<int32x4_t> {
    [0, 1, 2, 3].map(|part| {
        let zero = |lane: usize| match (stripe.bits, stripe.zeros) {
            (Bits::Eight, _) => 0,
            (Bits::Four, None) => -i32::from(MIDDLE_NIBBLE),
            (Bits::Four, Some(zeros)) => -i32::from(zeros[group * STRIPE + part * QUAD + lane]),
        };
        let zeros = [zero(0), zero(1), zero(2), zero(3)];
        // SAFETY: there are four numbers.
        unsafe { vld1q_s32(zeros.as_ptr()) }
    })
}

/// `N` tiles of `W` tokens by a stripe of quants, tile after tile: 32 registers hold no more.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn quants<const W: usize, const N: usize>(
    stripe: QuantStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    let (outs, _) = out.as_chunks_mut::<W>();
    for (tile, out) in tiles.iter().zip(outs) {
        match stripe.bits {
            Bits::Four => tile_by::<W, 4>(stripe, *tile, out),
            Bits::Eight => tile_by::<W, 8>(stripe, *tile, out),
        }
    }
}

/// One tile by a stripe whose runs take `STEPS` steps: nibbles four, bytes eight.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn tile_by<const W: usize, const STEPS: usize>(
    stripe: QuantStripe<'_>,
    tile: QuantTile<'_>,
    out: &mut [[f32; STRIPE]; W],
) {
    stripe.check();
    tile.check(stripe.runs, W);
    let mut totals = [[vdupq_n_f32(0.0); 4]; W];
    let mut scales = load(stripe.scales, 0);
    let mut minus_zero = minus_zeros(&stripe, 0);
    for run in 0..stripe.runs {
        if run.is_multiple_of(stripe.group_runs) {
            let group = run / stripe.group_runs;
            scales = load(stripe.scales, group * STRIPE);
            minus_zero = minus_zeros(&stripe, group);
        }
        let mut sums = [[vdupq_n_s32(0); 4]; W];
        for (token, sums) in sums.iter_mut().enumerate() {
            for (sum, zero) in sums.iter_mut().zip(minus_zero) {
                *sum = vmulq_n_s32(zero, tile.sums[run * W + token]);
            }
        }
        for step in 0..STEPS {
            let at = run * STEPS + step;
            // SAFETY: `check` saw that each run has as many steps, and each tile their activations.
            unsafe {
                let quants = stripe.quants.as_ptr().add(at * STEP);
                let quads = tile.quants.as_ptr().add(at * (RUN / STEPS) * W);
                add_step::<W, STEPS>(quants, quads, &mut sums);
            }
        }
        let is_grouped = stripe.is_grouped();
        for (token, totals) in totals.iter_mut().enumerate() {
            let by = tile.scales[run * W + token];
            for (part, total) in totals.iter_mut().enumerate() {
                let sum = vcvtq_f32_s32(sums[token][part]);
                *total = if is_grouped {
                    vfmaq_f32(*total, vmulq_n_f32(sum, by), scales[part])
                } else {
                    vfmaq_n_f32(*total, sum, by)
                };
            }
        }
    }
    for (out, totals) in out.iter_mut().zip(totals) {
        for (part, total) in totals.into_iter().enumerate() {
            let total = if stripe.is_grouped() { total } else { vmulq_f32(total, scales[part]) };
            // SAFETY: each store writes four of sixteen floats.
            unsafe { vst1q_f32(out.as_mut_ptr().add(part * QUAD), total) }
        }
    }
}

/// Adds the products of one step.
///
/// # Safety
/// At `quants` lie 64 bytes, at `quads` the activations of their columns for `W` tokens.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn add_step<const W: usize, const STEPS: usize>(
    quants: *const u8,
    quads: *const i8,
    sums: &mut [Rows<int32x4_t>; W],
) {
    // SAFETY: promised by the caller.
    let bytes = [0, 16, 32, 48].map(|at| unsafe { vld1q_u8(quants.add(at)) });
    if STEPS == 8 {
        let signed =
            bytes.map(|bytes| vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(MIDDLE_BYTE))));
        // SAFETY: promised by the caller.
        return unsafe { dots::<W>(signed, quads, sums) };
    }
    let low = bytes.map(|bytes| vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))));
    let high = bytes.map(|bytes| vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)));
    // SAFETY: promised by the caller; the activations of the high halves lie behind the others.
    unsafe {
        dots::<W>(low, quads, sums);
        dots::<W>(high, quads.add(W * QUAD), sums);
    }
}
