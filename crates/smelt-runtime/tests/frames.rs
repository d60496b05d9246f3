//! Makes clips of pictures, as the goldens do.

use smelt_runtime::image::Image;

/// Windows of two thirds of the width that move over a picture.
pub(crate) fn frames(picture: &Image, count: usize) -> Vec<Image> {
    let width = picture.width() * 2 / 3;
    let step = (picture.width() - width) / count;
    let window = |at: usize| {
        let lines = picture.rgb().chunks_exact(picture.width() * 3);
        let rgb = lines.flat_map(|line| &line[at * step * 3..][..width * 3]).copied().collect();
        Image::from_rgb(width, picture.height(), rgb).unwrap()
    };
    (0..count).map(window).collect()
}
