//! Lists the stage kinds and what each takes; one table serves parsing, keys and messages.
//!
//! Knows the shape of a stage, not what it does: the command's workers give the kinds meaning.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::validity::VALIDATE;

/// What a stage does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A checkpoint: of a hub, a directory given by path, or a synthetic one.
    Source,
    /// Checkpoint to ONNX.
    OnnxExport,
    /// ONNX to ONNX by one rule.
    GraphSurgery,
    /// Checkpoint and prompts to statistics of what goes into its layers.
    Calibrate,
    /// Checkpoint to a checkpoint with other weight types.
    Quantize,
    /// ONNX to an engine (trtexec's job).
    EngineBuild,
    /// Checkpoint to a decoder engine (trtllm-build's job).
    LlmEngineBuild,
    /// How engines are run best on this machine.
    Tune,
    /// Engines against the f32 reference.
    Verify,
    /// Engines, tokenizer and preprocessing in the shape `chat` loads.
    Deployment,
    /// Any program.
    Command,
}

/// What a field of a stage holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// The name of a stage of one of these kinds: an edge.
    Stage(&'static [Kind]),
    /// The same, or a non-empty list of such names: engines for several devices, an edge each.
    Stages(&'static [Kind]),
    /// `hf:ORG/NAME[@REV][:FILE]`, `path:DIR` or `synthetic:NAME`.
    Source,
    /// `path:FILE` or `path:DIR`: an edge.
    Path,
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number in this closed range.
    Count(u64, u64),
    /// `true` or `false`.
    Flag,
    /// A size such as `200MiB`; the worker sees bytes.
    Bytes,
    /// A non-empty list of texts.
    Texts,
    /// A non-empty list of some of these words.
    Words(&'static [&'static str]),
    /// A non-empty list of names of files or directories, relative and without `..`.
    Names,
    /// A non-empty list of files or directories: absolute, from `~`, or relative to the pipeline file.
    Places,
    /// A list of stage names and `path:…` texts: edges.
    Inputs,
    /// A table of texts.
    TextTable,
}

/// What a field is when the file does not give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// An error.
    Refused,
    /// Nothing; the worker sees no such param.
    Nothing,
    /// This word, as if written.
    Word(&'static str),
    /// This number, as if written.
    Number(u64),
}

/// One field of a stage kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The key in the pipeline file.
    pub name: &'static str,
    /// What it holds.
    pub takes: Takes,
    /// What its absence means.
    pub absent: Absent,
}

const fn field(name: &'static str, takes: Takes, absent: Absent) -> Field {
    Field { name, takes, absent }
}

/// Stages whose output is a checkpoint; a `command` may make anything.
const CHECKPOINT: Takes = Takes::Stage(&[Kind::Source, Kind::Command]);
const ENGINE: Takes = Takes::Stage(&[Kind::EngineBuild, Kind::Command]);
const LLM_ENGINE: Takes = Takes::Stage(&[Kind::LlmEngineBuild, Kind::Command]);
/// Engines that answer alike, of which each device runs one.
const ENGINES: Takes = Takes::Stages(&[Kind::EngineBuild, Kind::Command]);
const LLM_ENGINES: Takes = Takes::Stages(&[Kind::LlmEngineBuild, Kind::Command]);
/// The field that names what builds and runs an engine.
pub const BACKEND: &str = "backend";
/// The longest sequence that a configuration of the families here declares (Llama 3.1).
const SEQ_LEN_MAX: u64 = 131_072;
/// Slots share one pass over the weights; more than this is a server farm, not a board.
const SLOTS_MAX: u64 = 64;

const SOURCE: &[Field] = &[field("from", Takes::Source, Absent::Refused)];
const ONNX_EXPORT: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field(
        "part",
        Takes::Choice(&["vision", "llm", "encoder", "classifier"]),
        Absent::Word("vision"),
    ),
    field("dtype", Takes::Choice(&["f32", "f16", "bf16"]), Absent::Word("f32")),
    field("grids", Takes::Texts, Absent::Nothing),
    field("input", Takes::Choice(&["ids", "embeds"]), Absent::Nothing),
    field("probe", Takes::Flag, Absent::Nothing),
];
/// Stages whose output is a graph.
const GRAPH: Takes = Takes::Stage(&[Kind::OnnxExport, Kind::GraphSurgery, Kind::Command]);
/// More parts than this serve no memory pool.
const PARTS_MAX: u64 = 256;
/// A batch on these devices; more is a mistake.
const BATCH_MAX: u64 = 65_536;
/// Which of these go together is in `surgery`.
const GRAPH_SURGERY: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field("rule", Takes::Choice(&crate::surgery::WORDS), Absent::Refused),
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
/// Quantisers square the number of tokens kept.
const CALIBRATION_TOKENS_MAX: u64 = 4096;
/// Dampings that method = "best" tries for each input.
pub const BUDGET_MAX: u64 = 4;
const CALIBRATE: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("texts", Takes::Texts, Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    field("images", Takes::Path, Absent::Nothing),
    field("vision", ENGINE, Absent::Nothing),
    field("tokens", Takes::Count(1, CALIBRATION_TOKENS_MAX), Absent::Number(2048)),
];
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
const CALIBRATION: Takes = Takes::Stage(&[Kind::Calibrate, Kind::Command]);
const QUANTIZE: &[Field] = &[
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
const ENGINE_BUILD: &[Field] = &[
    field("onnx", GRAPH, Absent::Refused),
    field(BACKEND, Takes::Choice(&["native", "onnxruntime"]), Absent::Word("native")),
    field("precision", Takes::Choice(&["f32", "int8"]), Absent::Word("f32")),
    field("tactics", Takes::Stage(&[Kind::Tune, Kind::Command]), Absent::Nothing),
];
/// What it finds depends on the machine alone.
const TUNE: &[Field] = &[field(BACKEND, Takes::Choice(&["native"]), Absent::Word("native"))];
const LLM_ENGINE_BUILD: &[Field] = &[
    field(
        "checkpoint",
        Takes::Stage(&[Kind::Quantize, Kind::Source, Kind::Command]),
        Absent::Refused,
    ),
    field(BACKEND, Takes::Choice(&["native"]), Absent::Word("native")),
    field("max-seq-len", Takes::Count(1, SEQ_LEN_MAX), Absent::Number(1024)),
    field("max-slots", Takes::Count(1, SLOTS_MAX), Absent::Number(1)),
    field("tactics", Takes::Stage(&[Kind::Tune, Kind::Command]), Absent::Nothing),
];
const VERIFY: &[Field] = &[
    field("vision", ENGINE, Absent::Nothing),
    field("llm", LLM_ENGINE, Absent::Refused),
    field("against", CHECKPOINT, Absent::Refused),
    field("weights", Takes::Stage(&[Kind::Quantize, Kind::Command]), Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    // What the reference computes is sampled otherwise.
    field("full", Takes::Flag, Absent::Nothing),
];
/// More tiles of one picture than models are trained with (InternVL's 12, its video's 40).
const TILES_MAX: u64 = 64;
/// More frames of one clip than processors of published models take.
const FRAMES_MAX: u64 = 768;
/// No prompt has more tokens than this of one picture.
const IMAGE_TOKENS_MAX: u64 = SEQ_LEN_MAX;
/// How a deployment is served where nobody says otherwise.
const SERVING: [&str; 4] = ["max-seq-len", "slots", "tiles", "frames"];
/// What a CLIP beside a deployment is made of.
const CLIP: [&str; 3] = ["clip", "clip-vision", "clip-text"];
const DEPLOYMENT: &[Field] = &[
    field("model", Takes::Text, Absent::Word("internvl3")),
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("vision", ENGINES, Absent::Nothing),
    field("llm", LLM_ENGINES, Absent::Nothing),
    field("encoder", ENGINES, Absent::Nothing),
    field("max-seq-len", Takes::Count(2, SEQ_LEN_MAX), Absent::Nothing),
    field("slots", Takes::Count(1, SLOTS_MAX), Absent::Nothing),
    field("tiles", Takes::Count(1, TILES_MAX), Absent::Nothing),
    field("frames", Takes::Count(1, FRAMES_MAX), Absent::Nothing),
    field("thresholds", Takes::Texts, Absent::Nothing),
    field("image-tokens", Takes::Count(1, IMAGE_TOKENS_MAX), Absent::Nothing),
    field("clip", CHECKPOINT, Absent::Nothing),
    field("clip-vision", ENGINES, Absent::Nothing),
    field("clip-text", ENGINES, Absent::Nothing),
    field("verified", Takes::Stage(&[Kind::Verify]), Absent::Nothing),
];
/// Where a program may write besides its working directory.
pub const WRITES: &str = "writes";
/// Programs whose content counts although they are found by name.
pub const TOOL: &str = "tool";
/// Whether a program sees nothing but what it declares.
pub const STRICT: &str = "strict";
/// Whether a strict program has a network.
pub const NETWORK: &str = "network";
/// Which of root's rights a program needs besides those that builds use.
pub const NEEDS_CAPABILITIES: &str = "capabilities";
/// The kernel's capabilities, each at the place of its number; as `capabilities(7)` names them, without
/// `CAP_` and in our letters.
pub const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac-override",
    "dac-read-search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux-immutable",
    "net-bind-service",
    "net-broadcast",
    "net-admin",
    "net-raw",
    "ipc-lock",
    "ipc-owner",
    "sys-module",
    "sys-rawio",
    "sys-chroot",
    "sys-ptrace",
    "sys-pacct",
    "sys-admin",
    "sys-boot",
    "sys-nice",
    "sys-resource",
    "sys-time",
    "sys-tty-config",
    "mknod",
    "lease",
    "audit-write",
    "audit-control",
    "setfcap",
    "mac-override",
    "mac-admin",
    "syslog",
    "wake-alarm",
    "block-suspend",
    "audit-read",
    "perfmon",
    "bpf",
    "checkpoint-restore",
];
const COMMAND: &[Field] = &[
    field("argv", Takes::Texts, Absent::Refused),
    field("inputs", Takes::Inputs, Absent::Nothing),
    field("outputs", Takes::Names, Absent::Refused),
    field("env", Takes::TextTable, Absent::Nothing),
    field(TOOL, Takes::Texts, Absent::Nothing),
    field(WRITES, Takes::Places, Absent::Nothing),
    field(NEEDS_CAPABILITIES, Takes::Words(&CAPABILITIES), Absent::Nothing),
    field(STRICT, Takes::Flag, Absent::Nothing),
    field(NETWORK, Takes::Flag, Absent::Nothing),
    field(VALIDATE, Takes::TextTable, Absent::Nothing),
];

/// Precisions are the native engine's: another back end takes the graph as it is.
fn foreign_precision(params: &BTreeMap<String, Value>) -> Option<(String, String)> {
    let word = |name: &str| params.get(name).and_then(Value::as_str);
    let (backend, precision) = (word(BACKEND)?, word("precision")?);
    let message = || {
        format!(
            "\"precision\": \"{precision}\" is of backend = \"native\"; {backend} takes weights as they are in the graph"
        )
    };
    (backend != "native" && precision != "f32").then(|| ("precision".to_owned(), message()))
}

/// A budget is what is spent on looking for the best way.
fn idle_budget(params: &BTreeMap<String, Value>) -> Option<(String, String)> {
    let method = params.get("method").and_then(Value::as_str)?;
    let message = || format!("is for method = \"best\"; {method} tries one way alone");
    let is_idle = params.contains_key("budget") && method != "best";
    is_idle.then(|| ("budget".to_owned(), message()))
}

/// compressed-tensors 0.20, which transformers 5 reads them by, refuses sorted columns.
fn unread_order(params: &BTreeMap<String, Value>) -> Option<(String, String)> {
    let word = |name: &str| params.get(name).and_then(Value::as_str);
    let is_sorted = word("method") == Some("gptq-act-order");
    (is_sorted && word("format") == Some("compressed-tensors")).then(|| {
        let why = "gptq-act-order sorts columns, which compressed-tensors reads no more; use method = \"gptq\", or format = \"gptq\"";
        ("method".to_owned(), why.to_owned())
    })
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Source,
        Self::OnnxExport,
        Self::GraphSurgery,
        Self::Calibrate,
        Self::Quantize,
        Self::EngineBuild,
        Self::LlmEngineBuild,
        Self::Tune,
        Self::Verify,
        Self::Deployment,
        Self::Command,
    ];

    /// The word in the pipeline file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::OnnxExport => "onnx-export",
            Self::GraphSurgery => "graph-surgery",
            Self::Calibrate => "calibrate",
            Self::Quantize => "quantize",
            Self::EngineBuild => "engine-build",
            Self::LlmEngineBuild => "llm-engine-build",
            Self::Tune => "tune",
            Self::Verify => "verify",
            Self::Deployment => "deployment",
            Self::Command => "command",
        }
    }

    /// Whether the output names what this field takes by path, instead of holding a copy.
    pub fn names_by_path(self, field: &str) -> bool {
        let engines = ["vision", "llm", "encoder", "clip-vision", "clip-text"];
        self == Self::Deployment && engines.contains(&field)
    }

    /// Whether a field that is no edge enters the keys.  Where a program may write is the machine's
    /// affair, as are limits: a result that is there was made without, or with no need of it.  So is what it
    /// needs of root's rights.
    pub fn is_keyed(self, field: &str) -> bool {
        self != Self::Command || ![WRITES, NEEDS_CAPABILITIES].contains(&field)
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The fields a stage of this kind takes, besides `kind`, `limits` and `retry`.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Self::Source => SOURCE,
            Self::OnnxExport => ONNX_EXPORT,
            Self::GraphSurgery => GRAPH_SURGERY,
            Self::Calibrate => CALIBRATE,
            Self::Quantize => QUANTIZE,
            Self::EngineBuild => ENGINE_BUILD,
            Self::LlmEngineBuild => LLM_ENGINE_BUILD,
            Self::Tune => TUNE,
            Self::Verify => VERIFY,
            Self::Deployment => DEPLOYMENT,
            Self::Command => COMMAND,
        }
    }

    /// What is wrong with the fields that are given together, if anything.
    pub fn fault(self, is_given: impl Fn(&str) -> bool) -> Option<&'static str> {
        match self {
            Self::Deployment if is_given("encoder") => {
                let others = ["vision", "llm", "verified", "thresholds", "image-tokens"];
                others.into_iter().chain(SERVING).chain(CLIP).any(is_given).then_some(
                    "\"encoder\" stands alone; leave out \"vision\", \"llm\", \"verified\", \"max-seq-len\", \"slots\", \"tiles\", \"frames\", \"thresholds\", \"image-tokens\" and \"clip\"",
                )
            }
            Self::Deployment if !is_given("llm") => {
                Some("needs the key \"llm\", with \"vision\" where it sees, or \"encoder\" alone")
            }
            Self::Deployment if !is_given("vision") => {
                let sight = ["tiles", "frames", "thresholds", "image-tokens"];
                sight.into_iter().chain(CLIP).any(is_given).then_some(
                    "without \"vision\" it reads text alone; leave out \"tiles\", \"frames\", \"thresholds\", \"image-tokens\" and \"clip\"",
                )
            }
            Self::Deployment if CLIP.into_iter().any(&is_given) => {
                let is_routed = is_given("thresholds") || is_given("image-tokens");
                (!is_routed || !CLIP.into_iter().all(is_given)).then_some(
                    "a CLIP is \"clip\", \"clip-vision\" and \"clip-text\" together, with \"thresholds\" or \"image-tokens\"",
                )
            }
            _ => None,
        }
    }

    /// What does not go together in the params of a stage: the field at fault, and why.
    pub(crate) fn conflict(self, params: &BTreeMap<String, Value>) -> Option<(String, String)> {
        match self {
            Self::GraphSurgery => crate::surgery::conflict(params),
            Self::Command => crate::validity::conflict(params),
            Self::EngineBuild => foreign_precision(params),
            Self::Quantize => idle_budget(params).or_else(|| unread_order(params)),
            _ => None,
        }
    }

    /// Whether a stage of this kind makes the same bytes from the same inputs, on any machine and any
    /// number of threads; `None` where that is the program's affair.
    pub fn is_reproducible(self) -> Option<bool> {
        match self {
            Self::Source
            | Self::OnnxExport
            | Self::GraphSurgery
            | Self::Calibrate
            | Self::Quantize
            | Self::EngineBuild
            | Self::LlmEngineBuild
            | Self::Deployment => Some(true),
            Self::Tune | Self::Verify => Some(false),
            Self::Command => None,
        }
    }

    /// Enters every key of this kind.  Raise it when equal inputs and params would make other
    /// bytes than before; the golden digests in `crates/smelt/tests` fail until that is done.
    pub fn version(self) -> u32 {
        match self {
            // Errors are carried by the factor of the Hessian where inputs are few, best tries three dampings; other
            // programs find what stays floats, the head among it.
            Self::Quantize => 9,
            // The reference's products are fused.
            Self::Calibrate => 7,
            // As above.
            Self::Verify => 8,
            // What it leaves besides its outputs is not sealed.
            Self::Command => 2,
            // Code that configurations name is fetched.
            Self::Source => 2,
            Self::OnnxExport | Self::GraphSurgery | Self::Tune => 1,
            // engine.json has the positions of the model.
            Self::LlmEngineBuild => 4,
            // deployment.json says how it is served; what is deployed was opened, and has said a word.
            Self::Deployment => 5,
            // Small constants stay in ONNX Runtime's graphs; windows that overlap lie row by row.
            Self::EngineBuild => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
        }
        assert_eq!(Kind::parse("trtexec"), None);
    }

    #[test]
    fn only_the_native_engine_rounds_weights() {
        let refused = |backend: &str, precision: &str| {
            let words = [("backend", backend), ("precision", precision)];
            let params = words.map(|(name, word)| (name.to_owned(), Value::from(word)));
            Kind::EngineBuild.conflict(&params.into()).map(|(field, _)| field)
        };
        assert_eq!(refused("onnxruntime", "int8").as_deref(), Some("precision"));
        assert_eq!(refused("onnxruntime", "f32"), None);
        assert_eq!(refused("native", "int8"), None);
    }

    #[test]
    fn only_looking_for_the_best_has_a_budget() {
        let refused = |method: &str| {
            let params = [("method", Value::from(method)), ("budget", Value::from(2))];
            let params = params.map(|(name, value)| (name.to_owned(), value));
            Kind::Quantize.conflict(&params.into()).map(|(field, _)| field)
        };
        assert_eq!(refused("best"), None);
        assert_eq!(refused("gptq").as_deref(), Some("budget"));
    }

    #[test]
    fn sorted_columns_go_to_a_format_that_reads_them() {
        let refused = |format: &str| {
            let params = [("method", "gptq-act-order"), ("format", format)];
            let params = params.map(|(name, value)| (name.to_owned(), Value::from(value)));
            Kind::Quantize.conflict(&params.into()).map(|(field, _)| field)
        };
        assert_eq!(refused("compressed-tensors").as_deref(), Some("method"));
        assert_eq!((refused("gptq"), refused("smelt")), (None, None));
    }

    #[test]
    fn field_names_are_unique_and_free_of_the_common_keys() {
        for kind in Kind::ALL {
            let mut names: Vec<_> = kind.fields().iter().map(|field| field.name).collect();
            names.extend(["kind", "limits", "retry"]);
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", kind.name());
        }
    }
}
