//! Lists the stage kinds: a row and a file each, which serve parsing, keys and messages.
//!
//! Knows the shape of a stage, not what it does: the command's workers give the kinds meaning.

pub mod accuracy;
pub mod calibrate;
mod command;
mod definition;
pub mod deployment;
pub mod engine_build;
pub mod graph_surgery;
pub mod llm_engine_build;
pub mod onnx_export;
pub mod quantize;
pub mod source;
pub mod tune;
pub mod verify;
pub mod words;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use command::{CAPABILITIES, NEEDS_CAPABILITIES, NETWORK, SECRETS, STRICT, TOOL, WRITES};
use definition::Definition;
pub use definition::{Absent, Field, MemoryUse, Takes, TensorsHandled, Values};
pub use words::{param, typed};

/// Declares the kinds, each with the file that says what it is.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $file:ident,)+) => {
        /// What a stage does.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(rename_all = "kebab-case")]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// Every kind.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            fn definition(self) -> &'static Definition {
                match self {
                    $(Self::$kind => &$file::KIND,)+
                }
            }
        }
    };
}

kinds! {
    /// A checkpoint: of a hub, a directory given by path, or a synthetic one.
    Source = source,
    /// Checkpoint to ONNX.
    OnnxExport = onnx_export,
    /// ONNX to ONNX by one rule.
    GraphSurgery = graph_surgery,
    /// Checkpoint and prompts to statistics of what goes into its layers.
    Calibrate = calibrate,
    /// Checkpoint to a checkpoint with other weight types.
    Quantize = quantize,
    /// ONNX to an engine (trtexec's job).
    EngineBuild = engine_build,
    /// Checkpoint to a decoder engine (trtllm-build's job).
    LlmEngineBuild = llm_engine_build,
    /// How engines are run best on this machine.
    Tune = tune,
    /// Engines against the f32 reference.
    Verify = verify,
    /// Engines, or a deployment, against questions with known answers.
    Accuracy = accuracy,
    /// Engines, tokenizer and preprocessing in the shape `chat` loads.
    Deployment = deployment,
    /// Any program.
    Command = command,
}

/// Stages whose output is a checkpoint; a `command` may make anything.
const CHECKPOINT: Takes = Takes::Stage(&[Kind::Source, Kind::Command]);
/// The same with what was made smaller.
const ANY_CHECKPOINT: Takes = Takes::Stage(&[Kind::Quantize, Kind::Source, Kind::Command]);
/// Stages whose output is a graph.
const GRAPH: Takes = Takes::Stage(&[Kind::OnnxExport, Kind::GraphSurgery, Kind::Command]);
const CALIBRATION: Takes = Takes::Stage(&[Kind::Calibrate, Kind::Command]);
const ENGINE: Takes = Takes::Stage(&[Kind::EngineBuild, Kind::Command]);
const LLM_ENGINE: Takes = Takes::Stage(&[Kind::LlmEngineBuild, Kind::Command]);
/// Engines that answer alike, of which each device runs one.
const ENGINES: Takes = Takes::Stages(&[Kind::EngineBuild, Kind::Command]);
const LLM_ENGINES: Takes = Takes::Stages(&[Kind::LlmEngineBuild, Kind::Command]);
/// The field that names what builds and runs an engine.
pub const BACKEND: &str = "backend";
/// The field that says what runs an engine.
pub const TARGET: &str = "target";
/// It came later than the engines of processors, whose keys it leaves as they were.
const IMPLIED_TARGET: (&str, &str) = (TARGET, words::EngineTarget::Cpu.word());
const TACTICS: Takes = Takes::Stage(&[Kind::Tune, Kind::Command]);
/// What another program runs: whatever a program made, or a checkpoint in a form of other tools.
const FOREIGN: Takes = Takes::Stage(&[Kind::Command, Kind::Quantize]);
/// Stages that fail where engines are not as they must be.
const PROOF: Takes = Takes::Stage(&[Kind::Verify, Kind::Accuracy]);
/// The longest sequence that a configuration of the families here declares (Llama 3.1).
const SEQ_LEN_MAX: u64 = 131_072;
/// Slots share one pass over the weights; more than this is a server farm, not a board.
const SLOTS_MAX: u64 = 64;

impl Kind {
    /// The word in the pipeline file.
    pub fn name(self) -> &'static str {
        self.definition().name
    }

    /// Whether the output names what this field takes by path, instead of holding a copy.
    pub fn names_by_path(self, field: &str) -> bool {
        self.definition().by_path.contains(&field)
    }

    /// Whether a field that is no edge enters the keys with this value.
    pub fn is_keyed(self, field: &str, value: &Value) -> bool {
        let Definition { unkeyed, implied, .. } = self.definition();
        let is_implied =
            |&(name, word): &(&str, &str)| name == field && value.as_str() == Some(word);
        !unkeyed.contains(&field) && !implied.iter().any(is_implied)
    }

    /// What enters the keys beside the params that choose it: versions, by their names.
    pub fn made_with(self, params: &Values) -> &'static [(&'static str, &'static str)] {
        (self.definition().made_with)(params)
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The fields a stage of this kind takes, besides `kind`, `limits` and `retry`.
    pub fn fields(self) -> &'static [Field] {
        self.definition().fields
    }

    /// What is wrong with the fields that are given together, if anything.
    pub fn fault(self, is_given: impl Fn(&str) -> bool) -> Option<&'static str> {
        (self.definition().fault)(&is_given)
    }

    /// What does not go together in the params of a stage: the field at fault, and why.
    pub(crate) fn conflict(self, params: &Values) -> Option<(String, String)> {
        (self.definition().conflict)(params)
    }

    /// What makes a stage of this kind smaller.
    pub(crate) fn smaller(self) -> &'static str {
        self.definition().smaller
    }

    /// What a stage with these params holds in memory while it works.
    pub fn memory(self, params: &Values) -> MemoryUse {
        (self.definition().memory)(params)
    }

    /// Which tensors a stage with these params handles.
    pub fn tensors(self, params: &Values) -> TensorsHandled {
        (self.definition().tensors)(params)
    }

    /// Whether a stage of this kind makes the same bytes from the same inputs, on any machine and any
    /// number of threads; `None` where that is the program's affair.
    pub fn is_reproducible(self) -> Option<bool> {
        self.definition().is_reproducible
    }

    /// Whether a stage with these params depends on what was measured as it was built, so that it promises no equal bytes,
    /// whatever others of its kind do.
    pub fn is_measured(self, params: &Values) -> bool {
        (self.definition().is_measured)(params)
    }

    /// Whether a stage of this kind is given a folder for what it has found out, which an interrupted attempt leaves to the next.
    pub fn keeps(self) -> bool {
        self.definition().keeps
    }

    /// Enters every key of this kind; each kind's file says what raised it last.
    pub fn version(self) -> u32 {
        self.definition().version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
            // Records name kinds as pipelines do.
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert_eq!(Kind::parse("trtexec"), None);
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
