//! Runs the sweeps of `ci` without their bounds, fails disks at every call, checks stores beside builds ten thousand times, shows pictures of all shapes to models of true size, sends a server
//! ten thousand requests, asks what llama.cpp is asked, runs the engine's tests under sanitizers, exhausts contiguous
//! memory, attacks stages under another kernel, cuts power, and runs every fuzz target for a minute.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::ci::cargo;
use crate::{cma, conformance, fuzz, llama, other_kernel, power_cuts, sanitize};

/// What the tests with a bound look for.
const SOAK: (&str, &str) = ("SMELT_SOAK", "1");

const SWEEPS: [(&str, &[&str]); 8] = [
    ("schedules", &["test", "--locked", "-p", "smelt-plan", "any_world", "--", "--nocapture"]),
    ("store", &["test", "--locked", "-p", "smelt-store", "--", "--nocapture"]),
    ("whole runs", &["test", "--locked", "-p", "smelt-exec", "every_world", "--", "--nocapture"]),
    ("prompts", &["test", "--locked", "-p", "smelt-runtime", "--test", "shapes"]),
    (
        "photographs",
        &[
            "test",
            "--locked",
            "--release",
            "-p",
            "smelt-runtime",
            "--test",
            "photographs",
            "--",
            "--ignored",
        ],
    ),
    ("damaged engines", &["test", "--locked", "-p", "smelt", "--test", "verify"]),
    ("failing disks", &["test", "--locked", "-p", "smelt", "--test", "failing_disk"]),
    ("checks beside builds", &["test", "--locked", "-p", "smelt", "--test", "stress", "checks"]),
];

pub(crate) fn run() -> Result<()> {
    for (name, arguments) in SWEEPS {
        let begin = Instant::now();
        cargo(arguments, &[SOAK]).with_context(|| format!("{name} failed"))?;
        println!("soak: {name} held, {} s", begin.elapsed().as_secs());
    }
    conformance::soak()?;
    llama::run()?;
    sanitize::run()?;
    cma::run(&[])?;
    other_kernel::run(&[])?;
    power_cuts::run(power_cuts::SOAK)?;
    fuzz::run(&[])
}
