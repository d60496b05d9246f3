//! Says which tokens may come next.
//!
//! A mask is a bit for each token, borrowed from whoever keeps it.  Knows nothing of why.

/// A bit for each token, in words of 32, the first token lowest: set where the token may come next.
/// Tokens beyond its end may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask<'a> {
    words: &'a [u32],
}

impl<'a> Mask<'a> {
    /// A mask of these words.
    pub fn new(words: &'a [u32]) -> Self {
        Self { words }
    }

    /// The words it is made of.
    pub fn words(self) -> &'a [u32] {
        self.words
    }

    /// Whether `token` may come next.
    pub fn allows(self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The tokens that may come next, smallest first.
    pub fn tokens(self) -> impl Iterator<Item = u32> {
        (0u32..).step_by(32).zip(self.words).flat_map(|(first, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let place = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(first + place)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens() {
        let words = [1 | 1 << 31, 0, 1 << 3];
        let mask = Mask::new(&words);
        assert_eq!(mask.tokens().collect::<Vec<_>>(), [0, 31, 67]);
        let allowed: Vec<u32> = (0..200).filter(|token| mask.allows(*token)).collect();
        assert_eq!(allowed, [0, 31, 67]);
    }
}
