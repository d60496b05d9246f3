//! Computes the kernel of blocks with AVX-512 and its VNNI: a stripe is one register wide.
//!
//! Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::avx512::{VECTOR, broadcast, stream};
use super::super::input::QuantTile;
use super::super::multiply::Outputs;
use super::super::{RUN, STRIPE};
use super::{BlockStripe, Halves, STEP_COLUMNS, group_sum};

/// `N` tiles of `W` tokens by a stripe of blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in super::super) fn blocks<const W: usize, const N: usize>(
    stripe: BlockStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    match stripe.form.bits {
        4 => by_bits::<W, N, 4>(stripe, tiles, out),
        5 => by_bits::<W, N, 5>(stripe, tiles, out),
        _ => by_bits::<W, N, 6>(stripe, tiles, out),
    }
}

/// The numbers of sixteen rows in `group`, which is in `span`.
///
/// # Safety
/// They are there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn numbers(all: Halves<'_>, span: usize, group: usize) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        let halves = all.halves.as_ptr().add(span * STRIPE);
        let halves = _mm512_cvtph_ps(_mm256_loadu_si256(halves.cast()));
        let Some(factors) = all.factors else { return halves };
        let factors = _mm_loadu_si128(factors.as_ptr().add(group * STRIPE).cast());
        _mm512_mul_ps(halves, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(factors)))
    }
}

/// The quants of eight columns, four in each register, and what is left of `high`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpack<const BITS: u32>(pairs: __m512i, high: __m512i) -> ([__m512i; 2], __m512i) {
    let mask = _mm512_set1_epi8(15);
    let low =
        [_mm512_and_si512(pairs, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(pairs), mask)];
    let above = match BITS {
        4 => return (low, high),
        5 => [_mm512_slli_epi16::<4>(high), _mm512_slli_epi16::<3>(high)],
        _ => [_mm512_slli_epi16::<4>(high), _mm512_slli_epi16::<2>(high)],
    };
    // What crosses from a byte to its neighbour lies outside of the bits that are kept.
    let kept = _mm512_set1_epi8(if BITS == 5 { 0x10 } else { 0x30 });
    let [first, second] = above.map(|above| _mm512_and_si512(above, kept));
    let quants = [_mm512_or_si512(low[0], first), _mm512_or_si512(low[1], second)];
    let rest = if BITS == 5 { _mm512_srli_epi16::<2>(high) } else { _mm512_srli_epi16::<4>(high) };
    (quants, rest)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn by_bits<const W: usize, const N: usize, const BITS: u32>(
    stripe: BlockStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    stripe.check();
    tiles.iter().for_each(|tile| tile.check(stripe.runs(), W));
    let (form, width) = (stripe.form, if BITS == 6 { RUN / 2 } else { RUN });
    assert_eq!((form.bits, form.group), (BITS, width), "a form of these groups");
    let (steps, middle) = (width / STEP_COLUMNS, -i32::from(form.middle()));
    let groups_of_span = form.span / width;
    let mut totals = [[_mm512_setzero_ps(); W]; N];
    for group in 0..stripe.groups() {
        let (run, span) = (group * width / RUN, group / groups_of_span);
        let mut sums = [[_mm512_setzero_si512(); W]; N];
        if middle != 0 {
            for (sums, tile) in sums.iter_mut().zip(&tiles) {
                for (w, sum) in sums.iter_mut().enumerate() {
                    let all = group_sum(tile, width, group, run * W + w);
                    *sum = _mm512_set1_epi32(all * middle);
                }
            }
        }
        // SAFETY: `check` saw that each group has a line of high bits, where there are such.
        let mut high = unsafe {
            if BITS == 4 {
                _mm512_setzero_si512()
            } else {
                stream(stripe.high.as_ptr().add(group * VECTOR))
            }
        };
        for step in 0..steps {
            // SAFETY: `check` saw that each group has as many lines and each tile as many quads as its
            // steps read.
            unsafe {
                let at = group * steps + step;
                let ([low, second], rest) =
                    unpack::<BITS>(stream(stripe.nibbles.as_ptr().add(at * VECTOR)), high);
                high = rest;
                for n in 0..N {
                    let quads = tiles[n].quants.as_ptr().add(at * STEP_COLUMNS * W);
                    for (w, sum) in sums[n].iter_mut().enumerate() {
                        *sum = _mm512_dpbusd_epi32(*sum, low, broadcast(quads.add(w * 4)));
                        *sum = _mm512_dpbusd_epi32(*sum, second, broadcast(quads.add((W + w) * 4)));
                    }
                }
            }
        }
        // SAFETY: `check` saw that there are numbers for every group.
        let scales = unsafe { numbers(stripe.scales, span, group) };
        for ((totals, sums), tile) in totals.iter_mut().zip(sums).zip(&tiles) {
            for (w, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
                let by = _mm512_set1_ps(tile.scales[run * W + w]);
                *total =
                    _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), by), scales, *total);
            }
        }
        let Some(mins) = stripe.mins else { continue };
        // SAFETY: as above.
        let mins = unsafe { numbers(mins, span, group) };
        for (totals, tile) in totals.iter_mut().zip(&tiles) {
            for (w, total) in totals.iter_mut().enumerate() {
                let at = run * W + w;
                let all = tile.sums[at] as f32 * tile.scales[at];
                *total = _mm512_fnmadd_ps(_mm512_set1_ps(all), mins, *total);
            }
        }
    }
    for (out, total) in out.iter_mut().zip(totals.as_flattened()) {
        // SAFETY: `out` has sixteen floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *total) }
    }
}
