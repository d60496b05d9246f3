//! Disks that fail: under strace, calls of smelt's and of its stages' answer with EIO.

use std::fs;
use std::panic::catch_unwind;
use std::process::Output;

use crate::world::traced::{Point, own_points, strace};
use crate::world::{Ended, World, commands, statuses};
use serde_json::{Value, json};

/// Calls by which a store, its inputs and its outputs are found, read and written, on architectures that have them.
const CALLS: &str = "?open,openat,?stat,statx,?newfstatat,getdents64,?readlink,readlinkat,\
    read,pread64,write,pwrite64,copy_file_range,fsync,fdatasync,ftruncate,\
    ?rename,?renameat,renameat2,?mkdir,mkdirat,?unlink,unlinkat,?rmdir,?chmod,fchmod,fchmodat";
const SMELT: [&str; 5] = [env!("CARGO_BIN_EXE_smelt"), "run", "p.toml", "--keep-going", "--json"];
/// As many points as take some seconds; `SMELT_SOAK` takes all, some four hundred.
const POINTS: usize = 8;

/// `a` reads a file and `b` what that made; `c` needs neither.
fn world(read: &str) -> World {
    let text = commands(&[
        &format!("a:in:{read}"),
        "b:a:cat $SMELT_IN_A/o > o; echo b >> o",
        "c::echo c > o",
    ]);
    let world = World::new(&text.replace("\"in\"", "\"path:in\""));
    fs::create_dir(world.path("in")).unwrap();
    world.write("in/f", "read\n");
    world
}

/// A stage whose program reads its input from a disk that fails: how it ends, beside the others.
#[track_caller]
fn check_program(read: &str, words: &str) {
    let file = "$SMELT_INPUTS/f";
    let traced = format!(
        "strace -o /dev/null -P {file} -e inject=read,copy_file_range:error=EIO cat {file} > o"
    );
    let world = world(&read.replace("READ", &traced));
    let ended = world.smelt(&SMELT[1..]);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(statuses(&report), ["a failed", "b skipped", "c sealed"], "{}", ended.stderr);
    let failed = &report["stages"][0];
    assert_eq!(failed["class"], "disk-error", "{failed}");
    assert!(failed["message"].as_str().unwrap().contains(words), "{failed}");
}

#[test]
fn a_program_says_that_its_input_cannot_be_read() {
    check_program("READ", "nput/output error");
}

/// Programs go on without what they could not read.
#[test]
fn one_that_says_success_all_the_same_is_not_sealed() {
    check_program("READ || echo half > o", "it said success (exit 0), but its log says");
}

/// Under a disk that gives neither input, with `errno` instead.
fn on_bad_disk(world: &World, errno: &str, command: &str) -> Ended {
    let [file, model] = ["in/f", "model/config.json"].map(|name| world.path(name));
    let [file, model] = [&file, &model].map(|path| path.to_str().unwrap());
    let follow = ["-f", "-P", file, "-P", model];
    let smelt = [SMELT[0], command, "p.toml", "--json"];
    let program = if command == "run" { &SMELT[..] } else { &smelt };
    let expression = format!("inject=read,pread64:error={errno}");
    let Output { status, stdout, stderr } = strace(world, &follow, &expression, program);
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    Ended { code: status.code(), stdout, stderr }
}

/// An input that cannot be hashed fails what reads it, as one that cannot be read later does.
#[test]
fn an_input_that_cannot_be_hashed_fails_its_stages_alone() {
    let world = world("cat $SMELT_INPUTS/f > o");
    fs::create_dir(world.path("model")).unwrap();
    world.write("model/config.json", "{}");
    let source = "[stage.given]\nkind = \"source\"\nfrom = \"path:model\"\n";
    world.write("p.toml", &(world.read("p.toml") + source));
    let ended = on_bad_disk(&world, "EIO", "run");
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let all = ["a failed", "b skipped", "c sealed", "given failed"];
    assert_eq!(statuses(&report), all, "{}", ended.stderr);
    for (at, file) in [(0, "in/f"), (3, "model/config.json")] {
        let failed = &report["stages"][at];
        let told = (&failed["class"], &failed["key"], failed["message"].as_str().unwrap());
        assert_eq!((told.0, told.1), (&json!("disk-error"), &Value::Null), "{failed}");
        assert!(told.2.contains(file) && told.2.contains("nput/output error"), "{failed}");
    }
    let kept: Value = serde_json::from_str(&world.smelt(&["report", "--json"]).stdout).unwrap();
    assert_eq!(statuses(&kept), all, "{kept}");
    let left = world.smelt(&["resume", "--list", "--json"]);
    assert_eq!(left.stdout.trim(), r#"{"runs":[]}"#, "it has ended");
    let planned = on_bad_disk(&world, "EIO", "plan");
    assert_eq!(planned.code, Some(1), "{}", planned.stderr);
    assert!(planned.stderr.contains("cannot read "), "{}", planned.stderr);
    let refused = on_bad_disk(&world, "EACCES", "run");
    assert_eq!(refused.code, Some(3), "what may not be read is a mistake: {}", refused.stderr);
    let all = ["a sealed", "b sealed", "c hit", "given hit"];
    assert_eq!(statuses(&world.run(&[])), all);
}

/// A pipeline that a disk does not give is no mistake of who wrote it.
#[test]
fn a_pipeline_that_a_failing_disk_does_not_give_is_not_called_wrong() {
    let world = world("cat $SMELT_INPUTS/f > o");
    let file = world.path("p.toml");
    for (errno, code) in [("EIO", 1), ("EACCES", 3)] {
        for calls in ["?open,openat", "read"] {
            let follow = ["-P", "p.toml", "-P", file.to_str().unwrap()];
            let expression = format!("inject={calls}:error={errno}");
            let output = strace(&world, &follow, &expression, &SMELT);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{errno} of {calls}: {said}");
            assert!(said.contains("cannot read the pipeline p.toml: "), "{said}");
        }
    }
}

/// A program whose name a disk gives, and nothing more.
#[test]
fn a_program_that_cannot_be_looked_at_is_in_no_key() {
    let world = world("cat $SMELT_INPUTS/f > o");
    world.write("tool.sh", "#!/bin/sh\ncat $SMELT_INPUTS/f > o\n");
    let file = world.path("tool.sh");
    let file = file.to_str().unwrap();
    let text = commands(&[&format!("a::sh {file}"), "c::echo c > o"]);
    world.write("p.toml", &text);
    let output =
        strace(&world, &["-f", "-P", file], "inject=?stat,statx,?newfstatat:error=EIO", &SMELT);
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(statuses(&report), ["a failed", "c sealed"], "{said}");
    let failed = &report["stages"][0];
    assert_eq!(
        (&failed["class"], &failed["key"]),
        (&json!("disk-error"), &Value::Null),
        "{failed}"
    );
}

/// Whatever fails, what is sealed is right, what failed says why, and a sound disk makes the rest.
#[test]
fn whichever_call_fails_nothing_false_is_kept() {
    let read = "cat $SMELT_INPUTS/f > o";
    let points = own_points(&world(read), &["-f"], CALLS, &SMELT);
    let is_soak = std::env::var_os("SMELT_SOAK").is_some();
    let step = if is_soak { 1 } else { points.len().div_ceil(POINTS) };
    let tried = points.iter().step_by(step);
    let tried: Vec<_> = tried.map(|point| catch_unwind(|| fail_and_finish(point, read))).collect();
    let failed = tried.iter().filter(|came| matches!(came, Ok(true))).count();
    let wrong = tried.iter().filter(|came| came.is_err()).count();
    println!("{failed} of {} points failed, every {step}th was tried", points.len());
    assert_eq!(wrong, 0, "so many points left something false; each is told above");
    assert!(failed * step * 2 > points.len(), "only {failed} points failed");
}

/// Whether the call came.
fn fail_and_finish(point: &Point, read: &str) -> bool {
    let world = world(read);
    let (call, nth) = point;
    let output = strace(&world, &["-f"], &format!("inject={call}:error=EIO:when={nth}"), &SMELT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{point:?}: {said}");
    let is_told = said.contains("error") || said.contains("failed");
    assert!(output.status.success() || is_told, "{point:?}: {said}");
    // 127 is the loader's, where the call was one of a library of smelt's.
    assert!(matches!(output.status.code(), Some(0 | 1 | 127)), "{point:?}: {said}");
    if let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) {
        for stage in report["stages"].as_array().unwrap() {
            let class = stage["class"].as_str().unwrap_or("none");
            // A shell says of its own writes that they failed, and not why.
            let is_shell = class == "tool-rejected" && call == "write";
            assert!(is_shell || ["none", "disk-error"].contains(&class), "{point:?}: {stage}");
        }
    }
    let report = world.run(&[]);
    assert_eq!(report["status"], "ok", "{point:?}");
    let made = ["a", "b", "c"].map(|stage| fs::read_to_string(world.out(stage).join("o")).unwrap());
    assert_eq!(made, ["read\n", "read\nb\n", "c\n"], "{point:?}");
    let checked = world.smelt(&["cache", "fsck"]);
    assert_eq!(checked.code, Some(0), "{point:?}: {}{}", checked.stdout, checked.stderr);
    world.assert_nothing_runs();
    world.read("trace").contains("(INJECTED)")
}
