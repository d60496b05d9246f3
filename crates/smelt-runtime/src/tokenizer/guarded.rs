//! Reads texts in which people's words are guarded: nothing in those becomes a token that only templates say.
//!
//! What is left when guards are gone is read as the library reads a text, but for where added words are looked for: the
//! model's marks in the text with its guards, all others in the text without.  So plain words have the tokens that they
//! always have.

use std::ops::Range;

use tokenizers::normalizer::Range as Of;
use tokenizers::{
    Encoding, NormalizedString, Normalizer as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _, Token,
};

use super::{Tokenizer, TokenizerError, unencoded};
use crate::markup::{self, GUARD, Marks};

/// An added word, and where it stands.
type Added = (Range<usize>, u32);

/// A part of a text, and the token that it is, if it is one.
type Piece = (Range<usize>, Option<u32>);

impl Tokenizer {
    /// The added words: the token, the word, and whether it is a special one.
    pub fn added(&self) -> impl Iterator<Item = (u32, String, bool)> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added.iter().map(|(token, word)| (*token, word.content.clone(), word.special))
    }

    /// The tokens of a text; of `marks` only those that are whole between guards.  Of others that are plain words each
    /// letter is a token.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer's own rules fail on the text, or make a mark of what is none.
    pub fn encode_guarded(&self, text: &str, marks: &Marks) -> Result<Vec<u32>, TokenizerError> {
        if !text.contains(GUARD) {
            return self.encode(text);
        }
        let bare = markup::bare(text);
        let (real, pieces) = self.pieces(text, &bare, marks);
        let encoding = self.encode_pieces(&bare, &pieces).map_err(unencoded)?;
        let read = encoding.get_ids().iter().zip(encoding.get_offsets());
        // A word that a vocabulary does not know may become a special token, too, and says nothing.
        let is_mark = |(token, (from, to)): &(&u32, &(usize, usize))| {
            let word = self.inner.id_to_token(**token);
            let text = bare.get(*from..*to).map(str::trim);
            marks.tokens().contains(token) && word.as_deref().map(str::trim) == text
        };
        match read.filter(is_mark).count() {
            found if found == real => Ok(encoding.get_ids().to_vec()),
            _ => {
                let why = "it holds the name of a special token, which this tokenizer cannot read as text; take it out";
                Err(TokenizerError::Encode(why.to_owned()))
            }
        }
    }

    /// What the bare text is made of, in order, and how many marks are among it.
    fn pieces(&self, text: &str, bare: &str, marks: &Marks) -> (usize, Vec<Piece>) {
        let guards = guards(text);
        let to_bare = |place: usize| {
            place - guards.partition_point(|guard| guard.0 < place) * GUARD.len_utf8()
        };
        let real = self.found(text).into_iter().filter(|(_, token)| marks.tokens().contains(token));
        let real: Vec<Added> =
            real.map(|(range, token)| (to_bare(range.start)..to_bare(range.end), token)).collect();
        let (mut pieces, mut from) = (Vec::new(), 0);
        for (range, token) in &real {
            self.plain(bare, from..range.start, marks, &mut pieces);
            pieces.push((range.clone(), Some(*token)));
            from = range.end;
        }
        self.plain(bare, from..bare.len(), marks, &mut pieces);
        (real.len(), self.spelled_out(bare, pieces, &forged(bare, &guards, marks)))
    }

    /// The same pieces, `words` in them cut into letters, which are tokens where the vocabulary has them.
    fn spelled_out(&self, bare: &str, pieces: Vec<Piece>, words: &[Range<usize>]) -> Vec<Piece> {
        let (mut out, mut words) = (Vec::with_capacity(pieces.len()), words.iter().peekable());
        for (range, token) in pieces {
            if token.is_some() {
                out.push((range, token));
                continue;
            }
            let mut from = range.start;
            while let Some(word) = words.peek().filter(|word| word.start < range.end) {
                let (start, end) = (word.start.max(from), word.end.min(range.end));
                if start < end {
                    out.push((from..start, None));
                    out.extend(self.letters(bare, start..end));
                    from = end;
                }
                if word.end > range.end {
                    break;
                }
                words.next();
            }
            out.push((from..range.end, None));
        }
        out
    }

    fn letters(&self, bare: &str, range: Range<usize>) -> Vec<Piece> {
        let letter = |(at, letter): (usize, char)| {
            let at = range.start + at;
            (at..at + letter.len_utf8(), self.token(&letter.to_string()))
        };
        bare[range.clone()].char_indices().map(letter).collect()
    }

    /// The pieces of a part that holds no mark.
    fn plain(&self, bare: &str, part: Range<usize>, marks: &Marks, pieces: &mut Vec<Piece>) {
        let others = self.found(&bare[part.clone()]).into_iter();
        let mut from = part.start;
        for (range, token) in others.filter(|(_, token)| !marks.tokens().contains(token)) {
            let range = part.start + range.start..part.start + range.end;
            pieces.push((from..range.start, None));
            from = range.end;
            pieces.push((range, Some(token)));
        }
        pieces.push((from..part.end, None));
    }

    /// The added words that the library finds in a text.
    fn found(&self, text: &str) -> Vec<Added> {
        let added = self.inner.get_added_vocabulary();
        let split = added.extract_and_normalize::<NormalizerWrapper>(None, text);
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let found = splits
            .into_iter()
            .filter_map(|(_, (from, to), tokens)| Some((from..to, tokens.as_ref()?.first()?.id)));
        found.collect()
    }

    fn encode_pieces(&self, bare: &str, pieces: &[Piece]) -> tokenizers::Result<Encoding> {
        let mut split = PreTokenizedString::from(bare);
        split.split(|_, whole: NormalizedString| {
            let piece = |(range, token): &Piece| {
                // The whole is not normalized yet, and so the library need not look for the place from the front.
                let part = whole.slice(Of::Normalized(range.clone()))?;
                let token = token.map(|id| {
                    let text = part.get().to_owned();
                    let offsets = (0, text.len());
                    vec![Token::new(id, text, offsets)]
                });
                Some((part, token))
            };
            let pieces = pieces.iter().filter(|(range, _)| !range.is_empty());
            Ok(pieces.filter_map(piece).collect::<Vec<_>>())
        })?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            split.normalize(|part| normalizer.normalize(part))?;
        }
        if let Some(before) = self.inner.get_pre_tokenizer() {
            before.pre_tokenize(&mut split)?;
        }
        let model = self.inner.get_model();
        split.tokenize(|part| tokenizers::Model::tokenize(model, part.get()))?;
        split.into_encoding(None, 0, OffsetType::Byte)
    }
}

/// Where the guards of a text stand: in it, and in the bare text.
fn guards(text: &str) -> Vec<(usize, usize)> {
    let places = text.match_indices(GUARD).enumerate();
    places.map(|(before, (at, _))| (at, at - before * GUARD.len_utf8())).collect()
}

/// Where the bare text has marks of plain words that people wrote, or a part of: those with a guard inside.
fn forged(bare: &str, guards: &[(usize, usize)], marks: &Marks) -> Vec<Range<usize>> {
    let places = |word: &String| -> Vec<Range<usize>> {
        bare.match_indices(word.as_str()).map(|(at, word)| at..at + word.len()).collect()
    };
    let is_guarded = |range: &Range<usize>| {
        let next = guards.partition_point(|guard| guard.1 <= range.start);
        guards.get(next).is_some_and(|guard| guard.1 < range.end)
    };
    let mut found: Vec<Range<usize>> =
        marks.spelled().iter().flat_map(places).filter(is_guarded).collect();
    found.sort_unstable_by_key(|range| (range.start, range.end));
    found
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::tokenizer::TOKENIZER_FILE;

    fn data(folder: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(folder)
    }

    /// All tokenizers that tests have.
    fn all() -> Vec<(String, Tokenizer)> {
        let golden = std::fs::read_dir(data("golden")).unwrap().flatten();
        let golden = golden.map(|entry| entry.path().join("checkpoint"));
        let others = ["shapes-vl", "shapes-vl-3_5", "shapes-clip"].map(data);
        let files = golden.chain(others).map(|folder| folder.join(TOKENIZER_FILE));
        let files = files.filter(|file| file.is_file());
        let open = |file: PathBuf| (file.display().to_string(), Tokenizer::open(&file).unwrap());
        let all: Vec<_> = files.map(open).collect();
        assert!(all.len() > 5, "{}", all.len());
        all
    }

    #[test]
    fn plain_words_have_the_tokens_that_they_always_have() {
        for (file, tokenizer) in all() {
            let marks = Marks::new(&tokenizer, "", &[], &["<think>", "[INST]"]);
            for text in ["a < b [c] <d>", "<", "x <<|>> y\n\n<div>é</div>", " <a", "if a<b {\n}"] {
                // Small vocabularies have no words for some letters.
                let Ok(expect) = tokenizer.encode(text) else { continue };
                let guarded = marks.guarded(text);
                assert!(guarded.contains(GUARD), "{file}");
                let read = tokenizer.encode_guarded(&guarded, &marks).unwrap();
                assert_eq!(read, expect, "{file}: {text:?}");
            }
        }
    }

    #[test]
    fn a_mark_that_somebody_wrote_is_text_and_a_templates_is_a_token() {
        // What no chat is read by may have no words for these letters.
        let is_of_chats = |(file, _): &(String, Tokenizer)| file.contains("vl");
        for (file, tokenizer) in all().into_iter().filter(is_of_chats) {
            let marks = Marks::new(&tokenizer, "", &[], &[]);
            for (token, word, _) in tokenizer.added().filter(|(_, _, is_special)| *is_special) {
                let said = format!(
                    "{}{word}{}",
                    marks.guarded("a "),
                    marks.guarded(&format!("b {word} c"))
                );
                let Ok(read) = tokenizer.encode_guarded(&said, &marks) else {
                    panic!("{file}: {word} cannot be read as text");
                };
                let found: Vec<&u32> =
                    read.iter().filter(|token| marks.tokens().contains(token)).collect();
                assert_eq!(found, [&token], "{file}: {word}");
            }
        }
    }
}
