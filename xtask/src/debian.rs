//! Installs what a check needs of the system, where that is Debian and we may.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

/// Sees to it that `present` runs well, installing `package` if it does not.
pub(crate) fn need(package: &str, present: impl Fn() -> bool) -> Result<()> {
    let apt = |arguments: &[&str]| succeeds(Command::new("apt-get").args(arguments));
    let has = present()
        || apt(&["update", "-qq"]) && apt(&["install", "-y", "-qq", package]) && present();
    ensure!(
        has,
        "this needs {package}, and apt-get could not install it; install it and run again"
    );
    Ok(())
}

/// Whether `program --version` (or what the program has instead) ends well.
pub(crate) fn runs(program: &str, version: &str) -> bool {
    succeeds(Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
