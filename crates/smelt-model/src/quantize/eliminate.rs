//! Takes inputs out of a symmetric matrix, some of them at once.
//!
//! Knows nothing of what the matrix stands for: the rest of H, or what is left between its samples.

use std::thread;

use pulp::{Arch, Simd, WithSimd};

/// Inputs eliminated together: a part of a row stays in registers while all of them are taken out of it.
pub(super) const TOGETHER: usize = 16;

/// Vectors of a row that stay in registers while all of a block is taken out of them.
const VECTORS: usize = 4;

/// One input taken out: what it has to do with each row, and with itself, all later inputs taken out before.
pub(super) struct Eliminated {
    pub(super) u: Vec<f64>,
    pub(super) pivot: f64,
}

impl Eliminated {
    /// Takes this input out of `u`, which has to do with it what `met` says.
    pub(super) fn leave(&self, u: &mut [f64], met: f64) {
        let factor = met / self.pivot;
        u.iter_mut().zip(&self.u).for_each(|(u, own)| *u -= factor * own);
    }
}

/// Takes `eliminated` out of row `n`, or out of its beginning.
pub(super) fn lower(n: usize, row: &mut [f64], eliminated: &[Eliminated]) {
    Arch::new().dispatch(Lower { n, row, eliminated });
}

struct Lower<'a> {
    n: usize,
    row: &'a mut [f64],
    eliminated: &'a [Eliminated],
}

impl WithSimd for Lower<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { n, row, eliminated } = self;
        let factors: Vec<f64> = eliminated.iter().map(|gone| gone.u[n] / gone.pivot).collect();
        let (parts, last) = S::as_mut_simd_f64s(row);
        let parted = parts.len() * S::F64_LANES;
        for (index, part) in parts.chunks_mut(VECTORS).enumerate() {
            let at = index * VECTORS * S::F64_LANES;
            let mut sums = [simd.splat_f64s(0.0); VECTORS];
            sums[..part.len()].copy_from_slice(part);
            for (gone, factor) in eliminated.iter().zip(&factors) {
                let factor = simd.splat_f64s(*factor);
                let u = S::as_simd_f64s(&gone.u[at..at + part.len() * S::F64_LANES]).0;
                for (sum, u) in sums.iter_mut().zip(u) {
                    *sum = simd.sub_f64s(*sum, simd.mul_f64s(factor, *u));
                }
            }
            part.copy_from_slice(&sums[..part.len()]);
        }
        for (gone, factor) in eliminated.iter().zip(&factors) {
            last.iter_mut().zip(&gone.u[parted..]).for_each(|(p, u)| *p -= factor * u);
        }
    }
}

/// Calls `work(index, chunk)` for all chunks of `values`, shared out to `threads` threads.
pub(super) fn for_chunks<T: Send>(
    threads: usize,
    values: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let share = values.len().div_ceil(chunk).div_ceil(threads.max(1)).max(1);
    let work = &work;
    thread::scope(|scope| {
        for (n, values) in values.chunks_mut(share * chunk).enumerate() {
            let mut run = move || {
                for (index, values) in values.chunks_mut(chunk).enumerate() {
                    work(n * share + index, values);
                }
            };
            if n + 1 == threads { run() } else { drop(scope.spawn(run)) }
        }
    });
}
