//! Pins what a pipeline names outside of the store: a `path:` to the digest of its tree, an `hf:`
//! to a commit.
//!
//! What is pinned enters the keys.  Nothing is downloaded here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use smelt_hub::{Address, Hub, HubError, Resolved};
use smelt_plan::pipeline::{InputRef, StageSpec};
use smelt_plan::plan::{HubPin, Pin};
use smelt_plan::{Digest, Kind, Pins, Pipeline, Plan, StageId, StageName};
use smelt_store::{DigestError, Store, is_disk_failing};

use crate::console::tell;
use crate::exit::{Exit, Failed};
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
    Pins {
        paths: pipeline.paths().into_iter().map(|path| (path.to_owned(), pin.clone())).collect(),
        hubs: pipeline.hubs().into_iter().map(|text| (text.to_owned(), nowhere())).collect(),
        ..Pins::default()
    }
}

/// No commit of any hub.
fn nowhere() -> HubPin {
    let [repo, revision, commit] = [const { String::new() }; 3];
    HubPin { repo, revision, commit, file: None, path: PathBuf::new() }
}

/// The addresses behind every `hf:`, by the text in the file.
pub(crate) fn addresses(pipeline: &Pipeline) -> Result<BTreeMap<String, Address>, Failed> {
    let address = |text: &str| {
        let address = text.parse().map_err(|error| at_hub(pipeline, text, &error))?;
        Ok((text.to_owned(), address))
    };
    pipeline.hubs().into_iter().map(address).collect()
}

/// Addresses of hubs, and of which of them a hub is asked, where it is not asked of all.
pub(crate) struct Addresses {
    pub(crate) all: BTreeMap<String, Address>,
    pub(crate) asked: Option<BTreeSet<String>>,
}

/// The `hf:` that may have to be fetched where these stages are built: a board without a network need not wait for what only
/// its host fetches.
pub(crate) fn hubs_of(
    pipeline: &Pipeline,
    built: impl FnOnce(&Plan) -> Result<BTreeSet<StageId>, Failed>,
) -> Result<BTreeSet<String>, Failed> {
    let plan = Plan::build(pipeline, &none(pipeline))?;
    let built = built(&plan)?;
    let names: BTreeSet<&StageName> = built.iter().map(|id| &plan.stage(*id).name).collect();
    let stages = pipeline.stages.iter().filter(|stage| names.contains(&stage.name));
    let hub = |from: &InputRef| match from {
        InputRef::Hub(text) => Some(text.clone()),
        InputRef::Stage(_) | InputRef::Path(_) => None,
    };
    let inputs = stages.flat_map(|stage| &stage.inputs);
    Ok(inputs.filter_map(|input| hub(&input.from)).collect())
}

/// Stages of which something that they name is not here, and what a run says that wants to build one.
pub(crate) type Absent = BTreeMap<StageName, Failed>;

/// Notes of these stages what is not here, or fails where there is no such list.
///
/// # Errors
/// Without a list, and where somebody wanted to stop.
pub(crate) fn absent_or_failed<'a>(
    absent: Option<&mut Absent>,
    stages: impl IntoIterator<Item = &'a StageName>,
    failed: Failed,
) -> Result<(), Failed> {
    match absent {
        Some(absent) if failed.exit != Exit::Interrupted => {
            for stage in stages {
                // The first reason is as good as another.
                absent.entry(stage.clone()).or_insert_with(|| failed.clone());
            }
            Ok(())
        }
        _ => Err(failed),
    }
}

/// Pins everything, relative to the pipeline's file.  What is not here is put into `absent`, if there is such a list.
pub(crate) fn all(
    pipeline: &Pipeline,
    file: &Path,
    addresses: Addresses,
    ask: Ask<'_>,
    store: &Store,
    mut absent: Option<&mut Absent>,
) -> Result<Pins, Failed> {
    let hubs = hubs(pipeline, addresses, ask, absent.as_deref_mut())?;
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let (paths, lost) = paths(pipeline, folder, store, absent.as_deref_mut())?;
    let device = device::facts(pipeline);
    if !matches!(ask, Ask::Cache) {
        let absent = device::absent(pipeline, &device);
        absent.iter().for_each(|line| tell(format_args!("warning: {line}")));
    }
    let (tools, mut unread) = tools::all(pipeline, &device, folder, store, absent.as_deref_mut())?;
    for stage in &pipeline.stages {
        let why = stage.inputs.iter().find_map(|input| match &input.from {
            InputRef::Path(path) => lost.get(path),
            InputRef::Stage(_) | InputRef::Hub(_) => None,
        });
        unread.extend(why.map(|why| (stage.name.clone(), why.clone())));
    }
    match unread.values().next() {
        // A run builds the rest, and reports it.
        Some(why) if !matches!(ask, Ask::HubForRun(_)) => {
            return Err(Failed::new(Exit::StageFailed, why));
        }
        _ => {}
    }
    unread.extend(absent.into_iter().flatten().map(|(name, why)| (name.clone(), why.to_string())));
    Ok(Pins { paths, hubs, device, tools, unread })
}

/// Why something outside of the store has no pin.
pub(crate) enum NoPin {
    /// It is wrong, or hashing was stopped.
    Refused(Failed),
    /// The disk that it lies on fails; what does not need it can be built all the same.
    Unread(String),
}

/// What is pinned, and why some of it could not be read, by the same names.
pub(crate) type WithUnread<Name, T> = (BTreeMap<Name, T>, BTreeMap<Name, String>);

/// The digest of a tree; `say` completes an error with what it is of.
pub(crate) fn digest(
    store: &Store,
    path: &Path,
    say: impl Fn(String) -> String,
) -> Result<Digest, NoPin> {
    let no_pin = |error: DigestError| match error {
        error if error.is_stopped() => NoPin::Refused(Failed::stopped()),
        error if error.is_disk_failing() => NoPin::Unread(say(error.to_string())),
        error => NoPin::Refused(Failed::new(Exit::BadPipeline, say(error.to_string()))),
    };
    Ok(store.digest_tree(path).map_err(no_pin)?.digest())
}

/// Where a path leads.
pub(crate) fn real(path: &Path, say: impl Fn(String) -> String) -> Result<PathBuf, NoPin> {
    fs::canonicalize(path).map_err(|error| {
        let why = say(format!("{}: {error}", path.display()));
        match is_disk_failing(&error) {
            true => NoPin::Unread(why),
            false => NoPin::Refused(Failed::new(Exit::BadPipeline, why)),
        }
    })
}

/// The pins of every `path:`, and why some of them could not be read.
fn paths(
    pipeline: &Pipeline,
    folder: &Path,
    store: &Store,
    mut absent: Option<&mut Absent>,
) -> Result<WithUnread<String, Pin>, Failed> {
    let (mut pins, mut unread) = (BTreeMap::new(), BTreeMap::new());
    for path in pipeline.paths() {
        let place = folder.join(path);
        let pin = match pin(pipeline, path, folder, store) {
            Ok(pin) => pin,
            Err(no_pin) => {
                match no_pin {
                    NoPin::Unread(why) => drop(unread.insert(path.to_owned(), why)),
                    // What is here and is no checkpoint is wrong on each side.
                    NoPin::Refused(failed) if place.exists() => return Err(failed),
                    NoPin::Refused(failed) => {
                        let stages = naming(pipeline, InputRef::Path(path.to_owned()));
                        absent_or_failed(absent.as_deref_mut(), stages, failed)?;
                    }
                }
                Pin::unread(std::path::absolute(&place).unwrap_or(place))
            }
        };
        pins.insert(path.to_owned(), pin);
    }
    Ok((pins, unread))
}

/// The stages that name this.
fn naming(pipeline: &Pipeline, from: InputRef) -> impl Iterator<Item = &StageName> {
    let names = move |stage: &&StageSpec| stage.inputs.iter().any(|input| input.from == from);
    pipeline.stages.iter().filter(names).map(|stage| &stage.name)
}

fn pin(pipeline: &Pipeline, path: &str, folder: &Path, store: &Store) -> Result<Pin, NoPin> {
    let place = place_of(pipeline, &InputRef::Path(path.to_owned()));
    let say = |what: String| format!("{place}path:{path}: {what}");
    let refuse = |exit: Exit, what: String| NoPin::Refused(Failed::new(exit, say(what)));
    let absolute = real(&folder.join(path), say)?;
    utf8(&absolute, "rename it").map_err(NoPin::Refused)?;
    if store.root().starts_with(&absolute) {
        let what = format!(
            "it holds the store {}, which changes with every run; set SMELT_CACHE to a directory outside",
            store.root().display()
        );
        return Err(refuse(Exit::BadPipeline, what));
    }
    let may_be_source = match may_be_checkpoint(&absolute) {
        _ if !is_source(pipeline, path) => true,
        Err(error) if is_disk_failing(&error) => {
            return Err(NoPin::Unread(say(format!("{}: {error}", absolute.display()))));
        }
        looked => looked.unwrap_or(false),
    };
    if !may_be_source {
        let what = format!(
            "{} is no checkpoint: it holds none of {}, nor a .safetensors or .gguf file",
            absolute.display(),
            CHECKPOINT_NAMES.join(", ")
        );
        return Err(refuse(Exit::BadModel, what));
    }
    let digest = digest(store, &absolute, say)?;
    Ok(Pin { path: absolute, digest })
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
pub(crate) fn may_be_checkpoint(path: &Path) -> io::Result<bool> {
    let is_weights = |path: &Path| {
        path.extension().is_some_and(|ending| ending == "safetensors" || ending == "gguf")
    };
    if !fs::metadata(path)?.is_dir() {
        return Ok(is_weights(path));
    }
    for name in CHECKPOINT_NAMES {
        if path.join(name).try_exists()? {
            return Ok(true);
        }
    }
    for entry in fs::read_dir(path)? {
        if is_weights(&entry?.path()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn hubs(
    pipeline: &Pipeline,
    Addresses { all, asked }: Addresses,
    ask: Ask<'_>,
    mut absent: Option<&mut Absent>,
) -> Result<BTreeMap<String, HubPin>, Failed> {
    let mut pins = BTreeMap::new();
    for (text, address) in all {
        let is_asked = asked.as_ref().is_none_or(|asked| asked.contains(&text));
        let ask = if is_asked { ask } else { Ask::Cache };
        let Resolved { commit, remembered } = match resolve(&address, ask)? {
            Ok(resolved) => resolved,
            Err(error) => {
                let failed = at_hub(pipeline, &text, &error);
                let stages = naming(pipeline, InputRef::Hub(text.clone()));
                absent_or_failed(absent.as_deref_mut(), stages, failed)?;
                pins.insert(text, nowhere());
                continue;
            }
        };
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
