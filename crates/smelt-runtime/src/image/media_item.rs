//! Holds what a conversation shows: a picture, or the frames of a clip.

use super::decoded::Image;
use super::image_processor::ImageOptions;

/// The most frames of a clip; the processors of published models take as many.
pub const FRAMES_MAX: usize = 768;

/// The slowest and fastest clip, in frames a second: a frame a minute, and slow-motion cameras.
pub const FPS: std::ops::RangeInclusive<f64> = 1.0 / 60.0..=1000.0;

/// A clip that cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClipError {
    /// There is nothing to see, or too much.
    #[error("a clip has 1 to {FRAMES_MAX} frames, not {0}")]
    Frames(usize),
    /// Its speed is none.
    #[error("a clip has between 1/60 and 1000 frames a second, not {0}")]
    Fps(f64),
}

/// What stands at one place of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct MediaItem {
    frames: Vec<Image>,
    /// Frames a second; nothing of a picture.
    fps: Option<f64>,
    /// When each frame is shown, in seconds, where that is known of each.
    times_s: Vec<f64>,
    /// How its sender wants it to be looked at.
    pub image_options: ImageOptions,
}

impl From<Image> for MediaItem {
    fn from(picture: Image) -> Self {
        Self {
            frames: vec![picture],
            fps: None,
            times_s: Vec::new(),
            image_options: ImageOptions::default(),
        }
    }
}

impl MediaItem {
    /// A clip of frames that follow each other at so many a second.
    ///
    /// # Errors
    /// [`ClipError`] naming what is out of bounds.
    pub fn clip(frames: Vec<Image>, fps: f64) -> Result<Self, ClipError> {
        if !(1..=FRAMES_MAX).contains(&frames.len()) {
            return Err(ClipError::Frames(frames.len()));
        }
        if !FPS.contains(&fps) {
            return Err(ClipError::Fps(fps));
        }
        Ok(Self {
            frames,
            fps: Some(fps),
            times_s: Vec::new(),
            image_options: ImageOptions::default(),
        })
    }

    /// A clip of frames that are shown at these seconds, so many of a second on average.
    ///
    /// # Errors
    /// [`ClipError`] naming what is out of bounds.
    pub fn film(frames: Vec<(f64, Image)>, fps: f64) -> Result<Self, ClipError> {
        if !(1..=FRAMES_MAX).contains(&frames.len()) {
            return Err(ClipError::Frames(frames.len()));
        }
        let (times_s, frames) = frames.into_iter().unzip();
        Ok(Self { frames, fps: Some(fps), times_s, image_options: ImageOptions::default() })
    }

    /// The same, to be looked at as `image_options` says.
    #[must_use]
    pub fn with(mut self, image_options: ImageOptions) -> Self {
        self.image_options = image_options;
        self
    }

    /// The frames, one of a picture.
    pub fn frames(&self) -> &[Image] {
        &self.frames
    }

    /// When each frame is shown, in seconds; nothing where that follows from [`Self::fps`].
    pub fn times_s(&self) -> &[f64] {
        &self.times_s
    }

    /// Frames a second of a clip; nothing of a picture.
    pub fn fps(&self) -> Option<f64> {
        self.fps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_have_frames_and_a_speed() {
        let frames = |count| vec![Image::from_rgb(1, 1, vec![0; 3]).unwrap(); count];
        assert_eq!(MediaItem::clip(frames(2), 2.0).unwrap().fps(), Some(2.0));
        assert_eq!(MediaItem::clip(frames(0), 2.0), Err(ClipError::Frames(0)));
        assert_eq!(MediaItem::clip(frames(769), 2.0), Err(ClipError::Frames(769)));
        for fps in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9] {
            assert!(matches!(MediaItem::clip(frames(1), fps), Err(ClipError::Fps(_))), "{fps}");
        }
    }
}
