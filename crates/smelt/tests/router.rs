//! Pipelines whose deployments route tiles: by texture, within a budget, and by similarity to the
//! question through a tiny CLIP of random weights.  What a CLIP of learnt ones would say is not for this
//! test.

use std::fs;

use crate::world::{World, data};
use serde_json::Value;

/// Two grids of one model, and a CLIP.
fn pipeline(stages: &str) -> String {
    let (model, clip) = (data("shapes-vl"), data("golden/clip-tiny/checkpoint"));
    let (model, clip) = (model.display(), clip.display());
    format!(
        r#"smelt = 1
name = "p"
[stage.checkpoint]
kind = "source"
from = "path:{model}"
[stage.onnx]
kind = "onnx-export"
checkpoint = "checkpoint"
grids = ["48x48", "96x96"]
[stage.vision]
kind = "engine-build"
onnx = "onnx"
[stage.llm]
kind = "llm-engine-build"
checkpoint = "checkpoint"
max-seq-len = 512
[stage.clip]
kind = "source"
from = "path:{clip}"
[stage.clip-pictures]
kind = "onnx-export"
checkpoint = "clip"
[stage.clip-vision]
kind = "engine-build"
onnx = "clip-pictures"
[stage.clip-words]
kind = "onnx-export"
checkpoint = "clip"
part = "encoder"
[stage.clip-text]
kind = "engine-build"
onnx = "clip-words"
{stages}"#
    )
}

fn deployment(name: &str, fields: &str) -> String {
    format!(
        "[stage.{name}]\nkind = \"deployment\"\ncheckpoint = \"checkpoint\"\nvision = \"vision\"\nllm = \"llm\"\n{fields}\n"
    )
}

const CLIP: &str = "clip = \"clip\"\nclip-vision = \"clip-vision\"\nclip-text = \"clip-text\"";

/// The image tokens that each deployment gave a question on average, and what else is told of it.
fn measured(world: &World) -> Vec<(String, f64)> {
    let bench = ["bench", "accuracy", "p.toml", "--questions", "q.jsonl", "--json"];
    let ended = world.smelt(&bench);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let row = |row: &Value| {
        let name = row["target"].as_str().unwrap().to_owned();
        (name, row["image_tokens"].as_f64().unwrap())
    };
    document["targets"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn tiles_are_routed_as_the_pipeline_says() {
    let similar = |threshold: &str| format!("thresholds = [\"{threshold}\"]\n{CLIP}");
    let stages = [
        deployment("high", ""),
        deployment("low", "thresholds = [\"1021\"]"),
        deployment("budget", "image-tokens = 100"),
        deployment("unlike", &similar("-1")),
        deployment("alike", &similar("1.01")),
        deployment("near", &format!("image-tokens = 100\n{CLIP}")),
    ];
    let world = World::new(&pipeline(&stages.concat()));
    fs::copy(data("picture.png"), world.path("picture.png")).unwrap();
    let question =
        r#"{"images":["picture.png"],"question":"How many circles are there","answer":"2"}"#;
    world.write("q.jsonl", question);
    world.run(&[]);
    let measured = measured(&world);
    let tokens = |name: &str| measured.iter().find(|(target, _)| target == name).unwrap().1;
    // 320 by 240 are tiles and a thumbnail, each of 36 tokens or of 9.
    let tiles = tokens("high") / 36.0;
    assert!(tiles > 2.0 && tiles.fract() == 0.0, "{measured:?}");
    assert_eq!(tokens("low"), tiles * 9.0);
    assert!((tokens("low")..=100.0).contains(&tokens("budget")), "{measured:?}");
    assert_eq!((tokens("unlike"), tokens("alike")), (tokens("high"), tokens("low")));
    assert_eq!(tokens("near"), tokens("budget"));
    let deployed = fs::read_to_string(world.out("near").join("deployment.json")).unwrap();
    let deployed: Value = serde_json::from_str(&deployed).unwrap();
    assert_eq!(deployed["router"]["by"], "similarity");
    assert_eq!(
        (&deployed["clip"]["max_tokens"], &deployed["router"]["tokens_max"]),
        (&16.into(), &100.into())
    );
    assert!(world.out("near").join("clip-tokenizer.json").exists());
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let refused = |fields: &str, code: i32, words: &str| {
        let world = World::new(&pipeline(&deployment("deployment", fields)));
        let ended = world.smelt(&["run", "p.toml"]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    };
    refused(
        "clip = \"clip\"\nthresholds = [\"0.2\"]",
        3,
        "a CLIP is \"clip\", \"clip-vision\" and \"clip-text\" together",
    );
    refused(CLIP, 3, "with \"thresholds\" or \"image-tokens\"");
    let other = "thresholds = [\"0.2\"]\nclip = \"checkpoint\"\nclip-vision = \"clip-vision\"\nclip-text = \"clip-text\"";
    refused(other, 4, "is no checkpoint of a CLIP that reads");
}
