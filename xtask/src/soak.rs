//! Runs the sweeps of `ci` without their bounds: follows README with the smelt that it builds, compiles every kernel, fails
//! disks at every call, checks stores beside builds ten thousand times, rounds a model by every method, kills at every system
//! call, shows pictures of all shapes to models and shipped pipelines of true size, has routers choose tiles, sends a server
//! ten thousand requests, asks what llama.cpp is asked, opens with transformers what is packed for it, runs the tests of the
//! engine as boards compute and under sanitizers, exhausts contiguous memory, attacks stages under another kernel, cuts power,
//! runs every fuzz target for a minute, and changes what decides to see that tests notice.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::ci::cargo;
use crate::{
    bench, cma, conformance, containers, cross, fuzz, llama, mutants, nvrtc, other_kernel,
    power_cuts, sanitize, transformers, walks,
};

/// What the tests with a bound look for.
const SOAK: (&str, &str) = ("SMELT_SOAK", "1");

/// The programs of integration tests.
const SMELT: &str = "smelt-integration";
const RUNTIME: &str = "smelt-runtime-integration";

const SWEEPS: [(&str, &[&str]); 11] = [
    ("schedules", &["test", "--locked", "-p", "smelt-plan", "any_world", "--", "--nocapture"]),
    ("store", &["test", "--locked", "-p", "smelt-store", "--", "--nocapture"]),
    ("whole runs", &["test", "--locked", "-p", "smelt-exec", "every_world", "--", "--nocapture"]),
    ("prompts", &["test", "--locked", "-p", "smelt-runtime", "--test", RUNTIME, "shapes::"]),
    (
        "photographs",
        &[
            "test",
            "--locked",
            "--release",
            "-p",
            "smelt-runtime",
            "--test",
            RUNTIME,
            "photographs::",
            "--",
            "--ignored",
        ],
    ),
    (
        "photographs of pipelines",
        &[
            "test",
            "--locked",
            "--release",
            "-p",
            "smelt",
            "--test",
            SMELT,
            "pipeline_photographs::",
            "--",
            "--ignored",
        ],
    ),
    ("ways to four bits", &["test", "--locked", "-p", "smelt", "--test", SMELT, "quantization::"]),
    ("kills", &["test", "--locked", "-p", "smelt", "--test", SMELT, "kill_points::"]),
    ("damaged engines", &["test", "--locked", "-p", "smelt", "--test", SMELT, "verify::"]),
    ("failing disks", &["test", "--locked", "-p", "smelt", "--test", SMELT, "failing_disk::"]),
    (
        "checks beside builds",
        &["test", "--locked", "-p", "smelt", "--test", SMELT, "stress::checks"],
    ),
];

/// A sweep of a command of its own.
type Own = fn() -> Result<()>;

const OWN: [(&str, Own); 14] = [
    ("walks", || walks::run(walks::Walker::Reader)),
    ("kernels", || nvrtc::compile_all(&[SOAK])),
    ("requests", conformance::soak),
    ("router", || bench::router::run(&["--smoke"])),
    ("llama", llama::run),
    ("transformers", transformers::run),
    ("aarch64", cross::test_engine),
    ("sanitize", sanitize::run),
    ("cma", cma::run),
    ("containers", || containers::run().map(drop)),
    ("other kernel", || other_kernel::run(&[])),
    ("power cuts", || power_cuts::run(power_cuts::SOAK)),
    ("fuzz", || fuzz::run(&[])),
    ("mutants", || mutants::run(&[])),
];

/// The sweeps of these names, in their order; all where none is named.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let known = SWEEPS.map(|(name, _)| name).into_iter().chain(OWN.map(|(name, _)| name));
    let known: Vec<_> = known.collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        bail!("no sweep is called {name}; there are: {}", known.join(", "));
    }
    let is_wanted = |name: &str| names.is_empty() || names.contains(&name);
    for (name, arguments) in SWEEPS.into_iter().filter(|(name, _)| is_wanted(name)) {
        timed(name, || cargo(arguments, &[SOAK]))?;
    }
    OWN.into_iter()
        .filter(|(name, _)| is_wanted(name))
        .try_for_each(|(name, sweep)| timed(name, sweep))
}

fn timed(name: &str, sweep: impl FnOnce() -> Result<()>) -> Result<()> {
    let begin = Instant::now();
    sweep().with_context(|| format!("{name} failed"))?;
    println!("soak: {name} held, {} s", begin.elapsed().as_secs());
    Ok(())
}
