//! `quantize`: a checkpoint to one with other weight types.

use serde_json::Value;

use super::definition::{Absent, Definition, Field, Takes, Values, field};
use super::{CALIBRATION, CHECKPOINT};

/// Dampings that method = "best" tries for each input.
pub const BUDGET_MAX: u64 = 4;
/// The schemes of weights: bits, group, zero points.
pub const SCHEMES: &[&str] = &[
    "none",
    "int8",
    "int8-g32",
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "int4-g32-asym",
    "int4-g64-asym",
    "int4-g128-asym",
];
/// The forms of a quantised checkpoint: smelt's own, and those that other servers load.
const FORMATS: &[&str] = &["smelt", "compressed-tensors", "awq", "gptq"];
/// The ways to choose the integers of weights.
pub const METHODS: &[&str] = &["rtn", "mse", "awq", "gptq", "gptq-act-order", "best"];

const FIELDS: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("scheme", Takes::Choice(SCHEMES), Absent::Refused),
    field("head", Takes::Choice(SCHEMES), Absent::Nothing),
    field("embeddings", Takes::Choice(SCHEMES), Absent::Nothing),
    field("method", Takes::Choice(METHODS), Absent::Word("rtn")),
    field("budget", Takes::Count(1, BUDGET_MAX), Absent::Nothing),
    field("calibration", CALIBRATION, Absent::Nothing),
    field("exclude", Takes::Texts, Absent::Nothing),
    field("allow-requantize", Takes::Flag, Absent::Nothing),
    field("format", Takes::Choice(FORMATS), Absent::Word("smelt")),
];

/// Version 9: errors are carried by the factor of the Hessian where inputs are few, best tries three dampings; other
/// programs find what stays floats, the head among it.
pub(super) const KIND: Definition =
    Definition { conflict, ..Definition::new("quantize", 9, FIELDS) };

fn conflict(params: &Values) -> Option<(String, String)> {
    idle_budget(params).or_else(|| unread_order(params))
}

/// A budget is what is spent on looking for the best way.
fn idle_budget(params: &Values) -> Option<(String, String)> {
    let method = params.get("method").and_then(Value::as_str)?;
    let message = || format!("is for method = \"best\"; {method} tries one way alone");
    let is_idle = params.contains_key("budget") && method != "best";
    is_idle.then(|| ("budget".to_owned(), message()))
}

/// compressed-tensors 0.20, which transformers 5 reads them by, refuses sorted columns.
fn unread_order(params: &Values) -> Option<(String, String)> {
    let word = |name: &str| params.get(name).and_then(Value::as_str);
    let is_sorted = word("method") == Some("gptq-act-order");
    (is_sorted && word("format") == Some("compressed-tensors")).then(|| {
        let why = "gptq-act-order sorts columns, which compressed-tensors reads no more; use method = \"gptq\", or format = \"gptq\"";
        ("method".to_owned(), why.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_looking_for_the_best_has_a_budget() {
        let refused = |method: &str| {
            let params = [("method", Value::from(method)), ("budget", Value::from(2))];
            let params = params.map(|(name, value)| (name.to_owned(), value));
            conflict(&params.into()).map(|(field, _)| field)
        };
        assert_eq!(refused("best"), None);
        assert_eq!(refused("gptq").as_deref(), Some("budget"));
    }

    #[test]
    fn sorted_columns_go_to_a_format_that_reads_them() {
        let refused = |format: &str| {
            let params = [("method", "gptq-act-order"), ("format", format)];
            let params = params.map(|(name, value)| (name.to_owned(), Value::from(value)));
            conflict(&params.into()).map(|(field, _)| field)
        };
        assert_eq!(refused("compressed-tensors").as_deref(), Some("method"));
        assert_eq!((refused("gptq"), refused("smelt")), (None, None));
    }
}
