//! Tokens are lent once on a machine, whoever runs and whatever store is used.

use std::process::Child;

use crate::world::{World, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A pipeline of one stage that takes the GPU, says so in `began` and ends when `go` is there.
fn world() -> World {
    let world = World::new("");
    let here = world.path("").display().to_string();
    let here = here.trim_end_matches('/');
    let script = format!(
        "echo $SMELT_GPU > {here}/began; while [ ! -e {here}/go ]; do sleep 0.01; done; echo x > o"
    );
    world.write(
        "p.toml",
        &format!(
            "smelt = 1\nname = \"one\"\n[resources]\ngpu = [\"7\"]\n[stage.a]\nkind = \"command\"\n\
             outputs = [\"o\"]\nwrites = [\".\"]\nresources = {{ gpu = 1 }}\n\
             argv = [\"sh\", \"-ec\", '''{script}''']\n"
        ),
    );
    world
}

/// A run of this world with the tokens of another one.
fn start(world: &World, tokens: &World, more: &[&str]) -> Child {
    let mut command = world.command(&[&["run", "p.toml"][..], more].concat());
    command.env("SMELT_TOKENS", tokens.path("tokens"));
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command.spawn().unwrap()
}

fn queue(tokens: &World) -> Vec<String> {
    let ended = tokens.smelt(&["runs", "--json"]);
    let runs: Value = serde_json::from_str(&ended.stdout).unwrap();
    let waiting = runs["queue"].as_array().unwrap().iter();
    waiting.map(|who| format!("{}", who["priority"])).collect()
}

#[test]
fn two_pipelines_of_two_stores_never_hold_one_device() {
    let [one, other, urgent] = [world(), world(), world()];
    let mut first = start(&one, &one, &[]);
    one.wait_for("began");
    // The file is there before its words are.
    assert!(until(|| one.read("began") == "7\n"));
    let mut second = start(&other, &one, &[]);
    assert!(until(|| queue(&one) == ["0"]));
    let mut third = start(&urgent, &one, &["--priority", "7"]);
    assert!(until(|| queue(&one) == ["7", "0"]));
    let told = one.smelt(&["runs"]).stdout;
    assert!(told.contains("gpu 7 held") && told.contains("1 of gpu waited for"), "{told}");
    assert!(!other.path("began").exists() && !urgent.path("began").exists());
    one.write("go", "");
    assert!(first.wait().unwrap().success());
    urgent.wait_for("began");
    assert!(!other.path("began").exists());
    urgent.write("go", "");
    assert!(third.wait().unwrap().success());
    other.wait_for("began");
    other.write("go", "");
    assert!(second.wait().unwrap().success());
    assert!(queue(&one).is_empty());
}

#[test]
fn what_a_killed_run_held_is_free() {
    let [one, other] = [world(), world()];
    let mut first = start(&one, &one, &[]);
    one.wait_for("began");
    let mut second = start(&other, &one, &[]);
    assert!(until(|| queue(&one) == ["0"]));
    first.kill().unwrap();
    first.wait().unwrap();
    other.wait_for("began");
    other.write("go", "");
    assert!(second.wait().unwrap().success());
    one.assert_nothing_runs();
}

/// The shim of a run, its child of that mark.
fn shim_of(run: &Child) -> Pid {
    let read = |pid: i32, name: &str| {
        let text = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    };
    let parent = format!("PPid:\t{}\n", run.id());
    let is = |pid: &i32| {
        read(*pid, "status").contains(&parent) && read(*pid, "environ").contains("/shim\0")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    Pid::from_raw(pids.find(is).unwrap())
}

/// Its store may never be opened again.
#[test]
fn what_a_killed_run_and_its_shim_left_is_ended_before_another_store_has_the_device() {
    let [one, other] = [world(), world()];
    let mut first = start(&one, &one, &[]);
    one.wait_for("began");
    let shim = shim_of(&first);
    kill(shim, Signal::SIGSTOP).unwrap();
    let status = || std::fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    assert!(until(|| status().contains("State:\tT")));
    first.kill().unwrap();
    first.wait().unwrap();
    kill(shim, Signal::SIGKILL).unwrap();
    let stage_lives = || one.processes().iter().any(|line| line.contains(" -ec "));
    assert!(stage_lives());
    let mut second = start(&other, &one, &[]);
    other.wait_for("began");
    assert!(!stage_lives());
    other.write("go", "");
    assert!(second.wait().unwrap().success());
    one.assert_nothing_runs();
}

/// As by Ctrl-Z.
#[test]
fn whoever_waits_and_is_halted_lets_others_pass() {
    let [one, other, late] = [world(), world(), world()];
    let mut first = start(&one, &one, &[]);
    one.wait_for("began");
    let mut second = start(&other, &one, &[]);
    assert!(until(|| queue(&one) == ["0"]));
    let halted = Pid::from_raw(second.id().cast_signed());
    kill(halted, Signal::SIGSTOP).unwrap();
    let mut third = start(&late, &one, &[]);
    assert!(until(|| queue(&one) == ["0", "0"]));
    one.write("go", "");
    assert!(first.wait().unwrap().success());
    late.wait_for("began");
    assert!(!other.path("began").exists());
    kill(halted, Signal::SIGCONT).unwrap();
    late.write("go", "");
    assert!(third.wait().unwrap().success());
    other.wait_for("began");
    other.write("go", "");
    assert!(second.wait().unwrap().success());
}

/// Who waits and is stopped leaves no place in the queue.
#[test]
fn whoever_waits_can_be_stopped() {
    let [one, other] = [world(), world()];
    let mut first = start(&one, &one, &[]);
    one.wait_for("began");
    let mut second = start(&other, &one, &[]);
    assert!(until(|| queue(&one) == ["0"]));
    kill(Pid::from_raw(second.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(second.wait().unwrap().code(), Some(6));
    assert!(queue(&one).is_empty());
    one.write("go", "");
    assert!(first.wait().unwrap().success());
}
