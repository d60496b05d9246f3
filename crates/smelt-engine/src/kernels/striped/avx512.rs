//! Computes the kernels of stripes with AVX-512, quants with its VNNI.
//!
//! Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::input::QuantTile;
use super::multiply::Outputs;
use super::{MIDDLE_BYTE, MIDDLE_NIBBLE, QuantStripe, RUN, STRIPE};
use crate::kernels::matrix::Elements;

/// Bytes of a register.
pub(super) const VECTOR: usize = 64;
/// How far ahead of their use quants are asked for: some 100 ns of one core's stream.
const AHEAD: usize = 4096;

/// Sixteen floats at `index` of `numbers`.
///
/// # Safety
/// They are there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(numbers: Elements<'_>, index: usize) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        match numbers {
            Elements::F32(all) => _mm512_loadu_ps(all.as_ptr().add(index)),
            Elements::F16(all) => {
                _mm512_cvtph_ps(_mm256_loadu_si256(all.as_ptr().add(index).cast()))
            }
            Elements::Bf16(all) => {
                let bits = _mm256_loadu_si256(all.as_ptr().add(index).cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
            }
            Elements::I8(_) => unreachable!("stripes of bytes are levels"),
        }
    }
}

/// The quants that mean 0 in `group`, negated.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn minus_zeros(stripe: &QuantStripe<'_>, group: usize, middle: u8) -> __m512i {
    let Some(zeros) = stripe.zeros else { return _mm512_set1_epi32(-i32::from(middle)) };
    let zeros = &zeros[group * STRIPE..][..STRIPE];
    // SAFETY: `zeros` has sixteen bytes.
    let zeros = unsafe { _mm_loadu_si128(zeros.as_ptr().cast()) };
    _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_cvtepu8_epi32(zeros))
}

/// The register at `quants`, after asking for what lies [`AHEAD`].
///
/// # Safety
/// There are 64 bytes at `quants`; what lies ahead need not be there.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn stream(quants: *const u8) -> __m512i {
    // SAFETY: promised by the caller; a prefetch is a hint, it may name any address and reads nothing.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(quants.wrapping_add(AHEAD).cast());
        _mm512_loadu_si512(quants.cast())
    }
}

/// Four quants of one token, for every row.
///
/// # Safety
/// They are at `quad`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn broadcast(quad: *const i8) -> __m512i {
    // SAFETY: promised by the caller.
    _mm512_set1_epi32(unsafe { quad.cast::<i32>().read_unaligned() })
}

/// Writes a kernel of quants; `$sum` adds a run's products to its sums.
macro_rules! quants {
    ($name:ident, $sum:ident, $middle:expr) => {
        /// `N` tiles of `W` tokens by a stripe of quants.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        pub(super) fn $name<const W: usize, const N: usize>(
            stripe: QuantStripe<'_>,
            tiles: [QuantTile<'_>; N],
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

quants!(nibbles, sum_nibbles, MIDDLE_NIBBLE);
quants!(bytes, sum_bytes, MIDDLE_BYTE);

/// Writes the loop over runs of `$steps` registers; `$step` adds the products of one.
macro_rules! sums {
    ($name:ident, $steps:expr, $step:ident) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        fn $name<const W: usize, const N: usize, const GROUPED: bool>(
            stripe: QuantStripe<'_>,
            tiles: [QuantTile<'_>; N],
            middle: u8,
            out: &mut Outputs,
        ) {
            stripe.check();
            tiles.iter().for_each(|tile| tile.check(stripe.runs, W));
            let mut totals = [[_mm512_setzero_ps(); W]; N];
            // SAFETY: `check` saw that there is a scale for each group, and there is a group.
            let mut scales = unsafe { load(stripe.scales, 0) };
            let mut minus_zero = minus_zeros(&stripe, 0, middle);
            let (mut group, mut left) = (0, stripe.group_runs);
            for run in 0..stripe.runs {
                if GROUPED {
                    if left == 0 {
                        (group, left) = (group + 1, stripe.group_runs);
                        // SAFETY: as above.
                        scales = unsafe { load(stripe.scales, group * STRIPE) };
                        minus_zero = minus_zeros(&stripe, group, middle);
                    }
                    left -= 1;
                }
                let mut sums = [[_mm512_setzero_si512(); W]; N];
                for n in 0..N {
                    for w in 0..W {
                        // SAFETY: `check` saw that each run has a sum for each token.
                        let all = unsafe { *tiles[n].sums.get_unchecked(run * W + w) };
                        sums[n][w] = _mm512_mullo_epi32(_mm512_set1_epi32(all), minus_zero);
                    }
                }
                for step in 0..$steps {
                    // SAFETY: `check` saw that each run has as many registers and each tile as many
                    // quads as its steps read.
                    unsafe {
                        let at = run * $steps + step;
                        let quants = stream(stripe.quants.as_ptr().add(at * VECTOR));
                        for n in 0..N {
                            let quads = tiles[n].quants.as_ptr().add(at * (RUN / $steps) * W);
                            $step::<W>(quants, quads, &mut sums[n]);
                        }
                    }
                }
                for n in 0..N {
                    for w in 0..W {
                        // SAFETY: `check` saw that each run has a scale for each token.
                        let by = unsafe { *tiles[n].scales.get_unchecked(run * W + w) };
                        let (sum, by) = (_mm512_cvtepi32_ps(sums[n][w]), _mm512_set1_ps(by));
                        totals[n][w] = if GROUPED {
                            _mm512_fmadd_ps(_mm512_mul_ps(sum, by), scales, totals[n][w])
                        } else {
                            _mm512_fmadd_ps(sum, by, totals[n][w])
                        };
                    }
                }
            }
            for (out, total) in out.iter_mut().zip(totals.as_flattened()) {
                let total = if GROUPED { *total } else { _mm512_mul_ps(*total, scales) };
                // SAFETY: `out` has sixteen floats.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), total) }
            }
        }
    };
}

sums!(sum_nibbles, 4, step_nibbles);
sums!(sum_bytes, 8, step_bytes);

/// Adds the products of eight columns.
///
/// # Safety
/// At `quads` lie those of the first four columns for `W` tokens, then those of the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn step_nibbles<const W: usize>(pairs: __m512i, quads: *const i8, sums: &mut [__m512i; W]) {
    let mask = _mm512_set1_epi8(15);
    let low = _mm512_and_si512(pairs, mask);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(pairs), mask);
    for (token, sum) in sums.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        let (first, second) =
            unsafe { (broadcast(quads.add(token * 4)), broadcast(quads.add((W + token) * 4))) };
        *sum = _mm512_dpbusd_epi32(*sum, low, first);
        *sum = _mm512_dpbusd_epi32(*sum, high, second);
    }
}

/// Adds the products of four columns.
///
/// # Safety
/// At `quads` lie those of the columns for `W` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn step_bytes<const W: usize>(quants: __m512i, quads: *const i8, sums: &mut [__m512i; W]) {
    for (token, sum) in sums.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        let quad = unsafe { broadcast(quads.add(token * 4)) };
        *sum = _mm512_dpbusd_epi32(*sum, quants, quad);
    }
}
