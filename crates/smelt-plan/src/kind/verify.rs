//! `verify`: engines against the f32 reference.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, Takes, field};
use super::{CHECKPOINT, ENGINE, Kind, LLM_ENGINE};

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Verify {
    /// Whether the reference computes all, instead of a sample.
    #[serde(default)]
    pub full: bool,
}

const FIELDS: &[Field] = &[
    field("vision", ENGINE, Absent::Nothing),
    field("llm", LLM_ENGINE, Absent::Refused),
    field("against", CHECKPOINT, Absent::Refused),
    field("weights", Takes::Stage(&[Kind::Quantize, Kind::Command]), Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    // What the reference computes is sampled otherwise.
    field("full", Takes::Flag, Absent::Nothing),
];

/// Version 9: the reference's products are fused; of pictures of 16 bits the upper 8 count.
pub(super) const KIND: Definition = Definition {
    is_reproducible: Some(false),
    smaller: "engines of a smaller scheme",
    ..Definition::new("verify", 9, FIELDS)
};
