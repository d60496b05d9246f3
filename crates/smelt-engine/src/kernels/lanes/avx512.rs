//! Sixteen numbers in one register of AVX-512F.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LANES, Lanes, OverLanes};

/// A processor with avx512f.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Does `work` with these vectors.
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(crate) fn run(work: impl OverLanes) {
        work.run(Self(()));
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const ROWS: usize = 8;

    methods! {
        splat(value: f32) -> __m512 = _mm512_set1_ps(value);
        load(from: &[f32; LANES]) -> __m512 = _mm512_loadu_ps(from.as_ptr());
        load_f16(from: &[u16; LANES]) -> __m512 =
            _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()));
        load_bf16(from: &[u16; LANES]) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast())),
        ));
        load_i8(from: &[i8; LANES]) -> __m512 =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())));
        store(value: __m512, to: &mut [f32; LANES]) -> () =
            _mm512_storeu_ps(to.as_mut_ptr(), value);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        unless_below(value: __m512, x: __m512, limit: __m512) -> __m512 =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), value);
        power(shifted: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted)),
            _mm512_castps_si512(_mm512_set1_ps(1.0)),
        ));
    }
}
