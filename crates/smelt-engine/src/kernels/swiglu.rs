//! Computes the middle of SwiGLU over rows: `silu(gate) * up`.
//!
//! The same bits on every instruction set.  Knows nothing of layers.

use super::isa::Isa;
use super::lanes::{LANES, Lanes, OverLanes, exp};

/// `gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]`
pub(crate) fn swiglu(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "every gate has its number");
    isa.over_lanes(Swiglu { gate, up });
}

struct Swiglu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl OverLanes for Swiglu<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (gates, last_gate) = self.gate.as_chunks_mut::<LANES>();
        let (ups, last_up) = self.up.as_chunks::<LANES>();
        for (gate, up) in gates.iter_mut().zip(ups) {
            multiply(lanes, gate, up);
        }
        let (mut gate, mut up) = ([0.0; LANES], [0.0; LANES]);
        gate[..last_gate.len()].copy_from_slice(last_gate);
        up[..last_up.len()].copy_from_slice(last_up);
        multiply(lanes, &mut gate, &up);
        last_gate.copy_from_slice(&gate[..last_gate.len()]);
    }
}

#[inline(always)]
fn multiply<L: Lanes>(lanes: L, gate: &mut [f32; LANES], up: &[f32; LANES]) {
    let x = lanes.load(gate);
    let below = lanes.add(lanes.splat(1.0), exp(lanes, lanes.mul(x, lanes.splat(-1.0))));
    lanes.store(lanes.mul(lanes.div(x, below), lanes.load(up)), gate);
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    #[test]
    fn every_set_computes_the_definition() {
        let mut random = Random::new(31);
        for len in [0, 1, 15, 16, 17, 1000] {
            let gate: Vec<f32> = random.noise(len).iter().map(|x| x * 20.0).collect();
            let up = random.noise(len);
            for isa in Isa::all() {
                let mut found = gate.clone();
                swiglu(isa, &mut found, &up);
                for ((found, &gate), &up) in found.into_iter().zip(&gate).zip(&up) {
                    let gate = f64::from(gate);
                    let expect = gate / (1.0 + (-gate).exp()) * f64::from(up);
                    let apart = (f64::from(found) - expect).abs();
                    assert!(apart <= 1e-6 * expect.abs(), "{isa:?}: {gate} {up}: {found}");
                }
            }
        }
    }

    #[test]
    fn gates_far_out_are_zero_or_themselves_and_nan_stays() {
        for isa in Isa::all() {
            let mut gate = [-500.0, 500.0, f32::NAN, 0.0];
            swiglu(isa, &mut gate, &[1.0; 4]);
            assert!(gate[0].abs() < 1e-30 && gate[1] == 500.0 && gate[2].is_nan());
            assert_eq!(gate[3], 0.0);
        }
    }
}
