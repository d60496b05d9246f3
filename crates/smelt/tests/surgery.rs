//! Surgery on graphs: as stages of a pipeline, and by hand.

use std::fs;

use crate::world::{World, random, statuses};
use serde_json::{Value, json};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

/// The demo with stages of surgery `lines`, of which `last` is what the engine is built from.
fn demo(last: &str, lines: &str) -> World {
    let engine = "kind = \"engine-build\"\nonnx = \"vision-onnx\"";
    let demo = random(DEMO);
    let text = demo.replace(engine, &format!("kind = \"engine-build\"\nonnx = \"{last}\""));
    assert_ne!(text, demo);
    World::new(&format!("{text}\n{lines}"))
}

#[test]
fn an_engine_of_an_operated_graph_is_the_same_model() {
    let world = demo(
        "tidy",
        r#"
[stage.newer]
kind = "graph-surgery"
onnx = "vision-onnx"
rule = "to-opset"
opset = 20

[stage.parts]
kind = "graph-surgery"
onnx = "newer"
rule = "split-head"
parts = 3

[stage.tidy]
kind = "graph-surgery"
onnx = "parts"
rule = "dedupe"
"#,
    );
    let report = world.run(&[]);
    assert!(statuses(&report).iter().all(|status| status.ends_with("sealed")), "{report}");
    // `verify` has held the engine to the f32 reference.  What was read is as it was.
    for stage in ["vision-onnx", "newer", "parts"] {
        let out = world.out(stage);
        assert!(out.join("model.onnx").exists() && out.join("model.onnx.data").exists());
    }
    let names = |stage: &str| {
        let entries = fs::read_dir(world.out(stage)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names("tidy"), names("vision-onnx"), "nothing but the model is sealed");
    assert!(statuses(&world.run(&[])).iter().all(|status| status.ends_with("hit")));
    let model = world.out("tidy").display().to_string();
    let ended = world.smelt(&["onnx", "check", &model, "--for", "tensorrt-10.3"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn other_rules_are_stages_too() {
    let stages = r#"
[stage.mixed]
kind = "graph-surgery"
onnx = "vision-onnx"
rule = "insert-cast"
nodes = "Gemm"
to = "f16"

[stage.one]
kind = "graph-surgery"
onnx = "mixed"
rule = "set-batch"
size = 1

[stage.rounded]
kind = "graph-surgery"
onnx = "one"
rule = "quantize-head"
scheme = "int8"

[stage.bare]
kind = "graph-surgery"
onnx = "rounded"
rule = "externalize"
"#;
    let world = World::new(&format!("{}{stages}", random(DEMO)));
    world.run(&["--only", "bare"]);
    let inspect = |stage: &str| -> Value {
        let model = world.out(stage).display().to_string();
        let ended = world.smelt(&["onnx", "inspect", &model, "--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let count = |stage: &str, operator: &str| {
        let found = inspect(stage)["operators"].as_array().unwrap().clone();
        let row = found.iter().find(|row| row["operator"] == operator);
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    };
    assert!(count("mixed", "Cast") > count("vision-onnx", "Cast"));
    assert_eq!(inspect("vision-onnx")["inputs"][0]["dims"][0], json!("tiles"));
    assert_eq!(inspect("one")["inputs"][0]["dims"][0], json!("1"));
    assert_eq!(count("rounded", "DequantizeLinear"), 1);
    let inputs = |stage: &str| inspect(stage)["inputs"].as_array().unwrap().len();
    assert!(inputs("bare") > inputs("rounded"));
}

#[test]
fn a_rule_that_does_not_fit_is_a_bad_graph() {
    let world = demo(
        "cut",
        "[stage.cut]\nkind = \"graph-surgery\"\nonnx = \"vision-onnx\"\nrule = \"split-head\"\nparts = 2\nhead = \"logits\"",
    );
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let line = ended.stderr.lines().find(|line| line.starts_with("smelt: stage cut: ")).unwrap();
    assert!(line.contains("no value \"logits\""), "{line}");
    let wrong = demo(
        "cut",
        "[stage.cut]\nkind = \"graph-surgery\"\nonnx = \"vision-onnx\"\nrule = \"dedupe\"\nparts = 2",
    );
    let ended = wrong.smelt(&["plan", "p.toml"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("rule \"dedupe\" has no \"parts\""), "{}", ended.stderr);
}

#[test]
fn models_are_judged_for_a_back_end() {
    let world = World::new(&random(DEMO));
    world.run(&["--only", "vision-onnx"]);
    let model = world.out("vision-onnx").display().to_string();
    let judge = |model: &str, target: &str| {
        let ended = world.smelt(&["onnx", "check", model, "--for", target, "--json"]);
        (ended.code, serde_json::from_str::<Value>(&ended.stdout).unwrap(), ended.stderr)
    };
    for target in ["tensorrt-10.3", "onnxruntime-cpu"] {
        let (code, document, _) = judge(&model, target);
        let sound = json!({ "target": target, "sound": true, "findings": [] });
        assert_eq!((code, document), (Some(0), sound));
    }
    let ended = world.smelt(&["onnx", "to-opset", &model, "21", "--out", "new"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (code, document, stderr) = judge("new", "tensorrt-10.3");
    assert_eq!((code, &document["sound"]), (Some(4), &json!(false)));
    assert_eq!(document["findings"][0]["rule"], json!("opset"));
    assert_eq!(document["findings"].as_array().unwrap().len(), 1);
    assert!(stderr.contains("breaks the rules for tensorrt-10.3 in 1 place"), "{stderr}");
    let text = world.smelt(&["onnx", "check", "new", "--for", "tensorrt-10.3"]);
    assert!(text.stdout.starts_with("error[opset] model: operator set 21"), "{}", text.stdout);
    let unknown = world.smelt(&["onnx", "check", "new", "--for", "tensorrt-8"]);
    assert_eq!(unknown.code, Some(2));
    let args = ["onnx", "quantize-head", "new", "--scheme", "int4-g32", "--out", "small"];
    let ended = world.smelt(&args);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (code, document, _) = judge("small", "tensorrt-10.3");
    assert_eq!(code, Some(0), "4-bit weights are why it is set 21: {document}");
    assert_eq!(document["findings"][0]["severity"], json!("warning"));
}
