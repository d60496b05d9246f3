//! Writes JSON with the spacing of Python's `json.dumps`.
//!
//! Models saw that spacing in training: a space after each colon, and after each comma that ends
//! no line.  Knows nothing of templates.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use crate::markup::GUARD;

/// What `json.dumps` may be told.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// Spaces for each level of lines of their own; all on one line without it.
    pub(super) indent: Option<usize>,
    /// What stands behind an element, and behind a key.
    pub(super) separators: Option<(String, String)>,
    /// Whether what is not ASCII is escaped.
    pub(super) is_ascii: bool,
    /// Whether keys are in order.
    pub(super) is_sorted: bool,
}

/// `value` as `json.dumps(value, ensure_ascii=False)` writes it in a `style`.
pub(super) fn dumps(value: &impl Serialize, style: &Style) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    let behind = if style.indent.is_some() { "," } else { ", " };
    let separators = style.separators.as_ref();
    let (item, key) = separators.map_or((behind, ": "), |(item, key)| (item, key));
    let Style { indent, is_ascii, .. } = *style;
    let spacing = Spacing { indent, item, key, is_ascii, depth: 0, filled: false };
    let mut serializer = Serializer::with_formatter(&mut bytes, spacing);
    if style.is_sorted {
        sorted(serde_json::to_value(value)?).serialize(&mut serializer)?;
    } else {
        value.serialize(&mut serializer)?;
    }
    Ok(String::from_utf8(bytes).expect("the serialiser writes UTF-8"))
}

/// The same with all keys in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> =
                fields.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            fields.into_iter().collect()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        value => value,
    }
}

struct Spacing<'a> {
    indent: Option<usize>,
    /// What stands behind an element, and behind a key.
    item: &'a str,
    key: &'a str,
    is_ascii: bool,
    depth: usize,
    /// Whether the innermost collection has an element; an empty one stays on its line.
    filled: bool,
}

impl Spacing<'_> {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn separate<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.filled = true;
        self.line(writer)
    }

    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(writer, "\n{:1$}", "", indent * self.depth)
    }
}

impl Formatter for Spacing<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            // A guard is no part of the text.
            if character.is_ascii() || character == GUARD {
                write!(writer, "{character}")?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, indent: Option<usize>, expect: &str) {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let style = Style { indent, ..Style::default() };
        assert_eq!(dumps(&value, &style).unwrap(), expect);
    }

    #[test]
    fn keys_are_sorted_and_texts_escaped_where_that_is_asked_for() {
        let value: Value = serde_json::from_str(r#"{"b":[{"z":1,"é":"😀\n"}],"a":2}"#).unwrap();
        let separators = Some((",".to_owned(), ":".to_owned()));
        let style = Style { separators, is_ascii: true, is_sorted: true, indent: None };
        let expect = r#"{"a":2,"b":[{"z":1,"\u00e9":"\ud83d\ude00\n"}]}"#;
        assert_eq!(dumps(&value, &style).unwrap(), expect);
    }

    #[test]
    fn one_line_has_spaces_after_commas_and_colons() {
        check(r#"{"a":[1,2,{}],"b":[]}"#, None, r#"{"a": [1, 2, {}], "b": []}"#);
    }

    #[test]
    fn indented_lines_end_in_bare_commas_and_empty_ones_stay_closed() {
        check(
            r#"{"a":[1,[]],"b":{}}"#,
            Some(4),
            "{\n    \"a\": [\n        1,\n        []\n    ],\n    \"b\": {}\n}",
        );
    }
}
