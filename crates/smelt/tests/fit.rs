//! From a model's name to what can be asked: `fit`, `init` and `build`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::world::server::Server;
use crate::world::{Ended, World, data, ended, until};

const MODEL: &str = "synthetic:internvl3-tiny";

#[track_caller]
fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|_| panic!("{}{}", ended.stdout, ended.stderr))
}

/// Bytes of all files below a directory whose names are these.
fn bytes_of(dir: &Path, name: &str) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sum += bytes_of(&path, name);
        } else if entry.file_name() == name {
            sum += entry.metadata().unwrap().size();
        }
    }
    sum
}

#[test]
fn fit_tells_what_fits_and_what_would() {
    let world = World::new("");
    let fit = world.smelt(&["fit", "synthetic:internvl3-1b", "--for", "orin-nano-8gb"]);
    assert_eq!(fit.code, Some(0), "{}", fit.stderr);
    let advised = fit.stdout.lines().nth(1).unwrap();
    assert!(advised.starts_with("advised") && advised.contains("int8"), "{}", fit.stdout);
    assert!(fit.stderr.contains("smelt build synthetic:internvl3-1b"), "{}", fit.stderr);
    let small = world.smelt(&["fit", "synthetic:qwen2_5_vl-3b", "--for", "1GB", "--json"]);
    assert_eq!(small.code, Some(5));
    let document = json(&small);
    assert_eq!((&document["fits"], &document["advised"]), (&Value::Bool(false), &Value::Null));
    assert_eq!(document["instead"][0]["change"], "memory");
    assert!(!world.path("cache").exists(), "nothing is written");
}

#[test]
fn fit_is_for_captured_devices_too() {
    let world = World::new("");
    let of = |device: &str| {
        let device = data(&format!("doctor/{device}")).display().to_string();
        let fit = without_compiler(
            &world,
            &["fit", "synthetic:qwen2_5_vl-3b", "--for", &device, "--json"],
        );
        assert_eq!(fit.code, Some(0), "{}", fit.stderr);
        json(&fit)
    };
    let orin = of("orin-nano-set-up");
    assert_eq!(orin["device"]["memory_bytes"], 7_802_868_u64 << 10);
    assert_eq!(orin["device"]["cores"], 6);
    assert_eq!(orin["lines"][0]["speed"]["basis"], "stated");
    assert_eq!(
        (&orin["device"]["gpu"]["sm"], &orin["lines"][0]["target"]),
        (&87.into(), &"cpu".into())
    );
    let server = of("x86-server");
    assert_eq!(server["device"]["memory_bytes"], 131_899_004_u64 << 10);
    assert_eq!(server["lines"][0]["speed"], Value::Null);
    for key in ["gpu_budget_bytes", "without_gpu"] {
        assert!(server.get(key).is_none(), "of a device without a GPU all is as it was: {server}");
    }
    assert!(server["device"].get("gpu").is_none() && server["lines"][0].get("target").is_none());
}

/// Where nothing compiles kernels.
fn without_compiler(world: &World, arguments: &[&str]) -> Ended {
    let nowhere = world.path("nowhere/libnvrtc.so.12");
    ended(world.command(arguments).env("SMELT_NVRTC", nowhere))
}

/// Where NVRTC seems to be: its file is looked for, and is loaded by the stage that compiles alone.
fn with_compiler(world: &World, arguments: &[&str]) -> Ended {
    world.write("nvrtc/libnvrtc.so.12.6.85", "");
    ended(world.command(arguments).env("SMELT_NVRTC", world.path("nvrtc")))
}

#[test]
fn a_gpu_is_advised_where_its_engines_are_built_and_told_of_where_not() {
    let world = World::new("");
    let arguments = ["fit", "synthetic:internvl3-1b", "--for", "orin-nano-8gb"];
    let fit = with_compiler(&world, &arguments);
    assert_eq!(fit.code, Some(0), "{}", fit.stderr);
    let advised = fit.stdout.lines().nth(1).unwrap();
    let words: Vec<&str> = advised.split_whitespace().take(4).collect();
    assert_eq!(words, ["advised", "cuda-sm87", "int8", "f16"], "{}", fit.stdout);
    assert!(advised.contains("projected"), "{}", fit.stdout);
    assert!(fit.stderr.contains("smelt ran on none of this kind yet"), "{}", fit.stderr);
    let fit = without_compiler(&world, &arguments);
    let advised = fit.stdout.lines().nth(1).unwrap();
    assert!(advised.starts_with("advised") && advised.contains(" cpu "), "{}", fit.stdout);
    let told = fit.stderr.lines().find(|line| line.starts_with("the GPU is left out: ")).unwrap();
    assert!(told.contains("SMELT_NVRTC names "), "{told}");
    let asked = without_compiler(&world, &[&arguments[..], &["--device", "cuda"]].concat());
    assert!(asked.stdout.lines().nth(1).unwrap().contains("cuda-sm87"), "{}", asked.stdout);
    assert!(asked.stderr.ends_with("internvl3-1b --device cuda:0\n"), "{}", asked.stderr);
}

#[test]
fn a_captured_laptop_s_card_is_told_to_have_no_engines() {
    let world = World::new("");
    world.write("laptop/proc/meminfo", "MemTotal: 16000000 kB\n");
    let card =
        r#"{"name": "NVIDIA GeForce RTX 4060 Laptop GPU", "sm": 89, "memory_bytes": 8585740288}"#;
    world.write("laptop/measured.json", &format!("{{\"gpus\": {{\"cards\": [{card}]}}}}"));
    let fit = world.smelt(&["fit", MODEL, "--for", "laptop"]);
    let line = "the GPU is left out: no engines are built for NVIDIA GeForce RTX 4060 Laptop GPU, which is sm_89\n";
    assert!(fit.stderr.contains(line), "{}", fit.stderr);
    assert!(!fit.stdout.contains("Target"), "{}", fit.stdout);
    let h200 = r#"{"name": "NVIDIA H200", "sm": 90, "multiprocessors": 132, "memory_bytes": 150754820096}"#;
    world.write("laptop/measured.json", &format!("{{\"gpus\": {{\"cards\": [{h200}]}}}}"));
    let fit = json(&with_compiler(&world, &["fit", MODEL, "--for", "laptop", "--json"]));
    let first = &fit["lines"][0];
    assert_eq!(
        (&first["target"], &first["speed"]["basis"]),
        (&"cuda-sm90".into(), &"stated".into())
    );
    assert!(first["gpu_bytes"].as_u64() < fit["gpu_budget_bytes"].as_u64(), "{fit}");
}

#[test]
fn what_runs_it_is_written_down_and_kept_to() {
    let world = World::new("");
    let file = "internvl3-tiny.toml";
    let init = with_compiler(&world, &["init", MODEL, "--for", "orin-nano-8gb"]);
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    let text = world.read(file);
    assert!(text.contains("target = \"cuda-sm87\"\n") && !text.contains("precision"), "{text}");
    assert_eq!(text.matches("target = \"${target}\"\n").count(), 2, "{text}");
    let build = without_compiler(&world, &["build", MODEL]);
    assert_eq!(build.code, Some(5), "{}", build.stderr);
    assert!(build.stderr.contains("SMELT_NVRTC names "), "{}", build.stderr);
    assert!(build.stderr.contains("is said in its comments"), "{}", build.stderr);
    fs::remove_file(world.path(file)).unwrap();
    let init = with_compiler(&world, &["init", MODEL, "--for", "orin-nano-8gb", "--device", "cpu"]);
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    let text = world.read(file);
    assert!(text.contains(&format!("# smelt init {MODEL} --device cpu\n")), "{text}");
    assert!(!text.contains("target"), "as on a device without a GPU: {text}");
    let other = world.smelt(&["build", MODEL, "--device", "cpu", "--context", "256"]);
    assert!(other.stderr.contains("was written with --device cpu"), "{}", other.stderr);
    fs::remove_file(world.path(file)).unwrap();
    let told = without_compiler(&world, &["init", MODEL, "--for", "orin-nano-8gb"]);
    assert!(told.stderr.contains("the GPU is left out: "), "{}", told.stderr);
}

#[test]
fn what_cannot_be_meant_is_told_in_one_line_with_what_can() {
    let world = World::new("");
    world.write("note.txt", "no model");
    for (arguments, code, words) in [
        (&["fit", "intrnvl3-1b"][..], 2, "there is internvl3-1b"),
        (&["fit", "./nowhere"], 2, "./nowhere is not there"),
        (&["fit", "synthetic:internvl3-1"], 2, "there is internvl3-1b"),
        (&["fit", "p.toml"], 2, "smelt plan p.toml"),
        (&["fit", MODEL, "--for", "toaster"], 2, "orin-nano-8gb"),
        (&["fit", MODEL, "--precision", "int3"], 2, "int8, int4, bf16"),
        (&["fit", MODEL, "--context", "99999999"], 2, "positions of internvl3-tiny"),
        (&["fit", MODEL, "--device", "gpu"], 2, "auto, cpu, cuda or cuda:N"),
        (
            &["fit", MODEL, "--for", "8GB", "--device", "cuda"],
            5,
            "--device cuda:0: no GPU is known of",
        ),
        (&["fit", MODEL, "--for", "orin-nano-8gb", "--device", "cuda", "--kv", "f32"], 5, "in f32"),
        (&["fit", MODEL, "--memory", "3GB"], 2, "as in \"512MiB\""),
        (&["init", MODEL, "--out", "x/y.toml"], 1, "--out FILE"),
        (&["init", "synthetic:qwen2_5_vl-3b", "--for", "1GB"], 5, "it takes a device with"),
        (&["init", "smollm2", "--precision", "int8"], 2, "has a pipeline of its own"),
        (&["build", "nosuch/model/at/all"], 2, "ORG"),
    ] {
        let ended = world.smelt(arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{arguments:?}: {}", ended.stdout);
    }
}

#[test]
fn what_init_writes_is_planned_and_never_overwritten() {
    let world = World::new("");
    let init = world.smelt(&["init", MODEL, "--context", "512", "--precision", "int4-g32"]);
    assert_eq!(
        (init.code, &init.stdout[..]),
        (Some(0), "internvl3-tiny.toml\n"),
        "{}",
        init.stderr
    );
    let text = world.read("internvl3-tiny.toml");
    assert!(
        text.contains(&format!("# smelt init {MODEL} --precision int4-g32 --context 512\n")),
        "{text}"
    );
    assert!(
        text.contains("max_seq_len = 512\n") && text.contains("scheme = \"int4-g32\"\n"),
        "{text}"
    );
    let plan = world.smelt(&["plan", "internvl3-tiny.toml", "--json"]);
    assert_eq!(plan.code, Some(0), "{}", plan.stderr);
    let again = world.smelt(&["init", MODEL]);
    assert_eq!(again.code, Some(2));
    assert!(again.stderr.contains("is there already"), "{}", again.stderr);
    assert_eq!(world.read("internvl3-tiny.toml"), text);
}

#[test]
fn build_goes_from_a_name_to_an_answer_and_goes_on_where_it_was_ended() {
    let world = World::new("");
    let mut killed = world.command(&["build", MODEL]);
    let mut child = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(until(|| world.path("cache/ac.log").exists()), "it has begun");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let code = child.wait().unwrap().code();
    assert!([Some(6), Some(0)].contains(&code), "{code:?}");
    let build = world.smelt(&["build", MODEL, "--json"]);
    assert_eq!(build.code, Some(0), "{}", build.stderr);
    assert_eq!(json(&build)["status"], "ok");
    let last: Vec<&str> = build.stderr.lines().rev().take(2).collect();
    assert!(last[1].contains("smelt chat internvl3-tiny.toml --image"), "{last:?}");
    assert!(last[0].contains("smelt serve internvl3-tiny.toml"), "{last:?}");
    // What was said before is what was written.
    let fit = json(&world.smelt(&["fit", MODEL, "--json"]));
    let said = fit["lines"][0]["engines_bytes"].as_u64().unwrap();
    let found = bytes_of(&world.path("cache/out"), "weights.bin");
    assert!(found.abs_diff(said) <= found / 20 + 8192, "said {said}, found {found}");
    let picture = data("shapes-1.png").display().to_string();
    let chat = world.smelt(&[
        "chat",
        "internvl3-tiny.toml",
        "--image",
        &picture,
        "--max-tokens",
        "2",
        "What?",
    ]);
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    let question = ["--max-tokens", "40", "What?"];
    let long = world.smelt(&[&["chat", "internvl3-tiny.toml"][..], &question].concat());
    assert_eq!(long.code, Some(0), "{}", long.stderr);
    let nothing = world.smelt(&["build", MODEL]);
    assert_eq!(nothing.code, Some(0), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("nothing to do"), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("when they were built last"), "{}", nothing.stderr);
}

#[test]
fn what_was_overruled_need_not_be_said_twice_and_is_not_changed_in_silence() {
    let world = World::new("");
    let first = world.smelt(&["init", MODEL, "--context", "512"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let other = world.smelt(&["build", MODEL, "--context", "256"]);
    assert_eq!(other.code, Some(2));
    assert!(other.stderr.contains("was written with --context 512"), "{}", other.stderr);
    world.write("internvl3_5-tiny.toml", "smelt = 1\n# by hand\n");
    let by_hand = world.smelt(&["build", "synthetic:internvl3_5-tiny"]);
    assert!(by_hand.stderr.contains("is there already"), "{}", by_hand.stderr);
    let wrong =
        world.smelt(&["build", "synthetic:internvl3_5-tiny", "--out", "internvl3-tiny.toml"]);
    assert!(wrong.stderr.contains(&format!("is the pipeline of {MODEL}")), "{}", wrong.stderr);
    let same = world.smelt(&["build", MODEL]);
    assert_eq!(same.code, Some(0), "{}", same.stderr);
    assert!(same.stderr.contains("512 tokens"), "{}", same.stderr);
}

/// The least memory in which the first line of a table fits with keys and values in int8, and not as they are usually.
fn memory_for_int8(world: &World) -> String {
    let fit = json(&world.smelt(&["fit", MODEL, "--json"]));
    let lines = fit["lines"].as_array().unwrap();
    let bytes = |line: &Value| line["serving_bytes"].as_u64().unwrap();
    let is_int8 = |line: &&Value| line["kv"] == "int8" && line["scheme"] == lines[0]["scheme"];
    let least = bytes(lines.iter().find(is_int8).unwrap());
    assert!(least < bytes(&lines[0]), "{fit}");
    format!("{least}B")
}

#[test]
fn what_is_advised_of_memory_is_how_it_is_asked_and_served() {
    let world = World::new("");
    let memory = memory_for_int8(&world);
    let build = world.smelt(&["build", MODEL, "--memory", &memory]);
    assert_eq!(build.code, Some(0), "{}", build.stderr);
    assert!(build.stderr.contains("keys and values in int8"), "{}", build.stderr);
    let text = world.read("internvl3-tiny.toml");
    assert!(text.contains("kv = \"int8\"\n"), "{text}");
    assert!(text.contains(&format!("memory = \"{memory}\"\n")), "{text}");
    let ask = |more: &[&str]| {
        let words = ["-v", "chat", "internvl3-tiny", "--max-tokens", "2", "What?"];
        world.smelt(&[&words, more].concat())
    };
    let told = ask(&[]);
    assert!(told.stderr.contains("keys and values in int8"), "{}", told.stderr);
    let told = ask(&["--kv", "f16"]);
    assert!(told.stderr.contains("keys and values in f16"), "{}", told.stderr);
    // The same words again, and none, are the same pipeline.
    for words in [&["--memory", &memory][..], &[]] {
        let again = world.smelt(&[&["build", MODEL], words].concat());
        assert_eq!(again.code, Some(0), "{}", again.stderr);
        assert!(again.stderr.contains("keys and values in int8"), "{}", again.stderr);
    }
    // A limit that nothing fits is kept to, wherever flags do not say more.
    world.write("internvl3-tiny.toml", &text.replace(&memory, "1MiB"));
    assert_eq!(world.smelt(&["run", "internvl3-tiny.toml"]).code, Some(0));
    let none = ask(&[]);
    assert_eq!(none.code, Some(5), "{}", none.stderr);
    assert!(none.stderr.contains("raise --memory"), "{}", none.stderr);
    assert_eq!(ask(&["--memory", "2GiB"]).code, Some(0));
    let serve = ["serve", "internvl3-tiny.toml", "--addr", "127.0.0.1:0"];
    let none = world.smelt(&serve);
    assert_eq!(none.code, Some(5), "{}", none.stderr);
    assert!(none.stderr.contains("raise --memory"), "{}", none.stderr);
    let server = Server::of(&world, &["internvl3-tiny.toml"], &["--memory", "2GiB"]);
    assert!(until(|| server.get("/health").status == 200));
}

#[test]
fn a_checkpoint_s_directory_is_fitted_and_written_with_its_place() {
    let world = World::new("");
    let checkpoint = data("golden/internvl3-tiny/checkpoint").display().to_string();
    let fit = world.smelt(&["fit", &checkpoint, "--json"]);
    assert_eq!(fit.code, Some(0), "{}", fit.stderr);
    let init = world.smelt(&["init", &checkpoint, "--out", "mine.toml"]);
    assert_eq!(init.code, Some(0), "{}", init.stderr);
    assert!(world.read("mine.toml").contains(&format!("model = \"path:{checkpoint}\"")));
    assert_eq!(world.smelt(&["plan", "mine.toml"]).code, Some(0));
}

#[test]
fn fit_takes_no_second() {
    let world = World::new("");
    let (ended, used) = world.measured(&["fit", "synthetic:qwen2_5_vl-3b"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Of two processors, which are busy with other tests and unoptimised here.
    let processors = used.utime + used.stime;
    assert!(processors < Duration::from_secs(3), "{processors:?}");
}
