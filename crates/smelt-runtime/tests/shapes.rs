//! Asks the models of shapes what PyTorch was asked, and wants the same answers.

use std::fs;

use crate::shapes_model::{checkpoint, deploy, prompts};
use serde_json::Value;
use smelt_engine::BACKENDS;
use smelt_runtime::deployment::Deployment;
use smelt_runtime::generate::{Request, SamplingParams, generate};
use smelt_runtime::image::MediaItem;
use smelt_runtime::prompt::Turn;
use smelt_runtime::template::Context;

/// Prompts of each model where `SMELT_SOAK` does not ask for all 500.
const PROMPTS: usize = 40;

#[track_caller]
fn answers_are_those_of_pytorch(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut deployment =
        Deployment::open(BACKENDS, &deploy(&checkpoint(name), dir.path(), 1)).unwrap();
    let golden = fs::read_to_string(checkpoint(name).join("answers.jsonl")).unwrap();
    let count = if std::env::var_os("SMELT_SOAK").is_some() { usize::MAX } else { PROMPTS };
    let mut asked = 0;
    for (line, (pictures, question)) in golden.lines().zip(prompts()).take(count) {
        let golden: Value = serde_json::from_str(line).unwrap();
        assert_eq!(golden["question"], question);
        let turns = [Turn::from_marked("user", &question, pictures.len()).unwrap()];
        let sampling_params = SamplingParams::greedy(64);
        let shown: Vec<_> = pictures.into_iter().map(MediaItem::from).collect();
        let (context, sampling_params) = (&Context::default(), &sampling_params);
        let request = Request { turns: &turns, shown: &shown, context, sampling_params, now_s: 0 };
        let said = generate(&mut deployment, &request, &mut |_| {}).unwrap();
        assert_eq!(golden["tokens"], serde_json::json!(said.tokens), "{question} {}", said.text);
        asked += 1;
    }
    assert!(asked >= PROMPTS && golden.lines().count() == 500);
}

#[test]
fn in_the_layout_of_internvl3() {
    answers_are_those_of_pytorch("shapes-vl");
}

#[test]
fn in_the_layout_of_internvl3_5() {
    answers_are_those_of_pytorch("shapes-vl-3_5");
}
