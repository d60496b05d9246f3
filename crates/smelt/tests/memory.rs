//! Stages on real memory: within real limits, on real swap, killed by the real kernel.
//!
//! Most of these need a user who may make control groups and swap.  Where that is not so, each says
//! on standard error that it proves nothing.  The tests of one machine follow each other: they share
//! its swap.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::world::machine::{Machine, say};
use crate::world::server::{BUILT, Server};
use crate::world::{World, commands, until};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;
/// What the boards' 8 GB are here, and their swap.
const MEMORY_BYTES: usize = 512 * MIB;
const SWAP_BYTES: u64 = 1 << 30;
const PAGE_BYTES: usize = 4096;

/// A stage's program: holds so many MiB and writes to all of them again and again for so many
/// milliseconds.  Stages start this very test by its name.
#[test]
fn hog() {
    let Ok(order) = std::env::var("HOG") else { return };
    let (mib, ms) = order.split_once(' ').unwrap();
    let mut memory = vec![0_u8; mib.parse::<usize>().unwrap() * MIB];
    let begin = Instant::now();
    loop {
        for page in memory.chunks_mut(PAGE_BYTES) {
            page[0] = page[0].wrapping_add(1);
        }
        if begin.elapsed() >= Duration::from_millis(ms.parse().unwrap()) {
            break;
        }
    }
    assert!(memory.iter().step_by(PAGE_BYTES).all(|&byte| byte == memory[0]));
    fs::write("o", "done").unwrap();
}

/// A line of shell that runs [`hog`].
fn hogs(mib: usize, ms: u64) -> String {
    let program = std::env::current_exe().unwrap();
    format!("HOG='{mib} {ms}' {} --exact memory::hog > log.txt && rm log.txt", program.display())
}

/// What a machine without swap has where it is not the memory that is tried: more than any stage here.
const ROOMY_BYTES: usize = 4 << 30;

/// One machine, whose tests follow each other.
static MACHINE: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A swap file that is gone when it is dropped.
struct Swap {
    file: tempfile::NamedTempFile,
    is_on: bool,
    _machine: MutexGuard<'static, ()>,
}

impl Swap {
    fn on() -> Self {
        let machine = machine();
        // Not in a temporary directory, which may be memory itself.
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let size = SWAP_BYTES.to_string();
        let is_on = does("fallocate", &["-l", &size, &path])
            && does("mkswap", &["-q", &path])
            && does("swapon", &[&path]);
        if !is_on {
            say("no swap can be added here");
        }
        Self { file, is_on, _machine: machine }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if self.is_on {
            does("swapoff", &[self.file.path().to_str().unwrap()]);
        }
    }
}

fn does(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// The attempts of a stage in a report.
fn attempts(report: &Value, stage: &str) -> Vec<Value> {
    let stages = report["stages"].as_array().unwrap();
    let found = stages.iter().find(|row| row["name"] == stage);
    found.unwrap_or_else(|| panic!("{report}"))["attempts"].as_array().unwrap().clone()
}

/// `smelt run` where nothing can be swapped, so that a limit is the end whatever swap there is around it;
/// where no such machine can be made, as it is.
fn run_without_swap(world: &World, code: i32) -> Value {
    let arguments = ["run", "p.toml", "--json"];
    let machine = Machine::without_swap(ROOMY_BYTES);
    let mut command = match &machine {
        Some(machine) => machine.smelt(world, &arguments),
        None => world.command(&arguments),
    };
    report_of(&mut command, code)
}

fn report_of(command: &mut Command, code: i32) -> Value {
    let ended = crate::world::ended(command);
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr))
}

/// Whether the kernel holds limits here; where it does not, samples do, and tell another story.
fn is_held_by_kernel(attempt: &Value) -> bool {
    match attempt["limit"].as_str().unwrap() {
        "kernel" => true,
        _ => {
            say("limits are held by sampling here");
            false
        }
    }
}

#[test]
fn a_stage_within_its_limit_ends_well() {
    let _swap = Swap::on();
    let script = hogs(300, 200);
    let world = World::of_commands(&[&format!("a::{script}")]);
    world.write("p.toml", &(world.read("p.toml") + "limits = { memory = \"512MiB\" }\n"));
    let attempt = &attempts(&world.run(&[]), "a")[0];
    assert_eq!((&attempt["outcome"], &attempt["oom_kills"]), (&"sealed".into(), &0.into()));
    assert!(attempt["held_peak_bytes"].as_u64().unwrap() > 290 * MIB as u64, "{attempt}");
}

/// Swap gives it what its limit does not; slowly, but it gets there, and nobody holds that against it.
#[test]
fn a_stage_that_thrashes_at_its_own_limit_ends_well() {
    let swap = Swap::on();
    if !swap.is_on {
        return;
    }
    let world = World::of_commands(&[&format!("a::{}", hogs(300, 1500))]);
    world.write("p.toml", &(world.read("p.toml") + "limits = { memory = \"200MiB\" }\n"));
    let attempt = &attempts(&world.run(&[]), "a")[0];
    if is_held_by_kernel(attempt) {
        assert_eq!(attempt["outcome"], "sealed", "{attempt}");
        assert!(attempt["swap_peak_bytes"].as_u64().unwrap() > 80 * MIB as u64, "{attempt}");
        assert!(attempt["peak_rss_bytes"].as_u64().unwrap() < 220 * MIB as u64, "{attempt}");
    }
}

/// The shell says 1; the kernel knows better.  The next attempt is given more, and ends well.
#[test]
fn an_out_of_memory_kill_is_seen_behind_an_exit_code_and_cured_by_a_step() {
    let _machine = machine();
    let world = World::of_commands(&[&format!("a::({}) || exit 1", hogs(1700, 0))]);
    let more = "limits = { memory = \"512MiB\" }\n\
                [stage.a.retry]\nattempts = 2\nescalate = [{ limits = { memory = \"2GiB\" } }]\n";
    world.write("p.toml", &(world.read("p.toml") + more));
    let attempts = attempts(&run_without_swap(&world, 0), "a");
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    if is_held_by_kernel(&attempts[0]) {
        assert_eq!(attempts[0]["class"], "oom-killed", "{attempts:?}");
        assert_eq!(attempts[0]["exit"], 1, "{attempts:?}");
        assert!(attempts[0]["oom_kills"].as_u64().unwrap() >= 1, "{attempts:?}");
        let message = attempts[0]["message"].as_str().unwrap();
        assert!(message.contains("512 MiB of limits.memory"), "{message}");
    }
    assert_eq!(attempts[1]["outcome"], "sealed", "{attempts:?}");
}

/// A program that does not mind the death of its child says that all is well.
#[test]
fn an_out_of_memory_kill_is_seen_behind_a_missing_output() {
    let _machine = machine();
    let world = World::of_commands(&[&format!("a::({}) || exit 0", hogs(300, 0))]);
    world.write("p.toml", &(world.read("p.toml") + "limits = { memory = \"100MiB\" }\n"));
    let attempt = &attempts(&run_without_swap(&world, 1), "a")[0];
    if is_held_by_kernel(attempt) {
        assert_eq!((&attempt["class"], &attempt["exit"]), (&"oom-killed".into(), &0.into()));
    }
}

/// A program that does not mind the death of its child leaves half an output and says that all is well;
/// one that says so minds it itself.
#[test]
fn what_is_left_after_an_out_of_memory_kill_is_not_sealed() {
    let _machine = machine();
    let world = World::of_commands(&[&format!("a::({}) || echo half > o", hogs(300, 0))]);
    let text = world.read("p.toml") + "limits = { memory = \"100MiB\" }\n";
    world.write("p.toml", &text);
    let report = run_without_swap(&world, 1);
    let attempt = &attempts(&report, "a")[0];
    if is_held_by_kernel(attempt) {
        assert_eq!((&attempt["class"], &attempt["exit"]), (&"oom-killed".into(), &0.into()));
        let message = attempt["message"].as_str().unwrap();
        assert!(message.contains("survives-kills = true"), "{message}");
        world.write("p.toml", &(text + "survives-kills = true\n"));
        let attempt = &attempts(&run_without_swap(&world, 0), "a")[0];
        assert_eq!(attempt["outcome"], "sealed", "{attempt}");
        assert!(attempt["oom_kills"].as_u64().unwrap() >= 1, "{attempt}");
    }
}

#[test]
fn a_kill_from_outside_is_no_out_of_memory_kill() {
    let world = World::of_commands(&["a::echo $$ > pid; mv pid ready; sleep 1000"]);
    let child = world.start(&["run", "p.toml"]);
    let find = || {
        let work = fs::read_dir(world.path("cache/work")).ok()?.flatten().next()?.path();
        let text = fs::read_to_string(work.join("a.1/ready")).ok()?;
        text.trim().parse::<i32>().ok()
    };
    assert!(until(|| find().is_some()));
    does("kill", &["-9", &find().unwrap().to_string()]);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let report = world.smelt(&["report", "--json"]);
    let attempt = &attempts(&serde_json::from_str(&report.stdout).unwrap(), "a")[0];
    assert_eq!(attempt["class"], "killed-externally", "{attempt}");
    assert_eq!(attempt["oom_kills"], 0, "{attempt}");
}

/// Two that do not fit together; with the very same order they would be one.
fn two_hogs(ms: u64) -> World {
    World::of_commands(&[&format!("a::{}", hogs(330, ms)), &format!("b::{}", hogs(330, ms + 1))])
}

#[test]
fn of_two_who_thrash_one_is_halted_until_the_other_is_done() {
    let swap = Swap::on();
    let Some(machine) = Machine::new(MEMORY_BYTES).filter(|_| swap.is_on) else { return };
    let world = two_hogs(12_000);
    let mut command = machine.smelt(&world, &["run", "p.toml", "--jobs", "2", "--json"]);
    let report = report_of(&mut command, 0);
    let parked = |stage| attempts(&report, stage)[0]["parked_s"].as_f64().unwrap();
    assert!(parked("a") + parked("b") > 1.0, "{report}");
    assert!(parked("a") == 0.0 || parked("b") == 0.0, "{report}");
    // What was learned keeps the second from starting beside the first.
    let forced = ["run", "p.toml", "--jobs", "2", "--json", "--force", "a", "--force", "b"];
    let report = report_of(&mut machine.smelt(&world, &forced), 0);
    let waited = |stage| attempts(&report, stage)[0]["waited_s"].as_f64().unwrap();
    assert!(waited("a") + waited("b") > 5.0, "{report}");
}

/// Whoever is halted when its supervisor is killed does not stay halted for ever.
#[test]
fn a_halted_tree_dies_with_its_supervisor() {
    let swap = Swap::on();
    let Some(machine) = Machine::new(MEMORY_BYTES).filter(|_| swap.is_on) else { return };
    let world = two_hogs(60_000);
    let mut command = machine.smelt(&world, &["run", "p.toml", "--jobs", "2"]);
    let log = fs::File::create(world.path("stderr")).unwrap();
    let mut child = command.stderr(log).spawn().unwrap();
    let halted = until(|| world.read("stderr").contains("is halted"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(halted, "{}", world.read("stderr"));
    world.assert_nothing_runs();
}

#[test]
fn what_cannot_fit_is_refused_with_what_would_help() {
    let _machine = machine();
    let Some(machine) = Machine::without_swap(MEMORY_BYTES) else { return };
    let world = World::of_commands(&[&format!("a::{}", hogs(600, 300))]);
    world.run(&[]);
    let forced = ["run", "p.toml", "--force", "a"];
    let ended = crate::world::ended(&mut machine.smelt(&world, &forced));
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("more swap on a disk"), "{}", ended.stderr);
    let text = world.read("p.toml").replace("name = \"test\"", "name = \"test\"\n# edited");
    world.write("p.toml", &text);
    let plan = crate::world::ended(&mut machine.smelt(&world, &["plan", "p.toml", "--json"]));
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    assert_eq!(plan["stages"][0]["status"], "hit", "nothing is needed for what is built");
}

/// Nobody has touched it yet, and no stage may either, until the server is gone.
#[test]
fn a_stage_leaves_a_server_the_memory_that_it_may_take() {
    let _machine = machine();
    let Some(machine) = Machine::without_swap(MEMORY_BYTES) else { return };
    let world = World::of_commands(&["a::echo x > o"]);
    world.write("p.toml", &(world.read("p.toml") + "limits = { memory = \"300MiB\" }\n"));
    let flags = Server::arguments(&["p.toml"], &["--kv-memory", "1MiB"]);
    let mut serve = BUILT.command(&flags);
    let mut server = Server::started(serve.env("SMELT_TOKENS", world.path("tokens")));
    assert!(until(|| server.get("/health").status == 200));
    let log = fs::File::create(world.path("stderr")).unwrap();
    let mut run = machine.smelt(&world, &["run", "p.toml"]).stderr(log).spawn().unwrap();
    let name = format!("http://{} (pid {}) may take", server.addr, server.child.id());
    let told = until(|| world.read("stderr").contains(&name));
    assert!(told, "{}", world.read("stderr"));
    let seen = world.smelt(&["runs"]).stdout;
    assert!(seen.contains("May hold") && seen.contains(&server.addr), "{seen}");
    let seen: Value = serde_json::from_str(&world.smelt(&["runs", "--json"]).stdout).unwrap();
    let of = |name: &str| seen["servers"][0][name].as_u64().unwrap();
    assert!(of("holds_bytes") > 0 && of("holds_max_bytes") > of("holds_bytes"), "{seen}");
    assert!(!world.path("cache/out").read_dir().unwrap().any(|_| true));
    // Killed, so it gives nothing back itself.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(run.wait().unwrap().success(), "{}", world.read("stderr"));
    let seen: Value = serde_json::from_str(&world.smelt(&["runs", "--json"]).stdout).unwrap();
    assert_eq!(seen["servers"], json!([]));
}

/// Processes that leave their group, their session and their parent, hundreds at once.
#[test]
fn a_fork_storm_ends_with_its_stage() {
    let script = "while :; do (setsid sleep 1000 &); done";
    let world =
        World::new(&(commands(&[&format!("a::{script}")]) + "limits = { timeout = \"2s\" }\n"));
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    world.assert_nothing_runs();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let attempt = &attempts(&report, "a")[0];
    assert_eq!(attempt["class"], "timed-out", "{attempt}");
    assert!(attempt["wall_s"].as_f64().unwrap() < 30.0, "{attempt}");
    thread::sleep(Duration::from_millis(50));
    world.assert_nothing_runs();
}
