//! Builds a language model engine from a checkpoint: packs it, then loads it and steps one token.
//!
//! Tensors are copied in blocks in their stored type, raw or quantised.  Knows nothing of where
//! checkpoints come from.

use std::io;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::{Checkpoint, CheckpointError};
use smelt_model::decoder::Decoder;
use smelt_model::model::Part;

use super::weights::HEAD;
use super::{KIND, KvOptions, Limits, LlmEngine, LlmFile, OpenError, Prompt, RunError};
use crate::engine_file::{EngineWriter, TensorSpec, byte_len};
use crate::kernels::rope::{Llama3, Sections};

/// Bytes of a tensor held in memory at a time.
const BLOCK_BYTES: usize = 8 << 20;

/// Why a checkpoint could not become an engine.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The limits make no engine.
    #[error("{problem}; set limits the model can hold")]
    Limits {
        /// What is wrong with them.
        problem: String,
    },
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The engine cannot be written.
    #[error("cannot write the engine in {}: {source}", dir.display())]
    Write {
        /// The engine's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The finished engine does not open.
    #[error("the engine does not open: {0}")]
    Open(#[from] OpenError),
    /// The finished engine does not run.
    #[error("the engine does not run: {0}")]
    Run(#[from] RunError),
    /// The finished engine gives numbers that are no numbers.
    #[error("the engine gives a logit of {found} for token 0; the weights are not usable in f32")]
    NotFinite {
        /// The first such number.
        found: f32,
    },
}

/// Builds an engine in `out_dir` from the language model of `checkpoint`, and steps one token.
///
/// The same checkpoint and limits give the same bytes on every machine.  `progress` hears what is
/// being done.
///
/// # Errors
/// When the limits are none, the checkpoint cannot be read, writing fails, or the finished engine
/// does not run.
pub fn build(
    checkpoint: &Checkpoint,
    limits: Limits,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let llm = checkpoint.decoder()?;
    check_limits(llm, limits).map_err(|problem| BuildError::Limits { problem })?;
    let write_error = |source| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = EngineWriter::create(out_dir).map_err(write_error)?;
    let specs = tensors(checkpoint)?;
    for (index, spec) in specs.iter().enumerate() {
        progress(&format!("packing {} ({} of {})", spec.name, index + 1, specs.len()));
        writer.begin(spec.clone()).map_err(write_error)?;
        pack(checkpoint, spec, &mut |bytes| writer.write(bytes).map_err(write_error))?;
    }
    let unsealed =
        writer.finish(KIND, sizes(llm, checkpoint.scheme_words(), limits)).map_err(write_error)?;
    progress("stepping one token");
    try_out(LlmEngine::new(unsealed.preview()?, KvOptions::default())?)?;
    unsealed.seal().map_err(write_error)?;
    LlmEngine::open(out_dir)?;
    Ok(())
}

fn check_limits(llm: &Decoder, limits: Limits) -> Result<(), String> {
    limits.check()?;
    let (asked, longest) = (limits.max_seq_len, llm.max_positions);
    if asked > longest {
        return Err(format!("max_seq_len {asked} is more than the model's {longest} positions"));
    }
    Ok(())
}

/// What `engine.json` says of an engine of `llm`.
pub(super) fn sizes(llm: &Decoder, scheme: String, limits: Limits) -> LlmFile {
    LlmFile {
        family: llm.family.name.to_owned(),
        scheme,
        hidden: llm.hidden,
        layers: llm.layers,
        heads: llm.heads,
        kv_heads: llm.kv_heads,
        head_dim: llm.head_dim,
        intermediate: llm.intermediate,
        vocab: llm.vocab,
        eps: llm.eps,
        rope_theta: llm.rope.theta,
        rope_scaling: llm.rope.scaling.map(|by| Llama3 {
            factor: by.factor,
            low: by.low_freq_factor,
            high: by.high_freq_factor,
            original_positions: by.original_max_position_embeddings,
        }),
        rope_sections: llm.rope.sections.map(Sections::from),
        deepstack: llm.deepstack,
        limits,
    }
}

/// Every tensor to pack, what belongs to a packed weight right behind it.
pub(super) fn tensors(checkpoint: &Checkpoint) -> Result<Vec<TensorSpec>, CheckpointError> {
    let mut parts = vec![Part::Llm];
    if checkpoint.has_lm_head() {
        parts.push(Part::Head);
    }
    let mut specs = Vec::new();
    for (name, _) in checkpoint.model().tensors(&parts) {
        specs.extend(checkpoint.parts(&name)?.into_iter().map(|part| TensorSpec {
            name: part.name.clone(),
            dtype: part.dtype,
            shape: part.shape.clone(),
        }));
    }
    debug_assert!(specs.iter().any(|spec| spec.name == HEAD) == checkpoint.has_lm_head());
    Ok(specs)
}

/// Sends the bytes of a tensor on, a block at a time.
fn pack(
    checkpoint: &Checkpoint,
    spec: &TensorSpec,
    write: &mut dyn FnMut(&[u8]) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let total = byte_len(spec.dtype, &spec.shape).expect("the checkpoint's tensors fit a file");
    let mut block = vec![0; (BLOCK_BYTES as u64).min(total) as usize];
    let mut at = 0;
    while at < total {
        let len = (BLOCK_BYTES as u64).min(total - at) as usize;
        checkpoint.read_bytes(&spec.name, at, &mut block[..len])?;
        write(&block[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// Steps one token; every logit has to be finite.
fn try_out(mut engine: LlmEngine) -> Result<(), BuildError> {
    let logits = engine.prefill(0, &Prompt::plain(&[0], None))?;
    match logits.into_iter().find(|logit| !logit.is_finite()) {
        Some(found) => Err(BuildError::NotFinite { found }),
        None => Ok(()),
    }
}
