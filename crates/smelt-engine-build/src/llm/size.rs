//! Says what an engine of a language model will take, before there is one.
//!
//! The tensors are those that [`super::build`] lays out, so what is said is what is written.  No weight is read, and none
//! need be here.

use smelt_engine::engine_file::{TensorSpec, weights_bytes};
use smelt_model::checkpoint::{Checkpoint, CheckpointError};
use smelt_model::decoder::{Decoder, EMBEDDING};

use super::pack::{Packed, tensors};

/// Multiplications in whose time a number of a key or a value becomes a float, whichever heads share it: by decoders of which
/// two and seven heads do.
const WIDENING: usize = 4;

/// What an engine of a language model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlmSize {
    /// Bytes of its file of weights; [`u64::MAX`] where no file is that large.
    pub weights_bytes: u64,
    /// Bytes that are read for every token of an answer.
    pub step_bytes: u64,
    /// Multiplications of a token of a prompt: the head is asked for the last one alone.
    pub prompt_products: u64,
    /// Layers, between which the processor's cores wait for each other.
    pub layers: usize,
    /// Multiplications of a token's queries and scores with each token before it, and those in whose time its keys and values
    /// become floats.
    pub attention_products: u64,
    /// Heads of keys and values: so many cores share the attention of one token.
    pub kv_heads: usize,
}

/// What an engine of `checkpoint` will take.
///
/// # Errors
/// When the checkpoint has no decoder or lacks a tensor.
pub fn size(checkpoint: &Checkpoint) -> Result<LlmSize, CheckpointError> {
    let llm = checkpoint.decoder()?;
    let specs: Vec<TensorSpec> =
        tensors(checkpoint)?.into_iter().map(|Packed { spec, .. }| spec).collect();
    // A row of the embedding is read for a token, or all of it where it is the head, too.
    let looks_up =
        |spec: &&TensorSpec| checkpoint.has_lm_head() && spec.name.starts_with(EMBEDDING);
    let read = specs.iter().filter(|spec| !looks_up(spec));
    let step_bytes = read.filter_map(TensorSpec::bytes).fold(0u64, u64::saturating_add);
    Ok(LlmSize::of(llm, weights_bytes(&specs).unwrap_or(u64::MAX), step_bytes))
}

impl LlmSize {
    /// That of an engine of `llm` whose weights take so many bytes, of which a token reads so many.
    pub(super) fn of(llm: &Decoder, weights_bytes: u64, step_bytes: u64) -> Self {
        let layer = llm.hidden * (2 * llm.q_width() + 2 * llm.kv_width() + 3 * llm.intermediate);
        Self {
            weights_bytes,
            step_bytes,
            prompt_products: (llm.layers * layer) as u64,
            layers: llm.layers,
            attention_products: (llm.layers * 2 * (llm.q_width() + WIDENING * llm.kv_width()))
                as u64,
            kv_heads: llm.kv_heads,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use smelt_backend::Limits;
    use smelt_model::quantize::{self, Options, Scheme};
    use smelt_model::synthetic;

    use super::*;
    use crate::llm::build;

    /// Bytes of the weights of an engine of `checkpoint`, built.
    fn built(checkpoint: &Checkpoint) -> u64 {
        let out = tempfile::tempdir().unwrap();
        let limits = Limits { max_seq_len: 64, max_slots: 1 };
        build(checkpoint, limits, out.path(), &mut |_| {}).unwrap();
        fs::metadata(out.path().join("weights.bin")).unwrap().len()
    }

    #[test]
    fn what_is_said_before_is_what_is_written() {
        for name in ["internvl3-tiny", "qwen2_5_vl-tiny", "qwen3_vl-tiny", "smolvlm-tiny"] {
            let dir = tempfile::tempdir().unwrap();
            synthetic::write(name, dir.path(), &mut |_| {}).unwrap();
            let written = Checkpoint::open(dir.path()).unwrap();
            let described = Checkpoint::described_synthetic(name).unwrap();
            assert_eq!(size(&described).unwrap().weights_bytes, built(&written), "{name}");
            for scheme in [Scheme::Int8, Scheme::Int4G32, Scheme::Int4G64Asym] {
                let options = Options::plain(scheme);
                let said = quantize::described(&described, &options).unwrap();
                let out = tempfile::tempdir().unwrap();
                quantize::quantize(&written, &options, out.path(), &mut |_| {}).unwrap();
                let quantized = Checkpoint::open(out.path()).unwrap();
                let said = size(&said).unwrap();
                assert_eq!(said.weights_bytes, built(&quantized), "{name} {scheme}");
                assert!(said.step_bytes <= said.weights_bytes, "{name} {scheme}: {said:?}");
            }
        }
    }
}
