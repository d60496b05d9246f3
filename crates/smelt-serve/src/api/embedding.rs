//! What `/v1/embeddings` is asked.

use std::sync::LazyLock;

use serde::Deserialize;

use super::fields::fields;
use super::foreign::Known;
use super::several::Prompts;
use crate::error::ApiError;

/// Most texts of one request, as in OpenAI's API.
const TEXTS_MAX: usize = 2048;

/// What vLLM's `truncate_prompt_tokens` says where the model's own length is meant.
const OWN_LENGTH: i64 = -1;

/// The fields of a request.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct EmbeddingFields {
    #[serde(default)]
    pub(crate) model: Option<String>,
    pub(crate) input: Prompts,
    #[serde(default)]
    encoding_format: Option<String>,
    #[serde(default)]
    dimensions: Option<usize>,
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
}

/// The fields that are read.
pub(crate) static EMBEDDING_KNOWN: LazyLock<Known> =
    LazyLock::new(|| Known::new(fields::<EmbeddingFields>()));

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As a list.
    Float,
    /// As base64 of little-endian single floats.
    Base64,
}

impl EmbeddingFields {
    /// How the numbers are written.
    ///
    /// # Errors
    /// If it is none of the words.
    pub(crate) fn encoding(&self) -> Result<Encoding, ApiError> {
        match self.encoding_format.as_deref() {
            None | Some("float") => Ok(Encoding::Float),
            Some("base64") => Ok(Encoding::Base64),
            Some(word) => {
                let why = format!("must be \"float\" or \"base64\", not {word:?}");
                Err(ApiError::field("encoding_format", why))
            }
        }
    }

    /// Whether texts that are longer than the model takes are cut; else they are refused, since half a
    /// text's embedding looks like that of the whole.
    ///
    /// # Errors
    /// If they are to be cut elsewhere.
    pub(crate) fn is_cut(&self) -> Result<bool, ApiError> {
        match self.truncate_prompt_tokens {
            None => Ok(false),
            Some(OWN_LENGTH) => Ok(true),
            Some(length) => {
                let why = format!("must be -1, which is what the model takes, not {length}");
                Err(ApiError::field("truncate_prompt_tokens", why))
            }
        }
    }

    /// Whether a model whose embeddings have `width` numbers can be asked so.  Fewer are refused: the first
    /// numbers stand for the whole only where a model was trained for it.
    ///
    /// # Errors
    /// Naming the field that is wrong.
    pub(crate) fn check(&self, width: usize) -> Result<(), ApiError> {
        if let Some(dimensions) = self.dimensions.filter(|dimensions| *dimensions != width) {
            let why = format!("the model's embeddings have {width} numbers, not {dimensions}");
            return Err(ApiError::field("dimensions", why));
        }
        let count = match &self.input {
            Prompts::Texts(texts) => texts.len(),
            Prompts::Tokens(lists) => lists.len(),
        };
        if count > TEXTS_MAX {
            let why = format!("{count} texts are more than {TEXTS_MAX}");
            return Err(ApiError::field("input", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, param: &str) {
        let fields: EmbeddingFields = serde_json::from_str(json).unwrap();
        let refused = fields.encoding().map(drop).and(fields.is_cut().map(drop));
        assert_eq!(refused.and(fields.check(4)).unwrap_err().param.as_deref(), Some(param));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        check(r#"{"input": "a", "encoding_format": "int8"}"#, "encoding_format");
        check(r#"{"input": "a", "dimensions": 3}"#, "dimensions");
        check(r#"{"input": "a", "truncate_prompt_tokens": 7}"#, "truncate_prompt_tokens");
        check(&format!(r#"{{"input": [{}"a"]}}"#, r#""a","#.repeat(2048)), "input");
    }

    #[test]
    fn numbers_are_a_list_unless_asked_otherwise() {
        let of = |json: &str| serde_json::from_str::<EmbeddingFields>(json).unwrap();
        let plain = of(r#"{"input": "a", "dimensions": 4, "user": "x"}"#);
        assert_eq!((plain.encoding(), plain.is_cut()), (Ok(Encoding::Float), Ok(false)));
        let other =
            of(r#"{"input": [1], "encoding_format": "base64", "truncate_prompt_tokens": -1}"#);
        assert_eq!((other.encoding(), other.is_cut()), (Ok(Encoding::Base64), Ok(true)));
        assert_eq!(plain.check(4).and(other.check(4)), Ok(()));
    }
}
