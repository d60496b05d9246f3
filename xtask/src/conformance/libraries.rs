//! Holds servers against the libraries that programs speak to models through.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{folder, succeed, timed};
use crate::server::Server;
use crate::{python, root};

/// The server has the demo and a template that knows tools.
pub(super) fn check(demo: &Server) -> Result<()> {
    let python = timed("libraries of Python, installed", environment)?;
    timed("libraries of Python", || of_python(&python, demo))
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
