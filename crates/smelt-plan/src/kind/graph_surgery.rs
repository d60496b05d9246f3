//! `graph-surgery`: ONNX to ONNX by one rule.
//!
//! Each rule has fields of its own: which it needs and may have stands in a table here.

use serde::Deserialize;

use super::definition::{
    Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, Values, field,
};
use super::words::{FloatType, param, words};
use super::{CALIBRATION, GRAPH};

words! {
    /// A rule of surgery.
    SurgeryRule {
        /// Cuts the vocabulary product into parts.
        SplitHead = "split-head",
        /// Rounds the weight of the vocabulary product to few bits.
        QuantizeHead = "quantize-head",
        /// Fixes the batch size.
        SetBatch = "set-batch",
        /// Stores equal weights once.
        Dedupe = "dedupe",
        /// Computes what is constant.
        FoldConstants = "fold-constants",
        /// Keeps what lies between values.
        Extract = "extract",
        /// Computes nodes in another float type.
        InsertCast = "insert-cast",
        /// Has products of stored weights multiply integers of 8 bits.
        InsertQdq = "insert-qdq",
        /// Makes weights inputs of the graph.
        Externalize = "externalize",
        /// Says the same in another operator set.
        ToOpset = "to-opset",
    }
}

words! {
    /// How the weight of the vocabulary product is rounded.
    HeadPrecision {
        /// 8 bits, a scale for each token.
        Int8 = "int8",
        /// 4 bits, a scale for 32 channels.
        Int4G32 = "int4-g32",
        /// 4 bits, a scale for 64 channels.
        Int4G64 = "int4-g64",
        /// 4 bits, a scale for 128 channels.
        Int4G128 = "int4-g128",
    }
}

/// The params of a stage; which of them are there follows from the rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GraphSurgery {
    /// What is done.
    pub rule: SurgeryRule,
    /// Into how many parts a head is cut.
    pub parts: Option<usize>,
    /// The most bytes of a part of it.
    pub max_bytes: Option<u64>,
    /// The output that the head gives.
    pub head: Option<String>,
    /// How its weight is rounded.
    pub scheme: Option<HeadPrecision>,
    /// The batch.
    pub size: Option<usize>,
    /// Values that become inputs.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// Values that become outputs.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// Nodes that are computed in another type, by name or operator.
    pub nodes: Option<String>,
    /// That type.
    pub to: Option<FloatType>,
    /// Nodes that stay as they are, by name or operator.
    #[serde(default)]
    pub except: Vec<String>,
    /// Weights that become inputs.
    #[serde(default)]
    pub names: Vec<String>,
    /// The operator set.
    pub opset: Option<i64>,
}

/// More parts than this serve no memory pool.
const PARTS_MAX: u64 = 256;
/// A batch on these devices; more is a mistake.
const BATCH_MAX: u64 = 65_536;

const FIELDS: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field("rule", Takes::Choice(SurgeryRule::WORDS), Absent::Refused),
    field("parts", Takes::Count(2, PARTS_MAX), Absent::Nothing),
    field("max-bytes", Takes::Bytes, Absent::Nothing),
    field("head", Takes::Text, Absent::Nothing),
    field("scheme", Takes::Choice(HeadPrecision::WORDS), Absent::Nothing),
    field("size", Takes::Count(1, BATCH_MAX), Absent::Nothing),
    field("inputs", Takes::Texts, Absent::Nothing),
    field("outputs", Takes::Texts, Absent::Nothing),
    field("nodes", Takes::Text, Absent::Nothing),
    field("to", Takes::Choice(FloatType::WORDS), Absent::Nothing),
    field("except", Takes::Texts, Absent::Nothing),
    field("calibration", CALIBRATION, Absent::Nothing),
    field("names", Takes::Texts, Absent::Nothing),
    field("opset", Takes::Count(17, 21), Absent::Nothing),
];

/// Version 2: what is zero in a rounded weight has a scale that is more than nothing.
pub(super) const KIND: Definition = Definition {
    memory: |_| MemoryUse::Streams,
    tensors: |_| TensorsHandled::All,
    conflict,
    ..Definition::new("graph-surgery", 3, FIELDS)
};

/// The fields of one rule.
struct RuleFields {
    /// Of each group exactly one field must be there.
    needs: &'static [&'static [&'static str]],
    /// Fields that may be there.
    may: &'static [&'static str],
}

const fn rule_fields(
    needs: &'static [&'static [&'static str]],
    may: &'static [&'static str],
) -> RuleFields {
    RuleFields { needs, may }
}

fn fields_of(rule: SurgeryRule) -> RuleFields {
    match rule {
        SurgeryRule::SplitHead => rule_fields(&[&["parts", "max-bytes"]], &["head"]),
        SurgeryRule::QuantizeHead => rule_fields(&[&["scheme"]], &["head"]),
        SurgeryRule::SetBatch => rule_fields(&[&["size"]], &[]),
        SurgeryRule::Dedupe | SurgeryRule::FoldConstants => rule_fields(&[], &[]),
        SurgeryRule::Extract => rule_fields(&[&["outputs"]], &["inputs"]),
        SurgeryRule::InsertCast => rule_fields(&[&["nodes"], &["to"]], &[]),
        SurgeryRule::InsertQdq => rule_fields(&[], &["except"]),
        SurgeryRule::Externalize => rule_fields(&[], &["names"]),
        SurgeryRule::ToOpset => rule_fields(&[&["opset"]], &[]),
    }
}

/// What does not go together in the params of a stage: the field at fault, and why.
fn conflict(params: &Values) -> Option<(String, String)> {
    let rule: SurgeryRule = param(params, "rule")?;
    let (word, rule) = (rule.word(), fields_of(rule));
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
    use serde_json::Value;

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
