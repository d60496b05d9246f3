//! Names things by what they hold, so surely that nobody can make another thing of the same name.
//!
//! What is kept for later requests is found by such names: SHA-256, of which 128 bits are kept.  Numbers of 64 bits, or
//! hashes whose keys everybody knows, would let who searches for an hour be answered about somebody else's picture.

use sha2::{Digest as _, Sha256};

pub use crate::prefix::Identity;

/// A name as it is made; each part is told from the next.
#[derive(Clone, Debug)]
pub struct Naming(Sha256);

impl Naming {
    /// Begins a name of this kind of thing: those of other kinds are others, whatever they hold.
    pub fn of(kind: &str) -> Self {
        Self(Sha256::new()).bytes(kind.as_bytes())
    }

    /// Goes on with bytes, of any number.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self.number(bytes.len() as u64).0;
        hash.update(bytes);
        Self(hash)
    }

    /// Goes on with a number.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.0.update(number.to_le_bytes());
        self
    }

    /// Goes on with another name.
    #[must_use]
    pub fn name(self, [low, high]: Identity) -> Self {
        self.number(low).number(high)
    }

    /// The name.
    pub fn end(self) -> Identity {
        let digest = self.0.finalize();
        [0, 8].map(|at| digest[at..at + 8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }
}

/// What a thing is called among those who may know of it: under another name than among strangers, to whom nothing
/// may tell that it was there before.
pub fn within(part: Option<Identity>, thing: Identity) -> Identity {
    part.map_or(thing, |part| Naming::of("within").name(part).name(thing).end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_kinds_are_told_apart() {
        let of = |parts: &[&str]| {
            parts.iter().fold(Naming::of("text"), |name, part| name.bytes(part.as_bytes())).end()
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["ab"]));
        assert_ne!(of(&["a", ""]), of(&["a"]));
        assert_ne!(Naming::of("text").number(1).end(), Naming::of("picture").number(1).end());
        let thing = of(&["a"]);
        let [a, b] = ["a", "b"].map(|part| within(Some(of(&[part])), thing));
        assert!(a != b && a != thing && within(None, thing) == thing);
        assert!(of(&[]).iter().all(|half| *half != 0));
    }
}
