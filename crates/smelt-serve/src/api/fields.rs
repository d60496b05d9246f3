//! Asks shapes of requests which fields they read.

use std::collections::BTreeSet;

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

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

/// The fields that a struct reads.
pub(crate) fn fields<'de, T: Deserialize<'de>>() -> BTreeSet<&'static str> {
    let mut fields: &[&str] = &[];
    // It has taken them down, and failed.
    _ = T::deserialize(Asked(&mut fields));
    fields.iter().copied().collect()
}
