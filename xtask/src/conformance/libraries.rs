//! Holds servers against the libraries that programs speak to models through: of Python, of JavaScript, and of those
//! whose use the demo's model cannot follow, with SmolLM2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use anyhow::{Context, Result, ensure};

use super::{build, folder, server, start, succeed, timed};
use crate::server::Server;
use crate::tidy::build_smelt;
use crate::{debian, node, python, root, target};

const SMALL_MODEL: &str = "pipelines/smollm2.toml";

/// The server has the demo and a template that knows tools.
pub(super) fn check(demo: &Server) -> Result<()> {
    let python = timed("libraries of Python, installed", environment)?;
    timed("libraries of Python", || of_python(&python, demo))?;
    let packages = timed("clients of JavaScript, installed", packages)?;
    timed("clients of JavaScript", || of_javascript(&packages, demo))?;
    let (server, deployment) = timed("SmolLM2, built and served", small_model)?;
    timed("libraries on SmolLM2", || on_small_model(&python, &server, &deployment))
}

/// Brings what is held against servers.
pub(super) fn fetch() -> Result<()> {
    environment()?;
    packages()?;
    need_pip()
}

fn environment() -> Result<PathBuf> {
    python::environment("conformance-libraries", &folder().join("requirements-libraries.txt"))
}

fn packages() -> Result<PathBuf> {
    node::packages("conformance", &javascript())
}

/// The pipeline of the small model fetches the model with it.
fn need_pip() -> Result<()> {
    debian::need_alone("python3-pip", || debian::runs("python3", "-m pip --version"))
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

/// SmolLM2 served, and where its tokenizer lies.
fn small_model() -> Result<(Server, PathBuf)> {
    need_pip()?;
    let (smelt, cache) = (build_smelt()?, target().join("conformance"));
    let pipeline = root().join(SMALL_MODEL);
    build(&smelt, &cache, &pipeline)?;
    let log = cache.join("serve-small-model.log");
    let server = start(&mut server(&smelt, &cache, slice::from_ref(&pipeline)), &log)?;
    Ok((server, deployment(&smelt, &cache, &pipeline)?))
}

fn deployment(smelt: &Path, cache: &Path, pipeline: &Path) -> Result<PathBuf> {
    let mut out = Command::new(smelt);
    out.arg("out").arg(pipeline).arg("deployment").env("SMELT_CACHE", cache.join("cache"));
    let output = out.output().context("cannot start smelt")?;
    ensure!(output.status.success(), "smelt out names no deployment");
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn on_small_model(python: &Path, server: &Server, deployment: &Path) -> Result<()> {
    let mut libraries = Command::new(python);
    libraries.arg(folder().join("small_model.py")).arg(server.url()).arg(deployment);
    // The harness keeps what it read of a task.
    libraries.env("HF_HOME", target().join("conformance/tasks"));
    succeed(&mut libraries, "a library found a fault on SmolLM2")
}
