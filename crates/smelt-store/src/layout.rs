//! Knows where everything in the store lies, and lays it out the first time.
//!
//! The FORMAT file is written last and durably, so a directory that has one has everything else.
//! Knows nothing of what the files hold.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::disk::{
    Disk, DiskError, LockKind, Wait, fault, make_dir, make_dir_for_good, read_small, replace_file,
};
use crate::run::RunId;
use crate::store::StoreError;

/// The number in FORMAT, described in `cache/README.md`.
pub const FORMAT_VERSION: u32 = 1;
/// FORMAT is one short line.
const FORMAT_BYTES_MAX: u64 = 64;
/// The lock byte held while a store is laid out; keys use the bytes below it.
const LAYOUT_BYTE: u64 = 1 << 62;
/// The directories of a store.
const DIRS: [&str; 9] =
    ["out", "seals", "roots", "journal", "logs", "work", "runs", "quarantine", "trash"];
/// What else may lie in a directory that is to become a store.
const OTHER_NAMES: [&str; 24] = [
    "memo",
    "pulls",
    "swap",
    "resume",
    "notes",
    // Another process may have laid it out since it was asked for.
    "FORMAT",
    "FORMAT.new",
    "lock",
    "keys.lock",
    "roots.lock",
    "ac.log",
    "ac.log.new",
    "stat",
    "stat.new",
    "ballast",
    "ballast.new",
    "deliveries",
    "deliveries.new",
    "deliveries.lock",
    "counts",
    "counts.new",
    "counts.lock",
    "README.md",
    "lost+found",
];

/// The paths of a store.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn format(&self) -> PathBuf {
        self.root.join("FORMAT")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn key_locks(&self) -> PathBuf {
        self.root.join("keys.lock")
    }

    pub(crate) fn action_log(&self) -> PathBuf {
        self.root.join("ac.log")
    }

    pub(crate) fn stat_cache(&self) -> PathBuf {
        self.root.join("stat")
    }

    pub(crate) fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.root.join("out")
    }

    pub(crate) fn tree(&self, digest: &Digest) -> PathBuf {
        self.out().join(digest.to_string())
    }

    pub(crate) fn seals(&self) -> PathBuf {
        self.root.join("seals")
    }

    pub(crate) fn seal(&self, key: &Digest) -> PathBuf {
        self.seals().join(key.to_string())
    }

    pub(crate) fn roots(&self) -> PathBuf {
        self.root.join("roots")
    }

    pub(crate) fn roots_lock(&self) -> PathBuf {
        self.root.join("roots.lock")
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    pub(crate) fn memos(&self) -> PathBuf {
        self.root.join("memo")
    }

    pub(crate) fn notes(&self) -> PathBuf {
        self.root.join("notes")
    }

    pub(crate) fn pulls(&self) -> PathBuf {
        self.root.join("pulls")
    }

    pub(crate) fn kept(&self) -> PathBuf {
        self.root.join("kept")
    }

    pub(crate) fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }

    pub(crate) fn journals(&self) -> PathBuf {
        self.root.join("journal")
    }

    pub(crate) fn journal(&self, run: &RunId) -> PathBuf {
        self.journals().join(format!("{run}.log"))
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn logs_of(&self, run: &RunId) -> PathBuf {
        self.logs().join(run.as_str())
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    pub(crate) fn work_of(&self, run: &RunId) -> PathBuf {
        self.work().join(run.as_str())
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    pub(crate) fn run_lock(&self, run: &RunId) -> PathBuf {
        self.runs().join(format!("{run}.lock"))
    }

    pub(crate) fn run_roots(&self, run: &RunId) -> PathBuf {
        self.runs().join(format!("{run}.roots"))
    }

    pub(crate) fn run_claims(&self, run: &RunId) -> PathBuf {
        self.runs().join(format!("{run}.claims"))
    }

    /// Whether a file of the store is opened again to be written, or removed and made anew.
    pub(crate) fn is_written_again(&self, path: &Path) -> bool {
        let once = [self.out(), self.seals(), self.work(), self.quarantine(), self.trash()];
        !once.iter().any(|dir| path.starts_with(dir))
    }

    /// Makes sure that the root is on a disk of this machine, exists, and is a store or empty; where it cannot be
    /// nothing is made.
    pub(crate) fn prepare_root(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        self.refuse_unfit(disk)?;
        make_dir_for_good(disk, &self.root)?;
        if self.version(disk)?.is_none() { self.refuse_strangers(disk) } else { Ok(()) }
    }

    fn refuse_unfit(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        use io::ErrorKind::{NotADirectory, NotFound};
        let is_absent = |error: &io::Error| [NotADirectory, NotFound].contains(&error.kind());
        let mut asked = self.root.ancestors().map(|place| disk.unfit(place));
        let there = asked.find(|asked| !asked.as_ref().is_err_and(is_absent)).unwrap_or(Ok(None));
        match there.map_err(fault("ask the file system of", &self.root))? {
            None => Ok(()),
            Some((kind, why)) => Err(StoreError::Unfit { path: self.root.clone(), kind, why }),
        }
    }

    /// Keeps us from moving into someone else's directory, `./cache` being a common name.
    fn refuse_strangers(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        let names = disk.list(&self.root).map_err(fault("list", &self.root))?;
        let is_ours = |name: &str| {
            name.starts_with('.') || DIRS.contains(&name) || OTHER_NAMES.contains(&name)
        };
        match names.iter().find(|name| !name.to_str().is_some_and(is_ours)) {
            None => Ok(()),
            Some(name) => {
                let found = name.to_string_lossy().into_owned();
                Err(StoreError::NotAStore { path: self.root.clone(), found })
            }
        }
    }

    /// Creates what is missing.  Called with the store's lock held.
    pub(crate) fn complete(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        let key_locks = self.key_locks();
        let lock = disk.lock(&key_locks, LockKind::Byte(LAYOUT_BYTE), Wait::Briefly);
        let _held = lock.map_err(fault("lock", &key_locks))?;
        let is_new = self.version(disk)?.is_none();
        let mut is_incomplete = is_new;
        for dir in DIRS {
            is_incomplete |= make_dir(disk, &self.root.join(dir))?;
        }
        if is_incomplete {
            disk.sync_dir(&self.root).map_err(fault("sync the directory", &self.root))?;
        }
        if is_new {
            self.sync_above(disk)?;
            let line = format!("smelt-store {FORMAT_VERSION}\n");
            replace_file(disk, &self.format(), line.as_bytes())?;
        }
        Ok(())
    }

    /// Makes the root's own name durable, and those above it: who made them may have died, or failed,
    /// before it had.  A directory that we may not read holds no new name of ours, nor does one that
    /// cannot be synced (an automounter's, say).
    fn sync_above(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        use io::ErrorKind::{InvalidInput, PermissionDenied};
        for dir in self.root.ancestors().skip(1) {
            match disk.sync_dir(dir) {
                Err(error) if matches!(error.kind(), PermissionDenied | InvalidInput) => {}
                synced => synced.map_err(fault("sync the directory", dir))?,
            }
        }
        Ok(())
    }

    /// Refuses what is no store; creates nothing.
    pub(crate) fn check(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        let version = self.version(disk)?;
        version.ok_or_else(|| StoreError::NoStore { path: self.root.clone() })?;
        self.refuse_unfit(disk)
    }

    /// The version in FORMAT, which is ours, or `None` if there is no such file.
    fn version(&self, disk: &dyn Disk) -> Result<Option<u32>, StoreError> {
        let path = self.format();
        let Some(bytes) = read_small(disk, &path, FORMAT_BYTES_MAX)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text == format!("smelt-store {FORMAT_VERSION}\n") {
            return Ok(Some(FORMAT_VERSION));
        }
        Err(StoreError::OtherFormat { path, found: text.trim_end().to_owned() })
    }
}

/// The byte of `keys.lock` that stands for a key.  Two keys with one byte only wait for each
/// other.
pub(crate) fn key_byte(key: &Digest) -> u64 {
    let (start, _) = key.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
    u64::from_be_bytes(*start) >> 2
}

/// Reads the names in a directory of the store; a missing one is empty.
pub(crate) fn names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, DiskError> {
    let listed = crate::disk::present(disk.list(dir)).map_err(fault("list", dir))?;
    let names = listed.unwrap_or_default().into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}
