//! Weighs a request's body before anything is made of it.
//!
//! A tree of JSON takes up to two hundred times the bytes of its text, and what is free-form may be any tree.  So values are
//! counted over the text first, in one pass that takes no memory: a body that is within bounds takes at most its bytes
//! a few times, and some ten MiB.  What is no JSON is left to who reads it.

use bytes::Bytes;

use crate::api::read::Body;
use crate::error::ApiError;

/// Most values and names of all that is free-form (tools, schemas, variables of templates, calls): twice what the most
/// properties that a grammar may have need.  At worst, objects of one field, they take 8 MB a tree.
const FREE_VALUES_MAX: usize = 32_768;

/// Most bytes of all that is free-form: what a grammar may have, sixteen times.
const FREE_BYTES_MAX: usize = 4 << 20;

/// How deep what is known or free-form may nest: as deep as templates write, and below what the reader's stack takes.
const DEPTH_MAX: usize = 64;

/// Most values and names of a body, lists of tokens apart: conversations of the most turns have some ten of each.
const VALUES_MAX: usize = 131_072;

/// Fields whose values are turns or texts, read into shapes of their own; all others are free-form, or small.
const TURNS: [&[u8]; 9] = [
    b"messages",
    b"prompt",
    b"input",
    b"tokens",
    b"images",
    b"documents",
    b"query",
    b"text_1",
    b"text_2",
];

/// Those that may be lists of tokens, which take no more memory than their text.
const TOKENS: [&[u8]; 3] = [b"prompt", b"input", b"tokens"];

/// Fields of a turn that are free-form.
const FREE_IN_TURNS: [&[u8]; 3] = [b"tool_calls", b"input", b"arguments"];

/// The body, if it is within bounds.
///
/// # Errors
/// 400, naming the field that holds too much.
pub(crate) fn weigh(body: &[u8]) -> Result<Body<'_>, ApiError> {
    values(body)?;
    Ok(Body::weighed(body))
}

/// A request's bytes that were weighed: whoever reads them need not do so again.
#[derive(Debug)]
pub(crate) struct WeighedBytes(Bytes);

impl WeighedBytes {
    /// The bytes, with how many values and names they hold, lists of tokens apart, if they are within bounds.
    ///
    /// # Errors
    /// As [`weigh`].
    pub(crate) fn of(bytes: Bytes) -> Result<(Self, usize), ApiError> {
        let values = values(&bytes)?;
        Ok((Self(bytes), values))
    }

    /// What is read of them.
    pub(crate) fn body(&self) -> Body<'_> {
        Body::weighed(&self.0)
    }
}

/// How many values and names a body holds, lists of tokens apart, if it is within bounds.
fn values(body: &[u8]) -> Result<usize, ApiError> {
    let mut scale = Scale { text: body, at: 0, ..Scale::default() };
    while let Some(byte) = scale.next() {
        scale.take(byte);
        scale.check()?;
    }
    Ok(scale.values)
}

/// What was seen of a body so far.
#[derive(Default)]
struct Scale<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
    /// The field of the body that this is a part of.
    field: &'a [u8],
    is_turns: bool,
    /// Where what is free-form began, and how deep its name is.
    free: Option<(usize, usize)>,
    free_bytes: usize,
    free_values: usize,
    values: usize,
}

impl<'a> Scale<'a> {
    fn next(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => {
                self.count();
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.end_free(self.depth + 1);
            }
            b',' => self.end_free(self.depth),
            b'"' => self.text(),
            b'-' | b'0'..=b'9' => {
                self.skip(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
                if !TOKENS.contains(&self.field) || self.free.is_some() {
                    self.count();
                }
            }
            b'a'..=b'z' => {
                self.skip(|byte| byte.is_ascii_alphabetic());
                self.count();
            }
            _ => {}
        }
    }

    /// A text, which is a name where a colon follows.
    fn text(&mut self) {
        let from = self.at;
        loop {
            let rest = &self.text[self.at..];
            match memchr::memchr2(b'"', b'\\', rest) {
                None => {
                    self.at = self.text.len();
                    break;
                }
                Some(found) if rest[found] == b'"' => {
                    self.at += found + 1;
                    break;
                }
                Some(found) => self.at = (self.at + found + 2).min(self.text.len()),
            }
        }
        let text = &self.text[from..self.at.saturating_sub(1).max(from)];
        self.count();
        self.skip(|byte| byte.is_ascii_whitespace());
        if self.text.get(self.at) == Some(&b':') {
            self.name(text);
        }
    }

    fn name(&mut self, name: &'a [u8]) {
        if self.depth == 1 {
            self.field = name;
            self.is_turns = TURNS.contains(&name);
        }
        let is_free = match self.depth {
            1 => !self.is_turns,
            // A name that is written with escapes may be any.
            _ => self.is_turns && (FREE_IN_TURNS.contains(&name) || name.contains(&b'\\')),
        };
        if is_free && self.free.is_none() {
            self.free = Some((self.at, self.depth));
        }
    }

    /// What is free-form ends where its name's object goes on or ends.
    fn end_free(&mut self, depth: usize) {
        if let Some((_, of)) = self.free.filter(|(_, of)| depth <= *of) {
            self.free_bytes = self.all_free_bytes();
            self.free = None;
            debug_assert!(depth <= of);
        }
    }

    fn all_free_bytes(&self) -> usize {
        self.free_bytes + self.free.map_or(0, |(from, _)| self.at - from)
    }

    fn count(&mut self) {
        self.values += 1;
        self.free_values += usize::from(self.free.is_some());
    }

    fn skip(&mut self, is_of_it: impl Fn(u8) -> bool) {
        let rest = &self.text[self.at..];
        self.at += rest.iter().position(|byte| !is_of_it(*byte)).unwrap_or(rest.len());
    }

    fn check(&self) -> Result<(), ApiError> {
        let why = if self.free_values > FREE_VALUES_MAX {
            format!("all free-form fields together hold more than {FREE_VALUES_MAX} values")
        } else if self.all_free_bytes() > FREE_BYTES_MAX {
            format!("all free-form fields together have more than {FREE_BYTES_MAX} bytes")
        } else if self.values > VALUES_MAX {
            format!("the body holds more than {VALUES_MAX} values")
        } else if self.depth > DEPTH_MAX {
            format!("values nest deeper than {DEPTH_MAX}")
        } else {
            return Ok(());
        };
        let why = format!("{why}; send fewer");
        match std::str::from_utf8(self.field) {
            Ok(field) if !field.is_empty() && field.len() <= 64 => Err(ApiError::field(field, why)),
            _ => Err(ApiError::bad(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, param: Option<&str>) {
        let refused = weigh(body.as_bytes()).err();
        let found = refused.as_ref().map(|error| error.param.as_deref().unwrap_or("the body"));
        assert_eq!(found, param, "{:.80}: {refused:?}", body);
        assert!(refused.is_none_or(|error| error.status == 400));
    }

    /// A body of `field` that is a list of `value`, so often.
    fn list(field: &str, value: &str, count: usize) -> String {
        format!("{{\"{field}\": [{}{value}]}}", format!("{value},").repeat(count - 1))
    }

    #[test]
    fn free_form_values_and_names_are_counted() {
        for field in ["chat_template_kwargs", "tools", "response_format", "anything"] {
            check(&list(field, "0", FREE_VALUES_MAX - 1), None);
            check(&list(field, "0", FREE_VALUES_MAX), Some(field));
            check(&list(field, r#"{"": 0}"#, FREE_VALUES_MAX / 3), None);
            check(&list(field, r#"{"": 0}"#, FREE_VALUES_MAX / 3 + 1), Some(field));
        }
        // What is spread over fields is counted together.
        let half = "0,".repeat(FREE_VALUES_MAX / 2);
        check(&format!(r#"{{"a": [{half}0], "b": [{half}0]}}"#), Some("b"));
    }

    #[test]
    fn values_and_names_are_told() {
        assert_eq!(values(br#"{"prompt": [1, 2, 3], "x": [1, {"a": null}]}"#).unwrap(), 9);
        assert_eq!(values(br#""[1, 2]""#).unwrap(), 1);
    }

    #[test]
    fn calls_in_turns_are_free_form() {
        let turn = |name: &str| format!(r#"{{"role": "assistant", "{name}": [{{"": 0}}, 1.5e3]}}"#);
        let count = FREE_VALUES_MAX / 5;
        check(&list("messages", &turn("tool_calls"), count), None);
        check(&list("messages", &turn("tool_calls"), count + 1), Some("messages"));
        check(&list("messages", &turn("content"), count + 1), None);
        check(&list("messages", &turn("\\u0069nput"), count + 1), Some("messages"));
    }

    #[test]
    fn bytes_of_what_is_free_form_are_counted_and_those_of_texts_are_not() {
        let long = "x".repeat(FREE_BYTES_MAX);
        check(&format!(r#"{{"tools": ["{long}"]}}"#), Some("tools"));
        check(
            &format!(r#"{{"messages": [{{"content": "{long}\"["}}], "prompt": "{long}"}}"#),
            None,
        );
        let half = &long[..FREE_BYTES_MAX / 2];
        check(&format!(r#"{{"a": {{"b": "{half}"}}, "c": "{half}"}}"#), Some("c"));
        check(&format!(r#"{{"a": "{half}", "messages": "{half}"}}"#), None);
    }

    #[test]
    fn lists_of_tokens_are_as_long_as_they_like() {
        let tokens = "17,".repeat(VALUES_MAX * 2);
        for field in ["prompt", "input", "tokens"] {
            check(&format!(r#"{{"{field}": [{tokens} 4]}}"#), None);
            check(&list(field, "[1]", VALUES_MAX + 1), Some(field));
            check(&list(field, r#""""#, VALUES_MAX + 1), Some(field));
        }
    }

    #[test]
    fn documents_are_texts_of_any_length_and_numbers_among_them_count() {
        let long = "x".repeat(FREE_BYTES_MAX);
        for field in ["documents", "text_2"] {
            check(&format!(r#"{{"query": "{long}", "{field}": ["{long}"]}}"#), None);
            check(&list(field, "1", VALUES_MAX - 3), None);
            check(&list(field, "1", VALUES_MAX - 2), Some(field));
        }
    }

    #[test]
    fn depth_is_bounded_and_marks_in_texts_do_not_count() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&format!(r#"{{"x": {}}}"#, deep(DEPTH_MAX - 1)), None);
        check(&format!(r#"{{"x": {}}}"#, deep(DEPTH_MAX)), Some("x"));
        check(&"[".repeat(1 << 20), Some("the body"));
        let marks = "[{,\\\\\\\"".repeat(1000);
        check(&format!(r#"{{"messages": "{marks}", "tools": "{marks}"}}"#), None);
    }

    #[test]
    fn what_is_no_json_is_left_to_the_reader() {
        for body in ["", "]]]}", "\"", "{\"a", "\\", "{\"a\\", "nul", ",,", "{\"\\ud800\":\u{0}}"] {
            check(body, None);
        }
    }
}
