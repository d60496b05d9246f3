//! `engine-build`: ONNX to an engine (trtexec's job).

use serde_json::Value;

use super::definition::{Absent, Definition, Field, Takes, Values, field};
use super::{BACKEND, GRAPH, TACTICS};

const FIELDS: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field(BACKEND, Takes::Choice(&["native", "onnxruntime"]), Absent::Word("native")),
    field("precision", Takes::Choice(&["f32", "int8"]), Absent::Word("f32")),
    field("tactics", TACTICS, Absent::Nothing),
];

/// Version 5: small constants stay in ONNX Runtime's graphs; windows that overlap lie row by row.
pub(super) const KIND: Definition = Definition {
    smaller: "split-head or externalize before it (graph-surgery), a smaller precision",
    conflict,
    ..Definition::new("engine-build", 5, FIELDS)
};

/// Precisions are the native engine's: another back end takes the graph as it is.
fn conflict(params: &Values) -> Option<(String, String)> {
    let word = |name: &str| params.get(name).and_then(Value::as_str);
    let (backend, precision) = (word(BACKEND)?, word("precision")?);
    let message = || {
        format!(
            "\"precision\": \"{precision}\" is of backend = \"native\"; {backend} takes weights as they are in the graph"
        )
    };
    (backend != "native" && precision != "f32").then(|| ("precision".to_owned(), message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_native_engine_rounds_weights() {
        let refused = |backend: &str, precision: &str| {
            let words = [("backend", backend), ("precision", precision)];
            let params = words.map(|(name, word)| (name.to_owned(), Value::from(word)));
            conflict(&params.into()).map(|(field, _)| field)
        };
        assert_eq!(refused("onnxruntime", "int8").as_deref(), Some("precision"));
        assert_eq!(refused("onnxruntime", "f32"), None);
        assert_eq!(refused("native", "int8"), None);
    }
}
