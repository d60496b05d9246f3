//! Builds engines of language models from checkpoints, and compares one with the checkpoint it may be of.
//!
//! Knows nothing of where checkpoints come from, or of how engines compute.

mod build;
mod card;
mod pack;
mod size;

use smelt_engine::llm::LlmEngine;
use smelt_model::checkpoint::{Checkpoint, CheckpointError};

pub use build::{build, build_with};
pub use card::{
    OtherNumbers, build_for_card, compare_for_card, kernel_set, products, size_for_card,
    unlike_for_card,
};
pub use pack::{Unpacked, unpacked};
pub use size::{LlmSize, size};
pub use smelt_backend::Limits;

/// The first size or tensor in which `engine` is not one of `checkpoint`, in words; numbers are not compared.
///
/// # Errors
/// When the checkpoint has no decoder or lacks a tensor.
pub fn unlike(
    engine: &LlmEngine,
    checkpoint: &Checkpoint,
) -> Result<Option<String>, CheckpointError> {
    let limits = engine.built_for();
    let sizes = build::sizes(checkpoint.decoder()?, checkpoint.scheme_words(), limits);
    let packed = pack::tensors(checkpoint)?;
    let tensors: Vec<_> = packed.into_iter().map(|packed| packed.spec).collect();
    Ok(engine.unlike(sizes, &tensors))
}
