//! Makes folders of npm packages that hold exactly what a lock file pins.
//!
//! They lie under the target directory and are made again when the lock file changes.  Nothing is
//! skipped: without Node, npm or the packages the check that asked fails and says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{debian, target};

const LOCK: &str = "package-lock.json";

/// What npm reads besides.
const SETTINGS: [&str; 2] = ["package.json", ".npmrc"];

/// The folder `name` of packages, which has what the lock file in `from` pins.  Scripts find the packages when they
/// lie in it.
pub(crate) fn packages(name: &str, from: &Path) -> Result<PathBuf> {
    let lock = from.join(LOCK);
    let wanted = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    ensure!(
        !wanted.contains("\"resolved\""),
        "{} says where packages come from; install with the .npmrc beside it",
        lock.display()
    );
    debian::need_alone("nodejs", || debian::runs("node", "--version"))?;
    let dir = target().join("node").join(name);
    let mark = dir.join("installed.json");
    if fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(dir);
    }
    eprintln!("xtask: installing {} into {}", lock.display(), dir.display());
    debian::need_alone("npm", || debian::runs("npm", "--version"))?;
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    for file in SETTINGS.into_iter().chain([LOCK]) {
        fs::copy(from.join(file), dir.join(file)).with_context(|| file.to_owned())?;
    }
    install(&dir)?;
    // Last, so that a folder half made is made again.
    fs::write(mark, wanted)?;
    Ok(dir)
}

fn install(dir: &Path) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(dir);
    let installed = npm.status().context("cannot start npm")?;
    if !installed.success() {
        bail!("npm could not install {}", dir.join(LOCK).display());
    }
    Ok(())
}
