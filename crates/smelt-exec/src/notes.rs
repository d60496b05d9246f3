//! Files that all users and stores of a machine share: what one says is a line, and its lock says whether it counts.
//!
//! The kernel gives a lock back when its process is gone, however it ended.  Knows nothing of what a note means.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smelt_store::{LockHolder, held_too_long};

/// Anybody's: whoever comes first makes them.
const DIR_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o666;
/// What a file says of who holds it is a line.
const NOTE_BYTES_MAX: usize = 4096;
/// A note that is read while it is written is no note: so often it is read.
const READS_MAX: usize = 2;
/// A lock that is held for a few system calls is asked for again after this.
const LOCK_TICK: Duration = Duration::from_millis(10);

/// Opens it, or makes it for everybody.  An existing one is opened without the wish to make it: the kernel
/// refuses that for others' files in folders that are anybody's.
///
/// # Errors
/// The kernel's, and something else than a file is there.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags());
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return regular(opened?),
    }
    match options.create_new(true).mode(FILE_MODE).open(path) {
        Ok(file) => {
            // The mode was cut by our mask.
            file.set_permissions(Permissions::from_mode(FILE_MODE))?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            regular(options.create_new(false).open(path)?)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn open_to_look(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(flags()).open(path)?)
}

/// The folders are anybody's: what is opened may be a link, or a pipe that nobody writes to.
fn flags() -> i32 {
    (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits()
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
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

/// Locks a file that others hold for a few system calls.
///
/// # Errors
/// The kernel's, and `TimedOut` where it is held for longer than `time_max`.
pub(crate) fn locks_within(file: &File, time_max: Duration) -> io::Result<()> {
    let begun = Instant::now();
    while !locks(file)? {
        if begun.elapsed() >= time_max {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                held_too_long(LockHolder::of(file)),
            ));
        }
        std::thread::sleep(LOCK_TICK);
    }
    Ok(())
}

fn answer(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Says what is to be told of who holds the file.  It is one write of one length; who reads meanwhile may see a part
/// of the old words and a part of the new ones, and reads again.
pub(crate) fn note(file: &File, what: &impl Serialize) {
    let text = serde_json::to_string(what).unwrap_or_default();
    let _ = file.write_all_at(format!("{text:<NOTE_BYTES_MAX$}").as_bytes(), 0);
}

/// Whether what is said fits a note.
pub(crate) fn fits(what: &impl Serialize) -> bool {
    serde_json::to_string(what).is_ok_and(|text| text.len() <= NOTE_BYTES_MAX)
}

/// Takes back what was said of who holds the file.  Its bytes stay, so that the next note needs no room.
pub(crate) fn erase(file: &File) {
    let _ = file.write_all_at(&[b' '; NOTE_BYTES_MAX], 0);
}

/// What a file says; `None` where that is no such note.
pub(crate) fn noted<T: DeserializeOwned>(file: &File) -> Option<T> {
    (0..READS_MAX).find_map(|_| {
        let mut text = [0; NOTE_BYTES_MAX];
        let len = file.read_at(&mut text, 0).ok()?;
        serde_json::from_slice(&text[..len]).ok()
    })
}

/// The time since the Unix era began.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [&pipe, &link, &folder.path().to_owned()] {
            assert!(open_to_look(path).is_err() && open_file(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_lock_is_waited_for_so_long_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let [one, other] = [(); 2].map(|()| open_file(&path).unwrap());
        one.lock().unwrap();
        let late = locks_within(&other, LOCK_TICK).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let late = late.to_string();
        let own = format!("process {} (", std::process::id());
        assert!(late.starts_with(&own) && late.contains(") holds its lock"), "{late}");
        let gives_back = std::thread::spawn(move || {
            std::thread::sleep(LOCK_TICK);
            drop(one);
        });
        locks_within(&other, Duration::from_secs(60)).unwrap();
        gives_back.join().unwrap();
    }
}
