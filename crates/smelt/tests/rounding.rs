//! What each way of rounding costs a decoder that was trained, on texts that nothing was fitted to.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod world;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{Method, Options, Scheme, quantize};
use smelt_model::reference;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use world::{World, data};

/// Questions and answers of the model of shapes, every one once.
fn sentences() -> Vec<String> {
    let text = std::fs::read_to_string(data("shapes-vl/answers.jsonl")).unwrap();
    let sentence = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        format!("{} {}", line["question"].as_str().unwrap(), line["answer"].as_str().unwrap())
    };
    text.lines().map(sentence).collect::<BTreeSet<String>>().into_iter().collect()
}

/// The logits of each sentence at all its tokens, one after another.
fn logits(ckpt: &Checkpoint, sentences: &[Vec<u32>]) -> Vec<f32> {
    let of = |tokens: &Vec<u32>| {
        reference::logits(ckpt, tokens, None, 0..tokens.len(), &mut |_| {}).unwrap()
    };
    sentences.iter().flat_map(of).collect()
}

/// The mean over all tokens of Σ p (log p - log q), in nats.
fn divergence(exact: &[f32], found: &[f32], vocab: usize) -> f64 {
    let logs = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
        row.iter().map(|x| f64::from(x - most) - sum.ln()).collect()
    };
    let of = |(p, q): (&[f32], &[f32])| -> f64 {
        let (p, q) = (logs(p), logs(q));
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    let rows = exact.chunks(vocab).zip(found.chunks(vocab));
    rows.map(of).sum::<f64>() / (exact.len() / vocab) as f64
}

#[test]
fn every_method_beats_plain_rounding_and_best_is_the_best() {
    let world = World::new("smelt = 1\nname = \"rounding\"\n");
    let checkpoint = data("shapes-vl");
    let all = sentences();
    let known: Vec<&str> = all.iter().step_by(2).map(String::as_str).collect();
    world.write("known.txt", &known.join("\n"));
    let path = checkpoint.display().to_string();
    let ended = world.smelt(&["calibrate", &path, "--text", "known.txt", "--out", "seen"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    let original = Checkpoint::open(&checkpoint).unwrap();
    let tokenizer = Tokenizer::open(&checkpoint.join(TOKENIZER_FILE)).unwrap();
    let unknown = all.iter().skip(1).step_by(2).take(60);
    let unknown: Vec<Vec<u32>> = unknown.map(|text| tokenizer.encode(text).unwrap()).collect();
    let exact = logits(&original, &unknown);
    let seen = world.path("seen");
    let cost = |method: Method| {
        let out = world.path(method.name());
        let calibration = Some(seen.as_path()).filter(|_| method.reads_calibration());
        let options = Options { method, calibration, ..Options::plain(Scheme::Int4G64) };
        made(&original, &options, &out);
        divergence(&exact, &logits(&Checkpoint::open(&out).unwrap(), &unknown), 512)
    };
    let costs = Method::ALL.map(|method| (method.name(), cost(method)));
    println!("{costs:?}");
    let (plain, best) = (costs[0].1, costs[Method::ALL.len() - 1].1);
    for (name, cost) in &costs[1..] {
        assert!(*cost < plain, "{name}: {costs:?}");
        // A tenth is what another draw of the sentences changes.
        assert!(best < cost * 1.1, "{name}: {costs:?}");
    }
    assert!(best < 0.5 * plain, "{costs:?}");
}

fn made(original: &Checkpoint, options: &Options<'_>, out: &Path) {
    quantize(original, options, out, &mut |_| {}).unwrap();
}
