//! A value of which a request gives one or a list.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A text, or a list of `T`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextOr<T> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either(PhantomData))
    }
}

struct Either<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(TextOr::List)
    }
}

/// What a text prompt may be: a text, texts, tokens, or lists of tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompts {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Prompts {
    /// Bytes of the longest text.
    pub(crate) fn longest(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.iter().map(String::len).max().unwrap_or_default(),
            Self::Tokens(_) => 0,
        }
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfPrompts)
    }
}

/// Reads prompts into lists of their own kind, since an entry that may be of any takes eight times a token.
struct OfPrompts;

impl<'de> Visitor<'de> for OfPrompts {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("texts, tokens or lists of tokens, of one kind")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::Texts(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
        let first = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        match first {
            Entry::Text(first) => rest(first, seq).map(Prompts::Texts),
            Entry::Token(first) => rest(first, seq).map(|tokens| Prompts::Tokens(vec![tokens])),
            Entry::Tokens(first) => rest(first, seq).map(Prompts::Tokens),
        }
    }
}

/// All of a list of which the first is known.
fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    first: T,
    mut seq: A,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = seq.next_element()? {
        all.push(next);
    }
    Ok(all)
}

/// One entry of a list of prompts.
enum Entry {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfEntry;
        impl<'de> Visitor<'de> for OfEntry {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token or a list of tokens")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
                Ok(Entry::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<Entry, E> {
                let token = u32::try_from(token);
                token.map(Entry::Token).map_err(|_| E::custom("a token is less than 4294967296"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Entry, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Entry::Tokens)
            }
        }
        deserializer.deserialize_any(OfEntry)
    }
}

/// An object, or a text in its place: `"image_url": "…"` for `{"url": "…"}`.
pub(crate) struct TextOrObject<T>(pub(crate) fn(String) -> T);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrObject<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expect: Option<Prompts>) {
        assert_eq!(serde_json::from_str(json).ok(), expect, "{json}");
    }

    #[test]
    fn prompts_are_of_one_kind() {
        let text = |text: &str| text.to_owned();
        check(r#""a""#, Some(Prompts::Texts(vec![text("a")])));
        check(r#"["a", "b"]"#, Some(Prompts::Texts(vec![text("a"), text("b")])));
        check("[1, 2]", Some(Prompts::Tokens(vec![vec![1, 2]])));
        check("[[1, 2], [3]]", Some(Prompts::Tokens(vec![vec![1, 2], vec![3]])));
        check("[]", None);
        check(r#"["a", 1]"#, None);
        check("[1, [2]]", None);
        check("[4294967296]", None);
        check("[-1]", None);
        check("[1.5]", None);
        check("{}", None);
    }
}
