//! `onnx-export`: a part of a checkpoint to ONNX.

use serde::Deserialize;

use super::CHECKPOINT;
use super::definition::{
    Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, Values, field,
};
use super::words::{FloatType, param, words};

words! {
    /// What of a checkpoint is exported.
    ExportPart {
        /// The vision tower and the projector.
        Vision = "vision",
        /// The decoder with its head.
        Llm = "llm",
        /// The encoder of texts.
        Encoder = "encoder",
        /// The encoder of texts with the head that scores or classifies.
        Classifier = "classifier",
    }
}

words! {
    /// How tokens enter an exported decoder.
    TokenInput {
        /// As ids, which the graph looks up.
        Ids = "ids",
        /// As embeddings, some of which may be those of pictures.
        Embeds = "embeds",
    }
}

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OnnxExport {
    /// What is exported.
    pub part: ExportPart,
    /// The type of weights and products.
    pub dtype: FloatType,
    /// Sizes of pictures, `HEIGHTxWIDTH` in pixels; the usual ones of the model if there are none.
    #[serde(default)]
    pub grids: Vec<String>,
    /// How tokens enter; as is usual for the model where it is not said.
    pub input: Option<TokenInput>,
    /// Whether the f32 reference runs first and records the largest activations.
    #[serde(default)]
    pub probe: bool,
}

const FIELDS: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("part", Takes::Choice(ExportPart::WORDS), Absent::Word(ExportPart::Vision.word())),
    field("dtype", Takes::Choice(FloatType::WORDS), Absent::Word(FloatType::F32.word())),
    field("grids", Takes::Texts, Absent::Nothing),
    field("input", Takes::Choice(TokenInput::WORDS), Absent::Nothing),
    field("probe", Takes::Flag, Absent::Nothing),
];

pub(super) const KIND: Definition =
    Definition { memory, tensors, ..Definition::new("onnx-export", 1, FIELDS) };

/// A probe runs the model.
fn memory(params: &Values) -> MemoryUse {
    match param(params, "probe") {
        Some(true) => MemoryUse::Unknown,
        Some(false) | None => MemoryUse::Streams,
    }
}

fn tensors(params: &Values) -> TensorsHandled {
    match param(params, "part") {
        Some(ExportPart::Vision) => TensorsHandled::Vision,
        Some(ExportPart::Llm) => TensorsHandled::Llm,
        Some(ExportPart::Encoder | ExportPart::Classifier) | None => TensorsHandled::All,
    }
}
