//! `llm-engine-build`: a checkpoint to a decoder engine (trtllm-build's job).

use super::definition::{Absent, Definition, Field, Takes, field};
use super::{BACKEND, Kind, SEQ_LEN_MAX, SLOTS_MAX, TACTICS};

const FIELDS: &[Field] = &[
    field(
        "checkpoint",
        Takes::Stage(&[Kind::Quantize, Kind::Source, Kind::Command]),
        Absent::Refused,
    ),
    field(BACKEND, Takes::Choice(&["native"]), Absent::Word("native")),
    field("max-seq-len", Takes::Count(1, SEQ_LEN_MAX), Absent::Number(1024)),
    field("max-slots", Takes::Count(1, SLOTS_MAX), Absent::Number(1)),
    field("tactics", TACTICS, Absent::Nothing),
];

/// Version 4: engine.json has the positions of the model.
pub(super) const KIND: Definition = Definition {
    smaller: "fewer max-slots, a shorter max-seq-len, a smaller scheme",
    ..Definition::new("llm-engine-build", 4, FIELDS)
};
