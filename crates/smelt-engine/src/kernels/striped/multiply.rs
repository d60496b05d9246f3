//! Multiplies activations by striped weights, the stripes of several weights shared by threads.
//!
//! Jobs and a filled input in, outputs filled.  Picks the kernel of the instruction set.

#![allow(unsafe_code)]

use std::ops::Range;

use super::blocks::{self, BlockStripe};
use super::floats::floats;
use super::input::{Input, QuantTile, Rounding};
#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::{Bits, avx2, avx512};
use super::{QuantStripe, STRIPE, Stripe, Striped, plain, stripes};
use crate::kernels::isa::{Isa, Path};
use crate::kernels::matrix::Elements;
use crate::kernels::target::Target;
use crate::kernels::threads::Threads;

/// Tiles that a kernel takes at once: with four tokens each, twelve sums and twelve totals fill the
/// registers of AVX-512.
const TILES_MAX: usize = 3;
/// Tokens that a kernel takes at once.
const TOKENS_MAX: usize = 12;

/// Sixteen outputs of each token.
pub(super) type Outputs = [[f32; STRIPE]; TOKENS_MAX];

/// One weight to multiply by.
pub(crate) struct Job<'a> {
    pub(crate) weight: Striped<'a>,
    /// `[rows]`, added to each output.
    pub(crate) bias: Option<&'a [f32]>,
    /// Token after token, `stride` apart, at least `rows` each.
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
}

/// A job whose output may be written to by several threads.
struct Shared<'a> {
    weight: Striped<'a>,
    bias: Option<&'a [f32]>,
    out: Target<'a>,
}

/// Computes `out[token][row] = Σ_c weight[row][c] * input[token][c] + bias[row]` for every job.
///
/// Panics where shapes do not fit each other, which the caller has checked.
pub(crate) fn multiply(input: &Input, jobs: Vec<Job<'_>>, isa: Isa, threads: &Threads) {
    let mut work = 0;
    let mut ends = Vec::with_capacity(jobs.len());
    let mut end = 0;
    let mut shared = Vec::with_capacity(jobs.len());
    for Job { weight, bias, out, stride } in jobs {
        assert_eq!(weight.columns(), input.columns(), "columns of weight and input");
        let rounded = input.rounding() == Rounding::Runs;
        assert!(!rounded || weight.is_quantized(), "floats meet activations as they are");
        assert!(bias.is_none_or(|bias| bias.len() == weight.rows()), "one bias a row");
        assert!(stride >= weight.rows(), "output rows overlap");
        end += stripes(weight.rows());
        ends.push(end);
        work += weight.rows() * weight.columns() * input.tokens();
        shared.push(Shared { weight, bias, out: Target::new(out, stride) });
    }
    threads.for_work(work).ranges(end, 1, |range| {
        for (job, &end) in shared.iter().zip(&ends) {
            let start = end - stripes(job.weight.rows());
            let own = range.start.clamp(start, end) - start..range.end.clamp(start, end) - start;
            job.stripes(input, own, isa);
        }
    });
}

impl Shared<'_> {
    fn stripes(&self, input: &Input, range: Range<usize>, isa: Isa) {
        let mut outputs = [[0.0; STRIPE]; TOKENS_MAX];
        let mut wide = Vec::new();
        for index in range {
            let mut stripe = self.weight.stripe(index);
            if self.weight.is_quantized() && input.rounding() == Rounding::None {
                wide.resize(self.weight.columns() * STRIPE, 0.0);
                stripe.widen(&mut wide);
                stripe = Stripe::Floats(Elements::F32(&wide));
            }
            for first in (0..input.tiles()).step_by(TILES_MAX) {
                let tiles = first..(first + TILES_MAX).min(input.tiles());
                run(stripe, input, tiles.clone(), isa, &mut outputs);
                let tokens = first * input.width()..(tiles.end * input.width()).min(input.tokens());
                self.put(index, tokens, &outputs);
            }
        }
    }

    /// Writes the outputs of stripe `index` for `tokens`.
    fn put(&self, index: usize, tokens: Range<usize>, outputs: &Outputs) {
        let row = index * STRIPE;
        let count = STRIPE.min(self.weight.rows() - row);
        let mut bias = [0.0; STRIPE];
        if let Some(all) = self.bias {
            bias[..count].copy_from_slice(&all[row..row + count]);
        }
        for (token, numbers) in tokens.zip(outputs) {
            // SAFETY: the rows of this stripe are computed by one range alone, and ranges are
            // disjoint.
            let line = unsafe { self.out.line(token, row, count) };
            for (out, (number, bias)) in line.iter_mut().zip(numbers.iter().zip(&bias)) {
                *out = number + bias;
            }
        }
    }
}

/// Multiplies `stripe` by `tiles` of `input`; the outputs of their tokens come in order.
fn run(stripe: Stripe<'_>, input: &Input, tiles: Range<usize>, isa: Isa, out: &mut Outputs) {
    let is_wide = input.width() != 1;
    match stripe {
        Stripe::Quants(stripe) => {
            let tile = |index: usize| input.quant_tile(tiles.start + index);
            match (tiles.len(), is_wide) {
                (1, false) => quants::<1, 1>(isa, stripe, [tile(0)], out),
                (1, true) => quants::<4, 1>(isa, stripe, [tile(0)], out),
                (2, _) => quants::<4, 2>(isa, stripe, [tile(0), tile(1)], out),
                _ => quants::<4, 3>(isa, stripe, [tile(0), tile(1), tile(2)], out),
            }
        }
        Stripe::Blocks(stripe) => {
            let tile = |index: usize| input.quant_tile(tiles.start + index);
            match (tiles.len(), is_wide) {
                (1, false) => by_blocks::<1, 1>(isa, stripe, [tile(0)], out),
                (1, true) => by_blocks::<4, 1>(isa, stripe, [tile(0)], out),
                (2, _) => by_blocks::<4, 2>(isa, stripe, [tile(0), tile(1)], out),
                _ => by_blocks::<4, 3>(isa, stripe, [tile(0), tile(1), tile(2)], out),
            }
        }
        Stripe::Floats(stripe) => {
            let tile = |index: usize| input.float_tile(tiles.start + index);
            match (tiles.len(), is_wide) {
                (1, false) => floats::<1, 1>(isa, stripe, [tile(0)], out),
                (1, true) => floats::<4, 1>(isa, stripe, [tile(0)], out),
                (2, _) => floats::<4, 2>(isa, stripe, [tile(0), tile(1)], out),
                _ => floats::<4, 3>(isa, stripe, [tile(0), tile(1), tile(2)], out),
            }
        }
    }
}

/// `N` tiles of `W` tokens by a stripe of quants.
fn quants<const W: usize, const N: usize>(
    isa: Isa,
    stripe: QuantStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    match isa.path() {
        Path::Plain => plain::quants::<W, N>(stripe, tiles, out),
        #[cfg(target_arch = "aarch64")]
        Path::Neon => plain::quants::<W, N>(stripe, tiles, out),
        // SAFETY: `Isa` gives this path only where the dot products were detected.
        #[cfg(target_arch = "aarch64")]
        Path::NeonDot => unsafe { neon::quants::<W, N>(stripe, tiles, out) },
        // SAFETY: `Isa` gives these paths only where avx2, fma and f16c were detected.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 | Path::Avx512 => unsafe { avx2::quants::<W, N>(stripe, tiles, out) },
        // SAFETY: `Isa` gives this path only where what the kernel uses was detected.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512Vnni => unsafe {
            match stripe.bits {
                Bits::Four => avx512::nibbles::<W, N>(stripe, tiles, out),
                Bits::Eight => avx512::bytes::<W, N>(stripe, tiles, out),
            }
        },
    }
}

/// `N` tiles of `W` tokens by a stripe of blocks.
fn by_blocks<const W: usize, const N: usize>(
    isa: Isa,
    stripe: BlockStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    match isa.path() {
        Path::Plain => blocks::plain::blocks::<W, N>(stripe, tiles, out),
        #[cfg(target_arch = "aarch64")]
        Path::Neon => blocks::plain::blocks::<W, N>(stripe, tiles, out),
        // SAFETY: `Isa` gives this path only where the dot products were detected.
        #[cfg(target_arch = "aarch64")]
        Path::NeonDot => unsafe { blocks::neon::blocks::<W, N>(stripe, tiles, out) },
        // SAFETY: `Isa` gives these paths only where avx2, fma and f16c were detected.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 | Path::Avx512 => unsafe { blocks::avx2::blocks::<W, N>(stripe, tiles, out) },
        // SAFETY: `Isa` gives this path only where what the kernel uses was detected.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512Vnni => unsafe { blocks::avx512::blocks::<W, N>(stripe, tiles, out) },
    }
}
