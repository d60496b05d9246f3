//! Finds the bytes that each token adds to a text.
//!
//! Words of a tokenizer are written in one of two ways: every byte as a letter (GPT-2's, Qwen's,
//! Llama 3's), or as text with a mark for spaces and `<0x0A>` for bytes (Llama 2's).  Knows nothing of
//! grammars.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

/// A tokenizer whose words have no bytes of their own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "answers cannot be held to a grammar with this tokenizer: its decoder is {0}, neither ByteLevel nor with ByteFallback"
)]
pub struct PiecesError(String);

/// What a token is to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// It adds these bytes.
    Bytes(Vec<u8>),
    /// It adds nothing; this is its name.
    Special(String),
    /// There is no such token.
    Nothing,
}

/// Tells the bytes of single tokens, which need not be whole characters.
#[derive(Debug)]
pub struct TokenBytes {
    tokenizer: crate::tokenizer::Tokenizer,
    writing: Writing,
    letters: HashMap<char, u8>,
}

impl TokenBytes {
    /// Of the tokens of `tokenizer`.
    ///
    /// # Errors
    /// [`PiecesError`] if its words have none.
    pub fn new(tokenizer: &crate::tokenizer::Tokenizer) -> Result<Self, PiecesError> {
        let writing = writing(tokenizer.inner())?;
        Ok(Self { tokenizer: tokenizer.clone(), writing, letters: byte_letters() })
    }

    /// What `token` adds to a text; special ones are what they are called, and who is no token is nothing.
    pub fn of(&self, token: u32) -> Vec<u8> {
        let inner = self.tokenizer.inner();
        if let Some(added) = inner.get_added_vocabulary().get_added_tokens_decoder().get(&token) {
            return added.content.clone().into_bytes();
        }
        match inner.id_to_token(token).map(|word| bytes(&word, self.writing, &self.letters)) {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => Vec::new(),
        }
    }
}

/// How words are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    ByteLetters,
    /// This stands for a space.
    Marked(char),
}

/// A piece for each of the first `vocab` tokens, and whether encoding a text that pieces add up to gives the same
/// tokens wherever the text stands.
pub(super) fn pieces(
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<(Vec<Piece>, bool), PiecesError> {
    let writing = writing(tokenizer)?;
    let letters = byte_letters();
    let added = tokenizer.get_added_tokens_decoder();
    let piece = |token: u32| match (added.get(&token), tokenizer.id_to_token(token)) {
        (Some(added), _) if added.special => Piece::Special(added.content.clone()),
        (Some(added), _) => Piece::Bytes(added.content.clone().into_bytes()),
        (None, Some(word)) => bytes(&word, writing, &letters),
        (None, None) => Piece::Nothing,
    };
    let end = u32::try_from(vocab).unwrap_or(u32::MAX);
    Ok(((0..end).map(piece).collect(), writing == Writing::ByteLetters))
}

fn bytes(word: &str, writing: Writing, letters: &HashMap<char, u8>) -> Piece {
    match writing {
        Writing::ByteLetters => {
            let bytes: Option<Vec<u8>> = word.chars().map(|c| letters.get(&c).copied()).collect();
            bytes.map_or(Piece::Nothing, Piece::Bytes)
        }
        Writing::Marked(space) => {
            let hex = word.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            let text = || word.replace(space, " ").into_bytes();
            Piece::Bytes(byte.map_or_else(text, |byte| vec![byte]))
        }
    }
}

fn writing(tokenizer: &Tokenizer) -> Result<Writing, PiecesError> {
    // The parts of a decoder cannot be asked for what they are, but they can be written.
    let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
    let parts =
        decoder["decoders"].as_array().map_or(std::slice::from_ref(&decoder), Vec::as_slice);
    let has = |name: &str| parts.iter().any(|part| part["type"] == name);
    if has("ByteLevel") {
        return Ok(Writing::ByteLetters);
    }
    if has("ByteFallback") {
        return Ok(Writing::Marked(parts.iter().find_map(space_mark).unwrap_or(' ')));
    }
    let names: Vec<&str> = parts.iter().filter_map(|part| part["type"].as_str()).collect();
    Err(PiecesError(if names.is_empty() { "none".to_owned() } else { names.join(", ") }))
}

/// What a part of a decoder makes a space of.
fn space_mark(part: &Value) -> Option<char> {
    let mark = match part["type"].as_str()? {
        "Replace" if part["content"] == " " => part["pattern"]["String"].as_str()?,
        "Metaspace" => part["replacement"].as_str()?,
        _ => return None,
    };
    mark.chars().next()
}

/// The byte that each letter of a word stands for: printable ones for themselves, the others in order for
/// the letters from U+0100 (GPT-2's `bytes_to_unicode`).
fn byte_letters() -> HashMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let mut others = '\u{100}'..;
    let letter = |byte: u8| {
        let own = is_printable(byte).then_some(char::from(byte));
        Some((own.or_else(|| others.next())?, byte))
    };
    (0..=u8::MAX).filter_map(letter).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn letters_of_bytes_are_gpt2s() {
        let letters = byte_letters();
        assert_eq!(letters.len(), 256);
        for (letter, byte) in [('a', b'a'), ('Ġ', b' '), ('Ċ', b'\n'), ('ÿ', 0xff), ('Ń', 0xad)]
        {
            assert_eq!(letters[&letter], byte);
        }
    }

    #[test]
    fn pieces_join_to_what_was_encoded() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/shapes-vl");
        let tokenizer = Tokenizer::from_file(data.join("tokenizer.json")).unwrap();
        let vocab = tokenizer.get_vocab_size(true);
        let (pieces, _) = pieces(&tokenizer, vocab + 5).unwrap();
        assert_eq!(pieces.len(), vocab + 5);
        assert_eq!(pieces[vocab..], vec![Piece::Nothing; 5]);
        let text = "How many triangles?\n\u{e9}\u{1f600} {\"a\": 1}";
        let mut bytes = Vec::new();
        for token in tokenizer.encode(text, false).unwrap().get_ids() {
            let Piece::Bytes(piece) = &pieces[*token as usize] else {
                panic!("{token} is special")
            };
            bytes.extend_from_slice(piece);
        }
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    #[test]
    fn single_tokens_have_the_bytes_of_their_pieces() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/shapes-vl");
        let tokenizer = crate::tokenizer::Tokenizer::open(&data.join("tokenizer.json")).unwrap();
        let of = TokenBytes::new(&tokenizer).unwrap();
        let (pieces, _) = pieces(tokenizer.inner(), tokenizer.vocab() + 1).unwrap();
        for (token, piece) in (0..).zip(pieces) {
            let expect = match piece {
                Piece::Bytes(bytes) => bytes,
                Piece::Special(name) => name.into_bytes(),
                Piece::Nothing => Vec::new(),
            };
            assert_eq!(of.of(token), expect);
        }
        let tokens = tokenizer.encode("\u{1f600}").unwrap();
        assert!(tokens.len() > 1, "a character of several tokens");
        let bytes: Vec<u8> = tokens.into_iter().flat_map(|token| of.of(token)).collect();
        assert_eq!(bytes, "\u{1f600}".as_bytes());
    }

    #[test]
    fn words_with_marks_are_bytes_too() {
        let letters = byte_letters();
        let piece = |word: &str| bytes(word, Writing::Marked('\u{2581}'), &letters);
        assert_eq!(piece("\u{2581}the\u{2581}"), Piece::Bytes(b" the ".to_vec()));
        assert_eq!(piece("<0xE2>"), Piece::Bytes(vec![0xe2]));
        assert_eq!(piece("<0xZZ>"), Piece::Bytes(b"<0xZZ>".to_vec()));
    }

    #[test]
    fn a_decoder_without_bytes_is_named() {
        let mut tokenizer = Tokenizer::new(tokenizers::models::bpe::BPE::default());
        let said = |tokenizer: &Tokenizer| pieces(tokenizer, 1).unwrap_err().to_string();
        assert!(said(&tokenizer).contains("its decoder is none,"), "{}", said(&tokenizer));
        tokenizer.with_decoder(Some(tokenizers::decoders::wordpiece::WordPiece::default()));
        assert!(said(&tokenizer).contains("its decoder is WordPiece,"), "{}", said(&tokenizer));
    }
}
