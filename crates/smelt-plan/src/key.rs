//! Keys: the hash of everything a stage's result depends on.
//!
//! The recipe key covers the whole sub-recipe and is known before anything runs; the content key
//! covers the digests of the inputs, decides, and lets an unchanged output stop the wave.  The shared key covers what the
//! pipeline file says and which outputs of the other side it was made of: by it one machine finds what another has made.

use std::collections::BTreeMap;
use std::fmt::{Arguments, Write as _};
use std::path::Path;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::kind::Kind;
use crate::plan::Tool;

/// What a stage's key covers.
pub struct Recipe<'a> {
    /// What it does.
    pub kind: Kind,
    /// The fields that are no edges, defaults filled in.
    pub params: &'a BTreeMap<String, Value>,
    /// The facts about the device that it declares, and what they are.
    pub device: &'a [(&'static str, String)],
    /// The programs whose content counts.
    pub tools: &'a [Tool],
    /// Per edge: the field, and the digest (content key) or recipe key of what it names.
    pub inputs: &'a [(&'a str, Digest)],
}

/// Takes the parts of a recipe one by one: to hash them, or to show them.
trait KeySink {
    fn field(&mut self, name: Arguments<'_>, value: Arguments<'_>);
}

/// Every part of the recipe, in an order fixed for ever.
fn walk(recipe: &Recipe<'_>, sink: &mut impl KeySink) {
    sink.field(format_args!("kind"), format_args!("{}", recipe.kind.name()));
    sink.field(format_args!("kind-version"), format_args!("{}", recipe.kind.version()));
    let params = recipe.params.iter();
    for (name, value) in params.filter(|(name, value)| recipe.kind.is_keyed(name, value)) {
        walk_value(format_args!("param {name}"), value, sink);
    }
    for (name, version) in recipe.kind.made_with(recipe.params) {
        sink.field(format_args!("made with {name}"), format_args!("{version}"));
    }
    for (fact, value) in recipe.device {
        sink.field(format_args!("device {fact}"), format_args!("{value}"));
    }
    for Tool { name, pin } in recipe.tools {
        sink.field(format_args!("tool {name}"), format_args!("{}", pin.digest));
    }
    for (field, digest) in recipe.inputs {
        sink.field(format_args!("input {field}"), format_args!("{digest}"));
    }
}

/// Tables by sorted key and lists by position, so that equal values are equal text.
fn walk_value(name: Arguments<'_>, value: &Value, sink: &mut impl KeySink) {
    match value {
        Value::Object(table) => {
            let sorted: BTreeMap<_, _> = table.iter().collect();
            sink.field(name, format_args!("table of {}", sorted.len()));
            for (key, value) in sorted {
                walk_value(format_args!("{name}.{key}"), value, sink);
            }
        }
        Value::Array(list) => {
            sink.field(name, format_args!("list of {}", list.len()));
            list.iter().for_each(|value| walk_value(format_args!("{name}[]"), value, sink));
        }
        Value::String(text) => sink.field(name, format_args!("\"{text}\"")),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            sink.field(name, format_args!("{value}"));
        }
    }
}

/// The digest of a recipe under `domain`, so that a recipe key never equals a content key.
pub fn digest(domain: KeyDomain, recipe: &Recipe<'_>) -> Digest {
    let mut hasher = Hasher::new(domain.name());
    walk(recipe, &mut hasher);
    hasher.finish()
}

/// Stands for a commit of a hub in keys, or for one GGUF file of it: its files are not known before it is fetched, but they
/// can never change.
pub fn of_commit(repo: &str, commit: &str, file: Option<&str>) -> Digest {
    let mut hasher = Hasher::new("smelt hub commit 1");
    hasher.field(format_args!("repo"), format_args!("{repo}"));
    hasher.field(format_args!("commit"), format_args!("{commit}"));
    if let Some(file) = file {
        hasher.field(format_args!("file"), format_args!("{file}"));
    }
    hasher.finish()
}

/// Stands for what a pipeline names outside of the store in keys that look at nothing of it.
pub(crate) fn of_text(text: &str) -> Digest {
    let mut hasher = Hasher::new("smelt text 1");
    hasher.field(format_args!("text"), format_args!("{text}"));
    hasher.finish()
}

/// The shared key of a stage, of what the file says of it and a digest for each stage that it needs.
pub(crate) fn of_shared(spec: Digest, needs: impl Iterator<Item = Digest>) -> Digest {
    let mut hasher = Hasher::new("smelt shared key 1");
    hasher.field(format_args!("spec"), format_args!("{spec}"));
    for need in needs {
        hasher.field(format_args!("need"), format_args!("{need}"));
    }
    hasher.finish()
}

/// Stands in keys for a tree that could not be read.
pub(crate) fn of_unread(path: &Path) -> Digest {
    let mut hasher = Hasher::new("smelt unread 1");
    hasher.field(format_args!("path"), format_args!("{}", path.display()));
    hasher.finish()
}

/// Which of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDomain {
    /// Inputs are texts of the file; nothing of the machine counts.
    Spec,
    /// Inputs are recipe keys.
    Recipe,
    /// Inputs are such keys, and neither the device nor its programs count.
    Anywhere,
    /// Inputs are content digests.
    Content,
}

impl KeyDomain {
    fn name(self) -> &'static str {
        match self {
            Self::Spec => "smelt spec key 1",
            Self::Recipe => "smelt recipe key 1",
            Self::Anywhere => "smelt recipe key of any device 1",
            Self::Content => "smelt content key 1",
        }
    }
}

/// One part of a recipe as a person reads it: its name and value.
pub type Field = (String, String);

/// What a key is made of.  The parts of a list have one name in the key; here each has its number.
pub fn fields(recipe: &Recipe<'_>) -> Vec<Field> {
    let mut shown = FieldCollector(Vec::new());
    walk(recipe, &mut shown);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in &mut shown.0 {
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if let Some(list) = name.strip_suffix("[]") {
            *name = format!("{list}[{}]", *count - 1);
        } else if *count > 1 {
            *name = format!("{name} #{count}");
        }
    }
    shown.0
}

/// Keeps the parts to show them.
struct FieldCollector(Vec<Field>);

impl KeySink for FieldCollector {
    fn field(&mut self, name: Arguments<'_>, value: Arguments<'_>) {
        self.0.push((name.to_string(), value.to_string()));
    }
}

/// Frames every part with its length, so that "ab"+"c" and "a"+"bc" differ.
struct Hasher {
    sha256: Sha256,
    /// The part at hand; kept, so that no part costs an allocation.
    text: String,
}

impl Hasher {
    fn new(domain: &str) -> Self {
        let mut hasher = Self { sha256: Sha256::new(), text: String::new() };
        hasher.field(format_args!("domain"), format_args!("{domain}"));
        hasher
    }

    fn finish(self) -> Digest {
        Digest::from_bytes(self.sha256.finalize().into())
    }
}

impl KeySink for Hasher {
    fn field(&mut self, name: Arguments<'_>, value: Arguments<'_>) {
        for part in [name, value] {
            self.text.clear();
            self.text.write_fmt(part).expect("a string takes any text");
            self.sha256.update((self.text.len() as u64).to_le_bytes());
            self.sha256.update(&self.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Pin;
    use serde_json::json;

    fn key(domain: KeyDomain, params: Value, inputs: &[(&str, u8)]) -> Digest {
        let params = params.as_object().unwrap().clone().into_iter().collect();
        let inputs: Vec<_> =
            inputs.iter().map(|(name, n)| (*name, Digest::from_bytes([*n; 32]))).collect();
        digest(
            domain,
            &Recipe {
                kind: Kind::Command,
                params: &params,
                device: &[],
                tools: &[],
                inputs: &inputs,
            },
        )
    }

    #[test]
    fn a_target_enters_the_key_with_its_compiler_and_processors_leave_it_as_it_was() {
        let shown = |params: Value| {
            let params = params.as_object().unwrap().clone().into_iter().collect();
            let kind = Kind::LlmEngineBuild;
            fields(&Recipe { kind, params: &params, device: &[], tools: &[], inputs: &[] })
        };
        assert_eq!(shown(json!({ "target": "cpu" })), shown(json!({})));
        let orin = shown(json!({ "target": "cuda-sm87" }));
        let more: Vec<&str> = orin[2..].iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(more, ["param target", "made with compiler", "made with layout"]);
        assert_ne!(orin, shown(json!({ "target": "cuda-sm90" })));
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
    fn what_a_program_may_do_does_not_matter() {
        let params = |writes: Value| json!({"argv": ["ab", "c"], "writes": writes, "capabilities": ["mknod"], "secrets": ["T"]});
        for domain in [KeyDomain::Recipe, KeyDomain::Content] {
            let without = key(domain, json!({"argv": ["ab", "c"]}), &[]);
            assert_eq!(key(domain, params(json!(["/"])), &[]), without);
        }
    }

    #[test]
    fn device_facts_matter_where_they_are_declared() {
        let params = BTreeMap::new();
        let of = |device: &[(&'static str, String)]| {
            let recipe =
                Recipe { kind: Kind::Command, params: &params, device, tools: &[], inputs: &[] };
            (digest(KeyDomain::Content, &recipe), fields(&recipe))
        };
        let (none, _) = of(&[]);
        let (orin, shown) = of(&[("gpu", "Orin".to_owned())]);
        let (other, _) = of(&[("gpu", "Xavier".to_owned())]);
        assert!(none != orin && orin != other);
        assert!(shown.contains(&("device gpu".to_owned(), "Orin".to_owned())), "{shown:?}");
    }

    #[test]
    fn programs_matter_by_their_content() {
        let params = BTreeMap::new();
        let of = |content: &[u8]| {
            let pin = Pin { path: "/a/tool.sh".into(), digest: Digest::of(content) };
            let tools = [Tool { name: "/a/tool.sh".to_owned(), pin }];
            let recipe = Recipe {
                kind: Kind::Command,
                params: &params,
                device: &[],
                tools: &tools,
                inputs: &[],
            };
            digest(KeyDomain::Content, &recipe)
        };
        assert_ne!(of(b"x"), of(b"y"));
    }

    #[test]
    fn what_is_shown_is_what_is_hashed() {
        let params = json!({"argv": ["a", "b"], "env": {"X": "1"}});
        let params: BTreeMap<String, Value> = serde_json::from_value(params).unwrap();
        let inputs = [("inputs path", Digest::of(b"x")), ("inputs path", Digest::of(b"y"))];
        let recipe = Recipe {
            kind: Kind::Command,
            params: &params,
            device: &[],
            tools: &[],
            inputs: &inputs,
        };
        let names: Vec<String> = fields(&recipe).into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "kind",
                "kind-version",
                "param argv",
                "param argv[0]",
                "param argv[1]",
                "param env",
                "param env.X",
                "input inputs path",
                "input inputs path #2"
            ]
        );
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
