//! Builds a language model engine from a checkpoint: packs it, then loads it and steps one token.
//!
//! Tensors keep their stored type, raw or quantised, and go through memory a stripe at a time.  Knows
//! nothing of where checkpoints come from.

use std::path::Path;

use smelt_backend::Limits;
use smelt_engine::engine_file::EngineWriter;
use smelt_engine::llm::{KIND, Llama3, LlmEngine, LlmFile, Prompt, Sections, Yarn};
use smelt_engine::tactics::Tactics;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::decoder::{Decoder, Scaling};

use super::pack::{Packed, tensors, write_each};
use crate::BuildError;

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
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<(), BuildError> {
    build_with(checkpoint, limits, None, out_dir, progress)
}

/// As [`build`], of an engine that follows `tactics` on machines equal to theirs.
///
/// # Errors
/// As [`build`].
pub fn build_with(
    checkpoint: &Checkpoint,
    limits: Limits,
    tactics: Option<Tactics>,
    out_dir: &Path,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<(), BuildError> {
    let llm = checkpoint.decoder()?;
    check_limits(llm, limits).map_err(|problem| BuildError::Limits { problem })?;
    let write_error = |source| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = EngineWriter::create(out_dir).map_err(write_error)?;
    let packed = tensors(checkpoint)?;
    let numbers = |one: &Packed| one.spec.shape.iter().product::<usize>();
    let (mut done, all) = (0, packed.iter().map(numbers).sum::<usize>());
    write_each(&packed, checkpoint, |one, part| {
        if part.is_first {
            let name = &one.spec.name;
            let note =
                if one.is_widened() { " as f32: its groups are no multiple of 32" } else { "" };
            progress(&format!("[{done}/{all}] packing {name}{note}"));
            done += numbers(one);
            writer.begin(one.spec.clone()).map_err(write_error)?;
        }
        writer.write(part.bytes).map_err(write_error)
    })?;
    let file = LlmFile { tactics, ..sizes(llm, checkpoint.scheme_words(), limits) };
    let unsealed = writer.finish(KIND, file).map_err(write_error)?;
    progress("stepping one token");
    try_out(LlmEngine::preview(&unsealed)?)?;
    unsealed.seal().map_err(write_error)?;
    LlmEngine::open(out_dir)?;
    Ok(())
}

/// Whether an engine of the model may have these limits.
pub(super) fn check_limits(llm: &Decoder, limits: Limits) -> Result<(), String> {
    limits.check()?;
    let (asked, longest) = (limits.max_seq_len, llm.max_positions);
    if asked > longest {
        return Err(format!("max_seq_len {asked} is more than the model's {longest} positions"));
    }
    Ok(())
}

/// What `engine.json` says of an engine of `llm`.
pub(super) fn sizes(llm: &Decoder, scheme: String, limits: Limits) -> LlmFile {
    let scaling = llm.rope.scaling;
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
        rope_scaling: llama3(scaling),
        rope_linear: match scaling {
            Some(Scaling::Linear(factor)) => Some(factor),
            _ => None,
        },
        rope_yarn: yarn(scaling),
        rope_sections: llm.rope.sections.map(Sections::from),
        attention_bias: llm.attention_bias,
        deepstack: llm.deepstack,
        limits,
        positions: Some(llm.max_positions),
        tactics: None,
    }
}

fn llama3(scaling: Option<Scaling>) -> Option<Llama3> {
    let Some(Scaling::Llama3(by)) = scaling else { return None };
    Some(Llama3 {
        factor: by.factor,
        low: by.low_freq_factor,
        high: by.high_freq_factor,
        original_positions: by.original_max_position_embeddings,
    })
}

fn yarn(scaling: Option<Scaling>) -> Option<Yarn> {
    let Some(Scaling::Yarn(by)) = scaling else { return None };
    Some(Yarn {
        factor: by.factor,
        original_positions: by.original_max_position_embeddings,
        fast: by.beta_fast,
        slow: by.beta_slow,
        whole: by.truncate,
        attention: by.attention_factor,
    })
}

/// Steps one token; every logit has to be finite.
fn try_out(mut engine: LlmEngine) -> Result<(), BuildError> {
    let logits = engine.prefill(0, &Prompt::plain(&[0], None))?;
    match logits.into_iter().find(|logit| !logit.is_finite()) {
        Some(found) => Err(BuildError::NotFinite { found, tried: "a logit of token 0" }),
        None => Ok(()),
    }
}
