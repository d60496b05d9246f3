//! Finds out whether a JPEG file is whole.
//!
//! Decoders fill what is missing with grey.  Segments are walked (ISO/IEC 10918-1, annex B), so that the end of a
//! thumbnail inside of one is not taken for that of the picture.

/// The end of the picture.
const END: u8 = 0xd9;

/// Whether no end marker follows the pixels of `file`.
pub(super) fn is_cut_off(file: &[u8]) -> bool {
    let mut rest = file;
    while let Some((marker, behind)) = next(rest) {
        rest = match marker {
            END => return false,
            // The beginning, and a marker for private use, stand alone.
            0xd8 | 0x01 => behind,
            // All others begin a segment, whose length counts its own two bytes.  Pixels lie behind a segment.
            _ => match behind {
                [high, low, ..] => {
                    let length = usize::from(u16::from_be_bytes([*high, *low]));
                    behind.get(length..).unwrap_or_default()
                }
                _ => return true,
            },
        };
    }
    true
}

/// The next marker, and what is behind it.  Among pixels, the byte 0xff has a zero behind it, and markers 0xd0 to
/// 0xd7 count the pixels.
fn next(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff | 0xd0..=0xd7);
    let at = bytes.windows(2).position(is_marker)?;
    Some((bytes[at + 1], &bytes[at + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_behind_all_segments_counts() {
        let whole =
            b"\xff\xd8\xff\xe1\0\x06\xff\xd8\xff\xd9\xff\xda\0\x02ab\xff\0\xff\xd0c\xff\xd9";
        assert!(!is_cut_off(whole));
        assert!(!is_cut_off(&[whole, &b"junk"[..]].concat()));
        for length in 0..whole.len() {
            assert!(is_cut_off(&whole[..length]), "{length}");
        }
    }
}
