//! Makes pictures to ask about, and writes pictures as `data:` addresses.

use std::io::Cursor;
use std::path::Path;
use std::{fs, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, Rgb, RgbImage};

/// The longest picture file sent, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A picture of its own for each `seed`, `side` by `side` pixels, as PNG in a `data:` address.
pub(crate) fn drawn(side: u32, seed: u64) -> String {
    let shift = (seed % 251) as u32;
    let colour = |x: u32, y: u32| {
        let stripe = ((x / 7 + y / 11 + shift) % 5 * 50) as u8;
        Rgb([stripe, ((x + shift * 3) % 256) as u8, ((y * 2 + shift) % 256) as u8])
    };
    let mut picture = RgbImage::from_fn(side, side, colour);
    // The seed itself, a bit a pixel, so that no two are equal.
    for (bit, pixel) in picture.pixels_mut().take(64).enumerate() {
        pixel.0[0] = if seed >> bit & 1 == 1 { 255 } else { 0 };
    }
    let mut png = Cursor::new(Vec::new());
    let written = picture.write_to(&mut png, ImageFormat::Png);
    written.expect("a picture in memory can be written to memory");
    address("png", png.get_ref())
}

/// The file's picture in a `data:` address.
///
/// # Errors
/// When the file cannot be read, or is too large for a picture.
pub fn of_file(path: &Path) -> io::Result<String> {
    let bytes = fs::metadata(path)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has {bytes} bytes, more than {FILE_BYTES_MAX}")));
    }
    let end = path.extension().unwrap_or_default().to_ascii_lowercase();
    let kind = ["png", "webp", "gif"].into_iter().find(|kind| end == *kind);
    Ok(address(kind.unwrap_or("jpeg"), &fs::read(path)?))
}

fn address(kind: &str, bytes: &[u8]) -> String {
    format!("data:image/{kind};base64,{}", STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_differ_by_seed() {
        assert_ne!(drawn(28, 1), drawn(28, 252));
        assert!(drawn(28, 1).starts_with("data:image/png;base64,iVBOR"));
    }

    #[test]
    fn a_files_kind_is_in_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.JPG");
        fs::write(&path, b"foo").unwrap();
        assert_eq!(of_file(&path).unwrap(), "data:image/jpeg;base64,Zm9v");
        assert!(of_file(&dir.path().join("none.png")).is_err());
    }
}
