//! Fits a picture to the square CLIP sees: its shorter side resized, the middle cut out.
//!
//! Knows nothing of tokens or engines.

use super::Image;
use super::patches::{Size, TooLong};
use super::resample::resize;

/// `picture` as `[side, side, 3]` bytes: the shorter side becomes `side`, and the longer one is cut
/// to it around the middle (`CLIPImageProcessor` of transformers, on Pillow).
///
/// # Errors
/// [`TooLong`] if the picture is too long for its width: all of it is resized before it is cut.
pub fn centre(picture: &Image, side: usize) -> Result<Vec<u8>, TooLong> {
    let (width, height) = (picture.width(), picture.height());
    Size { height, width }.check_ratio()?;
    let short = width.min(height);
    // The longer side is cut off to whole pixels, as Python's `int` does.
    let scaled = |long: usize| (side as f64 * long as f64 / short as f64) as usize;
    let (width, height) =
        if width <= height { (side, scaled(height)) } else { (scaled(width), side) };
    let resized = resize(picture, width, height);
    let (left, top) = ((width - side) / 2, (height - side) / 2);
    let line = |row: usize| &resized[((top + row) * width + left) * 3..][..side * 3];
    Ok((0..side).flat_map(line).copied().collect())
}
