//! Looks at the page of a server in a real browser: Debian's Chromium, driven by Playwright.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::server::Server;
use crate::{debian, python, root};

/// Uses the page as people do: by mouse, by keyboard alone, on a phone, by what screen readers are told.  The server has
/// the demo and the encoder of the conformance checks.
pub(crate) fn check(server: &Server) -> Result<()> {
    drive("check.py", server, &root().join("tests/data"), None)
}

/// Has the page answer about `picture`, and photographs that to `out`.
pub(crate) fn photograph(server: &Server, picture: &Path, out: &Path) -> Result<()> {
    drive("picture.py", server, picture, Some(out))
}

/// A Python that drives a browser.
pub(crate) fn environment() -> Result<PathBuf> {
    python::environment("browser", &folder().join("requirements.txt"))
}

fn folder() -> PathBuf {
    root().join("xtask/browser")
}

fn drive(script: &str, server: &Server, shown: &Path, out: Option<&Path>) -> Result<()> {
    debian::need("chromium", || debian::runs("chromium", "--version"))?;
    let mut browser = Command::new(environment()?);
    browser.arg(folder().join(script)).arg(server.url()).arg(shown).args(out);
    let status = browser.status().context("cannot start the environment's python")?;
    ensure!(status.success(), "the page is not as it should be");
    Ok(())
}
