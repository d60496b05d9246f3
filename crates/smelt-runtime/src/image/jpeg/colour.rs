//! Turns samples of a JPEG file's components into red, green and blue.
//!
//! Brightness and colour differences are converted with 16 bits below the point, as libjpeg does it.  Inks are kept as Adobe's
//! programs write them, as what is left white, and become light as `convert("RGB")` of Pillow has it.

/// What the components of a file stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// Brightness alone.
    Grey,
    /// Red, green and blue.
    Rgb,
    /// Brightness and two differences.
    Differences,
    /// Four inks.
    Inks,
    /// Brightness and two differences of three inks, and black.
    InkDifferences,
}

/// What is found in the headers before the first scan that says what components stand for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    /// Whether there is a JFIF header.
    pub(super) is_jfif: bool,
    /// What Adobe's header says of the transform.
    pub(super) adobe: Option<u8>,
}

impl Signs {
    /// What components of these names stand for, by the rules of libjpeg.
    pub(super) fn colours(self, names: &[u8]) -> Colours {
        match (names, self.adobe) {
            ([_], _) => Colours::Grey,
            ([_, _, _], _) if self.is_jfif => Colours::Differences,
            ([_, _, _], Some(0)) => Colours::Rgb,
            ([_, _, _], None) if names == b"RGB" => Colours::Rgb,
            ([_, _, _], _) => Colours::Differences,
            (_, Some(0) | None) => Colours::Inks,
            (_, Some(_)) => Colours::InkDifferences,
        }
    }
}

impl Colours {
    /// Writes a row of RGB pixels from a row of each component.
    pub(super) fn row(self, rows: &[&[u8]], out: &mut [u8]) {
        let pixels = out.as_chunks_mut::<3>().0.iter_mut();
        match (self, rows) {
            (Self::Grey, [grey]) => pixels.zip(*grey).for_each(|(pixel, grey)| *pixel = [*grey; 3]),
            (Self::Rgb, [red, green, blue]) => {
                for (((pixel, red), green), blue) in pixels.zip(*red).zip(*green).zip(*blue) {
                    *pixel = [*red, *green, *blue];
                }
            }
            (Self::Differences, [luma, blue, red]) => {
                for (((pixel, luma), blue), red) in pixels.zip(*luma).zip(*blue).zip(*red) {
                    *pixel = light(*luma, *blue, *red);
                }
            }
            (Self::Inks, [cyan, magenta, yellow, white]) => {
                let inks = cyan.iter().zip(*magenta).zip(*yellow).zip(*white);
                for (pixel, (((cyan, magenta), yellow), white)) in pixels.zip(inks) {
                    *pixel = [cyan, magenta, yellow].map(|left| under(255 - left, *white));
                }
            }
            (Self::InkDifferences, [luma, blue, red, white]) => {
                let inks = luma.iter().zip(*blue).zip(*red).zip(*white);
                for (pixel, (((luma, blue), red), white)) in pixels.zip(inks) {
                    *pixel = light(*luma, *blue, *red).map(|ink| under(ink, *white));
                }
            }
            _ => unreachable!("colours have as many components as their file"),
        }
    }
}

/// Red, green and blue of a brightness and what blue and red differ from it.
#[inline]
fn light(luma: u8, blue: u8, red: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (luma, blue, red) = (i32::from(luma), i32::from(blue) - 128, i32::from(red) - 128);
    // 1.402, 0.34414, 0.71414 and 1.772, all but whole numbers of them in 16 bits.
    let more_red = red + ((26_345 * red + HALF) >> 16);
    let less_green = -red + ((18_734 * red - 22_554 * blue + HALF) >> 16);
    let more_blue = 2 * blue + ((-14_942 * blue + HALF) >> 16);
    [luma + more_red, luma + less_green, luma + more_blue].map(|value| value.clamp(0, 255) as u8)
}

/// What is left of a light under an ink, where black leaves `white`; rounded as Pillow does it.
fn under(ink: u8, white: u8) -> u8 {
    let product = u32::from(ink) * u32::from(white) + 128;
    white - ((product + (product >> 8)) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_stand_for_what_headers_say() {
        let colours = |is_jfif, adobe, names: &[u8]| Signs { is_jfif, adobe }.colours(names);
        assert_eq!(colours(true, Some(0), b"\x01"), Colours::Grey);
        assert_eq!(colours(true, Some(0), b"RGB"), Colours::Differences);
        assert_eq!(colours(false, Some(0), b"\x01\x02\x03"), Colours::Rgb);
        assert_eq!(colours(false, Some(7), b"RGB"), Colours::Differences);
        assert_eq!(colours(false, None, b"RGB"), Colours::Rgb);
        assert_eq!(colours(false, None, b"abc"), Colours::Differences);
        assert_eq!(colours(true, None, b"\x01\x02\x03\x04"), Colours::Inks);
        assert_eq!(colours(false, Some(0), b"\x01\x02\x03\x04"), Colours::Inks);
        assert_eq!(colours(false, Some(2), b"\x01\x02\x03\x04"), Colours::InkDifferences);
    }

    #[test]
    fn differences_are_converted_with_all_bits_of_their_factors() {
        for (blue, red) in (0..=255_u8).flat_map(|blue| (0..=255_u8).map(move |red| (blue, red))) {
            let (b, r) = (i64::from(blue) - 128, i64::from(red) - 128);
            let more = [91_881 * r, -22_554 * b - 46_802 * r, 116_130 * b];
            let expect = more.map(|more| (100 + ((more + 32_768) >> 16)).clamp(0, 255) as u8);
            assert_eq!(light(100, blue, red), expect, "{blue} {red}");
        }
    }

    #[test]
    fn inks_darken_what_black_leaves() {
        assert_eq!(
            [under(0, 200), under(255, 200), under(255, 0), under(100, 255)],
            [200, 0, 0, 155]
        );
    }
}
