//! Runs fuzz targets, each for a minute.
//!
//! Fuzzing needs a nightly compiler and cargo-fuzz; both are installed where they are not.  What
//! the fuzzer finds by the way stays under `target`; the committed corpus is only read.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::ci::cargo;
use crate::{nightly, root, target};

/// The version of cargo-fuzz: the newest when this was written.
const CARGO_FUZZ: &str = "0.13.2";

/// How long each target runs.
const FUZZ_SECONDS: u32 = 60;

/// Longest input tried.  Headers and graphs worth trying are short; limits have tests of their own.
const INPUT_BYTES_MAX: u32 = 16 << 10;

/// A reader that takes more memory than this for an input that small is a finding.
const MEMORY_MIB_MAX: u32 = 300;

/// `cargo xtask fuzz [TARGET]…`: the targets named, or all.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    install()?;
    let mut known: Vec<String> = Vec::new();
    for entry in fs::read_dir(root().join("xtask/fuzz/corpus"))? {
        known.push(entry?.file_name().to_string_lossy().into_owned());
    }
    known.sort();
    if let Some(unknown) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
        bail!("no fuzz target {unknown}; there are {}", known.join(", "));
    }
    for name in known.iter().filter(|name| names.is_empty() || names.contains(&name.as_str())) {
        fuzz_one(name).with_context(|| format!("fuzz target {name}"))?;
    }
    Ok(())
}

fn install() -> Result<()> {
    let runs = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    nightly::need(&[])?;
    if !runs("cargo", &["fuzz", "--version"]) {
        cargo(&["install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ], &[])?;
    }
    Ok(())
}

fn fuzz_one(name: &str) -> Result<()> {
    let fuzz = root().join("xtask/fuzz");
    let found = target().join("fuzz-corpus").join(name);
    fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
    println!("\n$ cargo fuzz run {name}");
    // The sanitizers find what unsafe code does.  Readers have none, and `sanitize` runs the
    // engine's; without them the memory that is measured is the readers' own.
    let status = nightly::cargo()
        .args(["fuzz", "run", "--sanitizer", "none", "--fuzz-dir"])
        .arg(&fuzz)
        .arg("--target-dir")
        .arg(target().join("fuzz"))
        .arg(name)
        .args([&found, &fuzz.join("corpus").join(name)])
        .arg("--")
        .arg(format!("-max_total_time={FUZZ_SECONDS}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .args(["-timeout=10", "-print_final_stats=1"])
        .status()
        .context("cannot start cargo fuzz")?;
    if !status.success() {
        bail!(
            "a finding; it is under xtask/fuzz/artifacts: add it to the corpus, then mend the reader"
        );
    }
    Ok(())
}
