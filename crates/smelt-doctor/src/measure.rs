//! Measures the disk of a folder: room, a short write and read, and how long a sync takes.
//!
//! What it writes has no name while it is there, so nothing is left however this ends.  It takes
//! about two seconds and at most 256 MiB, so that a card is not worn by asking.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::{Deserialize, Serialize};

use crate::gpu::Gpus;
use crate::tree::Tree;

/// The most that is written.
const WRITE_BYTES_MAX: u64 = 256 << 20;
/// Never more than this part of what is free.
const FREE_PART: u64 = 8;
/// What is written between looks at the clock: a slow card takes a second for it.
const PIECE_BYTES: usize = 8 << 20;
const WRITE_TIME: Duration = Duration::from_millis(800);
const READ_TIME: Duration = Duration::from_millis(500);
const SYNC_TIME: Duration = Duration::from_millis(500);
/// Enough for a median.
const SYNCS_MAX: usize = 64;
/// What a record of a journal fills.
const APPEND_BYTES: usize = 4096;
/// Where a captured tree keeps what was measured on its device.
const CAPTURED: &str = "measured.json";

/// What was measured of the disk that a folder is on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// The folder.
    pub folder: String,
    /// Bytes that may still be written.
    pub free_bytes: Option<u64>,
    /// Bytes written and synced in a second.
    pub write_bytes_per_s: Option<u64>,
    /// Bytes read in a second, the page cache left out as far as the kernel does as it is told.
    pub read_bytes_per_s: Option<u64>,
    /// How much was written.
    pub written_bytes: u64,
    /// The median of how long a sync of a short append took, in microseconds.
    pub sync_median_us: Option<u64>,
    /// Of how many.
    pub syncs: usize,
    /// By what stages are confined: `landlock`, `mounts`, `user-mounts` or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confined_by: Option<String>,
    /// What that leaves to them, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unheld: Vec<String>,
    /// What is known of NVIDIA's GPUs.
    #[serde(skip_serializing_if = "is_nothing")]
    pub gpus: Gpus,
    /// Why something is missing.
    pub error: Option<String>,
}

/// Whether nobody spoke of GPUs.
fn is_nothing(gpus: &Gpus) -> bool {
    *gpus == Gpus::default()
}

/// Bytes that may be written without being root.
pub(crate) fn available(fs: &nix::sys::statvfs::Statvfs) -> u64 {
    fs.blocks_available().saturating_mul(fs.fragment_size())
}

impl Measured {
    /// Measures the disk of a folder that exists.
    pub(crate) fn measure(folder: &Path) -> Self {
        let fs = nix::sys::statvfs::statvfs(folder).ok();
        let mut measured = Self {
            folder: folder.to_string_lossy().into_owned(),
            free_bytes: fs.as_ref().map(available),
            ..Self::default()
        };
        if let Err(error) = measured.write_and_read(folder) {
            measured.error = Some(format!("cannot measure the disk of {folder:?}: {error}"));
        }
        measured
    }

    /// What was measured on the device that a tree was captured from.
    pub(crate) fn captured(tree: &Tree) -> Self {
        let text = tree.text(CAPTURED).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn write_and_read(&mut self, folder: &Path) -> io::Result<()> {
        let file = nameless(folder)?;
        let most = WRITE_BYTES_MAX.min(self.free_bytes.unwrap_or(0) / FREE_PART);
        let begin = Instant::now();
        let written = write(&file, most)?;
        self.written_bytes = written;
        self.write_bytes_per_s = per_second(written, begin.elapsed());
        // The page cache would answer at the speed of memory.
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        let begin = Instant::now();
        let bytes = read(&file, written)?;
        self.read_bytes_per_s = per_second(bytes, begin.elapsed());
        let mut times = sync_times(&nameless(folder)?)?;
        times.sort_unstable();
        self.syncs = times.len();
        self.sync_median_us = times.get(times.len() / 2).copied();
        Ok(())
    }
}

/// A new file that is gone when it is closed.
fn nameless(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".smelt-doctor-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Writes and syncs pieces until the time is over or `most` is reached.
fn write(mut file: &File, most: u64) -> io::Result<u64> {
    let piece = noise(PIECE_BYTES);
    let (begin, mut written) = (Instant::now(), 0);
    while written + PIECE_BYTES as u64 <= most && begin.elapsed() < WRITE_TIME {
        file.write_all(&piece)?;
        file.sync_data()?;
        written += PIECE_BYTES as u64;
    }
    Ok(written)
}

fn read(file: &File, written: u64) -> io::Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let (begin, mut bytes) = (Instant::now(), 0);
    while bytes < written && begin.elapsed() < READ_TIME {
        file.read_exact_at(&mut piece, bytes)?;
        bytes += PIECE_BYTES as u64;
    }
    Ok(bytes)
}

/// Microseconds that each sync of a short append took.
fn sync_times(mut file: &File) -> io::Result<Vec<u64>> {
    let record = noise(APPEND_BYTES);
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < SYNCS_MAX && begin.elapsed() < SYNC_TIME {
        file.write_all(&record)?;
        let sync = Instant::now();
        file.sync_data()?;
        times.push(sync.elapsed().as_micros() as u64);
    }
    Ok(times)
}

fn per_second(bytes: u64, time: Duration) -> Option<u64> {
    (bytes > 0).then(|| (bytes as f64 / time.as_secs_f64().max(1e-9)) as u64)
}

/// Bytes that no disk can compress (Marsaglia's xorshift, 2003).
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..count / 8).flat_map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn a_folder_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let begin = Instant::now();
        let measured = Measured::measure(dir.path());
        assert_eq!(measured.error, None);
        assert_eq!(measured.folder, dir.path().to_string_lossy());
        assert!(measured.free_bytes.is_some() && measured.written_bytes <= WRITE_BYTES_MAX);
        assert!(measured.syncs > 0 && measured.sync_median_us.is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(begin.elapsed() < Duration::from_secs(60), "bounded even on a crowded disk");
    }

    #[test]
    fn a_folder_that_may_not_be_written_says_so() {
        let measured = Measured::measure(Path::new("/proc"));
        assert!(measured.error.is_some_and(|error| error.contains("/proc")));
        assert_eq!(measured.sync_median_us, None);
    }

    #[test]
    fn what_was_measured_elsewhere_is_read_back() {
        let measured = Measured { free_bytes: Some(7), syncs: 3, ..Measured::default() };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(Measured::captured(&tree(&[(CAPTURED, &text)]).1), measured);
        for text in ["", "[]", "{\"free_bytes\": -1}"] {
            assert_eq!(Measured::captured(&tree(&[(CAPTURED, text)]).1), Measured::default());
        }
    }
}
