use super::*;
use crate::retry::SwapSpec;
use serde_json::json;
use smelt_random::Random;

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
    assert_eq!(engine.retry.attempts_max, 2);
    assert_eq!(engine.retry.escalate[0].params["max-seq-len"], json!(32));
    assert_eq!(engine.retry.escalate[0].limits.memory_bytes_max, Some(4 << 30));
}

fn retry(text: &str) -> Result<Retry, ParseError> {
    let text = format!(
        "smelt = 1\nname = \"p\"\n[params]\nsmall = \"a.toml\"\n[stage.a]\nkind = \"command\"\n\
         argv = [\"x\"]\nenv = {{ A = \"${{small}}\" }}\noutputs = [\"o\"]\n[stage.a.retry]\n{text}\n"
    );
    parse(&text, &[]).map(|pipeline| pipeline.stages[0].retry.clone())
}

#[test]
fn a_ladder_reads() {
    let full = retry(
        "attempts = 4\nsettle = \"90s\"\ndrop-caches = true\ntemporary-swap = \"2GiB\"\n\
         warm-up = \"${small}#llm-engine\"\nescalate = [{}, { env = { N = \"2\" } }]\nreboot = true",
    )
    .unwrap();
    assert_eq!(full.attempts_max, 4);
    assert_eq!(full.settle, Some(std::time::Duration::from_secs(90)));
    assert!(full.drop_caches && full.reboot);
    assert_eq!(full.temporary_swap.unwrap().bytes, Some(2 << 30));
    let warm_up = full.warm_up.unwrap();
    assert_eq!((warm_up.pipeline.as_str(), warm_up.stage.as_str()), ("a.toml", "llm-engine"));
    assert_eq!(
        full.escalate.iter().map(Escalation::changes_something).collect::<Vec<_>>(),
        [false, true]
    );

    assert_eq!(retry("warm-up = \"none\"").unwrap(), Retry::default(), "a param may say so");

    let swap = |text: &str| retry(&format!("temporary-swap = {text}")).unwrap();
    assert_eq!(swap("true").temporary_swap, Some(SwapSpec::default()));
    assert_eq!(swap("true").attempts_max, 2, "a rung wants an attempt");
    assert_eq!(swap("false"), Retry::default());
    let table = SwapSpec { bytes: Some(1 << 30), dir: Some("/ssd".to_owned()) };
    assert_eq!(swap("{ size = \"1GiB\", dir = \"/ssd\" }").temporary_swap, Some(table));
}

#[test]
fn a_ladder_that_is_none_is_refused_where_it_stands() {
    let check = |text: &str, words: &str| {
        let error = retry(text).unwrap_err().to_string();
        assert!(error.starts_with("p.toml:11:") && error.contains(words), "{error}");
    };
    check("settle = \"2h\"", "at most \"1h\"");
    check("settle = 5", "a text in quotes");
    check("warm-up = \"a.toml\"", "write PIPELINE#STAGE");
    check("warm-up = \"a.toml#B\"", "B");
    check("drop-caches = \"yes\"", "must be true or false");
    check("temporary-swap = \"12KiB\"", "1MiB at least");
    check("temporary-swap = 5", "a text in quotes");
    check("temporary-swap = { bytes = \"1GiB\" }", "unknown key \"bytes\"");
    check("warmup = \"a.toml#b\"", "did you mean \"warm-up\"?");
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

/// The TOML reader says that there is one, and not which.
#[test]
fn a_key_that_is_given_twice_is_named() {
    let check = |text: &str, expect: &str| {
        let error = parse(text, &[]).unwrap_err().to_string();
        assert_eq!(error, expect);
    };
    let head = "smelt = 1\nname = \"x\"\n";
    check(
        &format!("{head}[params]\nsize = 1\n[stage.a]\nkind = \"source\"\n  kind = \"tune\"\n"),
        "p.toml:7:3: \"kind\" is given twice, on line 6 too; keep one of them",
    );
    check(
        &format!("{head}[stage.a]\nkind = \"tune\"\n[stage.a]\nkind = \"tune\"\n"),
        "p.toml:5:8: \"a\" is given twice, on line 3 too; keep one of them",
    );
    check(
        &format!("{head}name = 'y'\n"),
        "p.toml:3:1: \"name\" is given twice, on line 2 too; keep one of them",
    );
    check(
        &format!("{head}[stage.a]\nlimits = {{ memory = '1GiB', memory = '2GiB' }}\n"),
        "p.toml:4:29: \"memory\" is given twice; keep one of them",
    );
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
        let words = "must be hf:ORG/NAME[@REV][:FILE], path:DIR or synthetic:NAME";
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
    assert_eq!(stage.params["tokens"], json!(2048));
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
    let mut random = Random::new(1);
    for _ in 0..3_000 {
        let mut bytes = GOOD.as_bytes().to_vec();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.pick(b"\"[]{}=.$\n\0"),
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

const MATRIX: &str = r#"
smelt = 1
name = "m"
[stage.quant]
kind = "quantize"
checkpoint = "source"
[stage.quant.matrix.scheme]
none = { scheme = "none" }
fine = { scheme = "int4-g128", method = "awq", calibration = "seen", limits = { memory = "1GiB" } }
[stage.source]
kind = "source"
from = "synthetic:internvl3-tiny"
[stage.seen]
kind = "calibrate"
checkpoint = "source"
[stage.llm]
kind = "llm-engine-build"
checkpoint = "quant"
[stage.llm.matrix]
max-seq-len = [64, 128]
[stage.one]
kind = "llm-engine-build"
checkpoint = "quant.none"
[stage.label]
kind = "command"
argv = ["echo", "${variant} ${variant.scheme}"]
inputs = ["llm"]
outputs = ["o"]
[stage.table]
kind = "command"
argv = ["cat"]
inputs = ["label.*", "one"]
outputs = ["o"]
"#;

#[test]
fn a_matrix_makes_variants_of_a_stage_and_of_all_that_need_it() {
    let pipeline = parse(MATRIX, &[]).unwrap();
    let names: Vec<_> = pipeline.stages.iter().map(|stage| stage.name.as_str()).collect();
    let expect = "quant.none quant.fine source seen llm.none.64 llm.none.128 llm.fine.64 \
        llm.fine.128 one label.none.64 label.none.128 label.fine.64 label.fine.128 table";
    assert_eq!(names, expect.split_whitespace().collect::<Vec<_>>());
    let stage = |name: &str| pipeline.stages.iter().find(|s| s.name.as_str() == name).unwrap();
    let needs = |name: &str| -> Vec<String> {
        let named = |input: &InputSpec| match &input.from {
            InputRef::Stage(name) => name.to_string(),
            other => panic!("{other:?}"),
        };
        stage(name).inputs.iter().map(named).collect()
    };
    assert_eq!(stage("quant.none").params["method"], json!("rtn"));
    assert_eq!(needs("quant.none"), ["source"]);
    assert_eq!(stage("quant.fine").params["scheme"], json!("int4-g128"));
    assert_eq!(stage("quant.fine").limits.memory_bytes_max, Some(1 << 30));
    assert_eq!(needs("quant.fine"), ["source", "seen"]);
    assert_eq!(stage("llm.fine.64").params["max-seq-len"], json!(64));
    assert_eq!(needs("llm.fine.64"), ["quant.fine"]);
    assert_eq!(needs("one"), ["quant.none"]);
    assert_eq!(stage("label.fine.128").params["argv"], json!(["echo", "fine.128 fine"]));
    assert_eq!(needs("label.fine.128"), ["llm.fine.128"]);
    let known_as = stage("label.fine.128").inputs[0].known_as.as_ref().unwrap();
    assert_eq!(known_as.as_str(), "llm", "a program finds the variant under its stage's name");
    let all = ["label.none.64", "label.none.128", "label.fine.64", "label.fine.128", "one"];
    assert_eq!(needs("table"), all);
}

/// Replaces `from` by `to` in the matrix file; the error must start at `place` and say `words`.
#[track_caller]
fn check_matrix(from: &str, to: &str, place: &str, words: &str) {
    let text = MATRIX.replacen(from, to, 1);
    assert_ne!(text, MATRIX, "the replacement does nothing");
    let error = parse(&text, &[]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("p.toml:{place}: ")), "{error}");
    assert!(error.contains(words), "{error}");
}

#[test]
fn errors_of_a_matrix_have_their_place() {
    check_matrix("none = { scheme = \"none\" }", "none = { schema = 1 }", "8:19", "\"scheme\"?");
    check_matrix("none = { scheme = \"none\" }", "none = { scheme = \"nine\" }", "8:19", "nine");
    check_matrix("none = {", "no.ne = {", "8:9", "unknown key \"ne\"");
    check_matrix("none = {", "None = {", "8:1", "cannot be part of a stage's name");
    check_matrix(
        "\"int4-g128\", method",
        "\"int4-g128\", kind = \"source\", method",
        "9:39",
        "\"kind\"",
    );
    check_matrix("[64, 128]", "[64, \"a b\"]", "20:20", "cannot be part");
    check_matrix("[64, 128]", "[64, 64]", "20:20", "there twice");
    check_matrix("[64, 128]", "[]", "20:15", "has no values");
    check_matrix("[64, 128]", "7", "20:15", "must be a list");
    check_matrix("${variant.scheme}", "${variant.size}", "26:17", "${variant.scheme}");
    check_matrix("\"one\"]", "\"one.*\"]", "32:22", "has no variants");
    check_matrix(
        "\"synthetic:internvl3-tiny\"",
        "\"synthetic:${variant}\"",
        "12:8",
        "no ${variant}",
    );
    let many: Vec<String> = (1..=600).map(|n| n.to_string()).collect();
    check_matrix("[64, 128]", &format!("[{}]", many.join(",")), "16:8", "more than 1024 variants");
}

#[test]
fn a_circle_of_variants_is_left_to_the_plan() {
    let text = MATRIX.replace("inputs = [\"llm\"]", "inputs = [\"llm\", \"table\"]");
    let pipeline = parse(&text, &[]).unwrap();
    let error = crate::Plan::build(&pipeline, &crate::Pins::default()).unwrap_err();
    assert!(error.to_string().contains("in a circle"), "{error}");
}

#[test]
fn resources_are_declared_and_taken() {
    let text = |capacity: &str, wanted: &str| {
        format!(
            "smelt = 1\nname = \"r\"\n[resources]\n{capacity}\n[stage.a]\nkind = \"command\"\n\
             argv = [\"x\"]\noutputs = [\"o\"]\nresources = {{ {wanted} }}\n"
        )
    };
    let pipeline = parse(&text("gpu = 2\nmemory = \"6GiB\"", "gpu = 1, memory = \"2GiB\""), &[]);
    let pipeline = pipeline.unwrap();
    assert_eq!(pipeline.resources["gpu"], Capacity::Devices(vec!["0".into(), "1".into()]));
    assert_eq!(pipeline.stages[0].resources["memory"], 2 << 30);
    let check = |capacity: &str, wanted: &str, words: &str| {
        let error = parse(&text(capacity, wanted), &[]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check("gpu = 1", "gpu = 2", "takes more \"gpu\" than there is: 1");
    check("gpu = 1", "gup = 1", "did you mean \"gpu\"?");
    check("gpu = 1", "dla = 1", "[resources] dla = 1");
    check("gpu = 0", "gpu = 1", "whole number from 1");
    check("gpu = [\"a\", \"a\"]", "gpu = 1", "there twice");
    check("memory = \"6GB\"", "memory = \"1GiB\"", "is not a size");
    check("GPU = 1", "GPU = 1", "cannot name a resource");
}

#[test]
fn device_facts_are_words_of_a_table() {
    let text = "smelt = 1\nname = \"d\"\n[stage.a]\nkind = \"command\"\nargv = [\"x\"]\n\
        outputs = [\"o\"]\ndevice = [\"gpu\", \"arch\", \"gpu\"]\n";
    assert_eq!(parse(text, &[]).unwrap().stages[0].device, ["arch", "gpu"]);
    let error = parse(&text.replace("arch", "colour"), &[]).unwrap_err().to_string();
    assert!(error.starts_with("p.toml:7:18: ") && error.contains("tensorrt"), "{error}");
}

#[test]
fn the_machine_that_builds_a_stage_is_said_by_facts() {
    let text = "smelt = 1\nname = \"d\"\n[stage.a]\nkind = \"command\"\nargv = [\"x\"]\n\
        outputs = [\"o\"]\nwhere = { sm = \"87\", arch = \"aarch64\" }\n";
    let stage = parse(text, &[]).unwrap().stages.remove(0);
    assert_eq!(
        stage.machine.into_iter().collect::<Vec<_>>(),
        [("arch", "aarch64".to_owned()), ("sm", "87".to_owned())]
    );
    let wrong = |to: &str| parse(&text.replace("sm = \"87\"", to), &[]).unwrap_err().to_string();
    assert!(wrong("colour = \"red\"").contains("\"colour\" is no fact about a device"));
    assert!(wrong("sm = 87").contains("\"sm\" must be a text in quotes"));
}

#[test]
fn what_a_back_end_depends_on_joins_what_a_stage_declares() {
    let text = "smelt = 1\nname = \"d\"\n[stage.c]\nkind = \"source\"\nfrom = \"path:c\"\n\
        [stage.o]\nkind = \"onnx-export\"\ncheckpoint = \"c\"\n\
        [stage.e]\nkind = \"engine-build\"\nonnx = \"o\"\ndevice = [\"tensorrt\", \"arch\"]\n\
        [stage.l]\nkind = \"llm-engine-build\"\ncheckpoint = \"c\"\n\
        [stage.t]\nkind = \"engine-build\"\nonnx = \"o\"\n\
        retry = { attempts = 2, escalate = [{ backend = \"onnxruntime\" }] }\n";
    let mut pipeline = parse(text, &[]).unwrap();
    let before = pipeline.clone();
    pipeline.depend(|_| BTreeSet::new());
    assert_eq!(pipeline, before, "what runs on any device depends on none");
    pipeline.depend(|backend| match backend {
        "native" => BTreeSet::from(["sm", "tensorrt"]),
        "onnxruntime" => BTreeSet::from(["nvcc", "sm"]),
        _ => BTreeSet::new(),
    });
    let device = |at: usize| pipeline.stages[at].device.clone();
    assert_eq!((device(0), device(1)), (Vec::new(), Vec::new()), "no back end has a part in them");
    assert_eq!(device(2), ["arch", "tensorrt", "sm"], "each once, in the order of the table");
    assert_eq!(device(3), ["tensorrt", "sm"]);
    assert_eq!(
        device(4),
        ["tensorrt", "sm", "nvcc"],
        "what a later attempt may be built by counts"
    );
}

#[test]
fn a_deployment_names_one_engine_or_several() {
    let text = |llm: &str| {
        format!(
            "smelt = 1\nname = \"d\"\n[stage.d]\nkind = \"deployment\"\ncheckpoint = \"c\"\n\
             llm = {llm}\n"
        )
    };
    let named = |llm: &str| {
        let inputs = parse(&text(llm), &[]).unwrap().stages.remove(0).inputs;
        let named = inputs.into_iter().filter(|input| input.field == "llm");
        named.map(|input| input.from).collect::<Vec<_>>()
    };
    let stage = |name: &str| InputRef::Stage(StageName::parse(name).unwrap());
    assert_eq!(named("\"gpu\""), [stage("gpu")]);
    assert_eq!(named("[\"gpu\"]"), [stage("gpu")]);
    assert_eq!(named("[\"gpu\", \"cpu\"]"), [stage("gpu"), stage("cpu")]);
    let error = parse(&text("[]"), &[]).unwrap_err().to_string();
    assert!(error.starts_with("p.toml:6:7: \"llm\" must not be empty"), "{error}");
    let error = parse(&text("[\"gpu\", 1]"), &[]).unwrap_err().to_string();
    assert!(error.starts_with("p.toml:6:15: \"llm\" must be a text in quotes"), "{error}");
}

#[test]
fn a_large_pipeline_is_read_by_several_threads_as_by_one() {
    let text = |wrong: &[usize]| {
        let stage = |n: usize| {
            let outputs = if wrong.contains(&n) { "\"o\"" } else { "[\"o\"]" };
            format!("[stage.s{n}]\nkind = \"command\"\nargv = [\"x\"]\noutputs = {outputs}\n")
        };
        let stages: String = (0..2 * super::SHARED_MIN).map(stage).collect();
        format!("smelt = 1\nname = \"x\"\n{stages}")
    };
    let parse = |wrong: &[usize]| {
        Pipeline::parse("p.toml", &text(wrong), &Overrides::parse::<&str>(&[]).unwrap())
    };
    let stages = parse(&[]).unwrap().stages;
    let is_in_order = |(n, stage): (usize, &StageSpec)| stage.name.as_str() == format!("s{n}");
    assert_eq!(stages.len(), 2 * super::SHARED_MIN);
    assert!(stages.iter().enumerate().all(is_in_order));
    let line = |n: usize| 2 + 4 * n + 4;
    let message = parse(&[8000, 5000, 7]).unwrap_err().to_string();
    assert!(message.starts_with(&format!("p.toml:{}:", line(7))), "{message}");
}
