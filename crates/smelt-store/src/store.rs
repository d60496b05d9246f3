//! Opens the store and answers what is in it.
//!
//! One [`Store`] is one shared hold on the directory, cheap to clone and usable from any thread.
//! Look-ups follow the action log as other runs write it and verify what they return.  Knows
//! nothing of stages: a key is a digest someone computed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::actions::{ACTION_LOG_BYTES_MAX, Actions, Entry};
use crate::ballast;
use crate::digest::Digest;
use crate::digester::{DigestError, Digester, not_a_file};
use crate::disk::{
    Disk, DiskError, FileKind, LockGuard, LockKind, RealDisk, Wait, fault, present, remove_tree,
};
use crate::inventory::bytes_below;
use crate::layout::{FORMAT_VERSION, Layout, key_byte};
use crate::log::{Log, LogError};
use crate::manifest::Manifest;
use crate::modes;
use crate::output::{Damage, Location, Lookup, Output};
use crate::stat_cache::StatCache;
use crate::verify::{Memo, Verdict, verify};

/// How exactly it is known when an output was used last: a time is written once in that period.
const USE_TICK_NS: i64 = 24 * 3_600_000_000_000;
/// A race for a name in the quarantine is lost at most this often.
const QUARANTINE_TRIES: u32 = 8;

/// A store that cannot be used, or a call that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it, in a way that excludes ours.
    #[error("the store {} is held by another process; wait until it ends", path.display())]
    Held {
        /// The store.
        path: PathBuf,
    },
    /// The directory holds something else.
    #[error(
        "{} is not a smelt store: it has no FORMAT file but holds {found:?}; \
         set SMELT_CACHE to an empty or new directory",
        path.display()
    )]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// There is none, and none may be created.
    #[error("there is no store in {}; `smelt run` creates one", path.display())]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// Another version of smelt wrote it.
    #[error(
        "{} says {found:?}, this smelt reads \"smelt-store {FORMAT_VERSION}\"; use the smelt that \
         wrote it, or set SMELT_CACHE to another directory",
        path.display()
    )]
    OtherFormat {
        /// The FORMAT file.
        path: PathBuf,
        /// Its content.
        found: String,
    },
    /// The action log is no file.
    #[error(
        "{} is {what}, so what was built is not known; repair the store with: smelt cache fsck \
         --repair",
        path.display()
    )]
    OddLog {
        /// The log.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The action log may not be opened: by its mode, its owner, or a flag that `chattr` sets.
    #[error(
        "cannot {doing} {}: {source}; check who owns it, and if that is you repair the store with: \
         smelt cache fsck --repair",
        path.display()
    )]
    ClosedLog {
        /// The operation, as a verb.
        doing: &'static str,
        /// The log.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It cannot be known what must be kept.
    #[error(
        "{} is damaged, so what must be kept is not known; repair the store with: smelt cache \
         fsck --repair",
        path.display()
    )]
    BadRoots {
        /// The file.
        path: PathBuf,
    },
    /// What a store promises cannot be kept there.
    #[error(
        "the store {} cannot be on {kind}: {why}; set SMELT_CACHE to a local disk (ext4, xfs, btrfs, f2fs)",
        path.display()
    )]
    Unfit {
        /// The store.
        path: PathBuf,
        /// The kind of file system.
        kind: &'static str,
        /// What it lacks.
        why: &'static str,
    },
    /// The store was opened for reading only.
    #[error("cannot {doing}: the store {} is open for reading only", path.display())]
    ReadOnly {
        /// What was asked.
        doing: &'static str,
        /// The store.
        path: PathBuf,
    },
    /// A name that cannot be a file's.
    #[error("{name:?} cannot name a file of a run: use letters, digits, '-', '_' and '.'")]
    BadName {
        /// The name.
        name: String,
    },
    /// A path that is not text.
    #[error("{} is not UTF-8; rename it", path.display())]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// A log cannot take a record.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl StoreError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Disk(error) => error.is_disk_full(),
            Self::Log(error) => error.is_disk_full(),
            _ => false,
        }
    }

    /// Whether the disk itself failed.
    pub fn is_disk_failing(&self) -> bool {
        match self {
            Self::Disk(error) => error.is_failing(),
            Self::Log(error) => error.is_disk_failing(),
            _ => false,
        }
    }

    /// Whether it ended because the stop flag was set.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Disk(error) if error.is_stopped())
    }
}

/// How a store is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Beside other runs.
    Shared,
    /// Alone.
    Exclusive,
    /// Beside other runs, changing nothing.
    ReadOnly,
}

/// An open store.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    layout: Layout,
    access: Access,
    actions: Mutex<Actions>,
    digester: Digester,
    /// Modes that were set back as it was opened.
    mended: usize,
    _lock: LockGuard,
}

/// The right to build one key; dropping it gives the right away, as does the end of the process.
#[must_use = "the key is free again as soon as this is dropped"]
pub struct KeyLock {
    _held: LockGuard,
}

impl Store {
    /// Opens the store in `root`, beside other runs; creates it if the directory is new or empty.
    pub fn open(root: &Path, wait: Wait) -> Result<Self, StoreError> {
        Self::open_with(Arc::new(RealDisk::new()), root, Access::Shared, wait)
    }

    /// Opens the store in `root` while no one else has it.
    pub fn open_exclusive(root: &Path, wait: Wait) -> Result<Self, StoreError> {
        Self::open_with(Arc::new(RealDisk::new()), root, Access::Exclusive, wait)
    }

    /// Opens an existing store, on a read-only file system too, and changes nothing in it.
    pub fn open_read_only(root: &Path, wait: Wait) -> Result<Self, StoreError> {
        Self::open_with(Arc::new(RealDisk::new()), root, Access::ReadOnly, wait)
    }

    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn open_on(disk: Arc<dyn Disk>, root: &Path) -> Result<Self, StoreError> {
        Self::open_with(disk, root, Access::Shared, Wait::No)
    }

    #[cfg(test)]
    pub(crate) fn open_alone_on(disk: Arc<dyn Disk>, root: &Path) -> Result<Self, StoreError> {
        Self::open_with(disk, root, Access::Exclusive, Wait::No)
    }

    fn open_with(
        disk: Arc<dyn Disk>,
        root: &Path,
        access: Access,
        wait: Wait,
    ) -> Result<Self, StoreError> {
        let root = std::path::absolute(root).map_err(fault("find", root))?;
        let layout = Layout::new(root);
        // Whoever has the store alone repairs it, and without some modes would not even have it.
        let is_alone = access == Access::Exclusive;
        let mut mended = if is_alone { modes::let_in(disk.as_ref(), &layout) } else { 0 };
        if access == Access::ReadOnly {
            layout.check(disk.as_ref())?;
        } else {
            layout.prepare_root(disk.as_ref())?;
        }
        if is_alone {
            mended += modes::mend(disk.as_ref(), &layout);
        }
        let lock = hold(disk.as_ref(), &layout, access, wait)?;
        if access != Access::ReadOnly {
            layout.complete(disk.as_ref())?;
            ballast::lay(disk.as_ref(), &layout);
        }
        let cache = StatCache::new(layout.stat_cache());
        let digester = Digester::new(Arc::clone(&disk), cache);
        if access == Access::Exclusive {
            cure_action_log(disk.as_ref(), &layout)?;
        }
        check_action_log(disk.as_ref(), &layout)?;
        // Read when it is first asked.
        let log = action_log(&disk, &layout, access).map_err(|error| closed(error, access))?;
        let actions = Mutex::new(Actions::new(log));
        let inner = Inner { disk, layout, access, actions, digester, mended, _lock: lock };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How many modes were set back as it was opened.
    pub(crate) fn mended(&self) -> usize {
        self.inner.mended
    }

    /// The absolute path of the store.
    pub fn root(&self) -> &Path {
        self.layout().root()
    }

    /// Ends hashing, in every call of this store, with an error that says `is_stopped` once `stop`
    /// is set; locks are not waited for any more.
    pub fn stop_on(&self, stop: Arc<AtomicBool>) {
        self.disk().stop_on(Arc::clone(&stop));
        self.digester().stop_on(stop);
    }

    /// How much the store's disk can still take.
    pub fn free_bytes(&self) -> Result<u64, StoreError> {
        let volume = self.disk().volume(self.root());
        Ok(volume.map_err(fault("ask the file system of", self.root()))?.free_bytes)
    }

    /// Whether it lies on a disk that is the machine's memory: a restart takes it, and what it holds is
    /// lacking elsewhere.
    pub fn is_in_memory(&self) -> bool {
        self.disk().volume(self.root()).is_ok_and(|volume| volume.is_memory)
    }

    /// How many bytes were hashed since the store was opened: what a run without news costs.
    pub fn bytes_hashed(&self) -> u64 {
        self.digester().bytes_hashed()
    }

    /// Claims a key for building.  `None`: someone builds it now, in this process or another;
    /// ask again, then look the key up.
    pub fn try_lock_key(&self, key: &Digest) -> Result<Option<KeyLock>, StoreError> {
        self.refuse_read_only("lock a key")?;
        let path = self.layout().key_locks();
        let lock = self.disk().lock(&path, LockKind::Byte(key_byte(key)), Wait::No);
        Ok(lock.map_err(fault("lock", &path))?.map(|held| KeyLock { _held: held }))
    }

    /// Finds the output of a key, as this or another run recorded it, and verifies it: every file
    /// of a sealed tree has its size, its executable bit and its digest (read again once in every
    /// boot).  A damaged tree is moved to the quarantine.  Files outside of the store are digested
    /// as [`Store::digest_tree`] does it.
    pub fn lookup(&self, key: &Digest) -> Result<Lookup, StoreError> {
        let Some(entry) = self.actions().find(key)? else { return Ok(Lookup::Miss) };
        let Some(output) = self.output_of(entry) else { return Ok(Lookup::Miss) };
        match &output.location {
            Location::Sealed(_) => self.verified(output),
            Location::External(path) => match self.digest_tree(path) {
                Ok(now) => Ok(match output.manifest.difference(&now) {
                    None => Lookup::Hit(Box::new(output)),
                    Some(what) => Lookup::Changed(format!("{}: {what}", path.display())),
                }),
                Err(DigestError::Disk(error)) if error.is_stopped() => Err(error.into()),
                Err(error) => Ok(Lookup::Changed(error.to_string())),
            },
        }
    }

    /// How large the output of a key was, or else the last one of a recipe key: 0 if unknown.
    pub fn known_bytes(&self, recipe: &Digest, key: &Digest) -> Result<u64, StoreError> {
        let before = self.resolve(recipe)?;
        for key in [Some(*key), before].into_iter().flatten() {
            if let Some(Entry::Seal { files, .. }) = self.actions().find(&key)? {
                return Ok(files.bytes());
            }
        }
        Ok(0)
    }

    /// The sizes of all files in a tree; 0 if there is none.
    pub fn bytes_below(&self, path: &Path) -> Result<u64, StoreError> {
        Ok(bytes_below(self.disk(), path)?)
    }

    /// Whether there is a file that is not empty, or a directory with some file in it: directories
    /// alone are no part of an output.
    pub fn holds_something(&self, path: &Path) -> Result<bool, StoreError> {
        let stat = present(self.disk().lstat(path)).map_err(fault("look at", path))?;
        match stat {
            Some(stat) if stat.kind == FileKind::Dir => Ok(holds_a_file(self.disk(), path)?),
            Some(stat) => Ok(stat.size > 0),
            None => Ok(false),
        }
    }

    /// Digests a file or a directory outside of the store, following links to files.  A file that
    /// was digested before and has not been touched is not read.
    pub fn digest_tree(&self, root: &Path) -> Result<Manifest, DigestError> {
        let root = std::path::absolute(root).map_err(fault("find", root))?;
        self.digester().digest_tree(&root)
    }

    /// Records that a key stands for files outside of the store, as [`Store::digest_tree`] found
    /// them.
    pub fn record_reference(
        &self,
        key: &Digest,
        path: &Path,
        manifest: Manifest,
        record: Value,
    ) -> Result<Output, StoreError> {
        let path = std::path::absolute(path).map_err(fault("find", path))?;
        let Some(text) = path.to_str() else { return Err(StoreError::NotUtf8 { path }) };
        let entry = Entry::Reference {
            key: *key,
            tree: manifest.digest(),
            path: text.to_owned(),
            files: manifest,
            record,
        };
        self.append_once(key, &entry)?;
        Ok(self.output_of(entry).expect("a reference has an output"))
    }

    /// [`Store::alias_later`], made durable.
    #[cfg(test)]
    pub(crate) fn alias(&self, recipe: &Digest, key: &Digest) -> Result<(), StoreError> {
        self.alias_later(recipe, key)?;
        self.sync()
    }

    /// Records which content key a recipe key led to.  A power cut may take it until something is
    /// sealed: all it does is to spare the next plan a question.
    pub fn alias_later(&self, recipe: &Digest, key: &Digest) -> Result<(), StoreError> {
        if self.resolve(recipe)? == Some(*key) {
            return Ok(());
        }
        self.refuse_read_only("record a result")?;
        let entry = Entry::Alias { recipe: *recipe, key: *key };
        let mut actions = self.actions();
        Ok(self.with_ballast(|| actions.append_later(&entry))?)
    }

    /// Makes everything durable that look-ups have found: another process may have written a record
    /// and not have synced it yet.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.refuse_read_only("sync")?;
        Ok(self.actions().sync()?)
    }

    /// The content key a recipe key led to last.
    pub fn resolve(&self, recipe: &Digest) -> Result<Option<Digest>, StoreError> {
        Ok(self.actions().resolve(recipe)?)
    }

    /// The same for many recipe keys at one time.
    pub fn resolve_each<'a>(
        &self,
        recipes: impl Iterator<Item = &'a Digest>,
    ) -> Result<Vec<Option<Digest>>, StoreError> {
        let mut actions = self.actions();
        actions.refresh()?;
        Ok(recipes.map(|recipe| actions.known_alias(recipe)).collect())
    }

    fn output_of(&self, entry: Entry) -> Option<Output> {
        let (digest, location, manifest, record) = match entry {
            Entry::Seal { tree, files, record, .. } => {
                (tree, Location::Sealed(self.layout().tree(&tree)), files, record)
            }
            Entry::Reference { tree, path, files, record, .. } => {
                (tree, Location::External(path.into()), files, record)
            }
            Entry::Alias { .. } => return None,
        };
        Some(Output { digest, location, manifest, record })
    }

    fn verified(&self, output: Output) -> Result<Lookup, StoreError> {
        let verdict = self.verify_tree(&output.digest, &output.manifest, Memo::Trusted)?;
        self.digester().save();
        match verdict {
            Verdict::Missing => Ok(Lookup::Miss),
            Verdict::Whole { strays, used_ns } => {
                self.move_strays(&output.digest, &strays)?;
                self.note_use(&output.digest, used_ns);
                Ok(Lookup::Hit(Box::new(output)))
            }
            Verdict::Damaged(what) => {
                let digest = output.digest;
                let moved_to = match self.inner.access {
                    Access::ReadOnly => None,
                    _ => self.give_up(&digest, &output.manifest, Memo::Trusted)?,
                };
                Ok(Lookup::Damaged(Damage { digest, what, moved_to }))
            }
        }
    }

    pub(crate) fn verify_tree(
        &self,
        tree: &Digest,
        manifest: &Manifest,
        memo: Memo,
    ) -> Result<Verdict, DiskError> {
        verify(self.disk(), self.digester(), &self.layout().tree(tree), manifest, memo)
    }

    /// Writes down, now and then, that an output is used which no look-up found.
    pub fn note_used(&self, tree: &Digest) {
        if let Ok(stat) = self.disk().lstat(&self.layout().tree(tree)) {
            self.note_use(tree, stat.mtime_ns);
        }
    }

    /// Writes down, now and then, that a tree is in use.  Nothing depends on it but the order in
    /// which outputs are collected, so a failure is none.
    fn note_use(&self, tree: &Digest, used_ns: i64) {
        let now_ns = self.disk().moment().now_ns;
        if self.inner.access != Access::ReadOnly && now_ns.saturating_sub(used_ns) > USE_TICK_NS {
            let _ = self.disk().touch(&self.layout().tree(tree));
        }
    }

    /// Moves a tree away that is still damaged when nobody can be at it: it may have been collected
    /// under our eyes, and sealed anew.
    pub(crate) fn give_up(
        &self,
        tree: &Digest,
        manifest: &Manifest,
        memo: Memo,
    ) -> Result<Option<PathBuf>, DiskError> {
        let _alone = self.lock_roots_alone()?;
        match self.verify_tree(tree, manifest, memo)? {
            Verdict::Damaged(_) => self.quarantine(tree).map(Some),
            Verdict::Missing | Verdict::Whole { .. } => Ok(None),
        }
    }

    /// Moves a damaged tree out of `out/`, in the place of an earlier one of that digest.  It is
    /// not synced: should a crash undo it, the tree is found damaged once more.
    pub(crate) fn quarantine(&self, tree: &Digest) -> Result<PathBuf, DiskError> {
        let (from, to) = (self.layout().tree(tree), self.layout().quarantine());
        let to = to.join(tree.to_string());
        for _ in 0..QUARANTINE_TRIES {
            remove_tree(self.disk(), &to)?;
            match present(self.disk().rename(&from, &to)) {
                Err(error) if is_taken(&error) => {}
                // Gone already: another run has found the same.
                other => return other.map(|_| to).map_err(fault("move away", &from)),
            }
        }
        Err(fault("move away", &from)(io::ErrorKind::DirectoryNotEmpty.into()))
    }

    /// Moves what was put into a sealed tree later to the quarantine.
    pub(crate) fn move_strays(&self, tree: &Digest, strays: &[PathBuf]) -> Result<(), DiskError> {
        if self.inner.access == Access::ReadOnly {
            return Ok(());
        }
        let (from, to) = (self.layout().tree(tree), self.layout().quarantine());
        for (n, stray) in strays.iter().enumerate() {
            let from = from.join(stray);
            let to = to.join(format!("{tree}.stray-{n}"));
            remove_tree(self.disk(), &to)?;
            present(self.disk().rename(&from, &to)).map_err(fault("move away", &from))?;
        }
        Ok(())
    }

    /// Appends the entry unless it is the one already recorded for its key.
    fn append_once(&self, key: &Digest, entry: &Entry) -> Result<(), StoreError> {
        let recorded = self.actions().find(key)?;
        if recorded.as_ref() == Some(entry) { Ok(()) } else { self.append(entry) }
    }

    /// Appends to the action log, dropping the ballast if the disk is full.
    pub(crate) fn append(&self, entry: &Entry) -> Result<(), StoreError> {
        self.refuse_read_only("record a result")?;
        let mut actions = self.actions();
        let mut answer = self.with_ballast(|| actions.append(entry));
        if matches!(answer, Err(LogError::Full { .. })) {
            actions.compact(&mut |_| true, &[])?;
            answer = actions.append(entry);
        }
        if answer.is_ok() && actions.is_mostly_dead() {
            // The record is safe; a log that stays long is no failure.
            let _ = actions.compact(&mut |_| true, &[]);
        }
        Ok(answer?)
    }

    /// Tries once more without the ballast if the disk is full.
    pub(crate) fn with_ballast<T>(
        &self,
        mut append: impl FnMut() -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        match append() {
            Err(error) if error.is_disk_full() && ballast::drop_it(self.disk(), self.layout()) => {
                append()
            }
            other => other,
        }
    }

    pub(crate) fn refuse_read_only(&self, doing: &'static str) -> Result<(), StoreError> {
        if self.inner.access == Access::ReadOnly {
            return Err(StoreError::ReadOnly { doing, path: self.root().to_owned() });
        }
        Ok(())
    }

    pub(crate) fn refuse_shared(&self, doing: &'static str) -> Result<(), StoreError> {
        if self.inner.access != Access::Exclusive {
            return Err(StoreError::Held { path: self.root().to_owned() });
        }
        self.refuse_read_only(doing)
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        self.inner.disk.as_ref()
    }

    pub(crate) fn shared_disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.inner.disk)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    pub(crate) fn digester(&self) -> &Digester {
        &self.inner.digester
    }

    pub(crate) fn actions(&self) -> MutexGuard<'_, Actions> {
        // A panic elsewhere leaves an index that lags behind the log at worst.
        self.inner.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn holds_a_file(disk: &dyn Disk, dir: &Path) -> Result<bool, DiskError> {
    for name in disk.list(dir).map_err(fault("list", dir))? {
        let path = dir.join(name);
        let stat = disk.lstat(&path).map_err(fault("look at", &path))?;
        if stat.kind != FileKind::Dir || holds_a_file(disk, &path)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn hold(
    disk: &dyn Disk,
    layout: &Layout,
    access: Access,
    wait: Wait,
) -> Result<LockGuard, StoreError> {
    let kind = match access {
        Access::Exclusive => LockKind::Exclusive,
        Access::Shared | Access::ReadOnly => LockKind::Shared,
    };
    let path = layout.lock();
    disk.lock(&path, kind, wait)
        .map_err(fault("lock", &path))?
        .ok_or_else(|| StoreError::Held { path: layout.root().to_owned() })
}

/// What is no file in the place of the action log is moved away, and nothing may forbid to write it:
/// whoever has the store alone repairs it.
fn cure_action_log(disk: &dyn Disk, layout: &Layout) -> Result<(), DiskError> {
    let path = layout.action_log();
    let Some(stat) = present(disk.lstat(&path)).map_err(fault("look at", &path))? else {
        return Ok(());
    };
    if matches!(stat.kind, FileKind::File | FileKind::Dir) {
        disk.make_mutable(&path).map_err(fault("take immutable from", &path))?;
    }
    if stat.kind != FileKind::File {
        let to = layout.quarantine().join("ac.log.odd");
        remove_tree(disk, &to)?;
        disk.rename(&path, &to).map_err(fault("move away", &path))?;
    }
    Ok(())
}

/// Opening a pipe might wait for ever, and reading a directory says nothing of what is wrong.
fn check_action_log(disk: &dyn Disk, layout: &Layout) -> Result<(), StoreError> {
    let path = layout.action_log();
    let found = present(disk.lstat(&path)).map_err(fault("look at", &path))?;
    match found.and_then(|stat| not_a_file(stat.kind)) {
        Some(what) => Err(StoreError::OddLog { path, what }),
        None => Ok(()),
    }
}

fn action_log(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    access: Access,
) -> Result<Option<Log>, DiskError> {
    let (disk, path) = (Arc::clone(disk), layout.action_log());
    match access {
        Access::ReadOnly => Log::open_to_read(disk, path),
        Access::Shared | Access::Exclusive => {
            Log::open(disk, path, layout.quarantine(), ACTION_LOG_BYTES_MAX).map(Some)
        }
    }
}

/// Names the repair where the log may not be opened, but to whoever repairs it just now.
fn closed(error: DiskError, access: Access) -> StoreError {
    match error {
        DiskError::NoAccess { doing, path, source }
            if access != Access::Exclusive && source.kind() == io::ErrorKind::PermissionDenied =>
        {
            StoreError::ClosedLog { doing, path, source }
        }
        error => error.into(),
    }
}

/// Whether a rename of a directory failed because the other name is in use.
pub(crate) fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_open_the_log_hears_of_the_repair() {
        let names_it = |kind: io::ErrorKind, access| {
            let error = fault("open", Path::new("/c/ac.log"))(kind.into());
            let error = closed(error, access).to_string();
            assert!(error.starts_with("cannot open /c/ac.log: "), "{error}");
            error.contains("smelt cache fsck --repair")
        };
        let denied = io::ErrorKind::PermissionDenied;
        assert!(names_it(denied, Access::Shared) && names_it(denied, Access::ReadOnly));
        assert!(!names_it(denied, Access::Exclusive), "it is what could not cure it");
        assert!(!names_it(io::ErrorKind::ReadOnlyFilesystem, Access::Shared));
        assert!(!names_it(io::ErrorKind::Other, Access::Shared));
    }
}
