//! Finds which tokens an answer's sections consist of, and tells how likely they were.
//!
//! Tokens come before the text that they make is certain, and some make marks that no section has.  So their text is cut into
//! sections once more, and a token is of the section whose text it has a part in.

use smelt_runtime::dialect::{CALL_TAGS, Reader, THINK_TAGS};
use smelt_runtime::service::TokenInfo;

use crate::answer::Words;
use crate::answer::logprobs::ChatToken;
use crate::protocols::sections::{SectionEvent, Sections};

/// The tokens of each section.
pub(super) struct Likely {
    words: Words,
    sections: Sections,
    /// The end of a text whose last character is not whole.
    bytes: Vec<u8>,
    /// What was read and is of no section yet, and its tokens, each with where its text begins and ends.
    text: String,
    pending: Vec<(ChatToken, usize, usize)>,
    /// Tokens by section, and how many of them were told in pieces.
    told: Vec<(Vec<ChatToken>, usize)>,
}

impl Likely {
    pub(super) fn new(words: Words, reader: Reader) -> Self {
        let (sections, bytes, text) = (Sections::new(reader), Vec::new(), String::new());
        Self { words, sections, bytes, text, pending: Vec::new(), told: Vec::new() }
    }

    /// Takes more of the answer's tokens.
    pub(super) fn take(&mut self, tokens: &[TokenInfo]) {
        for said in tokens {
            let Some(token) = ChatToken::of(said, &self.words) else { continue };
            self.bytes.extend_from_slice(token.bytes());
            let more = whole(&mut self.bytes);
            let begin = self.text.len();
            self.pending.push((token, begin, begin + more.len()));
            self.read(&more);
        }
    }

    /// Takes more text, of tokens that are pending.
    fn read(&mut self, more: &str) {
        self.text += more;
        let steps = self.sections.push(more);
        self.part(steps);
    }

    /// Takes the answer's end.
    pub(super) fn finish(&mut self) {
        // A character that was never whole is told as one that stands for it.
        let bytes = std::mem::take(&mut self.bytes);
        self.read(&String::from_utf8_lossy(&bytes));
        let steps = self.sections.finish();
        self.part(steps);
    }

    /// All tokens of a section.
    pub(super) fn all(&self, at: usize) -> Vec<ChatToken> {
        self.told.get(at).map(|(tokens, _)| tokens.clone()).unwrap_or_default()
    }

    /// Whether all of them were told in pieces.
    pub(super) fn is_told(&self, at: usize) -> bool {
        self.told.get(at).is_none_or(|(tokens, told)| *told == tokens.len())
    }

    /// Those that were not told in pieces yet.
    pub(super) fn next(&mut self, at: usize) -> Vec<ChatToken> {
        let Some((tokens, told)) = self.told.get_mut(at) else { return Vec::new() };
        let next = tokens[*told..].to_vec();
        *told = tokens.len();
        next
    }

    /// Gives the tokens whose text went to sections to those.
    fn part(&mut self, steps: Vec<(usize, SectionEvent)>) {
        for (at, step) in steps {
            let SectionEvent::GoesOn(more) = step else { continue };
            // Arguments of calls may be written otherwise than they were said.
            let begin = place_of(&more, &self.text);
            let end = (begin + more.len()).min(self.text.len());
            self.told.resize_with(self.told.len().max(at + 1), Default::default);
            let own = &mut self.told[at].0;
            self.pending.retain_mut(|(token, from, to)| {
                if *from >= end && *to > end {
                    (*from, *to) = (*from - end, *to - end);
                    return true;
                }
                if *to > begin || (*from == *to && *to == begin) {
                    own.push(token.clone());
                }
                false
            });
            self.text.drain(..end);
        }
    }
}

/// Where a section's text begins in what was read: what is held back may be the same words once more, and the tags of
/// other parts are none of it.
fn place_of(more: &str, text: &str) -> usize {
    let tags = || {
        let tags = THINK_TAGS.into_iter().chain(CALL_TAGS);
        tags.flat_map(|tag| text.match_indices(tag)).map(|(at, tag)| at..at + tag.len())
    };
    let is_apart = |at: &usize| tags().all(|tag| *at >= tag.end || at + more.len() <= tag.start);
    let mut places = text.match_indices(more).map(|(at, _)| at);
    places.find(is_apart).or_else(|| text.rfind(more)).unwrap_or(0)
}

/// The whole characters at the beginning, which are taken.
fn whole(bytes: &mut Vec<u8>) -> String {
    let len = match std::str::from_utf8(bytes) {
        Ok(text) => text.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        // What never becomes a character is none.
        Err(_) => bytes.len(),
    };
    let text: Vec<u8> = bytes.drain(..len).collect();
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smelt_runtime::dialect::{Calls, Dialect};
    use smelt_runtime::sampling::Logprobs;

    use super::*;

    #[test]
    fn words_that_come_twice_are_told_in_their_order() {
        for (more, text, expect) in [
            ("<", "<<", 0),
            ("h", "<think>h", 7),
            ("a", "a</think>b", 0),
            ("b", "a</think>b", 9),
            ("<think>", "<think>", 0),
            ("x", "y", 0),
        ] {
            assert_eq!(place_of(more, text), expect, "{more} in {text}");
        }
    }

    #[test]
    fn tokens_are_of_the_section_that_their_text_is_in() {
        let words: [&[u8]; 9] =
            [b"<think>", b"hm", b"</think>", b"\n\n", b"I ", b"l\xc3", b"\xb6ok<", b"b", b"."];
        let dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };
        let words: Words = Arc::new(move |token| words[token as usize].to_vec());
        let mut likely = Likely::new(Arc::clone(&words), Reader::new(dialect, false));
        let said = |token: u32| TokenInfo {
            token,
            logprobs: Some(Logprobs { chosen: -(token as f32), top: Vec::new() }),
        };
        let own = |tokens: &[u32]| -> Vec<ChatToken> {
            tokens.iter().filter_map(|token| ChatToken::of(&said(*token), &words)).collect()
        };
        likely.take(&(0..6).map(said).collect::<Vec<_>>());
        assert_eq!(likely.next(1), own(&[4, 5]));
        likely.take(&(6..9).map(said).collect::<Vec<_>>());
        likely.finish();
        assert_eq!(likely.next(1), own(&[6, 7, 8]));
        assert_eq!(likely.all(1), own(&[4, 5, 6, 7, 8]));
        assert_eq!(likely.all(0), own(&[1]));
        assert_eq!((likely.next(1), likely.all(2)), (vec![], vec![]));
    }
}
