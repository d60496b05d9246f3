//! Reads a tokenizer file whose model merges pairs (BPE), as nearly all that speak do.
//!
//! The library's own reader copies vocabulary and merges three times before it has them, which is most of what a short answer
//! waits for.  What is not known here is left to that.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::tokenizer::TokenizerBuilder;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PaddingParams,
    PostProcessorWrapper, PreTokenizerWrapper, TruncationParams,
};

use super::Extent;

/// The library's only version of the format.
const VERSION: &str = "1.0";

/// The fields of a file.
#[derive(Deserialize)]
struct File {
    version: Option<String>,
    truncation: Option<TruncationParams>,
    padding: Option<PaddingParams>,
    added_tokens: Option<Vec<AddedToken>>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Kind,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
enum Kind {
    #[serde(rename = "BPE")]
    Bpe,
}

/// Two tokens that become one: a list of both, or a text with a blank between them.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                let (first, second) = text.split_once(' ').ok_or_else(|| E::custom("no pair"))?;
                match second.contains(' ') {
                    true => Err(E::custom("more than a pair")),
                    false => Ok(Merge(first.to_owned(), second.to_owned())),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let mut next = || list.next_element()?.ok_or_else(|| A::Error::custom("no pair"));
                Ok(Merge(next()?, next()?))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The tokenizer of a file with the extent of its words, if it is such a one and nothing about it is odd.
pub(super) fn read(file: &[u8]) -> Option<(tokenizers::Tokenizer, Extent)> {
    let file: File = serde_json::from_slice(file).ok()?;
    if file.version.is_some_and(|version| version != VERSION) {
        return None;
    }
    let extent = Extent::of(file.model.vocab.iter().map(|(word, id)| (word.as_str(), *id)));
    let builder = TokenizerBuilder::new()
        .with_model(ModelWrapper::from(file.model.build()?))
        .with_truncation(file.truncation)
        .with_padding(file.padding)
        .with_normalizer(file.normalizer)
        .with_pre_tokenizer(file.pre_tokenizer)
        .with_post_processor(file.post_processor)
        .with_decoder(file.decoder);
    let mut tokenizer = builder.build().ok()?;
    tokenizer.add_tokens(&file.added_tokens.unwrap_or_default());
    let tokenizer = tokenizers::Tokenizer::from(tokenizer);
    let added = tokenizer.get_added_tokens_decoder();
    let added = Extent::of(added.iter().map(|(id, token)| (token.content.as_str(), *id)));
    Some((tokenizer, extent.or(added)))
}

impl Model {
    fn build(self) -> Option<BPE> {
        let Self { kind: Kind::Bpe, vocab, merges, .. } = self;
        let merges = merges.into_iter().map(|Merge(first, second)| (first, second)).collect();
        let mut builder = BPE::builder().vocab_and_merges(vocab, merges);
        if let Some(dropout) = self.dropout {
            builder = builder.dropout(dropout);
        }
        if let Some(token) = self.unk_token {
            builder = builder.unk_token(token);
        }
        if let Some(prefix) = self.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        builder
            .fuse_unk(self.fuse_unk.unwrap_or_default())
            .byte_fallback(self.byte_fallback.unwrap_or_default())
            .ignore_merges(self.ignore_merges.unwrap_or_default())
            .build()
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// All tokenizers below a folder.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let of = |path: PathBuf| match path.is_dir() {
            true => files(&path),
            false if path.ends_with(super::super::TOKENIZER_FILE) => vec![path],
            false => Vec::new(),
        };
        entries.flat_map(of).collect()
    }

    fn written(tokenizer: &tokenizers::Tokenizer) -> String {
        serde_json::to_string(tokenizer).unwrap()
    }

    #[test]
    fn what_is_read_is_what_the_library_reads() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let mut seen = 0;
        for path in files(&data) {
            let bytes = fs::read(&path).unwrap();
            let library = tokenizers::Tokenizer::from_bytes(&bytes);
            let Some((own, extent)) = read(&bytes) else {
                let is_pairs =
                    library.is_ok_and(|it| matches!(it.get_model(), ModelWrapper::BPE(_)));
                assert!(!is_pairs, "{} is left to the library", path.display());
                continue;
            };
            assert_eq!(written(&own), written(&library.unwrap()), "{}", path.display());
            let words = own.get_vocab(true);
            let words = words.iter().map(|(word, id)| (word.as_str(), *id));
            assert_eq!(extent, Extent::of(words), "{}", path.display());
            seen += 1;
        }
        assert!(seen > 3, "{seen} tokenizers of pairs below {}", data.display());
    }

    #[test]
    fn what_is_odd_is_left_to_the_library() {
        let file =
            |model: &str| format!(r#"{{"version":"1.0","added_tokens":[],"model":{model}}}"#);
        let pairs = |merges: &str| {
            file(&format!(r#"{{"type":"BPE","vocab":{{"a":0,"b":1,"ab":2}},"merges":{merges}}}"#))
        };
        for good in [r#"[["a","b"]]"#, r#"["a b"]"#, "[]"] {
            let text = pairs(good);
            let library = tokenizers::Tokenizer::from_bytes(&text).unwrap();
            assert_eq!(written(&read(text.as_bytes()).unwrap().0), written(&library), "{good}");
        }
        for odd in [r#"["ab"]"#, r#"["a b c"]"#, r#"[["a"]]"#, r#"[["a","b","c"]]"#, r#"["a c"]"#] {
            assert!(read(pairs(odd).as_bytes()).is_none(), "{odd}");
        }
        assert!(read(pairs("[]").replace("1.0", "2.0").as_bytes()).is_none());
        assert!(read(file(r#"{"vocab":{},"merges":[]}"#).as_bytes()).is_none(), "it says no kind");
        assert!(read(b"{}").is_none());
    }
}
