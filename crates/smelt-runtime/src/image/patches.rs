//! Fits a picture to a grid of patches as Qwen-VL sees it, and flattens it.
//!
//! The size a picture should have follows from its own and two limits (`smart_resize` of
//! transformers' Qwen2-VL and Qwen3-VL processors, those of clips included).  An engine is of one size, so the engine that
//! loses least is chosen and the picture resized to it, as the slow processors do it.  Knows nothing
//! of tokens' ids or of engines.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::scale::Scale;

/// What a model expects of its pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patching {
    /// Pixels on a side of a patch.
    pub patch: usize,
    /// Patches on a side of an image token.
    pub merge: usize,
    /// Frames of a patch; a still is repeated.
    pub frames: usize,
    /// Fewest pixels a picture is given.
    pub min_pixels: usize,
    /// Most pixels a picture is given.
    pub max_pixels: usize,
    /// What clips are given, where that is not what pictures are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipPixels>,
    /// From bytes to what the model reads.
    pub scale: Scale,
}

/// Limits on the size of clips.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipPixels {
    /// Whether the limits hold for all frames together (Qwen3-VL), or for each (Qwen2.5-VL).
    pub together: bool,
    /// Fewest pixels.
    pub min_pixels: usize,
    /// Most pixels.
    pub max_pixels: usize,
}

/// A picture's size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// From top to bottom.
    pub height: usize,
    /// From left to right.
    pub width: usize,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

impl Size {
    /// Pixels of the picture.
    pub fn pixels(self) -> usize {
        self.height * self.width
    }

    /// Whether processors take a picture of this shape.
    ///
    /// # Errors
    /// [`TooLong`] if one side is more than [`RATIO_MAX`] times the other.
    pub fn check_ratio(self) -> Result<(), TooLong> {
        let Self { height, width } = self;
        match height.max(width) > RATIO_MAX.saturating_mul(height.min(width)) {
            true => Err(TooLong { width, height }),
            false => Ok(()),
        }
    }
}

/// A picture that is too long for any grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "one side of the picture of {width}x{height} is more than {RATIO_MAX} times the other; cut it"
)]
pub struct TooLong {
    width: usize,
    height: usize,
}

/// The longest picture for its width that is taken: the bound of `smart_resize` in transformers' Qwen2-VL
/// and Qwen3-VL processors, far beyond what any other one makes use of.
pub const RATIO_MAX: usize = 200;

impl Patching {
    /// The largest patch, merge or number of frames any setting may ask for; published models use 16,
    /// 2 and 2.
    pub const STEP_MAX: usize = 64;
    /// The most pixels any setting may ask for; published models use 16,777,216.
    pub const PIXELS_MAX: usize = 1 << 26;

    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        let steps = [self.patch, self.merge, self.frames];
        let are_limits = |min, max| 1 <= min && min <= max && max <= Self::PIXELS_MAX;
        let clip = self.clip.is_none_or(|clip| are_limits(clip.min_pixels, clip.max_pixels));
        match () {
            () if !steps.iter().all(|step| (1..=Self::STEP_MAX).contains(step)) => {
                Some("patch, merge and frames must be between 1 and 64")
            }
            () if !clip || !are_limits(self.min_pixels, self.max_pixels) => {
                Some("pixels must obey 1 <= min_pixels <= max_pixels <= 67108864")
            }
            () => self.scale.fault(),
        }
    }

    /// The same with limits no wider than these.
    pub(super) fn with_limits(&self, min: Option<usize>, max: Option<usize>) -> Self {
        let max_pixels =
            max.map_or(self.max_pixels, |max| max.clamp(self.min_pixels, self.max_pixels));
        let min_pixels = min.map_or(self.min_pixels, |min| min.clamp(self.min_pixels, max_pixels));
        Self { min_pixels, max_pixels, ..self.clone() }
    }

    /// Pixels on a side of an image token.
    pub fn step(&self) -> usize {
        self.patch * self.merge
    }

    /// Image tokens of a picture of `size`, which holds whole ones.
    pub fn tokens(&self, size: Size) -> usize {
        (size.height / self.step()) * (size.width / self.step())
    }

    /// The size a picture of `size` should have: whole tokens, within the limits, its shape kept as
    /// well as may be.
    ///
    /// # Errors
    /// [`TooLong`] if the picture is too long for its width.
    pub fn target(&self, size: Size) -> Result<Size, TooLong> {
        size.check_ratio()?;
        Ok(self.fitted(size, 1.0, 1.0))
    }

    /// The size that each of so many frames of `size` should have, by limits no wider than these for one
    /// frame.
    ///
    /// # Errors
    /// [`TooLong`] if the frames are too long for their width.
    pub(super) fn clip_target(
        &self,
        size: Size,
        frames: usize,
        [min, max]: [Option<usize>; 2],
    ) -> Result<Size, TooLong> {
        let Some(ClipPixels { together, min_pixels, max_pixels }) = self.clip else {
            return self.with_limits(min, max).target(size);
        };
        let of_clip = Self { min_pixels, max_pixels, ..self.clone() };
        if !together {
            return of_clip.with_limits(min, max).target(size);
        }
        // A lone frame is repeated.
        let frames = frames.max(self.frames);
        let all = |pixels: Option<usize>| pixels.map(|pixels| pixels.saturating_mul(frames));
        let size = self.widened(size);
        size.check_ratio()?;
        let (frames, depth) = (frames as f64, self.frames as f64);
        let shown = (frames / depth).round_ties_even() * depth;
        Ok(of_clip.with_limits(all(min), all(max)).fitted(size, frames, shown))
    }

    /// `size` grown until both sides have the pixels of an image token.
    fn widened(&self, size: Size) -> Size {
        let short = size.height.min(size.width);
        if short >= self.step() {
            return size;
        }
        let grow = self.step() as f64 / short as f64;
        let grown = |side: usize| (side as f64 * grow) as usize;
        Size { height: grown(size.height), width: grown(size.width) }
    }

    /// The size of `frames` frames of `size` that are within the limits together, `shown` of them where
    /// they need not change; one of each for a picture.
    fn fitted(&self, size: Size, frames: f64, shown: f64) -> Size {
        let step = self.step() as f64;
        let (h, w) = (size.height as f64, size.width as f64);
        // Python rounds halves to even.
        let nearest = [h, w].map(|side| (side / step).round_ties_even() * step);
        let volume = shown * nearest[0] * nearest[1];
        let [height, width] = if volume > self.max_pixels as f64 {
            let shrink = (frames * h * w / self.max_pixels as f64).sqrt();
            [h, w].map(|side| step.max((side / shrink / step).floor() * step))
        } else if volume < self.min_pixels as f64 {
            let grow = (self.min_pixels as f64 / (frames * h * w)).sqrt();
            [h, w].map(|side| (side * grow / step).ceil() * step)
        } else {
            nearest
        };
        Size { height: height as usize, width: width as usize }
    }

    /// The index of the one of `grids` that a picture should be resized to whose target is `target`;
    /// nothing if there are none.
    ///
    /// The target itself loses nothing.  Else a picture is stretched by the ratio of the shapes, and
    /// its scale changes by the ratio of the areas; the least sum of both, measured in octaves, wins,
    /// of equal ones the grid of fewer pixels.
    pub fn nearest(target: Size, grids: &[Size]) -> Option<usize> {
        let octaves = |a: f64, b: f64| (a / b).log2().abs();
        let loss = |grid: &Size| {
            let shape = |size: &Size| size.width as f64 / size.height as f64;
            let stretch = octaves(shape(grid), shape(&target));
            stretch + octaves(grid.pixels() as f64, target.pixels() as f64) / 2.0
        };
        let better = |a: &(usize, &Size), b: &(usize, &Size)| {
            loss(a.1).total_cmp(&loss(b.1)).then(a.1.pixels().cmp(&b.1.pixels()))
        };
        grids.iter().enumerate().min_by(better).map(|(index, _)| index)
    }

    /// The frames of one step of time as the tower reads them: `[patches, 3 * frames * patch * patch]`,
    /// image token by image token.  `frames` are `[height, width, 3]` bytes of `size`; the last is
    /// repeated where they are fewer than a patch has.
    pub fn flatten(&self, frames: &[&[u8]], size: Size) -> Vec<f32> {
        let Self { patch, merge, frames: depth, ref scale, .. } = *self;
        let table = scale.table();
        let mut out = Vec::with_capacity(size.pixels() * 3 * depth);
        let Some(&last) = frames.last() else { return out };
        let (rows, columns) = (size.height / self.step(), size.width / self.step());
        for token in 0..rows * columns {
            for inside in 0..merge * merge {
                let top = (token / columns * merge + inside / merge) * patch;
                let left = (token % columns * merge + inside % merge) * patch;
                for (channel, table) in table.iter().enumerate() {
                    for time in 0..depth {
                        let frame = frames.get(time).copied().unwrap_or(last);
                        for row in top..top + patch {
                            let line = &frame[(row * size.width + left) * 3..][..patch * 3];
                            let bytes = line[channel..].iter().step_by(3);
                            out.extend(bytes.map(|byte| table[usize::from(*byte)]));
                        }
                    }
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patching() -> Patching {
        let scale = Scale { mean: [0.5; 3], std: [0.5; 3] };
        let (min_pixels, max_pixels) = (4 * 28 * 28, 64 * 28 * 28);
        let clip = None;
        Patching { patch: 14, merge: 2, frames: 2, min_pixels, max_pixels, clip, scale }
    }

    fn size(height: usize, width: usize) -> Size {
        Size { height, width }
    }

    #[test]
    fn a_picture_too_long_is_refused() {
        assert!(patching().target(size(200, 1)).is_ok());
        let error = patching().target(size(1, 201)).unwrap_err().to_string();
        assert_eq!(
            error,
            "one side of the picture of 201x1 is more than 200 times the other; cut it"
        );
    }

    #[test]
    fn a_wish_for_a_frame_counts_for_each_of_a_clip() {
        let limits = |together| ClipPixels { together, min_pixels: 1, max_pixels: 64 * 28 * 28 };
        let target = |together, wish| {
            let patching = Patching { clip: Some(limits(together)), ..patching() };
            patching.clip_target(size(448, 448), 4, [None, wish]).unwrap()
        };
        assert_eq!(target(false, None), size(224, 224));
        assert_eq!(target(true, None), size(112, 112), "a quarter of the pixels for each of four");
        assert_eq!(target(true, Some(4 * 28 * 28)), size(56, 56));
        assert_eq!(target(false, Some(4 * 28 * 28)), size(56, 56));
    }

    #[test]
    fn the_grid_that_loses_least_is_chosen() {
        let grids = [size(448, 448), size(336, 560), size(560, 336), size(112, 112)];
        let nearest = |height, width| Patching::nearest(size(height, width), &grids).unwrap();
        assert_eq!(nearest(336, 560), 1);
        assert_eq!(nearest(560, 308), 2);
        assert_eq!(nearest(140, 140), 3);
        assert_eq!(nearest(420, 448), 0);
        assert_eq!(Patching::nearest(size(28, 28), &[]), None);
        // Half-way between two, the smaller one.
        assert_eq!(Patching::nearest(size(224, 224), &[size(448, 448), size(112, 112)]), Some(1));
    }

    #[test]
    fn settings_that_cannot_work_say_why() {
        assert_eq!(patching().fault(), None);
        assert!(Patching { patch: 0, ..patching() }.fault().is_some());
        assert!(Patching { merge: 65, ..patching() }.fault().is_some());
        assert!(Patching { min_pixels: 0, ..patching() }.fault().is_some());
        assert!(Patching { max_pixels: 1, ..patching() }.fault().is_some());
        assert!(Patching { max_pixels: 1 << 27, ..patching() }.fault().is_some());
        let clip = Some(ClipPixels { together: true, min_pixels: 2, max_pixels: 1 });
        assert!(Patching { clip, ..patching() }.fault().is_some());
        let flat = Scale { mean: [0.0; 3], std: [0.0; 3] };
        assert!(Patching { scale: flat, ..patching() }.fault().is_some());
    }
}
