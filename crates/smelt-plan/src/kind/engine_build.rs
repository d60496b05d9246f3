//! `engine-build`: ONNX to an engine (trtexec's job).

use serde::Deserialize;

use super::definition::{
    Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, Values, field,
};
use super::words::{EngineTarget, made_with, param, words};
use super::{BACKEND, GRAPH, IMPLIED_TARGET, TACTICS, TARGET};

words! {
    /// Who executes a graph.
    GraphBackend {
        /// smelt's own engine.
        Native = "native",
        /// ONNX Runtime, which takes the graph as it is.
        OnnxRuntime = "onnxruntime",
    }
}

words! {
    /// How the native engine computes products.
    GraphPrecision {
        /// In f32, weights as they are given.
        F32 = "f32",
        /// In integers, weights and activations in 8 bits.
        Int8 = "int8",
    }
}

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EngineBuild {
    /// Who executes the graph.
    pub backend: GraphBackend,
    /// How products are computed.
    pub precision: GraphPrecision,
    /// What runs it.
    pub target: EngineTarget,
}

const FIELDS: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field(BACKEND, Takes::Choice(GraphBackend::WORDS), Absent::Word(GraphBackend::Native.word())),
    field(
        "precision",
        Takes::Choice(GraphPrecision::WORDS),
        Absent::Word(GraphPrecision::F32.word()),
    ),
    field(TARGET, Takes::Choice(EngineTarget::WORDS), Absent::Word(EngineTarget::Cpu.word())),
    field("tactics", TACTICS, Absent::Nothing),
];

/// Version 5: small constants stay in ONNX Runtime's graphs; windows that overlap lie row by row.
pub(super) const KIND: Definition = Definition {
    implied: &[IMPLIED_TARGET],
    smaller: "split-head or externalize before it (graph-surgery), a smaller precision",
    memory,
    tensors: |_| TensorsHandled::All,
    made_with,
    conflict,
    ..Definition::new("engine-build", 5, FIELDS)
};

/// The native engine executes once what it has built.
fn memory(params: &Values) -> MemoryUse {
    match param(params, "backend") {
        Some(GraphBackend::Native) => MemoryUse::Executes,
        Some(GraphBackend::OnnxRuntime) | None => MemoryUse::Unknown,
    }
}

/// Precisions are the native engine's: another back end takes the graph as it is.  So are engines for cards, whose products
/// take halves.
fn conflict(params: &Values) -> Option<(String, String)> {
    let backend: GraphBackend = param(params, BACKEND)?;
    let precision: GraphPrecision = param(params, "precision")?;
    let target: EngineTarget = param(params, TARGET).unwrap_or(EngineTarget::Cpu);
    if target != EngineTarget::Cpu && backend != GraphBackend::Native {
        let (target, backend) = (target.word(), backend.word());
        let message = format!(
            "\"target\": \"{target}\" is of backend = \"native\"; engines of {backend} run on processors alone"
        );
        return Some((TARGET.to_owned(), message));
    }
    if target != EngineTarget::Cpu && precision != GraphPrecision::F32 {
        let (target, precision) = (target.word(), precision.word());
        let message = format!(
            "\"precision\": \"{precision}\" is of target = \"cpu\"; engines for {target} multiply halves"
        );
        return Some(("precision".to_owned(), message));
    }
    let message = || {
        let (backend, precision) = (backend.word(), precision.word());
        format!(
            "\"precision\": \"{precision}\" is of backend = \"native\"; {backend} takes weights as they are in the graph"
        )
    };
    let is_foreign = backend != GraphBackend::Native && precision != GraphPrecision::F32;
    is_foreign.then(|| ("precision".to_owned(), message()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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

    #[test]
    fn engines_for_cards_are_native_and_multiply_halves() {
        let of = |backend: &str, precision: &str, target: &str| {
            let words = [(BACKEND, backend), ("precision", precision), (TARGET, target)];
            let params = words.map(|(name, word)| (name.to_owned(), Value::from(word)));
            conflict(&params.into())
        };
        let (field, message) = of("onnxruntime", "f32", "cuda-sm87").unwrap();
        assert_eq!(field, TARGET);
        assert!(message.contains("cuda-sm87") && message.contains("processors"), "{message}");
        let (field, message) = of("native", "int8", "cuda-sm90").unwrap();
        assert_eq!(field, "precision");
        assert!(message.contains("cuda-sm90") && message.contains("halves"), "{message}");
        assert_eq!(of("native", "f32", "cuda-sm90"), None);
        assert_eq!(of("native", "int8", "cpu"), None);
    }
}
