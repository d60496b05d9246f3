//! Pipelines and checks that ask TensorRT for RTX.
//!
//! Where no library of it is (`SMELT_TENSORRT_RTX`), tests that build with it say so; `cargo xtask ci` gives them one.

use std::env;
use std::fs;

use serde_json::Value;
use smelt_tensorrt::{VARIABLE, find};

use crate::world::{World, ended, statuses};

const DETECTOR: &[u8] = include_bytes!("../../../tests/data/golden/yolo-tiny/yolo.onnx");
/// A graph with a pool whose windows have gaps, which the parser refuses.
const GAPS: &[u8] = include_bytes!("../../../tests/data/golden/yolo-tiny/windows.onnx");

/// A graph that a file beside the pipeline holds, and an engine of it.
fn world_of(graph: &[u8], more: &str) -> World {
    let world = World::new("");
    fs::write(world.path("graph.onnx"), graph).unwrap();
    let graph = "[stage.graph]\nkind = \"command\"\nargv = [\"cp\", \"FILE\", \"model.onnx\"]\noutputs = [\"model.onnx\"]\n";
    let graph = graph.replace("FILE", world.path("graph.onnx").to_str().unwrap());
    let engine =
        "[stage.engine]\nkind = \"engine-build\"\nonnx = \"graph\"\nbackend = \"tensorrt-rtx\"\n";
    world.write("p.toml", &format!("smelt = 1\nname = \"t\"\n{graph}{engine}{more}"));
    world
}

/// Whether the library is here; it is said where not.
fn is_here() -> bool {
    let found = find(&|name| env::var_os(name));
    found.map_err(|why| eprintln!("NOT TESTED: {why}")).is_ok()
}

#[test]
fn a_graph_becomes_a_plan_that_is_a_hit_afterwards() {
    if !is_here() {
        return;
    }
    let world = world_of(DETECTOR, "target = \"sm86\"\nworkspace = \"256MiB\"\nlevel = 2\n");
    assert_eq!(statuses(&world.run(&[])), ["graph sealed", "engine sealed"]);
    let out = world.out("engine");
    let engine: Value =
        serde_json::from_str(&fs::read_to_string(out.join("engine.json")).unwrap()).unwrap();
    assert_eq!((&engine["kind"], &engine["target"]), (&"tensorrt-rtx".into(), &"sm86".into()));
    assert_eq!(engine["workspace-bytes"], 256 << 20);
    let version = engine["tensorrt-rtx"].as_str().unwrap();
    assert_eq!(version.split('.').count(), 4, "{version}");
    let plan = &engine["plans"][0];
    let bytes = fs::read(out.join(plan["file"].as_str().unwrap())).unwrap();
    assert_eq!(plan["bytes"], bytes.len());
    assert!(bytes.starts_with(b"vtrt"));
    let names = fs::read_dir(&out).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(names.count(), 2, "nothing else is left");
    assert_eq!(statuses(&world.run(&[])), ["graph hit", "engine hit"]);
    let doctor = world.smelt(&["doctor", "p.toml"]);
    assert!(doctor.stdout.contains(&format!("TensorRT for RTX {version}")), "{}", doctor.stdout);
    world.assert_nothing_runs();
}

#[test]
fn a_graph_that_is_refused_is_named_and_nothing_is_sealed() {
    if !is_here() {
        return;
    }
    let world = world_of(GAPS, "target = \"sm86\"\n");
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("MaxPool") && ended.stderr.contains("dilations"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("engine failed (tool-rejected)"), "{}", ended.stderr);
    let plan = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(plan.lines().any(|line| line.contains("engine") && line.contains("miss")), "{plan}");

    let check = |flags: &[&str]| {
        world.smelt(&[&["onnx", "check", "graph.onnx", "--for", "tensorrt-rtx"], flags].concat())
    };
    let ended = check(&[]);
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(4), 1), "{}", ended.stderr);
    assert!(ended.stdout.starts_with("error[parser] node \"n32\" (MaxPool)"), "{}", ended.stdout);
    let found: Value = serde_json::from_str(&check(&["--json"]).stdout).unwrap();
    assert_eq!((&found["target"], &found["sound"]), (&"tensorrt-rtx".into(), &false.into()));
    // smelt's own rules say the same without the library.
    let own = world.smelt(&["onnx", "check", "graph.onnx", "--for", "tensorrt-10.3"]);
    assert!(own.stdout.contains("error[pool-dilation] MaxPool node \"n32\""), "{}", own.stdout);
}

#[test]
fn a_sound_graph_is_called_so() {
    if !is_here() {
        return;
    }
    let world = world_of(DETECTOR, "target = \"sm86\"\n");
    let ended = world.smelt(&["onnx", "check", "graph.onnx", "--for", "tensorrt-rtx"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.ends_with("graph.onnx is sound for tensorrt-rtx\n"), "{}", ended.stdout);
}

#[test]
fn without_the_library_a_line_says_what_to_do_before_anything_runs() {
    let world = world_of(DETECTOR, "target = \"sm86\"\n");
    let nowhere = world.path("nowhere");
    let without = |arguments: &[&str]| ended(world.command(arguments).env(VARIABLE, &nowhere));
    for arguments in [
        &["run", "p.toml"][..],
        &["plan", "p.toml"],
        &["onnx", "check", "graph.onnx", "--for", "tensorrt-rtx"],
    ] {
        let ended = without(arguments);
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(5), 1), "{}", ended.stderr);
        assert!(ended.stderr.contains("SMELT_TENSORRT_RTX names"), "{}", ended.stderr);
    }
    let doctor = without(&["doctor", "p.toml"]);
    assert_eq!(doctor.code, Some(1), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("pip install tensorrt-rtx-cu12-libs"), "{}", doctor.stdout);
}

#[test]
fn another_library_is_another_key() {
    let world = world_of(DETECTOR, "target = \"sm86\"\n");
    let folder = world.path("libraries");
    fs::create_dir(&folder).unwrap();
    let put = |text: &str| {
        for name in ["libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"] {
            fs::write(folder.join(name), text).unwrap();
        }
    };
    let with = |arguments: &[&str]| {
        let ended = ended(world.command(arguments).env(VARIABLE, &folder));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    let key = || {
        let explained = with(&["explain", "p.toml", "engine", "--json"]);
        let explained: Value = serde_json::from_str(&explained).unwrap();
        let stages = explained["stages"].as_array().unwrap();
        let engine = stages.iter().find(|stage| stage["name"] == "engine").unwrap();
        engine["key"].as_str().unwrap_or_else(|| panic!("{explained}")).to_owned()
    };
    put("tensorrt_version_1_7_1_116\0");
    with(&["run", "p.toml", "--only", "graph"]);
    let first = key();
    assert_eq!(first, key());
    put("tensorrt_version_1_7_2_1\0");
    assert_ne!(first, key());
}

#[test]
fn what_a_pipeline_says_wrongly_is_named_with_its_field() {
    for (more, words) in [
        ("target = \"cpu\"\n", "builds for sm75, sm80, sm86"),
        ("target = \"sm87\"\n", "\"sm87\""),
        ("target = \"sm86\"\nlevel = 6\n", "level"),
        ("target = \"sm86\"\nsizes = { batch = \"4,2,1\" }\n", "\"batch\""),
        ("target = \"sm86\"\nprecision = \"int8\"\n", "precision"),
    ] {
        let ended = world_of(DETECTOR, more).smelt(&["plan", "p.toml"]);
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(3), 1), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn a_deployment_of_plans_is_refused_before_anything_is_built() {
    let world = World::new("");
    let folder = world.path("libraries");
    fs::create_dir(&folder).unwrap();
    for name in ["libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"] {
        fs::write(folder.join(name), "").unwrap();
    }
    world.write(
        "p.toml",
        r#"
smelt = 1
name = "t"
[stage.checkpoint]
kind = "source"
from = "synthetic:internvl3-tiny"
[stage.graph]
kind = "onnx-export"
checkpoint = "checkpoint"
part = "vision"
dtype = "f16"
[stage.vision]
kind = "engine-build"
onnx = "graph"
backend = "tensorrt-rtx"
target = "sm86"
sizes = { tiles = "1,1,4" }
[stage.llm]
kind = "llm-engine-build"
checkpoint = "checkpoint"
[stage.deployment]
kind = "deployment"
checkpoint = "checkpoint"
vision = "vision"
llm = "llm"
"#,
    );
    let plan = ended(world.command(&["plan", "p.toml"]).env(VARIABLE, &folder));
    let why = "deployment will be refused: the vision engine is of backend = \"tensorrt-rtx\"";
    assert!(
        plan.stdout.contains(why) || plan.stderr.contains(why),
        "{}{}",
        plan.stdout,
        plan.stderr
    );
}

#[test]
fn sizes_that_the_graph_does_not_have_are_refused_by_name() {
    if !is_here() {
        return;
    }
    let world = world_of(DETECTOR, "target = \"sm86\"\nsizes = { batch = \"1,2,4\" }\n");
    let ended = world.smelt(&["run", "p.toml"]);
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("\"batch\", which the graph has not"), "{}", ended.stderr);
}
