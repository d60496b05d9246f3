//! Turns bytes of pixels into the numbers a model reads.
//!
//! Knows nothing of sizes.

use serde::{Deserialize, Serialize};
use smelt_family::Normalization;

/// How a channel, from 0 to 1, is shifted and stretched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Subtracted from each channel.
    pub mean: [f32; 3],
    /// Then divides each channel.
    pub std: [f32; 3],
}

impl Scale {
    /// The channels' means and deviations on ImageNet, which the InternVL models use.
    pub const IMAGENET: Self = Self::of(Normalization::IMAGENET);
    /// Those of CLIP's pictures, which Qwen2-VL and Qwen2.5-VL use too.
    pub const CLIP: Self = Self::of(Normalization::CLIP);
    /// From -1 to 1, as Qwen3-VL has it.
    pub const HALVES: Self = Self::of(Normalization::HALVES);
    /// From 0 to 1, as detectors read pictures.
    pub const UNIT: Self = Self { mean: [0.0; 3], std: [1.0; 3] };

    const fn of(Normalization { mean, std }: Normalization) -> Self {
        Self { mean, std }
    }

    /// What is wrong with these numbers, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        let are_finite = |values: [f32; 3]| values.iter().all(|x| x.is_finite());
        let is_sound = are_finite(self.mean) && are_finite(self.std) && !self.std.contains(&0.0);
        (!is_sound).then_some("mean and std must be finite, and std not zero")
    }

    /// What each byte of each channel becomes.  All in single floats, in this order, as the
    /// reference processors have it.
    pub fn table(&self) -> [[f32; 256]; 3] {
        let number = |channel: usize, byte: usize| {
            (byte as f32 / 255.0 - self.mean[channel]) / self.std[channel]
        };
        std::array::from_fn(|channel| std::array::from_fn(|byte| number(channel, byte)))
    }

    /// `[height, width, 3]` bytes as `[3, height, width]`, behind what `out` holds.
    pub fn planes(&self, rgb: &[u8], out: &mut Vec<f32>) {
        for (channel, table) in self.table().iter().enumerate() {
            let bytes = rgb[channel.min(rgb.len())..].iter().step_by(3);
            out.extend(bytes.map(|byte| table[usize::from(*byte)]));
        }
    }
}

impl From<Normalization> for Scale {
    fn from(normalization: Normalization) -> Self {
        Self::of(normalization)
    }
}
