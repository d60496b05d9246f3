//! Computes the kernels of stripes in plain Rust, the measure of every other path.

use super::input::QuantTile;
use super::multiply::Outputs;
use super::{QuantStripe, RUN, STRIPE};

/// `N` tiles of `W` tokens by a stripe of quants.
pub(super) fn quants<const W: usize, const N: usize>(
    stripe: QuantStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    let mut scales = [0.0; STRIPE];
    for (token, out) in out.iter_mut().enumerate().take(W * N) {
        let (tile, token) = (tiles[token / W], token % W);
        *out = [0.0; STRIPE];
        for run in 0..stripe.runs {
            let group = run / stripe.group_runs;
            stripe.scales.widen(group * STRIPE, &mut scales);
            let sums = run_sums::<W>(&stripe, tile, token, run);
            let scale = tile.scales[run * W + token];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = if stripe.is_grouped() {
                    (sums[lane] as f32 * scale).mul_add(scales[lane], *out)
                } else {
                    (sums[lane] as f32).mul_add(scale, *out)
                };
            }
        }
        if !stripe.is_grouped() {
            out.iter_mut().zip(scales).for_each(|(out, scale)| *out *= scale);
        }
    }
}

/// `Σ (quant - zero) * activation` over one run, for each row.
fn run_sums<const W: usize>(
    stripe: &QuantStripe<'_>,
    tile: QuantTile<'_>,
    token: usize,
    run: usize,
) -> [i32; STRIPE] {
    let group = run / stripe.group_runs;
    let mut sums = [0; STRIPE];
    for (lane, total) in sums.iter_mut().enumerate() {
        *total = -i32::from(stripe.zero(lane, group)) * tile.sums[run * W + token];
        for column in run * RUN..(run + 1) * RUN {
            let quant = tile.quants[(column / 4 * W + token) * 4 + column % 4];
            *total += i32::from(stripe.quant(lane, column)) * i32::from(quant);
        }
    }
    sums
}
