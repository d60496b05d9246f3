//! Decodes picture files into RGB pixels, within limits.
//!
//! The header is asked for the size before any pixel is decoded, so that a small file cannot claim
//! a large memory.  Pictures are turned upright by their EXIF orientation, as `load_image` of
//! transformers does it, and what is transparent lies on white.  Knows nothing of models.

use std::fs;
use std::io::{self, Cursor, Read as _};
use std::path::{Path, PathBuf};

use super::jpeg::{Jpeg, JpegError};
use super::patches::{Size, TooLong};
use ::image::metadata::Orientation;
use ::image::{
    DynamicImage, ImageBuffer, ImageDecoder, ImageFormat, ImageReader, Limits, Pixel, RgbImage,
};

/// The largest picture file read.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// The most pixels of a picture: 150 MB as RGB, above what phone cameras take.
pub const PIXELS_MAX: u64 = 50_000_000;

/// What the decoder may allocate: 16-bit RGBA of the most pixels, and as much again to work with.
pub(super) const DECODER_BYTES_MAX: u64 = PIXELS_MAX * 8 * 2;

/// What the decoder of PNG may allocate for a row and what a file has beside its pixels, above what it is long
/// itself.  Colour profiles, which nobody looks at here, are inflated within it or left out.
const PNG_BYTES_MAX: u64 = 16 << 20;

/// Why a picture could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageDecodeError {
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
        problem: Box<ImageDecodeError>,
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
    /// The end of a file is missing, which its decoder would fill with grey.
    #[error("the picture is cut off: its JPEG data have no end; send all of the file")]
    CutOff,
    /// An animation is too long.
    #[error(
        "its frames are too many, or have too many pixels together; send fewer or smaller ones"
    )]
    TooManyFrames,
    /// The bytes are no picture this build can decode.
    #[error("cannot decode the picture (png, jpeg, webp and gif are supported): {0}")]
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
pub struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Image {
    /// Takes `width * height` RGB pixels, row by row.
    ///
    /// # Errors
    /// [`ImageDecodeError::Size`] if there are none or their number does not match.
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self, ImageDecodeError> {
        let expected = width.saturating_mul(height).saturating_mul(3);
        if rgb.is_empty() || rgb.len() != expected {
            return Err(ImageDecodeError::Size { width, height, expected, found: rgb.len() });
        }
        Ok(Self { width, height, rgb })
    }

    /// Decodes the file at `path`.
    ///
    /// # Errors
    /// [`ImageDecodeError`] naming the file and the limit or what the decoder found.
    pub fn open(path: &Path) -> Result<Self, ImageDecodeError> {
        let read = |source| ImageDecodeError::Read { path: path.into(), source };
        let mut bytes = Vec::new();
        // A pipe or device has no length to ask for, so the limit is on what is read.
        let file = fs::File::open(path).map_err(read)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read)?;
        Self::decode(&bytes).map_err(|problem| ImageDecodeError::InFile {
            path: path.into(),
            problem: Box::new(problem),
        })
    }

    /// Decodes the bytes of a PNG, JPEG, WebP or GIF file; of one that moves, its first frame.
    ///
    /// # Errors
    /// [`ImageDecodeError`] naming the limit or what the decoder found.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageDecodeError> {
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ImageDecodeError::FileTooLarge);
        }
        if matches!(::image::guess_format(bytes), Ok(ImageFormat::Jpeg)) {
            return Self::of_jpeg(bytes);
        }
        let failed = |error: ::image::ImageError| ImageDecodeError::Decode(error.to_string());
        let mut reader = ImageReader::new(Cursor::new(bytes))
            .with_guessed_format()
            .map_err(|error| ImageDecodeError::Decode(error.to_string()))?;
        reader.limits(match reader.format() {
            Some(ImageFormat::Png) => png_limits(bytes),
            _ => limits(DECODER_BYTES_MAX),
        });
        let mut decoder = reader.into_decoder().map_err(failed)?;
        let (width, height) = decoder.dimensions();
        check_size(width, height)?;
        let tags = decoder.exif_metadata().ok().flatten().unwrap_or_default();
        let xml = decoder.xmp_metadata().ok().flatten().unwrap_or_default();
        let orientation = orientation(&tags, &xml);
        let image = in_bytes(DynamicImage::from_decoder(decoder).map_err(failed)?);
        let rgb = match image.color().has_alpha() {
            true => on_white(image.into_rgba8().as_raw()),
            false => image.into_rgb8().into_raw(),
        };
        Self::from_rgb(width as usize, height as usize, rgb).map(|lying| lying.turned(orientation))
    }

    /// Pixels that the bytes of a file become, as its heading says; none of what does not decode.
    pub fn pixels_of(bytes: &[u8]) -> u64 {
        let size = match ::image::guess_format(bytes) {
            Ok(ImageFormat::Jpeg) => Jpeg::read(bytes).ok().map(|jpeg| jpeg.size()),
            _ => ImageReader::new(Cursor::new(bytes))
                .with_guessed_format()
                .ok()
                .and_then(|reader| reader.into_dimensions().ok()),
        };
        size.map_or(0, |(width, height)| u64::from(width) * u64::from(height))
    }

    /// Decodes the bytes of a JPEG file.
    fn of_jpeg(bytes: &[u8]) -> Result<Self, ImageDecodeError> {
        let failed = |error: JpegError| ImageDecodeError::Decode(error.to_string());
        let jpeg = Jpeg::read(bytes).map_err(failed)?;
        let (width, height) = jpeg.size();
        check_size(width, height)?;
        let orientation = orientation(jpeg.exif(), jpeg.xmp());
        let rgb = jpeg.decode().map_err(|error| match error {
            JpegError::Ends => ImageDecodeError::CutOff,
            error => failed(error),
        })?;
        Self::from_rgb(width as usize, height as usize, rgb).map(|lying| lying.turned(orientation))
    }

    /// The same picture as its orientation says that it is to be seen.
    fn turned(self, orientation: Orientation) -> Self {
        let Self { width, height, rgb } = self;
        let image = RgbImage::from_raw(width as u32, height as u32, rgb);
        let mut image = DynamicImage::from(image.expect("a picture has its pixels"));
        image.apply_orientation(orientation);
        let image = image.into_rgb8();
        let (width, height) = image.dimensions();
        Self { width: width as usize, height: height as usize, rgb: image.into_raw() }
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

/// Limits of a decoder that may allocate so many bytes.
pub(super) fn limits(bytes_max: u64) -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(bytes_max);
    limits
}

/// Limits of the decoder of a PNG file, its pixels apart.
pub(super) fn png_limits(file: &[u8]) -> Limits {
    // A chunk may be held twice, as it is read and as it is kept.
    limits(PNG_BYTES_MAX + 2 * file.len() as u64)
}

/// How a picture is to be turned, by the tags of its camera, or what its editor wrote in XML.  Tags that cannot be read say
/// nothing, as Pillow has it.
fn orientation(tags: &[u8], xml: &[u8]) -> Orientation {
    /// What JPEG has before the tags; some writers of PNG and WebP too.
    const MARK: &[u8] = b"Exif\0\0";
    let tags = tags.strip_prefix(MARK).unwrap_or(tags);
    let found = Orientation::from_exif_chunk(tags).or_else(|| of_xml(xml));
    found.unwrap_or(Orientation::NoTransforms)
}

/// The orientation that XML tells, as a field or as an element.
fn of_xml(xml: &[u8]) -> Option<Orientation> {
    const NAME: &[u8] = b"tiff:Orientation";
    let mut named = xml.windows(NAME.len()).enumerate().filter(|(_, name)| *name == NAME);
    named.find_map(|(at, _)| {
        let rest = &xml[at + NAME.len()..];
        let value = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?.first()?;
        Orientation::from_exif(value.wrapping_sub(b'0'))
    })
}

/// Whether a picture of this size is decoded.
///
/// # Errors
/// [`ImageDecodeError`] naming the size and the limit.
pub(super) fn check_size(width: u32, height: u32) -> Result<(), ImageDecodeError> {
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(ImageDecodeError::TooManyPixels { width, height });
    }
    // Of a line of pixels every model would see stripes, after rows or columns by the million were resized.
    let size = Size { height: height as usize, width: width as usize };
    Ok(size.check_ratio()?)
}

/// The same picture in channels of 8 bits: of 16 the upper ones, as Pillow takes them, where others round.  Grey alone Pillow
/// cuts off at 255, which leaves white.
fn in_bytes(image: DynamicImage) -> DynamicImage {
    match image {
        DynamicImage::ImageLuma16(wide) => DynamicImage::ImageLuma8(upper(wide)),
        DynamicImage::ImageLumaA16(wide) => DynamicImage::ImageLumaA8(upper(wide)),
        DynamicImage::ImageRgb16(wide) => DynamicImage::ImageRgb8(upper(wide)),
        DynamicImage::ImageRgba16(wide) => DynamicImage::ImageRgba8(upper(wide)),
        image => image,
    }
}

fn upper<W, P>(wide: ImageBuffer<W, Vec<u16>>) -> ImageBuffer<P, Vec<u8>>
where
    W: Pixel<Subpixel = u16>,
    P: Pixel<Subpixel = u8>,
{
    let (width, height) = wide.dimensions();
    let bytes = wide.into_raw().into_iter().map(|channel| (channel >> 8) as u8).collect();
    ImageBuffer::from_raw(width, height, bytes).expect("the channels are as many")
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
    use ::image::ImageEncoder as _;
    use ::image::codecs::jpeg::JpegEncoder;
    use ::image::codecs::png::{PngDecoder, PngEncoder};
    use ::image::codecs::webp::WebPEncoder;
    use smelt_random::Random;

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
        let picture = Image::decode(&png(rgba.into())).unwrap();
        assert_eq!((picture.width(), picture.height()), (1, 3));
        assert_eq!(picture.rgb(), [255, 255, 255, 4, 5, 6, 128, 178, 255]);
        let grey = ::image::GrayImage::from_raw(1, 1, vec![9]).unwrap();
        assert_eq!(Image::decode(&png(grey.into())).unwrap().rgb(), [9, 9, 9]);
    }

    /// What Pillow reads: the upper byte of each channel, then the alpha that this leaves.
    #[test]
    fn of_sixteen_bits_the_upper_eight_count() {
        use ::image::ExtendedColorType::{L16, La16, Rgb16, Rgba16};
        let wide = |format, channels: &[u16]| {
            let bytes: Vec<u8> = channels.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let mut file = Vec::new();
            PngEncoder::new(&mut file).write_image(&bytes, 1, 1, format).unwrap();
            Image::decode(&file).unwrap().rgb().to_vec()
        };
        assert_eq!(wide(Rgb16, &[0x00ff, 0x80fe, 0xfe7f]), [0x00, 0x80, 0xfe]);
        assert_eq!(wide(Rgba16, &[0x00ff, 0x80fe, 0xfe7f, 0xffff]), [0x00, 0x80, 0xfe]);
        assert_eq!(wide(Rgba16, &[0, 0, 0, 0x00ff]), [255; 3], "nothing is seen of it");
        assert_eq!(wide(La16, &[0x4fff, 0xffff]), [0x4f; 3]);
        assert_eq!(wide(L16, &[0x4fff]), [0x4f; 3]);
    }

    #[test]
    fn a_jpeg_decodes() {
        let mut bytes = Cursor::new(Vec::new());
        let flat = ::image::RgbImage::from_pixel(16, 8, ::image::Rgb([200, 200, 200]));
        flat.write_to(&mut bytes, ::image::ImageFormat::Jpeg).unwrap();
        let picture = Image::decode(bytes.get_ref()).unwrap();
        assert_eq!((picture.width(), picture.height()), (16, 8));
        assert!(picture.rgb().iter().all(|x| x.abs_diff(200) <= 2));
    }

    /// EXIF tags that hold this orientation alone.
    fn exif(orientation: u8) -> Vec<u8> {
        // The order of bytes and where the tags are; one tag: number, kind (short), count, value; no more.
        let tags = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0";
        [&tags[..], &[orientation, 0, 0, 0, 0, 0, 0]].concat()
    }

    /// The greys of a picture of 32 x 16 pixels, eight squares of 8, upper row first.
    const SQUARES: [u8; 8] = [0, 250, 130, 70, 200, 40, 160, 100];

    /// Which square stands at each place when it is seen: columns, then squares row by row.
    fn upright(orientation: u8) -> (usize, [usize; 8]) {
        match orientation {
            2 => (4, [3, 2, 1, 0, 7, 6, 5, 4]),
            3 => (4, [7, 6, 5, 4, 3, 2, 1, 0]),
            4 => (4, [4, 5, 6, 7, 0, 1, 2, 3]),
            5 => (2, [0, 4, 1, 5, 2, 6, 3, 7]),
            6 => (2, [4, 0, 5, 1, 6, 2, 7, 3]),
            7 => (2, [7, 3, 6, 2, 5, 1, 4, 0]),
            8 => (2, [3, 7, 2, 6, 1, 5, 0, 4]),
            _ => (4, [0, 1, 2, 3, 4, 5, 6, 7]),
        }
    }

    #[track_caller]
    fn is_upright(bytes: &[u8], orientation: u8) {
        let picture = Image::decode(bytes).unwrap();
        let (columns, squares) = upright(orientation);
        let (width, height) = (columns * 8, 8 / columns * 8);
        assert_eq!((picture.width(), picture.height()), (width, height), "{orientation}");
        for (place, square) in squares.into_iter().enumerate() {
            let (row, column) = (place / columns * 8 + 4, place % columns * 8 + 4);
            let found = picture.rgb()[(row * width + column) * 3];
            assert!(found.abs_diff(SQUARES[square]) <= 4, "{orientation}: {place} is {found}");
        }
    }

    fn squares() -> DynamicImage {
        let square = |x: u32, y: u32| SQUARES[(y / 8 * 4 + x / 8) as usize];
        ::image::GrayImage::from_fn(32, 16, |x, y| ::image::Luma([square(x, y)])).into()
    }

    #[test]
    fn pictures_are_turned_as_their_tags_say() {
        for (format, orientation) in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP]
            .into_iter()
            .flat_map(|format| (0..=9).map(move |orientation| (format, orientation)))
        {
            let mut bytes = Vec::new();
            let (image, tags) = (squares().into_rgb8(), exif(orientation));
            match format {
                ImageFormat::Jpeg => {
                    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 95);
                    encoder.set_exif_metadata(tags).unwrap();
                    image.write_with_encoder(encoder).unwrap();
                }
                ImageFormat::Png => {
                    let mut encoder = PngEncoder::new(&mut bytes);
                    encoder.set_exif_metadata(tags).unwrap();
                    image.write_with_encoder(encoder).unwrap();
                }
                _ => {
                    let mut encoder = WebPEncoder::new_lossless(&mut bytes);
                    // As other writers than Pillow have it.
                    encoder.set_exif_metadata([b"Exif\0\0", &tags[..]].concat()).unwrap();
                    image.write_with_encoder(encoder).unwrap();
                }
            }
            is_upright(&bytes, orientation);
        }
    }

    #[test]
    fn a_header_that_claims_too_many_pixels_is_refused_before_decoding() {
        let mut bytes = png(::image::GrayImage::new(8, 8).into());
        // Width and height are the first two big-endian words of the header chunk.
        bytes[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
        bytes[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
        let crc = crc32(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = Image::decode(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the picture is 60000x60000, more than the 50000000 pixels allowed; scale it down"
        );
    }

    #[test]
    fn a_picture_too_long_for_its_width_is_refused_before_decoding() {
        let picture =
            |width, height| Image::decode(&png(::image::GrayImage::new(width, height).into()));
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
            let error = Image::decode(bytes).unwrap_err().to_string();
            assert!(error.starts_with("cannot decode the picture"), "{error}");
        }
        let cut = png(::image::GrayImage::new(64, 64).into());
        assert!(matches!(Image::decode(&cut[..60]), Err(ImageDecodeError::Decode(_))));
    }

    #[test]
    fn a_profile_that_unpacks_to_much_is_left_out() {
        let mut bytes = Vec::new();
        let mut encoder = PngEncoder::new(&mut bytes);
        encoder.set_icc_profile(vec![0; 40 << 20]).unwrap();
        squares().write_with_encoder(encoder).unwrap();
        assert!(bytes.len() < 1 << 20);
        let decoder = PngDecoder::with_limits(Cursor::new(&bytes), png_limits(&bytes));
        assert_eq!(decoder.unwrap().icc_profile().unwrap(), None);
        is_upright(&bytes, 1);
    }

    #[test]
    fn a_jpeg_without_its_end_is_refused() {
        let mut bytes = Cursor::new(Vec::new());
        squares().write_to(&mut bytes, ImageFormat::Jpeg).unwrap();
        let all = bytes.into_inner();
        assert!(Image::decode(&all).is_ok());
        for left in [2, 8, 16] {
            let cut = Image::decode(&all[..all.len() - left]);
            assert!(matches!(cut, Err(ImageDecodeError::CutOff)), "{left}: {cut:?}");
        }
    }

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/jpeg").join(name)
    }

    /// Names of the golden files, and the size and the checksum of what Pillow shows of each.
    fn goldens() -> Vec<(String, [usize; 2], u32)> {
        let lines = fs::read_to_string(golden("pixels.txt")).unwrap();
        let entry = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            let size = [fields[1], fields[2]].map(|side| side.parse().unwrap());
            (fields[0].to_owned(), size, u32::from_str_radix(fields[3], 16).unwrap())
        };
        lines.lines().map(entry).collect()
    }

    #[test]
    fn jpegs_look_as_pillow_shows_them() {
        let all = goldens();
        assert!(all.len() > 50);
        for (name, size, sum) in all {
            let picture = Image::open(&golden(&format!("{name}.jpg"))).unwrap();
            assert_eq!([picture.width(), picture.height()], size, "{name}");
            assert_eq!(crc32(picture.rgb()), sum, "{name}");
        }
    }

    #[test]
    fn a_jpeg_cut_anywhere_is_refused() {
        for name in ["420", "420-progressive", "scans-apart", "cmyk", "420-restarts"] {
            let all = fs::read(golden(&format!("{name}.jpg"))).unwrap();
            for end in 0..all.len() - 1 {
                let cut = Image::decode(&all[..end]);
                let is_refused =
                    matches!(cut, Err(ImageDecodeError::CutOff | ImageDecodeError::Decode(_)));
                assert!(is_refused, "{name}: {end}: {cut:?}");
            }
        }
    }

    #[test]
    fn damaged_jpegs_are_shown_or_refused() {
        let mut random = Random::new(42);
        for (name, [width, height], _) in goldens() {
            let whole = fs::read(golden(&format!("{name}.jpg"))).unwrap();
            for _ in 0..40 {
                let mut bytes = whole.clone();
                for _ in 0..=random.below(4) {
                    let at = random.below(bytes.len());
                    let any = random.next_u64() as u8;
                    bytes[at] = random.pick(&[any, 0, 0xff]);
                }
                // Sizes of their own would be slow, not wrong.
                let is_small =
                    |size: (u32, u32)| size.0 as usize * size.1 as usize <= 16 * width * height;
                if Jpeg::read(&bytes).is_ok_and(|jpeg| is_small(jpeg.size())) {
                    _ = Image::decode(&bytes);
                }
            }
        }
    }

    /// A golden file with a byte of the header behind `marker` changed.
    fn changed(name: &str, marker: u8, at: usize, byte: u8) -> String {
        let mut bytes = fs::read(golden(&format!("{name}.jpg"))).unwrap();
        let header = bytes.windows(2).position(|two| two == [0xff, marker]).unwrap();
        bytes[header + at] = byte;
        Image::decode(&bytes).unwrap_err().to_string()
    }

    #[test]
    fn jpegs_of_other_kinds_are_refused_by_name() {
        assert!(changed("420", 0xc0, 1, 0xc9).contains("arithmetic"));
        assert!(changed("420", 0xc0, 1, 0xc3).contains("without loss"));
        assert!(changed("420", 0xc0, 1, 0xc5).contains("several sizes"));
        assert!(changed("420", 0xc0, 4, 12).contains("8 bits"));
        assert!(changed("420", 0xc0, 14, 0x31).contains("samplings"));
    }

    #[test]
    fn a_jpeg_of_endless_scans_is_refused() {
        let whole = fs::read(golden("420-progressive.jpg")).unwrap();
        let scan = whole.windows(2).rposition(|two| two == [0xff, 0xda]).unwrap();
        let (before, last) = whole[..whole.len() - 2].split_at(scan);
        let many = |count| [before, &last.repeat(count), &[0xff, 0xd9]].concat();
        assert!(Image::decode(&many(80)).is_ok());
        let error = Image::decode(&many(100)).unwrap_err().to_string();
        assert!(error.contains("more scans"), "{error}");
    }

    #[test]
    fn xml_turns_what_no_tag_does() {
        let of = |xml: &str| of_xml(xml.as_bytes());
        assert_eq!(of("<a tiff:Orientation=\"6\"/>"), Orientation::from_exif(6));
        assert_eq!(of("<tiff:Orientation>3</tiff:Orientation>"), Orientation::from_exif(3));
        assert_eq!(of("tiff:Orientation tiff:Orientation='6'"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn pixels_must_fill_their_picture() {
        assert!(Image::from_rgb(2, 2, vec![0; 12]).is_ok());
        assert!(Image::from_rgb(2, 2, vec![0; 11]).is_err());
        assert!(Image::from_rgb(0, 0, vec![]).is_err());
        assert!(Image::from_rgb(usize::MAX, 2, vec![0; 4]).is_err());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Image::open(Path::new("/nowhere/x.png")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read picture /nowhere/x.png"), "{error}");
    }
}
