//! Writes JSON with the spacing of Python's `json.dumps`.
//!
//! Models saw that spacing in training: a space after each colon, and after each comma that ends
//! no line.  Knows nothing of templates.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// `value` as `json.dumps(value, ensure_ascii=False, indent=indent)` writes it.
pub(super) fn dumps(
    value: &impl Serialize,
    indent: Option<usize>,
) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    let spacing = Spacing { indent, depth: 0, filled: false };
    value.serialize(&mut Serializer::with_formatter(&mut bytes, spacing))?;
    Ok(String::from_utf8(bytes).expect("the serialiser writes UTF-8"))
}

struct Spacing {
    indent: Option<usize>,
    depth: usize,
    /// Whether the innermost collection has an element; an empty one stays on its line.
    filled: bool,
}

impl Spacing {
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
        match (first, self.indent) {
            (false, None) => writer.write_all(b", ")?,
            (false, Some(_)) => writer.write_all(b",")?,
            (true, _) => {}
        }
        self.filled = true;
        self.line(writer)
    }

    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(writer, "\n{:1$}", "", indent * self.depth)
    }
}

impl Formatter for Spacing {
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
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, indent: Option<usize>, expect: &str) {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(dumps(&value, indent).unwrap(), expect);
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
