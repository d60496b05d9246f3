//! What an output of a foreign program must be to be kept: `validate = { "m.gguf" = "gguf >= 100MiB" }`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quantity;

/// The field of a `command` that says what its outputs must be.
pub const VALIDATE: &str = "validate";

/// What a file's own header says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFormat {
    /// Nothing is known of it.
    Any,
    /// A file that may hold nothing: a stamp, or a list of what went wrong.
    MayBeEmpty,
    /// A model of llama.cpp.
    Gguf,
    /// An ONNX graph.
    Onnx,
    /// A plan of TensorRT's.
    Plan,
    /// Weights.
    Safetensors,
}

impl FileFormat {
    const ALL: [(&str, Self); 6] = [
        ("any", Self::Any),
        ("may-be-empty", Self::MayBeEmpty),
        ("gguf", Self::Gguf),
        ("onnx", Self::Onnx),
        ("plan", Self::Plan),
        ("safetensors", Self::Safetensors),
    ];
}

/// What one output must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// Its form.
    pub form: FileFormat,
    /// Its least size in bytes.
    pub bytes_min: u64,
}

impl Validity {
    /// Reads `FORM` or `FORM >= SIZE`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (word, size) = match text.split_once(">=") {
            Some((word, size)) => (word.trim(), Some(size.trim())),
            None => (text.trim(), None),
        };
        let form = FileFormat::ALL.iter().find(|(name, _)| *name == word).map(|(_, form)| *form);
        let form = form.ok_or_else(|| {
            let words = FileFormat::ALL.map(|(name, _)| name).join(", ");
            format!("\"{text}\" says no form: write one of {words}, as in \"gguf >= 100MiB\"")
        })?;
        let least = u64::from(form != FileFormat::MayBeEmpty);
        if let Some(size) = size.filter(|_| least == 0) {
            return Err(format!(
                "\"{text}\": what may be empty has no least size; leave out \"{size}\""
            ));
        }
        let bytes_min =
            size.map_or(Ok(least), quantity::bytes).map_err(|error| error.to_string())?;
        Ok(Self { form, bytes_min })
    }

    /// What the params of a `command` say of its outputs; texts that say nothing were refused before.
    pub fn of(params: &BTreeMap<String, Value>) -> Vec<(String, Self)> {
        let table = params.get(VALIDATE).and_then(Value::as_object).into_iter().flatten();
        let read = |(name, text): (&String, &Value)| {
            Some((name.clone(), Self::parse(text.as_str()?).ok()?))
        };
        table.filter_map(read).collect()
    }
}

/// What is wrong with `validate`, if anything.
pub(crate) fn conflict(params: &BTreeMap<String, Value>) -> Option<(String, String)> {
    let table = params.get(VALIDATE).and_then(Value::as_object)?;
    let outputs: Vec<&str> = params
        .get("outputs")
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_str).collect());
    let is_output = |name: &str| {
        let below =
            |output: &&str| name.strip_prefix(output).is_some_and(|rest| rest.starts_with('/'));
        !name.split('/').any(|part| part == "..")
            && (outputs.contains(&name) || outputs.iter().any(below))
    };
    table.iter().find_map(|(name, text)| {
        if !is_output(name) {
            let message = format!("\"{VALIDATE}\": \"{name}\" is none of its outputs, nor in one");
            return Some((VALIDATE.to_owned(), message));
        }
        let error = Validity::parse(text.as_str().unwrap_or_default()).err()?;
        Some((VALIDATE.to_owned(), format!("\"{VALIDATE}\": {error}")))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_and_sizes() {
        let gguf = Validity { form: FileFormat::Gguf, bytes_min: 100 << 20 };
        assert_eq!(Validity::parse("gguf >= 100MiB"), Ok(gguf));
        assert_eq!(Validity::parse("any>=1GiB").unwrap().bytes_min, 1 << 30);
        assert_eq!(Validity::parse("onnx"), Ok(Validity { form: FileFormat::Onnx, bytes_min: 1 }));
        assert_eq!(Validity::parse("may-be-empty").unwrap().bytes_min, 0);
        for text in ["may-be-empty >= 1KiB", "", "engine", "gguf 5MiB", "gguf >= 5", ">= 5MiB"] {
            assert!(Validity::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_outputs_are_validated() {
        let params = |validate: Value| {
            [("outputs".to_owned(), json!(["o", "dir"])), (VALIDATE.to_owned(), validate)].into()
        };
        assert_eq!(conflict(&params(json!({ "o": "any", "dir/m.gguf": "gguf" }))), None);
        for (name, text) in [("p", "any"), ("directory", "any"), ("dir/../x", "any"), ("o", "x")] {
            assert!(conflict(&params(json!({ name: text }))).is_some(), "{name} {text}");
        }
    }
}
