//! Walks through the markers of a JPEG file and hands out its bits between them.
//!
//! Markers are two bytes, 0xff and a code (ISO/IEC 10918-1, annex B).  Among coded bits, a byte 0xff has a zero
//! behind it.  What is damaged is passed over as libjpeg does it, so that the rest of the picture stays the same.

use super::JpegError;

/// The end of the picture.
pub(super) const END: u8 = 0xd9;

/// Codes of the markers between restart intervals, the first and the last of eight.
pub(super) const RESTARTS: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;

/// How many bits are there after a filling, if the file has them: enough for a code and the value behind it.
const FILLED: i32 = 32;

/// A file that is read from its beginning.
pub(super) struct Stream<'a> {
    file: &'a [u8],
    at: usize,
    /// A marker that was met among bits, and not taken yet; zero if there is none.
    pub(super) marker: u8,
    /// The next bits, the first one at the top; zeros behind the last.
    bits: u64,
    /// How many of them are of the file.  Below zero, more were taken than there were.
    left: i32,
    /// Whether the file ended among bits.
    is_over: bool,
}

impl<'a> Stream<'a> {
    /// Begins behind the two bytes that every file begins with.
    pub(super) fn new(file: &'a [u8]) -> Result<Self, JpegError> {
        let begins = file.starts_with(&[0xff, 0xd8]);
        let stream = Self { file, at: 2, marker: 0, bits: 0, left: 0, is_over: false };
        if begins { Ok(stream) } else { Err(JpegError::Damaged("it does not begin as one")) }
    }

    /// The next byte between segments.
    fn byte(&mut self) -> Result<u8, JpegError> {
        let byte = self.file.get(self.at).copied().ok_or(JpegError::Ends)?;
        self.at += 1;
        Ok(byte)
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.file[self.at..]
    }

    /// Takes the next marker, over bytes that belong to none.
    pub(super) fn next_marker(&mut self) -> Result<u8, JpegError> {
        self.drop_bits();
        if self.marker != 0 {
            return Ok(std::mem::take(&mut self.marker));
        }
        loop {
            while self.byte()? != 0xff {}
            let mut code = 0xff;
            while code == 0xff {
                code = self.byte()?;
            }
            if code != 0 {
                return Ok(code);
            }
        }
    }

    /// What is behind a marker, without its length.  A length that does not even count itself is of nothing.
    pub(super) fn segment(&mut self) -> Result<&'a [u8], JpegError> {
        let length = usize::from(u16::from_be_bytes([self.byte()?, self.byte()?]));
        let length = length.saturating_sub(2);
        let segment = self.file.get(self.at..self.at + length).ok_or(JpegError::Ends)?;
        self.at += length;
        Ok(segment)
    }

    /// Leaves the bits that were not taken.
    pub(super) fn drop_bits(&mut self) {
        (self.bits, self.left) = (0, 0);
    }

    /// Whether more bits were taken than the file has before its next marker.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.left < 0
    }

    /// Whether the file ended where bits were looked for.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Makes sure of bits for a code and its value.  Behind the last there are zeros.
    #[inline]
    pub(super) fn fill(&mut self) {
        if self.left < FILLED {
            self.refill();
        }
    }

    fn refill(&mut self) {
        if self.marker != 0 {
            return;
        }
        if let Some(next) = self.file[self.at..].first_chunk() {
            let word = u64::from_be_bytes(*next);
            if !has_ff(word) {
                // Bits of a byte that does not fit whole are put there again by the next filling.
                self.bits |= word >> self.left;
                self.at += ((63 - self.left) / 8) as usize;
                self.left |= 56;
                return;
            }
        }
        while self.left <= 56 {
            let Some(byte) = self.coded_byte() else { return };
            self.bits |= u64::from(byte) << (56 - self.left);
            self.left += 8;
        }
    }

    /// The next byte of bits; none at a marker, which is kept.
    fn coded_byte(&mut self) -> Option<u8> {
        let Ok(first) = self.byte() else { return self.over() };
        if first != 0xff {
            return Some(first);
        }
        let mut code = 0xff;
        while code == 0xff {
            let Ok(next) = self.byte() else { return self.over() };
            code = next;
        }
        if code == 0 {
            return Some(0xff);
        }
        self.marker = code;
        None
    }

    fn over(&mut self) -> Option<u8> {
        (self.marker, self.is_over) = (END, true);
        None
    }

    /// The next `count` bits, at most 16, which stay.
    #[inline]
    pub(super) fn peek(&self, count: u32) -> usize {
        (self.bits >> 48) as usize >> (16 - count)
    }

    /// Takes `count` bits, at most 17.
    #[inline]
    pub(super) fn skip(&mut self, count: u32) {
        self.bits <<= count;
        self.left -= count as i32;
    }

    /// Takes one bit.
    pub(super) fn bit(&mut self) -> bool {
        self.fill();
        let bit = self.peek(1) != 0;
        self.skip(1);
        bit
    }

    /// Takes `count` bits, at most 15.
    #[inline]
    pub(super) fn take(&mut self, count: u32) -> i32 {
        let value = self.peek(count) as i32;
        self.skip(count);
        value
    }

    /// Takes a value of `size` bits, at most 15, the smaller half of which stands for negative ones (figure F.12).
    #[inline]
    pub(super) fn signed(&mut self, size: u32) -> i32 {
        if size == 0 {
            return 0;
        }
        let value = self.take(size);
        if value < 1 << (size - 1) { value - (1 << size) + 1 } else { value }
    }
}

/// Whether a byte of `word` is 0xff.
fn has_ff(word: u64) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let flipped = !word;
    flipped.wrapping_sub(LOW) & word & (LOW << 7) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_in_order_over_stuffed_bytes_and_end_in_zeros() {
        let bits: Vec<u8> = (1..200).chain([0xfe, 0xff, 0x12]).collect();
        let mut file = vec![0xff, 0xd8];
        for byte in &bits {
            file.push(*byte);
            if *byte == 0xff {
                file.push(0);
            }
        }
        file.extend([0xff, END, 7]);
        for size in [1, 3, 7, 11, 15] {
            let mut stream = Stream::new(&file).unwrap();
            let bit = |at: usize| bits.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
            for first in (0..bits.len() * 8).step_by(size) {
                stream.fill();
                let expect = (first..first + size).fold(0, |sum, at| sum << 1 | i32::from(bit(at)));
                assert_eq!(stream.take(size as u32), expect, "{size} at {first}");
            }
            assert_eq!(stream.is_overdrawn(), !(bits.len() * 8).is_multiple_of(size));
            stream.fill();
            assert_eq!(stream.take(15), 0);
            assert!(stream.is_overdrawn() && !stream.is_over());
            assert_eq!(stream.next_marker(), Ok(END));
            assert_eq!(stream.next_marker(), Err(JpegError::Ends));
        }
    }

    #[test]
    fn a_word_with_a_byte_of_ones_is_known() {
        for at in 0..8 {
            assert!(has_ff(0xff << (8 * at)) && has_ff(0x0100_00fe_0080_7f00 | 0xff << (8 * at)));
        }
        assert!(!has_ff(0xfefe_0100_807f_00fe) && !has_ff(0) && !has_ff(0x7f80_7f80_7f80_7f80));
    }

    #[test]
    fn values_have_their_signs() {
        let mut stream = Stream::new(&[0xff, 0xd8, 0b0001_1110, 0b1000_0000, 0, 0, 0]).unwrap();
        stream.fill();
        assert_eq!([stream.signed(0), stream.signed(3), stream.signed(4)], [0, -7, 15]);
        assert_eq!([stream.signed(1), stream.signed(2)], [-1, 2]);
    }
}
