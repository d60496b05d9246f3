//! Pipelines whose engines `trtexec` builds, by a stand-in for it (`stand_ins/trtexec.py`): there is no GPU here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::world::{Ended, World, data, ended};

const TOOLS: &str = "trt/bin";
const STAND_IN: &str = include_str!("stand_ins/trtexec.py");
const DETECTOR: &[u8] = include_bytes!("../../../tests/data/golden/yolo-tiny/yolo.onnx");

/// A tower of the smallest model, whose tiles vary, and an engine of it.
const PIPELINE: &str = r#"
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
[stage.engine]
kind = "engine-build"
onnx = "graph"
backend = "tensorrt"
target = "sm87"
"#;
const SIZES: &str = "sizes = { tiles = \"1,2,4\" }\n";

/// Whether the stand-in's GPU is the only one; it is said where not.
fn is_alone() -> bool {
    let of_gpus = ["/proc/driver/nvidia/gpus", "/etc/nv_tegra_release", "/usr/src/tensorrt"];
    let is_alone = !of_gpus.iter().any(|place| Path::new(place).exists());
    if !is_alone {
        println!(
            "not run: this machine has a GPU or a trtexec of its own, and the stand-in is for none"
        );
    }
    is_alone
}

/// A pipeline with its tool beside it.
struct Board {
    world: World,
}

impl Board {
    fn new(pipeline: &str) -> Self {
        let world = World::new("");
        world.write("p.toml", pipeline);
        for folder in ["trt/bin", "trt/lib"] {
            fs::create_dir_all(world.path(folder)).unwrap();
        }
        fs::write(world.path("trt/lib/libnvinfer.so.10.3.0"), "a library").unwrap();
        let board = Self { world };
        board.put(STAND_IN);
        board
    }

    /// An engine of the smallest model's tower, with these lines more.
    fn building(more: &str) -> Self {
        Self::new(&format!("{PIPELINE}{more}"))
    }

    fn program(&self) -> PathBuf {
        self.world.path("trt/bin/trtexec")
    }

    fn put(&self, program: &str) {
        self.world.put_program(&format!("{TOOLS}/trtexec"), program);
    }

    /// What goes wrong from now on, or what the machine is.
    fn mode(&self, words: &str) {
        fs::write(self.world.path("trt/bin/mode"), words).unwrap();
    }

    fn smelt(&self, arguments: &[&str]) -> Ended {
        self.world.smelt_by(TOOLS, arguments)
    }

    #[track_caller]
    fn run(&self) -> Vec<String> {
        self.world.run_by(TOOLS)
    }

    fn out(&self, stage: &str) -> PathBuf {
        PathBuf::from(self.smelt(&["out", "p.toml", stage]).stdout.trim())
    }

    fn engine(&self) -> Value {
        let text = fs::read_to_string(self.out("engine").join("engine.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// What was printed by the stage's last attempt.
    fn log(&self) -> String {
        let runs = fs::read_dir(self.world.path("cache/logs")).unwrap().flatten();
        let logs = runs.map(|run| run.path().join("engine.1.log")).filter(|log| log.exists());
        let written = |log: &PathBuf| fs::metadata(log).unwrap().modified().unwrap();
        fs::read_to_string(logs.max_by_key(written).unwrap()).unwrap()
    }
}

#[test]
fn a_graph_becomes_a_plan_and_what_was_measured_is_kept() {
    if !is_alone() {
        return;
    }
    let settings = "precision = \"f16\"\nworkspace = \"512MiB\"\nlevel = 1\naux-streams = 0\ntactic-sources = [\"-CUDNN\"]\n";
    let formats = "input-formats = [\"fp16:chw\"]\noutput-formats = [\"fp16:chw\"]\n";
    let second = "[stage.second]\nkind = \"engine-build\"\nonnx = \"graph\"\nbackend = \"tensorrt\"\ntarget = \"sm87\"\ntiming = \"engine\"\n";
    let board = Board::building(&format!("{SIZES}{settings}{formats}{second}{SIZES}"));
    let sealed = ["checkpoint", "graph", "engine", "second"].map(|stage| format!("{stage} sealed"));
    assert_eq!(board.run(), sealed);
    let engine = board.engine();
    let check = |name: &str, expect: Value| assert_eq!(engine[name], expect, "{name}: {engine}");
    check("kind", "tensorrt".into());
    check("target", "sm87".into());
    check("device", serde_json::json!({ "sm": "87" }));
    check("tensorrt", "10.3.0".into());
    check("precision", "f16".into());
    check("workspace-bytes", (512 << 20).into());
    check("timing", "timing.cache".into());
    check("input-formats", serde_json::json!(["fp16:chw"]));
    let input = &engine["plans"][0]["inputs"][0];
    assert_eq!(
        (&input["min"][0], &input["opt"][0], &input["max"][0]),
        (&1.into(), &2.into(), &4.into())
    );
    let plan = |stage: &str| fs::read(board.out(stage).join("engine.plan")).unwrap();
    assert_eq!(engine["plans"][0]["bytes"], plan("engine").len());
    assert!(plan("engine").ends_with(b"cold") && plan("second").ends_with(b"warm"));
    // What is sealed may be read alone, and the copy that was gone on with is written; the lock for it stays nowhere.
    let timing = |stage: &str| fs::metadata(board.out(stage).join("timing.cache")).unwrap().len();
    assert!(timing("second") > timing("engine"));
    let names = fs::read_dir(board.out("second")).unwrap().flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["engine.json", "engine.plan", "timing.cache"]);
    assert_eq!(board.run(), sealed.map(|word| word.replace("sealed", "hit")));
    let log = board.log();
    for flag in [
        "--skipInference",
        "--fp16",
        "--memPoolSize=workspace:512",
        "--builderOptimizationLevel=1",
        "--maxAuxStreams=0",
        "--tacticSources=-CUDNN",
        "--inputIOFormats=fp16:chw",
    ] {
        assert!(log.contains(flag), "{flag}: {log}");
    }
    board.world.assert_nothing_runs();
}

/// Whatever the program does wrong, nothing is sealed, one line says what it was, and the same command goes on.
#[test]
fn a_program_that_goes_wrong_is_told_apart_and_never_sealed() {
    if !is_alone() {
        return;
    }
    let board = Board::building(SIZES);
    for (mode, class, words) in [
        ("silent", "output-invalid", "did not say that it passed"),
        ("unsaid", "output-invalid", "did not say that it passed"),
        ("nothing", "output-invalid", "left no plan"),
        ("short", "output-invalid", "and trtexec said 1.9073"),
        ("killed", "killed-externally", "killed"),
        ("fails-after", "tool-rejected", "Inference failed"),
        ("no-memory", "no-tactic", "Could not find any implementation"),
        ("late", "output-invalid", "processes that it started go on"),
        ("gpu=8.6", "tool-rejected", "compute capability 8.6, and the engine is to be for 8.7"),
    ] {
        board.mode(mode);
        board.world.fails_by(TOOLS, "engine", mode, (class, words));
    }
    // Megabytes without an end of line are no failure.
    board.mode("noise");
    assert_eq!(board.run(), ["checkpoint hit", "graph hit", "engine sealed"]);
}

#[test]
fn what_cannot_be_built_is_refused_before_the_program_is_asked() {
    if !is_alone() {
        return;
    }
    let check = |more: &str, code: i32, words: &str| {
        let ended = Board::building(more).smelt(&["run", "p.toml"]);
        assert_eq!(ended.code, Some(code), "{more}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{more}: {}", ended.stderr);
    };
    check("", 1, "sizes = { \"tiles\" = \"1,1,4\" }");
    check("sizes = { tile = \"1\" }\n", 1, "its sizes that vary are tiles");
    check(&format!("{SIZES}precision = \"int8\"\n"), 1, "would make up scales");
    let three = "input-formats = [\"fp16:chw\", \"fp16:chw\", \"fp16:chw\"]\n";
    check(&format!("{SIZES}{three}"), 1, "\"input-formats\" has 3 formats, and the graph 1");
    let board = Board::building(&format!("{SIZES}precision = \"f16\"\n"));
    fs::rename(
        board.world.path("trt/lib/libnvinfer.so.10.3.0"),
        board.world.path("trt/lib/libnvinfer.so.11.0.0"),
    )
    .unwrap();
    let plan = board.smelt(&["plan", "p.toml"]);
    let why = "trtexec 11.0.0 has no --fp16, which 11.0 took away";
    assert!(
        format!("{}{}", plan.stdout, plan.stderr).contains(why),
        "{}{}",
        plan.stdout,
        plan.stderr
    );
    let ended = board.smelt(&["run", "p.toml"]);
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

#[test]
fn an_accelerator_that_runs_nothing_is_no_engine() {
    if !is_alone() {
        return;
    }
    let fixed = "sizes = { tiles = \"2\" }\nprecision = \"f16\"\ndla = 0\ngpu-fallback = true\n";
    let board = Board::building(fixed);
    let failing = |words: &str| {
        let ended = board.smelt(&["run", "p.toml"]);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    };
    failing("Cannot create DLA engine, 0 not available");
    board.mode("dla=2 fell-back");
    failing("no layer runs on the accelerator");
    board.mode("dla=2");
    assert_eq!(board.run(), ["checkpoint hit", "graph hit", "engine sealed"]);
    assert_eq!(board.engine()["dla"], 0);
    assert!(
        board.log().contains("fast from 4 pictures at once on, and this is for 2"),
        "{}",
        board.log()
    );
}

#[test]
fn without_the_program_a_line_says_what_to_do_before_anything_runs() {
    if !is_alone() {
        return;
    }
    let board = Board::building(SIZES);
    fs::remove_file(board.program()).unwrap();
    let ended = board.smelt(&["run", "p.toml"]);
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(5), 1), "{}", ended.stderr);
    let words = "there is no tool \"trtexec\" here; it comes by: sudo apt";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    let doctor = board.smelt(&["doctor", "p.toml"]);
    assert_eq!(doctor.code, Some(1), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("stage engine: trtexec is not here"), "{}", doctor.stdout);
}

#[test]
fn a_tool_that_was_upgraded_changes_this_key_alone() {
    if !is_alone() {
        return;
    }
    let board = Board::building(SIZES);
    board.run();
    fs::write(board.world.path("trt/lib/libnvinfer.so.10.3.0"), "another library").unwrap();
    let explained = board.smelt(&["explain", "p.toml", "engine"]).stdout;
    assert!(explained.contains("trtexec: libnvinfer.so"), "{explained}");
    assert_eq!(board.run(), ["checkpoint hit", "graph hit", "engine sealed"]);
    board.put(&format!("{STAND_IN}\n# another\n"));
    assert_eq!(board.run(), ["checkpoint hit", "graph hit", "engine sealed"]);
    // No two builds promise equal bytes, since kernels are chosen by what was measured.
    let checked = board.smelt(&["run", "p.toml", "--check", "engine"]);
    assert!(checked.stderr.contains("promises no equal bytes"), "{}", checked.stderr);
}

/// What was seen to go wrong is told before it runs, by `doctor`, `plan` and `run`; it runs all the same.
#[test]
fn what_is_known_to_go_wrong_together_is_told_beforehand() {
    if !is_alone() {
        return;
    }
    let fixed = "sizes = { tiles = \"4\" }\nprecision = \"int8\"\ndla = 0\n";
    let board = Board::building(fixed);
    let words = "the accelerator takes no QuantizeLinear";
    for arguments in [&["doctor", "p.toml"][..], &["plan", "p.toml"], &["run", "p.toml"]] {
        let ended = board.smelt(arguments);
        assert!(format!("{}{}", ended.stdout, ended.stderr).contains(words), "{arguments:?}");
    }
    let other = Board::building(SIZES);
    assert!(!other.smelt(&["plan", "p.toml"]).stdout.contains("instead:"));
}

/// Each rule of the stand-in is violated in turn: an argument that the real program refuses does not get through here.
#[test]
fn the_stand_in_refuses_what_the_program_refuses() {
    let board = Board::building("");
    fs::write(board.world.path("m.onnx"), DETECTOR).unwrap();
    fs::write(board.world.path("cut.onnx"), &DETECTOR[..DETECTOR.len() / 2]).unwrap();
    board.world.write("old.cache", "TRT-8601-EntropyCalibration2\nimages: 3c010a14\n");
    board.world.write("zero.cache", "TRT-100300-EntropyCalibration2\nimages: 00000000\n");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(board.program());
        ended(command.args(arguments).current_dir(board.world.path("")))
    };
    let good = ["--onnx=m.onnx", "--saveEngine=p", "--skipInference"];
    let with_int8 = [&good[..], &["--int8"]].concat();
    let passes = run(&good);
    assert_eq!(passes.code, Some(0), "{}", passes.stdout);
    assert!(passes.stdout.contains("&&&& PASSED TensorRT.trtexec [TensorRT v100300]"));
    for (bad, words) in [
        ("--workspace=512", "Unknown option: --workspace 512"),
        ("--skipInference", "Unknown option: --skipInference"),
        ("--memPoolSize=scratch:1M", "Unknown memory pool: scratch"),
        ("--memPoolSize=workspace:1MiB", "stod"),
        ("--memPoolSize=workspace:-1M", "Negative memory pool size"),
        ("--memPoolSize=workspace:1X", "invalid unit specifier 'X'"),
        ("--tacticSources=CUDNN", "must be prefixed with + or -"),
        ("--tacticSources=-CUDNNX", "Unknown tactic source: CUDNNX"),
        ("--tacticSources=-CUDNN,+CUDNN", "Cannot enable and disable CUDNN"),
        ("--inputIOFormats=fp16", "Invalid IOFormat fp16"),
        ("--inputIOFormats=f16:chw", "Invalid DataType f16"),
        ("--outputIOFormats=fp16:nchw", "Invalid TensorFormat nchw"),
        ("--loadEngine=p", "Incompatible load and save engine options"),
        ("--minShapes=images:1x3x64x64", "Static model does not take explicit shapes"),
        ("--optShapes=image:1", "Cannot find input tensor with name \"image\""),
        ("--optShapes=images:1xa", "failed to parse minShapes/optShapes/maxShapes"),
        ("--useDLACore=0", "Cannot create DLA engine, 0 not available"),
        ("--calib=none.cache", "the calibration cache none.cache cannot be read"),
        ("--calib=old.cache", "does not match calibrator algorithm type"),
        ("--calib=zero.cache", "the scale of images is 0.0"),
    ] {
        let good = if bad.starts_with("--calib") { &with_int8[..] } else { &good[..] };
        let ended = run(&[good, &[bad]].concat());
        assert_eq!(ended.code, Some(1), "{bad}: {}", ended.stdout);
        assert!(ended.stdout.contains(words), "{bad}: {}", ended.stdout);
        assert!(ended.stdout.contains("&&&& FAILED TensorRT.trtexec"), "{bad}: {}", ended.stdout);
    }
    for (onnx, words) in [
        ("--onnx=nowhere.onnx", "Could not open file nowhere.onnx"),
        ("--onnx=cut.onnx", "Failed to parse onnx file"),
    ] {
        let ended = run(&[onnx, "--saveEngine=p"]);
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        assert!(ended.stdout.contains(words), "{}", ended.stdout);
    }
    assert!(run(&["--saveEngine=p"]).stdout.contains("Model missing or format not recognized"));
    assert!(run(&[&good[..], &["--int8", "--fp8"]].concat()).stdout.contains("aren't allowed"));
}

/// A tower that was run over a picture, and built with what was seen of it.
const CALIBRATED: &str = r#"
precision = "int8"
calibration = "seen"
[stage.seen]
kind = "calibrate"
onnx = "graph"
images = "path:pictures"
"#;

fn photographed(pipeline: &str) -> Board {
    let board = Board::new(pipeline);
    fs::create_dir(board.world.path("pictures")).unwrap();
    for (name, picture) in [("a.png", "picture.png"), ("b.png", "shapes-1.png")] {
        fs::copy(data(picture), board.world.path("pictures").join(name)).unwrap();
    }
    board
}

#[test]
fn a_graph_is_built_of_integers_by_what_pictures_showed_of_it() {
    if !is_alone() {
        return;
    }
    let pipeline = PIPELINE.replace("f16", "f32") + SIZES + CALIBRATED;
    let board = photographed(&pipeline);
    let sealed = ["checkpoint", "graph", "seen", "engine"].map(|stage| format!("{stage} sealed"));
    assert_eq!(board.run(), sealed);
    let cache = fs::read_to_string(board.out("seen").join("calibration.cache")).unwrap();
    assert!(cache.starts_with("TRT-100300-EntropyCalibration2\n"), "{cache}");
    assert!(cache.lines().any(|line| line.starts_with("pixel_values: ")), "{cache}");
    let ranges = fs::read_to_string(board.out("seen").join("ranges.json")).unwrap();
    let ranges: Value = serde_json::from_str(&ranges).unwrap();
    assert_eq!((&ranges["runs"], &ranges["method"]), (&2.into(), &"entropy".into()));
    let log = board.log();
    assert!(log.contains("--int8 --fp16 --calib=") && log.contains("Generated calibration scales"));
    let calibrated = board.engine()["calibrated"].as_u64();
    assert_eq!(calibrated, Some(cache.lines().count() as u64 - 1), "{}", board.engine());
    assert_eq!(board.run(), ["checkpoint hit", "graph hit", "seen hit", "engine hit"]);
    // What another version reads begins with its number.
    fs::rename(
        board.world.path("trt/lib/libnvinfer.so.10.3.0"),
        board.world.path("trt/lib/libnvinfer.so.10.7.0"),
    )
    .unwrap();
    board.mode("version=100700");
    assert_eq!(board.run()[3], "engine sealed");
    assert!(board.log().contains("Generated calibration scales"), "{}", board.log());
    // Another picture makes other ranges.
    fs::remove_file(board.world.path("pictures/b.png")).unwrap();
    assert_eq!(board.run()[2..], ["seen sealed", "engine sealed"]);
}

#[test]
fn a_calibration_that_does_not_fit_is_refused_in_one_line() {
    if !is_alone() {
        return;
    }
    let refused = |pipeline: &str, code: i32, words: &str| {
        let ended = photographed(pipeline).smelt(&["run", "p.toml"]);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    };
    let whole = PIPELINE.replace("f16", "f32") + SIZES + CALIBRATED;
    refused(
        &whole.replace("precision = \"int8\"\n", ""),
        1,
        "is of backend = \"tensorrt\" with precision = \"int8\"",
    );
    let native =
        whole.replace("backend = \"tensorrt\"\ntarget = \"sm87\"\n", "").replace(SIZES, "");
    refused(&native, 1, "stage engine: \"calibration\" is of backend = \"tensorrt\"");
    refused(&whole.replace("images = \"path:pictures\"\n", ""), 3, "\"onnx\" needs \"images\"");
    refused(&whole.replace("path:pictures", "path:trt"), 1, "it holds no PNG or JPEG picture");
    // Of another graph, by a program of the user's.
    let foreign = whole.replace(
        "kind = \"calibrate\"\nonnx = \"graph\"\nimages = \"path:pictures\"",
        "kind = \"command\"\nargv = [\"sh\", \"-c\", \"printf 'TRT-8601-EntropyCalibration2\\nother: 3c010a14\\n' > calibration.cache\"]\noutputs = [\"calibration.cache\"]",
    );
    refused(&foreign, 1, "has scales for no value of");
    refused(&foreign.replace("Entropy", "MinMax"), 4, "reads what is of EntropyCalibration2");
}

/// The scales in the graph itself: what any builder reads, TensorRT 11 alone.
#[test]
fn a_graph_that_holds_its_scales_needs_no_calibration() {
    if !is_alone() {
        return;
    }
    let quantised = "[stage.quantised]\nkind = \"graph-surgery\"\nonnx = \"graph\"\nrule = \"insert-qdq\"\ncalibration = \"seen\"\n";
    let pipeline =
        PIPELINE.replace("f16", "f32").replace("onnx = \"graph\"", "onnx = \"quantised\"")
            + SIZES
            + &CALIBRATED.replace("calibration = \"seen\"\n", "")
            + quantised;
    let board = photographed(&pipeline);
    let sealed = ["checkpoint", "graph", "seen", "quantised", "engine"];
    assert_eq!(board.run(), sealed.map(|stage| format!("{stage} sealed")));
    assert!(!board.log().contains("Calibrator is not being used"), "{}", board.log());
    let both = photographed(
        &pipeline.replace("precision = \"int8\"", "precision = \"int8\"\ncalibration = \"seen\""),
    );
    let ended = both.smelt(&["run", "p.toml"]);
    assert!(ended.stderr.contains("whose scales count alone"), "{}", ended.stderr);
    let without = photographed(
        &pipeline.replace("rule = \"insert-qdq\"\ncalibration = \"seen\"", "rule = \"insert-qdq\""),
    );
    let ended = without.smelt(&["run", "p.toml"]);
    assert!(
        ended.stderr.contains("needs \"calibration\"") && ended.code == Some(1),
        "{}",
        ended.stderr
    );
}
