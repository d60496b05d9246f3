//! Packs blobs for servers that take them packed (Zstandard), and unpacks what those send.
//!
//! Weights are noise and stay as they are; words, graphs and programs take half.  A digest is of what is unpacked, always.

/// The fastest: a line of 20 Mbit/s is slower by a hundred times.
const LEVEL: i32 = 1;
/// What of a blob is packed to see whether the rest is worth it.
const SAMPLE_BYTES: usize = 16 << 10;
/// A smaller one is less than what carries it.
const BYTES_MIN: usize = 512;

/// A blob's content, packed; nothing where that saves less than a tenth.
pub(crate) fn pack(content: &[u8]) -> Option<Vec<u8>> {
    let from = content.len().saturating_sub(SAMPLE_BYTES) / 2;
    let sample = &content[from..content.len().min(from + SAMPLE_BYTES)];
    let packed = |bytes: &[u8]| {
        let packed = zstd::bulk::compress(bytes, LEVEL).ok()?;
        (packed.len() <= bytes.len() / 10 * 9).then_some(packed)
    };
    (content.len() >= BYTES_MIN && packed(sample).is_some()).then(|| packed(content)).flatten()
}

/// What was packed, if it has so many bytes and no more: a bomb takes as much memory as what it was asked for.
pub(crate) fn unpack(packed: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let content = zstd::bulk::decompress(packed, bytes).ok()?;
    (content.len() == bytes).then_some(content)
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    fn noise(count: usize) -> Vec<u8> {
        let mut chance = Random::new(5);
        (0..count).map(|_| chance.below(256) as u8).collect()
    }

    #[test]
    fn words_are_packed_and_noise_is_not() {
        let words = b"smelt turns models into engines. ".repeat(3000);
        let packed = pack(&words).unwrap();
        assert!(packed.len() < words.len() / 10);
        assert_eq!(unpack(&packed, words.len()), Some(words.clone()));
        assert_eq!(pack(&noise(1 << 20)), None);
        assert_eq!((pack(b""), pack(&words[..500])), (None, None));
        // A file that begins as words and goes on as noise is looked at where most of it is.
        let mixed = [&words[..10_000], &noise(1 << 20)].concat();
        assert_eq!(pack(&mixed), None);
    }

    #[test]
    fn what_has_other_bytes_than_it_should_is_nothing() {
        let words = b"abc".repeat(1000);
        let packed = pack(&words).unwrap();
        assert_eq!(unpack(&packed, words.len() - 1), None);
        assert_eq!(unpack(&packed, words.len() + 1), None);
        assert_eq!(unpack(&packed[..packed.len() - 1], words.len()), None);
        assert_eq!((unpack(b"", 1), unpack(&noise(100), 100)), (None, None));
        // A gigabyte of zeros takes 32 KiB.
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], LEVEL).unwrap();
        assert_eq!(unpack(&bomb, 1 << 20), None);
    }

    /// By `zstd` 1.5.4 of Debian, of "smelt smelt smelt smelt\n" ten times.
    #[test]
    fn another_program_s_packing_is_read() {
        let packed = [
            0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x05, 0x02, 0x00, 0xc8, 0x73, 0x6d, 0x65, 0x6c,
            0x74, 0x20, 0x0a, 0x20, 0x0a, 0x20, 0x0a, 0x20, 0x0a, 0x20, 0x0a, 0x20, 0x0a, 0x20,
            0x0a, 0x20, 0x0a, 0x20, 0x0a, 0x20, 0x0a, 0x13, 0x00, 0x60, 0x0a, 0x10, 0x0e, 0x4c,
            0x06, 0x04, 0x01, 0xf3, 0x80, 0xc0, 0xc0, 0x14, 0x20, 0x1c, 0x98, 0x0c, 0x08, 0x02,
            0xe6, 0x01, 0x81, 0x81, 0x29, 0x40, 0x38, 0x30, 0x19, 0x10, 0x04, 0xcc, 0x03, 0x02,
            0xcb, 0x5c, 0xe0, 0xd2, 0xce, 0x1b, 0x19,
        ];
        assert_eq!(unpack(&packed, 240), Some(b"smelt smelt smelt smelt\n".repeat(10)));
    }
}
