//! Remembers how fast deployments answered on this machine, so that `fit` need not estimate what was seen.
//!
//! Engines are told apart by the bytes of their weights, which is all that is known of them before they are built.

use std::fs;
use std::path::Path;
use std::time::Duration;

use smelt_backend::Heading as EngineHeading;
use smelt_engine::engine_file::WEIGHTS_FILE;
use smelt_fit::MeasuredAnswer;
use smelt_plan::Digest;
use smelt_runtime::deployment;
use smelt_runtime::engine_dirs::EngineDirs;
use smelt_runtime::generate::Answer;
use smelt_store::{Store, Wait, notes};

use crate::cards::PROCESSORS;
use crate::device::BACKENDS;
use crate::load;

/// So many answers are remembered.
const ANSWERS_MAX: usize = 64;
/// Steps and tokens below which a rate says more of chance than of the engine.
const STEPS_MIN: usize = 8;
const TOKENS_MIN: usize = 64;
/// The least time that clocks and schedulers do not drown.
const TIME_MIN: Duration = Duration::from_millis(50);

/// What was measured so far, the newest last; nothing where there is no store.
pub(crate) fn read() -> Vec<MeasuredAnswer> {
    load::store_to_read().map(|store| notes::read(&store, &note())).unwrap_or_default()
}

/// Remembers an answer of the deployment in `dir`.  What cannot be kept costs an estimate and nothing else.
pub(crate) fn keep(dir: &Path, answer: &Answer) {
    let Some(measured) = measured(dir, answer) else { return };
    // Nobody who asks makes a store, and one that is held or read-only stays as it is.
    let Ok(root) = load::root() else { return };
    let store = root.join("FORMAT").exists().then(|| Store::open(&root, Wait::No));
    let Some(Ok(store)) = store else { return };
    let mut all: Vec<MeasuredAnswer> = notes::read(&store, &note());
    all.push(measured);
    let first = all.len().saturating_sub(ANSWERS_MAX);
    notes::keep(&store, &note(), &all[first..]);
}

fn note() -> Digest {
    Digest::of(b"how fast deployments answered")
}

/// How fast the engines of the deployment in `dir` were; nothing where too little was said to tell.
fn measured(dir: &Path, answer: &Answer) -> Option<MeasuredAnswer> {
    let spec = deployment::read_spec(dir).ok()?;
    let timing = &answer.timing;
    let bytes = |dirs: &EngineDirs| weights_bytes(&dirs.chosen(BACKENDS, dir).ok()?);
    let target = EngineHeading::read(&spec.llm.chosen(BACKENDS, dir).ok()?).ok()?.target;
    let measured = MeasuredAnswer {
        target: (target != PROCESSORS).then_some(target),
        decoder_bytes: bytes(&spec.llm)?,
        tower_bytes: spec.vision.as_ref().and_then(bytes),
        tokens_per_s: rate((timing.decode_steps, STEPS_MIN), timing.decode),
        prompt_tokens_per_s: rate((answer.prompt_tokens, TOKENS_MIN), timing.prefill),
        image_tokens_per_s: rate((answer.seen.tokens, TOKENS_MIN), timing.vision),
    };
    measured.tokens_per_s.map(|_| measured)
}

/// Bytes of the weights of the engine in `dir`.
fn weights_bytes(dir: &Path) -> Option<u64> {
    Some(fs::metadata(dir.join(WEIGHTS_FILE)).ok()?.len())
}

fn rate((count, least): (usize, usize), time: Duration) -> Option<f64> {
    (count >= least && time >= TIME_MIN).then(|| count as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_a_count_and_time() {
        let seconds = Duration::from_secs;
        assert_eq!(rate((100, 8), seconds(4)), Some(25.0));
        assert_eq!(rate((7, 8), seconds(4)), None);
        assert_eq!(rate((100, 8), Duration::from_millis(49)), None);
    }
}
