//! Finds places in text: byte offset to line and column, and the nearest known word.

use std::fmt;

/// A place in the pipeline file; both numbers start at 1, columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLocation {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A text with its line starts found once, so that a place costs no walk from the beginning.
pub struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// Finds the lines of `text`.
    pub fn of(text: &'a str) -> Self {
        let after =
            text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after).collect() }
    }

    /// How many bytes the text has.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The place of byte `offset`; an offset past the end is the end.
    pub fn place(&self, offset: usize) -> SourceLocation {
        let offset = offset.min(self.text.len());
        let line = self.starts.partition_point(|&start| start <= offset);
        let before = &self.text.as_bytes()[self.starts[line - 1]..offset];
        let is_char_start = |b: &&u8| (**b & 0xC0) != 0x80;
        SourceLocation { line, column: before.iter().filter(is_char_start).count() + 1 }
    }
}

/// The known word nearest to `word`, if it is near enough to be a slip of the finger.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    near(word, known).first().copied()
}

/// The known words that are near enough to `word` to be meant by it, the nearest first.
pub fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let distances = known.into_iter().map(|candidate| (edits(word, candidate), candidate));
    let is_near = |(distance, candidate): &(usize, &str)| *distance <= 1 + candidate.len() / 3;
    let mut near: Vec<(usize, &str)> = distances.filter(is_near).collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_from_one_in_characters() {
        let text = "ab\ncé x\n";
        let check = |offset, line, column| {
            assert_eq!(
                Lines::of(text).place(offset),
                SourceLocation { line, column },
                "offset {offset}"
            );
        };
        check(0, 1, 1);
        check(3, 2, 1);
        check(7, 2, 4);
        check(999, 3, 1);
    }

    #[test]
    fn slips_find_their_word() {
        let known = ["checkpoint", "dtype", "part"];
        assert_eq!(nearest("checkpiont", known), Some("checkpoint"));
        assert_eq!(nearest("dtyp", known), Some("dtype"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(near("parts", ["path", "part", "part", "dtype"]), ["part", "path"]);
    }
}
