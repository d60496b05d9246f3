//! Drives the generator of shapes and the script that trains on it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{python, root, target};

/// What turns a stream into a model.
const SCRIPT: &str = "crates/smelt-shapes/train.py";
/// What it needs of PyPI.
const REQUIREMENTS: &str = "crates/smelt-shapes/requirements.txt";

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let need = |dir: &str, name: &str, make: &str| {
        let is_there = Path::new(dir).join(name).exists();
        ensure!(is_there, "{dir} has no {name}; make it: {make} {dir}");
        Ok(())
    };
    match arguments {
        ["generate", dir, flags @ ..] => generator(&[&["generate", "--out", dir], flags].concat()),
        ["train", dir, flags @ ..] => {
            let files = "cargo run --release -p smelt-shapes -- files --decoder qwen2 --out";
            need(dir, "config.json", files)?;
            script(dir, flags)
        }
        ["eval", dir, flags @ ..] => {
            need(dir, "model.safetensors", "cargo xtask shapes train")?;
            script(dir, &[&["--score-only"], flags].concat())
        }
        _ => bail!("say shapes train DIR, shapes eval DIR or shapes generate DIR"),
    }
}

fn generator(arguments: &[&str]) -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--release", "--locked", "-p", "smelt-shapes", "--"]).args(arguments);
    finish(&mut cargo)
}

/// Runs the script on what the generator streams for the model in `dir`.
fn script(dir: &str, flags: &[&str]) -> Result<()> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "-p", "smelt-shapes"]).current_dir(root());
    finish(&mut build)?;
    let binary = target().join("release/smelt-shapes");
    let stream = format!("'{}' stream --model '{dir}'", binary.display());
    let python = python::environment("shapes", &root().join(REQUIREMENTS))?;
    let mut python = Command::new(python);
    python.arg(root().join(SCRIPT)).args(["--model", dir, "--stream", &stream]).args(flags);
    finish(&mut python)
}

fn finish(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} failed: {status}");
    Ok(())
}
