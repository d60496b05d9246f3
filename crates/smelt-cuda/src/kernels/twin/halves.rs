//! Reads and writes halves, and does with them what kernels do.

use half::f16;

use crate::DeviceAddress;
use crate::kernels::layout::activation_at;
use crate::recording::{Astray, TwinMemory};

/// The nearest half, held inside its range.
pub(super) fn held(number: f32) -> f16 {
    const MOST: f32 = 65504.0;
    // A comparison that is false of what is no number leaves it.
    let below = if number > MOST { MOST } else { number };
    f16::from_f32(if below < -MOST { -MOST } else { below })
}

/// Adds the products of 16 columns to a chain, rounded once.
pub(super) fn add_products(chain: f32, products: impl Iterator<Item = (f32, f32)>) -> f32 {
    let sum: f64 = products.map(|(a, b)| f64::from(a) * f64::from(b)).sum();
    (f64::from(chain) + sum) as f32
}

/// `gate / (1 + exp(-gate)) * up`
pub(super) fn swiglu(gate: f32, up: f32) -> f32 {
    gate / (1.0 + (gate * -std::f32::consts::LOG2_E).exp2()) * up
}

/// Column `k` of `token` of activations of `tokens` tokens.
pub(super) fn activation(
    memory: &TwinMemory,
    base: DeviceAddress,
    (k, token, tokens): (usize, usize, usize),
) -> Result<f32, Astray> {
    let at = base.offset(activation_at(k, token, tokens) as u64 * 2);
    Ok(f16::from_bits(memory.u16s(at, 1)?[0]).to_f32())
}

/// Writes a column of activations.
pub(super) fn set_activation(
    memory: &mut TwinMemory,
    base: DeviceAddress,
    (k, token, tokens): (usize, usize, usize),
    number: f32,
) -> Result<(), Astray> {
    let at = base.offset(activation_at(k, token, tokens) as u64 * 2);
    memory.set_u16s(at, &[held(number).to_bits()])
}
