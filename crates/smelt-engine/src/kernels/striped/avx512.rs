//! Computes the kernels of stripes with AVX-512, levels with its VNNI.
//!
//! Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::input::LevelTile;
use super::multiply::Outputs;
use super::{FLOAT_RUN, LevelStripe, MIDDLE_BYTE, MIDDLE_NIBBLE, RUN, STRIPE};
use crate::kernels::matrix::Elements;

/// Bytes of a register.
const VECTOR: usize = 64;
/// How far ahead of their use levels are asked for: some 100 ns of one core's stream.
const AHEAD: usize = 4096;

/// Sixteen floats at `index` of `numbers`.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(numbers: Elements<'_>, index: usize) -> __m512 {
    match numbers {
        Elements::F32(all) => {
            let run = &all[index..index + STRIPE];
            // SAFETY: `run` has sixteen floats.
            unsafe { _mm512_loadu_ps(run.as_ptr()) }
        }
        Elements::F16(all) => {
            let run = &all[index..index + STRIPE];
            // SAFETY: `run` has sixteen halves.
            _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(run.as_ptr().cast()) })
        }
        Elements::Bf16(all) => {
            let run = &all[index..index + STRIPE];
            // SAFETY: `run` has sixteen halves.
            let bits = unsafe { _mm256_loadu_si256(run.as_ptr().cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }
        Elements::I8(_) => unreachable!("stripes of bytes are levels"),
    }
}

/// The levels that mean 0 in `group`, negated.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn minus_zeros(stripe: &LevelStripe<'_>, group: usize, middle: u8) -> __m512i {
    let Some(zeros) = stripe.zeros else { return _mm512_set1_epi32(-i32::from(middle)) };
    let zeros = &zeros[group * STRIPE..][..STRIPE];
    // SAFETY: `zeros` has sixteen bytes.
    let zeros = unsafe { _mm_loadu_si128(zeros.as_ptr().cast()) };
    _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_cvtepu8_epi32(zeros))
}

/// Asks for what lies [`AHEAD`] of `levels`.
#[inline]
fn prefetch(levels: &[u8]) {
    let ahead = levels.as_ptr().wrapping_add(AHEAD).cast();
    // SAFETY: a prefetch is a hint; it may name any address, and reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead) }
}

/// Four levels of one token, for every row.
#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(quad: [i8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_ne_bytes(quad.map(|level| level as u8)))
}

/// Writes a kernel of levels; `$sum` adds a run's products to its sums.
macro_rules! levels {
    ($name:ident, $sum:ident, $middle:expr) => {
        /// `N` tiles of `W` tokens by a stripe of levels.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        pub(super) fn $name<const W: usize, const N: usize>(
            stripe: LevelStripe<'_>,
            tiles: [LevelTile<'_>; N],
            out: &mut Outputs,
        ) {
            if stripe.is_grouped() {
                $sum::<W, N, true>(stripe, tiles, $middle, out);
            } else {
                $sum::<W, N, false>(stripe, tiles, $middle, out);
            }
        }
    };
}

levels!(nibbles, sum_nibbles, MIDDLE_NIBBLE);
levels!(bytes, sum_bytes, MIDDLE_BYTE);

/// Writes the loop over runs of `$steps` registers; `$step` adds the products of one.
macro_rules! sums {
    ($name:ident, $steps:expr, $step:ident) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        fn $name<const W: usize, const N: usize, const GROUPED: bool>(
            stripe: LevelStripe<'_>,
            tiles: [LevelTile<'_>; N],
            middle: u8,
            out: &mut Outputs,
        ) {
            /// Quads of a token that a step takes.
            const QUADS: usize = RUN / 4 / $steps;
            let mut totals = [[_mm512_setzero_ps(); W]; N];
            let mut scales = load(stripe.scales, 0);
            let mut minus_zero = minus_zeros(&stripe, 0, middle);
            let (mut group, mut left) = (0, stripe.group_runs);
            let runs = stripe.levels.as_chunks::<VECTOR>().0.as_chunks::<$steps>().0;
            let quads = tiles.map(|tile| tile.levels.as_chunks::<4>().0);
            for (run, steps) in runs.iter().enumerate() {
                if GROUPED && left == 0 {
                    (group, left) = (group + 1, stripe.group_runs);
                    scales = load(stripe.scales, group * STRIPE);
                    minus_zero = minus_zeros(&stripe, group, middle);
                }
                left -= 1;
                let mut sums = [[_mm512_setzero_si512(); W]; N];
                for (sums, tile) in sums.iter_mut().zip(&tiles) {
                    let all = &tile.sums[run * W..][..W];
                    for (sum, &all) in sums.iter_mut().zip(all) {
                        *sum = _mm512_mullo_epi32(_mm512_set1_epi32(all), minus_zero);
                    }
                }
                let quads = quads.map(|quads| &quads[run * W * RUN / 4..][..W * RUN / 4]);
                for (step, levels) in steps.iter().enumerate() {
                    prefetch(levels);
                    // SAFETY: `levels` has 64 bytes.
                    let levels = unsafe { _mm512_loadu_si512(levels.as_ptr().cast()) };
                    for (sums, quads) in sums.iter_mut().zip(quads) {
                        let quads = &quads[step * QUADS * W..][..QUADS * W];
                        $step::<W>(levels, quads, sums);
                    }
                }
                for ((totals, sums), tile) in totals.iter_mut().zip(sums).zip(&tiles) {
                    let by = &tile.scales[run * W..][..W];
                    for ((total, sum), &by) in totals.iter_mut().zip(sums).zip(by) {
                        let (sum, by) = (_mm512_cvtepi32_ps(sum), _mm512_set1_ps(by));
                        *total = if GROUPED {
                            _mm512_fmadd_ps(_mm512_mul_ps(sum, by), scales, *total)
                        } else {
                            _mm512_fmadd_ps(sum, by, *total)
                        };
                    }
                }
            }
            for (out, mut total) in out.iter_mut().zip(totals.into_iter().flatten()) {
                if !GROUPED {
                    total = _mm512_mul_ps(total, scales);
                }
                // SAFETY: `out` has sixteen floats.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), total) }
            }
        }
    };
}

sums!(sum_nibbles, 4, step_nibbles);
sums!(sum_bytes, 8, step_bytes);

/// Adds the products of eight columns; `quads` are those of the first four, then of the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn step_nibbles<const W: usize>(pairs: __m512i, quads: &[[i8; 4]], sums: &mut [__m512i; W]) {
    let mask = _mm512_set1_epi8(15);
    let low = _mm512_and_si512(pairs, mask);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(pairs), mask);
    for (token, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_dpbusd_epi32(*sum, low, broadcast(quads[token]));
        *sum = _mm512_dpbusd_epi32(*sum, high, broadcast(quads[W + token]));
    }
}

/// Adds the products of four columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn step_bytes<const W: usize>(levels: __m512i, quads: &[[i8; 4]], sums: &mut [__m512i; W]) {
    for (token, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_dpbusd_epi32(*sum, levels, broadcast(quads[token]));
    }
}

/// `N` tiles of `W` tokens by a stripe of floats.
#[target_feature(enable = "avx512f")]
pub(super) fn floats<const W: usize, const N: usize>(
    stripe: Elements<'_>,
    tiles: [&[f32]; N],
    out: &mut Outputs,
) {
    let columns = stripe.len() / STRIPE;
    let mut totals = [[_mm512_setzero_ps(); W]; N];
    for first in (0..columns).step_by(FLOAT_RUN) {
        let mut sums = [[_mm512_setzero_ps(); W]; N];
        for column in first..(first + FLOAT_RUN).min(columns) {
            let numbers = load(stripe, column * STRIPE);
            for (sums, tile) in sums.iter_mut().zip(&tiles) {
                let x = &tile[column * W..][..W];
                for (sum, &x) in sums.iter_mut().zip(x) {
                    *sum = _mm512_fmadd_ps(numbers, _mm512_set1_ps(x), *sum);
                }
            }
        }
        for (total, sum) in totals.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
            *total = _mm512_add_ps(*total, *sum);
        }
    }
    for (out, total) in out.iter_mut().zip(totals.as_flattened()) {
        // SAFETY: `out` has sixteen floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *total) }
    }
}
