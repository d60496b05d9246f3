//! Ends a text at strings that must not be said, also where they are split over pieces.
//!
//! Knows nothing of tokens.

/// Most stop strings of an answer.  OpenAI's API takes four; each is looked for at every character.
pub const STOP_STRINGS_MAX: usize = 16;

/// The longest stop string, in bytes: so much text may be held back.
pub const STOP_BYTES_MAX: usize = 256;

/// Stop strings that cannot be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// One is empty.
    #[error("a stop string must not be empty")]
    Empty,
    /// One is too long.
    #[error("a stop string has {0} bytes, more than {STOP_BYTES_MAX}")]
    TooLong(usize),
    /// There are too many.
    #[error("{0} stop strings are more than {STOP_STRINGS_MAX}")]
    TooMany(usize),
}

/// Whether `strings` can be looked for.
///
/// # Errors
/// [`StopError`] saying which rule they break.
pub fn check(strings: &[String]) -> Result<(), StopError> {
    if strings.len() > STOP_STRINGS_MAX {
        return Err(StopError::TooMany(strings.len()));
    }
    for string in strings {
        match string.len() {
            0 => return Err(StopError::Empty),
            bytes if bytes > STOP_BYTES_MAX => return Err(StopError::TooLong(bytes)),
            _ => {}
        }
    }
    Ok(())
}

/// A growing text that ends before the first stop string in it.
///
/// What ends first counts, and of those that end together the longest.  How the text is cut into
/// pieces changes nothing.
#[derive(Clone, Debug)]
pub struct Stop {
    strings: Vec<String>,
    /// The end of the text so far, which may yet be the beginning of a stop string.
    held: String,
    /// Which string was met, by its place among them.
    met: Option<usize>,
}

impl Stop {
    /// Starts with no text.
    ///
    /// # Errors
    /// [`StopError`] if the strings cannot be looked for.
    pub fn new(strings: &[String]) -> Result<Self, StopError> {
        check(strings)?;
        Ok(Self { strings: strings.to_vec(), held: String::new(), met: None })
    }

    /// Which stop string was met, by its place among them.  Nothing is given out after it.
    pub fn met(&self) -> Option<usize> {
        self.met
    }

    /// Takes more text; returns what can no longer be part of a stop string.
    pub fn push(&mut self, piece: &str) -> String {
        if self.met.is_some() {
            return String::new();
        }
        let seen = self.held.len();
        self.held += piece;
        if let Some((end, met)) = self.end(seen) {
            self.met = Some(met);
            self.held.truncate(end);
            return std::mem::take(&mut self.held);
        }
        let kept = self.held.split_off(self.settled());
        std::mem::replace(&mut self.held, kept)
    }

    /// The text that was held back, as no more comes; then starts anew.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the text ends if a stop string ends behind its first `seen` bytes, and which one.
    fn end(&self, seen: usize) -> Option<(usize, usize)> {
        let ends = (seen + 1..=self.held.len()).filter(|end| self.held.is_char_boundary(*end));
        ends.map(|end| &self.held[..end]).find_map(|text| {
            let strings = self.strings.iter().enumerate();
            let rest = strings.filter_map(|(at, string)| {
                text.strip_suffix(&string[..]).map(|rest| (rest.len(), at))
            });
            rest.min()
        })
    }

    /// How many bytes of the text cannot be part of a stop string that is still to come.
    fn settled(&self) -> usize {
        let starts = (0..self.held.len()).filter(|start| self.held.is_char_boundary(*start));
        let mut starts = starts.map(|start| (start, &self.held[start..]));
        starts
            .find(|(_, rest)| self.strings.iter().any(|string| string.starts_with(rest)))
            .map_or(self.held.len(), |(start, _)| start)
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|string| (*string).to_owned()).collect()
    }

    /// What `text` becomes in pieces of so many characters, and whether it was stopped.
    fn stopped(stops: &[String], text: &str, chars: usize) -> (String, bool) {
        let mut stop = Stop::new(stops).unwrap();
        let mut given = String::new();
        let letters: Vec<char> = text.chars().collect();
        for piece in letters.chunks(chars) {
            given += &stop.push(&piece.iter().collect::<String>());
        }
        let is_met = stop.met().is_some();
        (given + &stop.finish(), is_met)
    }

    #[track_caller]
    fn check_text(stops: &[&str], text: &str, expect: &str, is_met: bool) {
        let stops = strings(stops);
        for chars in 1..=text.chars().count().max(1) {
            let found = stopped(&stops, text, chars);
            assert_eq!(found, (expect.to_owned(), is_met), "{text:?} in pieces of {chars}");
        }
    }

    #[test]
    fn a_text_ends_before_its_stop_string() {
        check_text(&[], "all of it", "all of it", false);
        check_text(&["\n\n"], "one\ntwo\n\nthree", "one\ntwo", true);
        check_text(&["END"], "the ENEND", "the EN", true);
        check_text(&["END"], "the EN", "the EN", false);
        check_text(&["aab"], "aaaab", "aa", true);
        check_text(&["x"], "xy", "", true);
    }

    #[test]
    fn it_is_known_which_string_was_met() {
        for (text, expect) in [("a b", Some(0)), ("a c", Some(3)), ("ac", Some(2)), ("a", None)] {
            let mut stop = Stop::new(&strings(&["b", "x", "c", " c"])).unwrap();
            stop.push(text);
            assert_eq!(stop.met(), expect, "{text}");
        }
    }

    #[test]
    fn what_ends_first_counts_then_what_is_longest() {
        check_text(&["abc", "b"], "abc", "a", true);
        check_text(&["bc", "abc", "c"], "1abc", "1", true);
    }

    #[test]
    fn code_points_stay_whole() {
        check_text(&["日本"], "é日é日本", "é日é", true);
        check_text(&["é"], "日😀é!", "日😀", true);
    }

    #[test]
    fn only_what_may_become_a_stop_string_is_held_back() {
        let stops = strings(&["</s>", "stop"]);
        let mut stop = Stop::new(&stops).unwrap();
        assert_eq!(stop.push("a <"), "a ");
        assert_eq!(stop.push("/"), "");
        assert_eq!(stop.push("s"), "");
        assert_eq!(stop.push("t"), "</");
        assert_eq!(stop.push("o"), "");
        assert_eq!(stop.push("ne"), "stone");
        assert_eq!(stop.push("</s> b"), "");
        assert_eq!(
            (stop.met().is_some(), stop.push("c"), stop.finish()),
            (true, String::new(), String::new())
        );
    }

    /// Random texts of three letters: the same as looking for the first end in the whole text.
    #[test]
    fn random_texts_end_where_a_search_of_the_whole_does() {
        let mut random = Random::new(5);
        let mut met = 0;
        for _ in 0..2_000 {
            let mut word = |length: usize| -> String {
                (0..=random.below(length)).map(|_| random.pick(&['a', 'b', 'é'])).collect()
            };
            let (text, stops) = (word(30), [word(5), word(5)]);
            let found = stops.iter().filter_map(|s| text.find(&s[..]).map(|at| (at + s.len(), at)));
            let expect = found.min().map_or(&text[..], |(_, at)| &text[..at]);
            met += usize::from(expect.len() < text.len());
            for chars in [1, 2, 3, 40] {
                assert_eq!(stopped(&stops, &text, chars).0, expect, "{text} {stops:?}");
            }
        }
        assert!(met > 200 && met < 1_990, "both ends occur: {met}");
    }

    #[test]
    fn strings_that_cannot_be_looked_for_are_refused() {
        assert_eq!(check(&strings(&["a", ""])), Err(StopError::Empty));
        assert_eq!(check(&["x".repeat(257)]), Err(StopError::TooLong(257)));
        assert_eq!(check(&vec!["x".to_owned(); 17]), Err(StopError::TooMany(17)));
        assert_eq!(check(&vec!["x".repeat(256); 16]), Ok(()));
    }
}
