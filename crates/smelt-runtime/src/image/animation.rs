//! Decodes animations (GIF, PNG and WebP) into the frames that are shown, within limits.
//!
//! What a file says of its size is checked before a frame is decoded, and frames are counted while they
//! are.  A file that does not move is an animation of one frame.

use std::io::Cursor;

use ::image::codecs::gif::GifDecoder;
use ::image::codecs::png::PngDecoder;
use ::image::codecs::webp::WebPDecoder;
use ::image::{
    AnimationDecoder, DynamicImage, Frame, Frames, ImageDecoder, ImageError, ImageFormat,
};

use super::decoded::{
    DECODER_BYTES_MAX, FILE_BYTES_MAX, Image, ImageDecodeError, check_size, limits, png_limits,
};

/// The most frames of a file: five minutes at 30 a second.
const FRAMES_IN_FILE_MAX: usize = 9000;

/// What a file shows one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct Animation {
    /// At least one, all of one size.
    pub frames: Vec<Image>,
    /// How many are shown in a second, on average, where the file says so.
    pub fps: Option<f64>,
}

impl Animation {
    /// Decodes the bytes of a file whose frames have at most `pixels_max` pixels together.
    ///
    /// # Errors
    /// [`ImageDecodeError`] naming the limit or what the decoder found.
    pub fn decode(bytes: &[u8], pixels_max: u64) -> Result<Self, ImageDecodeError> {
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ImageDecodeError::FileTooLarge);
        }
        let limits = limits(DECODER_BYTES_MAX);
        match ::image::guess_format(bytes) {
            Ok(ImageFormat::Gif) => {
                let mut decoder = GifDecoder::new(Cursor::new(bytes)).map_err(failed)?;
                check(&decoder)?;
                decoder.set_limits(limits).map_err(failed)?;
                return Self::of(decoder.into_frames(), pixels_max);
            }
            Ok(ImageFormat::Png) => {
                let mut decoder = PngDecoder::with_limits(Cursor::new(bytes), png_limits(bytes))
                    .map_err(failed)?;
                decoder.set_limits(limits).map_err(failed)?;
                if decoder.is_apng().map_err(failed)? {
                    check(&decoder)?;
                    return Self::of(decoder.apng().map_err(failed)?.into_frames(), pixels_max);
                }
            }
            Ok(ImageFormat::WebP) => {
                let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(failed)?;
                decoder.set_limits(limits).map_err(failed)?;
                if decoder.has_animation() {
                    check(&decoder)?;
                    return Self::of(decoder.into_frames(), pixels_max);
                }
            }
            _ => {}
        }
        let picture = Image::decode(bytes)?;
        match picture.size().pixels() as u64 > pixels_max {
            true => Err(ImageDecodeError::TooManyFrames),
            false => Ok(Self { frames: vec![picture], fps: None }),
        }
    }

    fn of(frames: Frames<'_>, pixels_max: u64) -> Result<Self, ImageDecodeError> {
        let (mut all, mut pixels, mut milliseconds) = (Vec::new(), 0, 0.0);
        for frame in frames {
            let frame = frame.map_err(failed)?;
            let (numerator, denominator) = frame.delay().numer_denom_ms();
            milliseconds += f64::from(numerator) / f64::from(denominator.max(1));
            pixels += u64::from(frame.buffer().width()) * u64::from(frame.buffer().height());
            if pixels > pixels_max || all.len() == FRAMES_IN_FILE_MAX {
                return Err(ImageDecodeError::TooManyFrames);
            }
            all.push(picture(frame)?);
        }
        let fps = (milliseconds > 0.0).then(|| all.len() as f64 * 1e3 / milliseconds);
        match all.is_empty() {
            true => Err(ImageDecodeError::Decode("the animation has no frames".to_owned())),
            false => Ok(Self { frames: all, fps }),
        }
    }
}

fn picture(frame: Frame) -> Result<Image, ImageDecodeError> {
    let rgb = DynamicImage::from(frame.into_buffer()).into_rgb8();
    Image::from_rgb(rgb.width() as usize, rgb.height() as usize, rgb.into_raw())
}

/// Each frame is drawn on a canvas of the whole size.
fn check(decoder: &impl ImageDecoder) -> Result<(), ImageDecodeError> {
    let (width, height) = decoder.dimensions();
    check_size(width, height)
}

fn failed(error: ImageError) -> ImageDecodeError {
    ImageDecodeError::Decode(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::decoded::PIXELS_MAX;
    use super::*;

    /// Three frames of 64 x 64 pixels at 4 a second, black, red and white, as Pillow writes them.
    const WEBP: &[u8] = include_bytes!("../../../../tests/data/clips/three.webp");
    const APNG: &[u8] = include_bytes!("../../../../tests/data/clips/three.png");
    const GIF: &[u8] = include_bytes!("../../../../tests/data/clips/three.gif");

    #[test]
    fn animations_are_frames_and_a_speed() {
        for bytes in [WEBP, APNG, GIF] {
            let Animation { frames, fps } = Animation::decode(bytes, PIXELS_MAX).unwrap();
            let is_bright = |frame: &Image| [0, 1, 2].map(|at| frame.rgb()[at] > 250);
            let colours: Vec<[bool; 3]> = frames.iter().map(is_bright).collect();
            assert_eq!(colours, [[false; 3], [true, false, false], [true; 3]]);
            assert_eq!(fps, Some(4.0));
        }
    }

    #[test]
    fn frames_have_a_limit_together() {
        for bytes in [WEBP, APNG, GIF] {
            let pixels = 3 * 64 * 64;
            assert!(Animation::decode(bytes, pixels).is_ok());
            let refused = Animation::decode(bytes, pixels - 1);
            assert!(matches!(refused, Err(ImageDecodeError::TooManyFrames)), "{refused:?}");
        }
        assert!(matches!(Animation::decode(&WEBP[..60], 9), Err(ImageDecodeError::Decode(_))));
    }

    #[test]
    fn what_does_not_move_is_one_frame() {
        let mut bytes = Cursor::new(Vec::new());
        let grey = ::image::GrayImage::new(2, 2);
        grey.write_to(&mut bytes, ImageFormat::Png).unwrap();
        let still = Animation::decode(bytes.get_ref(), 4).unwrap();
        assert_eq!((still.frames.len(), still.fps), (1, None));
        let refused = Animation::decode(bytes.get_ref(), 3);
        assert!(matches!(refused, Err(ImageDecodeError::TooManyFrames)));
    }
}
