//! Thirty pictures of all shapes and forms, as files.  The tests of the command show them, too.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{
    DynamicImage, ExtendedColorType, GrayAlphaImage, GrayImage, ImageEncoder as _, ImageFormat,
    Luma, LumaA, Rgb, RgbImage, Rgba, RgbaImage,
};

/// A picture of slopes.
pub(crate) fn slopes(width: u32, height: u32) -> RgbImage {
    let part = |at: u32, all: u32| (at * 255 / all.max(1)) as u8;
    RgbImage::from_fn(width, height, |x, y| Rgb([part(x, width), part(y, height), (x ^ y) as u8]))
}

/// The file of a picture.
pub(crate) fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A JPEG whose tags say how it lies.
fn turned(orientation: u8) -> Vec<u8> {
    let tags = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0";
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 90);
    encoder.set_exif_metadata([&tags[..], &[orientation, 0, 0, 0, 0, 0, 0]].concat()).unwrap();
    slopes(64, 40).write_with_encoder(encoder).unwrap();
    bytes
}

/// A PNG of raw pixels.
fn raw(pixels: &[u8], (width, height): (u32, u32), form: ExtendedColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes).write_image(pixels, width, height, form).unwrap();
    bytes
}

/// Names and files of thirty pictures.
pub(crate) fn pictures() -> Vec<(String, Vec<u8>)> {
    use ImageFormat::{Gif, Jpeg, Png, WebP};
    let mut all = Vec::new();
    for (width, height) in [
        (1, 1),
        (1, 200),
        (200, 1),
        (3, 600),
        (2, 2),
        (320, 240),
        (240, 320),
        (640, 480),
        (1000, 1000),
        (1920, 1080),
        (900, 100),
        (4032, 3024),
    ] {
        all.push((format!("{width}x{height}.png"), encoded(slopes(width, height), Png)));
    }
    all.push(("6000x4000.jpg".to_owned(), encoded(slopes(6000, 4000), Jpeg)));
    for orientation in [2, 3, 5, 6, 8] {
        all.push((format!("turned-{orientation}.jpg"), turned(orientation)));
    }
    let rgba = RgbaImage::from_fn(70, 50, |x, y| Rgba([x as u8, y as u8, 9, (x * y) as u8]));
    let grey = GrayImage::from_fn(81, 33, |x, y| Luma([(x + y) as u8]));
    let faint = GrayAlphaImage::from_fn(40, 40, |x, y| LumaA([x as u8, y as u8 * 5]));
    let wide =
        |channels: usize| -> Vec<u8> { (0..50 * 30 * channels * 2).map(|at| at as u8).collect() };
    all.extend([
        ("alpha.png".to_owned(), encoded(rgba.clone(), Png)),
        ("alpha.webp".to_owned(), encoded(rgba, WebP)),
        ("grey.png".to_owned(), encoded(grey.clone(), Png)),
        ("grey.jpg".to_owned(), encoded(grey, Jpeg)),
        ("grey-alpha.png".to_owned(), encoded(faint, Png)),
        ("16-bit.png".to_owned(), raw(&wide(3), (50, 30), ExtendedColorType::Rgb16)),
        ("16-bit-grey.png".to_owned(), raw(&wide(1), (50, 30), ExtendedColorType::L16)),
        ("lossless.webp".to_owned(), encoded(slopes(120, 80), WebP)),
        ("still.gif".to_owned(), encoded(slopes(60, 90), Gif)),
    ]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/photographs");
    for file in ["cmyk.jpg", "progressive.jpg", "palette.gif"] {
        all.push((file.to_owned(), fs::read(folder.join(file)).unwrap()));
    }
    all
}
