//! What `smelt doctor` says of captured boards, and of whatever machine this is.
//!
//! `UPDATE=1` writes the expected outputs anew; read what changed.

use std::fs::{self, File};
use std::io::Write as _;
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
