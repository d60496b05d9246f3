//! Writes a film of one stream: Matroska (RFC 9559), its segment and its one cluster open to the end.

use super::units::Codec;

/// The last time in milliseconds that a block of the one cluster can have.
pub(super) const TIME_MS_MAX: u64 = i16::MAX as u64;

/// What a block takes besides its picture.
pub(super) const BLOCK_BYTES: usize = 13;

/// A film that grows.
#[derive(Debug)]
pub(super) struct Matroska(Vec<u8>);

impl Matroska {
    /// A film without pictures; `private` is what a decoder is told before the first.
    pub(super) fn new(codec: Codec, private: &[u8]) -> Self {
        let name = match codec {
            Codec::H264 => "V_MPEG4/ISO/AVC",
            Codec::H265 => "V_MPEGH/ISO/HEVC",
        };
        let head = [
            // Versions of EBML and of the document, and the longest names and sizes.
            element(&[0x42, 0x86], &[1]),
            element(&[0x42, 0xf7], &[1]),
            element(&[0x42, 0xf2], &[4]),
            element(&[0x42, 0xf3], &[8]),
            element(&[0x42, 0x82], b"matroska"),
            element(&[0x42, 0x87], &[4]),
            element(&[0x42, 0x85], &[2]),
        ];
        let info = [
            // Times are in milliseconds: a million nanoseconds.
            element(&[0x2a, 0xd7, 0xb1], &1_000_000_u32.to_be_bytes()),
            element(&[0x4d, 0x80], b"smelt"),
            element(&[0x57, 0x41], b"smelt"),
        ];
        let track = [
            // The number, and one that is no other's; pictures; no lacing.
            element(&[0xd7], &[1]),
            element(&[0x73, 0xc5], &[1]),
            element(&[0x83], &[1]),
            element(&[0x9c], &[0]),
            element(&[0x86], name.as_bytes()),
            element(&[0x63, 0xa2], private),
            // Sizes are those of the parameter sets.
            element(&[0xe0], &[]),
        ];
        let bytes = [
            element(&[0x1a, 0x45, 0xdf, 0xa3], &head.concat()),
            open(&[0x18, 0x53, 0x80, 0x67]),
            element(&[0x15, 0x49, 0xa9, 0x66], &info.concat()),
            element(&[0x16, 0x54, 0xae, 0x6b], &element(&[0xae], &track.concat())),
            open(&[0x1f, 0x43, 0xb6, 0x75]),
            // The time from which those of its blocks count.
            element(&[0xe7], &[0]),
        ];
        Self(bytes.concat())
    }

    /// Adds a picture at most [`TIME_MS_MAX`] behind the first; pictures stand in the order in which they are decoded.
    pub(super) fn add(&mut self, time_ms: u64, is_key: bool, picture: &[u8]) {
        let time = time_ms.min(TIME_MS_MAX) as u16;
        let flags = if is_key { 0x80 } else { 0 };
        self.0.push(0xa3);
        self.0.extend(sized(4 + picture.len()));
        // The number of the track is 1.
        self.0.push(0x81);
        self.0.extend(time.to_be_bytes());
        self.0.push(flags);
        self.0.extend_from_slice(picture);
    }

    /// Its bytes so far.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

fn element(name: &[u8], content: &[u8]) -> Vec<u8> {
    [name, &sized(content.len()), content].concat()
}

/// An element that goes on to the end of the file.
fn open(name: &[u8]) -> Vec<u8> {
    [name, &[0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat()
}

/// A length in eight bytes, of which the first bit that is set tells so.
fn sized(length: usize) -> [u8; 8] {
    (length as u64 | 1 << 56).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and contents of elements, those within others behind them; what is open ends with the bytes.
    fn elements(mut bytes: &[u8], found: &mut Vec<(u32, Vec<u8>)>) {
        const PARENTS: [u32; 7] =
            [0x1a45_dfa3, 0x1853_8067, 0x1549_a966, 0x1654_ae6b, 0xae, 0x1f43_b675, 0xe0];
        while let Some(first) = bytes.first() {
            let (name, rest) = bytes.split_at(first.leading_zeros() as usize + 1);
            let name = name.iter().fold(0, |name, byte| name << 8 | u32::from(*byte));
            let (length, rest) = rest.split_at(8);
            let length = u64::from_be_bytes(length.try_into().unwrap());
            assert_eq!(length >> 56, 1);
            let is_open = length == u64::MAX >> 7;
            let length = if is_open { rest.len() } else { (length ^ 1 << 56) as usize };
            let (content, rest) = rest.split_at(length);
            found.push((name, content.to_vec()));
            if PARENTS.contains(&name) {
                elements(content, found);
            }
            bytes = rest;
        }
    }

    #[test]
    fn a_film_is_what_the_standard_says() {
        let mut film = Matroska::new(Codec::H265, b"sets");
        film.add(0, true, b"one");
        film.add(33, false, &[7; 300]);
        let mut found = Vec::new();
        elements(&film.bytes(), &mut found);
        let of = |name: u32| {
            let named = found.iter().filter(|(known, _)| *known == name);
            named.map(|(_, content)| &content[..]).collect::<Vec<_>>()
        };
        assert_eq!(of(0x4282), [b"matroska"]);
        assert_eq!(of(0x002a_d7b1), [1_000_000_u32.to_be_bytes()]);
        assert_eq!((of(0x86), of(0x63a2)), (vec![&b"V_MPEGH/ISO/HEVC"[..]], vec![&b"sets"[..]]));
        let second = [&[0x81, 0, 33, 0][..], &[7; 300]].concat();
        assert_eq!(of(0xa3), [&b"\x81\0\0\x80one"[..], &second]);
    }
}
