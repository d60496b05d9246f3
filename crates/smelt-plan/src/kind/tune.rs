//! `tune`: how engines are run best on this machine.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, Takes, field};
use super::words::{DecoderBackend, EngineTarget, made_with};
use super::{ANY_CHECKPOINT, BACKEND, IMPLIED_TARGET, TARGET};

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tune {
    /// Whose tactics are looked for.
    pub backend: DecoderBackend,
    /// What runs the engines.
    pub target: EngineTarget,
}

/// What it finds depends on the machine alone; of a card also on the products, which are those of a checkpoint.
const FIELDS: &[Field] = &[
    field("checkpoint", ANY_CHECKPOINT, Absent::Nothing),
    field(
        BACKEND,
        Takes::Choice(DecoderBackend::WORDS),
        Absent::Word(DecoderBackend::Native.word()),
    ),
    field(TARGET, Takes::Choice(EngineTarget::WORDS), Absent::Word(EngineTarget::Cpu.word())),
];

pub(super) const KIND: Definition = Definition {
    is_reproducible: Some(false),
    keeps: true,
    implied: &[IMPLIED_TARGET],
    made_with,
    fault: |is_given| {
        let is_alone = is_given("checkpoint") && !is_given(TARGET);
        is_alone.then_some("\"checkpoint\" says what a GPU multiplies; name its \"target\"")
    },
    ..Definition::new("tune", 1, FIELDS)
};
