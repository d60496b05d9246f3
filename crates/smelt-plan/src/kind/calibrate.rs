//! `calibrate`: a checkpoint and prompts to statistics of what goes into its layers.

use super::definition::{Absent, Definition, Field, MemoryUse, Takes, field};
use super::{CHECKPOINT, ENGINE};

/// Quantisers square the number of tokens kept.
const CALIBRATION_TOKENS_MAX: u64 = 4096;

const FIELDS: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Refused),
    field("texts", Takes::Texts, Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    field("images", Takes::Path, Absent::Nothing),
    field("vision", ENGINE, Absent::Nothing),
    field("tokens", Takes::Count(1, CALIBRATION_TOKENS_MAX), Absent::Number(2048)),
];

/// Version 7: the reference's products are fused.
pub(super) const KIND: Definition = Definition {
    memory: |_| MemoryUse::Learns,
    smaller: "shorter texts, fewer prompts",
    ..Definition::new("calibrate", 7, FIELDS)
};
