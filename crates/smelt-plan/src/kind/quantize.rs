//! `quantize`: a checkpoint to one with other weight types.

use serde::Deserialize;

use super::definition::{
    Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, Values, field,
};
use super::words::{param, words};
use super::{CALIBRATION, CHECKPOINT};

/// Dampings that method = "best" tries for each input.
pub const BUDGET_MAX: u64 = 4;

words! {
    /// A scheme of weights: bits, group, zero points.
    WeightScheme {
        /// As the checkpoint has them.
        None = "none",
        /// 8 bits, a scale for each output.
        Int8 = "int8",
        /// 8 bits, a scale for 32 inputs.
        Int8G32 = "int8-g32",
        /// 4 bits, a scale for each output.
        Int4 = "int4",
        /// 4 bits, a scale for 32 inputs.
        Int4G32 = "int4-g32",
        /// 4 bits, a scale for 64 inputs.
        Int4G64 = "int4-g64",
        /// 4 bits, a scale for 128 inputs.
        Int4G128 = "int4-g128",
        /// 4 bits, a scale and a zero point for 32 inputs.
        Int4G32Asym = "int4-g32-asym",
        /// 4 bits, a scale and a zero point for 64 inputs.
        Int4G64Asym = "int4-g64-asym",
        /// 4 bits, a scale and a zero point for 128 inputs.
        Int4G128Asym = "int4-g128-asym",
    }
}

words! {
    /// How the integers of weights are chosen.
    RoundingMethod {
        /// The nearest.
        Rtn = "rtn",
        /// The nearest, each group clipped where its error is least.
        Mse = "mse",
        /// AWQ.
        Awq = "awq",
        /// GPTQ.
        Gptq = "gptq",
        /// GPTQ, the largest inputs first.
        GptqActOrder = "gptq-act-order",
        /// Of several ways the one that costs a weight's outputs least.
        Best = "best",
    }
}

words! {
    /// The format of a quantised checkpoint.
    CheckpointFormat {
        /// smelt's own.
        Smelt = "smelt",
        /// compressed-tensors, as vLLM reads it.
        CompressedTensors = "compressed-tensors",
        /// AutoAWQ's.
        Awq = "awq",
        /// GPTQ's.
        Gptq = "gptq",
        /// TensorRT-LLM's, as its 0.12 reads it.
        TensorRtLlm = "tensorrt-llm",
    }
}

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Quantize {
    /// Of the linear weights of the layers.
    pub scheme: WeightScheme,
    /// Of the head, where it is another one.
    pub head: Option<WeightScheme>,
    /// Of the embeddings, where they are not left as they are.
    pub embeddings: Option<WeightScheme>,
    /// How integers are chosen.
    pub method: RoundingMethod,
    /// Dampings that the best way is looked for among.
    pub budget: Option<usize>,
    /// Patterns of names of tensors that stay floats.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether weights that are integers already are rounded once more.
    #[serde(default)]
    pub allow_requantize: bool,
    /// What is written.
    pub format: CheckpointFormat,
}

const FIELDS: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("scheme", Takes::Choice(WeightScheme::WORDS), Absent::Refused),
    field("head", Takes::Choice(WeightScheme::WORDS), Absent::Nothing),
    field("embeddings", Takes::Choice(WeightScheme::WORDS), Absent::Nothing),
    field("method", Takes::Choice(RoundingMethod::WORDS), Absent::Word(RoundingMethod::Rtn.word())),
    field("budget", Takes::Count(1, BUDGET_MAX), Absent::Nothing),
    field("calibration", CALIBRATION, Absent::Nothing),
    field("exclude", Takes::Texts, Absent::Nothing),
    field("allow-requantize", Takes::Flag, Absent::Nothing),
    field(
        "format",
        Takes::Choice(CheckpointFormat::WORDS),
        Absent::Word(CheckpointFormat::Smelt.word()),
    ),
];

/// Version 9: errors are carried by the factor of the Hessian where inputs are few, best tries three dampings; other
/// programs find what stays floats, the head among it.
pub(super) const KIND: Definition = Definition {
    memory,
    tensors: |_| TensorsHandled::Llm,
    conflict,
    ..Definition::new("quantize", 10, FIELDS)
};

/// Rounding alone streams; the other methods solve for every layer's inputs.
fn memory(params: &Values) -> MemoryUse {
    match param(params, "method") {
        None | Some(RoundingMethod::Rtn | RoundingMethod::Mse) => MemoryUse::Streams,
        Some(RoundingMethod::Best) => MemoryUse::Learns,
        Some(RoundingMethod::Awq | RoundingMethod::Gptq | RoundingMethod::GptqActOrder) => {
            MemoryUse::Unknown
        }
    }
}

fn conflict(params: &Values) -> Option<(String, String)> {
    idle_budget(params).or_else(|| unread_order(params)).or_else(|| unread_rows(params))
}

/// A budget is what is spent on looking for the best way.
fn idle_budget(params: &Values) -> Option<(String, String)> {
    let method: RoundingMethod = param(params, "method")?;
    let message = || format!("is for method = \"best\"; {} tries one way alone", method.word());
    let is_idle = params.contains_key("budget") && method != RoundingMethod::Best;
    is_idle.then(|| ("budget".to_owned(), message()))
}

/// compressed-tensors 0.20, which transformers 5 reads them by, refuses sorted columns; TensorRT-LLM 0.12 reads none.
fn unread_order(params: &Values) -> Option<(String, String)> {
    let is_sorted = param(params, "method") == Some(RoundingMethod::GptqActOrder);
    let unread = match param(params, "format")? {
        CheckpointFormat::CompressedTensors => "compressed-tensors reads no more",
        CheckpointFormat::TensorRtLlm => "tensorrt-llm does not read",
        CheckpointFormat::Smelt | CheckpointFormat::Awq | CheckpointFormat::Gptq => return None,
    };
    is_sorted.then(|| {
        let why = format!(
            "gptq-act-order sorts columns, which {unread}; use method = \"gptq\", or format = \"gptq\""
        );
        ("method".to_owned(), why)
    })
}

/// 4 bits with one scale for each output are TensorRT-LLM's alone; engines and others have groups.
fn unread_rows(params: &Values) -> Option<(String, String)> {
    let is_read = param(params, "format") == Some(CheckpointFormat::TensorRtLlm);
    let asks = |field: &&str| param(params, field) == Some(WeightScheme::Int4);
    let field = ["scheme", "head", "embeddings"].into_iter().find(asks).filter(|_| !is_read)?;
    let why = "int4 has one scale for each output, which only format = \"tensorrt-llm\" takes; use int4-g128";
    Some((field.to_owned(), why.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
        for format in ["compressed-tensors", "tensorrt-llm"] {
            assert_eq!(refused(format).as_deref(), Some("method"));
        }
        assert_eq!((refused("gptq"), refused("smelt")), (None, None));
    }

    #[test]
    fn four_bits_without_groups_go_to_the_format_that_takes_them() {
        let refused = |field: &str, format: &str| {
            let params = [(field, "int4"), ("format", format)];
            let params = params.map(|(name, value)| (name.to_owned(), Value::from(value)));
            conflict(&params.into()).map(|(field, _)| field)
        };
        for field in ["scheme", "head", "embeddings"] {
            assert_eq!(refused(field, "smelt").as_deref(), Some(field));
            assert_eq!(refused(field, "gptq").as_deref(), Some(field));
        }
        assert_eq!(refused("scheme", "tensorrt-llm"), None);
    }
}
