//! What `/v1/score` and `/v1/rerank` are asked, as vLLM, Jina and Cohere have it.

use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::fields::fields;
use super::foreign::Known;
use super::several::TextOr;
use crate::error::ApiError;

/// Most pairs of one request: what embeddings take of texts.
const PAIRS_MAX: usize = 2048;

/// What `truncate_prompt_tokens` says where the model's own length is meant.
const OWN_LENGTH: i64 = -1;

/// What both routes are asked beside their texts.
#[derive(Clone, Debug)]
pub(crate) struct ScoreOptions {
    /// Whether a score is the head's number as it is.
    pub(crate) is_raw: bool,
    /// Where pairs are cut; else those that are too long are refused, since the score of half a text looks like that
    /// of the whole.
    pub(crate) cut: Option<Cut>,
    /// What has them cut, as it is written.
    pub(crate) cut_by: &'static str,
}

/// What has pairs cut, in vLLM's words.
const CUT_BY: &str = "truncate_prompt_tokens: -1";

/// How long pairs may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// As long as the model takes.
    Own,
    /// Tokens of a pair.
    Pair(usize),
    /// Tokens of a document, and as long as the model takes.
    Document(usize),
}

/// How pairs are cut, by vLLM's field.
fn cut(truncate_prompt_tokens: Option<i64>) -> Result<Option<Cut>, ApiError> {
    match truncate_prompt_tokens {
        None => Ok(None),
        Some(OWN_LENGTH) => Ok(Some(Cut::Own)),
        Some(length) => match usize::try_from(length) {
            Ok(length) if length > 0 => Ok(Some(Cut::Pair(length))),
            _ => {
                let why = format!(
                    "must be a number of tokens, or -1 for what the model takes, not {length}"
                );
                Err(ApiError::field("truncate_prompt_tokens", why))
            }
        },
    }
}

/// The fields of `/v1/score`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ScoreFields {
    #[serde(default)]
    pub(crate) model: Option<String>,
    text_1: TextOr<String>,
    text_2: TextOr<String>,
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
    #[serde(default)]
    use_activation: Option<bool>,
}

/// The fields of `/v1/score` that are read.
pub(crate) static SCORE_KNOWN: LazyLock<Known> =
    LazyLock::new(|| Known::new(fields::<ScoreFields>()));

impl ScoreFields {
    /// How pairs are scored.
    ///
    /// # Errors
    /// Naming the field that is wrong.
    pub(crate) fn score_options(&self) -> Result<ScoreOptions, ApiError> {
        let cut = cut(self.truncate_prompt_tokens)?;
        Ok(ScoreOptions { is_raw: self.use_activation == Some(false), cut, cut_by: CUT_BY })
    }

    /// Whether one text goes with each of the second.
    pub(crate) fn is_one(&self) -> bool {
        texts(&self.text_1).len() == 1
    }

    /// The pairs: one text with each of the second, or texts with those at their places.
    ///
    /// # Errors
    /// Naming the field that has too many or too few.
    pub(crate) fn pairs(&self) -> Result<Vec<[&str; 2]>, ApiError> {
        let (first, second) = (texts(&self.text_1), texts(&self.text_2));
        let (ours, theirs) = (first.len(), second.len());
        few("text_1", ours)?;
        few("text_2", theirs)?;
        match ours {
            1 => Ok(second.into_iter().map(|text| [first[0], text]).collect()),
            _ if ours == theirs => {
                Ok(first.into_iter().zip(second).map(|(one, other)| [one, other]).collect())
            }
            _ => {
                let why = format!(
                    "has {theirs} texts for {ours} of text_1; give one, or as many of both"
                );
                Err(ApiError::field("text_2", why))
            }
        }
    }
}

fn texts(given: &TextOr<String>) -> Vec<&str> {
    match given {
        TextOr::Text(text) => vec![text],
        TextOr::List(texts) => texts.iter().map(String::as_str).collect(),
    }
}

fn few(field: &str, count: usize) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::field(field, "has no texts")),
        1..=PAIRS_MAX => Ok(()),
        _ => Err(ApiError::field(field, format!("{count} texts are more than {PAIRS_MAX}"))),
    }
}

/// The fields of `/v1/rerank`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RerankFields {
    #[serde(default)]
    pub(crate) model: Option<String>,
    pub(crate) query: String,
    pub(crate) documents: Vec<Document>,
    #[serde(default)]
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: Option<bool>,
    #[serde(default)]
    max_tokens_per_doc: Option<usize>,
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
    #[serde(default)]
    use_activation: Option<bool>,
}

/// The fields of `/v1/rerank` that are read.
pub(crate) static RERANK_KNOWN: LazyLock<Known> =
    LazyLock::new(|| Known::new(fields::<RerankFields>()));

/// What a route does where a request does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Custom {
    /// Documents come back, what is too long is refused: vLLM, Jina.
    First,
    /// Documents stay, each is cut to so many tokens: Cohere.
    Second,
}

/// Tokens of a document where nothing is said, in Cohere's API.
const DOCUMENT_TOKENS: usize = 4096;

impl RerankFields {
    /// How documents are scored.
    ///
    /// # Errors
    /// Naming the field that is wrong.
    pub(crate) fn score_options(&self, custom: Custom) -> Result<ScoreOptions, ApiError> {
        few("documents", self.documents.len())?;
        let usual = (custom == Custom::Second).then_some(DOCUMENT_TOKENS);
        let cut = match (cut(self.truncate_prompt_tokens)?, self.max_tokens_per_doc) {
            (Some(_), Some(_)) => {
                let why = "is given together with max_tokens_per_doc";
                return Err(ApiError::field("truncate_prompt_tokens", why));
            }
            (None, Some(0)) => {
                return Err(ApiError::field("max_tokens_per_doc", "must be at least 1"));
            }
            (Some(cut), None) => Some(cut),
            (None, tokens) => tokens.or(usual).map(Cut::Document),
        };
        Ok(ScoreOptions { is_raw: self.use_activation == Some(false), cut, cut_by: CUT_BY })
    }

    /// How many of the best are told: all, where nothing or nought is said.
    pub(crate) fn top(&self) -> usize {
        self.top_n.filter(|top| *top > 0).unwrap_or(usize::MAX)
    }

    /// Whether documents come back.
    pub(crate) fn is_returning(&self, custom: Custom) -> bool {
        self.return_documents.unwrap_or(custom == Custom::First)
    }
}

/// A document: a text, or an object that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document(pub(crate) String);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfDocument)
    }
}

#[derive(Deserialize)]
struct WithText {
    text: String,
}

struct OfDocument;

impl<'de> Visitor<'de> for OfDocument {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or an object with a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Document, E> {
        Ok(Document(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Document, A::Error> {
        let WithText { text } = WithText::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Document(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(json: &str) -> Result<Vec<(String, String)>, Option<String>> {
        let fields: ScoreFields = serde_json::from_str(json).unwrap();
        let pairs =
            fields.score_options().and_then(|_| fields.pairs()).map_err(|error| error.param)?;
        Ok(pairs.into_iter().map(|[one, other]| (one.to_owned(), other.to_owned())).collect())
    }

    #[test]
    fn texts_are_scored_one_by_one_or_one_with_all() {
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(score(r#"{"text_1": "a", "text_2": "b"}"#), Ok(vec![pair("a", "b")]));
        let all = Ok(vec![pair("a", "b"), pair("a", "c")]);
        assert_eq!(score(r#"{"text_1": "a", "text_2": ["b", "c"]}"#), all);
        assert_eq!(score(r#"{"text_1": ["a"], "text_2": ["b", "c"]}"#), all);
        let each = Ok(vec![pair("a", "b"), pair("c", "d")]);
        assert_eq!(score(r#"{"text_1": ["a", "c"], "text_2": ["b", "d"]}"#), each);
        for (json, field) in [
            (r#"{"text_1": ["a", "c"], "text_2": "b"}"#, "text_2"),
            (r#"{"text_1": ["a", "c"], "text_2": ["b", "c", "d"]}"#, "text_2"),
            (r#"{"text_1": [], "text_2": "b"}"#, "text_1"),
            (r#"{"text_1": "a", "text_2": []}"#, "text_2"),
            (
                r#"{"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}"#,
                "truncate_prompt_tokens",
            ),
            (
                r#"{"text_1": "a", "text_2": "b", "truncate_prompt_tokens": -2}"#,
                "truncate_prompt_tokens",
            ),
        ] {
            assert_eq!(score(json), Err(Some(field.to_owned())), "{json}");
        }
    }

    fn rerank(json: &str, custom: Custom) -> (Result<Option<Cut>, Option<String>>, usize, bool) {
        let fields: RerankFields = serde_json::from_str(json).unwrap();
        let cut = fields
            .score_options(custom)
            .map(|score_options| score_options.cut)
            .map_err(|error| error.param);
        (cut, fields.top(), fields.is_returning(custom))
    }

    #[test]
    fn each_route_has_its_customs() {
        let plain = r#"{"query": "q", "documents": ["a", {"text": "b", "title": 1}]}"#;
        assert_eq!(rerank(plain, Custom::First), (Ok(None), usize::MAX, true));
        assert_eq!(
            rerank(plain, Custom::Second),
            (Ok(Some(Cut::Document(4096))), usize::MAX, false)
        );
        let with = |more: &str, custom| {
            rerank(&plain.replace("\"query\"", &format!("{more}, \"query\"")), custom)
        };
        assert_eq!(
            with(r#""top_n": 1, "truncate_prompt_tokens": 9"#, Custom::Second).0,
            Ok(Some(Cut::Pair(9)))
        );
        assert_eq!(with(r#""top_n": 1"#, Custom::First).1, 1);
        assert_eq!(with(r#""top_n": 0"#, Custom::First).1, usize::MAX);
        assert!(with(r#""return_documents": true"#, Custom::Second).2);
        let both = r#""max_tokens_per_doc": 3, "truncate_prompt_tokens": 9"#;
        assert_eq!(with(both, Custom::First).0, Err(Some("truncate_prompt_tokens".to_owned())));
        assert_eq!(
            with(r#""max_tokens_per_doc": 0"#, Custom::First).0,
            Err(Some("max_tokens_per_doc".to_owned()))
        );
        let none = rerank(r#"{"query": "q", "documents": []}"#, Custom::First).0;
        assert_eq!(none, Err(Some("documents".to_owned())));
        assert!(
            serde_json::from_str::<RerankFields>(r#"{"query": "q", "documents": [3]}"#).is_err()
        );
    }
}
