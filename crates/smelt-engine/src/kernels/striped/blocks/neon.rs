//! Computes the kernel of blocks with NEON's dot products: a stripe is four registers wide.
//!
//! Callers have detected the feature.

#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::super::input::QuantTile;
use super::super::multiply::Outputs;
use super::super::neon::{QUAD, Rows, STEP, dots};
use super::super::{RUN, STRIPE};
use super::{BlockStripe, Halves, STEP_COLUMNS, group_sum};

/// `N` tiles of `W` tokens by a stripe of blocks, tile after tile: 32 registers hold no more.
#[target_feature(enable = "neon,dotprod")]
pub(in super::super) fn blocks<const W: usize, const N: usize>(
    stripe: BlockStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    let (outs, _) = out.as_chunks_mut::<W>();
    for (tile, out) in tiles.iter().zip(outs) {
        match stripe.form.bits {
            4 => tile_by::<W, 4>(stripe, *tile, out),
            5 => tile_by::<W, 5>(stripe, *tile, out),
            _ => tile_by::<W, 6>(stripe, *tile, out),
        }
    }
}

/// The numbers of sixteen rows in `group`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn numbers(all: Halves<'_>, stripe: &BlockStripe<'_>, group: usize) -> Rows<float32x4_t> {
    let mut wide = [0.0; STRIPE];
    for (lane, wide) in wide.iter_mut().enumerate() {
        *wide = all.get(stripe.form, group, lane);
    }
    // SAFETY: each load reads four of sixteen floats.
    [0, 4, 8, 12].map(|lane| unsafe { vld1q_f32(wide.as_ptr().add(lane)) })
}

/// The quants of eight columns of four rows, four in each register, and what is left of `high`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn unpack<const BITS: u32>(pairs: uint8x16_t, high: uint8x16_t) -> ([int8x16_t; 2], uint8x16_t) {
    let low = [vandq_u8(pairs, vdupq_n_u8(15)), vshrq_n_u8::<4>(pairs)];
    let (above, rest) = match BITS {
        4 => return (low.map(|low| vreinterpretq_s8_u8(low)), high),
        5 => ([vshlq_n_u8::<4>(high), vshlq_n_u8::<3>(high)], vshrq_n_u8::<2>(high)),
        _ => ([vshlq_n_u8::<4>(high), vshlq_n_u8::<2>(high)], vshrq_n_u8::<4>(high)),
    };
    let kept = vdupq_n_u8(if BITS == 5 { 0x10 } else { 0x30 });
    let quants = [0, 1].map(|at| vreinterpretq_s8_u8(vorrq_u8(low[at], vandq_u8(above[at], kept))));
    (quants, rest)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn tile_by<const W: usize, const BITS: u32>(
    stripe: BlockStripe<'_>,
    tile: QuantTile<'_>,
    out: &mut [[f32; STRIPE]; W],
) {
    stripe.check();
    tile.check(stripe.runs(), W);
    let (form, width) = (stripe.form, if BITS == 6 { RUN / 2 } else { RUN });
    assert_eq!((form.bits, form.group), (BITS, width), "a form of these groups");
    let middle = -i32::from(form.middle());
    let mut totals = [[vdupq_n_f32(0.0); 4]; W];
    for group in 0..stripe.groups() {
        let run = group * width / RUN;
        // SAFETY: `check` saw that stripe and tile have as many groups.
        let sums = unsafe { group_sums::<W, BITS>(stripe, tile, group, width) };
        let scales = numbers(stripe.scales, &stripe, group);
        let mins = stripe.mins.map(|mins| numbers(mins, &stripe, group));
        for (token, totals) in totals.iter_mut().enumerate() {
            let at = run * W + token;
            let (by, all) = (tile.scales[at], group_sum(&tile, width, group, at));
            for (part, total) in totals.iter_mut().enumerate() {
                let sum = vaddq_s32(sums[token][part], vdupq_n_s32(all * middle));
                let sum = vmulq_n_f32(vcvtq_f32_s32(sum), by);
                *total = vfmaq_f32(*total, sum, scales[part]);
                if let Some(mins) = mins {
                    *total = vfmsq_f32(*total, vdupq_n_f32(all as f32 * by), mins[part]);
                }
            }
        }
    }
    for (out, totals) in out.iter_mut().zip(totals) {
        for (part, total) in totals.into_iter().enumerate() {
            // SAFETY: each store writes four of sixteen floats.
            unsafe { vst1q_f32(out.as_mut_ptr().add(part * QUAD), total) }
        }
    }
}

/// Sums of quants times activations over one group.
///
/// # Safety
/// `stripe` and `tile` have that group.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn group_sums<const W: usize, const BITS: u32>(
    stripe: BlockStripe<'_>,
    tile: QuantTile<'_>,
    group: usize,
    width: usize,
) -> [Rows<int32x4_t>; W] {
    let (steps, quarters) = (width / STEP_COLUMNS, [0, 16, 32, 48]);
    let mut sums = [[vdupq_n_s32(0); 4]; W];
    let mut high = [vdupq_n_u8(0); 4];
    if BITS > 4 {
        // SAFETY: each group has a line of high bits.
        high = quarters.map(|at| unsafe { vld1q_u8(stripe.high.as_ptr().add(group * STEP + at)) });
    }
    for step in 0..steps {
        let at = group * steps + step;
        let mut quants = [[vdupq_n_s8(0); 4]; 2];
        for (part, high) in high.iter_mut().enumerate() {
            // SAFETY: a group has as many steps of 64 bytes.
            let pairs = unsafe { vld1q_u8(stripe.nibbles.as_ptr().add(at * STEP + part * 16)) };
            let ([first, second], rest) = unpack::<BITS>(pairs, *high);
            (quants[0][part], quants[1][part], *high) = (first, second, rest);
        }
        // SAFETY: the tile has the activations of these columns, those of the second half behind.
        unsafe {
            let quads = tile.quants.as_ptr().add(at * STEP_COLUMNS * W);
            dots::<W>(quants[0], quads, &mut sums);
            dots::<W>(quants[1], quads.add(W * QUAD), &mut sums);
        }
    }
    sums
}
