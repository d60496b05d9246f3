use super::*;
use serde_json::json;

fn parse(text: &str, sets: &[&str]) -> Result<Pipeline, ParseError> {
    Pipeline::parse("p.toml", text, &Overrides::parse(sets)?)
}

const GOOD: &str = r#"
smelt = 1
name = "demo"
[params]
model = "synthetic:internvl3-tiny"
seq = 64
[stage.checkpoint]
kind = "source"
from = "${model}"
[stage.llm-quant]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "int8"
[stage.llm-engine]
kind = "llm-engine-build"
checkpoint = "llm-quant"
max-seq-len = "${seq}"
limits = { memory = "3GiB", timeout = "30m" }
[stage.llm-engine.retry]
escalate = [{ max-seq-len = 32, limits = { memory = "4GiB" } }]
"#;

#[test]
fn a_good_file_reads() {
    let pipeline = parse(GOOD, &[]).unwrap();
    let names: Vec<_> = pipeline.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["checkpoint", "llm-quant", "llm-engine"]);
    let engine = &pipeline.stages[2];
    assert_eq!(engine.params["max-seq-len"], json!(64));
    assert_eq!(engine.params["max-slots"], json!(1), "defaults are filled in");
    assert_eq!(engine.limits.memory_bytes_max, Some(3 << 30));
    assert_eq!(engine.attempts_max, 2);
    assert_eq!(engine.escalate[0].params["max-seq-len"], json!(32));
    assert_eq!(engine.escalate[0].limits.memory_bytes_max, Some(4 << 30));
}

#[test]
fn set_keeps_the_type() {
    let pipeline = parse(GOOD, &["seq=96", "model=path:../x"]).unwrap();
    assert_eq!(pipeline.stages[2].params["max-seq-len"], json!(96));
    assert_eq!(pipeline.paths(), ["../x"].into());
    assert!(pipeline.hubs().is_empty());
    let pipeline = parse(GOOD, &["model=hf:x/y@v1"]).unwrap();
    assert_eq!(pipeline.hubs(), ["x/y@v1"].into());
    assert!(pipeline.paths().is_empty());
    for set in ["seq=many", "nope=1", "seq"] {
        assert!(matches!(parse(GOOD, &[set]), Err(ParseError::Set(_))), "{set}");
    }
}

/// Replaces `from` by `to` in the good file; the error must start at `place` and say `words`.
#[track_caller]
fn check(from: &str, to: &str, place: &str, words: &str) {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "the replacement does nothing");
    let error = parse(&text, &[]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("p.toml:{place}: ")), "{error}");
    assert!(error.contains(words), "{error}");
    assert!(!error.contains('\n'), "one line: {error}");
}

#[test]
fn every_error_has_its_place() {
    check("scheme", "schema", "13:1", "did you mean \"scheme\"?");
    check("name = \"demo\"", "name = \"demo\"\nnmae = 1", "4:1", "unknown key \"nmae\"");
    check("smelt = 1", "smelt = 2", "2:9", "this smelt reads smelt = 1");
    check("\"quantize\"", "\"quantise\"", "11:8", "did you mean \"quantize\"?");
    check("\"int8\"", "\"int9\"", "13:10", "or int4-g128-asym, not \"int9\"");
    check("scheme = \"int8\"", "", "10:1", "needs the key \"scheme\"");
    check("[stage.llm-quant]", "[stage.LLM]", "10:8", "cannot name a stage");
    check("= \"llm-quant\"", "= [1]", "16:14", "must be a text in quotes, not array");
    check("\"${seq}\"", "\"${sqe}\"", "17:15", "did you mean ${seq}?");
    check("\"${seq}\"", "\"${seq\"", "17:15", "without \"}\"");
    check("\"${seq}\"", "0", "17:15", "whole number from 1");
    check("\"${seq}\"", "64", "6:1", "used by no stage");
    check("3GiB", "3GB", "18:21", "is not a size");
    check("30m", "soon", "18:39", "is not a duration");
    check("memory = \"3GiB\"", "ram = 3", "18:12", "unknown key \"ram\"");
    check(
        "max-seq-len = 32",
        "checkpoint = \"x\"",
        "20:15",
        "unknown key \"checkpoint\" in an escalate step",
    );
    for bad in ["hf:", "hf", "synthetic:", "https://x/y", "x/y"] {
        let words = "must be hf:ORG/NAME[@REV], path:DIR or synthetic:NAME";
        check("synthetic:internvl3-tiny", bad, "9:8", words);
    }
    check("name = \"demo\"", "name = ", "3:8", "");
    check("[stage.llm-quant]", "[stage.checkpoint]", "10:8", "");
}

#[test]
fn no_stages_is_an_error() {
    let error = parse("smelt = 1\nname = \"x\"\n", &[]).unwrap_err().to_string();
    assert!(error.contains("no stages"), "{error}");
}

#[test]
fn commands_take_lists_and_tables() {
    let text = r#"
smelt = 1
name = "c"
[stage.a]
kind = "command"
argv = ["sh", "-c", "echo hi > out"]
inputs = ["path:x.txt", "b"]
outputs = ["out"]
env = { LEVEL = "3" }
"#;
    let pipeline = parse(text, &[]).unwrap();
    let stage = &pipeline.stages[0];
    assert_eq!(stage.params["argv"], json!(["sh", "-c", "echo hi > out"]));
    assert_eq!(stage.params["env"], json!({"LEVEL": "3"}));
    let from: Vec<_> = stage.inputs.iter().map(|input| input.from.clone()).collect();
    let b = StageName::parse("b").unwrap();
    assert_eq!(from, [InputRef::Path("x.txt".into()), InputRef::Stage(b)]);
}

#[test]
fn flags_are_true_or_false_and_may_come_from_params() {
    let probe = |written: &str, sets: &[&str]| {
        let text = format!(
            r#"
smelt = 1
name = "e"
[params]
look = "false"
part = "llm"
[stage.a]
kind = "onnx-export"
checkpoint = "b"
part = "${{part}}"
probe = {written}
[stage.b]
kind = "command"
argv = ["echo", "${{look}}"]
outputs = ["out"]
"#
        );
        parse(&text, sets).map(|pipeline| pipeline.stages[0].params["probe"].clone())
    };
    assert_eq!(probe("true", &[]).unwrap(), json!(true));
    assert_eq!(probe("false", &[]).unwrap(), json!(false));
    assert_eq!(probe("\"${look}\"", &[]).unwrap(), json!(false));
    assert_eq!(probe("\"${look}\"", &["look=true"]).unwrap(), json!(true));
    for wrong in ["1", "\"yes\"", "[]"] {
        let error = probe(wrong, &[]).unwrap_err().to_string();
        assert!(error.contains("\"probe\" must be true or false"), "{error}");
    }
}

#[test]
fn a_path_field_takes_a_path_and_no_stage() {
    let text = r#"
smelt = 1
name = "c"
[stage.a]
kind = "source"
from = "synthetic:x"
[stage.b]
kind = "calibrate"
checkpoint = "a"
prompts = "path:x.txt"
"#;
    let pipeline = parse(text, &[]).unwrap();
    let stage = &pipeline.stages[1];
    assert_eq!(stage.params["tokens"], json!(512));
    assert_eq!(stage.inputs[1].from, InputRef::Path("x.txt".into()));
    for (given, words) in [
        ("x.txt", "\"prompts\" must be path:FILE or path:DIR, not \"x.txt\""),
        ("a", "not \"a\""),
        ("path:", "names no file"),
    ] {
        let error = parse(&text.replace("path:x.txt", given), &[]).unwrap_err().to_string();
        assert!(error.starts_with("p.toml:10:11: ") && error.contains(words), "{error}");
    }
}

#[test]
fn mangled_files_never_panic() {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for _ in 0..3_000 {
        let mut bytes = GOOD.as_bytes().to_vec();
        for _ in 0..1 + next() % 4 {
            let at = next() % bytes.len();
            match next() % 3 {
                0 => bytes[at] = b"\"[]{}=.$\n\0"[next() % 10],
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = parse(&text, &[]);
        }
    }
}

#[test]
fn outputs_stay_inside_the_working_directory() {
    let text = |name: &str| {
        format!(
            "smelt = 1\nname = \"c\"\n[stage.a]\nkind = \"command\"\nargv = [\"x\"]\noutputs = [\"{name}\"]\n"
        )
    };
    assert!(parse(&text("d/f.bin"), &[]).is_ok());
    for name in ["", ".", "..", "/etc/passwd", "a/../../b", "a/./b", "a//b", "a/"] {
        let error = parse(&text(name), &[]).unwrap_err().to_string();
        assert!(error.starts_with("p.toml:6:11: ") && error.contains("inside"), "{error}");
    }
}

/// A stage of surgery with these lines.
fn surgery(lines: &str) -> Result<Pipeline, ParseError> {
    let text = "smelt = 1\nname = \"s\"\n[stage.a]\nkind = \"graph-surgery\"\nonnx = \"b\"\n";
    parse(&format!("{text}{lines}\n"), &[])
}

#[test]
fn fields_of_surgery_go_with_their_rule() {
    let pipeline = surgery("rule = \"split-head\"\nmax-bytes = \"200MiB\"").unwrap();
    assert_eq!(pipeline.stages[0].params["max-bytes"], json!(200 << 20));
    for (lines, place, words) in [
        ("rule = \"split\"", "6:8", "must be split-head or quantize-head"),
        ("rule = \"split-head\"", "6:8", "needs \"parts\" or \"max-bytes\""),
        ("rule = \"dedupe\"\nparts = 2", "7:9", "has no \"parts\"; it takes nothing"),
        ("rule = \"to-opset\"\nopset = 22", "7:9", "whole number from 17 to 21"),
        ("rule = \"set-batch\"\nsize = 1\nmax-bytes = \"x\"", "8:13", "is not a size"),
        (
            "rule = \"set-batch\"\nsize = 1\nretry = { escalate = [{ parts = 4 }] }",
            "8:33",
            "rule \"set-batch\" has no \"parts\"",
        ),
    ] {
        let error = surgery(lines).unwrap_err().to_string();
        assert!(error.starts_with(&format!("p.toml:{place}: ")), "{error}");
        assert!(error.contains(words), "{error}");
    }
}
