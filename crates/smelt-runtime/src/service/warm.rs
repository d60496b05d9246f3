//! Runs every size of work once before requests come.
//!
//! The first run of an engine maps its weights into memory, compiles graphs for their shapes and makes
//! its buffers; whoever asks first must not wait for that.

use smelt_backend::sampling::GREEDY;
use smelt_backend::{Decoder, RunError, SlotInput};

use crate::deployment::Deployment;
use crate::generate::GenerateError;
use crate::vision::Vision;

/// Tokens of the prompt that is read: a whole chunk of the engine's own.
const TOKENS: usize = 128;

/// Runs the vision engine over a sample of each size, reads a prompt and decodes batches of every
/// size up to `running_max`.  `told` hears which part of it is done, from 0 to 1.
///
/// # Errors
/// [`GenerateError`] when an engine fails.
pub(super) fn up(
    deployment: &mut Deployment,
    running_max: usize,
    told: &mut dyn FnMut(f64),
) -> Result<(), GenerateError> {
    let samples = deployment.vision.as_ref().map_or_else(Vec::new, Vision::samples);
    // A prompt and batches of every size read the decoder's weights about as a sample reads the tower's.
    let all = (samples.len() + 1) as f64;
    told(0.0);
    if let Some(vision) = &deployment.vision {
        for (done, part) in (1..).zip(&samples) {
            vision.encode(part).map_err(GenerateError::Vision)?;
            told(f64::from(done) / all);
        }
    }
    decoder(&mut *deployment.llm, running_max)
}

/// Has a decoder read a prompt and decode batches of every size up to `running_max`.
///
/// # Errors
/// [`GenerateError`] when it fails.
pub(super) fn decoder(decoder: &mut dyn Decoder, running_max: usize) -> Result<(), GenerateError> {
    let warmed = llm(decoder, running_max);
    for slot in 0..running_max {
        decoder.release(slot);
    }
    match warmed {
        // Little memory for keys and values is no fault: less is warm, then.
        Err(RunError::KvFull { .. } | RunError::NoMemory { .. }) => Ok(()),
        other => other.map_err(GenerateError::Llm),
    }
}

fn llm(llm: &mut dyn Decoder, running_max: usize) -> Result<(), RunError> {
    let tokens = vec![0; TOKENS.min(llm.facts().limits.max_seq_len / 2).max(1)];
    llm.step(&[SlotInput::new(0, &tokens).choosing(&[GREEDY])])?;
    for slot in 1..running_max {
        llm.fork(0, slot, 1)?;
    }
    let batch: Vec<SlotInput<'_>> =
        (0..running_max).map(|slot| SlotInput::new(slot, &[0]).choosing(&[GREEDY])).collect();
    (1..=running_max).try_for_each(|size| llm.step(&batch[..size]).map(drop))
}
