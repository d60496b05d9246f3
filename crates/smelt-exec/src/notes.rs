//! Files that all users and stores of a machine share: what one says is a line, and its lock says whether it counts.
//!
//! The kernel gives a lock back when its process is gone, however it ended.  Knows nothing of what a note means.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Anybody's: whoever comes first makes them.
const DIR_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o666;
/// What a file says of who holds it is a line.
const NOTE_BYTES_MAX: usize = 4096;

/// Opens it, or makes it for everybody.  An existing one is opened without the wish to make it: the kernel
/// refuses that for others' files in folders that are anybody's.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match options.create_new(true).mode(FILE_MODE).open(path) {
        Ok(file) => {
            // The mode was cut by our mask.
            file.set_permissions(Permissions::from_mode(FILE_MODE))?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create_new(false).open(path)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn open_to_look(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Ok(()) => fs::set_permissions(dir, Permissions::from_mode(DIR_MODE)),
        Err(_) if dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

pub(crate) fn locks(file: &File) -> io::Result<bool> {
    answer(file.try_lock())
}

pub(crate) fn locks_shared(file: &File) -> io::Result<bool> {
    answer(file.try_lock_shared())
}

fn answer(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Says what is to be told of who holds the file.  It is one write of one length, so that who reads meanwhile sees
/// the old words or the new ones.
pub(crate) fn note(file: &File, what: &impl Serialize) {
    let text = serde_json::to_string(what).unwrap_or_default();
    let _ = file.write_all_at(format!("{text:<NOTE_BYTES_MAX$}").as_bytes(), 0);
}

/// What a file says; `None` where that is no such note.
pub(crate) fn noted<T: DeserializeOwned>(file: &File) -> Option<T> {
    let mut text = String::new();
    file.take(NOTE_BYTES_MAX as u64).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// The time since the Unix era began.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
