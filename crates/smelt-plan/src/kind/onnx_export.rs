//! `onnx-export`: a part of a checkpoint to ONNX.

use super::CHECKPOINT;
use super::definition::{Absent, Definition, Field, Takes, field};

const FIELDS: &[Field] = &[
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

pub(super) const KIND: Definition = Definition::new("onnx-export", 1, FIELDS);
