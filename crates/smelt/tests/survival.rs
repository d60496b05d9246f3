//! What a kill, a Ctrl-C or a second run may cost: the running stage, never more.

use std::process::Child;

use crate::world::{World, statuses, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// Stage b says that it runs, then hangs as long as `hang` is there, with a child that has left
/// its session and a double fork.
fn hanging() -> World {
    let world = World::of_commands(&["a::echo a > o"]);
    let hang = format!(
        "a::echo a > o\nb:a:(setsid sh -c 'sleep 600 & sleep 600' &) ; sleep 600 & touch {0}/running; while [ -e {0}/hang ]; do sleep 0.02; done; cat $SMELT_IN_A/o > o",
        world.path("").display()
    );
    world.write("p.toml", &crate::world::writing(&hang.lines().collect::<Vec<_>>()));
    world.write("hang", "");
    world
}

fn children(pid: u32) -> Vec<u32> {
    smelt_watch::Tree::new(pid).children()
}

/// The next run finishes what was left, without doing `a` again.
#[track_caller]
fn finishes(world: &World) {
    std::fs::remove_file(world.path("hang")).unwrap();
    assert_eq!(statuses(&world.run(&[])), ["a hit", "b sealed"]);
    world.assert_nothing_runs();
    let left = |folder: &str| std::fs::read_dir(world.path(folder)).unwrap().count();
    assert_eq!((left("cache/work"), left("cache/runs")), (0, 0), "dead runs are cleared");
}

#[test]
fn killing_smelt_kills_the_whole_tree() {
    let world = hanging();
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    signal(&smelt, Signal::SIGKILL);
    smelt.wait().unwrap();
    world.assert_nothing_runs();
    finishes(&world);
}

#[test]
fn killing_the_shim_fails_the_stage_and_kills_its_tree() {
    let world = hanging();
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    let shims = children(smelt.id());
    assert_eq!(shims.len(), 1);
    kill(Pid::from_raw(shims[0].cast_signed()), Signal::SIGKILL).unwrap();
    assert_eq!(smelt.wait().unwrap().code(), Some(1));
    world.assert_nothing_runs();
    finishes(&world);
}

#[test]
fn killing_everything_at_once_leaves_only_work_to_do() {
    let world = hanging();
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    let mut all = smelt_watch::Tree::new(smelt.id()).descendants();
    all.push(smelt.id());
    for pid in all {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    smelt.wait().unwrap();
    // What a double fork hid from us is killed by the next start at the latest.
    finishes(&world);
}

#[test]
fn the_next_start_kills_what_a_lost_run_left() {
    let world = hanging();
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    // Supervisor and shim vanish together: nobody is left to kill the stage's grandchildren.
    let shim = children(smelt.id())[0];
    signal(&smelt, Signal::SIGSTOP);
    kill(Pid::from_raw(shim.cast_signed()), Signal::SIGKILL).unwrap();
    signal(&smelt, Signal::SIGKILL);
    smelt.wait().unwrap();
    assert!(!world.processes().is_empty(), "the test needs something left to kill");
    finishes(&world);
}

#[test]
fn ctrl_c_stops_the_stage_and_exits_6() {
    let world = hanging();
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    signal(&smelt, Signal::SIGINT);
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
    world.assert_nothing_runs();
    assert_eq!(world.smelt(&["out", "p.toml", "b"]).code, Some(1), "nothing half-done is sealed");
    finishes(&world);
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_a_stubborn_stage() {
    let world = World::of_commands(&["a::echo"]);
    let script = format!(
        "a::trap '' TERM INT; touch {}/running; while :; do sleep 0.05; done",
        world.path("").display()
    );
    world.write("p.toml", &crate::world::writing(&[&script]));
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    signal(&smelt, Signal::SIGINT);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let begin = std::time::Instant::now();
    signal(&smelt, Signal::SIGINT);
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
    assert!(
        begin.elapsed() < smelt_exec::shim::GRACE,
        "killed at once, not after the grace period"
    );
    world.assert_nothing_runs();
}

#[test]
fn two_runs_build_each_key_once() {
    let world = World::of_commands(&["a::echo"]);
    let script = format!(
        "a::echo built >> {0}/count; touch {0}/running; while [ -e {0}/hang ]; do sleep 0.02; done; echo a > o",
        world.path("").display()
    );
    world.write("p.toml", &crate::world::writing(&[&script]));
    world.write("hang", "");
    let mut first = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    let refused = world.smelt(&["run", "p.toml", "--no-wait"]);
    assert_eq!(refused.code, Some(7), "{}", refused.stderr);
    let mut second = world.command(&["run", "p.toml", "--json"]);
    let second = second
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The second run has opened its journal before it asks for the key.
    let journals = || std::fs::read_dir(world.path("cache/journal")).unwrap().count();
    assert!(until(|| journals() == 3));
    std::fs::remove_file(world.path("hang")).unwrap();
    assert!(first.wait().unwrap().success());
    let output = second.wait_with_output().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(statuses(&report), ["a hit"]);
    assert_eq!(world.read("count"), "built\n");
}

#[test]
fn a_shim_that_was_stopped_cannot_hold_up_the_run() {
    let world = hanging();
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    let shim = children(smelt.id())[0];
    kill(Pid::from_raw(shim.cast_signed()), Signal::SIGSTOP).unwrap();
    signal(&smelt, Signal::SIGINT);
    std::thread::sleep(std::time::Duration::from_millis(100));
    signal(&smelt, Signal::SIGINT);
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
    world.assert_nothing_runs();
    finishes(&world);
}

/// Whoever stops smelt, with Ctrl-Z or out of a stage, does not stop the stage's time.
#[test]
fn a_stopped_supervisor_costs_no_timeout() {
    let world = hanging();
    world.write("p.toml", &(world.read("p.toml") + "limits = { timeout = \"2s\" }\n"));
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    signal(&smelt, Signal::SIGSTOP);
    let shim = children(smelt.id())[0];
    let gone = until(|| smelt_watch::Tree::new(shim).descendants().is_empty());
    assert!(gone, "the stage runs on");
    signal(&smelt, Signal::SIGCONT);
    assert_eq!(smelt.wait().unwrap().code(), Some(1));
    let told = world.smelt(&["report"]).stdout;
    assert!(told.contains("ran longer than the 2 s of limits.timeout"), "{told}");
    world.write("p.toml", &world.read("p.toml").replace("\"2s\"", "\"60s\""));
    finishes(&world);
}

#[test]
fn a_time_limit_that_no_clock_reaches_is_none() {
    let world = World::of_commands(&["a::echo a > o"]);
    let limit = format!("limits = {{ timeout = \"{}s\" }}\n", u64::MAX);
    world.write("p.toml", &(world.read("p.toml") + &limit));
    let ended = world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_lost_shim_leaves_no_orphan_that_hid_its_environment() {
    let world = World::of_commands(&["a::echo"]);
    let folder = world.path("").display().to_string();
    let script = format!(
        "a::(setsid env -i sh -c 'echo $$ > {folder}hidden; exec sleep 600' &) ; sleep 600"
    );
    world.write("p.toml", &crate::world::writing(&[&script]));
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("hidden");
    assert!(until(|| !world.read("hidden").trim().is_empty()));
    let hidden: i32 = world.read("hidden").trim().parse().unwrap();
    kill(Pid::from_raw(children(smelt.id())[0].cast_signed()), Signal::SIGKILL).unwrap();
    assert_eq!(smelt.wait().unwrap().code(), Some(1));
    let gone = until(|| kill(Pid::from_raw(hidden), None).is_err());
    assert!(gone, "process {hidden} lives on");
}

/// However large smelt's own program is, of which a shim holds a part.
#[test]
fn small_stages_are_led_by_one_shim() {
    let world = World::of_commands(&["a::echo"]);
    let folder = world.path("").display().to_string();
    let stage = |name: &str, input: &str| {
        format!("{name}:{input}:echo $PPID >> {folder}shims; echo {name} > o")
    };
    let stages = [stage("a", ""), stage("b", "a"), stage("c", "b")];
    let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
    world.write("p.toml", &crate::world::writing(&stages));
    assert_eq!(statuses(&world.run(&[])), ["a sealed", "b sealed", "c sealed"]);
    let shims = world.read("shims");
    let shims: Vec<&str> = shims.lines().collect();
    assert_eq!(shims, [shims[0]; 3]);
}

#[test]
fn ctrl_c_stops_the_hashing_of_a_large_input() {
    let world = World::of_commands(&["a:x:echo a > o"]);
    world.write("p.toml", &world.read("p.toml").replace("\"x\"", "\"path:big\""));
    // Sparse: it takes no space, and many seconds to hash.
    let big = std::fs::File::create(world.path("big")).unwrap();
    big.set_len(200 << 30).unwrap();
    let mut smelt = world.start(&["run", "p.toml"]);
    // The store is opened just before the hashing begins.
    world.wait_for("cache/keys.lock");
    signal(&smelt, Signal::SIGINT);
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
}

#[test]
fn ctrl_c_stops_the_sealing_of_a_large_output() {
    let world = World::of_commands(&["a::echo"]);
    let script = format!("a::truncate -s 200G o; touch {}/running", world.path("").display());
    world.write("p.toml", &crate::world::writing(&[&script]));
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("running");
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(&smelt, Signal::SIGINT);
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
    assert_eq!(world.smelt(&["out", "p.toml", "a"]).code, Some(1), "nothing half-done is sealed");
}

#[test]
fn ctrl_c_leaves_nothing_of_a_command_that_makes_a_directory() {
    let world = World::new("");
    let made = || std::fs::read_dir(world.path("")).unwrap().count() - 1;
    let arguments = ["quantize", "synthetic:internvl3-1b", "--scheme", "int8", "--out", "out"];
    let mut smelt = world.start(&arguments);
    assert!(until(|| made() > 1), "a model is made beside what is made of it");
    signal(&smelt, Signal::SIGINT);
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
    assert_eq!(made(), 0);
}
