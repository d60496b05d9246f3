//! Pins what a pipeline names outside of the store: a `path:` to the digest of its tree, an `hf:`
//! to a commit.
//!
//! What is pinned enters the keys.  Nothing is downloaded here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use smelt_hub::{Address, Hub, HubError, Resolved};
use smelt_plan::pipeline::InputRef;
use smelt_plan::plan::{HubPin, Pin};
use smelt_plan::{Digest, Kind, Pins, Pipeline};
use smelt_store::{DigestError, Store};

use crate::exit::{Exit, Failed};
use crate::say::tell;
use crate::{device, hub, tools};

/// How soon somebody who presses Ctrl-C while a hub is slow gets an answer.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// Who says which commit a branch is at.
#[derive(Clone, Copy)]
pub(crate) enum Ask<'a> {
    /// The cache alone, as the last run left it: of what it does not know, nothing was built here.
    Cache,
    /// The hub; the cache if the hub does not answer.
    Hub,
    /// The same for a run, which the flag stops, and which lets the cache remember the answer.
    HubForRun(&'a AtomicBool),
}

/// Pins that mean nothing, to order a pipeline of which nothing is asked or read.
pub(crate) fn none(pipeline: &Pipeline) -> Pins {
    let pin = Pin { path: PathBuf::new(), digest: Digest::from_bytes([0; 32]) };
    let [repo, revision, commit] = [const { String::new() }; 3];
    let hub = HubPin { repo, revision, commit, file: None, path: PathBuf::new() };
    Pins {
        paths: pipeline.paths().into_iter().map(|path| (path.to_owned(), pin.clone())).collect(),
        hubs: pipeline.hubs().into_iter().map(|text| (text.to_owned(), hub.clone())).collect(),
        ..Pins::default()
    }
}

/// The addresses behind every `hf:`, by the text in the file.
pub(crate) fn addresses(pipeline: &Pipeline) -> Result<BTreeMap<String, Address>, Failed> {
    let address = |text: &str| {
        let address = text.parse().map_err(|error| at_hub(pipeline, text, &error))?;
        Ok((text.to_owned(), address))
    };
    pipeline.hubs().into_iter().map(address).collect()
}

/// Pins everything, relative to the pipeline's file.
pub(crate) fn all(
    pipeline: &Pipeline,
    file: &Path,
    addresses: BTreeMap<String, Address>,
    ask: Ask<'_>,
    store: &Store,
) -> Result<Pins, Failed> {
    let hubs = if addresses.is_empty() { BTreeMap::new() } else { hubs(pipeline, addresses, ask)? };
    let paths = paths(pipeline, file, store)?;
    let device = device::facts(pipeline);
    if !matches!(ask, Ask::Cache) {
        let absent = device::absent(pipeline, &device);
        absent.iter().for_each(|line| tell(format_args!("warning: {line}")));
    }
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let tools = tools::all(pipeline, folder, store)?;
    Ok(Pins { paths, hubs, device, tools })
}

fn paths(pipeline: &Pipeline, file: &Path, store: &Store) -> Result<BTreeMap<String, Pin>, Failed> {
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let mut pins = BTreeMap::new();
    for path in pipeline.paths() {
        let place = place_of(pipeline, &InputRef::Path(path.to_owned()));
        let fail =
            |what: String| Failed::new(Exit::BadPipeline, format!("{place}path:{path}: {what}"));
        let absolute = fs::canonicalize(folder.join(path))
            .map_err(|error| fail(format!("{}: {error}", folder.join(path).display())))?;
        utf8(&absolute, "rename it")?;
        if store.root().starts_with(&absolute) {
            return Err(fail(format!(
                "it holds the store {}, which changes with every run; set SMELT_CACHE to a directory outside",
                store.root().display()
            )));
        }
        if is_source(pipeline, path) && !may_be_checkpoint(&absolute) {
            let what = format!(
                "{} is no checkpoint: it holds none of {}, nor a .safetensors or .gguf file",
                absolute.display(),
                CHECKPOINT_NAMES.join(", ")
            );
            return Err(Failed::new(Exit::BadModel, format!("{place}path:{path}: {what}")));
        }
        let digest = |error: DigestError| match error.is_stopped() {
            true => Failed::stopped(),
            false => fail(error.to_string()),
        };
        let manifest = store.digest_tree(&absolute).map_err(digest)?;
        pins.insert(path.to_owned(), Pin { path: absolute, digest: manifest.digest() });
    }
    Ok(pins)
}

/// What directories of checkpoints have, each at least one.
const CHECKPOINT_NAMES: [&str; 3] = ["config.json", "modules.json", "tokenizer.json"];

/// Whether a source stage names the path.
fn is_source(pipeline: &Pipeline, path: &str) -> bool {
    let from = InputRef::Path(path.to_owned());
    let mut stages = pipeline.stages.iter().filter(|stage| stage.kind == Kind::Source);
    stages.any(|stage| stage.inputs.iter().any(|input| input.from == from))
}

/// Whether there is anything of a checkpoint, looked at before gigabytes are read that are none.
fn may_be_checkpoint(path: &Path) -> bool {
    let is_weights = |path: &Path| {
        path.extension().is_some_and(|ending| ending == "safetensors" || ending == "gguf")
    };
    if !path.is_dir() {
        return is_weights(path);
    }
    let has_name = CHECKPOINT_NAMES.iter().any(|name| path.join(name).exists());
    let files = || fs::read_dir(path).into_iter().flatten().flatten();
    has_name || files().any(|entry| is_weights(&entry.path()))
}

fn hubs(
    pipeline: &Pipeline,
    addresses: BTreeMap<String, Address>,
    ask: Ask<'_>,
) -> Result<BTreeMap<String, HubPin>, Failed> {
    let mut pins = BTreeMap::new();
    for (text, address) in addresses {
        let Resolved { commit, remembered } =
            resolve(&address, ask)?.map_err(|error| at_hub(pipeline, &text, &error))?;
        let hub = Hub::from_env().map_err(|error| hub::failed(&error))?;
        match remembered {
            Some(why) => tell(format_args!("smelt: {}", hub::not_asked(&address, &commit, &why))),
            // A cache that cannot be written to is no reason not to build.
            None if matches!(ask, Ask::HubForRun(_)) => drop(hub.note(&address, &commit)),
            None => {}
        }
        let path = hub.view(&address, &commit);
        utf8(&path, "set HF_HOME to another directory")?;
        let Address { repo, revision, file } = address;
        let file = file.map(|file| file.as_str().to_owned());
        let [repo, revision, commit] = [repo.as_str(), revision.as_str(), commit.as_str()];
        let [repo, revision, commit] = [repo, revision, commit].map(str::to_owned);
        pins.insert(text, HubPin { repo, revision, commit, file, path });
    }
    Ok(pins)
}

/// Asks in a thread that a stopped run leaves behind: a network can be silent for minutes.
fn resolve(address: &Address, ask: Ask<'_>) -> Result<Result<Resolved, HubError>, Failed> {
    let address = address.clone();
    let is_asked = !matches!(ask, Ask::Cache);
    let work = move || {
        let hub = Hub::from_env()?;
        if is_asked { hub.resolve(&address) } else { hub.known(&address) }
    };
    let Ask::HubForRun(stop) = ask else { return Ok(work()) };
    let (sender, receiver) = sync_channel(1);
    // Whoever has stopped does not listen any more.
    thread::spawn(move || sender.send(work()).unwrap_or_default());
    loop {
        match receiver.recv_timeout(STOP_PERIOD) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) if !stop.load(Ordering::Relaxed) => {}
            Err(_) => return Err(Failed::stopped()),
        }
    }
}

/// An error about an `hf:`, with its place in the file.
fn at_hub(pipeline: &Pipeline, text: &str, error: &HubError) -> Failed {
    let place = place_of(pipeline, &InputRef::Hub(text.to_owned()));
    let out = hub::way_out(error, "--set PARAM=path:DIR");
    Failed::new(hub::exit_of(error), format!("{place}hf:{text}: {error}{out}"))
}

/// `FILE:LINE:COLUMN: ` of the first edge that names this.
fn place_of(pipeline: &Pipeline, from: &InputRef) -> String {
    let mut edges = pipeline.stages.iter().flat_map(|stage| &stage.inputs);
    let edge = edges.find(|edge| edge.from == *from);
    edge.map_or_else(String::new, |edge| format!("{}:{}: ", pipeline.file, edge.place))
}

/// Orders, reports and manifests are text.
pub(crate) fn utf8(path: &Path, hint: &str) -> Result<(), Failed> {
    let bad = || Failed::usage(format!("the path {} is not UTF-8; {hint}", path.display()));
    path.to_str().map(|_| ()).ok_or_else(bad)
}
