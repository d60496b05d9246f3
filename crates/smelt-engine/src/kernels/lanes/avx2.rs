//! Sixteen numbers in two registers of AVX2, with FMA and F16C.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LANES, Lanes, OverLanes};

/// A processor with avx2, fma and f16c.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Does `work` with these vectors.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn run(work: impl OverLanes) {
        work.run(Self(()));
    }
}

type Pair = [__m256; 2];

impl Lanes for Avx2 {
    type V = Pair;
    const ROWS: usize = 4;

    methods! {
        splat(value: f32) -> Pair = [_mm256_set1_ps(value); 2];
        load(from: &[f32; LANES]) -> Pair =
            [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))];
        load_f16(from: &[u16; LANES]) -> Pair = [
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ];
        load_bf16(from: &[u16; LANES]) -> Pair = [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
                from.as_ptr().cast(),
            )))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
                from.as_ptr().add(8).cast(),
            )))),
        ];
        load_i8(from: &[i8; LANES]) -> Pair = [
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast()))),
        ];
        store(value: Pair, to: &mut [f32; LANES]) -> () = {
            _mm256_storeu_ps(to.as_mut_ptr(), value[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), value[1]);
        };
        add(a: Pair, b: Pair) -> Pair = [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
        mul(a: Pair, b: Pair) -> Pair = [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
        div(a: Pair, b: Pair) -> Pair = [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])];
        fma(a: Pair, b: Pair, c: Pair) -> Pair =
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])];
        max(a: Pair, b: Pair) -> Pair = [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])];
        min(a: Pair, b: Pair) -> Pair = [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])];
        unless_below(value: Pair, x: Pair, limit: Pair) -> Pair = [
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x[0], limit[0]), value[0]),
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x[1], limit[1]), value[1]),
        ];
        power(shifted: Pair) -> Pair = [power(shifted[0]), power(shifted[1])];
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn power(shifted: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted)),
        _mm256_castps_si256(_mm256_set1_ps(1.0)),
    ))
}
