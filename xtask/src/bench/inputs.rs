//! Makes what the cases work on, once: smelt itself, the rival's Python, true-size random models.
//!
//! All lies under `target/bench`, about 15 GB of it, and is kept until someone removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::succeed;
use crate::ci::cargo;
use crate::{python, root, target};

/// The pipeline whose first stage fetches MiniLM.
const MINILM: &str = include_str!("../../../pipelines/minilm.toml");

/// What a case reads.
#[derive(Clone, Copy)]
pub(super) enum Input {
    /// A synthetic checkpoint, by its name.
    Checkpoint(&'static str),
    /// The MiniLM sentence encoder, with its real weights.
    Sentences,
    /// The decoder of InternVL3.5-2B as ONNX in f16: 3.44 GB, its head 622 MB.
    Decoder,
}

/// Where everything is.
pub(super) struct Inputs {
    pub(super) folder: PathBuf,
    pub(super) smelt: PathBuf,
    pub(super) python: PathBuf,
}

impl Inputs {
    /// Builds smelt as it is released, and makes the rival's Python.
    pub(super) fn prepare() -> Result<Self> {
        cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
        let (folder, smelt) = (target().join("bench"), target().join("release/smelt"));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let python = python::environment("rival", &script("requirements.txt"))?;
        Ok(Self { folder, smelt, python })
    }

    /// The directory of `input`, made if it is not there.
    pub(super) fn make(&self, input: Input) -> Result<PathBuf> {
        match input {
            Input::Checkpoint(name) => self.checkpoint(name),
            Input::Sentences => {
                let end = MINILM.find("[stage.encoder-onnx]").context("minilm.toml has changed")?;
                self.sealed("minilm", &MINILM[..end])
            }
            Input::Decoder => self.once("decoder", |out| {
                let checkpoint = self.checkpoint("internvl3_5-2b")?;
                let mut export = Command::new(&self.smelt);
                export.arg("export").arg(checkpoint).args(["--part", "llm", "--dtype", "f16"]);
                succeed(export.arg("--out").arg(out))
            }),
        }
    }

    fn checkpoint(&self, name: &str) -> Result<PathBuf> {
        let stage = format!("[stage.checkpoint]\nkind = \"source\"\nfrom = \"synthetic:{name}\"\n");
        self.sealed(name, &format!("smelt = 1\nname = \"bench\"\n{stage}"))
    }

    /// What `smelt calibrate` sees of the checkpoint at `source` with its own prompts.
    pub(super) fn seen(&self, source: &Path) -> Result<PathBuf> {
        let name = source.file_name().and_then(|name| name.to_str()).context("no name")?;
        self.once(&format!("{name}.seen"), |out| {
            let mut calibrate = Command::new(&self.smelt);
            succeed(calibrate.arg("calibrate").arg(source).arg("--out").arg(out))
        })
    }

    /// A pipeline of one stage, `checkpoint`, writes it; what it sealed is moved out of its store.
    fn sealed(&self, name: &str, text: &str) -> Result<PathBuf> {
        self.once(name, |out| {
            let work = out.with_extension("work");
            fs::create_dir_all(&work)?;
            let pipeline = work.join("p.toml");
            fs::write(&pipeline, text)?;
            let smelt = |verb: &str| {
                let mut command = Command::new(&self.smelt);
                command.arg(verb).arg(&pipeline).env("SMELT_CACHE", work.join("cache"));
                command
            };
            succeed(&mut smelt("run"))?;
            let sealed = smelt("out").arg("checkpoint").output()?;
            let sealed = String::from_utf8(sealed.stdout)?;
            fs::rename(sealed.trim(), out).with_context(|| format!("rename {sealed}"))?;
            Ok(fs::remove_dir_all(&work)?)
        })
    }

    fn once(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let done = self.folder.join(name);
        if !done.exists() {
            let begun = self.folder.join(format!("{name}.begun"));
            if begun.exists() {
                fs::remove_dir_all(&begun)?;
            }
            make(&begun)?;
            fs::rename(&begun, &done)?;
        }
        Ok(done)
    }
}

/// A file of the rival's.
pub(super) fn script(name: &str) -> PathBuf {
    root().join("xtask/rival").join(name)
}

/// A second model beside `model` that may be used up: its data is a link to the same bytes.
pub(super) fn twin(model: &Path) -> Result<PathBuf> {
    let twin = model.with_extension("twin");
    if twin.exists() {
        fs::remove_dir_all(&twin)?;
    }
    fs::create_dir(&twin)?;
    for entry in fs::read_dir(model)? {
        let name = entry?.file_name();
        let (from, to) = (model.join(&name), twin.join(&name));
        if name == "model.onnx" {
            fs::copy(from, to)?;
        } else {
            fs::hard_link(from, to)?;
        }
    }
    if fs::read_dir(&twin)?.next().is_none() {
        bail!("{} holds no model", model.display());
    }
    Ok(twin)
}
