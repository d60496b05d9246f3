//! Draws answers alone and beside seven others: equal seeds must give equal tokens.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use smelt_engine::llm::{self, Limits, LlmEngine, Prompt};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::synthetic;
use smelt_runtime::sampling::{Sampler, Settings};
use tempfile::TempDir;

const SLOTS: usize = 8;
const ANSWER: usize = 24;

/// Prompts of different lengths, the same every time.
fn prompt(index: usize, vocab: usize) -> Vec<u32> {
    (0..5 + index * 17).map(|at| ((at * 7919 + index * 31 + 1) % vocab) as u32).collect()
}

fn settings(index: usize) -> Settings {
    Settings {
        temperature: 0.9 + index as f32 / 10.0,
        top_p: 0.95,
        repetition_penalty: 1.1,
        seed: 40 + index as u64,
        ..Settings::GREEDY
    }
}

/// The answers to `indices`, their decode steps taken together.
fn answers(engine: &mut LlmEngine, indices: &[usize]) -> Vec<Vec<u32>> {
    let vocab = engine.vocab();
    let mut all = Vec::new();
    for (slot, &index) in indices.iter().enumerate() {
        let tokens = prompt(index, vocab);
        let mut sampler = Sampler::new(&settings(index), &tokens, vocab).unwrap();
        let logits = engine.prefill(slot, &Prompt::plain(&tokens, None)).unwrap();
        let first = sampler.choose(&logits, None).unwrap().token;
        all.push((sampler, vec![first]));
    }
    for _ in 1..ANSWER {
        let last = |(slot, (_, said)): (usize, &(Sampler, Vec<u32>))| (slot, *said.last().unwrap());
        let step: Vec<(usize, u32)> = all.iter().enumerate().map(last).collect();
        for ((sampler, said), logits) in all.iter_mut().zip(engine.decode(&step).unwrap()) {
            said.push(sampler.choose(&logits, None).unwrap().token);
        }
    }
    (0..SLOTS).for_each(|slot| engine.release(slot));
    all.into_iter().map(|(_, said)| said).collect()
}

#[test]
fn equal_seeds_say_the_same_alone_and_in_a_batch_of_eight() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    synthetic::write("internvl3-tiny", &at("checkpoint"), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&at("checkpoint")).unwrap();
    for scheme in [Scheme::None, Scheme::Int8, Scheme::Int4G32] {
        let quantised = at(scheme.name());
        quantize::quantize(&checkpoint, &Options::plain(scheme), &quantised, &mut |_| {}).unwrap();
        let engine_dir = at(&format!("{}-engine", scheme.name()));
        let limits = Limits { max_seq_len: 256, max_slots: SLOTS };
        let quantised = Checkpoint::open(&quantised).unwrap();
        llm::build(&quantised, limits, &engine_dir, &mut |_| {}).unwrap();
        let mut engine = LlmEngine::open(&engine_dir).unwrap();
        let together = answers(&mut engine, &[0, 1, 2, 3, 4, 5, 6, 7]);
        for (index, said) in together.iter().enumerate() {
            let alone = answers(&mut engine, &[index]);
            assert_eq!(alone[0], *said, "{} {index}", scheme.name());
        }
        let distinct: std::collections::BTreeSet<_> = together.iter().collect();
        assert!(distinct.len() > 1, "answers are drawn");
    }
}
