//! Runs the exported golden graphs in onnxruntime, in a Python environment made for it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tidy::build_smelt;
use crate::{python, root, target};

/// Exports every golden checkpoint and compares onnxruntime's outputs with the golden ones.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask onnxruntime");
    let python = python::environment("onnxruntime", &folder().join("requirements.txt"))?;
    let smelt = build_smelt()?;
    let work = target().join("onnxruntime/graphs");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    let status = Command::new(python)
        .arg(folder().join("check.py"))
        .arg(smelt)
        .arg(root().join("tests/data/golden"))
        .arg(&work)
        .status()
        .context("cannot start python")?;
    if !status.success() {
        bail!("an exported graph differs from its golden vectors");
    }
    Ok(())
}

fn folder() -> PathBuf {
    root().join("xtask/onnxruntime")
}
