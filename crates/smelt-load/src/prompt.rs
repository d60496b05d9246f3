//! Writes prompts of a length that only the server's tokenizer knows.
//!
//! Words are drawn anew for every request, so that no server can reuse what it read.  How many words make
//! so many tokens is found by asking.  Knows nothing of HTTP.

/// Common words; most are one token to most vocabularies.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "on", "are", "as", "with",
    "his", "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but",
    "not", "what", "all", "were", "we", "when", "your", "can", "said", "there", "use", "an",
    "each", "which", "she", "do", "how", "their", "if", "will", "up", "other", "about", "out",
    "many", "then", "them", "these", "so", "some", "her", "would", "make", "like", "him", "into",
    "time",
];

/// Words of the first two probes.
pub(crate) const PROBES: [usize; 2] = [8, 72];

/// A text of so many words; another for each `seed` from its first word on.
pub(crate) fn text(words: usize, seed: u64) -> String {
    let mut state = seed;
    let next = || WORDS[(mixed(&mut state) % WORDS.len() as u64) as usize];
    std::iter::repeat_with(next).take(words.max(1)).collect::<Vec<_>>().join(" ")
}

/// The next number of a sequence that `state` begins (SplitMix64).
pub(crate) fn mixed(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// How words become tokens: a line through two probes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    tokens_per_word: f64,
    /// Tokens of a prompt without words, those of the chat template.
    frame: f64,
}

impl Rate {
    /// From the tokens of prompts of [`PROBES`] words; as many tokens as words where a server does not
    /// count, or counts what cannot be.
    pub(crate) fn of(tokens: Option<[usize; 2]>) -> Self {
        let plain = Self { tokens_per_word: 1.0, frame: 0.0 };
        let Some([few, many]) = tokens.filter(|[few, many]| many > few) else { return plain };
        let tokens_per_word = (many - few) as f64 / (PROBES[1] - PROBES[0]) as f64;
        Self { tokens_per_word, frame: few as f64 - tokens_per_word * PROBES[0] as f64 }
    }

    /// The words of a prompt of so many tokens, its frame included.
    pub(crate) fn words(self, tokens: usize) -> usize {
        (((tokens as f64 - self.frame) / self.tokens_per_word).round().max(1.0)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_differ_from_their_first_words_on() {
        assert_eq!(text(3, 1), text(3, 1));
        assert_eq!(text(5, 2).split(' ').count(), 5);
        let begins: std::collections::HashSet<String> =
            (0..100).map(|seed| text(3, seed)).collect();
        assert!(begins.len() > 95);
    }

    #[test]
    fn words_follow_from_two_probes() {
        // Two tokens a word and a frame of 5.
        let rate = Rate::of(Some([21, 149]));
        assert_eq!((rate.words(25), rate.words(1025), rate.words(3)), (10, 510, 1));
        for untold in [None, Some([9, 9]), Some([9, 3])] {
            assert_eq!(Rate::of(untold).words(100), 100);
        }
    }
}
