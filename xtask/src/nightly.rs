//! Brings the nightly compiler and runs its cargo.
//!
//! Sanitizers, Miri and the fuzzer need it; nothing that is delivered is built with it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::root;

/// Sees to it that nightly is there with `components`.  What is there is not brought up to date.
pub(crate) fn need(components: &[&str]) -> Result<()> {
    if has(components) {
        return Ok(());
    }
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", "nightly", "--profile", "minimal"]);
    install.args(components.iter().flat_map(|component| ["--component", component]));
    if !install.status().is_ok_and(|status| status.success()) {
        let parts: String =
            components.iter().map(|component| format!(" and {component}")).collect();
        bail!("this needs nightly{parts}, and rustup could not install it");
    }
    Ok(())
}

fn has(components: &[&str]) -> bool {
    let mut list = Command::new("rustup");
    list.args(["component", "list", "--installed", "--toolchain", "nightly"]);
    let Ok(output) = list.output() else { return false };
    let installed = String::from_utf8_lossy(&output.stdout);
    let is_there = |component: &&str| installed.lines().any(|line| line.starts_with(component));
    output.status.success() && components.iter().all(is_there)
}

/// Nightly's cargo in the root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    // Set by the cargo that runs us, for the compiler that built us.
    cargo.arg("+nightly").env_remove("RUSTUP_TOOLCHAIN").current_dir(root());
    cargo
}
