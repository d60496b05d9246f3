//! Opens with transformers what smelt writes of models that see for other tools, in a Python environment made for it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tidy::build_smelt;
use crate::{python, root, target};

/// Fails if a packed checkpoint is not opened, or answers otherwise than the weights that it stands for.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask transformers");
    let folder = root().join("xtask/transformers");
    let python = python::environment("transformers", &folder.join("requirements.txt"))?;
    let smelt = build_smelt()?;
    let work = target().join("transformers");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    let mut check = Command::new(python);
    check.arg(folder.join("check.py")).arg(smelt).arg(&work);
    let status = check.status().context("cannot start python")?;
    ensure!(status.success(), "transformers does not open what smelt wrote, or not as it should");
    Ok(())
}
