//! `smelt unbundle`: takes a bundle apart, into the store or into a directory that needs none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_store::bundle::{Bundle, BundledKey, BundledOutput};
use smelt_store::{Digest, Holder, Store, Wait};

use super::bundle::failed;
use crate::atomic_dir::AtomicDir;
use crate::built;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::UnbundleFlags;
use crate::fleet::vouched::Origin;
use crate::leftovers::clear_dead;
use crate::load;
use crate::table::{Table, bytes};
use crate::telling::Telling;

/// What is left free beside what is unpacked: records and the journals of others.
const RESERVE_BYTES: u64 = 64 << 20;

pub(crate) fn run(flags: &UnbundleFlags) -> Result<Exit, Failed> {
    let bundle = Bundle::open(&flags.bundle).map_err(failed)?;
    let unpacked: Vec<PathBuf> = match (&flags.to, flags.list) {
        (_, true) => Vec::new(),
        (Some(folder), _) => into_folder(&bundle, folder)?,
        (None, _) => into_store(&bundle)?,
    };
    if flags.json {
        let listed =
            |(number, output): (usize, &BundledOutput)| listed(output, unpacked.get(number));
        let outputs: Vec<Value> = bundle.outputs().iter().enumerate().map(listed).collect();
        answer(format_args!("{}\n", json!({ "outputs": outputs })))?;
    } else if flags.list {
        answer(table(&bundle))?;
    } else {
        tell_next(&bundle, &unpacked, flags.to.is_some())?;
    }
    Ok(Exit::Ok)
}

fn listed(output: &BundledOutput, path: Option<&PathBuf>) -> Value {
    json!({
        "tree": output.tree, "bytes": output.files.bytes(), "files": output.files.files().len(),
        "keys": output.keys.iter().map(|key| key.key).collect::<Vec<_>>(),
        "refers": output.refers, "path": path,
    })
}

fn table(bundle: &Bundle) -> Table {
    let mut table = Table::new(&["Output", "Stage", "Files", "Size"]);
    for output in bundle.outputs() {
        let record = output.keys[0].record();
        let stage = record["stage"].as_str().unwrap_or("-");
        let count = output.files.files().len().to_string();
        table.row([output.tree.short(), stage.to_owned(), count, bytes(output.files.bytes())]);
    }
    table
}

/// Says what can be asked now, and how.
fn tell_next(bundle: &Bundle, unpacked: &[PathBuf], is_folder: bool) -> Result<(), Failed> {
    let all = if is_folder { Vec::new() } else { built::all()? };
    tell(format_args!("{} outputs, {}, whole", unpacked.len(), bytes(size(bundle.outputs()))));
    for (output, path) in bundle.outputs().iter().zip(unpacked) {
        let is_deployment = output.files.files().iter().any(|file| file.path == DEPLOYMENT_FILE);
        if !is_deployment {
            continue;
        }
        let built = all.iter().find(|built| built.tree == output.tree);
        let name = built.map_or_else(|| path.display().to_string(), |built| built.name(&all));
        let command = built.map(|built| built.asked_by());
        let command = command.or_else(|| built::does(path).map(built::asked_by)).unwrap_or("serve");
        tell(format_args!("ask it by: smelt {command} {name}"));
    }
    Ok(())
}

fn size(outputs: &[BundledOutput]) -> u64 {
    outputs.iter().map(|output| output.files.bytes()).sum()
}

/// Tells how much of a bundle is unpacked.
struct Course {
    telling: Telling,
    done: u64,
    all: u64,
}

impl Course {
    fn of(bundle: &Bundle) -> Self {
        Self { telling: Telling::new(), done: 0, all: size(bundle.outputs()) }
    }

    fn add(&mut self, some: u64, tree: &Digest) {
        self.done += some;
        let (done, all) = (self.done, self.all);
        self.telling.hear(&format!("[{done}/{all}] unpacking {}", tree.short()));
    }
}

/// Seals every output under its keys; those that are there, and those of an earlier call, are passed over.
fn into_store(bundle: &Bundle) -> Result<Vec<PathBuf>, Failed> {
    let store = Store::open(&load::root()?, Wait::Yes)?;
    clear_dead(&store)?;
    let holder = store.begin_hold(SystemTime::now())?;
    let keys = bundle.outputs().iter().flat_map(|output| &output.keys);
    holder.hold(&keys.map(|key| key.key).collect::<Vec<_>>())?;
    let missing = bundle.outputs().iter().filter(|output| !is_sealed(&store, output));
    let needed = missing.map(|output| output.files.bytes()).sum::<u64>();
    let free = store.free_bytes()?;
    if needed > 0 && needed.saturating_add(RESERVE_BYTES) > free {
        return Err(Failed::new(
            Exit::DoesNotFit,
            format!(
                "{} are to be unpacked and the store's disk has {} free: smelt cache gc, or SMELT_CACHE on a larger disk",
                bytes(needed),
                bytes(free)
            ),
        ));
    }
    let mut course = Course::of(bundle);
    let seal = |number: usize| seal(&store, &holder, bundle, number, &mut course);
    let places = (0..bundle.outputs().len()).map(seal).collect::<Result<Vec<_>, _>>()?;
    store.sync()?;
    Ok(places)
}

/// Whether every key of an output leads to it.
fn is_sealed(store: &Store, output: &BundledOutput) -> bool {
    output.keys.iter().all(|key| leads(store, key, output))
}

fn leads(store: &Store, key: &BundledKey, output: &BundledOutput) -> bool {
    let found = store.lookup(&key.key).ok().and_then(smelt_store::Lookup::hit);
    found.is_some_and(|found| found.digest == output.tree)
}

fn seal(
    store: &Store,
    holder: &Holder,
    bundle: &Bundle,
    number: usize,
    course: &mut Course,
) -> Result<PathBuf, Failed> {
    let output = &bundle.outputs()[number];
    for key in &output.keys {
        if leads(store, key, output) {
            course.add(output.files.bytes(), &output.tree);
        } else {
            let held = || {
                Failed::new(
                    Exit::Held,
                    format!("another run builds output {} just now", output.tree.short()),
                )
            };
            let _lock = store.try_lock_key(&key.key)?.ok_or_else(held)?;
            let folder = holder.work_dir(&output.tree.short())?;
            let mut told = |some| course.add(some, &output.tree);
            bundle.extract(number, &folder, &mut told).map_err(failed)?;
            let record = key.record();
            if Origin::is_in(&record) {
                store.begin_pulls()?;
            }
            let sealed = store.seal_referring(&key.key, &folder, record, &output.refers);
            sealed.map_err(|error| Failed::new(Exit::StageFailed, error))?;
        }
        key.recipes.iter().try_for_each(|recipe| store.alias_later(recipe, &key.key))?;
    }
    Ok(store.root().join("out").join(output.tree.to_string()))
}

/// Puts every output beside the others, by the names by which they refer to each other.
fn into_folder(bundle: &Bundle, folder: &Path) -> Result<Vec<PathBuf>, Failed> {
    let cannot = |error| {
        Failed::new(Exit::StageFailed, format!("cannot make {}: {error}", folder.display()))
    };
    fs::create_dir_all(folder).map_err(cannot)?;
    let mut course = Course::of(bundle);
    let mut put = |(number, output): (usize, &BundledOutput)| {
        let place = folder.join(output.tree.to_string());
        if place.exists() {
            course.add(output.files.bytes(), &output.tree);
            return Ok(place);
        }
        remove_left(folder, &output.tree);
        let draft = AtomicDir::begin(&place)?;
        let mut told = |some| course.add(some, &output.tree);
        bundle.extract(number, draft.path(), &mut told).map_err(failed)?;
        draft.finish()?;
        Ok(place)
    };
    bundle.outputs().iter().enumerate().map(&mut put).collect()
}

/// Removes drafts of an output whose smelt was killed.
fn remove_left(folder: &Path, tree: &Digest) {
    let begin = format!(".{tree}.smelt-");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(&begin));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
