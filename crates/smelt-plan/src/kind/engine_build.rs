//! `engine-build`: ONNX to an engine (trtexec's job).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::definition::{
    Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, Values, field,
};
use super::words::{made_with, param, words};
use super::{BACKEND, CALIBRATION, ENGINE, GRAPH, IMPLIED_TARGET, TACTICS, TARGET};

words! {
    /// Who executes a graph.
    GraphBackend {
        /// smelt's own engine.
        Native = "native",
        /// ONNX Runtime, which takes the graph as it is.
        OnnxRuntime = "onnxruntime",
        /// NVIDIA's TensorRT for RTX, whose builder needs no GPU.
        TensorRtRtx = "tensorrt-rtx",
        /// NVIDIA's TensorRT, by its program `trtexec`, which builds on the GPU that it builds for.
        TensorRt = "tensorrt",
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
        /// Of 7.5, by TensorRT.
        Sm75 = "sm75",
        /// Of 8.0.
        Sm80 = "sm80",
        /// Of 8.6.
        Sm86 = "sm86",
        /// Of 8.7: Jetson Orin.
        Sm87 = "sm87",
        /// Of 8.9.
        Sm89 = "sm89",
        /// Of 9.0: Hopper.
        Sm90 = "sm90",
        /// Of 10.0.
        Sm100 = "sm100",
        /// Of 11.0: Jetson Thor.
        Sm110 = "sm110",
        /// Of 12.0.
        Sm120 = "sm120",
        /// Of 12.1.
        Sm121 = "sm121",
    }
}

impl GraphTarget {
    /// The compute capability that TensorRT builds for, as 87 for 8.7; nothing of targets that are not TensorRT's.
    pub const fn capability(self) -> Option<u32> {
        match self {
            Self::Cpu | Self::CudaSm87 | Self::CudaSm90 | Self::CudaSm110 => None,
            Self::Sm75 => Some(75),
            Self::Sm80 => Some(80),
            Self::Sm86 => Some(86),
            Self::Sm87 => Some(87),
            Self::Sm89 => Some(89),
            Self::Sm90 => Some(90),
            Self::Sm100 => Some(100),
            Self::Sm110 => Some(110),
            Self::Sm120 => Some(120),
            Self::Sm121 => Some(121),
        }
    }

    /// Whether a back end builds for it.
    const fn is_of(self, backend: GraphBackend) -> bool {
        match backend {
            GraphBackend::Native => self.capability().is_none(),
            GraphBackend::OnnxRuntime => matches!(self, Self::Cpu),
            GraphBackend::TensorRt => self.capability().is_some(),
            // It is for cards of desktops alone.
            GraphBackend::TensorRtRtx => {
                self.capability().is_some()
                    && !matches!(self, Self::Sm87 | Self::Sm90 | Self::Sm100 | Self::Sm110)
            }
        }
    }
}

words! {
    /// How an engine computes products.
    GraphPrecision {
        /// In f32, weights as they are given.
        F32 = "f32",
        /// In integers, weights and activations in 8 bits.
        Int8 = "int8",
        /// In half precision where TensorRT finds that faster.
        F16 = "f16",
        /// In the upper half of an f32, in the same way.
        Bf16 = "bf16",
        /// In the types that the graph has, by TensorRT.
        StronglyTyped = "strongly-typed",
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
    /// Streams that the engine may use besides its first.
    pub aux_streams: Option<u32>,
    /// Libraries of kernels that are looked at or left out, as `+CUBLAS` and `-CUDNN`.
    #[serde(default)]
    pub tactic_sources: Vec<String>,
    /// Types and layouts of the inputs, in their order, as `fp16:chw`.
    #[serde(default)]
    pub input_formats: Vec<String>,
    /// The same of the outputs.
    #[serde(default)]
    pub output_formats: Vec<String>,
    /// The core of the deep-learning accelerator that runs it.
    pub dla: Option<u32>,
    /// Whether layers that the accelerator has not run on the GPU.
    #[serde(default)]
    pub gpu_fallback: bool,
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
/// The fields of `trtexec` alone.
const AUX_STREAMS: &str = "aux-streams";
const TACTIC_SOURCES: &str = "tactic-sources";
const INPUT_FORMATS: &str = "input-formats";
const OUTPUT_FORMATS: &str = "output-formats";
const DLA: &str = "dla";
const GPU_FALLBACK: &str = "gpu-fallback";
const TIMING: &str = "timing";
/// More streams than a graph has branches are none that it uses.
const AUX_STREAMS_MAX: u64 = 16;
/// Jetson AGX Orin has two cores, and no device more.
const DLA_CORE_MAX: u64 = 1;

const OF_TENSORRT: [&str; 3] = [SIZES, WORKSPACE, LEVEL];
const OF_TRTEXEC: [&str; 7] =
    [AUX_STREAMS, TACTIC_SOURCES, INPUT_FORMATS, OUTPUT_FORMATS, DLA, GPU_FALLBACK, TIMING];

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
    field(AUX_STREAMS, Takes::Count(0, AUX_STREAMS_MAX), Absent::Nothing),
    field(TACTIC_SOURCES, Takes::Texts, Absent::Nothing),
    field(INPUT_FORMATS, Takes::Texts, Absent::Nothing),
    field(OUTPUT_FORMATS, Takes::Texts, Absent::Nothing),
    field(DLA, Takes::Count(0, DLA_CORE_MAX), Absent::Nothing),
    field(GPU_FALLBACK, Takes::Flag, Absent::Nothing),
    field(TIMING, ENGINE, Absent::Nothing),
    field("calibration", CALIBRATION, Absent::Nothing),
];

/// Version 5: small constants stay in ONNX Runtime's graphs; windows that overlap lie row by row.
pub(super) const KIND: Definition = Definition {
    implied: &[IMPLIED_TARGET],
    smaller: "split-head or externalize before it (graph-surgery), a smaller precision",
    memory,
    tensors: |_| TensorsHandled::All,
    made_with,
    conflict,
    // TensorRT takes the kernels that were the fastest as it measured them.
    is_measured: |params| param(params, BACKEND) == Some(GraphBackend::TensorRt),
    ..Definition::new("engine-build", 5, FIELDS)
};

/// The native engine executes once what it has built.
fn memory(params: &Values) -> MemoryUse {
    match param(params, "backend") {
        Some(GraphBackend::Native) => MemoryUse::Executes,
        Some(GraphBackend::OnnxRuntime | GraphBackend::TensorRtRtx | GraphBackend::TensorRt)
        | None => MemoryUse::Unknown,
    }
}

fn conflict(params: &Values) -> Option<(String, String)> {
    let backend: GraphBackend = param(params, BACKEND)?;
    let target: GraphTarget = param(params, TARGET).unwrap_or(GraphTarget::Cpu);
    let of_target = unfit_target(backend, target).map(|why| (TARGET, why));
    let of_precision =
        || Some(("precision", unfit_precision(backend, param(params, "precision")?, target)?));
    let found = of_target
        .or_else(of_precision)
        .or_else(|| foreign_field(params, backend))
        .or_else(|| Some((SIZES, unfit_sizes(params)?)))
        .or_else(|| unfit_text(params))
        .or_else(|| unfit_dla(params));
    found.map(|(field, why)| (field.to_owned(), why))
}

/// Each back end builds for its own targets.
fn unfit_target(backend: GraphBackend, target: GraphTarget) -> Option<String> {
    let (word, backend_word) = (target.word(), backend.word());
    if target.is_of(backend) {
        return None;
    }
    let own: Vec<&str> = GraphTarget::ALL
        .iter()
        .filter(|target| target.is_of(backend))
        .map(|target| target.word())
        .collect();
    let of = GraphBackend::ALL.iter().filter(|backend| target.is_of(**backend));
    let of: Vec<String> = of.map(|backend| format!("backend = \"{}\"", backend.word())).collect();
    Some(format!(
        "\"target\": \"{word}\" is of {}; {backend_word} builds for {}",
        of.join(" and "),
        own.join(", ")
    ))
}

/// The native engine rounds weights by itself, TensorRT is told types of products, and other back ends take the graph as it
/// is.  Engines for cards multiply halves.
fn unfit_precision(
    backend: GraphBackend,
    precision: GraphPrecision,
    target: GraphTarget,
) -> Option<String> {
    let (word, backend_word, target_word) = (precision.word(), backend.word(), target.word());
    let is_of = |backend: &str| format!("\"precision\": \"{word}\" is of backend = \"{backend}\"");
    match (backend, precision) {
        (_, GraphPrecision::F32) | (GraphBackend::TensorRt, _) => None,
        (GraphBackend::Native, GraphPrecision::Int8) => (target != GraphTarget::Cpu).then(|| {
            format!(
                "\"precision\": \"{word}\" is of target = \"cpu\"; engines for {target_word} multiply halves"
            )
        }),
        (GraphBackend::Native, _) => Some(format!(
            "{}; the native engine multiplies f32 or int8",
            is_of(GraphBackend::TensorRt.word())
        )),
        (GraphBackend::OnnxRuntime | GraphBackend::TensorRtRtx, _) => {
            let of = match precision {
                GraphPrecision::Int8 => GraphBackend::Native,
                _ => GraphBackend::TensorRt,
            };
            Some(format!(
                "{}; {backend_word} takes weights as they are in the graph",
                is_of(of.word())
            ))
        }
    }
}

/// What TensorRT, or its program, alone is told.
fn foreign_field(params: &Values, backend: GraphBackend) -> Option<(&'static str, String)> {
    let given =
        |fields: &[&'static str]| fields.iter().copied().find(|field| params.contains_key(*field));
    let (rtx, program) = (GraphBackend::TensorRtRtx.word(), GraphBackend::TensorRt.word());
    let backend_word = backend.word();
    let foreign = |field: &'static str, of: String| {
        (field, format!("\"{field}\" is of backend = {of}; {backend_word} has none"))
    };
    let of_program = || given(&OF_TRTEXEC).map(|field| foreign(field, format!("\"{program}\"")));
    match backend {
        GraphBackend::TensorRt => None,
        GraphBackend::TensorRtRtx => of_program(),
        GraphBackend::Native | GraphBackend::OnnxRuntime => given(&OF_TENSORRT)
            .map(|field| foreign(field, format!("\"{rtx}\" or \"{program}\"")))
            .or_else(of_program),
    }
}

/// Words that would be read as another argument, or as more than one.
fn unfit_text(params: &Values) -> Option<(&'static str, String)> {
    let is_plain = |word: &String| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "+-_:".contains(c);
        !word.is_empty() && word.chars().all(is_letter)
    };
    let unfit = |field: &'static str, example: &str| {
        let words: Vec<String> = param(params, field)?;
        let wrong = words.into_iter().find(|word| !is_plain(word))?;
        Some((field, format!("\"{field}\": {wrong:?} is none: write one as in [\"{example}\"]")))
    };
    unfit(TACTIC_SOURCES, "-CUDNN")
        .or_else(|| unfit(INPUT_FORMATS, "fp16:chw"))
        .or_else(|| unfit(OUTPUT_FORMATS, "fp16:chw"))
}

/// The accelerator takes fixed sizes and multiplies halves or integers.
fn unfit_dla(params: &Values) -> Option<(&'static str, String)> {
    let fallback = params.get(GPU_FALLBACK).map(|_| GPU_FALLBACK);
    if !params.contains_key(DLA) {
        return fallback.map(|field| (field, format!("\"{field}\" is of \"{DLA}\"")));
    }
    let precision: GraphPrecision = param(params, "precision").unwrap_or(GraphPrecision::F32);
    if !matches!(precision, GraphPrecision::F16 | GraphPrecision::Int8) {
        let why = format!(
            "\"{DLA}\": the accelerator multiplies halves or integers: precision = \"f16\" or \"int8\""
        );
        return Some((DLA, why));
    }
    let sizes: BTreeMap<String, String> = param(params, SIZES).unwrap_or_default();
    let varies = |text: &String| SizeRange::parse(text).is_ok_and(|range| range.min != range.max);
    let (name, _) = sizes.iter().find(|(_, text)| varies(text))?;
    Some((
        SIZES,
        format!("\"{SIZES}\": {name:?} varies, and \"{DLA}\" takes fixed sizes: write one number"),
    ))
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
        assert!(message.contains("cuda-sm87") && message.contains("builds for cpu"), "{message}");
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
        check(std::slice::from_ref(&rtx), Some((TARGET, "tensorrt-rtx builds for sm75")));
        check(&[rtx.clone(), target("cuda-sm87")], Some((TARGET, "builds for")));
        check(&[backend("native"), target("sm86")], Some((TARGET, "tensorrt-rtx")));
        check(&[backend("onnxruntime"), target("sm86")], Some((TARGET, "tensorrt-rtx")));
        let level = (LEVEL, Value::from(3));
        check(&[backend("native"), level.clone()], Some((LEVEL, "native has none")));
        check(&[rtx.clone(), target("sm86"), level], None);
        let sizes = |text: &str| (SIZES, serde_json::json!({ "batch": text }));
        check(&[rtx.clone(), target("sm87")], Some((TARGET, "backend = \"tensorrt\"")));
        check(&[rtx.clone(), target("sm89"), sizes("1,2,4")], None);
        let trtexec = [backend("tensorrt"), target("sm87")];
        let with = |more: &[(&'static str, Value)]| [&trtexec[..], more].concat();
        let precision = |word: &str| ("precision", Value::from(word));
        let streams = (AUX_STREAMS, Value::from(0));
        check(&with(&[precision("strongly-typed"), streams.clone(), sizes("1,2,4")]), None);
        check(&[backend("tensorrt")], Some((TARGET, "\"cpu\" is of backend = \"native\"")));
        check(&[rtx.clone(), target("sm86"), streams], Some((AUX_STREAMS, "\"tensorrt\"")));
        check(
            &[rtx.clone(), target("sm86"), precision("f16")],
            Some(("precision", "\"tensorrt\"")),
        );
        check(&[rtx.clone(), target("sm86"), precision("int8")], Some(("precision", "native")));
        check(&[backend("native"), precision("f16")], Some(("precision", "\"tensorrt\"")));
        check(&with(&[sizes("3,2,1")]), Some((SIZES, "\"batch\"")));
        let sources = |word: &str| (TACTIC_SOURCES, serde_json::json!([word]));
        check(&with(&[sources("-CUDNN")]), None);
        check(&with(&[sources("-CUDNN,+CUBLAS --verbose")]), Some((TACTIC_SOURCES, "write one")));
        let dla = (DLA, Value::from(0));
        check(&with(std::slice::from_ref(&dla)), Some((DLA, "f16")));
        check(&with(&[dla.clone(), precision("int8"), sizes("4")]), None);
        check(&with(&[dla, precision("f16"), sizes("1,4,8")]), Some((SIZES, "fixed")));
        let fallback = (GPU_FALLBACK, Value::from(true));
        check(&with(&[fallback]), Some((GPU_FALLBACK, "\"dla\"")));
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
