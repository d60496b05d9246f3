//! Computes the kernels of stripes with AVX2, FMA and F16C: a stripe is two registers wide.
//!
//! Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::input::QuantTile;
use super::multiply::Outputs;
use super::{Bits, MIDDLE_BYTE, MIDDLE_NIBBLE, QuantStripe, STRIPE};
use crate::kernels::matrix::Elements;

/// Bytes of sixteen rows by four columns.
pub(super) const STEP: usize = 64;
/// How far ahead of their use quants are asked for: some 100 ns of one core's stream.
const AHEAD: usize = 4096;

/// Two registers: rows 0..8 and 8..16.
pub(super) type Pair<T> = [T; 2];

/// Sixteen floats at `index` of `numbers`.
///
/// # Safety
/// They are there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load(numbers: Elements<'_>, index: usize) -> Pair<__m256> {
    // SAFETY: promised by the caller.
    unsafe {
        match numbers {
            Elements::F32(all) => {
                let from = all.as_ptr().add(index);
                [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
            }
            Elements::F16(all) => {
                let from = all.as_ptr().add(index);
                [
                    _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                    _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
                ]
            }
            Elements::Bf16(all) => {
                let from = all.as_ptr().add(index);
                [widen(_mm_loadu_si128(from.cast())), widen(_mm_loadu_si128(from.add(8).cast()))]
            }
            Elements::I8(_) => unreachable!("stripes of bytes are levels"),
        }
    }
}

/// The numbers of eight bf16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(bits: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
}

/// Four quants of one token, for every row.
///
/// # Safety
/// They are at `quad`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn broadcast(quad: *const i8) -> __m256i {
    // SAFETY: promised by the caller.
    _mm256_set1_epi32(unsafe { quad.cast::<i32>().read_unaligned() })
}

/// Half `part` of the step at `quants`, after asking for what lies [`AHEAD`].
///
/// # Safety
/// There are 64 bytes at `quants`; what lies ahead need not be there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn stream(quants: *const u8, part: usize) -> __m256i {
    // SAFETY: promised by the caller; a prefetch is a hint, it may name any address and reads nothing.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(quants.wrapping_add(AHEAD).cast());
        _mm256_loadu_si256(quants.add(part * 32).cast())
    }
}

/// The quants that mean 0 in `group`, negated.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn minus_zeros(stripe: &QuantStripe<'_>, group: usize) -> Pair<__m256i> {
    let Some(zeros) = stripe.zeros else {
        return [_mm256_set1_epi32(-i32::from(MIDDLE_NIBBLE)); 2];
    };
    [0, 8].map(|lane| {
        let zeros = &zeros[group * STRIPE + lane..][..8];
        // SAFETY: `zeros` has eight bytes.
        let zeros = unsafe { _mm_loadl_epi64(zeros.as_ptr().cast()) };
        _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_cvtepu8_epi32(zeros))
    })
}

/// `N` tiles of `W` tokens by a stripe of quants, token after token: sixteen registers hold no more.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quants<const W: usize, const N: usize>(
    stripe: QuantStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    let (outs, _) = out.as_chunks_mut::<W>();
    for (tile, out) in tiles.iter().zip(outs) {
        match (stripe.bits, stripe.is_grouped()) {
            (Bits::Four, true) => tile_by::<W, true, true>(stripe, *tile, out),
            (Bits::Four, false) => tile_by::<W, true, false>(stripe, *tile, out),
            (Bits::Eight, true) => tile_by::<W, false, true>(stripe, *tile, out),
            (Bits::Eight, false) => tile_by::<W, false, false>(stripe, *tile, out),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_by<const W: usize, const NIBBLES: bool, const GROUPED: bool>(
    stripe: QuantStripe<'_>,
    tile: QuantTile<'_>,
    out: &mut [[f32; STRIPE]; W],
) {
    stripe.check();
    tile.check(stripe.runs, W);
    let mut totals = [[_mm256_setzero_ps(); 2]; W];
    // SAFETY: `check` saw that there is a scale for each group, and there is a group.
    let mut scales = unsafe { load(stripe.scales, 0) };
    let mut minus_zero = minus_zeros(&stripe, 0);
    let (mut group, mut left) = (0, stripe.group_runs);
    for run in 0..stripe.runs {
        if GROUPED {
            if left == 0 {
                (group, left) = (group + 1, stripe.group_runs);
                // SAFETY: as above.
                scales = unsafe { load(stripe.scales, group * STRIPE) };
                minus_zero = minus_zeros(&stripe, group);
            }
            left -= 1;
        }
        // SAFETY: `check` saw that stripe and tile have as many runs.
        let sums = unsafe {
            if NIBBLES {
                run_nibbles::<W>(stripe.quants, tile, run, minus_zero)
            } else {
                run_bytes::<W>(stripe.quants, tile, run)
            }
        };
        for (token, total) in totals.iter_mut().enumerate() {
            // SAFETY: `check` saw that each run has a scale for each token.
            let by = _mm256_set1_ps(unsafe { *tile.scales.get_unchecked(run * W + token) });
            for (part, total) in total.iter_mut().enumerate() {
                let sum = _mm256_cvtepi32_ps(sums[token][part]);
                *total = if GROUPED {
                    _mm256_fmadd_ps(_mm256_mul_ps(sum, by), scales[part], *total)
                } else {
                    _mm256_fmadd_ps(sum, by, *total)
                };
            }
        }
    }
    for (out, total) in out.iter_mut().zip(totals) {
        for (part, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let by = if GROUPED { total[part] } else { _mm256_mul_ps(total[part], scales[part]) };
            // SAFETY: `out` has eight floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), by) }
        }
    }
}

/// Sums of one run of nibbles.  Sixteen bits hold the products of a whole run: eight pairs of at most
/// 2 * 15 * 127 are 30,480.
///
/// # Safety
/// `quants` and `tile` have that run.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_nibbles<const W: usize>(
    quants: &[u8],
    tile: QuantTile<'_>,
    run: usize,
    minus_zero: Pair<__m256i>,
) -> [Pair<__m256i>; W] {
    let mask = _mm256_set1_epi8(15);
    let mut narrow = [[_mm256_setzero_si256(); 2]; W];
    for step in 0..4 {
        let at = run * 4 + step;
        for part in 0..2 {
            // SAFETY: a run has four steps of eight columns.
            let pairs = unsafe { stream(quants.as_ptr().add(at * STEP), part) };
            let low = _mm256_and_si256(pairs, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask);
            for (token, narrow) in narrow.iter_mut().enumerate() {
                // SAFETY: as above.
                let (first, second) = unsafe {
                    let quads = tile.quants.as_ptr().add((at * 2 * W + token) * 4);
                    (broadcast(quads), broadcast(quads.add(W * 4)))
                };
                let first = _mm256_maddubs_epi16(low, first);
                let second = _mm256_maddubs_epi16(high, second);
                let both = _mm256_add_epi16(first, second);
                narrow[part] = _mm256_add_epi16(narrow[part], both);
            }
        }
    }
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); 2]; W];
    for (token, sums) in sums.iter_mut().enumerate() {
        let all = _mm256_set1_epi32(tile.sums[run * W + token]);
        for (part, sum) in sums.iter_mut().enumerate() {
            let wide = _mm256_madd_epi16(narrow[token][part], ones);
            *sum = _mm256_add_epi32(wide, _mm256_mullo_epi32(all, minus_zero[part]));
        }
    }
    sums
}

/// Sums of one run of bytes.  `maddubs` takes one unsigned factor: the sizes of the quants, whose signs
/// go to the activations (an activation is never -128, which has no negative); a pair is at most
/// 2 * 128 * 127 and fits sixteen bits.
///
/// # Safety
/// `quants` and `tile` have that run.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_bytes<const W: usize>(
    quants: &[u8],
    tile: QuantTile<'_>,
    run: usize,
) -> [Pair<__m256i>; W] {
    let middle = _mm256_set1_epi8(MIDDLE_BYTE as i8);
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); 2]; W];
    for step in 0..8 {
        let at = run * 8 + step;
        for part in 0..2 {
            // SAFETY: a run has eight steps of four columns.
            let quant = unsafe { stream(quants.as_ptr().add(at * STEP), part) };
            let quant = _mm256_xor_si256(quant, middle);
            let size = _mm256_abs_epi8(quant);
            for (token, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                let x = unsafe { broadcast(tile.quants.as_ptr().add((at * W + token) * 4)) };
                let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, quant));
                sums[part] = _mm256_add_epi32(sums[part], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    sums
}
