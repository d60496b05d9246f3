//! Holds `smelt serve` on the demo against the official client of OpenAI's API, and against its own
//! description.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::tidy::build_smelt;
use crate::{python, root, target};

/// How long the demo may take to be ready.
const READY_TIME_MAX: Duration = Duration::from_secs(60);

/// Requests that are made up for each route and phase: enough to reach every field, in half a minute.
const EXAMPLES: &str = "25";

/// Requests of a soak.
const REQUESTS: &str = "10000";

/// What made-up requests are checked for.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance,negative_data_rejection,unsupported_method";

/// Fails if a check does.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask conformance");
    let folder = root().join("xtask/conformance");
    let python = python::environment("conformance", &folder.join("requirements.txt"))?;
    let smelt = build_smelt()?;
    let cache = target().join("conformance");
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let server = Server::start(&smelt, &cache)?;
    let mut client = Command::new(&python);
    client.arg(folder.join("check.py")).arg(&server.url).arg(root().join("tests/data"));
    succeed(&mut client, "the official client found a fault")?;
    let mut made_up = Command::new(python.with_file_name("schemathesis"));
    made_up
        .arg("--config-file")
        .arg(folder.join("schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", server.url), "--checks", CHECKS])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES])
        .args(["--seed", "1", "--request-timeout", "60"])
        // It leaves notes where it runs.
        .current_dir(&cache);
    succeed(&mut made_up, "the server differs from its description")
}

/// Sends ten thousand requests, many of them hostile; fails if one is answered wrong, gets stuck, or memory
/// grows.
pub(crate) fn soak() -> Result<()> {
    println!("\n$ conformance, {REQUESTS} requests");
    let cache = target().join("conformance");
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let server = Server::start(&build_smelt()?, &cache)?;
    let mut client = Command::new("python3");
    client.arg(root().join("xtask/conformance/soak.py")).arg(&server.url);
    client.arg(server.child.id().to_string()).arg(root().join("tests/data/shapes-1.png"));
    succeed(client.arg(REQUESTS), "the server is not as it was")
}

fn succeed(command: &mut Command, failed: &str) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{failed}");
    Ok(())
}

/// A server of the demo and an encoder; ends when it is dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Builds both in a store of their own under `cache`, serves them, the demo by a template that knows tools,
    /// and waits until the demo is ready.
    fn start(smelt: &Path, cache: &Path) -> Result<Self> {
        let [demo, encoder] = ["pipelines/demo.toml", "xtask/conformance/encoder.toml"];
        let command = |verb: &str, pipelines: &[&str]| {
            let mut command = Command::new(smelt);
            let pipelines = pipelines.iter().map(|pipeline| root().join(pipeline));
            command.arg(verb).args(pipelines).env("SMELT_CACHE", cache.join("cache"));
            command
        };
        for pipeline in [demo, encoder] {
            let mut run = command("run", &[pipeline]);
            succeed(run.stdout(Stdio::null()).stderr(Stdio::null()), "a pipeline fails")?;
        }
        let log = fs::File::create(cache.join("serve.log"))?;
        let child = command("serve", &[demo, encoder])
            .args(["--addr", "127.0.0.1:0", "--chat-template"])
            .arg(root().join("tests/data/hermes.jinja"))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start the server")?;
        let mut server = Self { child, url: String::new() };
        let stdout = server.child.stdout.take().context("the server has no output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url)?;
        server.url = url.trim().to_owned();
        server.wait()?;
        Ok(server)
    }

    fn wait(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < READY_TIME_MAX {
            let health = Command::new("python3")
                .args(["-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1])"])
                .arg(format!("{}/health", self.url))
                .stderr(Stdio::null())
                .status()?;
            if health.success() {
                return Ok(());
            }
            sleep(Duration::from_millis(100));
        }
        bail!("the server is not ready after {} s", READY_TIME_MAX.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself was told of by the checks.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
