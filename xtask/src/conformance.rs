//! Holds `smelt serve` on the demo against the official clients of four APIs and the libraries above them, its page
//! against what people need of it, and both against its own description.

mod libraries;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::server::{Server, free_port};
use crate::tidy::build_smelt;
use crate::{debian, page, python, root, target};

/// Requests of a soak.
const REQUESTS: &str = "10000";

/// What made-up requests are checked for.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance,negative_data_rejection,unsupported_method";

/// Fails if a check does.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask conformance");
    debian::need_alone("ffmpeg", || debian::runs("ffmpeg", "-version"))?;
    let python = timed("official clients, installed", environment)?;
    let cache = target().join("conformance");
    let collector = free_port()?;
    let flags = ["--otlp-endpoint", &format!("http://127.0.0.1:{collector}")];
    let server = timed("models, built and served", || serve(&cache, &flags))?;
    timed("official clients", || official(&python, &server, collector))?;
    libraries::check(&server)?;
    timed("page", || page::check(&server))?;
    // Enough to reach every field, and the same whoever asks: what was found once is found each time.
    let flags = ["--max-examples", "25", "--generation-deterministic"];
    timed("made-up requests", || made_up(&python, &server, &flags))
}

/// Brings clients, libraries and what drives the browser.
pub(crate) fn fetch() -> Result<()> {
    environment()?;
    libraries::fetch()?;
    page::environment().map(drop)
}

/// Says how long a part took that went well.
fn timed<T>(name: &str, part: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let made = part()?;
    println!("conformance: {name}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(made)
}

fn folder() -> PathBuf {
    root().join("xtask/conformance")
}

fn environment() -> Result<PathBuf> {
    python::environment("conformance", &folder().join("requirements.txt"))
}

fn official(python: &Path, server: &Server, collector: u16) -> Result<()> {
    let mut client = Command::new(python);
    client.arg(folder().join("check.py")).arg(server.url()).arg(root().join("tests/data"));
    client.arg(collector.to_string());
    succeed(&mut client, "the official client found a fault")
}

/// Fails if the server answers a made-up request otherwise than its description says.
fn made_up(python: &Path, server: &Server, flags: &[&str]) -> Result<()> {
    let mut made_up = Command::new(python.with_file_name("schemathesis"));
    made_up
        .arg("--config-file")
        .arg(folder().join("schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", server.url()), "--checks", CHECKS])
        .args(["--phases", "examples,coverage,fuzzing", "--request-timeout", "60"])
        .args(flags)
        // It leaves notes where it runs.
        .current_dir(target().join("conformance"));
    succeed(&mut made_up, "the server differs from its description")
}

/// Sends ten thousand requests, many of them hostile; fails if one is answered wrong, gets stuck, or memory
/// grows. Then makes up more requests for each route than `run` does, and others each time.
pub(crate) fn soak() -> Result<()> {
    println!("\n$ conformance, {REQUESTS} requests");
    let python = environment()?;
    let server = serve(&target().join("conformance"), &[])?;
    let mut client = Command::new("python3");
    client.arg(folder().join("soak.py")).arg(server.url());
    client.arg(server.pid().to_string()).arg(root().join("tests/data/shapes-1.png"));
    succeed(client.arg(REQUESTS), "the server is not as it was")?;
    made_up(&python, &server, &["--max-examples", "100"])
}

fn succeed(command: &mut Command, failed: &str) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{failed}");
    Ok(())
}

/// Builds the demo, an encoder, a cross-encoder and a classifier in a store of their own under `cache`, and
/// serves them, the demo by a template that knows tools.
fn serve(cache: &Path, flags: &[&str]) -> Result<Server> {
    let smelt = build_smelt()?;
    let pipelines = [
        "pipelines/demo.toml",
        "xtask/conformance/encoder.toml",
        "xtask/conformance/reranker.toml",
        "xtask/conformance/classifier.toml",
    ];
    let pipelines = pipelines.map(|pipeline| root().join(pipeline));
    fs::create_dir_all(cache).with_context(|| cache.display().to_string())?;
    pipelines.iter().try_for_each(|pipeline| build(&smelt, cache, pipeline))?;
    let mut serve = server(&smelt, cache, &pipelines);
    serve.arg("--chat-template").arg(root().join("tests/data/hermes.jinja"));
    serve.args(flags).arg("--slots").arg("--slot-save-path").arg(cache.join("slots"));
    start(&mut serve, &cache.join("serve.log"))
}

/// Runs a pipeline in the store under `cache`; says why where it fails.
fn build(smelt: &Path, cache: &Path, pipeline: &Path) -> Result<()> {
    let mut run = Command::new(smelt);
    run.arg("run").arg(pipeline).env("SMELT_CACHE", cache.join("cache"));
    let output = run.output().context("cannot start smelt")?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{} fails: {}", pipeline.display(), told.trim_end());
    }
    Ok(())
}

/// Serves what `build` built.
fn server(smelt: &Path, cache: &Path, pipelines: &[PathBuf]) -> Command {
    let mut serve = Command::new(smelt);
    serve.arg("serve").args(pipelines).env("SMELT_CACHE", cache.join("cache"));
    serve
}

fn start(serve: &mut Command, log: &Path) -> Result<Server> {
    Server::start(serve, &["--addr", "127.0.0.1:PORT"], log)
}
