//! Computes the two inner kernels with AVX-512F.
//!
//! Packed panels in, one tile out; two rows in, one sum out.  Callers have detected the feature.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::isa::{TILE_COLUMNS, TILE_ROWS, Tile};
use super::plain;

/// Two registers cover one row of the tile.
const _: () = assert!(TILE_COLUMNS == 32);

/// See [`super::isa::Isa::vectorised`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// See [`super::isa::Isa::tile`].
#[target_feature(enable = "avx512f")]
pub(super) fn tile(a: &[f32], b: &[f32], tile: &mut Tile) {
    let mut low = [_mm512_setzero_ps(); TILE_ROWS];
    let mut high = [_mm512_setzero_ps(); TILE_ROWS];
    for (a, b) in a.chunks_exact(TILE_ROWS).zip(b.chunks_exact(TILE_COLUMNS)) {
        // SAFETY: a chunk of `b` holds 32 values, of which each load reads 16.
        let (b_low, b_high) =
            unsafe { (_mm512_loadu_ps(b.as_ptr()), _mm512_loadu_ps(b.as_ptr().add(16))) };
        for i in 0..TILE_ROWS {
            let a = _mm512_set1_ps(a[i]);
            low[i] = _mm512_fmadd_ps(a, b_low, low[i]);
            high[i] = _mm512_fmadd_ps(a, b_high, high[i]);
        }
    }
    for (i, row) in tile.chunks_exact_mut(TILE_COLUMNS).enumerate() {
        // SAFETY: a row of the tile holds 32 values, of which each store writes 16.
        unsafe {
            _mm512_storeu_ps(row.as_mut_ptr(), low[i]);
            _mm512_storeu_ps(row.as_mut_ptr().add(16), high[i]);
        }
    }
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

/// Writes a dot product over 64 values a turn, in four sums, from `$load`, which reads 16 values of
/// `$kind` at its pointer as f32; the last 63 or fewer go to `$tail`.
macro_rules! dot {
    ($name:ident, $kind:ty, $load:expr, $tail:path) => {
        #[target_feature(enable = "avx512f")]
        pub(super) fn $name(w: &[$kind], x: &[f32]) -> f32 {
            let mut sums = [_mm512_setzero_ps(); 4];
            let (w_chunks, x_chunks) = (w.chunks_exact(64), x.chunks_exact(64));
            let tail = $tail(w_chunks.remainder(), x_chunks.remainder());
            for (w, x) in w_chunks.zip(x_chunks) {
                prefetch(w);
                for (part, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: both chunks hold 64 values, and part 0..4 reads 16 from 16 * part.
                    let (w, x) = unsafe {
                        let w = $load(w.as_ptr().add(16 * part));
                        (w, _mm512_loadu_ps(x.as_ptr().add(16 * part)))
                    };
                    *sum = _mm512_fmadd_ps(w, x, *sum);
                }
            }
            let pairs = (_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
            _mm512_reduce_add_ps(_mm512_add_ps(pairs.0, pairs.1)) + tail
        }
    };
}

dot!(dot_f32, f32, |w| _mm512_loadu_ps(w), plain::dot_f32);
dot!(dot_f16, u16, |w: *const u16| _mm512_cvtph_ps(_mm256_loadu_si256(w.cast())), plain::dot_f16);
dot!(
    dot_bf16,
    u16,
    |w: *const u16| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
        _mm256_loadu_si256(w.cast())
    ))),
    plain::dot_bf16
);
dot!(
    dot_i8,
    i8,
    |w: *const i8| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(w.cast()))),
    plain::dot_i8
);
