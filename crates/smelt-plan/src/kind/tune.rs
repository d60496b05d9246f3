//! `tune`: how engines are run best on this machine.

use serde::Deserialize;

use super::BACKEND;
use super::definition::{Absent, Definition, Field, Takes, field};
use super::words::DecoderBackend;

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tune {
    /// Whose tactics are looked for.
    pub backend: DecoderBackend,
}

/// What it finds depends on the machine alone.
const FIELDS: &[Field] = &[field(
    BACKEND,
    Takes::Choice(DecoderBackend::WORDS),
    Absent::Word(DecoderBackend::Native.word()),
)];

pub(super) const KIND: Definition =
    Definition { is_reproducible: Some(false), ..Definition::new("tune", 1, FIELDS) };
