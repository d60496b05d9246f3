//! Installs what a check needs of the system, where that is Debian and we may.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Sees to it that `present` runs well, installing `package` if it does not.
pub(crate) fn need(package: &str, present: impl Fn() -> bool) -> Result<()> {
    need_with(&[], package, present)
}

/// As `need`, without the packages that `package` merely recommends.
pub(crate) fn need_alone(package: &str, present: impl Fn() -> bool) -> Result<()> {
    need_with(&["--no-install-recommends"], package, present)
}

fn need_with(flags: &[&str], package: &str, present: impl Fn() -> bool) -> Result<()> {
    let install = |flags: &[&str]| {
        let mut apt = Command::new("apt-get");
        // Nobody is there to be asked.
        apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        succeeds(apt.args(["install", "-y", "-qq"]).args(flags).arg(package))
    };
    let has = present() || update() && install(flags) && present();
    ensure!(
        has,
        "this needs {package}, and apt-get could not install it; install it and run again"
    );
    Ok(())
}

/// The newest package that `package` stands for: the first whose name begins with `prefix` among
/// those it depends on.
pub(crate) fn dependency(package: &str, prefix: &str) -> Result<String> {
    let find = || {
        let output = Command::new("apt-cache").args(["depends", package]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        names.find(|name| name.starts_with(prefix)).map(str::to_owned)
    };
    let found = find().or_else(|| update().then(find).flatten());
    found.with_context(|| format!("this needs {package}, and apt-cache does not know it"))
}

/// Unpacks a package into a folder under `folder`, without installing it; says which folder.
pub(crate) fn unpack(package: &str, folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join(package);
    if unpacked.exists() {
        return Ok(unpacked);
    }
    let draft = folder.join(format!("{package}.new"));
    if draft.exists() {
        fs::remove_dir_all(&draft).with_context(|| draft.display().to_string())?;
    }
    fs::create_dir_all(&draft).with_context(|| draft.display().to_string())?;
    let download = || {
        let mut apt = Command::new("apt-get");
        succeeds(apt.args(["download", "-qq", package]).current_dir(&draft).stderr(Stdio::null()))
    };
    let is_here = download() || update() && download();
    ensure!(is_here, "this needs {package}, and apt-get could not download it");
    for entry in fs::read_dir(&draft)? {
        let deb = entry?.path();
        let mut extract = Command::new("dpkg-deb");
        ensure!(succeeds(extract.arg("-x").arg(&deb).arg(&draft)), "{extract:?} failed");
        fs::remove_file(&deb)?;
    }
    fs::rename(&draft, &unpacked).with_context(|| unpacked.display().to_string())?;
    Ok(unpacked)
}

/// Where a program lies that was asked for with `need`.
pub(crate) fn path_of(program: &str) -> Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path| path.is_file()).with_context(|| format!("{program} is in no folder of PATH"))
}

/// Whether `program --version` (or what the program has instead) ends well.
pub(crate) fn runs(program: &str, version: &str) -> bool {
    succeeds(Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn update() -> bool {
    succeeds(Command::new("apt-get").args(["update", "-qq"]))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
