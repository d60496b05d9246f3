//! Kills smelt and its stages at one system call after another, under strace, and checks each time
//! that the same command then finishes and that nothing half-done was ever visible.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod world;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;
use world::{World, statuses};

/// Points tried per sweep; each is one killed run, one plan and one finishing run.  A soak tries
/// every point.
const POINTS: usize = 110;
/// System calls that change files, locks or processes: between any two others, nothing differs.
const CALLS: &str = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,\
    unlink,unlinkat,rmdir,chmod,fchmod,fchmodat,ftruncate,flock,fcntl,clone,clone3,vfork,execve,\
    wait4,kill,pipe2,statx,newfstatat,close";

fn world() -> World {
    World::of_commands(&[
        "a::echo a > o; mkdir d; echo deep > d/f",
        "b:a:cat $SMELT_IN_A/o $SMELT_IN_A/d/f > o",
    ])
}

fn have_strace() -> bool {
    let found =
        Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success());
    assert!(found, "this test needs strace: install the Debian package of that name");
    found
}

/// `smelt run` under strace with these flags; how it ends is the point's business.
fn traced(world: &World, flags: &[&str]) -> Option<i32> {
    let mut strace = Command::new("strace");
    world.prepare(&mut strace);
    strace.args(["-qq"]).args(flags).arg(env!("CARGO_BIN_EXE_smelt")).args(["run", "p.toml"]);
    strace.output().unwrap().status.code()
}

/// How many of `CALLS` the busiest traced thread makes in an undisturbed run.
fn calls_of_one_thread(follow: &[&str]) -> usize {
    let world = world();
    let trace = world.path("trace").display().to_string();
    let filter = format!("trace={CALLS}");
    let mut flags = follow.to_vec();
    flags.extend(["-o", &trace, "-e", &filter]);
    assert_eq!(traced(&world, &flags), Some(0));
    let text = world.read("trace");
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        // With -f each line begins with the thread's id.
        let thread = if follow.is_empty() { "" } else { line.split(' ').next().unwrap_or("") };
        *counts.entry(thread).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

/// Kills whatever makes its `n`th call, then checks the store and finishes.
fn kill_at(n: usize, follow: &[&str]) {
    let world = world();
    let inject = format!("inject={CALLS}:signal=KILL:when={n}");
    let mut flags = follow.to_vec();
    flags.extend(["-o", "/dev/null", "-e", &inject]);
    traced(&world, &flags);
    let whole = check_visible(&world, n);
    let report = world.run(&[]);
    assert_eq!(report["status"], "ok", "point {n}");
    for status in statuses(&report) {
        let (name, status) = status.split_once(' ').unwrap();
        assert!(
            !whole.contains(name) || status == "hit",
            "point {n}: sealed {name} was built again"
        );
    }
    assert_eq!(fs::read_to_string(world.out("b").join("o")).unwrap(), "a\ndeep\n", "point {n}");
    world.assert_nothing_runs();
    let left = fs::read_dir(world.path("cache/work")).unwrap().count();
    assert_eq!(left, 0, "point {n}: working directories are left");
}

/// Everything that can be seen is whole; returns the stages that are sealed.
fn check_visible(world: &World, n: usize) -> BTreeSet<String> {
    for entry in fs::read_dir(world.path("cache/out")).into_iter().flatten().flatten() {
        let text = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let content = (text("o"), text("d/f"));
        let whole = content == ("a\n".into(), "deep\n".into())
            || content == ("a\ndeep\n".into(), String::new());
        assert!(whole, "point {n}: {} is half-written: {content:?}", entry.path().display());
    }
    let ended = world.smelt(&["plan", "p.toml", "--json"]);
    assert_eq!(ended.code, Some(0), "point {n}: {}", ended.stderr);
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    let hits = statuses(&plan).into_iter().filter_map(|s| Some(s.strip_suffix(" hit")?.to_owned()));
    hits.collect()
}

/// Evenly spread points over an undisturbed run.
fn sweep(name: &str, follow: &[&str]) {
    assert!(have_strace());
    let calls = calls_of_one_thread(follow);
    let count = if std::env::var_os("SMELT_SOAK").is_some() { calls.max(2) } else { POINTS };
    let points: BTreeSet<usize> =
        (0..count).map(|at| 1 + at * calls.saturating_sub(1) / (count - 1)).collect();
    points.iter().for_each(|&n| kill_at(n, follow));
    println!("{name}: {} kill points over {calls} system calls of one thread", points.len());
    assert!(points.len() >= 100, "{name}: only {} points over {calls} calls", points.len());
}

#[test]
fn killed_at_any_system_call_of_its_main_thread() {
    sweep("supervisor", &[]);
}

#[test]
fn every_process_killed_at_any_of_its_system_calls() {
    sweep("every process", &["-f"]);
}
