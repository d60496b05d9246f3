//! Keeps lists of keys whose outputs a collection must not touch.
//!
//! A run holds one list while it lives, and claims each key before it looks for its output or
//! builds it; a pipeline keeps the list of its last good run.  A list may name recipe keys, content
//! keys and trees.  Whoever changes what is held takes `roots.lock` shared for a moment; a collection
//! takes it alone for each thing it removes, and reads all again that is not as it knows it: so what
//! is found after it was claimed stays.  A server that has loaded an output holds it in the same way,
//! by a [`Holder`]: a run without a journal, so that nobody takes it for one that builds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::disk::{
    Disk, DiskError, LockGuard, LockKind, Open, Wait, fault, present, read_small, write_all,
    write_new,
};
use crate::layout::names;
use crate::run::{Run, RunId};
use crate::store::{Store, StoreError};

/// Two million keys: far above any plan, and bounds what a damaged file makes us hold.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// One short line of JSON, or one digest.
const NOTE_BYTES_MAX: u64 = 4096;
/// A digest in a list.
const KEY_BYTES: usize = 32;

/// A list that is held while nobody runs, in a file of `roots/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    pipeline: String,
    /// The run that first led to these outputs; empty for a pin.
    run: String,
    list: Digest,
}

/// A pipeline's last good run.
const LAST: &str = "last-";
/// The last run of a command, where it did not end well, or goes on.
const OPEN: &str = "open-";
/// An output that somebody wants to keep.
const PIN: &str = "pin-";

/// Which lists a collection leaves alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spare {
    #[default]
    All,
    /// What runs made that did not end well may go.
    AllButOpen,
    /// What runs led to that have ended may go: pins stay, and what a run or a server that lives has.
    InUse,
}

impl Spare {
    /// Whether the root of that name counts.
    fn counts(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllButOpen => !name.starts_with(OPEN),
            Self::InUse => name.starts_with(PIN),
        }
    }
}

/// What is held just now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roots {
    /// The lists, by the file that names them.
    lists: BTreeMap<PathBuf, Digest>,
    /// The files of claims, which only grow, with their sizes.
    claims: BTreeMap<PathBuf, u64>,
    /// Runs whose journals are kept: the living, and the last good ones.
    pub(crate) runs: Vec<RunId>,
}

/// Who uses outputs and builds none; dropped, it holds nothing.
pub struct Holder {
    store: Store,
    id: RunId,
    /// Gone when it is let go of.
    lock: Option<LockGuard>,
}

impl Holder {
    /// From now on a collection spares what these keys and trees lead to, and nothing that was held
    /// before.
    pub fn hold(&self, keys: &[Digest]) -> Result<(), StoreError> {
        self.store.hold(&self.id, keys)
    }

    /// Creates an empty directory for this holder alone, removing one of that name; it goes with the holder.
    pub fn work_dir(&self, name: &str) -> Result<PathBuf, StoreError> {
        self.store.work_dir_of(&self.id, name)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // What cannot be removed now is removed as a dead run's.
        let cleared = self.lock.take().map(|lock| self.store.clear(&self.id, lock));
        drop(cleared);
    }
}

impl Run {
    /// From now on a collection spares what these keys lead to, until the run has ended.
    ///
    /// Recipe keys are followed to the content keys they lead to at the time: a plan's recipe keys
    /// spare the run work.  What it relies on, it claims besides.
    pub fn hold(&self, keys: &[Digest]) -> Result<(), StoreError> {
        self.store().hold(self.id(), keys)
    }

    /// From now on a collection spares what this key leads to, and will once it is built, until the
    /// run has ended.  Call it before the look-up: what that finds then stays.
    pub fn claim(&self, key: &Digest) -> Result<(), StoreError> {
        let mut claimed = self.claimed();
        if claimed.contains(key) {
            return Ok(());
        }
        let (store, path) = (self.store(), self.store().layout().run_claims(self.id()));
        let at = (claimed.len() * KEY_BYTES) as u64;
        let _short = store.share_roots()?;
        store.with_ballast(|| {
            let file = store.disk().open(&path, Open::Write).map_err(fault("open", &path))?;
            // Not synced: after a power cut the run is no more.
            Ok(write_all(file.as_ref(), &path, at, key.as_bytes())?)
        })?;
        claimed.insert(*key);
        Ok(())
    }

    /// A collection spares what these recipe keys lead to, then and later, and this run's journal and logs, until
    /// the run says that it ended well, is forgotten, or another run of the same command says the same.
    pub fn keep_open(
        &self,
        command: &str,
        pipeline: &str,
        keys: &[Digest],
    ) -> Result<(), StoreError> {
        let (disk, layout) = (self.store().disk(), self.store().layout());
        let path = layout.roots().join(root_name(OPEN, command));
        let _short = self.store().share_roots()?;
        let list = self.store().lay_list(self.id(), keys)?;
        let last = Last { pipeline: pipeline.to_owned(), run: self.id().to_string(), list };
        let text = serde_json::to_string(&last).expect("strings and a digest are JSON");
        Ok(replace_beside_others(disk, &path, self.id(), text.as_bytes())?)
    }

    /// The run ended well: nothing waits to go on.
    pub fn close_open(&self, command: &str) -> Result<(), StoreError> {
        let path = self.store().layout().roots().join(root_name(OPEN, command));
        // A newer run of the command has its own, which stays.
        self.store().remove_root(&path, |last| last.run == self.id().as_str()).map(drop)
    }

    /// A collection spares what these keys lead to, and this run's journal and logs, until another
    /// run of the pipeline says the same.
    pub fn keep_for(&self, pipeline: &str, keys: &[Digest]) -> Result<(), StoreError> {
        let (disk, layout) = (self.store().disk(), self.store().layout());
        let path = layout.roots().join(root_name(LAST, pipeline));
        let _short = self.store().share_roots()?;
        let list = self.store().lay_list(self.id(), keys)?;
        let same = |last: &Last| last.list == list && last.pipeline == pipeline;
        if read_last(disk, &path).is_ok_and(|last| last.as_ref().is_some_and(same)) {
            return Ok(());
        }
        let last = Last { pipeline: pipeline.to_owned(), run: self.id().to_string(), list };
        let text = serde_json::to_string(&last).expect("strings and a digest are JSON");
        Ok(replace_beside_others(disk, &path, self.id(), text.as_bytes())?)
    }
}

impl Store {
    /// Begins to use outputs at the time `now`.
    pub fn begin_hold(&self, now: SystemTime) -> Result<Holder, StoreError> {
        self.refuse_read_only("hold outputs")?;
        let (id, lock) = self.new_name(now)?;
        Ok(Holder { store: self.clone(), id, lock: Some(lock) })
    }

    /// A collection spares the output from now on, and what it refers to.
    pub fn pin(&self, tree: &Digest) -> Result<(), StoreError> {
        self.refuse_read_only("pin an output")?;
        let path = self.layout().roots().join(pin_name(tree));
        // Alone, so that the draft is nobody else's; no run has this name.
        let _alone = self.lock_roots_alone()?;
        let by = RunId::new(SystemTime::UNIX_EPOCH, 0);
        let list = self.lay_list(&by, &[*tree])?;
        let pin = Last { pipeline: String::new(), run: String::new(), list };
        let text = serde_json::to_string(&pin).expect("strings and a digest are JSON");
        Ok(replace_beside_others(self.disk(), &path, &by, text.as_bytes())?)
    }

    /// Takes a pin back; says whether there was one.
    pub fn unpin(&self, tree: &Digest) -> Result<bool, StoreError> {
        self.refuse_read_only("unpin an output")?;
        self.remove_root(&self.layout().roots().join(pin_name(tree)), |_| true)
    }

    /// The pinned outputs, whether or not they are there.
    pub fn pins(&self) -> Result<Vec<Digest>, StoreError> {
        let names = names(self.disk(), &self.layout().roots())?;
        let mut pins: Vec<Digest> =
            names.iter().filter_map(|name| name.strip_prefix(PIN)?.parse().ok()).collect();
        pins.sort_unstable();
        Ok(pins)
    }

    /// Runs that did not end well, or go on, of whose results a collection spares what there is.
    pub fn open_runs(&self) -> Result<Vec<RunId>, StoreError> {
        let mut runs = Vec::new();
        for path in self.open_roots()? {
            let last = read_last(self.disk(), &path)?;
            runs.extend(last.and_then(|last| last.run.parse().ok()));
        }
        runs.sort();
        Ok(runs)
    }

    /// A collection need not spare what this run made; says whether it had to.
    pub fn forget_open(&self, run: &RunId) -> Result<bool, StoreError> {
        self.refuse_read_only("forget a run")?;
        let mut is_found = false;
        for path in self.open_roots()? {
            is_found |= self.remove_root(&path, |last| last.run == run.as_str())?;
        }
        Ok(is_found)
    }

    /// A collection need not spare what the last good run of this pipeline led to; says whether it had to.
    pub fn forget_last(&self, pipeline: &str) -> Result<bool, StoreError> {
        self.refuse_read_only("forget a pipeline")?;
        let path = self.layout().roots().join(root_name(LAST, pipeline));
        self.remove_root(&path, |last| last.pipeline == pipeline)
    }

    fn open_roots(&self) -> Result<Vec<PathBuf>, DiskError> {
        let dir = self.layout().roots();
        let names = names(self.disk(), &dir)?.into_iter();
        Ok(names
            .filter(|name| is_root(name) && name.starts_with(OPEN))
            .map(|n| dir.join(n))
            .collect())
    }

    /// Removes a root for good if it is the one that is meant; says whether it was.
    fn remove_root(
        &self,
        path: &Path,
        is_meant: impl Fn(&Last) -> bool,
    ) -> Result<bool, StoreError> {
        // Alone, so that it is not replaced in between.
        let _alone = self.lock_roots_alone()?;
        if !read_last(self.disk(), path)?.is_some_and(|last| is_meant(&last)) {
            return Ok(false);
        }
        present(self.disk().unlink(path)).map_err(fault("remove", path))?;
        let dir = self.layout().roots();
        self.disk().sync_dir(&dir).map_err(fault("sync the directory", &dir))?;
        Ok(true)
    }

    /// Puts these keys in the place of those that `id` held.
    fn hold(&self, id: &RunId, keys: &[Digest]) -> Result<(), StoreError> {
        let (disk, path) = (self.disk(), self.layout().run_roots(id));
        let _short = self.share_roots()?;
        let list = self.lay_list(id, keys)?;
        // Not synced: after a power cut the run is no more.
        present(disk.unlink(&path)).map_err(fault("remove", &path))?;
        let file = disk.open(&path, Open::New).map_err(fault("create", &path))?;
        Ok(write_all(file.as_ref(), &path, 0, format!("{list}\n").as_bytes())?)
    }

    /// Held while something is made that a collection must see whole or not at all.
    pub(crate) fn share_roots(&self) -> Result<LockGuard, DiskError> {
        self.lock_roots(LockKind::Shared)
    }

    /// Held while one thing is removed.
    pub(crate) fn lock_roots_alone(&self) -> Result<LockGuard, DiskError> {
        self.lock_roots(LockKind::Exclusive)
    }

    fn lock_roots(&self, kind: LockKind) -> Result<LockGuard, DiskError> {
        let path = self.layout().roots_lock();
        let lock = self.disk().lock(&path, kind, Wait::Briefly).map_err(fault("lock", &path))?;
        Ok(lock.expect("a lock that is waited for comes, or an error does"))
    }

    /// Makes sure that a list is there; its name.
    fn lay_list(&self, run: &RunId, keys: &[Digest]) -> Result<Digest, StoreError> {
        let mut keys: Vec<&[u8; KEY_BYTES]> = keys.iter().map(Digest::as_bytes).collect();
        keys.sort_unstable();
        keys.dedup();
        let bytes: Vec<u8> = keys.into_iter().flatten().copied().collect();
        let list = Digest::of(&bytes);
        let path = self.layout().roots().join(list.to_string());
        if present(self.disk().lstat(&path)).map_err(fault("look at", &path))?.is_none() {
            replace_beside_others(self.disk(), &path, run, &bytes)?;
        }
        Ok(list)
    }

    /// Reads which lists are held, and by whom, and how much is claimed.  A `runs/….roots` or
    /// `.claims` counts whether or not its run lives: whoever clears the dead removes it.
    pub(crate) fn read_roots(&self, spare: Spare) -> Result<Roots, StoreError> {
        let (disk, layout) = (self.disk(), self.layout());
        let mut roots = Roots::default();
        for name in names(disk, &layout.runs())? {
            let Some((run, ending)) = name.rsplit_once('.') else { continue };
            let Ok(run) = run.parse::<RunId>() else { continue };
            let path = layout.runs().join(&name);
            match ending {
                "lock" => roots.runs.push(run),
                "roots" => {
                    if let Some(list) = read_held(disk, &path)? {
                        roots.lists.insert(path, list);
                    }
                }
                "claims" => {
                    let stat = present(disk.lstat(&path)).map_err(fault("look at", &path))?;
                    roots.claims.extend(stat.map(|stat| (path, stat.size)));
                }
                _ => {}
            }
        }
        let is_spared = |name: &String| is_root(name) && spare.counts(name);
        for name in names(disk, &layout.roots())?.into_iter().filter(is_spared) {
            let path = layout.roots().join(name);
            if let Some(last) = read_last(disk, &path)? {
                roots.runs.extend(last.run.parse::<RunId>());
                roots.lists.insert(path, last.list);
            }
        }
        roots.runs.sort();
        Ok(roots)
    }

    /// Every key in the lists that are held, and every claimed one.
    pub(crate) fn held_keys(&self, roots: &Roots) -> Result<Vec<Digest>, StoreError> {
        let mut lists: Vec<&Digest> = roots.lists.values().collect();
        lists.sort_unstable();
        lists.dedup();
        let mut keys = Vec::new();
        for list in lists {
            let path = self.layout().roots().join(list.to_string());
            let bytes = read_small(self.disk(), &path, LIST_BYTES_MAX)?.unwrap_or_default();
            if Digest::of(&bytes) != *list {
                return Err(StoreError::BadRoots { path });
            }
            keys.extend(keys_in(&bytes));
        }
        for path in roots.claims.keys() {
            // Gone with its run, perhaps.
            let bytes = read_small(self.disk(), path, LIST_BYTES_MAX)?.unwrap_or_default();
            keys.extend(keys_in(&bytes));
        }
        Ok(keys)
    }

    /// Files in `roots/` that nobody needs: lists that are not held, and drafts that a crash left.
    /// Called with `roots.lock` held alone.
    pub(crate) fn unheld_lists(&self, roots: &Roots) -> Result<Vec<PathBuf>, DiskError> {
        let dir = self.layout().roots();
        let is_held = |name: &String| {
            is_root(name) || roots.lists.values().any(|list| list.to_string() == *name)
        };
        let names = names(self.disk(), &dir)?;
        Ok(names.into_iter().filter(|name| !is_held(name)).map(|name| dir.join(name)).collect())
    }

    /// Files in `roots/` and `runs/` that cannot be read or name a list that cannot.
    pub(crate) fn bad_roots(&self) -> Result<Vec<PathBuf>, StoreError> {
        let (disk, layout) = (self.disk(), self.layout());
        let lasts = names(disk, &layout.roots())?.into_iter().filter(|name| is_root(name));
        let runs = names(disk, &layout.runs())?.into_iter().filter(|n| n.ends_with(".roots"));
        let lasts = lasts.map(|name| layout.roots().join(name));
        let runs = runs.map(|name| layout.runs().join(name));
        let is_bad = |path: &PathBuf| {
            let list = match path.starts_with(layout.roots()) {
                true => read_last(disk, path).map(|last| last.map(|last| last.list)),
                false => read_held(disk, path),
            };
            let Ok(Some(list)) = list else { return list.is_err() };
            let one = Roots { lists: BTreeMap::from([(path.clone(), list)]), ..Roots::default() };
            self.held_keys(&one).is_err()
        };
        Ok(lasts.chain(runs).filter(is_bad).collect())
    }
}

/// The keys in a file of them; the beginning of one more, which a crash may leave, is none.
fn keys_in(bytes: &[u8]) -> impl Iterator<Item = Digest> {
    let (whole, _) = bytes.as_chunks::<KEY_BYTES>();
    whole.iter().map(|key| Digest::from_bytes(*key))
}

fn root_name(prefix: &str, of: &str) -> String {
    format!("{prefix}{}", Digest::of(of.as_bytes()).short())
}

/// The whole digest, so that pins can be listed.
fn pin_name(tree: &Digest) -> String {
    format!("{PIN}{tree}")
}

/// Whether a file of `roots/` names a list; drafts have a dot.
fn is_root(name: &str) -> bool {
    [LAST, OPEN, PIN].iter().any(|prefix| name.starts_with(prefix)) && !name.contains('.')
}

fn read_held(disk: &dyn Disk, path: &Path) -> Result<Option<Digest>, StoreError> {
    let bytes = read_small(disk, path, NOTE_BYTES_MAX)?.unwrap_or_default();
    if bytes.is_empty() {
        // About to be written: the run holds nothing yet.
        return Ok(None);
    }
    let list = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim_end().parse().ok());
    list.map(Some).ok_or_else(|| StoreError::BadRoots { path: path.to_owned() })
}

fn read_last(disk: &dyn Disk, path: &Path) -> Result<Option<Last>, StoreError> {
    let Some(bytes) = read_small(disk, path, NOTE_BYTES_MAX)? else { return Ok(None) };
    let last = serde_json::from_slice(&bytes).ok();
    last.map(Some).ok_or_else(|| StoreError::BadRoots { path: path.to_owned() })
}

/// Replaces a file durably while other runs may do the same: each has a draft of its own.
fn replace_beside_others(
    disk: &dyn Disk,
    path: &Path,
    run: &RunId,
    bytes: &[u8],
) -> Result<(), DiskError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!("{name}.{run}.new"));
    write_new(disk, &draft, bytes)?;
    disk.rename(&draft, path).map_err(fault("rename to", path))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    disk.sync_dir(parent).map_err(fault("sync the directory", parent))
}
