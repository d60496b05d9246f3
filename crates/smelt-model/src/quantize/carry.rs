//! Carries the errors of inputs that were rounded to those after them, a block of inputs at a time.
//!
//! What an error e of input j asks of input k > j is e M[j,k], M being the factor of H = M D Mᵀ.  Where inputs
//! are few, M is held ([`super::hessian`]): an input's errors cost K²/2 products a row.  Where they are many
//! and samples few, M[j,k] is the product of x_j and g_k ([`super::gains`]): 2nK, and no square of K.

use std::sync::Arc;

use super::activations::{Activations, dot};
use super::eliminate::for_chunks;
use super::gains::gains;
use super::hessian::Hessian;
use crate::reference::matmul::{Panels, Target, View};

/// Inputs are many where there are more than so many for each sample: the square costs more from there on.
const INPUTS_A_SAMPLE: usize = 2;

/// What errors are carried by, whatever λ is.
pub(super) enum Met {
    Square(Hessian),
    /// The activations, and those of each block as errors meet them.
    Samples(Activations, Packed),
}

/// The activations of blocks of inputs, packed so that errors become output errors.
#[derive(Clone)]
pub(super) struct Packed(Arc<Vec<Panels>>);

/// How errors go on to later blocks.
pub(super) enum Carry {
    /// Of each block: M, `[inputs of the block, inputs after it]`.
    Square(Vec<Panels>),
    /// Of each block: x, `[inputs of the block, samples]`, and g as output errors meet it.
    Samples { x: Packed, gain: Vec<Panels>, samples: usize },
}

/// Whether M itself is held of so many inputs, of which `samples` activations are known.
pub(crate) fn is_square(inputs: usize, samples: usize) -> bool {
    inputs <= INPUTS_A_SAMPLE * samples
}

impl Met {
    /// What is to be known of `x`, which is rounded `block` inputs at a time.
    pub(super) fn new(x: Activations, block: usize, threads: usize) -> Self {
        if is_square(x.inputs(), x.samples) {
            return Self::Square(Hessian::of(&x, threads));
        }
        let packed = Packed::new(&x, block);
        Self::Samples(x, packed)
    }

    /// How errors are carried where λ is `damping`; and M inside each block, `[inputs, block]`.
    pub(super) fn carry(&self, damping: f64, block: usize, threads: usize) -> (Carry, Vec<f32>) {
        match self {
            Self::Square(hessian) => {
                let factor = hessian.factor(damping, threads);
                square(&factor, hessian.inputs(), block)
            }
            Self::Samples(x, packed) => {
                let gain = gains(x, damping, threads);
                let inside = inside(x, &gain, block, threads);
                let (x, samples) = (packed.clone(), x.samples);
                (Carry::Samples { x, gain: in_panels(gain, samples, block), samples }, inside)
            }
        }
    }
}

/// M of `inputs` inputs cut into what lies inside blocks and what leads out of them.
fn square(factor: &[f32], inputs: usize, block: usize) -> (Carry, Vec<f32>) {
    let mut inside = vec![0.0; inputs * block];
    for (j, row) in inside.chunks_mut(block).enumerate() {
        let first = j / block * block;
        for k in j + 1..inputs.min(first + block) {
            row[k - first] = factor[j * inputs + k];
        }
    }
    let lead = |first: usize| {
        let end = inputs.min(first + block);
        let mut panels = Panels::default();
        if end < inputs {
            let rows = View::rows(&factor[first * inputs + end..], inputs);
            panels.pack(rows.transposed(), inputs - end, end - first, 1);
        }
        panels
    };
    (Carry::Square((0..inputs).step_by(block).map(lead).collect()), inside)
}

/// `gain` `[inputs, samples]` in blocks of `block` inputs.  Each block is let go as soon as it is packed, the last one
/// first: of the 11,008 inputs of a decoder of 3B all are 75 MiB.
fn in_panels(mut gain: Vec<f32>, samples: usize, block: usize) -> Vec<Panels> {
    let mut packed: Vec<Panels> = Vec::new();
    for first in (0..gain.len()).step_by(block * samples).rev() {
        let rows = gain.split_off(first);
        gain.shrink_to_fit();
        let mut panels = Panels::default();
        panels.pack(View::rows(&rows, samples), rows.len() / samples, samples, 1);
        packed.push(panels);
    }
    packed.reverse();
    packed
}

/// x_j · g_k for all k > j of the block of j.
fn inside(x: &Activations, gain: &[f32], block: usize, threads: usize) -> Vec<f32> {
    let (inputs, samples) = (x.inputs(), x.samples);
    let mut inside = vec![0.0; inputs * block];
    for_chunks(threads, &mut inside, block, |j, row| {
        let first = j / block * block;
        for k in j + 1..inputs.min(first + block) {
            row[k - first] = dot(x.of(j), &gain[k * samples..][..samples]) as f32;
        }
    });
    inside
}

impl Packed {
    /// `x`, in blocks of `block` inputs.
    fn new(x: &Activations, block: usize) -> Self {
        let pack = |inputs: &[f32]| {
            let mut panels = Panels::default();
            let view = View::rows(inputs, x.samples).transposed();
            panels.pack(view, x.samples, inputs.len() / x.samples, 1);
            panels
        };
        Self(Arc::new(x.values.chunks(block * x.samples).map(pack).collect()))
    }
}

/// What the errors of some rows ask of inputs that are still to come.
pub(super) struct Carried {
    /// `[rows, width]`: what is asked of each input, or the output errors of each sample.
    values: Vec<f32>,
    width: usize,
}

impl Carry {
    /// Nothing yet, of `rows` rows of `inputs` inputs.
    pub(super) fn nothing(&self, rows: usize, inputs: usize) -> Carried {
        let width = match self {
            Self::Square(_) => inputs,
            Self::Samples { samples, .. } => *samples,
        };
        Carried { values: vec![0.0; rows * width], width }
    }

    /// Adds what is asked of the block of `width` inputs that begins with `first` to `wanted` `[rows, width]`.
    pub(super) fn ask(
        &self,
        carried: &Carried,
        (first, width, block): (usize, usize, usize),
        wanted: &mut [f32],
    ) {
        match self {
            Self::Square(_) => {
                let rows = carried.values.chunks(carried.width).zip(wanted.chunks_mut(width));
                for (carried, wanted) in rows {
                    let carried = &carried[first..first + width];
                    wanted.iter_mut().zip(carried).for_each(|(wanted, asked)| *wanted += asked);
                }
            }
            Self::Samples { gain, .. } => {
                let mut target = Target { values: wanted, stride: width, column: 0 };
                let missed = View::rows(&carried.values, carried.width);
                gain[first / block].add_product(missed, &mut target);
            }
        }
    }

    /// Takes the errors `[rows, width]` of the block that begins with `first`.
    pub(super) fn take(
        &self,
        carried: &mut Carried,
        (first, width, block): (usize, usize, usize),
        errors: &[f32],
    ) {
        let (panels, column) = match self {
            Self::Square(lead) => (&lead[first / block], first + width),
            Self::Samples { x, .. } => (&x.0[first / block], 0),
        };
        let stride = carried.width;
        let mut target = Target { values: &mut carried.values, stride, column };
        panels.add_product(View::rows(errors, width), &mut target);
    }
}
