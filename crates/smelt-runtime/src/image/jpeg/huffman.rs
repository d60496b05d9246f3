//! Decodes the variable-length codes of JPEG files (ISO/IEC 10918-1, annexes C and F).

use super::JpegError;
use super::stream::Stream;

/// Bits that are looked up at once.  Most codes are shorter.
const LOOKED_UP: u32 = 10;

/// How many codes there are of each length from one bit on, and what they stand for in order.
#[derive(Clone)]
pub(super) struct Listing {
    lengths: [u8; 16],
    symbols: Vec<u8>,
}

impl Listing {
    /// The listing that `segment` begins with, and what is behind it.
    pub(super) fn read(segment: &[u8]) -> Result<(Self, &[u8]), JpegError> {
        const BAD: JpegError = JpegError::Damaged("a list of its codes is wrong");
        let (lengths, rest) = segment.split_first_chunk().ok_or(BAD)?;
        let count = lengths.iter().map(|count| usize::from(*count)).sum();
        let (symbols, rest) = rest.split_at_checked(count).ok_or(BAD)?;
        if count > 256 {
            return Err(BAD);
        }
        Ok((Self { lengths: *lengths, symbols: symbols.to_vec() }, rest))
    }

    /// The listings of brightness and of colours that files without any mean (annex K.3); first coefficients, then the
    /// others.  Frames of motion JPEG have none.
    pub(super) fn usual(is_first: bool, is_colour: bool) -> Self {
        let segment: &[u8] = match (is_first, is_colour) {
            (true, false) => b"\0\x01\x05\x01\x01\x01\x01\x01\x01\0\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b",
            (true, true) => b"\0\x03\x01\x01\x01\x01\x01\x01\x01\x01\x01\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b",
            (false, false) => &usual::BRIGHTNESS,
            (false, true) => &usual::COLOURS,
        };
        Self::read(segment).expect("the usual listings are whole").0
    }
}

/// A listing ready to decode with.
pub(super) struct Codes {
    /// For each beginning of a code its length and symbol; no length where the code is longer.
    short: [(u8, u8); 1 << LOOKED_UP],
    /// For each beginning that holds a short code and all of its short value: the value, the zeros before it and the bits
    /// of both; else no bits.
    whole: [(i8, u8, u8); 1 << LOOKED_UP],
    /// For each length what 16 bits are below that begin with a code of it or a shorter one.
    below: [u32; 17],
    /// What is to be added to a code of a length for the place of its symbol.
    offset: [i32; 17],
    symbols: [u8; 256],
}

impl Codes {
    /// The codes of a listing.
    ///
    /// # Errors
    /// [`JpegError`] if there are more codes than bits can tell apart.
    pub(super) fn new(listing: &Listing) -> Result<Box<Self>, JpegError> {
        let mut codes = Box::new(Self {
            short: [(0, 0); 1 << LOOKED_UP],
            whole: [(0, 0, 0); 1 << LOOKED_UP],
            below: [0; 17],
            offset: [0; 17],
            symbols: [0; 256],
        });
        codes.symbols[..listing.symbols.len()].copy_from_slice(&listing.symbols);
        let (mut code, mut place) = (0_u32, 0_usize);
        for length in 1..=16_u32 {
            let count = usize::from(listing.lengths[length as usize - 1]);
            codes.offset[length as usize] = place as i32 - code as i32;
            for symbol in &listing.symbols[place..place + count] {
                if length <= LOOKED_UP {
                    let (first, many) = (code << (LOOKED_UP - length), 1 << (LOOKED_UP - length));
                    let short = codes.short.iter_mut().skip(first as usize).take(many);
                    short.for_each(|entry| *entry = (length as u8, *symbol));
                }
                code += 1;
            }
            place += count;
            if count > 0 {
                // None consists of ones alone.
                if code >= 1 << length {
                    return Err(JpegError::Damaged("a list of its codes is too long"));
                }
                codes.below[length as usize] = code << (16 - length);
            }
            code <<= 1;
        }
        codes.join_values();
        Ok(codes)
    }

    /// The codes of first coefficients, whose symbols are lengths of differences.
    ///
    /// # Errors
    /// [`JpegError`] as [`Self::new`], and if a length is more than there is.
    pub(super) fn of_firsts(listing: &Listing) -> Result<Box<Self>, JpegError> {
        if listing.symbols.iter().any(|size| *size > 15) {
            return Err(JpegError::Damaged("a list of its codes names a length that there is not"));
        }
        Self::new(listing)
    }

    fn join_values(&mut self) {
        for (bits, entry) in self.whole.iter_mut().enumerate() {
            let (length, symbol) = self.short[bits];
            let (zeros, size) = (symbol >> 4, u32::from(symbol & 15));
            let all = u32::from(length) + size;
            if length == 0 || size == 0 || all > LOOKED_UP {
                continue;
            }
            let value = (bits >> (LOOKED_UP - all)) as i32 & ((1 << size) - 1);
            let value = if value < 1 << (size - 1) { value - (1 << size) + 1 } else { value };
            if let Ok(value) = i8::try_from(value) {
                *entry = (value, zeros, all as u8);
            }
        }
    }

    /// Takes a value with the zeros before it, if both are short.  The stream is filled.
    #[inline]
    pub(super) fn short_value(&self, stream: &mut Stream<'_>) -> Option<(i16, usize)> {
        let (value, zeros, bits) = self.whole[stream.peek(LOOKED_UP)];
        stream.skip(u32::from(bits));
        (bits != 0).then_some((i16::from(value), usize::from(zeros)))
    }

    /// Takes the next symbol; zero for what is no code.  The stream is filled.
    #[inline]
    pub(super) fn symbol(&self, stream: &mut Stream<'_>) -> u8 {
        let (length, symbol) = self.short[stream.peek(LOOKED_UP)];
        if length == 0 {
            return self.long_symbol(stream);
        }
        stream.skip(u32::from(length));
        symbol
    }

    fn long_symbol(&self, stream: &mut Stream<'_>) -> u8 {
        let bits = stream.peek(16);
        let fits = |length: &u32| (bits as u32) < self.below[*length as usize];
        // What is no code is as long as none is.
        let length = (LOOKED_UP + 1..=16).find(fits).unwrap_or(17);
        stream.skip(length);
        if length > 16 {
            return 0;
        }
        let place = (bits >> (16 - length)) as i32 + self.offset[length as usize];
        self.symbols[place as usize & 255]
    }
}

/// Listings of the coefficients behind the first, as their segments hold them.
mod usual {
    pub(super) const BRIGHTNESS: [u8; 178] = [
        0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d, // Counts, then symbols.
        0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61,
        0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52,
        0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25,
        0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45,
        0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64,
        0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83,
        0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
        0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6,
        0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3,
        0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8,
        0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
    ];
    pub(super) const COLOURS: [u8; 178] = [
        0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77, // Counts, then symbols.
        0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61,
        0x71, 0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33,
        0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18,
        0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44,
        0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63,
        0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a,
        0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97,
        0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4,
        0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca,
        0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7,
        0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(counts: &[(usize, u8)], symbols: &[u8]) -> Listing {
        let mut lengths = [0; 16];
        counts.iter().for_each(|(length, count)| lengths[length - 1] = *count);
        Listing { lengths, symbols: symbols.to_vec() }
    }

    #[test]
    fn short_and_long_codes_are_told_apart() {
        // Codes 0, 10, and with 12 bits 110000000000 and 110000000001.
        let listing = listing(&[(1, 1), (2, 1), (12, 2)], &[7, 0x21, 9, 8]);
        let codes = Codes::new(&listing).unwrap();
        // The codes of 7, 8, 9, 7, 0x21 and then ones.
        let file = [0xff, 0xd8, 0x60, 0x0e, 0x00, 0x2f, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0xd9];
        let mut stream = Stream::new(&file).unwrap();
        let mut symbols = Vec::new();
        for _ in 0..5 {
            stream.fill();
            symbols.push(codes.symbol(&mut stream));
        }
        assert_eq!(symbols, [7, 8, 9, 7, 0x21]);
        stream.fill();
        assert_eq!(codes.symbol(&mut stream), 0, "all ones are no code");
    }

    #[test]
    fn a_list_with_too_many_codes_is_refused() {
        assert!(Codes::new(&listing(&[(1, 1), (2, 1)], &[0, 1])).is_ok());
        assert!(Codes::new(&listing(&[(1, 2)], &[0, 1])).is_err());
        assert!(Codes::new(&listing(&[(2, 4)], &[0, 1, 2, 3])).is_err());
        assert!(Codes::of_firsts(&listing(&[(4, 2)], &[15, 16])).is_err());
        assert!(Listing::read(&[2; 20]).is_err());
    }

    #[test]
    fn the_usual_lists_are_whole() {
        for (is_first, is_colour) in [(true, true), (true, false), (false, true), (false, false)] {
            let listing = Listing::usual(is_first, is_colour);
            let mut sorted = listing.symbols.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), if is_first { 12 } else { 162 });
            Codes::new(&listing).unwrap();
        }
    }
}
