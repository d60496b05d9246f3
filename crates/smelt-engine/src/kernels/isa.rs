//! Picks the instruction set at run time and forwards the two inner kernels to it.
//!
//! One build holds every path; the first question to the processor decides.  Knows the shapes of
//! the inner kernels, nothing of what calls them.

#![allow(unsafe_code)]

use super::lanes::{self, OverLanes};
use super::matrix::Elements;
use super::plain;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Rows of one tile of a product: 12 rows by two 16-wide registers fill AVX-512's 32 registers.
pub(crate) const TILE_ROWS: usize = 12;
/// Columns of one tile of a product.
pub(crate) const TILE_COLUMNS: usize = 32;
/// One tile of a product, row after row.
pub(crate) type Tile = [f32; TILE_ROWS * TILE_COLUMNS];

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa(Path);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Plain,
    /// With FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// With BW and VL too.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// With dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

impl Isa {
    /// The widest one here.
    pub(crate) fn detect() -> Self {
        Self::all().pop().expect("the plain path is always there")
    }

    /// Every one this processor has, the widest last.
    pub(crate) fn all() -> Vec<Self> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "other processors have the plain path alone")
        )]
        let mut all = vec![Self(Path::Plain)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                all.push(Self(Path::Avx2));
            }
            let avx512 = avx2 && is_x86_feature_detected!("avx512f");
            if avx512 {
                all.push(Self(Path::Avx512));
            }
            let vnni = avx512
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            if vnni {
                all.push(Self(Path::Avx512Vnni));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Self(Path::Neon));
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                all.push(Self(Path::NeonDot));
            }
        }
        all
    }

    /// The word for it in files and messages.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Path::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Path::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Path::NeonDot => "neon-dot",
        }
    }

    /// Which kernels to call.
    pub(super) fn path(self) -> Path {
        self.0
    }

    /// Runs `work` compiled for the vectors of this path, as far as it is inlined here.
    #[inline]
    pub(crate) fn vectorised<R>(self, work: impl FnOnce() -> R) -> R {
        match self.0 {
            Path::Plain => work(),
            #[cfg(target_arch = "aarch64")]
            Path::Neon | Path::NeonDot => work(),
            // SAFETY: `all` gives this path only where avx2, fma and f16c were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { avx2::vectorised(work) },
            // SAFETY: `all` gives these paths only where avx512f was detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Vnni => unsafe { avx512::vectorised(work) },
        }
    }

    /// Does `work` over the widest vectors of this instruction set.
    pub(crate) fn over_lanes(self, work: impl OverLanes) {
        match self.0 {
            Path::Plain => work.run(lanes::Plain),
            // SAFETY: `all` gives this path only where avx2, fma and f16c were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { lanes::Avx2::run(work) },
            // SAFETY: `all` gives this path only where avx512f, avx2, fma and f16c were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Vnni => unsafe { lanes::Avx512::run(work) },
            #[cfg(target_arch = "aarch64")]
            Path::Neon | Path::NeonDot => lanes::Neon::run(work),
        }
    }

    /// `tile[i][j] = Σ_p a[p][i] * b[p][j]` over panels packed `depth` by `TILE_ROWS` and
    /// `depth` by `TILE_COLUMNS`.
    pub(crate) fn tile(self, depth: usize, a: &[f32], b: &[f32], tile: &mut Tile) {
        let (a, b) = (&a[..depth * TILE_ROWS], &b[..depth * TILE_COLUMNS]);
        match self.0 {
            Path::Plain => plain::tile(a, b, tile),
            #[cfg(target_arch = "aarch64")]
            Path::Neon | Path::NeonDot => plain::tile(a, b, tile),
            // SAFETY: `all` gives this path only where avx2, fma and f16c were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { avx2::tile(a, b, tile) },
            // SAFETY: `all` gives these paths only where avx512f was detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Vnni => unsafe { avx512::tile(a, b, tile) },
        }
    }

    /// `Σ_p w[p] * x[p]`; both have the same length.
    pub(crate) fn dot(self, w: Elements<'_>, x: &[f32]) -> f32 {
        assert_eq!(w.len(), x.len(), "a dot product needs two equal lengths");
        match self.0 {
            Path::Plain => plain_dot(w, x),
            #[cfg(target_arch = "aarch64")]
            Path::Neon | Path::NeonDot => plain_dot(w, x),
            // SAFETY: `all` gives this path only where avx2, fma and f16c were detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe {
                match w {
                    Elements::F32(w) => avx2::dot_f32(w, x),
                    Elements::F16(w) => avx2::dot_f16(w, x),
                    Elements::Bf16(w) => avx2::dot_bf16(w, x),
                    Elements::I8(w) => avx2::dot_i8(w, x),
                }
            },
            // SAFETY: `all` gives these paths only where avx512f was detected.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Vnni => unsafe {
                match w {
                    Elements::F32(w) => avx512::dot_f32(w, x),
                    Elements::F16(w) => avx512::dot_f16(w, x),
                    Elements::Bf16(w) => avx512::dot_bf16(w, x),
                    Elements::I8(w) => avx512::dot_i8(w, x),
                }
            },
        }
    }
}

fn plain_dot(w: Elements<'_>, x: &[f32]) -> f32 {
    match w {
        Elements::F32(w) => plain::dot_f32(w, x),
        Elements::F16(w) => plain::dot_f16(w, x),
        Elements::Bf16(w) => plain::dot_bf16(w, x),
        Elements::I8(w) => plain::dot_i8(w, x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::close;
    use half::{bf16, f16};
    use smelt_random::Random;

    fn naive_tile(depth: usize, a: &[f32], b: &[f32]) -> Vec<f64> {
        let mut out = vec![0.0; TILE_ROWS * TILE_COLUMNS];
        for p in 0..depth {
            for i in 0..TILE_ROWS {
                for j in 0..TILE_COLUMNS {
                    let product =
                        f64::from(a[p * TILE_ROWS + i]) * f64::from(b[p * TILE_COLUMNS + j]);
                    out[i * TILE_COLUMNS + j] += product;
                }
            }
        }
        out
    }

    #[test]
    fn every_path_computes_the_tile() {
        let mut random = Random::new(1);
        for depth in [0, 1, 2, 7, 256] {
            let a = random.noise(depth * TILE_ROWS);
            let b = random.noise(depth * TILE_COLUMNS);
            let expect = naive_tile(depth, &a, &b);
            for isa in Isa::all() {
                let mut tile = [7.0; TILE_ROWS * TILE_COLUMNS];
                isa.tile(depth, &a, &b, &mut tile);
                close(&tile, &expect, 1e-6, &format!("{isa:?} depth {depth}"));
            }
        }
    }

    #[test]
    fn every_path_computes_the_dot_product_of_every_dtype() {
        let mut random = Random::new(2);
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 129, 1000, 8960] {
            let x = random.noise(len);
            let w = random.noise(len);
            let halves: Vec<u16> = w.iter().map(|&w| f16::from_f32(w).to_bits()).collect();
            let brains: Vec<u16> = w.iter().map(|&w| bf16::from_f32(w).to_bits()).collect();
            let bytes: Vec<i8> = w.iter().map(|&w| (w * 127.0) as i8).collect();
            for elements in [
                Elements::F32(&w),
                Elements::F16(&halves),
                Elements::Bf16(&brains),
                Elements::I8(&bytes),
            ] {
                let mut wide = vec![0.0; len];
                elements.widen(0, &mut wide);
                let expect: f64 =
                    wide.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                let scale: f64 =
                    wide.iter().zip(&x).map(|(&w, &x)| (f64::from(w) * f64::from(x)).abs()).sum();
                for isa in Isa::all() {
                    let got = f64::from(isa.dot(elements, &x));
                    assert!((got - expect).abs() <= 1e-6 * scale, "{isa:?} {len}: {got} {expect}");
                }
            }
        }
    }
}
