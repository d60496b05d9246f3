use std::collections::BTreeSet;

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde_json::Value;

use super::chat::ChatFields;
use super::common::Common;
use super::completion::CompletionFields;
use super::embedding::EmbeddingFields;
use super::tools::ToolFields;
use crate::routes::OPENAPI;

/// Takes down which fields a struct asks for, and gives none.
struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("taken down"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<'de, T: Deserialize<'de>>() -> BTreeSet<String> {
    let mut fields: &[&str] = &[];
    assert!(T::deserialize(Asked(&mut fields)).is_err());
    fields.iter().map(|field| (*field).to_owned()).collect()
}

#[track_caller]
fn check(schema: &str, fields: impl IntoIterator<Item = String>) {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let described = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
    let described: BTreeSet<String> = described.keys().cloned().collect();
    assert_eq!(described, fields.into_iter().collect());
}

#[test]
fn the_description_has_the_fields_that_are_read() {
    let chat = fields::<Common>().into_iter().chain(fields::<ChatFields>());
    check("ChatRequest", chat.chain(fields::<ToolFields>()));
    check("CompletionRequest", fields::<Common>().into_iter().chain(fields::<CompletionFields>()));
    check("EmbeddingRequest", fields::<EmbeddingFields>());
}
