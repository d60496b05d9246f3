//! Runs the exported golden graphs in onnxruntime, in a Python environment made for it.
//!
//! The environment lies under the target directory and is made again when the pinned requirements
//! change.  Nothing is skipped: without Python or its packages the check fails and says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tidy::build_smelt;
use crate::{root, target};

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

fn folder() -> PathBuf {
    root().join("xtask/onnxruntime")
}

/// The Python of an environment that has what `requirements.txt` pins.
fn environment() -> Result<PathBuf> {
    let wanted = fs::read_to_string(folder().join("requirements.txt"))?;
    let dir = target().join("onnxruntime/venv");
    let (python, mark) = (dir.join("bin/python"), dir.join("requirements.txt"));
    if fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    make(&dir)?;
    let requirements = folder().join("requirements.txt");
    let installed = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&requirements)
        .status()
        .context("cannot start the new environment's python")?;
    if !installed.success() {
        bail!("pip could not install {}; the check needs it", requirements.display());
    }
    // Last, so that an environment half made is made again.
    fs::write(mark, wanted)?;
    Ok(python)
}

/// Makes an environment with python3's venv, which Debian packages apart.
fn make(dir: &Path) -> Result<()> {
    let attempt = || {
        let mut command = Command::new("python3");
        command.args(["-m", "venv"]).arg(dir).status().is_ok_and(|status| status.success())
    };
    let install = |arguments: &[&str]| {
        Command::new("apt-get").args(arguments).status().is_ok_and(|status| status.success())
    };
    let made = attempt()
        || (install(&["update", "-qq"])
            && install(&["install", "-y", "-qq", "python3-venv"])
            && attempt());
    if !made {
        bail!(
            "onnxruntime needs python3 with venv, and apt-get could not install it; \
             install it and run again"
        );
    }
    Ok(())
}
