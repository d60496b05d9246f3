//! `graph-surgery`: ONNX to ONNX by one rule.
//!
//! Each rule has fields of its own: which it needs and may have stands in a table here.

use serde_json::Value;

use super::GRAPH;
use super::definition::{Absent, Definition, Field, Takes, Values, field};

/// More parts than this serve no memory pool.
const PARTS_MAX: u64 = 256;
/// A batch on these devices; more is a mistake.
const BATCH_MAX: u64 = 65_536;

const FIELDS: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field("rule", Takes::Choice(&WORDS), Absent::Refused),
    field("parts", Takes::Count(2, PARTS_MAX), Absent::Nothing),
    field("max-bytes", Takes::Bytes, Absent::Nothing),
    field("head", Takes::Text, Absent::Nothing),
    field("scheme", Takes::Choice(&["int8", "int4-g32", "int4-g64", "int4-g128"]), Absent::Nothing),
    field("size", Takes::Count(1, BATCH_MAX), Absent::Nothing),
    field("inputs", Takes::Texts, Absent::Nothing),
    field("outputs", Takes::Texts, Absent::Nothing),
    field("nodes", Takes::Text, Absent::Nothing),
    field("to", Takes::Choice(&["f32", "f16", "bf16"]), Absent::Nothing),
    field("names", Takes::Texts, Absent::Nothing),
    field("opset", Takes::Count(17, 21), Absent::Nothing),
];

pub(super) const KIND: Definition =
    Definition { conflict, ..Definition::new("graph-surgery", 1, FIELDS) };

/// A rule of surgery, as a pipeline names it.
struct Rule {
    name: &'static str,
    /// Of each group exactly one field must be there.
    needs: &'static [&'static [&'static str]],
    /// Fields that may be there.
    may: &'static [&'static str],
}

const fn rule(
    name: &'static str,
    needs: &'static [&'static [&'static str]],
    may: &'static [&'static str],
) -> Rule {
    Rule { name, needs, may }
}

const RULES: [Rule; 9] = [
    rule("split-head", &[&["parts", "max-bytes"]], &["head"]),
    rule("quantize-head", &[&["scheme"]], &["head"]),
    rule("set-batch", &[&["size"]], &[]),
    rule("dedupe", &[], &[]),
    rule("fold-constants", &[], &[]),
    rule("extract", &[&["outputs"]], &["inputs"]),
    rule("insert-cast", &[&["nodes"], &["to"]], &[]),
    rule("externalize", &[], &["names"]),
    rule("to-opset", &[&["opset"]], &[]),
];

/// The words a pipeline may write for `rule`.
const WORDS: [&str; RULES.len()] = {
    let mut words = [""; RULES.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = RULES[at].name;
        at += 1;
    }
    words
};

/// What does not go together in the params of a stage: the field at fault, and why.
fn conflict(params: &Values) -> Option<(String, String)> {
    let word = params.get("rule").and_then(Value::as_str)?;
    let rule = RULES.iter().find(|rule| rule.name == word)?;
    for group in rule.needs {
        match group.iter().filter(|name| params.contains_key(**name)).count() {
            1 => {}
            0 => {
                let list = quoted(group, " or ");
                return Some(("rule".to_owned(), format!("rule \"{word}\" needs {list}")));
            }
            _ => {
                let why = format!("rule \"{word}\" takes only one of {}", quoted(group, ", "));
                return Some((group[1].to_owned(), why));
            }
        }
    }
    let known = |name: &str| {
        name == "rule" || rule.may.contains(&name) || rule.needs.concat().contains(&name)
    };
    let name = params.keys().find(|name| !known(name))?;
    let taken = [rule.needs.concat(), rule.may.to_vec()].concat();
    let takes = if taken.is_empty() { "nothing".to_owned() } else { quoted(&taken, ", ") };
    Some((name.clone(), format!("rule \"{word}\" has no \"{name}\"; it takes {takes}")))
}

fn quoted(names: &[&str], between: &str) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pairs: &[(&str, Value)], field: &str, words: &str) {
        let params = pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let (at, why) = conflict(&params.collect()).unwrap();
        assert_eq!(at, field, "{why}");
        assert!(why.contains(words), "{why}");
    }

    #[test]
    fn fields_that_do_not_go_together_are_told_apart() {
        let [split, fold] = ["split-head", "fold-constants"].map(Value::from);
        check(&[("rule", split.clone())], "rule", "needs \"parts\" or \"max-bytes\"");
        let both = [("rule", split), ("parts", 2.into()), ("max-bytes", 9.into())];
        check(&both, "max-bytes", "only one of \"parts\", \"max-bytes\"");
        check(&[("rule", fold), ("size", 1.into())], "size", "it takes nothing");
        let cast = [("rule", "insert-cast".into()), ("nodes", "Gemm".into())];
        check(&cast, "rule", "needs \"to\"");
    }

    #[test]
    fn what_goes_together_is_let_through() {
        for pairs in [
            vec![("rule", Value::from("split-head")), ("parts", 2.into()), ("head", "x".into())],
            vec![("rule", "externalize".into())],
            vec![("rule", "to-opset".into()), ("opset", 18.into())],
        ] {
            let params = pairs.into_iter().map(|(name, value)| (name.to_owned(), value));
            assert_eq!(conflict(&params.collect()), None);
        }
    }
}
