//! Names content: a SHA-256 digest, written as 64 lower-case hex digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest of some content, or of a framed description of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The text is not 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a digest: expected 64 lower-case hex digits")]
pub struct NotADigest(pub String);

impl Digest {
    /// Takes the 32 bytes of a hash computed elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first 16 hex digits: enough for a person to tell two digests apart, and to notice
    /// damage in a short record.
    pub fn short(&self) -> String {
        self.hex()[..8].iter().flatten().map(|&digit| char::from(digit)).collect()
    }

    /// The digits in pairs.  Digests are written by the hundred thousand when a large plan is made,
    /// which the formatting of numbers is too slow for.
    fn hex(&self) -> [[u8; 2]; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0.map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.hex();
        f.write_str(str::from_utf8(hex.as_flattened()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let bad = || NotADigest(text.chars().take(80).collect());
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        if text.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let [high, low] = [pair[0], pair[1]].map(digit);
            *byte = (high.ok_or_else(bad)? << 4) + low.ok_or_else(bad)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_sha256() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(Digest::of(b"abc").short(), "ba7816bf8f01cfea");
        assert_eq!(format!("{:?}", Digest::of(b"abc")), "Digest(ba7816bf8f01cfea)");
    }

    #[test]
    fn hex_round_trips() {
        let digest = Digest::from_bytes(std::array::from_fn(|i| (i * 7) as u8));
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "00", &"A".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
