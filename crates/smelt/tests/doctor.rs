//! What `smelt doctor` says of captured boards, and of whatever machine this is.
//!
//! `UPDATE=1` writes the expected outputs anew; read what changed.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::world::{Ended, World};
use nix::pty::openpty;
use serde_json::Value;

fn captured(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/doctor").join(name)
}

fn doctor(world: &World, root: &Path, flags: &[&str]) -> Ended {
    let root = root.to_str().unwrap();
    world.smelt(&[&["doctor", "--root", root], flags].concat())
}

#[track_caller]
fn golden(name: &str, text: &str) {
    let path = captured(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&path).unwrap(), "{name}");
}

#[test]
fn captured_boards_are_judged() {
    let world = World::of_commands(&[]);
    for (board, code) in [("orin-nano-as-flashed", 1), ("orin-nano-set-up", 0), ("x86-server", 0)] {
        let text = doctor(&world, &captured(board), &[]);
        assert_eq!((text.code, text.stderr.as_str()), (Some(code), ""), "{board}");
        golden(&format!("{board}.txt"), &text.stdout);
        let json = doctor(&world, &captured(board), &["--json"]);
        assert_eq!(json.code, Some(code));
        golden(&format!("{board}.json"), &json.stdout);
    }
    assert!(!world.path("cache").exists(), "nothing is made by asking");
}

#[test]
fn this_machine_is_examined_and_left_as_it_was() {
    let world = World::of_commands(&[]);
    let text = world.smelt(&["doctor"]);
    assert!(matches!(text.code, Some(0 | 1)), "{}", text.stderr);
    assert!(text.stdout.contains("board: "), "{}", text.stdout);
    let json = world.smelt(&["doctor", "--json"]);
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let problems = findings.iter().filter(|finding| finding["severity"] == "problem").count();
    assert_eq!(json.code, Some(i32::from(problems > 0)));
    assert!(document["measured"]["free_bytes"].is_u64());
    let mut left: Vec<_> = fs::read_dir(world.path("")).unwrap().flatten().collect();
    left.retain(|entry| entry.file_name() != "p.toml");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_user_who_agrees_to_nothing_changes_nothing() {
    let world = World::of_commands(&[]);
    let pty = openpty(None, None).unwrap();
    // More answers than there are questions; the terminal keeps them until they are read.
    let mut keyboard = File::from(pty.master);
    keyboard.write_all(&b"n\n".repeat(40)).unwrap();
    let made = || Path::new("/smelt.swap").exists();
    let before = made();
    let output = world.command(&["doctor", "--fix"]).stdin(pty.slave).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{told}");
    assert!(told.contains("problems left: "), "{told}");
    assert_eq!(made(), before);
}

#[test]
fn what_it_may_not_do_is_refused_in_a_line() {
    let world = World::of_commands(&[]);
    let check = |arguments: &[&str], words: &str| {
        let ended = world.smelt(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        ended.stderr.lines().count()
    };
    assert_eq!(check(&["doctor", "--fix"], "standard input is no terminal"), 1);
    assert_eq!(check(&["doctor", "--root", "nowhere"], "no such directory"), 1);
    check(&["doctor", "--root", ".", "--fix"], "cannot be used with");
}

#[test]
fn a_tree_without_anything_is_judged() {
    let world = World::of_commands(&[]);
    fs::create_dir(world.path("empty")).unwrap();
    let ended = doctor(&world, &world.path("empty"), &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.contains("not a Jetson"), "{}", ended.stdout);
}

/// A stage for each thing that may lack.
const LACKING: &str = r#"smelt = 1
name = "t"
[stage.tool]
kind = "command"
argv = ["trtexec", "--onnx=m", "--fp16"]
tool = ["trtexec"]
outputs = ["o"]
[stage.program]
kind = "command"
argv = ["nothing-of-that-name"]
inputs = ["path:absent"]
secrets = ["NO_SUCH_TOKEN"]
writes = ["no/such/place"]
outputs = ["o"]
[stage.fact]
kind = "command"
argv = ["sh", "-c", "echo x > o"]
device = ["tensorrt"]
outputs = ["o"]
[stage.nothing]
kind = "source"
from = "path:."
"#;

#[test]
fn what_stages_need_is_said_before_anything_is_built() {
    let world = World::new(LACKING);
    let findings = |ended: &Ended| -> Vec<(String, String)> {
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = document["findings"].as_array().unwrap().iter();
        all.map(|finding| (text(&finding["id"]), text(&finding["title"]))).collect()
    };
    let json = world.smelt(&["doctor", "p.toml", "--json"]);
    assert_eq!(json.code, Some(1), "{}", json.stderr);
    let ids: Vec<String> = findings(&json).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["tool", "input", "program", "secret", "writes", "fact", "stage"]);
    let text = world.smelt(&["doctor", "p.toml"]).stdout;
    for words in [
        "problem  tool: stage tool: trtexec is not here",
        "fix   sudo apt update && sudo apt install libnvinfer-bin",
        "problem  secret: stage program: the secret NO_SUCH_TOKEN is not in smelt's environment",
        "fix   mkdir -p '",
        "warning  fact: stage fact: the fact tensorrt is none here",
        "ok       stage: stage nothing (source) needs path:.",
        "5 problems, 1 warning, 0 notes",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!world.path("cache").exists(), "nothing is made by asking");
    // The same word where a run would end.
    let run = world.smelt(&["run", "p.toml"]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
}

/// A pip's program and a vendor's are told with their versions, and a flag that such a version lacks is a problem.
#[test]
fn versions_are_told_without_starting_anything() {
    let stage = |path: &str, argv: &str| {
        format!(
            "smelt = 1\nname = \"t\"\n[stage.a]\nkind = \"command\"\noutputs = [\"o\"]\nargv = {argv}\ntool = [\"{path}\"]\n"
        )
    };
    let world = World::new("");
    let put = |name: &str, text: &str| {
        fs::create_dir_all(world.path(name).parent().unwrap()).unwrap();
        world.write(name, text);
        fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    put("trt/bin/trtexec", "#!/bin/sh\ntouch /started\n");
    put("trt/lib/libnvinfer.so.11.0.0", "a library");
    let check = |argv: &str, code: i32, words: &str| {
        world.write("p.toml", &stage("trt/bin/trtexec", argv));
        let ended = world.smelt(&["doctor", "p.toml"]);
        assert_eq!(ended.code, Some(code), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    };
    check("[\"trt/bin/trtexec\", \"--onnx=m\"]", 0, "trt/bin/trtexec 11.0.0");
    let lack = "stage a: trt/bin/trtexec 11.0.0 has no --int8, which 11.0 took away";
    check("[\"trt/bin/trtexec\", \"--int8\"]", 1, lack);
    assert!(!Path::new("/started").exists());
}
