//! Whole pipelines on tiny models: from a checkpoint to an answer, bad models.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::world::{World, copy, data, random, statuses};
use serde_json::{Value, json};
use smelt_model::dtype::Dtype;
use smelt_model::safetensors::{TensorSpec, Writer};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

fn demo() -> World {
    World::new(&random(DEMO))
}

#[test]
fn the_demo_answers_and_a_second_run_does_nothing() {
    let world = demo();
    let report = world.run(&[]);
    assert!(statuses(&report).iter().all(|status| status.ends_with("sealed")), "{report}");
    let picture = data("picture.png").display().to_string();
    let chat = world.smelt(&["chat", "p.toml", "--image", &picture, "Describe this image."]);
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    assert!(
        !chat.stdout.trim().is_empty() && chat.stderr.contains("prompt tokens"),
        "{}",
        chat.stderr
    );
    let again = world.smelt(&["chat", "p.toml", "--image", &picture, "Describe this image."]);
    assert_eq!(again.stdout, chat.stdout, "greedy answers are the same every time");
    let other = world.smelt(&["chat", "p.toml", "Describe this image."]);
    assert_ne!(other.stdout, chat.stdout, "the picture matters");
    assert!(statuses(&world.run(&[])).iter().all(|status| status.ends_with("hit")));
}

#[test]
fn an_answer_is_drawn_by_its_seed_and_settings_out_of_range_are_usage_errors() {
    let world = demo();
    let chat = |more: &[&str]| world.smelt(&[&["chat", "p.toml", "Hi"], more].concat());
    let refused = |more: &[&str], words: &str| {
        let ended = chat(more);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    };
    // Before anything is built, and so before anything is loaded.
    refused(&["--temperature", "3"], "temperature must be 0 to 2, not 3");
    refused(&["--temperature", "1", "--top-p", "0"], "top_p must be more than 0");
    refused(&["--top-p", "0.5"], "--temperature");
    refused(&["--stop", ""], "a stop string must not be empty");
    refused(&["--logit-bias", "5"], "as in 42=-5");
    world.run(&[]);
    refused(&["--logit-bias", "99999999=1"], "logit_bias names token 99999999");
    let drawn = |seed| chat(&["--temperature", "1", "--top-k", "50", "--seed", seed]);
    let first = drawn("7");
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stderr.trim_end().ends_with("; seed 7"), "{}", first.stderr);
    assert_eq!(drawn("7").stdout, first.stdout);
    assert_ne!(drawn("8").stdout, first.stdout);
}

#[test]
fn the_demos_model_sees() {
    let world = World::new(&DEMO.replace("../tests/data/", &data("").display().to_string()));
    let model = format!("model=path:{}", data("shapes-vl").display());
    world.run(&["--set", &model]);
    let picture = data("shapes-1.png").display().to_string();
    let ask = |question: &str, answer: &str| {
        let ended =
            world.smelt(&["chat", "p.toml", "--set", &model, "--image", &picture, question]);
        assert_eq!(ended.stdout.trim(), answer, "{question} {}", ended.stderr);
    };
    ask("What is left of the red circle?", "a blue circle");
    ask("How many circles are there?", "2");
    ask("What number is written?", "24");
    ask(
        "Describe this image.",
        "a large blue circle, a large red circle, a small green ring, the number 24",
    );
}

/// The digests of every output of the demo.  They change only with a kind's version: when this
/// fails, the bytes a stage makes have changed, so raise the version in `smelt-plan/src/kind/`.
#[test]
fn the_demos_outputs_are_the_same_bytes_everywhere() {
    let world = demo();
    world.run(&[]);
    let digest = |stage: &str| {
        let out = world.out(stage);
        out.file_name().unwrap().to_str().unwrap()[..16].to_owned()
    };
    let stages = ["checkpoint", "vision-onnx", "vision-engine", "llm-quant", "llm-engine"];
    let found: Vec<String> =
        stages.iter().map(|stage| format!("{stage} {}", digest(stage))).collect();
    let expected = include_str!("demo-digests.txt").lines().collect::<Vec<_>>();
    assert_eq!(found, expected);
}

#[test]
fn a_weight_that_lost_a_bit_answers_nothing() {
    let world = demo();
    world.run(&[]);
    // By its directory: by its pipeline the store would miss an output that changed.
    let deployed = world.out("deployment").display().to_string();
    assert_eq!(world.smelt(&["chat", &deployed, "Hello"]).code, Some(0));
    let weights = world.out("llm-engine").join("weights.bin");
    fs::set_permissions(&weights, fs::Permissions::from_mode(0o644)).unwrap();
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&weights, bytes).unwrap();
    for _ in 0..2 {
        let chat = world.smelt(&["chat", &deployed, "Hello"]);
        assert_eq!((chat.code, chat.stdout.as_str()), (Some(1), ""), "{}", chat.stderr);
        assert!(chat.stderr.contains("weights.bin is damaged: its sha256 is"), "{}", chat.stderr);
    }
}

#[test]
fn a_change_of_scheme_rebuilds_the_decoder_alone() {
    let world = demo();
    world.run(&[]);
    let report = world.run(&["--set", "scheme=none"]);
    assert_eq!(
        statuses(&report),
        [
            "checkpoint hit",
            "vision-onnx hit",
            "vision-engine hit",
            "llm-quant sealed",
            "llm-engine sealed",
            "verify sealed",
            "deployment sealed"
        ]
    );
}

/// The golden checkpoint in a folder of this world, to be changed.
fn golden() -> World {
    let world = demo();
    copy(&data("golden/internvl3-tiny/checkpoint"), &world.path("model"));
    world
}

const GOLDEN: [&str; 2] = ["--set", "model=path:model"];

#[test]
fn a_checkpoint_from_a_path_is_read_in_place() {
    let world = golden();
    let report = world.run(&GOLDEN);
    assert_eq!(statuses(&report)[0], "checkpoint hit");
    let source = report["stages"][0]["output"].as_str().unwrap();
    assert_eq!(Path::new(source), fs::canonicalize(world.path("model")).unwrap());
    assert!(statuses(&world.run(&GOLDEN)).iter().all(|status| status.ends_with("hit")));
}

/// A changed golden checkpoint must be refused with exit 4 and one line that says `words`.
#[track_caller]
fn refused(change: impl FnOnce(&World), words: &str) {
    let world = golden();
    change(&world);
    let ended = world.smelt(&[&["run", "p.toml"], &GOLDEN[..]].concat());
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let line = ended.stderr.lines().find(|line| line.starts_with("smelt: stage vision-onnx: "));
    let line = line.unwrap_or_else(|| panic!("no line on the stage: {}", ended.stderr));
    assert!(line.contains(words), "{line}");
    let sealed = fs::read_dir(world.path("cache/out")).unwrap().count();
    assert_eq!(sealed, 0, "nothing is sealed from a bad checkpoint");
}

fn edit_config(world: &World, edit: impl FnOnce(&mut Value)) {
    let mut config: Value = serde_json::from_str(&world.read("model/config.json")).unwrap();
    edit(&mut config);
    world.write("model/config.json", &config.to_string());
}

#[test]
fn bad_checkpoints_are_refused_in_one_line() {
    refused(
        |world| {
            let path = world.path("model/model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 1000]).unwrap();
        },
        "model.safetensors",
    );
    refused(|world| fs::remove_file(world.path("model/config.json")).unwrap(), "config.json");
    refused(
        |world| edit_config(world, |config| config["llm_config"]["num_hidden_layers"] = json!(4)),
        "layers.3.",
    );
    refused(
        |world| edit_config(world, |config| config["llm_config"]["intermediate_size"] = json!(8)),
        "mlp.",
    );
    refused(
        |world| edit_config(world, |config| config["architectures"] = json!(["LlavaModel"])),
        "LlavaModel",
    );
}

#[test]
fn a_path_that_holds_no_model_is_refused() {
    let world = demo();
    let ended = world.smelt(&["run", "p.toml", "--set", "model=path:nothing"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("path:nothing"), "{}", ended.stderr);
    let ended = world.smelt(&["run", "p.toml", "--set", "model=synthetic:nothing"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("internvl3-tiny"), "it lists what there is: {}", ended.stderr);
}

#[test]
fn chat_tells_what_to_do_first() {
    let world = demo();
    let ended = world.smelt(&["chat", "p.toml", "Hello"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("smelt run p.toml"), "{}", ended.stderr);
    world.run(&[]);
    world.write("not-a-picture.png", "text");
    let ended = world.smelt(&["chat", "p.toml", "--image", "not-a-picture.png", "Hello"]);
    assert_eq!(ended.code, Some(4));
    assert!(ended.stderr.contains("not-a-picture.png"), "{}", ended.stderr);
}

#[test]
fn export_and_quantize_make_what_the_stages_make() {
    let world = demo();
    world.run(&[]);
    let checkpoint = world.out("checkpoint").display().to_string();
    let same = |arguments: &[&str], stage: &str| {
        let ended = world.smelt(arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for entry in fs::read_dir(world.out(stage)).unwrap() {
            let path = entry.unwrap().path();
            let made = world.path("made").join(path.file_name().unwrap());
            assert!(fs::read(&made).unwrap() == fs::read(&path).unwrap(), "{}", made.display());
        }
        let again = world.smelt(arguments);
        assert_eq!(again.code, Some(2), "nothing is overwritten: {}", again.stderr);
        fs::remove_dir_all(world.path("made")).unwrap();
    };
    same(&["export", &checkpoint, "--part", "vision", "--out", "made"], "vision-onnx");
    same(&["quantize", &checkpoint, "--scheme", "int8", "--out", "made"], "llm-quant");
    let refused = world.smelt(&["export", "nothing", "--part", "vision", "--out", "made"]);
    assert_eq!(refused.code, Some(4));
    assert!(!world.path("made").exists());
}

#[test]
fn packed_checkpoints_are_written_in_the_form_asked_for() {
    let pipeline = r#"
smelt = 1
name = "repack"
[stage.checkpoint]
kind = "source"
from = "path:checkpoint"
[stage.packed]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "none"
format = "gptq"
[stage.engine]
kind = "llm-engine-build"
checkpoint = "packed"
max-seq-len = 16
"#;
    let world = World::new(pipeline);
    copy(&data("golden/packed/awq"), &world.path("checkpoint"));
    world.run(&[]);
    let arguments = ["quantize", "checkpoint", "--scheme", "none", "--format", "gptq"];
    let ended = world.smelt(&[&arguments[..], &["--out", "made"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for file in ["config.json", "model.safetensors"] {
        let same = fs::read(world.out("packed").join(file)).unwrap();
        assert!(fs::read(world.path("made").join(file)).unwrap() == same, "{file}");
    }
    let head = world.smelt(&[&arguments[..], &["--head", "int8", "--out", "head"]].concat());
    assert_eq!(head.code, Some(4), "{}", head.stderr);
    assert!(head.stderr.contains("is already quantised (scheme int4-g32-asym)"), "{}", head.stderr);
    let config = fs::read_to_string(world.path("made/config.json")).unwrap();
    let mislabelled = config.replace("\"gptq_v2\"", "\"gptq\"").replace("\"gptq\"", "\"awq\"");
    fs::write(world.path("made/config.json"), mislabelled).unwrap();
    let refused = world.smelt(&["quantize", "made", "--scheme", "none", "--out", "again"]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("qweight has shape"), "{}", refused.stderr);
    assert!(!world.path("again").exists());
}

#[test]
fn the_head_stays_floats_where_a_format_describes_all_layers_at_once() {
    let world = World::new("smelt = 1\n");
    let original = data("golden/packed/llama-bf16.gguf").display().to_string();
    let quantize = ["quantize", original.as_str(), "--scheme", "int4-g32", "--format"];
    for (format, packed) in [("awq", false), ("gptq", false), ("compressed-tensors", true)] {
        let ended = world.smelt(&[&quantize[..], &[format, "--out", format]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let weights = fs::read(world.path(format).join("model.safetensors")).unwrap();
        let header = String::from_utf8_lossy(&weights[..16 << 10]).into_owned();
        let floats = header.contains("\"lm_head.weight\"");
        assert_eq!(floats, !packed, "{format}");
    }
    let packed = ["awq", "--embeddings", "int8", "--out", "packed"];
    let refused = world.smelt(&[&quantize[..], &packed].concat());
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot hold a packed embedding"), "{}", refused.stderr);
    assert!(!world.path("packed").exists());
}

/// transformers reads none from these formats, and starts from random numbers instead.
#[test]
fn a_packed_head_is_written_for_gptq_only_when_asked_for() {
    let world = World::new("smelt = 1\n");
    let original = data("golden/packed/llama-bf16.gguf").display().to_string();
    let quantize = ["quantize", original.as_str(), "--scheme", "int8", "--format", "gptq"];
    for (head, out, packed) in [(&[][..], "plain", false), (&["--head", "int8"], "asked", true)] {
        let ended = world.smelt(&[&quantize[..], head, &["--out", out]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let warned = ended.stderr.contains("warning: transformers reads no packed head");
        let config: Value =
            serde_json::from_str(&world.read(&format!("{out}/config.json"))).unwrap();
        assert_eq!((warned, &config["quantization_config"]["lm_head"]), (packed, &packed.into()));
    }
    // What was packed with it is told of, too.
    let again = ["quantize", "asked", "--scheme", "none", "--format", "gptq", "--out", "again"];
    assert!(world.smelt(&again).stderr.contains("warning: transformers reads no packed head"));
    let sorted =
        ["--method", "gptq-act-order", "--format", "compressed-tensors", "--out", "sorted"];
    let refused = world.smelt(&[&quantize[..4], &sorted].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("compressed-tensors reads no more"), "{}", refused.stderr);
}

/// A Llama whose sizes are what TensorRT-LLM's kernels take.
fn write_llama(dir: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "max_position_embeddings": 64,
    });
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let projections = ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"];
    let projections = projections.into_iter().chain(["mlp.gate", "mlp.up", "mlp.down"]);
    let square = projections.map(|name| (layer(&format!("{name}_proj")), vec![64, 64]));
    let norms = ["input_layernorm", "post_attention_layernorm"].map(|name| (layer(name), vec![64]));
    let rest = [("model.norm.weight".to_owned(), vec![64])];
    let embedding = [("model.embed_tokens.weight".to_owned(), vec![8, 64])];
    let shapes: Vec<(String, Vec<usize>)> =
        embedding.into_iter().chain(square).chain(norms).chain(rest).collect();
    let spec = |(name, shape): &(String, Vec<usize>)| TensorSpec {
        name: name.clone(),
        dtype: Dtype::F32,
        shape: shape.clone(),
    };
    let specs: Vec<TensorSpec> = shapes.iter().map(spec).collect();
    fs::create_dir_all(dir).unwrap();
    let mut writer =
        Writer::create(&dir.join("model.safetensors"), &specs, &BTreeMap::new()).unwrap();
    for (_, shape) in &shapes {
        let number = |at: usize| ((at * 37 % 101) as f32 / 101.0).to_le_bytes();
        let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(number).collect();
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn decoders_are_written_for_tensorrt_llm_by_stage_and_by_command_alike() {
    let pipeline = r#"
smelt = 1
name = "tensorrt-llm"
[stage.checkpoint]
kind = "source"
from = "path:checkpoint"
[stage.packed]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "SCHEME"
format = "tensorrt-llm"
"#;
    let names = |dir: &Path| {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
        names.sort();
        names
    };
    for (scheme, algorithm) in
        [("none", Value::Null), ("int8", json!("W8A16")), ("int4", json!("W4A16"))]
    {
        let world = World::new(&pipeline.replace("SCHEME", scheme));
        write_llama(&world.path("checkpoint"));
        world.run(&[]);
        let ended = world.smelt(&[
            "quantize",
            "checkpoint",
            "--scheme",
            scheme,
            "--format",
            "tensorrt-llm",
            "--out",
            "made",
        ]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(names(&world.path("made")), ["config.json", "rank0.safetensors"]);
        for file in ["config.json", "rank0.safetensors"] {
            let same = fs::read(world.out("packed").join(file)).unwrap();
            assert!(fs::read(world.path("made").join(file)).unwrap() == same, "{file}");
        }
        let config: Value = serde_json::from_str(&world.read("made/config.json")).unwrap();
        assert_eq!(config["quantization"]["quant_algo"], algorithm);
    }
}

#[test]
fn what_tensorrt_llm_does_not_take_is_refused_before_anything_is_made() {
    let world = World::new("smelt = 1\n");
    write_llama(&world.path("square"));
    let odd = data("golden/llama-linear-tiny/checkpoint").display().to_string();
    for (checkpoint, more, code, words) in [
        (odd.as_str(), &["--scheme", "int8"][..], 4, "80x64 is not made of multiples of 64"),
        ("square", &["--scheme", "int4-g32"], 4, "it has 4 bits and a scale for 32 inputs"),
        ("square", &["--scheme", "int8", "--head", "int8"], 4, "cannot hold a packed head"),
        ("square", &["--scheme", "none", "--embeddings", "int8"], 4, "a packed embedding"),
        (
            "square",
            &["--scheme", "int4-g128", "--method", "gptq-act-order", "--calibration", "square"],
            2,
            "which tensorrt-llm does not read",
        ),
    ] {
        let arguments = ["quantize", checkpoint, "--format", "tensorrt-llm", "--out", "made"];
        let refused = world.smelt(&[&arguments[..], more].concat());
        assert_eq!(refused.code, Some(code), "{}", refused.stderr);
        assert!(refused.stderr.contains(words), "{words:?} is not in {}", refused.stderr);
        assert!(!world.path("made").exists());
    }
    let rows = ["quantize", "square", "--scheme", "int4", "--format", "gptq", "--out", "made"];
    let refused = world.smelt(&rows);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("which only --format tensorrt-llm takes"),
        "{}",
        refused.stderr
    );
}

#[test]
fn decoders_are_exported_by_stage_and_by_command_alike() {
    let pipeline = r#"
smelt = 1
name = "text"
[stage.checkpoint]
kind = "source"
from = "path:checkpoint"
[stage.llm-onnx]
kind = "onnx-export"
checkpoint = "checkpoint"
part = "llm"
dtype = "f16"
input = "embeds"
probe = true
"#;
    let world = World::new(pipeline);
    copy(&data("golden/llama3-tied-tiny/checkpoint"), &world.path("checkpoint"));
    world.run(&[]);
    let arguments = ["export", "checkpoint", "--part", "llm", "--dtype", "f16", "--out", "made"];
    let ended = world.smelt(&[&arguments[..], &["--input", "embeds", "--probe"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for file in ["model.onnx", "model.onnx.data", "probe.json"] {
        let same = fs::read(world.out("llm-onnx").join(file)).unwrap();
        assert!(fs::read(world.path("made").join(file)).unwrap() == same, "{file}");
    }
    let ended = world.smelt(&["export", "checkpoint", "--part", "vision", "--out", "tower"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("llama model, which has no vision tower"), "{}", ended.stderr);
    assert!(!world.path("tower").exists());
    let tower = ["export", "checkpoint", "--part", "vision", "--input", "ids", "--out", "tower"];
    assert_eq!(world.smelt(&tower).code, Some(2), "a tower takes no tokens");
}

#[test]
fn towers_over_grids_are_exported_by_stage_and_by_command_alike() {
    let pipeline = r#"
smelt = 1
name = "grids"
[stage.checkpoint]
kind = "source"
from = "path:checkpoint"
[stage.vision-onnx]
kind = "onnx-export"
checkpoint = "checkpoint"
dtype = "f16"
grids = ["32x32", "24x40"]
"#;
    let world = World::new(pipeline);
    copy(&data("golden/qwen3_vl-tiny/checkpoint"), &world.path("checkpoint"));
    world.run(&[]);
    let export = |more: &[&str]| {
        let arguments = ["export", "checkpoint", "--part", "vision", "--dtype", "f16", "--out"];
        world.smelt(&[&arguments[..], &["made"], more].concat())
    };
    let ended = export(&["--grid", "32x32", "--grid", "24x40"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for file in ["grid-32x32.onnx", "grid-24x40.onnx", "model.onnx.data", "grids.json"] {
        let same = fs::read(world.out("vision-onnx").join(file)).unwrap();
        assert!(fs::read(world.path("made").join(file)).unwrap() == same, "{file}");
    }
    fs::remove_dir_all(world.path("made")).unwrap();
    for (grid, code, words) in [
        ("32x36", 4, "grid 32x36: both sides must be multiples of 8"),
        ("32", 2, "grid \"32\" is not HEIGHTxWIDTH in pixels"),
    ] {
        let ended = export(&["--grid", grid]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(!world.path("made").exists());
    }
}

#[test]
fn every_part_there_is_goes_to_a_directory_of_its_name() {
    let world = demo();
    world.run(&["--only", "checkpoint"]);
    let checkpoint = world.out("checkpoint").display().to_string();
    let ended = world.smelt(&["export", &checkpoint, "--part", "all", "--out", "all"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for part in ["vision", "llm"] {
        let model = format!("all/{part}");
        let checked = world.smelt(&["onnx", "check", &model]);
        assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    }
}

#[test]
fn onnx_models_are_looked_at_checked_and_operated_on() {
    let world = demo();
    world.run(&["--only", "vision-onnx"]);
    let model = world.out("vision-onnx").display().to_string();
    let good = |arguments: &[&str]| {
        let ended = world.smelt(&[&["onnx"], arguments].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout + &ended.stderr
    };
    assert!(good(&["inspect", &model]).contains("LayerNormalization"));
    assert!(good(&["check", &model]).contains("is sound"));
    assert!(good(&["set-batch", &model, "--size", "2", "--out", "two"]).contains("nodes became"));
    assert!(good(&["check", "two"]).contains("is sound"));
    assert!(good(&["inspect", "two"]).contains('2'));
    // The tower's last product is cut as a decoder's head is.
    good(&["split-head", &model, "--parts", "2", "--out", "split"]);
    assert!(good(&["check", "split"]).contains("is sound"));
    let split =
        ["onnx", "split-head", &model, "--parts", "2", "--out", "other", "--head", "logits"];
    let refused = world.smelt(&split);
    assert_eq!(refused.code, Some(4), "there is no such output: {}", refused.stderr);
    assert!(!world.path("other").exists());
    world.write("bad.onnx", "not a model");
    assert_eq!(world.smelt(&["onnx", "check", "bad.onnx"]).code, Some(4));
    let neither = world.smelt(&["onnx", "split-head", &model, "--out", "split"]);
    assert_eq!(neither.code, Some(2), "{}", neither.stderr);
}

/// The whole way of a tiny Qwen-VL; a template that shows one picture, and says what is asked.
fn qwen(name: &str, precision: &str, llm: &str, more: &str) -> World {
    let pipeline = r#"
smelt = 1
name = "qwen"
[stage.checkpoint]
kind = "source"
from = "path:checkpoint"
[stage.vision-onnx]
kind = "onnx-export"
checkpoint = "checkpoint"
part = "vision"
dtype = "f32"
grids = ["40x56", "16x32", "400x400"]
[stage.vision-engine]
kind = "engine-build"
onnx = "vision-onnx"
precision = "PRECISION"
[stage.llm-quant]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "int8"
[stage.llm-engine]
kind = "llm-engine-build"
checkpoint = "LLM"
max-seq-len = 256
[stage.verify]
kind = "verify"
vision = "vision-engine"
llm = "llm-engine"
against = "checkpoint"
MORE
[stage.deployment]
kind = "deployment"
model = "qwen"
checkpoint = "checkpoint"
vision = "vision-engine"
llm = "llm-engine"
verified = "verify"
"#;
    let world = World::new(
        &pipeline.replace("PRECISION", precision).replace("LLM", llm).replace("MORE", more),
    );
    let checkpoint = world.path("checkpoint");
    copy(&data(&format!("golden/{name}/checkpoint")), &checkpoint);
    fs::copy(data("golden/qwen-words.json"), checkpoint.join("tokenizer.json")).unwrap();
    let template = "{%- for message in messages -%}{%- for part in message.content -%}\
        {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>\
        {%- else -%}{{ part.text }} {% endif -%}{%- endfor -%}{%- endfor -%}";
    fs::write(checkpoint.join("chat_template.jinja"), template).unwrap();
    let config = json!({"eos_token": "<|end|>"}).to_string();
    fs::write(checkpoint.join("tokenizer_config.json"), config).unwrap();
    let pixels = json!({"min_pixels": 256, "max_pixels": 1600}).to_string();
    fs::write(checkpoint.join("preprocessor_config.json"), pixels).unwrap();
    world
}

#[test]
fn qwen_vl_is_verified_from_pixels_to_logits() {
    for (name, features) in [("qwen2_5_vl-tiny", false), ("qwen3_vl-tiny", true)] {
        let own = "weights = \"llm-quant\"";
        for (precision, llm, more) in [("f32", "checkpoint", ""), ("int8", "llm-quant", own)] {
            let world = qwen(name, precision, llm, more);
            world.run(&[]);
            let verified = fs::read(world.out("verify").join("verify.json")).unwrap();
            let verified: Value = serde_json::from_slice(&verified).unwrap();
            let findings = verified["findings"].as_array().unwrap();
            let found = |what: &str| findings.iter().find(|finding| finding["what"] == what);
            let cosine = |what: &str| found(what).unwrap()["cosine_min"].as_f64().unwrap();
            let least = if precision == "f32" { 0.999_999 } else { 0.995 };
            assert!(cosine("image embeddings") > least, "{name} {verified}");
            let logits = ["checkpoint", "engine's own weights"][usize::from(precision == "int8")];
            assert!(cosine(&format!("logits against the {logits}")) > 0.999_999, "{name}");
            let what = "features of earlier blocks";
            assert_eq!(found(what).is_some_and(|_| cosine(what) > least), features, "{name}");
        }
    }
}

#[test]
fn a_wrong_answer_of_qwen_vl_is_told_with_who_is_to_blame() {
    let world = qwen("qwen3_vl-tiny", "f32", "checkpoint", "prompts = \"path:prompts\"");
    fs::create_dir(world.path("prompts")).unwrap();
    fs::copy(data("shapes-1.png"), world.path("prompts/1.png")).unwrap();
    let question = json!({"question": "w7 w100", "images": ["1.png"], "answer": "w1 w1 w1"});
    fs::write(world.path("prompts/questions.jsonl"), format!("{question}\n")).unwrap();
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    // The engine computes what the reference does.
    assert!(ended.stderr.contains("the f32 reference says the same"), "{}", ended.stderr);
}

/// What was built with `--set` is found by its name, and named to whoever forgets the `--set`; no network
/// is asked meanwhile.
#[test]
fn what_was_built_with_a_set_is_listed_and_asked_by_its_name() {
    let world = World::new(&random(DEMO).replace("synthetic:internvl3-tiny", "hf:org/tiny-model"));
    let none = world.smelt(&["ls", "--json"]);
    let none: Value = serde_json::from_str(&none.stdout).unwrap();
    assert_eq!(none["deployments"], serde_json::json!([]));
    assert!(!world.path("cache").exists(), "whoever looks makes no store");
    let set = "model=synthetic:internvl3-tiny";
    world.run(&["--set", set]);
    let listed: Value = serde_json::from_str(&world.smelt(&["ls", "--json"]).stdout).unwrap();
    let [built] = &listed["deployments"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!(built["sets"], serde_json::json!([set]));
    assert_eq!(built["kind"], "answers about pictures and texts");
    assert!(built["bytes"].as_u64().unwrap() > 100_000, "its engines count: {listed}");
    let built_s = built["used_s"].as_i64().unwrap();
    let name = built["name"].as_str().unwrap();
    let table = world.smelt(&["ls"]).stdout;
    assert!(table.contains(name) && table.contains(&format!("p.toml#deployment --set {set}")));

    // A hub that never answers: whoever asked it would wait.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = format!("http://{}", silent.local_addr().unwrap());
    let ask = |words: &[&str]| {
        let mut command = world.command(words);
        command.env("HF_ENDPOINT", &hub).env("HF_HOME", world.path("hf"));
        crate::world::ended(&mut command)
    };
    let begin = std::time::Instant::now();
    let lost = ask(&["chat", "p.toml", "Hello"]);
    assert!(begin.elapsed().as_secs() < 5, "nobody is asked");
    assert_ne!(lost.code, Some(0));
    assert_eq!(lost.stderr.lines().count(), 1, "{}", lost.stderr);
    assert!(lost.stderr.contains(&format!("{name} (shapes-vl, built with --set {set})")));
    let out = world.path("cache/out").join(built["digest"].as_str().unwrap());
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 86_400);
    fs::File::open(&out).unwrap().set_modified(long_ago).unwrap();
    assert!(world.smelt(&["ls"]).stdout.contains("3 d ago"));
    for words in [&["chat", name, "Hello"][..], &["chat", "shapes-vl", "Hello"]] {
        let asked = ask(words);
        assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    }
    let listed: Value = serde_json::from_str(&world.smelt(&["ls", "--json"]).stdout).unwrap();
    let used_s = listed["deployments"][0]["used_s"].as_i64().unwrap();
    assert!(used_s >= built_s, "{used_s}: who asks it by its name uses it");
    let wrong = ask(&["chat", "absent", "Hello"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("smelt ls"), "{}", wrong.stderr);
}
