//! `engine-build`: ONNX to an engine (trtexec's job).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::definition::{
    Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, Values, field,
};
use super::words::{made_with, param, words};
use super::{BACKEND, GRAPH, IMPLIED_TARGET, TACTICS, TARGET};

words! {
    /// Who executes a graph.
    GraphBackend {
        /// smelt's own engine.
        Native = "native",
        /// ONNX Runtime, which takes the graph as it is.
        OnnxRuntime = "onnxruntime",
        /// NVIDIA's TensorRT for RTX, whose builder needs no GPU.
        TensorRtRtx = "tensorrt-rtx",
    }
}

words! {
    /// What runs the engine of a graph.
    GraphTarget {
        /// Processors: every path of theirs is in one engine.
        Cpu = "cpu",
        /// NVIDIA's GPUs of compute capability 8.7, by kernels of smelt's.
        CudaSm87 = "cuda-sm87",
        /// Of 9.0.
        CudaSm90 = "cuda-sm90",
        /// Of 11.0.
        CudaSm110 = "cuda-sm110",
        /// Of 7.5, by TensorRT for RTX.
        Sm75 = "sm75",
        /// Of 8.0.
        Sm80 = "sm80",
        /// Of 8.6.
        Sm86 = "sm86",
        /// Of 8.9.
        Sm89 = "sm89",
        /// Of 12.0.
        Sm120 = "sm120",
        /// Of 12.1.
        Sm121 = "sm121",
    }
}

impl GraphTarget {
    /// The compute capability that TensorRT for RTX builds for; nothing of targets that are not its own.
    pub const fn rtx(self) -> Option<u32> {
        match self {
            Self::Cpu | Self::CudaSm87 | Self::CudaSm90 | Self::CudaSm110 => None,
            Self::Sm75 => Some(75),
            Self::Sm80 => Some(80),
            Self::Sm86 => Some(86),
            Self::Sm89 => Some(89),
            Self::Sm120 => Some(120),
            Self::Sm121 => Some(121),
        }
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
    pub target: GraphTarget,
    /// How long sizes that vary may be, by the names that the graph gives them, as [`SizeRange`] reads them.
    #[serde(default)]
    pub sizes: BTreeMap<String, String>,
    /// Bytes that kernels may use besides tensors.
    pub workspace: Option<u64>,
    /// How long the builder looks for kernels.
    pub level: Option<u32>,
}

/// How long a size that varies may be: the least, the likeliest and the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    /// The least.
    pub min: u64,
    /// What kernels are chosen for.
    pub opt: u64,
    /// The most.
    pub max: u64,
}

/// TensorRT counts the numbers of a tensor in 31 bits, so no size of one is longer.
const SIZE_MAX: u64 = (1 << 31) - 1;

impl SizeRange {
    /// Reads `4`, or `MIN,OPT,MAX` as in `1,4,16`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> =
            text.split(',').map(|number| number.trim().parse().ok()).collect();
        let range = match numbers.as_deref() {
            Some(&[only]) => Self { min: only, opt: only, max: only },
            Some(&[min, opt, max]) => Self { min, opt, max },
            _ => {
                return Err(format!("\"{text}\" is no size: write 4, or MIN,OPT,MAX as in 1,4,16"));
            }
        };
        let Self { min, opt, max } = range;
        if !(min <= opt && opt <= max && 0 < max && max <= SIZE_MAX) {
            return Err(format!(
                "\"{text}\" does not rise from MIN over OPT to MAX, from 1 to {SIZE_MAX} at most"
            ));
        }
        Ok(range)
    }
}

/// The fields of TensorRT alone.
const SIZES: &str = "sizes";
const WORKSPACE: &str = "workspace";
const LEVEL: &str = "level";
/// TensorRT's highest optimisation level.
const LEVEL_MAX: u64 = 5;

const FIELDS: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field(BACKEND, Takes::Choice(GraphBackend::WORDS), Absent::Word(GraphBackend::Native.word())),
    field(
        "precision",
        Takes::Choice(GraphPrecision::WORDS),
        Absent::Word(GraphPrecision::F32.word()),
    ),
    field(TARGET, Takes::Choice(GraphTarget::WORDS), Absent::Word(GraphTarget::Cpu.word())),
    field("tactics", TACTICS, Absent::Nothing),
    field(SIZES, Takes::TextTable, Absent::Nothing),
    field(WORKSPACE, Takes::Bytes, Absent::Nothing),
    field(LEVEL, Takes::Count(0, LEVEL_MAX), Absent::Nothing),
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
        Some(GraphBackend::OnnxRuntime | GraphBackend::TensorRtRtx) | None => MemoryUse::Unknown,
    }
}

fn conflict(params: &Values) -> Option<(String, String)> {
    let backend: GraphBackend = param(params, BACKEND)?;
    let target: GraphTarget = param(params, TARGET).unwrap_or(GraphTarget::Cpu);
    let of_target = unfit_target(backend, target).map(|why| (TARGET, why));
    let of_precision =
        || Some(("precision", unfit_precision(backend, param(params, "precision")?, target)?));
    let found = of_target.or_else(of_precision).or_else(|| match backend {
        GraphBackend::TensorRtRtx => Some((SIZES, unfit_sizes(params)?)),
        _ => foreign_field(params, backend),
    });
    found.map(|(field, why)| (field.to_owned(), why))
}

/// Each back end builds for its own targets.
fn unfit_target(backend: GraphBackend, target: GraphTarget) -> Option<String> {
    let word = target.word();
    match (backend, target, target.rtx()) {
        (GraphBackend::TensorRtRtx, _, None) => {
            let own = GraphTarget::ALL.iter().filter(|target| target.rtx().is_some());
            let own: Vec<&str> = own.map(|target| target.word()).collect();
            let own = own.join(", ");
            Some(format!(
                "\"target\": \"{word}\" is none of backend = \"tensorrt-rtx\", which builds for {own}"
            ))
        }
        (GraphBackend::TensorRtRtx, _, Some(_)) | (_, GraphTarget::Cpu, _) => None,
        (_, _, Some(_)) => Some(format!("\"target\": \"{word}\" is of backend = \"tensorrt-rtx\"")),
        (GraphBackend::Native, _, None) => None,
        (GraphBackend::OnnxRuntime, _, None) => Some(format!(
            "\"target\": \"{word}\" is of backend = \"native\"; engines of {} run on processors alone",
            backend.word()
        )),
    }
}

/// Precisions are the native engine's: another back end takes the graph as it is.  So are engines for cards, whose products
/// take halves.
fn unfit_precision(
    backend: GraphBackend,
    precision: GraphPrecision,
    target: GraphTarget,
) -> Option<String> {
    if precision == GraphPrecision::F32 {
        return None;
    }
    let (precision, backend_word, target_word) = (precision.word(), backend.word(), target.word());
    if backend != GraphBackend::Native {
        return Some(format!(
            "\"precision\": \"{precision}\" is of backend = \"native\"; {backend_word} takes weights as they are in the graph"
        ));
    }
    (target != GraphTarget::Cpu).then(|| {
        format!(
            "\"precision\": \"{precision}\" is of target = \"cpu\"; engines for {target_word} multiply halves"
        )
    })
}

/// What TensorRT alone is told.
fn foreign_field(params: &Values, backend: GraphBackend) -> Option<(&'static str, String)> {
    let given = [SIZES, WORKSPACE, LEVEL].into_iter().find(|field| params.contains_key(*field))?;
    let backend = backend.word();
    Some((given, format!("\"{given}\" is of backend = \"tensorrt-rtx\"; {backend} has none")))
}

fn unfit_sizes(params: &Values) -> Option<String> {
    let sizes: BTreeMap<String, String> = param(params, SIZES)?;
    let fault = |(name, text): (&String, &String)| {
        SizeRange::parse(text).err().map(|why| format!("\"{SIZES}\": \"{name}\": {why}"))
    };
    sizes.iter().find_map(fault)
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

    #[test]
    fn targets_and_settings_of_tensorrt_are_its_own() {
        let check = |given: &[(&str, Value)], expect: Option<(&str, &str)>| {
            let given = given.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let found = conflict(&given.collect());
            let found = found.as_ref().map(|(field, why)| (field.as_str(), why.as_str()));
            match (found, expect) {
                (Some((field, why)), Some((expected, word))) => {
                    assert!(field == expected && why.contains(word), "{field}: {why}");
                }
                (found, expect) => assert_eq!(found, expect),
            }
        };
        let backend = |word: &str| (BACKEND, Value::from(word));
        let target = |word: &str| (TARGET, Value::from(word));
        let rtx = backend("tensorrt-rtx");
        check(&[rtx.clone(), target("sm86")], None);
        check(&[rtx.clone(), target("cpu")], Some((TARGET, "sm75, sm80, sm86")));
        check(std::slice::from_ref(&rtx), Some((TARGET, "\"cpu\" is none of")));
        check(&[rtx.clone(), target("cuda-sm87")], Some((TARGET, "builds for")));
        check(&[backend("native"), target("sm86")], Some((TARGET, "tensorrt-rtx")));
        check(&[backend("onnxruntime"), target("sm86")], Some((TARGET, "tensorrt-rtx")));
        let level = (LEVEL, Value::from(3));
        check(&[backend("native"), level.clone()], Some((LEVEL, "native has none")));
        check(&[rtx.clone(), target("sm86"), level], None);
        let sizes = |text: &str| (SIZES, serde_json::json!({ "batch": text }));
        check(&[rtx.clone(), target("sm89"), sizes("1,2,4")], None);
        check(&[rtx.clone(), target("sm89"), sizes("4,2,1")], Some((SIZES, "\"batch\"")));
        check(&[backend("native"), sizes("1")], Some((SIZES, "native")));
    }

    #[test]
    fn sizes_are_one_number_or_three_that_rise() {
        let range = |min, opt, max| Ok(SizeRange { min, opt, max });
        assert_eq!(SizeRange::parse("4"), range(4, 4, 4));
        assert_eq!(SizeRange::parse("0, 128,2048"), range(0, 128, 2048));
        for text in ["", "1,2", "1,2,3,4", "2,1,3", "1,3,2", "0", "-1", "x", "1,2,2147483648"] {
            assert!(SizeRange::parse(text).is_err(), "{text}");
        }
    }
}
