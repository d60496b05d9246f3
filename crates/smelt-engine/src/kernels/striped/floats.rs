//! Multiplies a stripe of floats by activations in f32, on any vectors.

use super::multiply::Outputs;
use super::{FLOAT_RUN, STRIPE};
use crate::kernels::isa::Isa;
use crate::kernels::lanes::{LANES, Lanes, OverLanes};
use crate::kernels::matrix::Elements;

/// A vector is a column of a stripe.
const _: () = assert!(LANES == STRIPE);

/// `N` tiles of `W` tokens by a stripe `[columns, 16]`; the outputs of their tokens come in order.
pub(super) fn floats<const W: usize, const N: usize>(
    isa: Isa,
    stripe: Elements<'_>,
    tiles: [&[f32]; N],
    out: &mut Outputs,
) {
    let tiles = tiles.map(|tile| tile.as_chunks::<W>().0);
    isa.over_lanes(Work { stripe, tiles, out });
}

struct Work<'a, const W: usize, const N: usize> {
    stripe: Elements<'a>,
    /// `[columns, W]` each.
    tiles: [&'a [[f32; W]]; N],
    out: &'a mut [[f32; STRIPE]],
}

/// Writes the product of one form of floats, `$load` making a vector of a column.
macro_rules! product {
    ($self:ident, $lanes:ident, $all:ident, $load:ident) => {{
        let zero = $lanes.splat(0.0);
        let mut totals = [[zero; W]; N];
        for (run, columns) in $all.as_chunks::<STRIPE>().0.chunks(FLOAT_RUN).enumerate() {
            let mut sums = [[zero; W]; N];
            // One length for all: nothing is checked inside.
            let mut tiles = $self.tiles;
            for tile in &mut tiles {
                *tile = &tile[run * FLOAT_RUN..][..columns.len()];
            }
            for (column, numbers) in columns.iter().enumerate() {
                let numbers = $lanes.$load(numbers);
                for (sums, tile) in sums.iter_mut().zip(tiles) {
                    for (sum, &x) in sums.iter_mut().zip(&tile[column]) {
                        *sum = $lanes.fma(numbers, $lanes.splat(x), *sum);
                    }
                }
            }
            for (totals, sums) in totals.iter_mut().zip(sums) {
                for (total, sum) in totals.iter_mut().zip(sums) {
                    *total = $lanes.add(*total, sum);
                }
            }
        }
        for (out, total) in $self.out.iter_mut().zip(totals.as_flattened()) {
            $lanes.store(*total, out);
        }
    }};
}

impl<const W: usize, const N: usize> Work<'_, W, N> {
    #[inline(always)]
    fn all_tiles<L: Lanes>(self, lanes: L) {
        match self.stripe {
            Elements::F32(all) => product!(self, lanes, all, load),
            Elements::F16(all) => product!(self, lanes, all, load_f16),
            Elements::Bf16(all) => product!(self, lanes, all, load_bf16),
            Elements::I8(_) => unreachable!("stripes of bytes are levels"),
        }
    }
}

impl<const W: usize, const N: usize> OverLanes for Work<'_, W, N> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if L::IS_WIDE {
            return self.all_tiles(lanes);
        }
        // The sums of one tile are what the registers hold.
        for (tile, out) in self.tiles.into_iter().zip(self.out.chunks_exact_mut(W)) {
            Work { stripe: self.stripe, tiles: [tile], out }.all_tiles(lanes);
        }
    }
}
