//! Models that read text alone: verified, deployed, asked, measured, and shown a picture in vain.

use std::fs;

use crate::world::{World, data, statuses, text_world};
use serde_json::Value;

/// A question whose answer nobody knows.
const OPEN: &str = r#"{"task":"say","question":"w1 w2 w3","answer":"w4"}"#;

/// The words that the deployment of `world` says to `question`.
fn said(world: &World, question: &str) -> String {
    let ended = world.smelt(&["chat", "p.toml", "--max-tokens", "4", question]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout.trim().to_owned()
}

#[test]
fn every_family_is_verified_deployed_and_asked() {
    for name in ["qwen2-tiny", "qwen3-tiny", "llama3-tiny"] {
        let world = text_world(name);
        for arguments in [&["plan", "p.toml"][..], &["graph", "p.toml"]] {
            let ended = world.smelt(arguments);
            assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        }
        let report = world.run(&[]);
        assert!(statuses(&report).iter().all(|status| !status.ends_with("failed")), "{report}");
        let verified = fs::read_to_string(world.out("verify").join("verify.json")).unwrap();
        let verified: Value = serde_json::from_str(&verified).unwrap();
        let findings = verified["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 3, "{verified}");
        assert_eq!(verified["answer"].as_array().unwrap().len(), 16);
        let answer = said(&world, "w1 w2 w3");
        assert!(answer.starts_with('w') && answer.split_whitespace().count() <= 4, "{answer}");
        assert_eq!(said(&world, "w1 w2 w3"), answer);
        assert_ne!(said(&world, "w9 w8"), answer, "{name}: the question matters");
        let out = world.smelt(&["out", "p.toml", "deployment"]);
        assert_eq!(out.code, Some(0), "{}", out.stderr);
    }
}

/// An engine for a device that is not here: of it there is what choosing takes.
const FOR_ANOTHER: &str = r#"
[stage.gpu]
kind = "command"
argv = ["sh", "-c", '''echo '{"format": 1, "kind": "llm", "target": "cuda", "device": {"sm": "87"}}' > engine.json''']
outputs = ["engine.json"]
"#;

#[test]
fn of_engines_for_several_devices_the_one_that_fits_is_deployed_and_asked() {
    let world = text_world("qwen2-tiny");
    world.run(&[]);
    let alone = said(&world, "w1 w2 w3");
    let file = |world: &World| {
        let text = fs::read_to_string(world.out("deployment").join("deployment.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let before = file(&world);
    let text = world.read("p.toml") + FOR_ANOTHER;
    // Of the stage that verifies the engine stays the one it is.
    let (rest, deployment) = text.split_once("[stage.deployment]").unwrap();
    let name = |engines: &str| {
        let deployment = deployment.replace("llm = \"llm-engine\"", &format!("llm = {engines}"));
        world.write("p.toml", &format!("{rest}[stage.deployment]{deployment}"));
    };
    name("[\"gpu\", \"llm-engine\"]");
    world.run(&[]);
    let now = file(&world);
    assert_eq!(now["llm"].as_array().unwrap().len(), 2, "{now}");
    assert_eq!(now["llm"][1], before["llm"], "the engine that is here is the one before");
    assert_eq!(said(&world, "w1 w2 w3"), alone);
    world.write("q.jsonl", &format!("{OPEN}\n"));
    let bench = ["bench", "accuracy", "--questions", "q.jsonl", "--json", "p.toml"];
    let ended = world.smelt(&bench);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    name("[\"gpu\", \"gpu\"]");
    let ended = world.smelt(&["run", "p.toml"]);
    // Engines for cards of a known kind are deployed by any desk; this is of none.
    let why = "target \"cuda\" is not \"cuda-sm87\"";
    assert!(ended.code != Some(0) && ended.stderr.contains(why), "{}", ended.stderr);
    // A list of one is that one, in its key and in its file.
    name("[\"llm-engine\"]");
    let report = world.run(&[]);
    assert!(statuses(&report).contains(&"deployment hit".to_owned()), "{report}");
    assert_eq!(file(&world), before);
}

#[test]
fn a_picture_for_a_model_that_reads_text_is_one_line() {
    let world = text_world("qwen2-tiny");
    world.run(&[]);
    let picture = data("picture.png").display().to_string();
    let ended = world.smelt(&["chat", "p.toml", "--image", &picture, "w1"]);
    assert_eq!((ended.code, &ended.stdout[..]), (Some(2), ""), "{}", ended.stderr);
    let why = "\"tiny\" reads text alone; leave pictures and clips out";
    assert!(ended.stderr.trim_end().ends_with(why), "{}", ended.stderr);
    world.write("q.jsonl", &format!("{OPEN}\n"));
    let bench = ["bench", "accuracy", "--questions", "q.jsonl", "--json", "p.toml"];
    let ended = world.smelt(&bench);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let target = &document["targets"][0];
    assert_eq!(target["exact"]["of"], 1, "{document}");
    assert!(target["perplexity"].as_f64().unwrap() > 1.0, "{document}");
    assert!(target["llm_bytes"].as_u64() > Some(0), "{document}");
    let shown = OPEN.replace("\"answer\"", "\"images\":[\"picture.png\"],\"answer\"");
    fs::copy(data("picture.png"), world.path("picture.png")).unwrap();
    world.write("q.jsonl", &format!("{shown}\n"));
    let ended = world.smelt(&bench);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.stderr.trim_end().ends_with(why), "{}", ended.stderr);
}

#[test]
fn golden_prompts_are_asked_of_text_models() {
    let world = text_world("llama3-tiny");
    fs::create_dir(world.path("prompts")).unwrap();
    world.write("prompts/questions.jsonl", &format!("{OPEN}\n"));
    let own = "weights = \"llm-quant\"\n";
    let asked = world.read("p.toml").replace(own, &format!("{own}prompts = \"path:prompts\"\n"));
    world.write("p.toml", &asked);
    let ended = world.smelt(&["run", "p.toml"]);
    assert_ne!(ended.code, Some(0));
    let words = "golden prompt 1, \"w1 w2 w3\", is answered ";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert!(ended.stderr.contains("the f32 reference says"), "{}", ended.stderr);
}

#[test]
fn what_sees_is_no_part_of_a_text_model() {
    let world = text_world("qwen3-tiny");
    let pipeline = world.read("p.toml");
    let plan = |more: &str| {
        world.write("p.toml", &(pipeline.clone() + more));
        world.smelt(&["plan", "p.toml"])
    };
    for field in ["tiles = 4", "image-tokens = 64"] {
        let ended = plan(field);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("without \"vision\" it reads text alone"),
            "{}",
            ended.stderr
        );
    }
}

/// A run of `world` whose deployment must be refused, and what `plan` says of it before.
#[track_caller]
fn refused(world: &World, words: &str, is_foreseen: bool) {
    let plan = world.smelt(&["plan", "p.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.stderr);
    let line = plan.stdout.lines().find(|line| line.starts_with("deployment will be refused: "));
    assert_eq!(line.is_some_and(|line| line.contains(words)), is_foreseen, "{}", plan.stdout);
    let plan = world.smelt(&["plan", "p.toml", "--json"]);
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    for stage in plan["stages"].as_array().unwrap() {
        let refusal = stage["refusal"].as_str().unwrap_or_default();
        let is_said = is_foreseen && stage["name"] == "deployment";
        assert_eq!(refusal.contains(words), is_said, "{stage}");
    }
    let part = world.smelt(&["run", "p.toml", "--only", "llm-engine"]);
    assert_eq!(part.code, Some(0), "{}", part.stderr);
    assert!(!part.stderr.contains("will be refused"), "it is left out: {}", part.stderr);
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let failed = ended.stderr.lines().find(|line| line.starts_with("smelt: stage deployment: "));
    let failed = failed.unwrap_or_default();
    assert!(failed.contains(words), "{words:?}: {}", ended.stderr);
    assert!(!failed.contains("/work/"), "what it names is there: {failed}");
    let warned = ended.stderr.starts_with("warning: deployment will be refused: ");
    assert_eq!(warned, is_foreseen, "{}", ended.stderr);
    let out = world.smelt(&["out", "p.toml", "deployment"]);
    assert_ne!(out.code, Some(0), "it is not sealed: {}", out.stdout);
}

/// The tiny model without `verify`, which would be in the way.
fn unverified() -> World {
    let world = text_world("qwen2-tiny");
    let pipeline = world.read("p.toml");
    let (before, rest) = pipeline.split_once("[stage.verify]").unwrap();
    let (_, after) = rest.split_once("[stage.deployment]").unwrap();
    let after = after.replace("verified = \"verify\"\n", "");
    world.write("p.toml", &format!("{before}[stage.deployment]{after}"));
    world
}

#[test]
fn a_template_that_fails_is_foreseen_and_never_sealed() {
    for (template, words) in [
        ("{{ raise_exception('no word from me') }}", "no word from me"),
        ("{{ messages[0].content | nonsense }}", "nonsense"),
        ("always the same", "it never writes what a message says"),
    ] {
        let world = unverified();
        world.write("checkpoint/chat_template.jinja", template);
        refused(&world, words, true);
    }
}

#[test]
fn a_broken_file_beside_the_template_is_called_by_its_own_name() {
    let world = unverified();
    world.write("checkpoint/tokenizer_config.json", "{");
    refused(&world, "checkpoint/tokenizer_config.json: not JSON", true);
}

#[test]
fn a_context_beyond_the_models_positions_is_foreseen() {
    let words = "will be refused: \"max-seq-len\" is 99999, more than the model's 512 positions";
    let plan = |world: &World, stage: &str| {
        let plan = world.smelt(&["plan", "p.toml"]);
        assert_eq!(plan.code, Some(0), "{}", plan.stderr);
        let lines: Vec<&str> =
            plan.stdout.lines().filter(|line| line.contains("refused")).collect();
        assert_eq!(lines, [format!("{stage} {words}")], "{}", plan.stdout);
        let run = world.smelt(&["run", "p.toml"]);
        assert_ne!(run.code, Some(0));
        assert!(run.stderr.starts_with(&format!("warning: {stage} {words}\n")), "{}", run.stderr);
        let failed = format!("smelt: stage {stage}: ");
        assert!(run.stderr.contains(&failed), "it is as was said: {}", run.stderr);
    };
    let world = unverified();
    let pipeline = world.read("p.toml");
    world.write("p.toml", &pipeline.replace("= 128", "= 99999"));
    plan(&world, "llm-engine");
    world.write("p.toml", &(pipeline + "max-seq-len = 99999\n"));
    plan(&world, "deployment");
}

#[test]
fn heads_that_no_kernel_takes_are_foreseen() {
    let world = unverified();
    let mut config: Value = serde_json::from_str(&world.read("checkpoint/config.json")).unwrap();
    config["head_dim"] = 130.into();
    world.write("checkpoint/config.json", &config.to_string());
    // The weights are of other heads, which is what stages before it are refused for.
    let refused = || {
        let plan = world.smelt(&["plan", "p.toml"]);
        assert_eq!(plan.code, Some(0), "{}", plan.stderr);
        let lines = plan.stdout.lines().filter(|line| line.starts_with("llm-engine will be"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(refused(), [""; 0], "processors take any");
    let kind = "kind = \"llm-engine-build\"\n";
    let pipeline = world.read("p.toml");
    world.write("p.toml", &pipeline.replace(kind, &format!("{kind}target = \"cuda-sm90\"\n")));
    let words = "llm-engine will be refused: heads have 130 numbers, and kernels for GPUs take 128 at most; build it with target = \"cpu\"";
    assert_eq!(refused(), [words]);
}

#[test]
fn keys_and_values_that_no_gpu_keeps_are_foreseen() {
    let world = unverified();
    let lines = || {
        let plan = world.smelt(&["plan", "p.toml"]);
        assert_eq!(plan.code, Some(0), "{}", plan.stderr);
        let lines = plan.stdout.lines().filter(|line| line.starts_with("deployment will be"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (build, deployment) = ("kind = \"llm-engine-build\"\n", "kind = \"deployment\"\n");
    let pipeline = world.read("p.toml");
    let exact = pipeline.replace(deployment, &format!("{deployment}kv = \"f32\"\n"));
    world.write("p.toml", &exact);
    assert_eq!(lines(), [""; 0], "processors keep any");
    world.write("p.toml", &exact.replace(build, &format!("{build}target = \"cuda-sm90\"\n")));
    let words =
        "deployment will be refused: \"kv\" is f32, and GPUs keep keys and values as f16 or int8";
    assert_eq!(lines(), [words]);
}

#[test]
fn more_tokens_than_the_engine_knows_are_never_sealed() {
    let world = unverified();
    let mut tokenizer: Value =
        serde_json::from_str(&world.read("checkpoint/tokenizer.json")).unwrap();
    tokenizer["model"]["vocab"]["w160"] = 160.into();
    world.write("checkpoint/tokenizer.json", &tokenizer.to_string());
    refused(&world, "161 tokens, but the", true);
}

#[test]
fn nonsense_from_a_program_is_no_engine() {
    let world = unverified();
    let pipeline = world.read("p.toml");
    let (before, rest) = pipeline.split_once("[stage.llm-engine]").unwrap();
    let (_, after) = rest.split_once("[stage.deployment]").unwrap();
    let nonsense = "[stage.llm-engine]\nkind = \"command\"\n\
        argv = [\"sh\", \"-c\", \"echo nonsense | tee engine.json > weights.bin\"]\n\
        outputs = [\"engine.json\", \"weights.bin\"]\n";
    world.write("p.toml", &format!("{before}{nonsense}[stage.deployment]{after}"));
    refused(&world, "engine.json", false);
}

/// The reason for which `plan` says that `stage` will be refused, and a run of it is refused.
#[track_caller]
fn reason(world: &World, stage: &str) -> String {
    let plan = world.smelt(&["plan", "p.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.stderr);
    let said = format!("{stage} will be refused: ");
    let reason = plan.stdout.lines().find_map(|line| line.strip_prefix(&said[..]));
    let reason = reason.unwrap_or_else(|| panic!("{}", plan.stdout)).to_owned();
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let failed = format!("smelt: stage {stage}: ");
    assert!(ended.stderr.lines().any(|line| line.starts_with(&failed)), "{}", ended.stderr);
    reason
}

#[test]
fn the_stage_that_fails_first_is_named() {
    let world = text_world("qwen2-tiny");
    world.write("checkpoint/tokenizer.json", "{");
    let why = reason(&world, "verify");
    assert!(why.contains("tokenizer.json is not a usable tokenizer"), "{why}");
    let world = text_world("qwen2-tiny");
    world.write("checkpoint/config.json", "{");
    let why = reason(&world, "llm-quant");
    assert!(why.contains("config.json"), "{why}");
    // What another tool packed is rounded once more only where that is said.
    let world = text_world("qwen2-tiny");
    fs::remove_dir_all(world.path("checkpoint")).unwrap();
    fs::create_dir(world.path("checkpoint")).unwrap();
    fs::copy(data("golden/packed/llama-q4_0.gguf"), world.path("checkpoint/m.gguf")).unwrap();
    let why = reason(&world, "llm-quant");
    assert!(why.contains("is already quantised (scheme "), "{why}");
    let scheme = "scheme = \"int8\"\n";
    let pipeline =
        world.read("p.toml").replace(scheme, &format!("{scheme}allow-requantize = true\n"));
    world.write("p.toml", &pipeline);
    let plan = world.smelt(&["plan", "p.toml"]);
    assert!(!plan.stdout.contains("llm-quant will be refused"), "{}", plan.stdout);
    assert!(!plan.stdout.contains("photographs"), "it is shown none: {}", plan.stdout);
}

/// `pipeline`, which deploys a copy of the engine of `stage` one byte of whose weights is another.
fn flipped(pipeline: &str, stage: &str, field: &str) -> String {
    let deployed = format!("\n{field} = \"{stage}\"\n");
    let (before, after) = pipeline.rsplit_once(&deployed).unwrap();
    let copy = format!(
        r#"
[stage.flipped]
kind = "command"
inputs = ["{stage}"]
outputs = ["engine.json", "weights.bin"]
argv = ["sh", "-ec", '''
cp "$SMELT_IN_{}"/* .
chmod u+w weights.bin
tail -c 1 weights.bin | tr '\000-\377' '\001-\377\000' > last
size=$(wc -c < weights.bin)
dd if=last of=weights.bin bs=1 seek=$((size - 1)) conv=notrunc
rm last
''']
"#,
        stage.to_uppercase().replace('-', "_")
    );
    format!("{before}\n{field} = \"flipped\"\n{after}{copy}")
}

/// A run of `world` whose deployment has a damaged engine.
#[track_caller]
fn is_damaged(world: &World) {
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let failed = ended.stderr.lines().find(|line| line.starts_with("smelt: stage deployment: "));
    let failed = failed.unwrap_or_default();
    assert!(failed.contains("weights.bin is damaged: its sha256 is "), "{}", ended.stderr);
    let out = world.smelt(&["out", "p.toml", "deployment"]);
    assert_ne!(out.code, Some(0), "it is not sealed: {}", out.stdout);
}

#[test]
fn an_engine_of_other_weights_than_were_built_is_never_sealed() {
    let world = unverified();
    world.write("p.toml", &flipped(&world.read("p.toml"), "llm-engine", "llm"));
    is_damaged(&world);
    // What was verified is another engine.
    let world = text_world("qwen2-tiny");
    world.write("p.toml", &flipped(&world.read("p.toml"), "llm-engine", "llm"));
    is_damaged(&world);
    let reranker = include_str!("../../../pipelines/reranker.toml")
        .replace("hf:cross-encoder/ms-marco-MiniLM-L6-v2", "synthetic:ms-marco-minilm-tiny");
    is_damaged(&World::new(&flipped(&reranker, "classifier-engine", "encoder")));
    let encoder = include_str!("../../../xtask/conformance/encoder.toml")
        .replace("path:../../tests/data", &format!("path:{}", data("").display()));
    is_damaged(&World::new(&flipped(&encoder, "encoder-engine", "encoder")));
}

/// A decoder of `model` beside the tower of `other`, both built here.
fn mixed(model: &str, other: &str) -> World {
    let from = |name: &str| data(&format!("golden/{name}/checkpoint")).display().to_string();
    let (model, other) = (from(model), from(other));
    World::new(&format!(
        r#"
smelt = 1
name = "mixed"
[stage.checkpoint]
kind = "source"
from = "path:{model}"
[stage.other]
kind = "source"
from = "path:{other}"
[stage.vision-onnx]
kind = "onnx-export"
checkpoint = "other"
part = "vision"
dtype = "f32"
[stage.vision-engine]
kind = "engine-build"
onnx = "vision-onnx"
[stage.llm-engine]
kind = "llm-engine-build"
checkpoint = "checkpoint"
max-seq-len = 128
[stage.deployment]
kind = "deployment"
model = "tiny"
checkpoint = "checkpoint"
vision = "vision-engine"
llm = "llm-engine"
"#
    ))
}

#[test]
fn a_tower_of_another_model_is_never_sealed() {
    refused(
        &mixed("internvl3-tiny", "internvl3_5-tiny"),
        "the vision engine gives embeddings of 64, but the llm engine takes 80",
        true,
    );
    // As wide, but it sees patches where the decoder's model is shown tiles.
    refused(
        &mixed("internvl3_5-tiny", "qwen2_5_vl-tiny"),
        "tiles are square, but an engine takes 96x160",
        true,
    );
}
