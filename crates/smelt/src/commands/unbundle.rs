//! `smelt unbundle`: takes a bundle apart, into the store or into a directory that needs none.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_store::Digest;
use smelt_store::bundle::{Bundle, BundledOutput};

use super::bundle::failed;
use crate::atomic_dir::AtomicDir;
use crate::built;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::UnbundleFlags;
use crate::fleet::incoming::{self, Draft, Incoming, check_vouched};
use crate::fleet::vouched;
use crate::table::{Table, bytes};
use crate::telling::Telling;

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
    let (store, trust) = (incoming::store()?, vouched::believed()?);
    let incoming = Incoming::begin(&store, bundle.outputs(), &|_| {}, &trust)?;
    incoming.has_room("unpacked", 0)?;
    let mut course = Course::of(bundle);
    incoming.seal(Draft::New, &mut |number, folder| {
        let output = &bundle.outputs()[number];
        let Some(folder) = folder else {
            course.add(output.files.bytes(), &output.tree);
            return Ok(());
        };
        let mut told = |some| course.add(some, &output.tree);
        bundle.extract(number, folder, &mut told).map_err(failed)
    })
}

/// Puts every output beside the others, by the names by which they refer to each other.
fn into_folder(bundle: &Bundle, folder: &Path) -> Result<Vec<PathBuf>, Failed> {
    check_vouched(bundle.outputs(), &|_| {}, &vouched::believed()?)?;
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
