//! `llm-engine-build`: a checkpoint to a decoder engine (trtllm-build's job).

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, MemoryUse, Takes, TensorsHandled, field};
use super::words::{DecoderBackend, EngineTarget, made_with};
use super::{ANY_CHECKPOINT, BACKEND, IMPLIED_TARGET, SEQ_LEN_MAX, SLOTS_MAX, TACTICS, TARGET};

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LlmEngineBuild {
    /// Who executes the decoder.
    pub backend: DecoderBackend,
    /// What runs it.
    pub target: EngineTarget,
    /// Tokens of a prompt with its answer.
    pub max_seq_len: usize,
    /// Answers at once.
    pub max_slots: usize,
}

const FIELDS: &[Field] = &[
    field("checkpoint", ANY_CHECKPOINT, Absent::Refused),
    field(
        BACKEND,
        Takes::Choice(DecoderBackend::WORDS),
        Absent::Word(DecoderBackend::Native.word()),
    ),
    field(TARGET, Takes::Choice(EngineTarget::WORDS), Absent::Word(EngineTarget::Cpu.word())),
    field("max-seq-len", Takes::Count(1, SEQ_LEN_MAX), Absent::Number(1024)),
    field("max-slots", Takes::Count(1, SLOTS_MAX), Absent::Number(1)),
    field("tactics", TACTICS, Absent::Nothing),
];

/// Version 4: engine.json has the positions of the model.  The engine is packed row by row and stepped once over mapped
/// weights.
pub(super) const KIND: Definition = Definition {
    memory: |_| MemoryUse::Streams,
    tensors: |_| TensorsHandled::Llm,
    implied: &[IMPLIED_TARGET],
    made_with,
    smaller: "fewer max-slots, a shorter max-seq-len, a smaller scheme",
    ..Definition::new("llm-engine-build", 4, FIELDS)
};
