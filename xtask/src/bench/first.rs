//! Measures the time from a command to its first whole answer: `smelt chat FILE` where nothing is built yet, again where it is,
//! and llama-server (whose way is Ollama's, too) started and asked, with the same GGUF file, in turns.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::measure::median;
use super::serve::rival;
use super::{runs_of, succeed};
use crate::server::{Server, http_post};
use crate::{root, scale, target};

/// Its first stage brings the file.
const PIPELINE: &str = "pipelines/smollm2-llama-server.toml";
const QUESTION: &str = "What is the capital of France?";
const TOKENS: &str = "16";
/// Turns when `--runs` does not say.
const RUNS: usize = 5;

/// `cargo xtask bench first [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let runs = runs_of("first", arguments, RUNS)?;
    let folder = target().join("bench/first");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let (smelt, rival) = (scale::build()?, rival::server(&target().join("bench/upstream"))?);
    let bench = Bench { file: file(&smelt, &folder)?, smelt, rival, folder };
    let (mut theirs, mut fresh, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        theirs.push(bench.llama_server()?);
        if bench.store().exists() {
            fs::remove_dir_all(bench.store())?;
        }
        fresh.push(bench.chat()?);
        again.push(bench.chat()?);
    }
    let [theirs, fresh, again] = [theirs, fresh, again].map(median);
    println!(
        "| from the command to the end of {TOKENS} tokens, medians of {runs} | s | of llama-server's |"
    );
    println!("|---|---|---|");
    println!("| llama-server, started and asked | {theirs:.2} | |");
    println!("| smelt chat, nothing built | {fresh:.2} | {:.2} |", fresh / theirs);
    println!("| smelt chat, built | {again:.2} | {:.2} |", again / theirs);
    println!("{}", bench.parts()?);
    ensure!(again <= theirs, "what is built answers later than llama-server");
    Ok(())
}

/// The GGUF file, which the first stage of a shipped pipeline fetches.
fn file(smelt: &Path, folder: &Path) -> Result<PathBuf> {
    let smelt = |words: &[&str]| {
        let mut command = Command::new(smelt);
        command.env("SMELT_CACHE", folder.join("fetched")).args(words).current_dir(root());
        command
    };
    succeed(&mut smelt(&["run", PIPELINE, "--only", "engine"]))?;
    let output = smelt(&["out", PIPELINE, "engine"]).output()?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()).join("model.gguf"))
}

struct Bench {
    smelt: PathBuf,
    rival: PathBuf,
    file: PathBuf,
    folder: PathBuf,
}

impl Bench {
    fn store(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// Seconds until it has answered.
    fn llama_server(&self) -> Result<f64> {
        let file = self.file.to_str().context("its path is text")?;
        let words = [
            "-m",
            file,
            "--ctx-size",
            "2048",
            "--offline",
            "--host",
            "127.0.0.1",
            "--port",
            "PORT",
        ];
        let begin = Instant::now();
        let server =
            Server::start(&mut Command::new(&self.rival), &words, &self.folder.join("llama.log"))?;
        let asked = json!({
            "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0,
            "max_tokens": TOKENS.parse::<u32>()?,
        });
        let answer = http_post(server.port(), "/v1/chat/completions", &asked.to_string())?;
        ensure!(answer.contains("\"completion_tokens\":16"), "{answer}");
        Ok(begin.elapsed().as_secs_f64())
    }

    /// The same of `smelt chat`, which builds what is not there.
    fn chat(&self) -> Result<f64> {
        let mut chat = self.smelt();
        chat.args(["chat", "--yes", "--max-tokens", TOKENS]).arg(&self.file).arg(QUESTION);
        chat.stdout(Stdio::piped()).stderr(File::create(self.folder.join("chat.log"))?);
        let begin = Instant::now();
        let mut child = chat.spawn()?;
        let mut answer = String::new();
        let stdout = child.stdout.take().context("it has an output")?;
        BufReader::new(stdout).read_line(&mut answer)?;
        let took = begin.elapsed().as_secs_f64();
        // What it computes is held against the reference behind the answer.
        ensure!(child.wait()?.success() && !answer.trim().is_empty(), "no answer: {answer}");
        Ok(took)
    }

    fn smelt(&self) -> Command {
        let mut command = Command::new(&self.smelt);
        command.env("SMELT_CACHE", self.store()).current_dir(&self.folder);
        command
    }

    /// What the stages of the last build took.
    fn parts(&self) -> Result<String> {
        let runs = self.smelt().args(["runs", "--json"]).output()?;
        let runs: Value = serde_json::from_slice(&runs.stdout)?;
        // The oldest; the newest are checks behind answers.
        let first = runs["runs"].as_array().and_then(|all| all.last()?["run"].as_str());
        let first = first.context("nothing was built")?;
        let output = self.smelt().args(["report", first, "--json"]).output()?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let stages = report["stages"].as_array().context("a report has stages")?;
        let took = |stage: &Value| {
            let attempts = stage["attempts"].as_array()?;
            let seconds = attempts.iter().filter_map(|it| it["wall_s"].as_f64());
            let seconds = seconds.reduce(|sum, one| sum + one)?;
            Some(format!("{} {seconds:.2} s", stage["name"].as_str()?))
        };
        let parts: Vec<String> = stages.iter().filter_map(took).collect();
        Ok(format!("of the build: {}", parts.join(", ")))
    }
}
