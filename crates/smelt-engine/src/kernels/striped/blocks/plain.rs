//! Computes the kernel of blocks in plain Rust, the measure of every other path.

use super::super::input::QuantTile;
use super::super::multiply::Outputs;
use super::super::{RUN, STRIPE};
use super::{BlockStripe, group_sum};

/// `N` tiles of `W` tokens by a stripe of blocks.
pub(in super::super) fn blocks<const W: usize, const N: usize>(
    stripe: BlockStripe<'_>,
    tiles: [QuantTile<'_>; N],
    out: &mut Outputs,
) {
    stripe.check();
    let (form, width) = (stripe.form, stripe.form.group);
    for (index, out) in out.iter_mut().enumerate().take(W * N) {
        let (tile, token) = (tiles[index / W], index % W);
        tile.check(stripe.runs(), W);
        *out = [0.0; STRIPE];
        for group in 0..stripe.groups() {
            let at = group * width / RUN * W + token;
            let (by, all) = (tile.scales[at], group_sum(&tile, width, group, at));
            for (lane, out) in out.iter_mut().enumerate() {
                let mut sum = -i32::from(form.middle()) * all;
                for column in group * width..(group + 1) * width {
                    let x = tile.quants[(column / 4 * W + token) * 4 + column % 4];
                    sum += i32::from(stripe.quant(lane, column)) * i32::from(x);
                }
                let scale = stripe.scales.get(form, group, lane);
                *out = (sum as f32 * by).mul_add(scale, *out);
                if let Some(min) = stripe.min(group, lane) {
                    *out = (all as f32 * by).mul_add(-min, *out);
                }
            }
        }
    }
}
