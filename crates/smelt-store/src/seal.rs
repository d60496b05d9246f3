//! Makes the content of a working directory a permanent output.
//!
//! Files are made read-only, hashed and synced; then the directories; then the tree is renamed
//! into `out/` and that is synced; then the record is appended and synced; then the caller is
//! told.  A crash anywhere leaves either nothing or a whole tree.  Whether the content is any good
//! is for the caller to find out before.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::actions::Entry;
use crate::digest::Digest;
use crate::digester::{AndSync, DigestError, LINK, not_a_file, side_by_side};
use crate::disk::{
    DiskError, FileKind, LockGuard, Open, Stat, fault, read_small, remove_tree, write_all,
};
use crate::log::{LogError, RECORD_BYTES_MAX};
use crate::manifest::{FileEntry, Manifest, ManifestError};
use crate::output::{Location, Output};
use crate::store::{Store, StoreError, is_taken};
use crate::verify::{Memo, Verdict};
use crate::walk::{Links, WalkEntry, WalkError, inside, walk};

/// Nobody writes to a sealed file, and any tool may read it.
const FILE_MODE: u32 = 0o444;
const EXECUTABLE_MODE: u32 = 0o555;
/// Writable for the owner, so that a plain `rm -r` removes a store.
const DIR_MODE: u32 = 0o755;
/// How often another process may put a tree in our place, or take one away, before we give up.
const PLACE_TRIES: u32 = 8;

/// A directory that cannot be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It came from elsewhere and is something else than was wanted.
    #[error("what was fetched into {} is not what was signed", path.display())]
    Other {
        /// The directory.
        path: PathBuf,
    },
    /// An output without files would be equal to every other one.
    #[error("{} holds no file to seal", path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// Tools refuse links as model data, and a link can lead out of the output.
    #[error("{} is {what}; an output holds only files and directories{}", path.display(), remedy(what))]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Its content could change through the other name.
    #[error("{} has {links} hard links; copy the file instead of linking it", path.display())]
    HardLink {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        links: u64,
    },
    /// Manifests are text.
    #[error("{} has a name that is not UTF-8; rename it", path.display())]
    NotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The files do not make a tree we keep.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: ManifestError,
    },
    /// The place in `out/` does not keep still.
    #[error("cannot place {}: other processes keep changing it", path.display())]
    Contended {
        /// The place.
        path: PathBuf,
    },
    /// The directory cannot be listed.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A file cannot be hashed.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The result cannot be recorded.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl SealError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Disk(error)
            | Self::Walk(WalkError::Disk(error))
            | Self::Digest(DigestError::Disk(error)) => error.is_disk_full(),
            Self::Store(error) => error.is_disk_full(),
            _ => false,
        }
    }

    /// Whether the disk itself failed.
    pub fn is_disk_failing(&self) -> bool {
        match self {
            Self::Disk(error) | Self::Walk(WalkError::Disk(error)) => error.is_failing(),
            Self::Digest(error) => error.is_disk_failing(),
            Self::Store(error) => error.is_disk_failing(),
            _ => false,
        }
    }

    /// Whether it ended because the store's stop flag was set.
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::Disk(error) => error.is_stopped(),
            Self::Digest(error) => error.is_stopped(),
            Self::Store(error) => error.is_stopped(),
            _ => false,
        }
    }
}

fn not_a_dir(kind: FileKind) -> Option<&'static str> {
    match kind {
        FileKind::Dir => None,
        FileKind::File => Some("a file where the output's directory was"),
        FileKind::Link => Some("a symbolic link where the output's directory was"),
        FileKind::Other => Some("a socket, a pipe or a device"),
    }
}

/// A file that is hashed, read-only and durable.
struct Finished {
    entry: FileEntry,
    stat: Stat,
}

/// The mode of a sealed file.
pub(crate) fn sealed_mode(executable: bool) -> u32 {
    if executable { EXECUTABLE_MODE } else { FILE_MODE }
}

impl Store {
    /// Seals everything in `work_dir` as the output of `key`; `record` is kept with it.
    ///
    /// When this returns, the output survives a power cut and `work_dir` is gone.  When it fails
    /// nothing is recorded; `work_dir` may be partly read-only and should be dropped.  Directories
    /// without files are no part of an output.  May run in any thread.
    pub fn seal(&self, key: &Digest, work_dir: &Path, record: Value) -> Result<Output, SealError> {
        self.seal_referring(key, work_dir, record, &[])
    }

    /// Seals an output that names others in `out/` and is nothing without them: a collection spares
    /// `refers` as long as it spares this.
    pub fn seal_referring(
        &self,
        key: &Digest,
        work_dir: &Path,
        record: Value,
        refers: &[Digest],
    ) -> Result<Output, SealError> {
        self.seal_if(key, work_dir, (record, refers), |_| true)
    }

    /// Seals an output that came from elsewhere, if it is `tree`.
    pub fn seal_fetched(
        &self,
        key: &Digest,
        work_dir: &Path,
        (record, refers): (Value, &[Digest]),
        tree: &Digest,
    ) -> Result<Output, SealError> {
        self.seal_if(key, work_dir, (record, refers), |sealed| sealed == tree)
    }

    fn seal_if(
        &self,
        key: &Digest,
        work_dir: &Path,
        (record, refers): (Value, &[Digest]),
        is_wanted: impl Fn(&Digest) -> bool,
    ) -> Result<Output, SealError> {
        self.refuse_read_only("seal")?;
        // The attempt may have put a link in its place, which would lead to files that are not ours.
        let own = self.disk().lstat(work_dir).map_err(fault("look at", work_dir))?;
        if let Some(what) = not_a_dir(own.kind) {
            return Err(SealError::NotAFile { path: work_dir.to_owned(), what });
        }
        let tree = walk(self.disk(), work_dir, Links::Keep)?;
        self.check_list(key, work_dir, &tree.files, &record, refers)?;
        let finished = self.finish_files(work_dir, &tree.files)?;
        self.finish_dirs(work_dir, &tree.dirs)?;
        let entries = finished.iter().map(|file| file.entry.clone()).collect();
        let manifest = Manifest::new(entries)
            .map_err(|source| SealError::Manifest { path: work_dir.to_owned(), source })?;
        let digest = manifest.digest();
        if !is_wanted(&digest) {
            return Err(SealError::Other { path: work_dir.to_owned() });
        }
        let entry = Entry::Seal {
            key: *key,
            tree: digest,
            files: manifest.clone(),
            record: record.clone(),
            refers: refers.to_vec(),
        };
        self.check_record(&entry)?;
        // From its place on to its record, no collection may come between.
        let mut unseen = Some(self.share_roots()?);
        let is_placed = self.place(work_dir, &digest, &manifest, &mut unseen)?;
        let out = self.layout().out();
        self.disk().sync_dir(&out).map_err(fault("sync the directory", &out))?;
        self.append(&entry)?;
        self.lay_seal(key, &entry);
        drop(unseen);
        let path = self.layout().tree(&digest);
        if is_placed {
            self.remember(&path, &finished);
        } else {
            // The result stands; a leftover goes with the run's directory.
            let _ = remove_tree(self.disk(), work_dir);
        }
        Ok(Output { digest, location: Location::Sealed(path), manifest, record })
    }

    /// Checks every file before it touches any.
    fn finish_files(&self, base: &Path, files: &[WalkEntry]) -> Result<Vec<Finished>, SealError> {
        if files.is_empty() {
            return Err(SealError::Empty { path: base.to_owned() });
        }
        let names = files.iter().map(|found| check(base, found));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let finish =
            |(found, name): &(&WalkEntry, String)| self.finish_file(base, found, name.clone());
        let bytes = files.iter().map(|found| found.stat.size).sum();
        side_by_side(&files.iter().zip(names).collect::<Vec<_>>(), bytes, finish)
    }

    fn finish_file(
        &self,
        base: &Path,
        found: &WalkEntry,
        name: String,
    ) -> Result<Finished, SealError> {
        let full = base.join(&found.path);
        let executable = found.stat.is_executable();
        self.disk()
            .chmod(&full, sealed_mode(executable))
            .map_err(fault("make read-only", &full))?;
        let stat = self.disk().lstat(&full).map_err(fault("look at", &full))?;
        let sha256 = self.digester().hash(&full, &stat, AndSync::Yes)?;
        let entry = FileEntry { path: name, size: stat.size, sha256, executable };
        Ok(Finished { entry, stat })
    }

    /// Syncs the directories, the inner ones first.
    fn finish_dirs(&self, base: &Path, dirs: &[PathBuf]) -> Result<(), DiskError> {
        for dir in dirs.iter().rev() {
            let full = inside(base, dir);
            self.disk().chmod(&full, DIR_MODE).map_err(fault("set the mode of", &full))?;
            self.disk().sync_dir(&full).map_err(fault("sync the directory", &full))?;
        }
        Ok(())
    }

    /// Leaves a copy of the record beside the outputs, from which `fsck` makes the log anew should
    /// it be lost.  It is not synced: the log is, and both go only in two accidents at once.
    pub(crate) fn lay_seal(&self, key: &Digest, entry: &Entry) {
        let path = self.layout().seal(key);
        let text = entry.to_text();
        let line = format!("{} {text}\n", Digest::of(text.as_bytes()).short());
        if let Ok(file) = self.disk().open(&path, Open::Write)
            && file.truncate(0).is_ok()
        {
            let _ = write_all(file.as_ref(), &path, 0, line.as_bytes());
        }
    }

    /// Reads such a copy; `None` if it is damaged.
    pub(crate) fn read_seal(&self, key: &Digest) -> Result<Option<Entry>, DiskError> {
        let path = self.layout().seal(key);
        let bytes = read_small(self.disk(), &path, 2 * RECORD_BYTES_MAX as u64)?;
        let text = String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default();
        let line = text.strip_suffix('\n').and_then(|line| line.split_once(' '));
        let json = line.filter(|(check, json)| Digest::of(json.as_bytes()).short() == *check);
        let entry = json.and_then(|(_, json)| serde_json::from_str::<Entry>(json).ok());
        Ok(entry.filter(|entry| matches!(entry, Entry::Seal { key: of, .. } if of == key)))
    }

    /// Refuses a list of files that no log would take, before gigabytes are hashed.
    fn check_list(
        &self,
        key: &Digest,
        base: &Path,
        files: &[WalkEntry],
        record: &Value,
        refers: &[Digest],
    ) -> Result<(), SealError> {
        let entry = |found: &WalkEntry| {
            Ok(FileEntry {
                path: check(base, found)?,
                size: found.stat.size,
                // All have the same length.
                sha256: *key,
                executable: found.stat.is_executable(),
            })
        };
        let entries = files.iter().map(entry).collect::<Result<Vec<_>, SealError>>()?;
        let files = Manifest::new(entries)
            .map_err(|source| SealError::Manifest { path: base.to_owned(), source })?;
        let (key, record, refers) = (*key, record.clone(), refers.to_vec());
        Ok(self.check_record(&Entry::Seal { key, tree: key, files, record, refers })?)
    }

    /// Refuses what no log would take, before anything is moved.
    fn check_record(&self, entry: &Entry) -> Result<(), StoreError> {
        let bytes = entry.to_text().len();
        if bytes > RECORD_BYTES_MAX {
            let path = self.layout().action_log();
            return Err(LogError::RecordTooLarge { path, bytes }.into());
        }
        Ok(())
    }

    /// Brings the tree to its place in `out/`, unless a whole one is there; says whether it did.
    fn place(
        &self,
        work_dir: &Path,
        digest: &Digest,
        manifest: &Manifest,
        unseen: &mut Option<LockGuard>,
    ) -> Result<bool, SealError> {
        let place = self.layout().tree(digest);
        for _ in 0..PLACE_TRIES {
            match self.verify_tree(digest, manifest, Memo::Trusted)? {
                Verdict::Whole { strays, .. } => {
                    self.move_strays(digest, &strays)?;
                    return Ok(false);
                }
                Verdict::Damaged(_) => {
                    // Moving it away needs the lock alone, so ours goes first.
                    drop(unseen.take());
                    self.give_up(digest, manifest, Memo::Trusted)?;
                    *unseen = Some(self.share_roots()?);
                }
                Verdict::Missing => match self.disk().rename(work_dir, &place) {
                    Ok(()) => return Ok(true),
                    // Another process was faster; look at what it placed.
                    Err(error) if is_taken(&error) => {}
                    Err(error) => return Err(fault("move into the store", work_dir)(error).into()),
                },
            }
        }
        Err(SealError::Contended { path: place })
    }

    /// Spares the next look-up from hashing again what was hashed just now.
    fn remember(&self, place: &Path, finished: &[Finished]) {
        for Finished { entry, stat } in finished {
            self.digester().remember(&place.join(&entry.path), stat, entry.sha256);
        }
        self.digester().save();
    }
}

/// What helps where `what` is in an output.
fn remedy(what: &str) -> &'static str {
    match what {
        LINK => ": copy what links lead to (cp -rL)",
        _ => "",
    }
}

/// Refuses what cannot be part of an output; gives the name as text.
fn check(base: &Path, found: &WalkEntry) -> Result<String, SealError> {
    let path = base.join(&found.path);
    if let Some(what) = not_a_file(found.stat.kind) {
        return Err(SealError::NotAFile { path, what });
    }
    if found.stat.links > 1 {
        return Err(SealError::HardLink { path, links: found.stat.links });
    }
    found.path.to_str().map(str::to_owned).ok_or(SealError::NotUtf8 { path })
}
