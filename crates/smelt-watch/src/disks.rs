//! Looks how much room is left on the disks that an attempt may write to.
//!
//! The kernel tells nobody that a disk has run full but the program whose write it cuts short, and
//! programs ignore that.  So the disks are looked at as memory is, and being short begins above empty:
//! a disk with less than its reserve counts as full.  *The limit:* a file that comes and goes between
//! two looks is not seen, nor is a quota, which `statvfs` does not count.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use serde::{Deserialize, Serialize};

/// A disk with less counts as full: room for the journal, the logs and the record of a result.
pub const RESERVE_BYTES: u64 = 4 << 20;
/// The same of files: what sealing and the journal make.
pub const RESERVE_FILES: u64 = 64;
/// A small disk keeps back this part of itself and no more.
const RESERVE_PART: u64 = 16;

/// What one disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// In bytes, for whoever is not root.
    pub free_bytes: u64,
    /// In bytes; 0 where the file system does not count.
    pub total_bytes: u64,
    /// How many files can still be made.
    pub free_files: u64,
    /// How many there can be; 0 where the file system does not count.
    pub total_files: u64,
}

impl Room {
    /// Reads the disk that `path` is on; `None` where there is none, or nobody writes to it.
    pub fn read(path: &Path) -> Option<Self> {
        let found = statvfs(path).ok()?;
        if found.flags().contains(FsFlags::ST_RDONLY) {
            return None;
        }
        let unit = found.fragment_size();
        Some(Self {
            free_bytes: found.blocks_available().saturating_mul(unit),
            total_bytes: found.blocks().saturating_mul(unit),
            free_files: found.files_available(),
            total_files: found.files(),
        })
    }

    /// Whether it has less than its reserve, of bytes or of files.
    pub fn is_short(&self) -> bool {
        let is_below = |free: u64, total: u64, reserve: u64| {
            total > 0 && free < reserve.min(total / RESERVE_PART)
        };
        is_below(self.free_bytes, self.total_bytes, RESERVE_BYTES)
            || is_below(self.free_files, self.total_files, RESERVE_FILES)
    }
}

/// A disk that was found short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Short {
    /// A place on it.
    pub place: PathBuf,
    /// Bytes that were left.
    pub free_bytes: u64,
    /// Files that were left, where that is what was short.
    pub free_files: Option<u64>,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, free_bytes, free_files } = self;
        match free_files {
            Some(files) => write!(f, "the disk of {} had room for {files} files", place.display()),
            None => write!(f, "the disk of {} had {} KiB free", place.display(), free_bytes >> 10),
        }
    }
}

/// The disks that an attempt may write to, each once.
#[derive(Debug, Clone, Default)]
pub struct Disks {
    places: Vec<PathBuf>,
    least_free_bytes: Option<u64>,
}

impl Disks {
    /// Those of `places`; what is not there is on no disk.
    pub fn of<'a>(places: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut seen = BTreeSet::new();
        let device = |place: &Path| Some(place.metadata().ok()?.dev());
        let is_new = |place: &&Path| device(place).is_some_and(|device| seen.insert(device));
        let places = places.into_iter().filter(is_new).map(Path::to_owned).collect();
        Self { places, least_free_bytes: None }
    }

    /// The first that is short now.
    pub fn look(&mut self) -> Option<Short> {
        let mut short = None;
        for place in &self.places {
            let Some(room) = Room::read(place) else { continue };
            if room.total_bytes > 0 {
                let least = self.least_free_bytes.get_or_insert(room.free_bytes);
                *least = room.free_bytes.min(*least);
            }
            if room.is_short() && short.is_none() {
                let is_of_files = room.free_files < RESERVE_FILES && room.total_files > 0;
                let free_files = is_of_files.then_some(room.free_files);
                short =
                    Some(Short { place: place.clone(), free_bytes: room.free_bytes, free_files });
            }
        }
        short
    }

    /// Least that any of them had free, in all looks so far.
    pub fn least_free_bytes(&self) -> Option<u64> {
        self.least_free_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[track_caller]
    fn check(bytes: (u64, u64), files: (u64, u64), is_short: bool) {
        let room = Room {
            free_bytes: bytes.0,
            total_bytes: bytes.1,
            free_files: files.0,
            total_files: files.1,
        };
        assert_eq!(room.is_short(), is_short, "{room:?}");
    }

    #[test]
    fn a_disk_is_short_below_its_reserve() {
        check((RESERVE_BYTES, GIB), (1000, 10_000), false);
        check((RESERVE_BYTES - 1, GIB), (1000, 10_000), true);
        check((GIB, GIB), (RESERVE_FILES - 1, 10_000), true);
        // A small one keeps back a sixteenth.
        check((1 << 20, 16 << 20), (1000, 10_000), false);
        check((1 << 20, 17 << 20), (1000, 10_000), true);
        check((GIB, GIB), (4, 64), false);
        // What does not count is never short.
        check((0, 0), (0, 0), false);
        check((GIB, GIB), (0, 0), false);
    }

    #[test]
    fn what_is_short_is_named() {
        let short = Short { place: "/a".into(), free_bytes: 3 << 20, free_files: None };
        assert_eq!(short.to_string(), "the disk of /a had 3072 KiB free");
        let short = Short { free_files: Some(3), ..short };
        assert_eq!(short.to_string(), "the disk of /a had room for 3 files");
    }

    #[test]
    fn each_disk_is_asked_once_and_what_is_not_there_never() {
        let dir = tempfile::tempdir().unwrap();
        let places = [dir.path(), dir.path(), Path::new("/nowhere/at/all"), Path::new("/proc")];
        let mut disks = Disks::of(places);
        assert_eq!(disks.places, [dir.path(), Path::new("/proc")]);
        disks.look();
        assert!(disks.least_free_bytes().is_some_and(|bytes| bytes > 0));
    }
}
