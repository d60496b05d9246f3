//! Makes the picture of the README: the web page of a running server, answering a question about the demo's picture.
//!
//! Everything in it is real: the demo is built and served, and headless Chromium asks as a person would.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::server::Server;
use crate::tidy::build_smelt;
use crate::{page, root, target};

/// Where the picture belongs.
const OUT: &str = "docs/page.png";

pub(crate) fn run() -> Result<()> {
    let smelt = build_smelt()?;
    let folder = target().join("picture");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let command = || {
        let mut command = Command::new(&smelt);
        command.current_dir(root()).env("SMELT_CACHE", folder.join("cache"));
        command
    };
    let built = command().args(["run", "pipelines/demo.toml"]).status()?;
    ensure!(built.success(), "the demo's run ended with {built}");
    let arguments = ["serve", "pipelines/demo.toml", "--addr", "127.0.0.1:PORT"];
    let server = Server::start(&mut command(), &arguments, &folder.join("log"))?;
    page::photograph(&server, &root().join("tests/data/shapes-1.png"), &root().join(OUT))?;
    println!("{OUT}: the page with its answer");
    Ok(())
}
