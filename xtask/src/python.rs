//! Makes Python environments that hold exactly what a requirements file pins.
//!
//! They lie under the target directory and are made again when the file changes.  Nothing is
//! skipped: without Python or its packages the check that asked fails and says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{debian, target};

/// pip compiles nothing to bytecode: Python compiles what is imported, which is little of what is installed.
const PLAIN: (&str, &str) = ("PIP_COMPILE", "0");

/// The Python of the environment `name`, which has what the file `requirements` pins.
pub(crate) fn environment(name: &str, requirements: &Path) -> Result<PathBuf> {
    environment_built(name, requirements, &[])
}

/// As `environment`, under variables that pip, or what it compiles here, is told by.
pub(crate) fn environment_built(
    name: &str,
    requirements: &Path,
    variables: &[(&str, &str)],
) -> Result<PathBuf> {
    let pinned =
        fs::read_to_string(requirements).with_context(|| requirements.display().to_string())?;
    let wanted = mark_of(&pinned, variables);
    let dir = target().join("python").join(name);
    let (python, mark) = (dir.join("bin/python"), dir.join("requirements.txt"));
    if fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    eprintln!("xtask: installing {} into {}", requirements.display(), dir.display());
    // Debian packages venv apart from python3.
    debian::need("python3-venv", || make(&dir))?;
    let installed = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(requirements)
        .envs(variables.iter().copied().chain([PLAIN]))
        .status()
        .context("cannot start the new environment's python")?;
    if !installed.success() {
        bail!("pip could not install {}", requirements.display());
    }
    // Last, so that an environment half made is made again.
    fs::write(mark, wanted)?;
    Ok(python)
}

/// What an environment is made of: other variables compile other programs.
fn mark_of(pinned: &str, variables: &[(&str, &str)]) -> String {
    let told = variables.iter().map(|(name, value)| format!("# {name}={value}\n"));
    told.chain([pinned.to_owned()]).collect()
}

fn make(dir: &Path) -> bool {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(dir).status().is_ok_and(|status| status.success())
}
