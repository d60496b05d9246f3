//! Names the few disk operations the store is made of.
//!
//! Everything the store reads or writes goes through [`Disk`]: the real one, and in tests a
//! simulated one that loses what was not synced.  Below the trait stand the small compositions
//! (create a directory for good, replace a file, remove a tree) and the errors.  Knows nothing of
//! outputs, logs or runs.

use std::any::Any;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) mod holder;
mod real;
#[cfg(any(test, feature = "sim"))]
#[cfg_attr(not(feature = "sim"), allow(dead_code))] // Other crates' tests need the rest.
pub mod sim;
#[cfg(any(test, feature = "sim"))]
#[cfg_attr(not(feature = "sim"), allow(dead_code))]
pub mod turns;

pub(crate) use real::{RealDisk, stat_of};

/// The operations of a file system, each one system call or nearly so.
pub(crate) trait Disk: Send + Sync {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>>;
    /// Describes the name itself, a symbolic link as a link.
    fn lstat(&self, path: &Path) -> io::Result<Stat>;
    /// Describes what the name leads to.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Names in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    fn mkdir(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn unlink(&self, path: &Path) -> io::Result<()>;
    fn rmdir(&self, path: &Path) -> io::Result<()>;
    fn chmod(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes a lock on the file at `path`, which is created if missing.  `None` means held by
    /// someone else, and is returned only for [`Wait::No`].
    fn lock(&self, path: &Path, kind: LockKind, wait: Wait) -> io::Result<Option<LockGuard>>;
    /// Sets the time of a file or a directory to now.
    fn touch(&self, path: &Path) -> io::Result<()>;
    fn volume(&self, path: &Path) -> io::Result<Volume>;
    /// What kind of file system is under a path, and why, if it cannot keep a store.
    fn unfit(&self, path: &Path) -> io::Result<Option<(&'static str, &'static str)>>;
    /// Takes away what forbids changes of a file or directory beside its mode: `chattr +i` and `+a`.
    fn make_mutable(&self, path: &Path) -> io::Result<()>;
    fn moment(&self) -> Moment;
    /// Once `stop` is set no lock is waited for.
    fn stop_on(&self, _stop: Arc<AtomicBool>) {}
}

/// An open file.
pub(crate) trait DiskFile: Send + Sync {
    /// May read less than asked; 0 is the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// May write less than asked: a full disk first shows as a short write.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes content, size and mode durable (not the name: that is the directory's).
    fn sync(&self) -> io::Result<()>;
    fn stat(&self) -> io::Result<Stat>;
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// For reading.
    Read,
    /// For reading and writing; created if missing, never emptied.
    Write,
    /// For writing; fails if the name exists.
    New,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Dir,
    Link,
    /// Sockets, pipes, devices.
    Other,
}

/// The facts about a file that the store looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    pub(crate) inode: u64,
    pub(crate) links: u64,
    pub(crate) mode: u32,
}

impl Stat {
    pub(crate) fn is_executable(&self) -> bool {
        self.mode & 0o100 != 0
    }
}

/// Which lock of a lock file is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Shared,
    Exclusive,
    /// One byte of the file, exclusively; other bytes are free for others.
    Byte(u64),
}

/// A lock; dropping it releases it, and so does the end of the process, however it comes.
pub(crate) type LockGuard = Box<dyn Any + Send + Sync>;

/// How long to wait for a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// As long as it is held, which may be for hours: a repair has the store alone.
    Yes,
    /// For a lock that smelt holds while it does one thing.  Whoever else holds it is not waited for long, and is named by
    /// an error of the kind `TimedOut`.
    Briefly,
    /// Answer at once.
    No,
}

/// The file system under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) free_bytes: u64,
    /// It is gone with the machine's memory.
    pub(crate) is_memory: bool,
}

/// When it is, by the clock that stamps files, and in which boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) now_ns: i64,
    pub(crate) boot: String,
}

/// A disk operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// No space, or no quota, is left.
    #[error(
        "cannot {doing} {}: the disk is full{}; free some space and run the same command again",
        path.display(), in_bytes(*needed_bytes)
    )]
    Full {
        /// The operation, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// How much was to be written, where that is known.
        needed_bytes: Option<u64>,
    },
    /// The file system is read-only, or the permissions forbid it.
    #[error(
        "cannot {doing} {}: {source}; check who owns it and whether it is mounted read-only",
        path.display()
    )]
    NoAccess {
        /// The operation, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Anything else the system answered.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl DiskError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Whether the disk itself failed: what it holds may be lost, and asking again cures nothing.
    pub fn is_failing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_disk_failing(source))
    }

    /// Whether it ended because the store's stop flag was set.
    pub fn is_stopped(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        source.raw_os_error() == Some(nix::libc::ECANCELED)
    }
}

/// Whether a disk that itself fails answers so.
pub fn is_disk_failing(error: &io::Error) -> bool {
    use nix::libc::{EBADMSG, EIO, EREMOTEIO, EUCLEAN};
    error.raw_os_error().is_some_and(|raw| [EIO, EREMOTEIO, EBADMSG, EUCLEAN].contains(&raw))
}

fn in_bytes(needed: Option<u64>) -> String {
    needed.map_or_else(String::new, |bytes| format!(" ({bytes} bytes were needed)"))
}

/// Gives an answer of the system its place: `.map_err(fault("rename", path))`.
pub(crate) fn fault<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> DiskError + 'a {
    move |source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                DiskError::Full { doing, path, needed_bytes: None }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                DiskError::NoAccess { doing, path, source }
            }
            _ => DiskError::Io { doing, path, source },
        }
    }
}

/// Turns "not there" into `None`.
pub(crate) fn present<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates one directory if it is missing; says whether it was.
pub(crate) fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<bool, DiskError> {
    match disk.mkdir(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(fault("create the directory", dir)(error)),
    }
}

/// Creates a directory and its missing ancestors, each durable before the next is made in it.
pub(crate) fn make_dir_for_good(disk: &dyn Disk, dir: &Path) -> Result<(), DiskError> {
    if present(disk.stat(dir)).map_err(fault("look at", dir))?.is_some() {
        return Ok(());
    }
    let parent = dir.parent().unwrap_or(Path::new("/"));
    make_dir_for_good(disk, parent)?;
    make_dir(disk, dir)?;
    disk.sync_dir(parent).map_err(fault("sync the directory", parent))
}

/// Writes a small file so that its name always shows the old content or the new one, whole.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let draft = path.with_extension("new");
    write_new(disk, &draft, bytes)?;
    disk.rename(&draft, path).map_err(fault("rename to", path))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    disk.sync_dir(parent).map_err(fault("sync the directory", parent))
}

/// Writes and syncs a file under a name that may hold a leftover.
pub(crate) fn write_new(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    present(disk.unlink(path)).map_err(fault("remove the leftover", path))?;
    let file = disk.open(path, Open::New).map_err(fault("create", path))?;
    write_all(file.as_ref(), path, 0, bytes)?;
    file.sync().map_err(fault("sync", path))
}

/// Writes all of `bytes` in one call.  A short write is a full disk: local file systems have no
/// other reason for one.
pub(crate) fn write_all(
    file: &dyn DiskFile,
    path: &Path,
    offset: u64,
    bytes: &[u8],
) -> Result<(), DiskError> {
    let written = file.write_at(offset, bytes).map_err(fault("write", path))?;
    if written < bytes.len() {
        let needed_bytes = Some(bytes.len() as u64);
        return Err(DiskError::Full { doing: "write", path: path.to_owned(), needed_bytes });
    }
    Ok(())
}

/// Reads a small file; `None` if it is missing, an error above `bytes_max`.
pub(crate) fn read_small(
    disk: &dyn Disk,
    path: &Path,
    bytes_max: u64,
) -> Result<Option<Vec<u8>>, DiskError> {
    let opened = present(disk.open(path, Open::Read)).map_err(fault("open", path))?;
    let Some(file) = opened else { return Ok(None) };
    let size = file.stat().map_err(fault("look at", path))?.size;
    if size > bytes_max {
        let source = io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than it can be");
        return Err(fault("read", path)(source));
    }
    let mut bytes = vec![0; usize::try_from(size).expect("bytes_max fits in memory")];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(filled as u64, &mut bytes[filled..]).map_err(fault("read", path))? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(Some(bytes))
}

/// Removes a file or a directory with all that is in it; nothing there is fine.
pub(crate) fn remove_tree(disk: &dyn Disk, path: &Path) -> Result<(), DiskError> {
    let Some(stat) = present(disk.lstat(path)).map_err(fault("look at", path))? else {
        return Ok(());
    };
    if stat.kind != FileKind::Dir {
        present(disk.unlink(path)).map_err(fault("remove", path))?;
        return Ok(());
    }
    if stat.mode & 0o700 != 0o700 {
        // A stage may leave directories that even their owner cannot empty.
        disk.chmod(path, 0o700).map_err(fault("change the mode of", path))?;
    }
    for name in disk.list(path).map_err(fault("list", path))? {
        remove_tree(disk, &path.join(name))?;
    }
    present(disk.rmdir(path)).map_err(fault("remove", path))?;
    Ok(())
}
