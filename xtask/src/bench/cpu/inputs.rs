//! Makes what the cases work on, under `target/bench/cpu`, and says how each side is started.
//!
//! Checkpoints, GGUF files and graphs are made once (some 20 GB); our engines anew each time, since
//! they are what is measured.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cases::{Case, Decoder, LONGEST, TOWER, Weights, Work};
use super::measure;
use crate::bench::{remove, succeed};
use crate::ci::cargo;
use crate::{llama, python, root, target};

/// Pictures timed in one process.
const PICTURES: usize = 3;
/// Slots that our engines are built for, more than any case uses.
const SLOTS_MAX: usize = 8;

/// Who does a case's work.
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) command: Vec<OsString>,
}

/// Where everything is.
pub(super) struct Inputs {
    pub(super) folder: PathBuf,
    /// `crates/smelt-engine-build/examples/bench_cpu.rs`, built.
    ours: PathBuf,
}

impl Inputs {
    /// Builds our side as it is released.
    pub(super) fn prepare() -> Result<Self> {
        Self::built(&["--package", "smelt-engine-build", "--release"], "release", "bench/cpu")
    }

    /// Builds our side as tests are, with them if it can, to work in a folder that is made anew.
    pub(super) fn tiny() -> Result<Self> {
        remove(&target().join("bench/cpu-smoke"))?;
        Self::built(&["--workspace"], "debug", "bench/cpu-smoke")
    }

    fn built(flags: &[&str], profile: &str, folder: &str) -> Result<Self> {
        let build = ["build", "--locked", "--example", "bench_cpu"];
        cargo(&[&build[..], flags].concat(), &[])?;
        let folder = target().join(folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder, ours: target().join(profile).join("examples/bench_cpu") })
    }

    /// Bytes a second that so many threads read from memory.
    pub(super) fn bandwidth(&self, threads: usize) -> Result<f64> {
        let (_, said) = measure::told(&self.command(&["bandwidth", &threads.to_string()]))?;
        let said: Value = serde_json::from_str(&said)?;
        said["bytes_per_s"].as_f64().context("bandwidth says no bytes_per_s")
    }

    /// Bytes of weights that a step of `case` reads; nothing of a graph.
    pub(super) fn bytes_a_token(&self, case: &Case) -> Result<Option<f64>> {
        let Work::Text { decoder, weights, .. } = case.work else { return Ok(None) };
        let text = fs::read_to_string(self.gguf(decoder, weights)?.with_extension("json"))?;
        Ok(serde_json::from_str::<Value>(&text)?["bytes"].as_f64())
    }

    /// Everyone who does the work of `case`, ourselves last.
    pub(super) fn sides(&self, case: &Case) -> Result<Vec<Side>> {
        match case.work {
            Work::Text { decoder, weights, prefill, decode, slots } => {
                let gguf = self.gguf(decoder, weights)?;
                let numbers = [case.threads, prefill, decode, slots].map(|n| n.to_string());
                let mut theirs: Vec<OsString> =
                    vec![self.llama()?.into(), script("llama.py").into(), (&gguf).into()];
                theirs.extend(numbers.iter().map(OsString::from));
                theirs.push(LONGEST.to_string().into());
                let engine = self.llm_engine(&gguf)?;
                let [threads, prefill, decode, slots] = &numbers;
                let ours = ["llm", text(&engine)?, threads, prefill, decode, slots];
                Ok(vec![
                    Side { name: "llama.cpp", command: theirs },
                    Side { name: "smelt", command: self.command(&ours) },
                ])
            }
            Work::Pictures { precision } => {
                let (threads, runs) = (case.threads.to_string(), PICTURES.to_string());
                let rival = |name, graph: PathBuf| -> Result<Side> {
                    let command = vec![
                        self.onnxruntime()?.into(),
                        script("ort.py").into(),
                        graph.into(),
                        (&threads).into(),
                        (&runs).into(),
                    ];
                    Ok(Side { name, command })
                };
                let engine = self.graph_engine(precision)?;
                let ours = self.command(&["graph", text(&engine)?, &threads, &runs]);
                Ok(vec![
                    rival("ONNX Runtime f32", self.graph()?)?,
                    rival("ONNX Runtime W8", self.graph_w8()?)?,
                    Side { name: "smelt", command: ours },
                ])
            }
        }
    }

    /// Commands that use all of our side, on a model of a few kilobytes.
    pub(super) fn tiny_runs(&self) -> Result<Vec<Vec<OsString>>> {
        let at = |name: &str| text(&self.folder.join(name)).map(str::to_owned);
        let (checkpoint, onnx) = (at("checkpoint")?, at("onnx")?);
        let (llm, graph) = (at("llm")?, at("graph")?);
        Ok(vec![
            self.command(&["checkpoint", "internvl3-tiny", &checkpoint]),
            self.command(&["vision", &checkpoint, &onnx]),
            self.command(&["llm-engine", &checkpoint, &llm, "64", "2"]),
            self.command(&["graph-engine", &onnx, &graph, "f32"]),
            self.command(&["llm", &llm, "2", "20", "4", "2"]),
            self.command(&["graph", &graph, "2", "1"]),
        ])
    }

    fn command(&self, arguments: &[&str]) -> Vec<OsString> {
        let own = std::iter::once((&self.ours).into());
        own.chain(arguments.iter().map(OsString::from)).collect()
    }

    fn make(&self, arguments: &[&str]) -> Result<()> {
        succeed(Command::new(&self.ours).args(arguments))
    }

    fn llama(&self) -> Result<PathBuf> {
        llama::python()
    }

    fn onnxruntime(&self) -> Result<PathBuf> {
        python::environment("bench-onnxruntime", &script("requirements-onnx.txt"))
    }

    fn checkpoint(&self, decoder: Decoder) -> Result<PathBuf> {
        self.named_checkpoint(decoder.checkpoint)
    }

    /// The synthetic checkpoint of this name.
    pub(super) fn named_checkpoint(&self, name: &str) -> Result<PathBuf> {
        self.once(name, |out| self.make(&["checkpoint", name, text(out)?]))
    }

    /// `bench_cpu`.
    pub(super) fn program(&self) -> PathBuf {
        self.ours.clone()
    }

    /// The file that llama.cpp reads and our engine is built from; its size lies beside it.
    fn gguf(&self, decoder: Decoder, weights: Weights) -> Result<PathBuf> {
        let name = format!("{}-{}.gguf", decoder.name, weights.name());
        self.once(&name, |out| {
            let mut write = Command::new(self.llama()?);
            write.arg(script("write_gguf.py")).arg(self.checkpoint(decoder)?);
            let output =
                write.arg(out).arg(weights.name()).output().context("cannot start python")?;
            let said = String::from_utf8_lossy(&output.stderr);
            anyhow::ensure!(output.status.success(), "write_gguf.py failed: {said}");
            let beside = self.folder.join(&name).with_extension("json");
            fs::write(&beside, &output.stdout).with_context(|| beside.display().to_string())
        })
    }

    fn llm_engine(&self, gguf: &Path) -> Result<PathBuf> {
        let engine = gguf.with_extension("engine");
        remove(&engine)?;
        let limits = [LONGEST, SLOTS_MAX].map(|limit| limit.to_string());
        self.make(&["llm-engine", text(gguf)?, text(&engine)?, &limits[0], &limits[1]])?;
        Ok(engine)
    }

    /// The vision tower as ONNX in f32.
    fn graph(&self) -> Result<PathBuf> {
        let checkpoint = self.checkpoint(TOWER)?;
        self.once("vit.onnx", |out| self.make(&["vision", text(&checkpoint)?, text(out)?]))
    }

    fn graph_w8(&self) -> Result<PathBuf> {
        let graph = self.graph()?;
        self.once("vit-w8.onnx", |out| {
            let mut round = Command::new(self.onnxruntime()?);
            succeed(round.arg(script("onnx_w8.py")).arg(&graph).arg(out))
        })
    }

    fn graph_engine(&self, precision: &str) -> Result<PathBuf> {
        let (graph, engine) = (self.graph()?, self.folder.join(format!("vit-{precision}.engine")));
        remove(&engine)?;
        self.make(&["graph-engine", text(&graph)?, text(&engine)?, precision])?;
        Ok(engine)
    }

    /// What `make` leaves under another name is whole under its own.
    fn once(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let done = self.folder.join(name);
        if done.exists() {
            return Ok(done);
        }
        eprintln!("bench: making {name}");
        let begun = self.folder.join(format!("begun-{name}"));
        if begun.is_dir() {
            fs::remove_dir_all(&begun)?;
        }
        make(&begun)?;
        fs::rename(&begun, &done).with_context(|| done.display().to_string())?;
        Ok(done)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is no text", path.display()))
}

/// A file of the rivals' side.
fn script(name: &str) -> PathBuf {
    root().join("xtask/cpu").join(name)
}
