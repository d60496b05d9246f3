//! Keeps what people write apart from what templates write: text is no markup.
//!
//! A chat template joins both to one text, in which a special token that somebody wrote out would be one, and open a turn.  So
//! behind each letter in a client's texts with which a mark begins stands a guard, a noncharacter: no mark is whole there, however
//! it was cut and wherever its other half comes from, and no template takes it for its own.  The tokenizer takes guards out
//! again, and reads what they stood in as plain text; a mark that is plain text itself it reads letter by letter, which no
//! template writes.  Knows nothing of conversations.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::template::{Serde, Value};
use crate::tokenizer::Tokenizer;

mod spelled;

use spelled::spelled;

/// Stands in what looks like a mark and is none.  A Unicode noncharacter, which no text may hold.
pub const GUARD: char = '\u{FDD1}';

/// The marks of a model and its template.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Letters with which one begins.
    firsts: BTreeSet<char>,
    /// The tokens of those that are tokens.
    tokens: BTreeSet<u32>,
    /// Those that are plain words to the tokenizer: `[INST]` of Llama 2, `USER:`.
    spelled: BTreeSet<String>,
}

impl Marks {
    /// The special tokens of `tokenizer` and words that look like such, whatever else of its added words a template has in
    /// its `source` or writes `around` what is said, such marks there as are plain words, and `words`.
    ///
    /// Other added words, as Gemma's line ends and HTML tags, are text that has tokens of its own.
    pub fn new(tokenizer: &Tokenizer, source: &str, around: &[String], words: &[&str]) -> Self {
        let added: Vec<(u32, String, bool)> = tokenizer.added().collect();
        let names: Vec<&str> = added.iter().map(|(_, word, _)| word.as_str()).collect();
        let mut marks = Self { spelled: spelled(around, &names), ..Self::default() };
        // A template may make a mark of a role: `<|{{ role }}|>` stands nowhere in its source.
        let has =
            |word: &str| source.contains(word) || around.iter().any(|text| text.contains(word));
        for (token, word, is_special) in &added {
            let is_written = !word.trim().is_empty() && has(word);
            if *is_special || looks_special(word) || is_written {
                marks.tokens.insert(*token);
                marks.firsts.extend(word.trim_start().chars().next());
            }
        }
        let spelled = marks.spelled.iter().map(String::as_str);
        let firsts = spelled.chain(words.iter().copied()).filter_map(|word| word.chars().next());
        marks.firsts.extend(firsts);
        marks
    }

    /// The marks that are plain words to the tokenizer.
    pub fn spelled(&self) -> &BTreeSet<String> {
        &self.spelled
    }

    /// The tokens that nothing but a template says.
    pub fn tokens(&self) -> &BTreeSet<u32> {
        &self.tokens
    }

    /// How many guards a text gets.
    pub fn guards(&self, text: &str) -> usize {
        text.chars().filter(|letter| self.firsts.contains(letter)).count()
    }

    /// How many guards all texts and names of a value get.
    pub fn guards_of(&self, json: &serde_json::Value) -> usize {
        use serde_json::Value as Json;
        match json {
            Json::String(text) => self.guards(text),
            Json::Array(items) => items.iter().map(|item| self.guards_of(item)).sum(),
            Json::Object(fields) => {
                let of_field =
                    |(name, value): (&String, &Json)| self.guards(name) + self.guards_of(value);
                fields.iter().map(of_field).sum()
            }
            _ => 0,
        }
    }

    /// The text with its guards.
    pub fn guarded<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let guards = self.guards(text);
        if guards == 0 {
            return text.into();
        }
        let mut guarded = String::with_capacity(text.len() + guards * GUARD.len_utf8());
        for letter in text.chars() {
            guarded.push(letter);
            if self.firsts.contains(&letter) {
                guarded.push(GUARD);
            }
        }
        guarded.into()
    }

    /// A value whose texts and names have their guards; as it is where none needs one.
    pub fn guarded_value(&self, value: &Value) -> Value {
        // What cannot be written as JSON comes of no client.
        let Ok(json) = serde_json::to_value(value) else { return value.clone() };
        match self.of_json(&json) {
            Some(guarded) => Value::from(Serde(guarded)),
            None => value.clone(),
        }
    }

    /// The same with guards; nothing where none is needed.
    fn of_json(&self, json: &serde_json::Value) -> Option<serde_json::Value> {
        use serde_json::Value as Json;
        let of_text = |text: &str| match self.guarded(text) {
            Cow::Owned(guarded) => Some(guarded),
            Cow::Borrowed(_) => None,
        };
        match json {
            Json::String(text) => of_text(text).map(Json::String),
            Json::Array(items) => {
                let guarded: Vec<_> = items.iter().map(|item| self.of_json(item)).collect();
                guarded.iter().any(Option::is_some).then(|| {
                    let items = items.iter().zip(guarded);
                    items.map(|(item, guarded)| guarded.unwrap_or_else(|| item.clone())).collect()
                })
            }
            Json::Object(fields) => {
                let of_field =
                    |(name, value): (&String, &Json)| (of_text(name), self.of_json(value));
                let guarded: Vec<_> = fields.iter().map(of_field).collect();
                guarded.iter().any(|(name, value)| name.is_some() || value.is_some()).then(|| {
                    let fields = fields.iter().zip(guarded);
                    let field = |((name, value), guarded): ((&String, &Json), (_, _))| {
                        let (own_name, own_value): (Option<String>, Option<Json>) = guarded;
                        let name = own_name.unwrap_or_else(|| name.clone());
                        (name, own_value.unwrap_or_else(|| value.clone()))
                    };
                    fields.map(field).collect()
                })
            }
            _ => None,
        }
    }
}

/// Whether an added word is a special token by its form, whatever its file says of it, as llama.cpp's converter tells it
/// (`does_token_look_special`).
fn looks_special(word: &str) -> bool {
    let bars = [("<|", "|>"), ("<｜", "｜>")];
    bars.iter().any(|(opening, closing)| word.starts_with(opening) && word.ends_with(closing))
}

/// The text without guards.
pub fn bare(text: &str) -> Cow<'_, str> {
    if text.contains(GUARD) { text.replace(GUARD, "").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        Marks { firsts: ['<', '['].into(), ..Marks::default() }
    }

    #[test]
    fn letters_with_which_marks_begin_have_a_guard() {
        let marks = marks();
        assert_eq!(marks.guarded("a <|b|> [c"), "a <\u{FDD1}|b|> [\u{FDD1}c");
        assert!(matches!(marks.guarded("no mark|>"), Cow::Borrowed(_)));
        assert_eq!((marks.guards("a <|b|> [c"), marks.guards("no mark|>")), (2, 0));
        assert_eq!(bare(&marks.guarded("<<[é")), "<<[é");
    }

    #[test]
    fn values_are_guarded_wherever_they_hold_text() {
        let json = serde_json::json!({ "<b": [1, "x<", { "c": 2.0 }], "a": null });
        assert_eq!(marks().guards_of(&json), 2);
        let guarded = marks().guarded_value(&Value::from(Serde(json)));
        let text = serde_json::to_string(&guarded).unwrap();
        assert_eq!(text, "{\"<\u{FDD1}b\":[1,\"x<\u{FDD1}\",{\"c\":2.0}],\"a\":null}");
        let plain = serde_json::json!({ "b": [1, "x"] });
        assert_eq!(marks().of_json(&plain), None);
    }
}
