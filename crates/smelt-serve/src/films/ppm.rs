//! Reads frames from a pipe: PPM pictures, one behind another.

use std::io::{BufRead, Read as _};

use smelt_runtime::image::Image;

/// The longest number of a head, with the space behind it.
const WORD_BYTES_MAX: u64 = 12;

/// The next picture; `None` at the end, and where there is none of at most so many pixels.
pub(super) fn read(out: &mut impl BufRead, pixels_max: u64) -> Option<Image> {
    let head: [Option<u64>; 4] = std::array::from_fn(|at| {
        let word = word(out)?;
        if at == 0 { (word == "P6").then_some(6) } else { word.parse().ok() }
    });
    let [Some(6), Some(width), Some(height), Some(255)] = head else { return None };
    if width.checked_mul(height)? > pixels_max {
        return None;
    }
    let mut rgb = vec![0; (width * height * 3) as usize];
    out.read_exact(&mut rgb).ok()?;
    Image::from_rgb(width as usize, height as usize, rgb).ok()
}

fn word(out: &mut impl BufRead) -> Option<String> {
    let mut word = String::new();
    for byte in out.by_ref().take(WORD_BYTES_MAX).bytes() {
        match byte.ok()? {
            b' ' | b'\n' => return Some(word),
            byte => word.push(byte.into()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_one_behind_another() {
        let mut two = &b"P6\n2 1\n255\nabcdefP6\n1 1\n255\nxyz"[..];
        let first = read(&mut two, 2).unwrap();
        assert_eq!((first.size().width, first.rgb()), (2, &b"abcdef"[..]));
        assert_eq!(read(&mut two, 2).unwrap().rgb(), b"xyz");
        assert_eq!(read(&mut two, 2), None);
    }

    #[test]
    fn what_is_no_picture_is_none() {
        for wrong in [
            &b"P5\n1 1\n255\nabc"[..],
            b"P6\n1 2\n255\nabc",
            b"P6\n9 9\n255\n",
            b"P6\n99999999999999 1",
            b"",
            b"P6\n0 0\n255\n",
        ] {
            assert_eq!(read(&mut &wrong[..], 80), None);
        }
    }
}
