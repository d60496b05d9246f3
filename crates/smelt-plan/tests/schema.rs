//! The schema against the parser: what one takes the other takes.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.
#![allow(clippy::disallowed_methods)] // The pipelines are files, which the crate itself does not read.

use std::fs;
use std::path::Path;

use serde_json::Value;
use smelt_plan::pipeline::Overrides;
use smelt_plan::{Pipeline, schema};

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn json(text: &str) -> Value {
    toml::from_str(text).unwrap()
}

#[test]
fn it_is_a_schema() {
    jsonschema::draft202012::meta::validate(&schema()).unwrap();
}

#[test]
fn it_takes_every_pipeline_here() {
    let validator = validator();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let value = json(&fs::read_to_string(&path).unwrap());
        if let Err(error) = validator.validate(&value) {
            panic!("{}: {}: {error}", path.display(), error.instance_path());
        }
        count += 1;
    }
    assert!(count >= 9, "{count} pipelines");
}

/// Both take `text`, or both refuse it.
#[track_caller]
fn check(text: &str, is_taken: bool) {
    let parsed = Pipeline::parse("p.toml", text, &Overrides::default());
    assert_eq!(parsed.is_ok(), is_taken, "the parser of {text}: {parsed:?}");
    assert_eq!(validator().is_valid(&json(text)), is_taken, "the schema of {text}");
}

fn stage(kind: &str, fields: &str) -> String {
    format!("smelt = 1\nname = \"p\"\n[stage.a]\nkind = \"{kind}\"\n{fields}\n")
}

#[test]
fn wrong_keys_and_values_are_refused_by_both() {
    let quantize = "checkpoint = \"c\"\nscheme = \"int8\"\n";
    check(&stage("quantize", quantize), true);
    for more in [
        "shceme = \"int8\"",
        "limits = { ram = \"1GiB\" }",
        "retry = { tries = 2 }",
        "retry = { attempts = 0 }",
        "retry = { settle = 5 }",
        "retry = { temporary-swap = { bytes = \"1GiB\" } }",
        "retry = { warm-up = \"a.toml\" }",
        "retry = { reboot = \"yes\" }",
        "retry = { escalate = [{ scheme = \"int9\" }] }",
        "retry = { escalate = [{ checkpoint = \"d\" }] }",
        "method = \"worst\"",
        "exclude = []",
    ] {
        check(&stage("quantize", &format!("{quantize}{more}")), false);
    }
    for more in [
        "method = \"gptq\"",
        "method = \"best\"",
        "retry = { warm-up = \"none\" }",
        "retry = { escalate = [{ scheme = \"int4-g32\" }] }",
        "retry = { settle = \"60s\", drop-caches = true, reboot = true }",
        "retry = { temporary-swap = true, warm-up = \"../a.toml#llm-engine\" }",
        "retry = { temporary-swap = { size = \"1GiB\", dir = \"/ssd\" } }",
        "limits = { memory = \"1GiB\", timeout = \"5m\" }",
        "exclude = [\"a\"]",
    ] {
        check(&stage("quantize", &format!("{quantize}{more}")), true);
    }
    check(&stage("quantize", "checkpoint = \"c\""), false);
    check(&stage("trtexec", ""), false);
}

#[test]
fn each_kind_of_value_is_checked_by_both() {
    check(&stage("source", "from = \"path:x\""), true);
    check(&stage("source", "from = \"x\""), false);
    let engine = |more: &str| stage("llm-engine-build", &format!("checkpoint = \"c\"\n{more}"));
    check(&engine("max-slots = 1"), true);
    check(&engine("max-slots = 0"), false);
    check(&engine("max-slots = true"), false);
    check(&stage("llm-engine-build", "checkpoint = \"C\""), false);
    check(&stage("onnx-export", "checkpoint = \"c\"\nprobe = true"), true);
    check(&stage("onnx-export", "checkpoint = \"c\"\nprobe = 1"), false);
    let command = |more: &str| stage("command", &format!("argv = [\"x\"]\n{more}"));
    check(&command("outputs = [\"o\"]\nenv = { A = \"1\" }"), true);
    check(&command("outputs = [\"o\"]\nenv = [\"A\"]"), false);
    check(&command(""), false);
}

#[test]
fn the_file_itself_is_checked_by_both() {
    let file = |head: &str, name: &str| {
        format!("{head}\n[stage.{name}]\nkind = \"source\"\nfrom = \"path:x\"\n")
    };
    check(&file("smelt = 1\nname = \"p\"", "a"), true);
    check(&file("smelt = 2\nname = \"p\"", "a"), false);
    check(&file("smelt = 1", "a"), false);
    check(&file("smelt = 1\nname = \"p\"", "A"), false);
    check(&file("smelt = 1\nname = \"p\"\nextra = 1", "a"), false);
    check("smelt = 1\nname = \"p\"\n", false);
}

#[test]
fn a_param_may_stand_for_any_value() {
    let text = "smelt = 1\nname = \"p\"\n[params]\nn = 4\nword = \"int8\"\n\
                [stage.a]\nkind = \"quantize\"\ncheckpoint = \"c\"\nscheme = \"${word}\"\n\
                [stage.b]\nkind = \"llm-engine-build\"\ncheckpoint = \"a\"\nmax-slots = \"${n}\"\n";
    check(text, true);
}
