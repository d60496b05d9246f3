//! Runs the exported golden graphs in onnxruntime, in a Python environment made for it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::tidy::build_smelt;
use crate::{python, root, target};

/// Exports every golden checkpoint and compares onnxruntime's outputs with the golden ones.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask onnxruntime");
    let python = environment()?;
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

/// A Python that has onnxruntime.
fn environment() -> Result<PathBuf> {
    python::environment("onnxruntime", &folder().join("requirements.txt"))
}

/// The folder of that onnxruntime's shared library, for tests that load it.
pub(crate) fn library() -> Result<PathBuf> {
    let path =
        "import onnxruntime, pathlib; print(pathlib.Path(onnxruntime.__file__).parent / 'capi')";
    let output = Command::new(environment()?).args(["-c", path]).output();
    let output = output.context("cannot start python")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "onnxruntime does not load in Python: {said}");
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn folder() -> PathBuf {
    root().join("xtask/onnxruntime")
}
