//! Makes what both servers serve, under `target/bench/serve`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::rival;
use crate::bench::cpu::Checkpoints;
use crate::bench::{measure, remove, succeed};
use crate::ci::cargo;
use crate::server::Server;
use crate::tidy::build_smelt;
use crate::{root, target};

/// The decoder both sides run: Qwen2.5-0.5B's sizes, 4 bits.
const WEIGHTS: &str = "weights/qwen2.5-0.5b-q4.gguf";
/// The tower both sides see with: InternViT-300M's sizes, in what is usually given out, and faster here
/// than `q8`.
const TOWER: &str = "mmproj-f16.gguf";
/// The checkpoint that has both.
const CHECKPOINT: &str = "internvl3-1b";
/// Answers at once, on both sides.
const SLOTS: usize = 8;
/// The longest prompt with its answer, on both sides.
const SEQ_LEN_MAX: usize = 2048;

/// Where everything is.
pub(super) struct Inputs {
    pub(super) folder: PathBuf,
    pub(super) smelt: PathBuf,
    checkpoint: Option<PathBuf>,
}

/// The key of this number.
pub(super) fn key(number: usize) -> String {
    format!("key-of-the-bench-{number}")
}

/// A file of the rival's side.
pub(super) fn script(name: &str) -> PathBuf {
    root().join("xtask/serve").join(name)
}

impl Inputs {
    /// Builds smelt as it is released, and makes what is missing.
    pub(super) fn prepare() -> Result<Self> {
        let checkpoint = Checkpoints::prepare()?.of(CHECKPOINT)?;
        cargo(&["build", "--locked", "--package", "smelt", "--release"], &[])?;
        let smelt = target().join("release/smelt");
        let inputs = Self::new(smelt, "bench/serve", Some(checkpoint))?;
        inputs.write(WEIGHTS, "write_gguf.py", &["q4", "words"])?;
        inputs.write(TOWER, "write_mmproj.py", &["f16"])?;
        inputs.deploy()?;
        Ok(inputs)
    }

    /// Builds smelt as tests are, to serve the tiny model from a folder that is made anew.
    pub(super) fn tiny() -> Result<Self> {
        remove(&target().join("bench/serve-smoke"))?;
        let inputs = Self::new(build_smelt()?, "bench/serve-smoke", None)?;
        inputs.deploy()?;
        Ok(inputs)
    }

    fn new(smelt: PathBuf, folder: &str, checkpoint: Option<PathBuf>) -> Result<Self> {
        let folder = target().join(folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder, smelt, checkpoint })
    }

    /// Has a script write `name` from the checkpoint, if it is not there.
    fn write(&self, name: &str, with: &str, words: &[&str]) -> Result<()> {
        let (out, begun) = (self.folder.join(name), self.folder.join("begun.gguf"));
        if out.exists() {
            return Ok(());
        }
        let mut write = Command::new(rival::python()?);
        write.arg(root().join("xtask/cpu").join(with));
        write.arg(self.checkpoint.as_deref().context("true size has a checkpoint")?);
        succeed(write.arg(&begun).args(words))?;
        fs::create_dir_all(out.parent().context("it lies in a folder")?)?;
        fs::rename(begun, &out).with_context(|| out.display().to_string())
    }

    /// Where smelt looks for what is served.
    fn pipeline(&self) -> Vec<String> {
        let mut words = vec![script("pipeline.toml").display().to_string()];
        if let Some(checkpoint) = &self.checkpoint {
            let weights = self.folder.join("weights");
            words.extend(["--set".to_owned(), format!("checkpoint=path:{}", checkpoint.display())]);
            words.extend(["--set".to_owned(), format!("weights=path:{}", weights.display())]);
            words.extend(["--set".to_owned(), format!("max_seq_len={SEQ_LEN_MAX}")]);
        }
        words
    }

    fn smelt(&self) -> Command {
        let mut command = Command::new(&self.smelt);
        command.env("SMELT_CACHE", self.folder.join("cache"));
        command
    }

    fn deploy(&self) -> Result<()> {
        succeed(self.smelt().arg("run").args(self.pipeline()))
    }

    /// The directory of a stage's output.
    fn out(&self, stage: &str) -> Result<PathBuf> {
        let mut pipeline = self.pipeline();
        pipeline.insert(1, stage.to_owned());
        let output =
            self.smelt().arg("out").args(pipeline).output().context("cannot start smelt")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "smelt out {stage} failed: {said}");
        Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
    }

    /// What both serve, in words, for who reads the figures later.
    pub(super) fn served(&self) -> Result<Value> {
        let told = self.smelt().arg("--version").output().context("cannot start smelt")?;
        let version = String::from_utf8(told.stdout)?;
        Ok(json!({
            "version": version.trim(),
            "rival": rival::PACKAGE,
            "decoder": format!("{CHECKPOINT}: {WEIGHTS}"),
            "tower": { "smelt": "int8", "rival": TOWER },
            "context": SEQ_LEN_MAX,
            "slots": SLOTS,
        }))
    }

    /// Our server, for so many keys with limits that nobody reaches.
    pub(super) fn serve_keyed(&self, count: usize) -> Result<Server> {
        let limits = "requests=1000000 tokens=1000000000 slots=8 kept=64MiB";
        let line = |at: usize| format!("{} name=name{at} {limits}\n", key(at));
        let file = self.folder.join(format!("keys-{count}"));
        fs::write(&file, (0..count).map(line).collect::<String>())
            .with_context(|| file.display().to_string())?;
        let file = file.to_str().context("the target's path is text")?;
        self.serve_with(&["--api-key-file", file])
    }

    /// Our server.
    pub(super) fn serve(&self) -> Result<Server> {
        self.serve_with(&[])
    }

    fn serve_with(&self, flags: &[&str]) -> Result<Server> {
        let deployment = self.out("deployment")?;
        let deployment = deployment.to_str().context("the store's path is text")?;
        let slots = SLOTS.to_string();
        let arguments = [
            "serve",
            deployment,
            "--addr",
            "127.0.0.1:PORT",
            "--batch",
            &slots,
            "--queue",
            "1000",
            // One address has three quarters of them, and a thousand clients come from here.
            "--max-connections",
            "1400",
        ];
        let arguments = [&arguments, flags].concat();
        Server::start(&mut self.smelt(), &arguments, &self.folder.join("smelt.log"))
    }

    /// llama-server, with what its users would say: as many slots, all cores, no cache of prompts in memory.
    pub(super) fn serve_rival(&self) -> Result<Server> {
        let (weights, tower) = (self.folder.join(WEIGHTS), self.folder.join(TOWER));
        let cores = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        let (slots, context) = (SLOTS.to_string(), (SLOTS * SEQ_LEN_MAX).to_string());
        let arguments = [
            "--model",
            weights.to_str().context("the target's path is text")?,
            "--mmproj",
            tower.to_str().context("the target's path is text")?,
            "--host",
            "127.0.0.1",
            "--port",
            "PORT",
            "--ctx-size",
            &context,
            "--parallel",
            &slots,
            "--threads",
            &cores,
            "--cache-ram",
            "0",
            "--offline",
        ];
        let program = rival::server(&self.folder)?;
        Server::start(&mut Command::new(program), &arguments, &self.folder.join("llama.log"))
    }

    /// What each of so many steps behind prompts takes the engine alone, of one token a slot, in
    /// milliseconds.
    pub(super) fn engine_step_ms(&self, slots: usize, prompt: usize, steps: usize) -> Result<f64> {
        let engine = self.out("llm-engine")?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let program = Checkpoints::prepare()?.program();
        let words = [program.as_os_str(), "llm".as_ref(), engine.as_os_str()];
        let mut command: Vec<_> = words.map(Into::into).into();
        command.extend([cores, prompt, steps, slots].map(|number| number.to_string().into()));
        let (_, said) = measure::told(&command)?;
        let said: Value = serde_json::from_str(&said)?;
        Ok(said["decode_s"].as_f64().context("no decode_s")? * 1e3 / steps as f64)
    }
}
