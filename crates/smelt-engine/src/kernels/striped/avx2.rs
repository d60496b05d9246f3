//! Computes the kernels of stripes with AVX2, FMA and F16C: a stripe is two registers wide.
//!
//! Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::input::LevelTile;
use super::multiply::Outputs;
use super::{Bits, FLOAT_RUN, LevelStripe, MIDDLE_BYTE, MIDDLE_NIBBLE, RUN, STRIPE};
use crate::kernels::matrix::Elements;

/// Bytes of sixteen rows by four columns.
const STEP: usize = 64;

/// Two registers: rows 0..8 and 8..16.
type Pair<T> = [T; 2];

/// Sixteen floats at `index` of `numbers`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(numbers: Elements<'_>, index: usize) -> Pair<__m256> {
    // SAFETY: each slice has as many numbers as its load reads.
    [index, index + 8].map(|index| unsafe {
        match numbers {
            Elements::F32(all) => _mm256_loadu_ps(all[index..index + 8].as_ptr()),
            Elements::F16(all) => {
                _mm256_cvtph_ps(_mm_loadu_si128(all[index..index + 8].as_ptr().cast()))
            }
            Elements::Bf16(all) => {
                let bits = _mm_loadu_si128(all[index..index + 8].as_ptr().cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
            }
            Elements::I8(_) => unreachable!("stripes of bytes are levels"),
        }
    })
}

/// Four levels of one token, for every row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad(levels: &[i8], index: usize) -> __m256i {
    let quad: [i8; 4] = levels[index * 4..][..4].try_into().expect("four bytes");
    _mm256_set1_epi32(i32::from_ne_bytes(quad.map(|level| level as u8)))
}

/// Half `half` of a step's bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half(step: &[u8; STEP], half: usize) -> __m256i {
    let bytes = &step[half * 32..][..32];
    // SAFETY: `bytes` has 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// The levels that mean 0 in `group`, negated.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn minus_zeros(stripe: &LevelStripe<'_>, group: usize) -> Pair<__m256i> {
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

/// `N` tiles of `W` tokens by a stripe of levels, token after token: sixteen registers hold no more.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn levels<const W: usize, const N: usize>(
    stripe: LevelStripe<'_>,
    tiles: [LevelTile<'_>; N],
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
    stripe: LevelStripe<'_>,
    tile: LevelTile<'_>,
    out: &mut [[f32; STRIPE]; W],
) {
    let mut totals = [[_mm256_setzero_ps(); 2]; W];
    let mut scales = load(stripe.scales, 0);
    let mut minus_zero = minus_zeros(&stripe, 0);
    let run_len = if NIBBLES { RUN * STRIPE / 2 } else { RUN * STRIPE };
    for (run, levels) in stripe.levels.chunks_exact(run_len).enumerate() {
        if GROUPED && run.is_multiple_of(stripe.group_runs) {
            let group = run / stripe.group_runs;
            scales = load(stripe.scales, group * STRIPE);
            minus_zero = minus_zeros(&stripe, group);
        }
        let steps = levels.as_chunks::<STEP>().0;
        let sums = if NIBBLES {
            run_nibbles::<W>(steps, tile, run, minus_zero)
        } else {
            run_bytes::<W>(steps, tile, run)
        };
        for (token, total) in totals.iter_mut().enumerate() {
            let by = _mm256_set1_ps(tile.scales[run * W + token]);
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
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_nibbles<const W: usize>(
    steps: &[[u8; STEP]],
    tile: LevelTile<'_>,
    run: usize,
    minus_zero: Pair<__m256i>,
) -> [Pair<__m256i>; W] {
    let mask = _mm256_set1_epi8(15);
    let mut narrow = [[_mm256_setzero_si256(); 2]; W];
    for (step, bytes) in steps.iter().enumerate() {
        let at = (run * 8 + step * 2) * W;
        for part in 0..2 {
            let pairs = half(bytes, part);
            let low = _mm256_and_si256(pairs, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask);
            for (token, narrow) in narrow.iter_mut().enumerate() {
                let first = _mm256_maddubs_epi16(low, quad(tile.levels, at + token));
                let second = _mm256_maddubs_epi16(high, quad(tile.levels, at + W + token));
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

/// Sums of one run of bytes.  `maddubs` takes one unsigned factor: the sizes of the levels, whose signs
/// go to the activations (an activation is never -128, which has no negative); a pair is at most
/// 2 * 128 * 127 and fits sixteen bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_bytes<const W: usize>(
    steps: &[[u8; STEP]],
    tile: LevelTile<'_>,
    run: usize,
) -> [Pair<__m256i>; W] {
    let middle = _mm256_set1_epi8(MIDDLE_BYTE as i8);
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); 2]; W];
    for (step, bytes) in steps.iter().enumerate() {
        for part in 0..2 {
            let level = _mm256_xor_si256(half(bytes, part), middle);
            let size = _mm256_abs_epi8(level);
            for (token, sums) in sums.iter_mut().enumerate() {
                let x = quad(tile.levels, (run * 8 + step) * W + token);
                let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, level));
                sums[part] = _mm256_add_epi32(sums[part], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
    sums
}

/// `N` tiles of `W` tokens by a stripe of floats.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats<const W: usize, const N: usize>(
    stripe: Elements<'_>,
    tiles: [&[f32]; N],
    out: &mut Outputs,
) {
    let columns = stripe.len() / STRIPE;
    let (outs, _) = out.as_chunks_mut::<W>();
    for (tile, outs) in tiles.iter().zip(outs) {
        let mut totals = [[_mm256_setzero_ps(); 2]; W];
        for first in (0..columns).step_by(FLOAT_RUN) {
            let mut sums = [[_mm256_setzero_ps(); 2]; W];
            for column in first..(first + FLOAT_RUN).min(columns) {
                let numbers = load(stripe, column * STRIPE);
                let x = &tile[column * W..][..W];
                for (sums, &x) in sums.iter_mut().zip(x) {
                    let x = _mm256_set1_ps(x);
                    for (sum, number) in sums.iter_mut().zip(numbers) {
                        *sum = _mm256_fmadd_ps(number, x, *sum);
                    }
                }
            }
            for (total, sum) in totals.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                *total = _mm256_add_ps(*total, *sum);
            }
        }
        for (out, total) in
            outs.as_flattened_mut().as_chunks_mut::<8>().0.iter_mut().zip(totals.as_flattened())
        {
            // SAFETY: `out` has eight floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *total) }
        }
    }
}
