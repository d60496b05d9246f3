//! Hashes files, each as seldom as the stat cache allows.
//!
//! A file is streamed through one buffer and must look the same before and after.  Knows nothing
//! of outputs; whether a digest is the right one is for the caller to say.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::disk::{Disk, DiskError, DiskFile, FileKind, Open, Stat, fault};
use crate::manifest::{FileEntry, Manifest, ManifestError};
use crate::stat_cache::{Owner, StatCache};
use crate::walk::{Links, WalkEntry, WalkError, walk};

impl DigestError {
    /// Whether it ended because the store's stop flag was set.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Disk(error) if error.is_stopped())
    }

    /// Whether the disk itself failed.
    pub fn is_disk_failing(&self) -> bool {
        let (Self::Disk(error) | Self::Walk(WalkError::Disk(error))) = self else { return false };
        error.is_failing()
    }
}

/// Large enough that system calls cost nothing beside hashing, small beside any budget.
const BUFFER_BYTES: usize = 1 << 20;

/// A killed run loses no more than this much hashing: a tenth of a second of it.
const UNSAVED_BYTES_MAX: u64 = 128 << 20;
/// Below this a thread costs more than it saves.
const SIDE_BY_SIDE_BYTES_MIN: u64 = 8 << 20;
/// Four cores with SHA instructions hash 5 GiB/s, more than the disks of these devices read.
const THREADS_MAX: usize = 4;

/// A tree that has no digest.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// Someone wrote to it meanwhile.
    #[error("{} changed while being read; wait until nothing writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A socket, a pipe, a device, or a link to a directory.
    #[error("{} is {what}; only files, directories and links to files can be read", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
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
        /// The tree.
        path: PathBuf,
        /// Why not.
        source: ManifestError,
    },
    /// The tree cannot be listed.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Whether a file is to be durable once it is hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AndSync {
    Yes,
    No,
}

/// Hashes files and remembers what it found.
pub(crate) struct Digester {
    disk: Arc<dyn Disk>,
    cache: Mutex<StatCache>,
    bytes_hashed: AtomicU64,
    /// What was hashed when the cache was last written.
    bytes_saved: AtomicU64,
    /// Set by whoever wants hashing to end early.
    stop: OnceLock<Arc<AtomicBool>>,
}

impl Digester {
    pub(crate) fn new(disk: Arc<dyn Disk>, cache: StatCache) -> Self {
        Self {
            disk,
            cache: Mutex::new(cache),
            bytes_hashed: AtomicU64::new(0),
            bytes_saved: AtomicU64::new(0),
            stop: OnceLock::new(),
        }
    }

    /// Ends hashing with an error once `stop` is set; the first flag given stays.
    pub(crate) fn stop_on(&self, stop: Arc<AtomicBool>) {
        let _ = self.stop.set(stop);
    }

    fn is_stopped(&self) -> bool {
        self.stop.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// How many bytes were hashed since the store was opened.
    pub(crate) fn bytes_hashed(&self) -> u64 {
        self.bytes_hashed.load(Ordering::Relaxed)
    }

    /// Lists and hashes a file or a tree of the user's, following links to files.
    pub(crate) fn digest_tree(&self, root: &Path) -> Result<Manifest, DigestError> {
        let manifest = self.digest_source(root);
        self.save();
        manifest
    }

    fn digest_source(&self, root: &Path) -> Result<Manifest, DigestError> {
        let stat = self.disk.stat(root).map_err(fault("look at", root))?;
        let (base, found) = if stat.kind == FileKind::Dir {
            (root, walk(self.disk.as_ref(), root, Links::FollowToFiles)?.files)
        } else {
            let name = root.file_name().unwrap_or_default();
            (root.parent().unwrap_or(root), vec![WalkEntry { path: PathBuf::from(name), stat }])
        };
        let bytes = found.iter().map(|found| found.stat.size).sum();
        let entries = side_by_side(&found, bytes, |found| self.source_entry(base, found))?;
        Manifest::new(entries)
            .map_err(|source| DigestError::Manifest { path: root.to_owned(), source })
    }

    fn source_entry(&self, base: &Path, found: &WalkEntry) -> Result<FileEntry, DigestError> {
        let full = base.join(&found.path);
        if let Some(what) = not_a_file(found.stat.kind) {
            return Err(DigestError::NotAFile { path: full, what });
        }
        let Some(path) = found.path.to_str() else {
            return Err(DigestError::NotUtf8 { path: full });
        };
        let sha256 = self.digest_file(&full, &found.stat, Owner::User)?;
        let executable = found.stat.is_executable();
        Ok(FileEntry { path: path.to_owned(), size: found.stat.size, sha256, executable })
    }

    /// The digest of a file that looks like `stat`, from memory if that is proof enough.
    pub(crate) fn digest_file(
        &self,
        path: &Path,
        stat: &Stat,
        owner: Owner,
    ) -> Result<Digest, DigestError> {
        if let Some(known) = self.known(path, stat, owner) {
            return Ok(known);
        }
        let sha256 = self.hash(path, stat, AndSync::No)?;
        self.remember(path, stat, sha256);
        Ok(sha256)
    }

    /// The digest that a file with these looks certainly has, if it was ever hashed.
    pub(crate) fn known(&self, path: &Path, stat: &Stat, owner: Owner) -> Option<Digest> {
        let boot = self.disk.moment().boot;
        self.cache().find(self.disk.as_ref(), path, stat, owner, &boot)
    }

    /// Hashes a file that looks like `stat`, whatever is remembered.
    pub(crate) fn hash(
        &self,
        path: &Path,
        stat: &Stat,
        and_sync: AndSync,
    ) -> Result<Digest, DigestError> {
        let unchanged = |now: Stat| {
            let changed = || DigestError::Changed { path: path.to_owned() };
            (now == *stat).then_some(()).ok_or_else(changed)
        };
        let file = self.disk.open(path, Open::Read).map_err(fault("open", path))?;
        unchanged(file.stat().map_err(fault("look at", path))?)?;
        let sha256 = self.stream(file.as_ref(), stat.size).map_err(fault("read", path))?;
        if and_sync == AndSync::Yes {
            file.sync().map_err(fault("sync", path))?;
        }
        unchanged(file.stat().map_err(fault("look at", path))?)?;
        Ok(sha256)
    }

    fn stream(&self, file: &dyn DiskFile, size: u64) -> std::io::Result<Digest> {
        let mut hasher = Sha256::new();
        // A small file gets a small buffer, with room to see that it has grown.
        let bytes = usize::try_from(size).map_or(BUFFER_BYTES, |size| (size + 1).min(BUFFER_BYTES));
        let mut buffer = vec![0; bytes];
        let mut offset = 0;
        loop {
            if self.is_stopped() {
                return Err(stopped());
            }
            match file.read_at(offset, &mut buffer)? {
                0 => break,
                read => {
                    hasher.update(&buffer[..read]);
                    offset += read as u64;
                }
            }
        }
        self.bytes_hashed.fetch_add(offset, Ordering::Relaxed);
        Ok(crate::digest::from_hasher(hasher))
    }

    /// Notes a digest computed just now.
    pub(crate) fn remember(&self, path: &Path, stat: &Stat, sha256: Digest) {
        self.cache().remember(self.disk.as_ref(), path, stat, sha256);
    }

    /// Lets later runs know what this one found, if it would be a loss.  The cache is one file, and
    /// writing it for every small output would cost more than the outputs; what is not written now is
    /// when the store is closed.
    pub(crate) fn save(&self) {
        let unsaved = self.bytes_hashed().saturating_sub(self.bytes_saved.load(Ordering::Relaxed));
        if unsaved >= UNSAVED_BYTES_MAX {
            self.save_now();
        }
    }

    pub(crate) fn save_now(&self) {
        self.bytes_saved.store(self.bytes_hashed(), Ordering::Relaxed);
        self.cache().save(self.disk.as_ref());
    }

    fn cache(&self) -> MutexGuard<'_, StatCache> {
        // A panic elsewhere leaves the cache with whole entries, only fewer.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Digester {
    fn drop(&mut self) {
        self.save_now();
    }
}

/// Does `work` for each item, in threads where there are enough bytes; the answers are in order, and
/// of several errors it is the first item's.
pub(crate) fn side_by_side<T: Sync, R: Send, E: Send>(
    items: &[T],
    bytes: u64,
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    // How many cores there are takes a dozen system calls to answer.
    let is_worth_it = items.len() > 1 && bytes >= SIDE_BY_SIDE_BYTES_MIN;
    let cores =
        if is_worth_it { thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let threads = cores.min(THREADS_MAX).min(items.len());
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            let answer = work(item);
            if answer.is_err() {
                // The others finish what they have begun and take no more.
                next.store(items.len(), Ordering::Relaxed);
            }
            done.push((at, answer));
        }
    };
    let mut all: Vec<(usize, Result<R, E>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, answer)| answer).collect()
}

/// The user does not want to wait for gigabytes to be hashed; [`DiskError::is_stopped`] knows it.
fn stopped() -> std::io::Error {
    std::io::Error::from_raw_os_error(nix::libc::ECANCELED)
}

/// As a symbolic link is named.
pub(crate) const LINK: &str = "a symbolic link";

/// Names what is not a regular file.
pub(crate) fn not_a_file(kind: FileKind) -> Option<&'static str> {
    match kind {
        FileKind::File => None,
        FileKind::Dir => Some("a directory"),
        FileKind::Link => Some(LINK),
        FileKind::Other => Some("a socket, a pipe or a device"),
    }
}
