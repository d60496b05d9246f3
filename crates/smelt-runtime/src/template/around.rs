//! Finds what a template writes around what is said, by having it write conversations.
//!
//! A template's source does not show it: marks may be made of roles, or come out of variables.  Knows nothing of tokens.

use super::{ContentFormat, Context, Template, Value};

/// What is said.  No template writes it by itself.
const WORD: &str = "heedlessness";

/// Who says it.  Templates refuse what their models were not trained on, so there are several conversations.
const CONVERSATIONS: [&[&str]; 4] = [
    &["system", "user", "assistant", "user", "assistant", "user"],
    &["user", "assistant", "user", "assistant", "user"],
    &["user", "assistant", "tool", "user"],
    &["user"],
];

/// All that `template` writes before, between and behind what is said.
pub(super) fn around(template: &Template) -> Vec<String> {
    let written = |roles: &&[&str]| {
        let messages: Vec<Value> = roles.iter().map(|role| message(template, role)).collect();
        template.render(&messages, true, 0, &Context::default()).ok()
    };
    let mut all: Vec<String> = Vec::new();
    for text in CONVERSATIONS.iter().filter_map(written) {
        all.extend(text.split(WORD).map(str::to_owned));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The word as `role` says it.
fn message(template: &Template, role: &str) -> Value {
    let content = match template.content_format {
        ContentFormat::Parts => {
            Value::from(vec![Value::from_pairs([("type", "text"), ("text", WORD)])])
        }
        ContentFormat::Text | ContentFormat::Either => Value::from(WORD),
    };
    Value::from_pairs([("role", Value::from(role)), ("content", content)])
}
