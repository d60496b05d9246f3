//! Plays a small run against a store and judges what is left of it.
//!
//! The script does everything a run does, and notes what it was promised.  The audit looks at a
//! disk after trouble: promises kept, nothing half-made, and the script can be played to its end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::collect::Limits;
use crate::digest::Digest;
use crate::disk::sim::SimDisk;
use crate::disk::{Disk, FileKind, Open, make_dir, write_all};
use crate::log::Log;
use crate::manifest::{FileEntry, Manifest};
use crate::output::{Location, Lookup, Output};
use crate::run::{DeadRun, Run, RunId};
use crate::store::Store;
use crate::walk::{Links, walk};

pub(super) const ROOT: &str = "/data/kept/cache";
const MODEL: &str = "/data/model";

/// A stage and the files it makes: path, content, executable.
struct Stage {
    name: &'static str,
    files: &'static [(&'static str, &'static str, bool)],
}

const ONNX: &[(&str, &str, bool)] = &[
    ("model.onnx", "a graph of one node, and a name long enough to be torn in the middle", false),
    ("model.onnx.data", "weights weights weights weights weights weights weights weights", false),
    ("notes/readme.txt", "made by a test", false),
];
const ENGINE: &[(&str, &str, bool)] = &[("engine", "#!/bin/sh\necho an engine that runs\n", true)];

/// The first and the last make the same content.
const STAGES: [Stage; 3] = [
    Stage { name: "vision-onnx", files: ONNX },
    Stage { name: "vision-engine", files: ENGINE },
    Stage { name: "vision-onnx-again", files: ONNX },
];

/// What was promised: a call returned without an error.
#[derive(Clone, Default)]
pub(super) struct Promises {
    sealed: Vec<&'static str>,
    source: bool,
    aliases: Vec<&'static str>,
    journals: BTreeMap<RunId, Vec<Value>>,
}

impl Promises {
    /// What was promised of outputs and journals alone.
    pub(super) fn without_aliases(&self) -> Self {
        Self { aliases: Vec::new(), source: false, ..self.clone() }
    }
}

/// A disk with a model on it.
pub(super) fn disk_with_model() -> SimDisk {
    let disk = SimDisk::new();
    disk.put(&Path::new(MODEL).join("config.json"), b"{\"hidden\": 8}");
    disk.put(&Path::new(MODEL).join("model.safetensors"), &[7; 300]);
    disk
}

pub(super) fn key(name: &str) -> Digest {
    Digest::of(format!("content key of {name}").as_bytes())
}

fn recipe(name: &str) -> Digest {
    Digest::of(format!("recipe key of {name}").as_bytes())
}

/// Any error as text: the script only needs to know that there was one.
type Played<T> = Result<T, String>;

fn text(error: impl ToString) -> String {
    error.to_string()
}

pub(super) fn open(disk: &SimDisk) -> Played<Store> {
    Store::open_on(Arc::new(disk.clone()), Path::new(ROOT)).map_err(text)
}

/// Plays a run from its start to its end.
pub(super) fn play(disk: &SimDisk, promises: &mut Promises) -> Played<()> {
    let store = open(disk)?;
    for dead in store.dead_runs().map_err(text)? {
        dead.and_then(DeadRun::clear).map_err(text)?;
    }
    let now = UNIX_EPOCH + Duration::from_nanos(disk.moment().now_ns as u64);
    let run = store.begin_run(now).map_err(text)?;
    let recipes: Vec<Digest> = STAGES.iter().map(|stage| recipe(stage.name)).collect();
    run.hold(&recipes).map_err(text)?;
    note(&run, promises, json!({"event": "started"}))?;
    reference(&store, promises)?;
    for stage in &STAGES {
        build(disk, &store, &run, stage, promises)?;
    }
    for stage in &STAGES {
        if store.lookup(&key(stage.name)).map_err(text)?.hit().is_none() {
            return Err(format!("{} was built and is not there", stage.name));
        }
    }
    let keys: Vec<Digest> = STAGES.iter().map(|stage| key(stage.name)).collect();
    run.keep_for("script", &keys).map_err(text)?;
    note(&run, promises, json!({"event": "ended"}))?;
    run.finish().map_err(text)?;
    // Without limits nothing goes that anyone was promised.
    store.collect(&Limits::default()).map_err(text)?;
    Ok(())
}

fn note(run: &Run, promises: &mut Promises, record: Value) -> Played<()> {
    let journal = promises.journals.entry(run.id().clone()).or_default();
    run.journal().append(&record).map_err(text)?;
    journal.push(record);
    Ok(())
}

fn reference(store: &Store, promises: &mut Promises) -> Played<()> {
    let manifest = store.digest_tree(Path::new(MODEL)).map_err(text)?;
    let record = json!({"from": "path"});
    store.record_reference(&key("model"), Path::new(MODEL), manifest, record).map_err(text)?;
    promises.source = true;
    Ok(())
}

fn build(
    disk: &SimDisk,
    store: &Store,
    run: &Run,
    stage: &Stage,
    promises: &mut Promises,
) -> Played<()> {
    let key = key(stage.name);
    let _lock = store.try_lock_key(&key).map_err(text)?.ok_or("the key is locked")?;
    run.claim(&key).map_err(text)?;
    if store.lookup(&key).map_err(text)?.hit().is_none() {
        let dir = run.work_dir(stage.name).map_err(text)?;
        make(disk, &dir, stage.files)?;
        let output = store.seal(&key, &dir, json!({"stage": stage.name})).map_err(text)?;
        if output.manifest != manifest_of(stage.files) {
            return Err(format!("{} was sealed with other files", stage.name));
        }
    }
    promises.sealed.push(stage.name);
    store.alias(&recipe(stage.name), &key).map_err(text)?;
    promises.aliases.push(stage.name);
    note(run, promises, json!({"event": "sealed", "stage": stage.name}))
}

/// Stands in for a stage's process, which syncs nothing.
fn make(disk: &SimDisk, dir: &Path, files: &[(&str, &str, bool)]) -> Played<()> {
    for (path, content, executable) in files {
        let path = dir.join(path);
        make_dir(disk, path.parent().unwrap()).map_err(text)?;
        let file = disk.open(&path, Open::New).map_err(text)?;
        write_all(file.as_ref(), &path, 0, content.as_bytes()).map_err(text)?;
        if *executable {
            disk.chmod(&path, 0o755).map_err(text)?;
        }
    }
    Ok(())
}

fn manifest_of(files: &[(&str, &str, bool)]) -> Manifest {
    let entry = |&(path, content, executable): &(&str, &str, bool)| FileEntry {
        path: path.to_owned(),
        size: content.len() as u64,
        sha256: Digest::of(content.as_bytes()),
        executable,
    };
    Manifest::new(files.iter().map(entry).collect()).unwrap()
}

/// What an audit must not complain of.
#[derive(Clone, Default)]
pub(super) struct Excuses {
    /// A sealed file could not be read, so its tree was right to be given up.
    pub(super) unreadable: bool,
    /// Trees that were damaged before the run, as [`half_made`] lists them.
    pub(super) damaged: Vec<String>,
}

/// Everything that is wrong with the disk, given what was promised on it.
pub(super) fn audit(disk: &SimDisk, promises: &Promises, excuses: &Excuses) -> Vec<String> {
    let mut wrong = half_made(disk);
    wrong.retain(|tree| !excuses.damaged.contains(tree));
    wrong.extend(out_of_order(disk));
    match open(disk) {
        Ok(store) => {
            wrong.extend(broken_promises(disk, &store, promises, excuses.unreadable));
            wrong.extend(leftovers(disk, &store));
        }
        Err(error) => wrong.push(format!("the store does not open: {error}")),
    }
    let mut again = Promises::default();
    match play(disk, &mut again) {
        Ok(()) => {
            wrong.extend(half_made(disk));
            match open(disk) {
                Ok(store) => wrong.extend(broken_promises(disk, &store, &again, false)),
                Err(error) => wrong.push(format!("the store does not open again: {error}")),
            }
        }
        Err(error) => wrong.push(format!("the script cannot be finished: {error}")),
    }
    wrong
}

/// Trees in `out/` that are not what their name says, read without the store.
pub(super) fn half_made(disk: &SimDisk) -> Vec<String> {
    let out = Path::new(ROOT).join("out");
    let names = disk.list(&out).unwrap_or_default();
    let trees = names.iter().map(|name| out.join(name));
    trees.filter(|tree| !is_whole(disk, tree)).map(|t| format!("half-made {t:?}")).collect()
}

/// What is durable although something it stands on is not.
fn out_of_order(disk: &SimDisk) -> Vec<String> {
    let is_there = |path: &str| disk.lstat(&Path::new(ROOT).join(path)).is_ok();
    let mut wrong = Vec::new();
    if is_there("FORMAT") && !["out", "journal", "work", "runs"].into_iter().all(is_there) {
        wrong.push("FORMAT stands without the directories".to_owned());
    }
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = Log::open_to_read(shared, Path::new(ROOT).join("ac.log")).unwrap();
    let mut note = |text: &str| {
        let record: Value = serde_json::from_str(text).unwrap();
        let Some(tree) = record["seal"]["tree"].as_str() else { return };
        if !is_there(&format!("out/{tree}")) && !is_there(&format!("quarantine/{tree}")) {
            wrong.push(format!("a record names the tree {tree}, which is nowhere"));
        }
    };
    if let Some(mut log) = log {
        log.read_new(&mut |_, text| note(text)).unwrap();
    }
    wrong
}

fn is_whole(disk: &SimDisk, tree: &Path) -> bool {
    let Ok(found) = walk(disk, tree, Links::Keep) else { return false };
    let entries = found.files.iter().map(|file| {
        let bytes = disk.get(&tree.join(&file.path)).unwrap();
        FileEntry {
            path: file.path.to_str().unwrap().to_owned(),
            size: bytes.len() as u64,
            sha256: Digest::of(&bytes),
            executable: file.stat.mode & 0o100 != 0,
        }
    });
    let read_only = found.files.iter().all(|file| file.stat.mode & 0o222 == 0);
    let digest = Manifest::new(entries.collect()).unwrap().digest().to_string();
    read_only && tree.file_name().unwrap() == digest.as_str()
}

pub(super) fn broken_promises(
    disk: &SimDisk,
    store: &Store,
    promises: &Promises,
    may_be_unreadable: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for Stage { name, files } in &STAGES {
        match store.lookup(&key(name)) {
            Ok(Lookup::Hit(output)) => wrong.extend(wrong_output(disk, name, files, &output)),
            Ok(other) if promises.sealed.contains(name) && !may_be_unreadable => {
                wrong.push(format!("{name} was promised and is {other:?}"));
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("{name} cannot be looked up: {error}")),
        }
        let resolved = store.resolve(&recipe(name)).unwrap_or(None);
        if promises.aliases.contains(name) && resolved != Some(key(name)) {
            wrong.push(format!("the alias of {name} was promised and is {resolved:?}"));
        }
    }
    let source = store.lookup(&key("model"));
    if promises.source && !matches!(source, Ok(Lookup::Hit(_))) {
        wrong.push(format!("the source was promised and is {source:?}"));
    }
    for (id, promised) in &promises.journals {
        let mut found = Vec::new();
        let _ = store.read_journal(id, |record| found.push(record));
        // One more may have been written without being promised.
        if !found.starts_with(promised) || found.len() > promised.len() + 1 {
            wrong.push(format!("the journal {id} promised {promised:?} and has {found:?}"));
        }
    }
    wrong
}

fn wrong_output(
    disk: &SimDisk,
    name: &str,
    files: &[(&str, &str, bool)],
    output: &Output,
) -> Option<String> {
    let Location::Sealed(dir) = &output.location else {
        return Some(format!("{name} is not sealed"));
    };
    let is_right = output.manifest == manifest_of(files)
        && files.iter().all(|(path, content, _)| {
            disk.get(&dir.join(path)).is_some_and(|bytes| bytes == content.as_bytes())
        })
        && output.record == json!({"stage": name});
    (!is_right).then(|| format!("{name} is a hit with wrong content"))
}

/// What clearing the dead runs leaves behind.
pub(super) fn leftovers(disk: &SimDisk, store: &Store) -> Vec<String> {
    let cleared = store
        .dead_runs()
        .and_then(|mut dead| dead.try_for_each(|dead| dead.and_then(DeadRun::clear)));
    let mut wrong: Vec<String> = cleared.err().map(text).into_iter().collect();
    for dir in ["work", "runs"] {
        let dir: PathBuf = Path::new(ROOT).join(dir);
        let names = disk.list(&dir).unwrap_or_default();
        // The probe itself holds nothing, so every name here is a leftover.
        wrong.extend(names.iter().map(|name| format!("{name:?} is left in {}", dir.display())));
    }
    wrong
}

/// Whether the trouble met was a look at a sealed file, after which its tree may be given up.
pub(super) fn is_look_at_sealed(met: &str) -> bool {
    let looks = ["open", "read", "stat", "list", "stat of"];
    let sealed = format!("{ROOT}/out/");
    looks.iter().any(|look| met.starts_with(&format!("{look} {sealed}")))
}

#[test]
fn the_script_plays_twice() {
    let disk = disk_with_model();
    let mut promises = Promises::default();
    play(&disk, &mut promises).unwrap();
    assert_eq!(audit(&disk, &promises, &Excuses::default()), Vec::<String>::new());
    assert_eq!(promises.sealed.len(), 3);
    let trees = disk.list(&Path::new(ROOT).join("out")).unwrap();
    assert_eq!(trees.len(), 2, "two stages made the same content");
    assert!(disk.lstat(Path::new(ROOT)).unwrap().kind == FileKind::Dir);
}
