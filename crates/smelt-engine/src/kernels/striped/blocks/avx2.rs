//! Computes the kernel of blocks with AVX2, FMA and F16C: a stripe is two registers wide.
//!
//! Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::avx2::{Pair, STEP, broadcast, stream};
use super::super::input::QuantTile;
use super::super::multiply::Outputs;
use super::super::{RUN, STRIPE};
use super::{BlockStripe, Halves, STEP_COLUMNS, group_sum};

/// `N` tiles of `W` tokens by a stripe of blocks, token after token: sixteen registers hold no more.
#[target_feature(enable = "avx2,fma,f16c")]
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

/// The numbers of sixteen rows in `group`, which is in `span`.
///
/// # Safety
/// They are there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn numbers(all: Halves<'_>, span: usize, group: usize) -> Pair<__m256> {
    [0, 8].map(|lane| {
        // SAFETY: promised by the caller.
        unsafe {
            let halves = all.halves.as_ptr().add(span * STRIPE + lane);
            let halves = _mm256_cvtph_ps(_mm_loadu_si128(halves.cast()));
            let Some(factors) = all.factors else { return halves };
            let factors = _mm_loadl_epi64(factors.as_ptr().add(group * STRIPE + lane).cast());
            _mm256_mul_ps(halves, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(factors)))
        }
    })
}

/// The quants of eight columns, four in each register, and what is left of `high`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<const BITS: u32>(pairs: __m256i, high: __m256i) -> ([__m256i; 2], __m256i) {
    let mask = _mm256_set1_epi8(15);
    let low =
        [_mm256_and_si256(pairs, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask)];
    let above = match BITS {
        4 => return (low, high),
        5 => [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<3>(high)],
        _ => [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high)],
    };
    // What crosses from a byte to its neighbour lies outside of the bits that are kept.
    let kept = _mm256_set1_epi8(if BITS == 5 { 0x10 } else { 0x30 });
    let [first, second] = above.map(|above| _mm256_and_si256(above, kept));
    let quants = [_mm256_or_si256(low[0], first), _mm256_or_si256(low[1], second)];
    let rest = if BITS == 5 { _mm256_srli_epi16::<2>(high) } else { _mm256_srli_epi16::<4>(high) };
    (quants, rest)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_by<const W: usize, const BITS: u32>(
    stripe: BlockStripe<'_>,
    tile: QuantTile<'_>,
    out: &mut [[f32; STRIPE]; W],
) {
    stripe.check();
    tile.check(stripe.runs(), W);
    let (form, width) = (stripe.form, if BITS == 6 { RUN / 2 } else { RUN });
    assert_eq!((form.bits, form.group), (BITS, width), "a form of these groups");
    let (middle, groups_of_span) = (-i32::from(form.middle()), form.span / width);
    let mut totals = [[_mm256_setzero_ps(); 2]; W];
    for group in 0..stripe.groups() {
        let (run, span) = (group * width / RUN, group / groups_of_span);
        // SAFETY: `check` saw that stripe and tile have as many groups.
        let sums = unsafe { group_sums::<W, BITS>(stripe, tile, group, width) };
        // SAFETY: `check` saw that there are numbers for every group.
        let scales = unsafe { numbers(stripe.scales, span, group) };
        // SAFETY: as above.
        let mins = stripe.mins.map(|mins| unsafe { numbers(mins, span, group) });
        for (token, totals) in totals.iter_mut().enumerate() {
            let at = run * W + token;
            let all = group_sum(&tile, width, group, at);
            let (by, zero) = (_mm256_set1_ps(tile.scales[at]), _mm256_set1_epi32(all * middle));
            let all = _mm256_set1_ps(all as f32 * tile.scales[at]);
            for (part, total) in totals.iter_mut().enumerate() {
                let sum = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[token][part], zero));
                *total = _mm256_fmadd_ps(_mm256_mul_ps(sum, by), scales[part], *total);
                if let Some(mins) = mins {
                    *total = _mm256_fnmadd_ps(all, mins[part], *total);
                }
            }
        }
    }
    for (out, total) in out.iter_mut().zip(totals) {
        for (part, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: `out` has eight floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), total[part]) }
        }
    }
}

/// Sums of quants times activations over one group.  Sixteen bits hold the products of four steps of
/// nibbles (eight pairs of at most 2 * 15 * 127 are 30,480), of two steps of 5 bits (four pairs of 2 * 31
/// * 127 are 31,496), of one of 6 (two pairs of 2 * 63 * 127 are 32,004).
///
/// # Safety
/// `stripe` and `tile` have that group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group_sums<const W: usize, const BITS: u32>(
    stripe: BlockStripe<'_>,
    tile: QuantTile<'_>,
    group: usize,
    width: usize,
) -> [Pair<__m256i>; W] {
    let (steps, ones) = (width / STEP_COLUMNS, _mm256_set1_epi16(1));
    let together = if BITS == 4 { 4 } else { 7 - BITS as usize };
    let mut sums = [[_mm256_setzero_si256(); 2]; W];
    for part in 0..2 {
        // SAFETY: each group has a line of high bits, where there are such.
        let mut high = unsafe {
            if BITS == 4 {
                _mm256_setzero_si256()
            } else {
                stream(stripe.high.as_ptr().add(group * STEP), part)
            }
        };
        for first in (0..steps).step_by(together) {
            let mut narrow = [_mm256_setzero_si256(); W];
            for step in first..first + together {
                let at = group * steps + step;
                // SAFETY: a group has as many steps of eight columns.
                let pairs = unsafe { stream(stripe.nibbles.as_ptr().add(at * STEP), part) };
                let ([low, second], rest) = unpack::<BITS>(pairs, high);
                high = rest;
                for (token, narrow) in narrow.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let quads = unsafe {
                        let quads = tile.quants.as_ptr().add((at * 2 * W + token) * 4);
                        [broadcast(quads), broadcast(quads.add(W * 4))]
                    };
                    let first = _mm256_maddubs_epi16(low, quads[0]);
                    let second = _mm256_maddubs_epi16(second, quads[1]);
                    *narrow = _mm256_add_epi16(*narrow, _mm256_add_epi16(first, second));
                }
            }
            for (sums, narrow) in sums.iter_mut().zip(narrow) {
                sums[part] = _mm256_add_epi32(sums[part], _mm256_madd_epi16(narrow, ones));
            }
        }
    }
    sums
}
