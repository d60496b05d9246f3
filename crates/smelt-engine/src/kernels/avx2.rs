//! Computes the two inner kernels with AVX2, FMA and F16C.
//!
//! Packed panels in, one tile out; two rows in, one sum out.  Callers have detected the features.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::isa::{TILE_COLUMNS, TILE_ROWS, Tile};
use super::plain;

/// Six rows by two registers are twelve sums, which fits AVX2's sixteen registers.
const PART_ROWS: usize = 6;
const PART_COLUMNS: usize = 16;
const _: () = assert!(TILE_ROWS.is_multiple_of(PART_ROWS));
const _: () = assert!(TILE_COLUMNS.is_multiple_of(PART_COLUMNS));

/// See [`super::isa::Isa::vectorised`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// See [`super::isa::Isa::tile`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile(a: &[f32], b: &[f32], tile: &mut Tile) {
    for row in (0..TILE_ROWS).step_by(PART_ROWS) {
        for column in (0..TILE_COLUMNS).step_by(PART_COLUMNS) {
            part(a, b, row, column, tile);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn part(a: &[f32], b: &[f32], row: usize, column: usize, tile: &mut Tile) {
    let mut low = [_mm256_setzero_ps(); PART_ROWS];
    let mut high = [_mm256_setzero_ps(); PART_ROWS];
    for (a, b) in a.chunks_exact(TILE_ROWS).zip(b.chunks_exact(TILE_COLUMNS)) {
        let b = &b[column..column + PART_COLUMNS];
        let a = &a[row..row + PART_ROWS];
        // SAFETY: `b` holds 16 values, of which each load reads 8.
        let (b_low, b_high) =
            unsafe { (_mm256_loadu_ps(b.as_ptr()), _mm256_loadu_ps(b.as_ptr().add(8))) };
        for i in 0..PART_ROWS {
            let a = _mm256_set1_ps(a[i]);
            low[i] = _mm256_fmadd_ps(a, b_low, low[i]);
            high[i] = _mm256_fmadd_ps(a, b_high, high[i]);
        }
    }
    for i in 0..PART_ROWS {
        let start = (row + i) * TILE_COLUMNS + column;
        let out = &mut tile[start..start + PART_COLUMNS];
        // SAFETY: `out` holds 16 values, of which each store writes 8.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), low[i]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), high[i]);
        }
    }
}

/// Adds the eight lanes.
#[target_feature(enable = "avx2,fma,f16c")]
fn sum(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Asks for the weights that follow `w` at some distance: rows lie one after another, and the
/// processor's own prefetch stops at every page.
fn prefetch<T>(w: &[T]) {
    /// Far enough to hide the memory's latency, near enough to stay in the first cache.
    const DISTANCE_BYTES: usize = 2048;
    let ahead = w.as_ptr().cast::<i8>().wrapping_add(DISTANCE_BYTES);
    // SAFETY: a prefetch is a hint; it may name any address, and reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead) }
}

/// Writes a dot product over 32 values a turn, in four sums, from `$load`, which reads 8 values of
/// `$kind` at its pointer as f32; the last 31 or fewer go to `$tail`.
macro_rules! dot {
    ($name:ident, $kind:ty, $load:expr, $tail:path) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name(w: &[$kind], x: &[f32]) -> f32 {
            let mut sums = [_mm256_setzero_ps(); 4];
            let (w_chunks, x_chunks) = (w.chunks_exact(32), x.chunks_exact(32));
            let tail = $tail(w_chunks.remainder(), x_chunks.remainder());
            for (w, x) in w_chunks.zip(x_chunks) {
                prefetch(w);
                for (part, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: both chunks hold 32 values, and part 0..4 reads 8 from 8 * part.
                    let (w, x) = unsafe {
                        let w = $load(w.as_ptr().add(8 * part));
                        (w, _mm256_loadu_ps(x.as_ptr().add(8 * part)))
                    };
                    *sum = _mm256_fmadd_ps(w, x, *sum);
                }
            }
            let pairs = (_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
            sum(_mm256_add_ps(pairs.0, pairs.1)) + tail
        }
    };
}

dot!(dot_f32, f32, |w| _mm256_loadu_ps(w), plain::dot_f32);
dot!(dot_f16, u16, |w: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(w.cast())), plain::dot_f16);
dot!(
    dot_bf16,
    u16,
    |w: *const u16| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(
        _mm_loadu_si128(w.cast())
    ))),
    plain::dot_bf16
);
dot!(
    dot_i8,
    i8,
    |w: *const i8| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(w.cast()))),
    plain::dot_i8
);
