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
    /// Whether weights are compared and nothing is computed.
    #[serde(default)]
    pub weights_only: bool,
}

/// The param of a stage that compares weights and computes nothing.
pub const WEIGHTS_ONLY: &str = "weights-only";

const FIELDS: &[Field] = &[
    field("vision", ENGINE, Absent::Nothing),
    field("llm", LLM_ENGINE, Absent::Refused),
    field("against", CHECKPOINT, Absent::Refused),
    field("weights", Takes::Stage(&[Kind::Quantize, Kind::Command]), Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    // What the reference computes is sampled otherwise.
    field("full", Takes::Flag, Absent::Nothing),
    // What may stand before a deployment, while the rest goes on behind it.
    field(WEIGHTS_ONLY, Takes::Flag, Absent::Nothing),
    field("compared", Takes::Stage(&[Kind::Verify]), Absent::Nothing),
];

/// Version 9: the reference's products are fused; of pictures of 16 bits the upper 8 count.
pub(super) const KIND: Definition = Definition {
    is_reproducible: Some(false),
    smaller: "engines of a smaller scheme",
    fault,
    ..Definition::new("verify", 9, FIELDS)
};

fn fault(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    let computes = ["compared", "full", "prompts"].into_iter().any(is_given);
    (is_given(WEIGHTS_ONLY) && computes).then_some(
        "\"weights-only\" computes nothing; leave out \"compared\", \"full\" and \"prompts\"",
    )
}
