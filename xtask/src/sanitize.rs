//! Runs the engine's tests where no wrong use of memory goes unseen.
//!
//! Miri interprets what is plain Rust: it sees borrows that overlap, numbers that were never
//! written, races, and orders of threads that the machine would hardly take.  AddressSanitizer
//! watches all the rest, every kernel of this processor and whole engines.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{nightly, target};

/// Tests of what needs `unsafe`, as far as Miri can run them: it knows neither mapped files nor the
/// wide instructions of processors, so that `Isa::all` gives it the plain path alone.
const INTERPRETED: [&str; 9] = [
    "cast::",
    "graph::arena::",
    "kernels::full_attention::",
    "kernels::cached_attention::",
    "kernels::pool::",
    "kernels::product::",
    "kernels::striped::",
    "kernels::threads::",
    "llm::kv::",
];

/// Threads meet in other orders under every seed.
const SEEDS: &str = "-Zmiri-many-seeds=0..8";

/// The unit tests of the engine.
const INSIDE: [&str; 3] = ["-p", "smelt-engine", "--lib"];

/// The tests of built engines that compute by our own kernels.
const OUTSIDE: [&str; 9] = [
    "-p",
    "smelt-engine-build",
    "--test",
    "smelt-engine-build-integration",
    "--",
    "llm::",
    "golden::",
    "vision::",
    "packed::",
];

/// The processor that AddressSanitizer's tests are for: naming it keeps the sanitizer out of what
/// builds the tests.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// `cargo xtask sanitize`.
pub(crate) fn run() -> Result<()> {
    nightly::need(&["miri", "rust-src"])?;
    step("miri", &mut miri("", &INTERPRETED))?;
    step("miri, threads in other orders", &mut miri(SEEDS, &["kernels::pool::"]))?;
    step("address sanitizer", &mut address(&INSIDE))?;
    step("address sanitizer, from outside", &mut address(&OUTSIDE))
}

fn step(name: &str, cargo: &mut Command) -> Result<()> {
    println!("\n$ {cargo:?}");
    let begin = Instant::now();
    let status = cargo.status().context("cannot start cargo")?;
    ensure!(status.success(), "{name} found something, or could not run");
    println!("sanitize: {name} held, {} s", begin.elapsed().as_secs());
    Ok(())
}

/// The engine's tests whose names contain one of `tests`, interpreted.
fn miri(flags: &str, tests: &[&str]) -> Command {
    let mut cargo = nightly::cargo();
    cargo.args(["miri", "test", "--locked", "-p", "smelt-engine", "--lib", "--quiet", "--"]);
    cargo.args(tests);
    // Else it rounds functions of floats at random, and tests compare bits.
    cargo.env("MIRIFLAGS", format!("-Zmiri-deterministic-floats {flags}"));
    cargo.env("CARGO_TARGET_DIR", target().join("miri"));
    cargo
}

/// The engine's tests, every load and store of its own code watched.
fn address(tests: &[&str]) -> Command {
    let mut cargo = nightly::cargo();
    cargo.args(["test", "--locked", "--target", HOST]).args(tests);
    cargo.env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", target().join("asan"));
    cargo
}
