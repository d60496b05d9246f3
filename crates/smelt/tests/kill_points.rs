//! Kills smelt, its shims and its stages at one system call after another, under strace, and checks
//! each time that the same command then finishes and that nothing half-done was ever visible.
//!
//! A point is a system call's name and its number in one thread, taken from an undisturbed run; only
//! points at which something really was killed count.

use std::collections::BTreeSet;
use std::fs;

use crate::world::traced::{Point, points, strace};
use crate::world::{World, commands, statuses};
use serde_json::Value;

/// System calls that change files, locks or processes: between any two others, nothing differs.
const CALLS: &str = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,\
    unlink,unlinkat,rmdir,chmod,fchmod,fchmodat,ftruncate,flock,fcntl,clone,clone3,vfork,execve,\
    wait4,kill,pipe2";

const A: &str = "a::echo a > o; mkdir d; echo deep > d/f";
const B: &str = "b:a:cat $SMELT_IN_A/o $SMELT_IN_A/d/f > o";

fn world() -> World {
    World::new(&with_directory(&[A, B]))
}

/// The first has a directory besides.
fn with_directory(lines: &[&str]) -> String {
    commands(lines).replacen("[\"o\"]", "[\"o\", \"d\"]", 1)
}

fn injection((call, nth): &Point) -> String {
    format!("inject={call}:signal=KILL:when={nth}")
}

const SMELT: [&str; 3] = [env!("CARGO_BIN_EXE_smelt"), "run", "p.toml"];

/// Kills at each point of `smelt run`, as seen with these flags of strace; without `SMELT_SOAK` at one of so many.
fn sweep(what: &str, follow: &[&str], one_of: usize) {
    let step = if std::env::var_os("SMELT_SOAK").is_some() { 1 } else { one_of };
    let points = points(&world(), follow, CALLS, &SMELT);
    let points: Vec<Point> = points.into_iter().step_by(step).collect();
    let killed = points.iter().filter(|point| kill_and_finish(point, follow)).count();
    println!("{what}: killed at {killed} of {} points", points.len());
    // How often the attempt's thread samples /proc depends on the machine, so the last calls of a
    // kind may not come; then nothing was killed, and the point does not count.
    assert!(killed >= 120 / step && killed * 10 >= points.len() * 6, "{what}: only {killed} kills");
}

/// Whether anything was killed; whatever it was, the store is sound and the run can be finished.
fn kill_and_finish(point: &Point, follow: &[&str]) -> bool {
    let world = world();
    strace(&world, follow, &injection(point), &SMELT);
    let killed = world.read("trace").contains("killed by SIGKILL");
    finishes(&world, point);
    killed
}

#[track_caller]
fn finishes(world: &World, point: &Point) {
    let whole = check_visible(world, point);
    let report = world.run(&[]);
    assert_eq!(report["status"], "ok", "{point:?}");
    for status in statuses(&report) {
        let (name, status) = status.split_once(' ').unwrap();
        assert!(
            !whole.contains(name) || status == "hit",
            "{point:?}: sealed {name} was built again"
        );
    }
    assert_eq!(fs::read_to_string(world.out("b").join("o")).unwrap(), "a\ndeep\n", "{point:?}");
    world.assert_nothing_runs();
    let left = fs::read_dir(world.path("cache/work")).unwrap().count();
    assert_eq!(left, 0, "{point:?}: working directories are left");
}

/// Everything that can be seen is whole; returns the stages that are sealed.
fn check_visible(world: &World, point: &Point) -> BTreeSet<String> {
    for entry in fs::read_dir(world.path("cache/out")).into_iter().flatten().flatten() {
        let text = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let content = (text("o"), text("d/f"));
        let content = (content.0.as_str(), content.1.as_str());
        let whole = [("a\n", "deep\n"), ("a\ndeep\n", "")].contains(&content);
        assert!(whole, "{point:?}: {} is half-written: {content:?}", entry.path().display());
    }
    let ended = world.smelt(&["plan", "p.toml", "--json"]);
    assert_eq!(ended.code, Some(0), "{point:?}: {}", ended.stderr);
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    let hits = statuses(&plan).into_iter().filter_map(|s| Some(s.strip_suffix(" hit")?.to_owned()));
    hits.collect()
}

#[test]
fn the_supervisor_killed_at_its_own_system_calls() {
    sweep("supervisor", &[], 2);
}

#[test]
fn whichever_thread_or_process_makes_the_call_first() {
    // Most points are the supervisor's own.
    sweep("all together", &["-f"], 4);
}

/// The stage's own program is run under strace, so that it alone is killed.
#[test]
fn a_stages_program_killed_at_its_system_calls() {
    let script = "mkdir d; echo one > d/f; cat d/f d/f > o";
    let points = points(&world(), &["-f"], CALLS, &["sh", "-ec", script]);
    let mut killed = 0;
    for point in &points {
        let world = World::new(&with_directory(&[A, &format!("b:a:{script}")]));
        let plain = world.read("p.toml");
        let traced = format!(
            "argv = [\"strace\", \"-o\", \"/dev/null\", \"-f\", \"-e\", \"{}\", \"sh\", \"-ec\", '''mkdir",
            injection(point)
        );
        let traced = plain.replace(
            "argv = [\"sh\", \"-ec\", '''mkdir d; echo one",
            &format!("{traced} d; echo one"),
        );
        assert_ne!(traced, plain);
        world.write("p.toml", &traced);
        let ended = world.smelt(&["run", "p.toml", "--json"]);
        if ended.code == Some(0) {
            // The call did not come; the stage is as it should be.
            continue;
        }
        killed += 1;
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(statuses(&report), ["a sealed", "b failed"], "{point:?}");
        world.assert_nothing_runs();
        world.write("p.toml", &with_directory(&[A, B]));
        finishes(&world, point);
    }
    println!("stage: killed at {killed} of {} points", points.len());
    assert!(killed * 10 >= points.len() * 8 && killed >= 15, "stage: only {killed} kills");
}
