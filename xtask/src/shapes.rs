//! Drives the generator of shapes and the scripts that train on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{python, root, target};

/// What turns a stream into a model.
const SCRIPT: &str = "tools/smelt-shapes/train.py";
/// What turns tiles and questions into a CLIP.
const CLIP_SCRIPT: &str = "tools/smelt-shapes/train_clip.py";
/// What both need of PyPI.
const REQUIREMENTS: &str = "tools/smelt-shapes/requirements.txt";

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
            model_script(dir, flags)
        }
        ["eval", dir, flags @ ..] => {
            need(dir, "model.safetensors", "cargo xtask shapes train")?;
            model_script(dir, &[&["--score-only"], flags].concat())
        }
        ["train-clip", dir, flags @ ..] => {
            let tiles = format!("'{}' tiles", built_generator()?.display());
            script(CLIP_SCRIPT, &[&["--out", dir, "--tiles", &tiles], flags].concat())
        }
        _ => bail!(
            "say shapes train DIR, shapes eval DIR, shapes train-clip DIR or shapes generate DIR"
        ),
    }
}

fn generator(arguments: &[&str]) -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--release", "--locked", "-p", "smelt-shapes", "--"]).args(arguments);
    finish(&mut cargo)
}

/// Runs the model's script on what the generator streams for the model in `dir`.
fn model_script(dir: &str, flags: &[&str]) -> Result<()> {
    let stream = format!("'{}' stream --model '{dir}'", built_generator()?.display());
    script(SCRIPT, &[&["--model", dir, "--stream", &stream], flags].concat())
}

fn built_generator() -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "-p", "smelt-shapes"]).current_dir(root());
    finish(&mut build)?;
    Ok(target().join("release/smelt-shapes"))
}

fn script(path: &str, arguments: &[&str]) -> Result<()> {
    let python = python::environment("shapes", &root().join(REQUIREMENTS))?;
    let mut python = Command::new(python);
    python.arg(root().join(path)).args(arguments);
    finish(&mut python)
}

fn finish(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} failed: {status}");
    Ok(())
}
