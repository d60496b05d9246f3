//! Puts into one folder what a machine with a GPU needs to try the CUDA back end: test programs, engines, a script.
//!
//! The folder needs no network there, no compiler and no CUDA but the driver: engines carry their kernels, and the script
//! is plain Python.  What a card has to hold is in the tests; here they are found, made small and counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{root, target};

/// Most that the folder may weigh: what machines with GPUs are lent with lets little more through.
const BYTES_MAX: u64 = 60_000_000;
/// Test programs: how cargo is told of each, and what it is called in the folder.
const PROGRAMS: [(&[&str], &str); 2] = [
    (&["-p", "smelt-cuda", "--lib"], "kernels"),
    (&["-p", "smelt-engine-build", "--test", "smelt-engine-build-integration"], "engines"),
];
/// The test that writes engines for cards into the folder that a variable names.
const MAKES_ENGINES: [&str; 4] =
    ["--exact", "cuda::card::engines_for_cards_are_written", "--ignored", "--nocapture"];
/// The test that keeps kernels for cards in the folder that a variable names.
const KEEPS_KERNELS: [&str; 3] =
    ["--exact", "kernels::on_a_card::kernels_for_cards_are_kept", "--ignored"];
const KERNELS_VARIABLE: &str = "SMELT_KEPT_KERNELS";
const ENGINES_VARIABLE: &str = "SMELT_CUDA_ENGINES";
/// What is told to whoever opens the folder.
const SCRIPT: &str = include_str!("cuda/run.py");

/// `cargo xtask cuda [FOLDER]`: makes the folder anew, `target/cuda` where none is named.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let folder = match arguments {
        [] => target().join("cuda"),
        [folder] => PathBuf::from(folder),
        _ => anyhow::bail!("cuda takes one folder"),
    };
    clear(&folder)?;
    for (how, name) in PROGRAMS {
        let program = build(how)?;
        strip(&program, &folder.join("bin").join(name))?;
    }
    make(&folder, "kernels", &KEEPS_KERNELS, KERNELS_VARIABLE, "kernels")?;
    make(&folder, "engines", &MAKES_ENGINES, ENGINES_VARIABLE, "engines")?;
    fs::write(folder.join("run.py"), SCRIPT)?;
    let bytes = weight(&folder)?;
    ensure!(bytes <= BYTES_MAX, "{} weighs {bytes} bytes, more than {BYTES_MAX}", folder.display());
    println!("{}: {bytes} bytes; on a machine with a GPU: python3 run.py", folder.display());
    Ok(())
}

/// Removes what an earlier run left there, but no folder that is something else.
fn clear(folder: &Path) -> Result<()> {
    let is_ours = folder.join("run.py").exists();
    let is_empty = fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    ensure!(is_ours || is_empty, "{} holds something else; name another folder", folder.display());
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder.join("bin")).with_context(|| folder.display().to_string())
}

/// Builds a test program; where it is.
fn build(how: &[&str]) -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--no-run", "--locked", "--message-format", "json"]).args(how);
    cargo.current_dir(root()).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{cargo:?} ended with {}", output.status);
    let lines = str::from_utf8(&output.stdout)?.lines();
    let found = lines.filter_map(executable).next_back();
    found.with_context(|| format!("{cargo:?} names no program"))
}

/// The program that a line of cargo's tells of.
fn executable(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    message["executable"].as_str().map(PathBuf::from)
}

/// Copies a program without its symbols, which are most of it.
fn strip(program: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(to).arg(program);
    let status = strip.status().context("cannot start strip; install binutils")?;
    ensure!(status.success(), "{strip:?} ended with {status}");
    Ok(())
}

/// Has a test of a program in the folder fill the place there that `variable` names.
fn make(folder: &Path, program: &str, test: &[&str], variable: &str, place: &str) -> Result<()> {
    let made = folder.join(place);
    fs::create_dir_all(&made)?;
    let mut program = Command::new(folder.join("bin").join(program));
    program.args(test).env(variable, &made).current_dir(root());
    program.env("SMELT_NVRTC", crate::nvrtc::libraries()?);
    let status = program.status().context("cannot start the tests")?;
    ensure!(status.success(), "no {place} for cards: {program:?} ended with {status}");
    let count = fs::read_dir(&made).map_or(0, Iterator::count);
    ensure!(count > 0, "{} holds no {place}", made.display());
    Ok(())
}

/// Bytes of all files below a folder.
fn weight(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let facts = entry.metadata()?;
        bytes += if facts.is_dir() { weight(&entry.path())? } else { facts.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","executable":"/target/debug/deps/a-1"}"#;
        assert_eq!(executable(line), Some(PathBuf::from("/target/debug/deps/a-1")));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable("no message"), None);
    }
}
