//! Runs every check, in the order that fails fastest, and says how long each took.
//!
//! What mostly waits, for servers, their clients and a browser, runs beside the checks behind the tests, in a process whose output
//! is kept until it ends: each of the two leaves a core to the other for half of the time.  What is executed instruction by
//! instruction for other machines, guests and long sweeps are those of `soak`.

use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::{
    bench, conformance, cross, fetch, fleet, onnxruntime, operation, root, target, tidy,
    toolchains, unchanged, walks,
};

/// Steps that need nothing but cargo.
const LINTS: [(&str, &[&str]); 3] = [
    ("format", &["fmt", "--all", "--check"]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
    // A smelt that only serves.  As features of all else stay as they are, nothing but the command is checked again.
    (
        "serving",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--no-default-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    ),
];

/// Steps that need what [`fetch::for_tests`] brings: all tests, without examples, which the lints have checked, and tests in
/// documentation, of which `tidy` allows none.
const TESTS: [(&str, &[&str]); 2] = [
    ("compiling", &["test", "--workspace", "--tests", "--locked", "--no-run"]),
    ("tests", &["test", "--workspace", "--tests", "--locked", "--no-fail-fast"]),
];

/// With examples, features are those of the lints, and what they checked is not checked again.
const DOCS: [(&str, &[&str]); 1] =
    [("docs", &["doc", "--workspace", "--lib", "--bins", "--examples", "--no-deps", "--locked"])];

/// What every step of our own depends on.
const INPUTS: [&str; 8] =
    ["Cargo.lock", "Cargo.toml", ".cargo", "crates", "tools", "xtask", "pipelines", "tests/data"];

/// A check that is our own: its name, what it reads beside [`INPUTS`], and how it runs, or says that it cannot.
type CheckFn = (&'static str, &'static [&'static str], fn() -> Result<bool>);

/// Checks of our own behind the tests.
const OWN: [CheckFn; 5] = [
    ("toolchains", &[], || ran(toolchains::quick())),
    ("onnxruntime", &[], || ran(onnxruntime::run())),
    ("bench cpu", &[], || ran(bench::cpu::run(&["--smoke"]))),
    ("operation", &["docs"], || ran(operation::run())),
    ("walks", &["README.md", "docs"], || ran(walks::run(walks::Walker::Ci))),
];

/// Those beside them.
const BESIDE: [CheckFn; 3] = [
    ("fleet", &[], fleet::run_in_ci),
    ("conformance", &[], || ran(conformance::run())),
    ("bench serve", &[], || ran(bench::serve::run(&["--smoke"]))),
];

/// The program that runs, which the tests have built anew at its place.
const ITSELF: &str = "/proc/self/exe";

/// What a step took.
struct Took {
    name: &'static str,
    /// Nothing where it was not run.
    times: Option<Times>,
}

/// Seconds of the clock, and of processors: far fewer than all cores have is time that is waited for.
struct Times {
    wall_s: u64,
    cpu_s: u64,
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.times {
            Some(Times { wall_s, cpu_s }) => {
                write!(f, "{:12} {wall_s:4} s, {cpu_s:4} of processors", self.name)
            }
            None => write!(f, "{:12} not run", self.name),
        }
    }
}

/// Fails at the first step that fails.  Long steps that held with the same inputs are left out, but for `all`.
pub(crate) fn run(all: bool) -> Result<()> {
    let begin = Instant::now();
    if all {
        unchanged::forget()?;
    }
    let mut times = thread::scope(|scope| {
        let coming = scope.spawn(fetch::for_tests);
        let mut times = steps(&LINTS, &[])?;
        times.push(step("boards", || ran(cross::lint()))?);
        let mut variables = coming.join().expect("what is fetched does not panic")?;
        variables.push(("RUST_TEST_THREADS", test_threads().to_string()));
        // It comes while the tests are compiled, and is there before a check asks for it again.
        scope.spawn(fetch::for_checks);
        times.extend(steps(&TESTS, &variables)?);
        anyhow::Ok(times)
    })?;
    let other = Beside::start()?;
    let own = own();
    // Whatever came of them: what the others found is told as well, and none is left behind.
    let others = other.end();
    times.extend(own?);
    let others = others?;
    for took in times {
        println!("{took}");
    }
    println!("{others}{:12} {:4} s", "all", begin.elapsed().as_secs());
    Ok(())
}

/// The checks behind the tests.
fn own() -> Result<Vec<Took>> {
    let mut times = steps(&DOCS, &[])?;
    times.push(step("tidy", || ran(tidy::run()))?);
    times.extend(checks(&OWN)?);
    Ok(times)
}

/// The checks beside, in the process that [`Beside`] starts.
pub(crate) fn beside() -> Result<()> {
    checks(&BESIDE).map(drop)
}

/// Runs checks of our own, one after the other.
fn checks(all: &[CheckFn]) -> Result<Vec<Took>> {
    let one = |(name, own, check): &CheckFn| {
        let inputs = [&INPUTS, *own].concat();
        step(name, || unchanged::or_run(name, &inputs, *check))
    };
    all.iter().map(one).collect()
}

/// The process of the checks beside.
struct Beside {
    process: Child,
    log: PathBuf,
}

impl Beside {
    fn start() -> Result<Self> {
        let log = target().join("ci-beside.log");
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut process = Command::new(ITSELF);
        process.args(["ci", "--beside"]).stderr(file.try_clone()?).stdout(file);
        println!("\nbeside what follows: {}", BESIDE.map(|(name, ..)| name).join(", "));
        Ok(Self { process: process.spawn().context("cannot start xtask")?, log })
    }

    /// Waits for it and prints what it said; the lines with what its steps took.
    fn end(mut self) -> Result<String> {
        let status = self.process.wait()?;
        let said = fs::read_to_string(&self.log).with_context(|| self.log.display().to_string())?;
        println!("{said}");
        ensure!(status.success(), "a check beside the others failed: {status}");
        Ok(times_in(&said))
    }
}

/// Of what the checks beside said the lines with their times.
fn times_in(said: &str) -> String {
    let starts = BESIDE.map(|(name, ..)| format!("{name:12} "));
    let is_time = |line: &&str| starts.iter().any(|start| line.starts_with(start));
    said.lines().filter(is_time).map(|line| format!("{line}\n")).collect()
}

/// Two threads of tests for each processor: half of the tests' time is waiting, for disks and for each other.
fn test_threads() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    2 * processors
}

/// Runs steps of cargo's, one after the other.
fn steps(all: &[(&'static str, &[&str])], variables: &[(&str, String)]) -> Result<Vec<Took>> {
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let one = |name, arguments: &[&str]| step(name, || ran(cargo(arguments, &variables)));
    all.iter().map(|(name, arguments)| one(*name, arguments)).collect()
}

/// Runs a step, which says whether it did something, and tells what it took.
fn step(name: &'static str, run: impl FnOnce() -> Result<bool>) -> Result<Took> {
    let (begin, cpu_begin_s) = (Instant::now(), children_cpu_s()?);
    let has_run = run().with_context(|| format!("{name} failed"))?;
    let cpu_s = children_cpu_s()?.saturating_sub(cpu_begin_s);
    let times = Times { wall_s: begin.elapsed().as_secs(), cpu_s };
    let took = Took { name, times: has_run.then_some(times) };
    println!("\n{took}");
    Ok(took)
}

/// Seconds of processors that programs took which ended, and theirs; guests and servers that were left alone count for nothing.
pub(crate) fn children_cpu_s() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let seconds = |time: TimeVal| u64::try_from(time.tv_sec()).unwrap_or(0);
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn ran(step: Result<()>) -> Result<bool> {
    step.map(|()| true)
}

/// Runs cargo in the root, with these variables besides our own.
pub(crate) fn cargo(arguments: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    println!("\n$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .env("RUSTDOCFLAGS", "-D warnings")
        .envs(variables.iter().copied())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steps_depend_on_is_there() {
        for (_, own, _) in OWN.iter().chain(&BESIDE) {
            unchanged::digest(&[&INPUTS, *own].concat()).unwrap();
        }
    }

    #[test]
    fn times_of_checks_beside_are_found_in_what_they_say() {
        let fleet = Took { name: "fleet", times: Some(Times { wall_s: 116, cpu_s: 80 }) };
        let said = format!("$ cargo test\nfleet: two boards\n\n{fleet}\nx\n");
        assert_eq!(times_in(&said), format!("{fleet}\n"));
    }
}
