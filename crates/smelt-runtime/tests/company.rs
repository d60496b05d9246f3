//! Draws answers alone and beside seven others: equal seeds must give equal tokens.

use smelt_backend::{Answer, Decoder, KvOptions, Limits, SlotInput};
use smelt_engine::BACKENDS;
use smelt_engine_build::llm;
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

/// Takes note of the token that was chosen.
fn take((sampler, said): &mut (Sampler, Vec<u32>), answer: &Answer) {
    let token = answer.chosen[0].as_ref().unwrap().token;
    sampler.count(token);
    said.push(token);
}

/// The answers to `indices`, their decode steps taken together.
fn answers(engine: &mut dyn Decoder, indices: &[usize]) -> Vec<Vec<u32>> {
    let vocab = engine.facts().vocab;
    let mut all: Vec<(Sampler, Vec<u32>)> = Vec::new();
    for (slot, &index) in indices.iter().enumerate() {
        let tokens = prompt(index, vocab);
        let sampler = Sampler::new(&settings(index), &tokens, vocab).unwrap();
        let answer =
            engine.step(&[SlotInput::new(slot, &tokens).choosing(&[sampler.draw(None)])]).unwrap();
        all.push((sampler, Vec::new()));
        take(&mut all[slot], &answer[0]);
    }
    for _ in 1..ANSWER {
        let draws: Vec<_> = all.iter().map(|(sampler, _)| [sampler.draw(None)]).collect();
        let mut runs = Vec::new();
        for (slot, ((_, said), draw)) in all.iter().zip(&draws).enumerate() {
            runs.push(SlotInput::new(slot, &said[said.len() - 1..]).choosing(draw));
        }
        let step = engine.step(&runs).unwrap();
        all.iter_mut().zip(&step).for_each(|(one, answer)| take(one, answer));
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
        let mut engine = BACKENDS.decoder(&engine_dir, KvOptions::default()).unwrap();
        let together = answers(&mut *engine, &[0, 1, 2, 3, 4, 5, 6, 7]);
        for (index, said) in together.iter().enumerate() {
            let alone = answers(&mut *engine, &[index]);
            assert_eq!(alone[0], *said, "{} {index}", scheme.name());
        }
        let distinct: std::collections::BTreeSet<_> = together.iter().collect();
        assert!(distinct.len() > 1, "answers are drawn");
    }
}
