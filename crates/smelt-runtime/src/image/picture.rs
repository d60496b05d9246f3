//! Decodes picture files into RGB pixels, within limits.
//!
//! The header is asked for the size before any pixel is decoded, so that a small file cannot claim
//! a large memory.  Orientation tags are ignored and what is transparent lies on white, as the
//! reference processors have it.  Knows nothing of models.

use std::fs;
use std::io::{self, Cursor, Read as _};
use std::path::{Path, PathBuf};

use super::patches::{Size, TooLong};
use ::image::{DynamicImage, ImageDecoder, ImageReader, Limits};

/// The largest picture file read.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// The most pixels of a picture: 150 MB as RGB, above what phone cameras take.
pub const PIXELS_MAX: u64 = 50_000_000;

/// What the decoder may allocate: 16-bit RGBA of the most pixels, and as much again to work with.
pub(super) const DECODER_BYTES_MAX: u64 = PIXELS_MAX * 8 * 2;

/// Why a picture could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file cannot be read.
    #[error("cannot read picture {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file's content cannot be used.
    #[error("{}: {problem}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Box<PictureError>,
    },
    /// The file is too long.
    #[error("the picture has more than the {FILE_BYTES_MAX} bytes allowed")]
    FileTooLarge,
    /// The picture has too many pixels.
    #[error(
        "the picture is {width}x{height}, more than the {PIXELS_MAX} pixels allowed; scale it down"
    )]
    TooManyPixels {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// One side of the picture is much longer than the other.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// An animation is too long.
    #[error(
        "its frames are too many, or have too many pixels together; send fewer or smaller ones"
    )]
    TooManyFrames,
    /// The bytes are no picture this build can decode.
    #[error("cannot decode the picture (png, jpeg and webp are supported): {0}")]
    Decode(String),
    /// The pixels given do not match the size given.
    #[error("{width}x{height} RGB pixels take {expected} bytes, got {found}")]
    Size {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
        /// Bytes of such a picture.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

/// A decoded picture: rows of RGB bytes, at least one pixel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// Takes `width * height` RGB pixels, row by row.
    ///
    /// # Errors
    /// [`PictureError::Size`] if there are none or their number does not match.
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self, PictureError> {
        let expected = width.saturating_mul(height).saturating_mul(3);
        if rgb.is_empty() || rgb.len() != expected {
            return Err(PictureError::Size { width, height, expected, found: rgb.len() });
        }
        Ok(Self { width, height, rgb })
    }

    /// Decodes the file at `path`.
    ///
    /// # Errors
    /// [`PictureError`] naming the file and the limit or what the decoder found.
    pub fn open(path: &Path) -> Result<Self, PictureError> {
        let read = |source| PictureError::Read { path: path.into(), source };
        let mut bytes = Vec::new();
        // A pipe or device has no length to ask for, so the limit is on what is read.
        let file = fs::File::open(path).map_err(read)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read)?;
        Self::decode(&bytes).map_err(|problem| PictureError::InFile {
            path: path.into(),
            problem: Box::new(problem),
        })
    }

    /// Decodes the bytes of a PNG, JPEG, WebP or GIF file; of one that moves, its first frame.
    ///
    /// # Errors
    /// [`PictureError`] naming the limit or what the decoder found.
    pub fn decode(bytes: &[u8]) -> Result<Self, PictureError> {
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(PictureError::FileTooLarge);
        }
        let failed = |error: ::image::ImageError| PictureError::Decode(error.to_string());
        let mut reader = ImageReader::new(Cursor::new(bytes))
            .with_guessed_format()
            .map_err(|error| PictureError::Decode(error.to_string()))?;
        let mut limits = Limits::default();
        limits.max_alloc = Some(DECODER_BYTES_MAX);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(failed)?;
        let (width, height) = decoder.dimensions();
        check_size(width, height)?;
        let image = DynamicImage::from_decoder(decoder).map_err(failed)?;
        let rgb = match image.color().has_alpha() {
            true => on_white(image.into_rgba8().as_raw()),
            false => image.into_rgb8().into_raw(),
        };
        Self::from_rgb(width as usize, height as usize, rgb)
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Rows and columns.
    pub fn size(&self) -> Size {
        Size { height: self.height, width: self.width }
    }

    /// `[height, width, 3]`.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

/// Whether a picture of this size is decoded.
///
/// # Errors
/// [`PictureError`] naming the size and the limit.
pub(super) fn check_size(width: u32, height: u32) -> Result<(), PictureError> {
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(PictureError::TooManyPixels { width, height });
    }
    // Of a line of pixels every model would see stripes, after rows or columns by the million were resized.
    let size = Size { height: height as usize, width: width as usize };
    Ok(size.check_ratio()?)
}

/// Pixels of red, green, blue and opacity as they look on white, rounded as Pillow's `alpha_composite`.
fn on_white(rgba: &[u8]) -> Vec<u8> {
    let blend = |colour: u8, alpha: u8| {
        let (colour, alpha) = (u32::from(colour), u32::from(alpha));
        ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
    };
    let pixels = rgba.as_chunks().0.iter();
    pixels
        .flat_map(|&[red, green, blue, alpha]| [red, green, blue].map(|x| blend(x, alpha)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(image: DynamicImage) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, ::image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn transparency_lies_on_white_and_grey_is_tripled() {
        let rgba = vec![1, 2, 3, 0, 4, 5, 6, 255, 0, 100, 255, 127];
        let rgba = ::image::RgbaImage::from_raw(1, 3, rgba).unwrap();
        let picture = Picture::decode(&png(rgba.into())).unwrap();
        assert_eq!((picture.width(), picture.height()), (1, 3));
        assert_eq!(picture.rgb(), [255, 255, 255, 4, 5, 6, 128, 178, 255]);
        let grey = ::image::GrayImage::from_raw(1, 1, vec![9]).unwrap();
        assert_eq!(Picture::decode(&png(grey.into())).unwrap().rgb(), [9, 9, 9]);
    }

    #[test]
    fn a_jpeg_decodes() {
        let mut bytes = Cursor::new(Vec::new());
        let flat = ::image::RgbImage::from_pixel(16, 8, ::image::Rgb([200, 200, 200]));
        flat.write_to(&mut bytes, ::image::ImageFormat::Jpeg).unwrap();
        let picture = Picture::decode(bytes.get_ref()).unwrap();
        assert_eq!((picture.width(), picture.height()), (16, 8));
        assert!(picture.rgb().iter().all(|x| x.abs_diff(200) <= 2));
    }

    #[test]
    fn a_header_that_claims_too_many_pixels_is_refused_before_decoding() {
        let mut bytes = png(::image::GrayImage::new(8, 8).into());
        // Width and height are the first two big-endian words of the header chunk.
        bytes[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
        bytes[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
        let crc = crc32(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = Picture::decode(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the picture is 60000x60000, more than the 50000000 pixels allowed; scale it down"
        );
    }

    #[test]
    fn a_picture_too_long_for_its_width_is_refused_before_decoding() {
        let picture = |width, height| {
            Picture::decode(&png(::image::GrayImage::new(width, height).into()))
        };
        assert!(picture(1, 200).is_ok() && picture(400, 2).is_ok());
        let refused = |width, height| picture(width, height).unwrap_err().to_string();
        assert_eq!(
            refused(1, 201),
            "one side of the picture of 1x201 is more than 200 times the other; cut it"
        );
        assert!(refused(402, 2).starts_with("one side of the picture of 402x2"));
    }

    fn crc32(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        for bytes in [&b""[..], b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"] {
            let error = Picture::decode(bytes).unwrap_err().to_string();
            assert!(error.starts_with("cannot decode the picture"), "{error}");
        }
        let cut = png(::image::GrayImage::new(64, 64).into());
        assert!(matches!(Picture::decode(&cut[..60]), Err(PictureError::Decode(_))));
    }

    #[test]
    fn pixels_must_fill_their_picture() {
        assert!(Picture::from_rgb(2, 2, vec![0; 12]).is_ok());
        assert!(Picture::from_rgb(2, 2, vec![0; 11]).is_err());
        assert!(Picture::from_rgb(0, 0, vec![]).is_err());
        assert!(Picture::from_rgb(usize::MAX, 2, vec![0; 4]).is_err());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Picture::open(Path::new("/nowhere/x.png")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read picture /nowhere/x.png"), "{error}");
    }
}
