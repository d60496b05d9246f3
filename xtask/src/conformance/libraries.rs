//! Holds servers against the libraries that programs speak to models through: of Python and of JavaScript.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{folder, succeed, timed};
use crate::server::Server;
use crate::{node, python, root};

/// The server has the demo and a template that knows tools.
pub(super) fn check(demo: &Server) -> Result<()> {
    let python = timed("libraries of Python, installed", environment)?;
    timed("libraries of Python", || of_python(&python, demo))?;
    let packages =
        timed("clients of JavaScript, installed", || node::packages("conformance", &javascript()))?;
    timed("clients of JavaScript", || of_javascript(&packages, demo))
}

/// What is imported is compiled then, and little of all is.
fn environment() -> Result<PathBuf> {
    let requirements = folder().join("requirements-libraries.txt");
    python::environment_built("conformance-libraries", &requirements, &[("PIP_COMPILE", "0")])
}

fn of_python(python: &Path, server: &Server) -> Result<()> {
    let mut libraries = Command::new(python);
    libraries.arg(folder().join("libraries.py")).arg(server.url()).arg(root().join("tests/data"));
    succeed(&mut libraries, "a library of Python found a fault")
}

fn javascript() -> PathBuf {
    folder().join("node")
}

fn of_javascript(packages: &Path, server: &Server) -> Result<()> {
    let script = packages.join("check.mjs");
    fs::copy(javascript().join("check.mjs"), &script)
        .with_context(|| script.display().to_string())?;
    let mut clients = Command::new("node");
    clients.arg(script).arg(server.url()).arg(root().join("tests/data"));
    succeed(&mut clients, "a client of JavaScript found a fault")
}
