//! `calibrate`: a checkpoint and prompts to statistics of what goes into its layers.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, MemoryUse, Takes, field};
use super::{CHECKPOINT, ENGINE};

/// Quantisers square the number of tokens kept.
const CALIBRATION_TOKENS_MAX: u64 = 4096;

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Calibrate {
    /// Prompts in words.
    #[serde(default)]
    pub texts: Vec<String>,
    /// Tokens of which activations are kept.
    pub tokens: usize,
}

const FIELDS: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("texts", Takes::Texts, Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    field("images", Takes::Path, Absent::Nothing),
    field("vision", ENGINE, Absent::Nothing),
    field("tokens", Takes::Count(1, CALIBRATION_TOKENS_MAX), Absent::Number(2048)),
];

/// Version 8: the reference's products are fused; of pictures of 16 bits the upper 8 count.
pub(super) const KIND: Definition = Definition {
    memory: |_| MemoryUse::Learns,
    smaller: "shorter texts, fewer prompts",
    ..Definition::new("calibrate", 8, FIELDS)
};
