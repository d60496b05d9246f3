//! Turns text into tokens and tokens back into text, whole or as they arrive.
//!
//! The tokenizer.json of a checkpoint decides everything; special tokens in the text are parsed, where nobody guards it.
//! Knows nothing of chats, images or engines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    Encoding, PostProcessor as _, TruncationDirection, TruncationParams, TruncationStrategy,
};

mod bpe;
mod guarded;
mod limits;

/// The file a tokenizer is read from, inside a checkpoint or deployment.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The largest tokenizer.json read.  The largest published ones are near 35 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Replacement characters at the end of a text that more tokens may yet turn into a code point: it has
/// at most four bytes, so three of them may be waiting.
const HELD_CHARS_MAX: usize = 3;

/// Tokens that are decoded together at most.  A code point takes four; some give no text.
const WINDOW_TOKENS_MAX: usize = 32;

/// What the longest token of any vocabulary has at least, in bytes: small ones are asked in as long words.
const TOKEN_BYTES_LEAST: usize = 32;

/// Texts that are cut are read to so many times the bytes that their tokens can have, so that white space that
/// becomes no token, and a word at the end that is cut in two, change nothing.
const CUT_BYTES_FACTOR: usize = 8;

/// Why a tokenizer could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read tokenizer {}: {source}; copy {TOKENIZER_FILE} from the checkpoint", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is longer than any tokenizer.
    #[error("{} has {bytes} bytes, more than the {FILE_BYTES_MAX} a tokenizer may have", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file is not a tokenizer.
    #[error("{} is not a usable tokenizer: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the parser said, on one line.
        why: String,
    },
    /// A text could not be encoded.
    #[error("cannot encode the text: {0}")]
    Encode(String),
    /// Tokens could not be decoded.
    #[error("cannot decode tokens: {0}")]
    Decode(String),
}

/// The tokens of two texts, or of one, as one sequence, special ones included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairTokens {
    /// The tokens.
    pub ids: Vec<u32>,
    /// 1 for each token of the second text, else 0, as the tokenizer's file says of special ones.
    pub kinds: Vec<u32>,
}

/// A tokenizer as its file describes it.  Clones share it.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// Bytes of its longest token.
    longest: usize,
    /// Behind its last token.
    vocab: usize,
}

impl Tokenizer {
    /// Reads the tokenizer.json at `path`.
    ///
    /// # Errors
    /// [`TokenizerError`] naming the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, TokenizerError> {
        let read = |source| TokenizerError::Read { path: path.into(), source };
        let bytes = fs::metadata(path).map_err(read)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(TokenizerError::TooLarge { path: path.into(), bytes });
        }
        let bytes = fs::read(path).map_err(read)?;
        let broken = |error: tokenizers::Error| TokenizerError::Broken {
            path: path.into(),
            why: one_line(&error.to_string()),
        };
        limits::check(&bytes).map_err(|why| TokenizerError::Broken { path: path.into(), why })?;
        let (inner, extent) = match bpe::read(&bytes) {
            Some(read) => read,
            None => {
                let inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(broken)?;
                let words = inner.get_vocab(true);
                let words = words.iter().map(|(word, id)| (word.as_str(), *id));
                let extent = Extent::of(words);
                (inner, extent)
            }
        };
        let longest = longest(&inner, extent);
        Ok(Self { longest, vocab: extent.vocab, inner: Arc::new(inner) })
    }

    /// The most bytes of a text that so many tokens can have.  A text of more need not be encoded, which takes
    /// seconds and a hundred times its memory, to know that it is too long.
    pub fn bytes_max(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.longest)
    }

    /// The tokens of `text`.  Special tokens written out in it become single tokens; none are added.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer's own rules fail on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_as(text, false)
    }

    /// The same tokenizer for whole texts: it neither cuts nor pads by itself, whatever its file says of
    /// lengths.
    #[must_use]
    pub fn for_whole(mut self) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        inner.with_padding(None);
        // Only a length can be refused.
        _ = inner.with_truncation(None);
        self
    }

    /// How many special tokens its file puts around a text.
    pub fn around(&self) -> usize {
        self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false))
    }

    /// How many it puts around two texts.
    pub fn around_pair(&self) -> usize {
        self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(true))
    }

    /// The tokens of `text` between the special ones that its file puts around a text.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer's own rules fail on the text.
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_as(text, true)
    }

    /// The tokens of `text`, between the special ones if it `is_whole`.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_as(&self, text: &str, is_whole: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, is_whole).map_err(unencoded)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same, the text cut so that there are `tokens_max` with the special ones.
    ///
    /// # Errors
    /// As [`Self::encode_whole`].
    pub fn encode_cut(&self, text: &str, tokens_max: usize) -> Result<Vec<u32>, TokenizerError> {
        let room = tokens_max.saturating_sub(self.around());
        let mut encoding = self.encode_front(text, tokens_max)?;
        encoding.truncate(room, 0, TruncationDirection::Right);
        let encoding = self.inner.post_process(encoding, None, true).map_err(unencoded)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same, with the kinds of the tokens: all are of the first text.
    ///
    /// # Errors
    /// As [`Self::encode_whole`].
    pub fn encode_alone(
        &self,
        text: &str,
        tokens_max: usize,
    ) -> Result<PairTokens, TokenizerError> {
        let ids = self.encode_cut(text, tokens_max)?;
        Ok(PairTokens { kinds: vec![0; ids.len()], ids })
    }

    /// The tokens of two texts, the second cut to `second_max` tokens, then both so that there are `tokens_max` with the
    /// special ones, the longer one first, as transformers does (`longest_first`).
    ///
    /// # Errors
    /// As [`Self::encode_whole`].
    pub fn encode_pair(
        &self,
        [first, second]: [&str; 2],
        second_max: usize,
        tokens_max: usize,
    ) -> Result<PairTokens, TokenizerError> {
        let first = self.encode_front(first, tokens_max)?;
        let mut second = self.encode_front(second, tokens_max.min(second_max))?;
        second.truncate(second_max, 0, TruncationDirection::Right);
        second.set_type_ids(vec![1; second.len()]);
        let cut = TruncationParams {
            max_length: tokens_max.saturating_sub(self.around_pair()),
            strategy: TruncationStrategy::LongestFirst,
            ..TruncationParams::default()
        };
        let cut = truncate_encodings(first, Some(second), &cut);
        let (first, second) = cut.map_err(unencoded)?;
        let pair = self.inner.post_process(first, second, true).map_err(unencoded)?;
        Ok(PairTokens { ids: pair.get_ids().to_vec(), kinds: pair.get_type_ids().to_vec() })
    }

    /// The front of `text`, read as far as so many tokens need.
    fn encode_front(&self, text: &str, tokens_max: usize) -> Result<Encoding, TokenizerError> {
        let most = self.bytes_max(tokens_max).saturating_mul(CUT_BYTES_FACTOR).min(text.len());
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        self.inner.encode_fast(&text[..end], false).map_err(unencoded)
    }

    /// The text of `tokens`; special tokens are left out on request, unknown ones always.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`] if the tokenizer's own rules fail on the tokens.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        let text = self.inner.decode(tokens, skip_special);
        text.map_err(|error| TokenizerError::Decode(one_line(&error.to_string())))
    }

    /// The library's own form of it, for what reads a vocabulary word by word.
    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Whether `token` adds to a text without special tokens.
    fn shows(&self, token: u32) -> bool {
        let word = self.inner.id_to_token(token);
        word.is_some_and(|word| !self.inner.get_added_vocabulary().is_special_token(&word))
    }

    /// The token of a special or ordinary word, if it is exactly one.
    pub fn token(&self, word: &str) -> Option<u32> {
        self.inner.token_to_id(word)
    }

    /// One more than the largest token.
    pub fn vocab(&self) -> usize {
        self.vocab
    }
}

/// Detokenises a growing answer, giving out text as soon as it is whole.
///
/// The pieces, with [`Detokenizer::finish`]'s, join to what [`Tokenizer::decode`] gives for all
/// tokens with special ones left out.  No piece ends inside a code point.
///
/// One case differs: where a run of byte tokens of a SentencePiece vocabulary is no UTF-8, decoding
/// all at once replaces the whole run, the code points before the fault too, which are told by then.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// The tokens of the last piece, which decide spacing, then those that are not all told.
    window: Vec<u32>,
    /// How many tokens at the front of `window` are certainly told.
    context: usize,
    /// The text of `window` that was given out.
    told: String,
}

impl Detokenizer {
    /// Starts with no text.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let tokenizer = tokenizer.clone();
        Self { tokenizer, window: Vec::new(), context: 0, told: String::new() }
    }

    /// Takes the next token; returns the text it completes, which may be empty.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        if !self.tokenizer.shows(token) {
            return Ok(String::new());
        }
        self.window.push(token);
        let fresh = self.fresh()?;
        let (whole, held) = fresh.split_at(fresh.len() - unsettled(&fresh));
        self.told += whole;
        if held.is_empty() && !whole.is_empty() {
            self.drop_first(self.context)?;
        } else if self.window.len() > WINDOW_TOKENS_MAX {
            return self.drop_half(whole, held);
        }
        Ok(whole.to_owned())
    }

    /// The text of tokens still held back, bytes that never became a code point; then starts anew.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let rest = self.fresh()?;
        self.clear();
        Ok(rest)
    }

    /// The text of the window that was not given out.
    fn fresh(&mut self) -> Result<String, TokenizerError> {
        let all = self.tokenizer.decode(&self.window, true)?;
        if let Some(fresh) = all.strip_prefix(&self.told) {
            return Ok(fresh.to_owned());
        }
        // New bytes made a told run of bytes invalid; what is told stays, and the run begins here.
        self.window.drain(..self.context);
        self.context = 0;
        self.told.clear();
        self.tokenizer.decode(&self.window, true)
    }

    /// Leaves the first tokens out of the window, all of which is told.
    fn drop_first(&mut self, count: usize) -> Result<(), TokenizerError> {
        self.window.drain(..count);
        self.context = self.window.len();
        self.told = self.tokenizer.decode(&self.window, true)?;
        Ok(())
    }

    /// Halves a window that never becomes whole, whose end `held` may still become text.
    ///
    /// What becomes of the last bytes depends on the few before them, so the halves may part inside a
    /// code point.  If it does show, no text is due to the bytes held, and they are told as they are.
    fn drop_half(&mut self, whole: &str, held: &str) -> Result<String, TokenizerError> {
        self.drop_first(self.window.len() / 2)?;
        self.context -= HELD_CHARS_MAX;
        if let Some(told) = self.told.strip_suffix(held).map(str::len) {
            self.told.truncate(told);
            return Ok(whole.to_owned());
        }
        self.clear();
        Ok(format!("{whole}{held}"))
    }

    fn clear(&mut self) {
        self.window.clear();
        self.context = 0;
        self.told.clear();
    }
}

/// Bytes at the end of `text` that the next tokens may turn into something else.
fn unsettled(text: &str) -> usize {
    let replaced = text.chars().rev().take_while(|c| *c == char::REPLACEMENT_CHARACTER).count();
    replaced.min(HELD_CHARS_MAX) * char::REPLACEMENT_CHARACTER.len_utf8()
}

/// How far a tokenizer's words reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    /// Behind the last token.
    vocab: usize,
    /// Of the longest word.
    bytes: usize,
    /// Of the one that has most.
    letters: usize,
}

impl Extent {
    /// Of words and their tokens.
    fn of<'a>(words: impl Iterator<Item = (&'a str, u32)>) -> Self {
        words.fold(Self::default(), |extent, (word, id)| {
            let (vocab, bytes, letters) = (id as usize + 1, word.len(), word.chars().count());
            extent.or(Self { vocab, bytes, letters })
        })
    }

    /// Of these words and others.
    fn or(self, other: Self) -> Self {
        Self {
            vocab: self.vocab.max(other.vocab),
            bytes: self.bytes.max(other.bytes),
            letters: self.letters.max(other.letters),
        }
    }
}

/// Bytes of the longest of a tokenizer's words, which reach so far.
fn longest(tokenizer: &tokenizers::Tokenizer, extent: Extent) -> usize {
    let decoder = serde_json::to_string(&tokenizer.get_decoder()).unwrap_or_default();
    // Its words have a letter for each byte.
    let is_of_letters = decoder.contains(r#""ByteLevel""#);
    let bytes = if is_of_letters { extent.letters } else { extent.bytes };
    bytes.max(TOKEN_BYTES_LEAST)
}

fn unencoded(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Encode(one_line(&error.to_string()))
}

/// Foreign messages may span lines; ours do not.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(folder: &str) -> Tokenizer {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        Tokenizer::open(&data.join(folder).join(TOKENIZER_FILE)).unwrap()
    }

    #[test]
    fn a_text_has_no_more_bytes_than_its_tokens_can_have() {
        let tokenizer = tokenizer("shapes-vl");
        assert_eq!(tokenizer.bytes_max(1), TOKEN_BYTES_LEAST);
        for text in ["How many circles are there?", "日本語 é", &"word ".repeat(99)] {
            let tokens = tokenizer.encode(text).unwrap().len();
            assert!(text.len() <= tokenizer.bytes_max(tokens), "{text}");
        }
    }

    #[test]
    fn the_longer_text_of_a_pair_is_cut_first() {
        let letters = tokenizer("encoder").for_whole();
        let words = |[first, second]: [&str; 2], second_max, tokens_max| {
            let pair = letters.encode_pair([first, second], second_max, tokens_max).unwrap();
            (letters.decode(&pair.ids, false).unwrap(), pair.kinds.iter().sum::<u32>())
        };
        let whole =
            |text: &str| letters.decode(&letters.encode_whole(text).unwrap(), false).unwrap();
        let both = |first: &str, second: &str| {
            let second = whole(second);
            format!("{}{}", whole(first), second.strip_prefix("[CLS]").unwrap())
        };
        let pair = ["ab", "cdefgh"];
        assert_eq!(letters.around_pair(), 3);
        assert_eq!(words(pair, usize::MAX, usize::MAX), (both("ab", "cdefgh"), 7));
        assert_eq!(words(pair, usize::MAX, 8), (both("ab", "cde"), 4));
        assert_eq!(words(pair, 2, 100), (both("ab", "cd"), 3));
        assert_eq!(words(["abcdef", "gh"], 2, 8), (both("abc", "gh"), 3));
        assert_eq!(words(["abcdef", "ghijkl"], 6, 9), (both("abc", "ghi"), 4));
    }

    #[test]
    fn what_is_cut_is_not_read_to_its_end() {
        let tokenizer = tokenizer("shapes-vl").for_whole();
        let (read, short) = ("a red circle ".repeat(1000), "a red circle ".repeat(20));
        let cut = |text: &str| tokenizer.encode_cut(text, 16).unwrap();
        assert_eq!(cut(&read), cut(&short));
        assert_eq!(cut(&read).len(), 16);
        // A megabyte took a second.
        let begun = std::time::Instant::now();
        cut(&"日a ".repeat(4_000_000));
        assert!(begun.elapsed().as_secs() < 5);
    }
}
