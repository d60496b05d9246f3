//! Keeps the largest activation of each block of a model while the reference runs.
//!
//! What goes into and comes out of linear layers is looked at, and what is handed from block to
//! block.  Knows nothing of what is done with the findings.

use crate::model::block_of;

/// The largest activation of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// The block's name, as its tensors begin: `language_model.model.layers.3`.
    pub block: String,
    /// The largest magnitude; infinite when an activation was no number.
    pub largest: f32,
}

/// Peaks of the blocks met so far, in the order they were met.
#[derive(Debug, Default)]
pub(super) struct Peaks(Vec<Peak>);

impl Peaks {
    /// Looks at activations beside tensor `name`.
    pub(super) fn note(&mut self, name: &str, values: &[f32]) {
        // f32::max passes over NaN, which a sum does not.
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let is_number = !values.iter().sum::<f32>().is_nan();
        let largest = if is_number { largest } else { f32::INFINITY };
        let block = block_of(name);
        match self.0.iter_mut().find(|peak| peak.block == block) {
            Some(peak) => peak.largest = peak.largest.max(largest),
            None => self.0.push(Peak { block: block.to_owned(), largest }),
        }
    }

    pub(super) fn finish(self) -> Vec<Peak> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_keeps_its_largest_magnitude() {
        let mut peaks = Peaks::default();
        peaks.note("model.layers.0.mlp.up_proj.weight", &[1.0, -3.0]);
        peaks.note("model.layers.1.mlp.up_proj.weight", &[f32::NAN, 1.0]);
        peaks.note("model.layers.0.self_attn.q_proj.weight", &[2.0]);
        let peak = |block: &str, largest| Peak { block: block.to_owned(), largest };
        let expect = [peak("model.layers.0", 3.0), peak("model.layers.1", f32::INFINITY)];
        assert_eq!(peaks.finish(), expect);
    }
}
