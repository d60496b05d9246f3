//! Names the sides that build a pipeline: the host, which is strong, and the device, for which engines are.

use std::fmt;

/// Where a stage is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// A machine with memory and disk to spare.
    Host,
    /// The board that answers.
    Device,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];
    /// The words of [`Side::ALL`], as pipelines and flags use them.
    pub const WORDS: [&'static str; 2] = ["host", "device"];

    /// The side of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.name() == word)
    }

    /// The word of a side.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// The one that it is not.
    #[must_use]
    pub fn other(self) -> Self {
        Self::ALL[1 - self as usize]
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back() {
        for side in Side::ALL {
            assert_eq!(Side::parse(side.name()), Some(side));
            assert_eq!(side.other().other(), side);
        }
        assert_eq!(Side::parse("board"), None);
    }
}
