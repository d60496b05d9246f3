//! Keys: the hash of everything a stage's result depends on.
//!
//! The recipe key covers the whole sub-recipe and is known before anything runs; the content key
//! covers the digests of the inputs, decides, and lets an unchanged output stop the wave.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::kind::Kind;

/// What a stage's key covers.
pub struct Recipe<'a> {
    /// What it does.
    pub kind: Kind,
    /// The fields that are no edges, defaults filled in.
    pub params: &'a BTreeMap<String, Value>,
    /// Per edge: the field, and the digest (content key) or recipe key of what it names.
    pub inputs: &'a [(String, Digest)],
}

/// Every part of the recipe, in an order fixed for ever.
fn walk(recipe: &Recipe<'_>, hasher: &mut Hasher) {
    hasher.field("kind", recipe.kind.name());
    hasher.field("kind-version", &recipe.kind.version().to_string());
    for (name, value) in recipe.params {
        walk_value(&format!("param {name}"), value, hasher);
    }
    for (field, digest) in recipe.inputs {
        hasher.field(&format!("input {field}"), &digest.to_string());
    }
}

/// Tables by sorted key and lists by position, so that equal values are equal text.
fn walk_value(name: &str, value: &Value, hasher: &mut Hasher) {
    match value {
        Value::Object(table) => {
            let sorted: BTreeMap<_, _> = table.iter().collect();
            hasher.field(name, &format!("table of {}", sorted.len()));
            sorted
                .iter()
                .for_each(|(key, value)| walk_value(&format!("{name}.{key}"), value, hasher));
        }
        Value::Array(list) => {
            hasher.field(name, &format!("list of {}", list.len()));
            list.iter().for_each(|value| walk_value(&format!("{name}[]"), value, hasher));
        }
        Value::String(text) => hasher.field(name, &format!("\"{text}\"")),
        Value::Null | Value::Bool(_) | Value::Number(_) => hasher.field(name, &value.to_string()),
    }
}

/// The digest of a recipe under `domain`, so that a recipe key never equals a content key.
pub fn digest(domain: KeyDomain, recipe: &Recipe<'_>) -> Digest {
    let mut hasher = Hasher(Sha256::new());
    hasher.field("domain", domain.name());
    walk(recipe, &mut hasher);
    Digest::from_bytes(hasher.0.finalize().into())
}

/// Stands for a commit of a hub in keys: its files are not known before it is fetched, but they
/// can never change.
pub fn of_commit(repo: &str, commit: &str) -> Digest {
    let mut hasher = Hasher(Sha256::new());
    hasher.field("domain", "smelt hub commit 1");
    hasher.field("repo", repo);
    hasher.field("commit", commit);
    Digest::from_bytes(hasher.0.finalize().into())
}

/// Which of the two keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDomain {
    /// Inputs are recipe keys.
    Recipe,
    /// Inputs are content digests.
    Content,
}

impl KeyDomain {
    fn name(self) -> &'static str {
        match self {
            Self::Recipe => "smelt recipe key 1",
            Self::Content => "smelt content key 1",
        }
    }
}

/// Frames every part with its length, so that "ab"+"c" and "a"+"bc" differ.
struct Hasher(Sha256);

impl Hasher {
    fn field(&mut self, name: &str, value: &str) {
        for part in [name, value] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(domain: KeyDomain, params: Value, inputs: &[(&str, u8)]) -> Digest {
        let params = params.as_object().unwrap().clone().into_iter().collect();
        let inputs: Vec<_> = inputs
            .iter()
            .map(|(name, n)| ((*name).to_owned(), Digest::from_bytes([*n; 32])))
            .collect();
        digest(domain, &Recipe { kind: Kind::Command, params: &params, inputs: &inputs })
    }

    #[test]
    fn every_part_matters() {
        let base = key(KeyDomain::Content, json!({"argv": ["ab", "c"]}), &[("inputs", 1)]);
        let others = [
            key(KeyDomain::Recipe, json!({"argv": ["ab", "c"]}), &[("inputs", 1)]),
            key(KeyDomain::Content, json!({"argv": ["a", "bc"]}), &[("inputs", 1)]),
            key(KeyDomain::Content, json!({"argv": ["ab", "c"]}), &[("inputs", 2)]),
            key(KeyDomain::Content, json!({"argv": ["ab", "c"]}), &[("other", 1)]),
            key(KeyDomain::Content, json!({"argv": ["ab", "c"]}), &[("inputs", 1), ("inputs", 1)]),
            key(KeyDomain::Content, json!({"argv": ["ab", "c"], "env": {}}), &[("inputs", 1)]),
            key(KeyDomain::Content, json!({"argv": "\"ab\""}), &[("inputs", 1)]),
        ];
        for other in others {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_number_and_its_text_differ() {
        let check = |a: Value, b: Value| {
            assert_ne!(key(KeyDomain::Content, a, &[]), key(KeyDomain::Content, b, &[]));
        };
        check(json!({"x": 1}), json!({"x": "1"}));
        check(json!({"x": true}), json!({"x": "true"}));
        check(json!({"x": ["a"]}), json!({"x": {"a": "a"}}));
    }
}
