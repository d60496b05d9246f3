//! `tune`: how engines are run best on this machine.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, Takes, field};
use super::words::{DecoderBackend, EngineTarget, only_processors};
use super::{BACKEND, IMPLIED_TARGET, TARGET};

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tune {
    /// Whose tactics are looked for.
    pub backend: DecoderBackend,
    /// What runs the engines: processors alone, so far.
    pub target: EngineTarget,
}

/// What it finds depends on the machine alone.
const FIELDS: &[Field] = &[
    field(
        BACKEND,
        Takes::Choice(DecoderBackend::WORDS),
        Absent::Word(DecoderBackend::Native.word()),
    ),
    field(TARGET, Takes::Choice(EngineTarget::WORDS), Absent::Word(EngineTarget::Cpu.word())),
];

pub(super) const KIND: Definition = Definition {
    is_reproducible: Some(false),
    implied: &[IMPLIED_TARGET],
    conflict: |params| only_processors(params, "tactics are those of processors"),
    ..Definition::new("tune", 1, FIELDS)
};
