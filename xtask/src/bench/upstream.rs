//! Measures what passing requests on costs: llama-server alone, and the same behind `smelt serve`, in turns.
//!
//! `pipelines/smollm2-llama-server.toml` is run and served as its reader would; the other side is started with the same words.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::measure::median;
use super::serve::client::Client;
use super::serve::report::number;
use super::serve::rival;
use super::{runs_of, succeed};
use crate::server::Server;
use crate::{root, scale, target};

const PIPELINE: &str = "pipelines/smollm2-llama-server.toml";
/// Turns of both sides when `--runs` does not say.
const RUNS: usize = 5;
/// One stream: where several share the processors, what waits is not what is passed on.
const ASKED: [&str; 6] = ["--lengths", "64:64", "--concurrency", "1", "--requests", "30"];
/// What a request may take longer, and what of the tokens a second may be lost.
const MORE_MS_MAX: f64 = 1.0;
const LOSS_MAX: f64 = 0.01;

/// `cargo xtask bench upstream [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let runs = runs_of("upstream", arguments, RUNS)?;
    let folder = target().join("bench/upstream");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let bench = Bench { smelt: scale::build()?, rival: rival::server(&folder)?, folder };
    succeed(bench.smelt().arg("run").arg(root().join(PIPELINE)))?;
    let (behind, alone) = (bench.serve()?, bench.serve_alone()?);
    let client = Client { program: bench.smelt.clone() };
    let (mut first, mut rates) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..runs {
        for (at, server) in [&alone, &behind].into_iter().enumerate() {
            let row = client.ask(server, &ASKED)?;
            first[at].push(number(&row, "/ttft_text_ms/median")?);
            rates[at].push(1e3 / number(&row, "/tpot_ms/median")?);
        }
    }
    let [[alone_ms, behind_ms], [alone_rate, behind_rate]] =
        [first, rates].map(|sides| sides.map(median));
    let (more_ms, loss) = (behind_ms - alone_ms, 1.0 - behind_rate / alone_rate);
    println!("| of one stream, medians of {runs} | llama-server | behind smelt serve | |");
    println!("|---|---|---|---|");
    println!(
        "| first token, ms | {alone_ms:.2} | {behind_ms:.2} | {more_ms:+.2} (at most {MORE_MS_MAX}) |"
    );
    let percent = loss * 100.0;
    println!("| tokens/s | {alone_rate:.1} | {behind_rate:.1} | {percent:.2} % less (at most 1) |");
    ensure!(more_ms <= MORE_MS_MAX && loss <= LOSS_MAX, "passing on costs more than it may");
    Ok(())
}

struct Bench {
    smelt: PathBuf,
    rival: PathBuf,
    folder: PathBuf,
}

impl Bench {
    /// smelt with a store of its own, and llama-server in its `PATH`.
    fn smelt(&self) -> Command {
        let path = env::var("PATH").unwrap_or_default();
        let mut command = Command::new(&self.smelt);
        command.env("SMELT_CACHE", self.folder.join("cache"));
        command.env("PATH", format!("{}:{path}", self.folder.display()));
        command
    }

    fn serve(&self) -> Result<Server> {
        let pipeline = root().join(PIPELINE);
        let pipeline = pipeline.to_str().context("the root's path is text")?;
        let arguments = ["serve", pipeline, "--addr", "127.0.0.1:PORT"];
        Server::start(&mut self.smelt(), &arguments, &self.folder.join("smelt.log"))
    }

    /// The same server, by the words of the deployment.
    fn serve_alone(&self) -> Result<Server> {
        let out = |stage: &str| {
            let output = self.smelt().arg("out").arg(root().join(PIPELINE)).arg(stage).output()?;
            anyhow::Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
        };
        let spec = fs::read(out("deployment")?.join("deployment.json"))?;
        let spec: Value = serde_json::from_slice(&spec)?;
        let engine = out("engine")?;
        let words = spec["server"].as_array().context("a deployment has a server")?;
        let word = |word: &Value| word.as_str().map(|word| filled(word, &engine));
        let words: Vec<String> = words.iter().skip(1).filter_map(word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Server::start(&mut Command::new(&self.rival), &words, &self.folder.join("llama.log"))
    }
}

fn filled(word: &str, engine: &Path) -> String {
    let word = word.replace("{engine}", &engine.display().to_string());
    word.replace("{port}", "PORT").replace("{model}", "alone")
}
