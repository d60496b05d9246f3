//! Proves on the system calls of a real run that nothing is acknowledged before it is durable: files,
//! directories, the rename into `out/`, the record, and only then the word to the user.
//!
//! The rules are in `order`; traces made by hand, and real ones with a sync left out, prove that they
//! find what they are to find.

mod calls;
mod order;
use std::path::Path;
use std::process::Command;

use crate::world::World;
use order::{CALLS, TraceReport, follow};

/// One stage with a file in a directory, in a new store.
const GOOD: &str = r#"
7 mkdir("/s", 0777) = 0
7 fsync(3</>) = 0
7 mkdir("/s/out", 0777) = 0
7 openat(AT_FDCWD</>, "/s/ac.log", O_RDWR|O_CREAT|O_CLOEXEC, 0666) = 4</s/ac.log>
7 fsync(5</s>) = 0
8 openat(AT_FDCWD</s/work/a.1>, "o", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</s/work/a.1/o>
8 write(1</s/work/a.1/o>, "a, b) = 1\n", 10) = 10
8 mkdir("d", 0777)                        = 0
8 openat(AT_FDCWD</s/work/a.1>, "d/f", O_WRONLY|O_CREAT|O_TRUNC, 0666 <unfinished ...>
7 openat(AT_FDCWD</>, "/s/ac.log", O_RDWR|O_CREAT|O_CLOEXEC, 0666) = 9</s/ac.log>
8 <... openat resumed>) = 3</s/work/a.1/d/f>
8 write(1</s/work/a.1/d/f>, "deep\n", 5) = 5
8 +++ exited with 0 +++
7 chmod("/s/work/a.1/o", 0444) = 0
7 fsync(9</s/work/a.1/o>) = 0
9 chmod("/s/work/a.1/d/f", 0444) = 0
9 fsync(9</s/work/a.1/d/f> <unfinished ...>
7 chmod("/s/work/a.1/d", 0755) = 0
9 <... fsync resumed>) = 0
7 fsync(9</s/work/a.1/d>) = 0
7 fsync(9</s/work/a.1>) = 0
7 rename("/s/work/a.1", "/s/out/11") = 0
7 fsync(9</s/out>) = 0
7 pwrite64(4</s/ac.log>, "1 98c3 {\"seal\":{\"tree\":\"11\",\"record\":{\"stage\":\"a\"}}}\n", 51, 0) = 51
7 fsync(4</s/ac.log>) = 0
7 pwrite64(6</s/journal/r.log>, "3 1db6 {\"attempt\":{\"outcome\":\"sealed\"},\"stage\":\"a\"}\n", 50, 0) = 50
7 write(2</dev/pts/0>, "[1/1] a sealed in 0.1 s, peak RSS 7.9 MiB", 41) = 41
"#;

fn seen(trace: &str) -> TraceReport {
    follow(trace, Path::new("/s"))
}

/// The line that holds `words`, which only one may.
#[track_caller]
fn line<'a>(trace: &'a str, words: &str) -> &'a str {
    let mut lines = trace.lines().filter(|line| line.contains(words));
    let line = lines.next().unwrap_or_else(|| panic!("no line has {words}"));
    assert!(lines.next().is_none(), "{words}");
    line
}

/// A trace is out of order, and that is said in these words.
#[track_caller]
fn is_found(trace: &str, words: &str) {
    let faults = seen(trace).faults;
    assert!(faults.iter().any(|fault| fault.contains(words)), "{faults:?}\n{trace}");
}

#[track_caller]
fn without(words: &str, fault: &str) {
    is_found(&GOOD.replace(line(GOOD, words), ""), fault);
}

/// The line with `words` comes right after the one with `later`.
#[track_caller]
fn moved(words: &str, later: &str, fault: &str) {
    let (early, late) = (line(GOOD, words), line(GOOD, later));
    let swapped = GOOD.replace(&format!("{early}\n"), "");
    is_found(&swapped.replace(late, &format!("{late}\n{early}")), fault);
}

#[test]
fn a_good_trace_has_no_faults() {
    let seen = seen(GOOD);
    assert!(seen.faults.is_empty(), "{:?}", seen.faults);
    assert_eq!(seen.placed, 1);
    assert!(seen.told.contains("a") && seen.journalled.contains("a"));
}

#[test]
fn a_sync_that_is_missing_is_found() {
    without("fsync(9</s/work/a.1/o>)", "placed, but /s/work/a.1/o of line");
    without("fsync resumed", "placed, but /s/work/a.1/d/f of line");
    without("fsync(9</s/work/a.1/d>)", "placed, but /s/work/a.1/d of line");
    without("fsync(9</s/work/a.1>)", "placed, but the directory /s/work/a.1 is not");
    without("fsync(9</s/out>)", "recorded, but out/ is not synced");
    without("fsync(4</s/ac.log>)", "a is acknowledged, but its record of line");
    without("fsync(3</>)", "placed, but /s is new");
    without("fsync(5</s>)", "placed, but /s/out is new");
    without("fsync(5</s>)", "the action log has no durable name");
    is_found(
        &GOOD.replace("fsync(4</s/ac.log>) = 0", "fsync(4</s/ac.log>) = -1 EIO"),
        "not synced",
    );
}

#[test]
fn a_sync_that_comes_too_late_is_found() {
    let rename = "rename(\"/s/work";
    moved("fsync(9</s/work/a.1/o>)", rename, "placed, but /s/work/a.1/o of line");
    moved("fsync(9</s/work/a.1>)", rename, "placed, but the directory /s/work/a.1 is not");
    moved("fsync(9</s/out>)", "{\\\"seal\\\"", "recorded, but out/ is not synced");
    moved("fsync(4</s/ac.log>)", "/s/journal/r.log", "a is acknowledged, but its record of line");
    moved("fsync(4</s/ac.log>)", "[1/1] a sealed", "a is acknowledged, but its record of line");
}

#[test]
fn a_write_behind_the_sync_is_found() {
    moved("\"a, b) = 1", "fsync(9</s/work/a.1/o>)", "placed, but /s/work/a.1/o of line");
    moved("chmod(\"/s/work/a.1/o\"", "fsync(9</s/work/a.1/o>)", "placed, but /s/work/a.1/o of");
    moved("\"deep", "fsync resumed", "placed, but /s/work/a.1/d/f of line");
    // While the sync goes on, nobody knows.
    moved("\"deep", "fsync(9</s/work/a.1/d/f>", "placed, but /s/work/a.1/d/f of line");
    let late = line(GOOD, "\"deep").replace("work/a.1", "out/11");
    is_found(&format!("{GOOD}{late}\n"), "/s/out/11/d/f is changed after it was placed");
}

#[test]
fn steps_in_the_wrong_order_are_found() {
    moved("rename(\"/s/work", "{\\\"seal\\\"", "recorded, but /s/out/11 is not there");
    moved("{\\\"seal\\\"", "fsync(4</s/ac.log>)", "a is acknowledged, but its record of line");
    moved("{\\\"seal\\\"", "[1/1] a sealed", "a is acknowledged, but not recorded");
    without("{\\\"seal\\\"", "a is acknowledged, but not recorded");
}

/// The trace of a run of these arguments, in a new store.
fn traced(world: &World, arguments: &[&str]) -> String {
    let trace = world.path("trace").display().to_string();
    let mut strace = Command::new("strace");
    world.prepare(&mut strace);
    // Records must be seen whole.
    strace.args(["-f", "-y", "-qq", "-s", "65536", "-o", &trace, "-e", &format!("trace={CALLS}")]);
    strace.arg(env!("CARGO_BIN_EXE_smelt")).args(["run", "p.toml"]).args(arguments);
    let output = strace.output().expect("these tests need strace; it is a Debian package");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    world.read("trace")
}

/// Programs and stages of smelt's own; many files, directories, equal outputs.
fn world() -> World {
    let world = World::of_commands(&[
        "a::echo a > o; mkdir -p d/e; echo deep > d/e/f; cp o d/g; mv d/g d/h; chmod +x d/h; rm o; \
         echo again > o",
        "b:a:cat $SMELT_IN_A/o > o; for n in 1 2 3 4 5 6 7 8 9; do echo $n > $n; done",
        "twin::echo same > o",
        "other:b:echo same > o",
        "model-files:model:cp $SMELT_IN_MODEL/config.json o; truncate -s 20 o",
    ]);
    let model = "[stage.model]\nkind = \"source\"\nfrom = \"synthetic:internvl3-tiny\"\n";
    let mut text = world.read("p.toml") + model;
    for outputs in [&["o", "d"][..], &["o", "1", "2", "3", "4", "5", "6", "7", "8", "9"]] {
        text = text.replacen("outputs = [\"o\"]", &format!("outputs = {outputs:?} "), 1);
    }
    world.write("p.toml", &text);
    world
}

const STAGES: [&str; 6] = ["a", "b", "model", "model-files", "other", "twin"];

#[track_caller]
fn is_in_order(world: &World, trace: &str) {
    let seen = follow(trace, &world.path("cache"));
    assert!(seen.faults.is_empty(), "{:#?}", seen.faults);
    assert!(seen.told.iter().eq(&STAGES), "{:?}", seen.told);
    assert_eq!(seen.told, seen.journalled);
    // Two of them make the same.
    assert_eq!(seen.placed, STAGES.len() - 1);
}

#[test]
fn a_real_run_is_in_order_and_needs_every_sync() {
    let world = world();
    let trace = traced(&world, &[]);
    is_in_order(&world, &trace);
    let cache = world.path("cache");
    let lines: Vec<&str> = trace.lines().collect();
    let (work, out) = (cache.join("work"), cache.join("out"));
    let is_ours = |line: &str| {
        let is_sync = line.contains(" fsync(") || line.contains(" fdatasync(");
        is_sync && [&work, &out].iter().any(|dir| line.contains(&format!("<{}", dir.display())))
    };
    let needed: Vec<usize> = (0..lines.len()).filter(|&at| is_ours(lines[at])).collect();
    let is_missed = |at: &&usize| {
        let rest = [&lines[..**at], &lines[**at + 1..]].concat().join("\n");
        !follow(&rest, &cache).faults.is_empty()
    };
    // An output that is there already is not placed again.
    let is_twin = |line: &&str| line.contains("/out>") || line.contains("/other.1");
    let idle: Vec<_> = needed.iter().filter(|at| !is_missed(at)).map(|&at| lines[at]).collect();
    assert!(idle.len() <= 3 && idle.iter().all(is_twin), "{idle:#?}");
    let (all, count) = (lines.len(), needed.len());
    println!("{all} lines, {count} syncs of outputs, of which nobody misses {}", idle.len());
    assert!(needed.len() > 30, "{}", needed.len());
}

#[test]
fn stages_side_by_side_are_in_order() {
    let world = world();
    is_in_order(&world, &traced(&world, &["--jobs", "3"]));
}
