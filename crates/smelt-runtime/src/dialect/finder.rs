//! Finds a mark in a text that comes character by character.
//!
//! White space before a mark belongs to it.  Knows nothing of what marks mean.

/// What a character settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkMatch {
    /// This text is before any mark; it may be empty.
    Text(String),
    /// The mark is whole; the white space before it is dropped.
    Mark,
}

/// Looks for one mark, which begins with its only `<` and has no white space.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    mark: &'static str,
    /// White space, then the beginning of the mark.
    held: String,
}

impl Finder {
    pub(super) fn new(mark: &'static str) -> Self {
        Self { mark, held: String::new() }
    }

    pub(super) fn push(&mut self, c: char) -> MarkMatch {
        let begun = self.held.trim_start();
        let goes_on = match self.mark.strip_prefix(begun) {
            Some(rest) => rest.starts_with(c) || (begun.is_empty() && c.is_whitespace()),
            None => false,
        };
        if goes_on {
            self.held.push(c);
            if self.held.trim_start() != self.mark {
                return MarkMatch::Text(String::new());
            }
            self.held.clear();
            return MarkMatch::Mark;
        }
        let mut text = std::mem::take(&mut self.held);
        let may_begin = c.is_whitespace() || self.mark.starts_with(c);
        if may_begin { &mut self.held } else { &mut text }.push(c);
        MarkMatch::Text(text)
    }

    /// What was held back, as no more comes.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether nothing but white space is held back.
    pub(super) fn is_blank(&self) -> bool {
        self.held.trim_start().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[&str], held: &str) {
        let mut finder = Finder::new("<t>");
        let mut parts = vec![String::new()];
        for c in text.chars() {
            match finder.push(c) {
                MarkMatch::Text(text) => parts.last_mut().unwrap().push_str(&text),
                MarkMatch::Mark => parts.push(String::new()),
            }
        }
        assert_eq!(
            (parts, finder.finish()),
            (expect.iter().map(|&p| p.to_owned()).collect(), held.to_owned())
        );
    }

    #[test]
    fn marks_are_found_with_the_space_before_them() {
        check("a b \n<t> c", &["a b", " c"], "");
        check("<t><t>", &["", "", ""], "");
        check("a <<t>", &["a <", ""], "");
        check("1 < 2 <t", &["1 < 2"], " <t");
        check(" \t", &[""], " \t");
        check("< t> <x>", &["< t> <x>"], "");
    }
}
