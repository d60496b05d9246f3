//! Keeps what slots held in files of one directory, a folder for each key.
//!
//! Who has one key names no file of another: the folder follows from the key's identity, and a file's name is no path.  A file
//! is there whole or not at all.  All files together have a limit.  One server has the directory.  Knows nothing of what is in
//! them.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;
use rustix::fs::OFlags;
use smelt_runtime::identity::Naming;
use smelt_runtime::service::kept::{KeptError, Moved};

use crate::error::ApiError;

/// The longest name of a file: what clients call a conversation.
const NAME_BYTES_MAX: usize = 128;

/// Most files of a key: each takes an inode, however short it is.
const FILES_MAX: usize = 1024;

/// What a file is called while it is written; no client can call one so.
const WRITING: &str = ".writing";

/// The file that the server has locked which has the directory.
const LOCK: &str = ".lock";

/// Hexadecimal digits of a folder's name.
const FOLDER_DIGITS: usize = 32;

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The files of all keys.
#[derive(Debug)]
pub(crate) struct SlotFiles {
    dir: PathBuf,
    bytes_max: u64,
    /// One file is written at a time, so that what is free is known.
    writing: Mutex<()>,
    /// Locked as long as it is open: nobody else writes here.
    _lock: File,
}

/// The name of a file: letters, digits, `-`, `_` and dots, of which none is the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileName(String);

impl FileName {
    /// # Errors
    /// 400, if it is no name.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with('.');
        if is_name && text.bytes().all(is_letter) {
            return Ok(Self(text.to_owned()));
        }
        let why = format!(
            "must be a name of at most {NAME_BYTES_MAX} letters, digits, dots, \"-\" and \"_\" that begins with no dot"
        );
        Err(ApiError::field("filename", why))
    }
}

impl SlotFiles {
    /// Files below `dir`, which is made where it is not there, of at most so many bytes together.
    ///
    /// # Errors
    /// When there cannot be such a directory, or another server has it.
    pub(crate) fn new(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        own_directory(dir, true)?;
        let dir = dir.canonicalize()?;
        let lock = locked(&dir.join(LOCK))?;
        let files = Self { dir, bytes_max, writing: Mutex::default(), _lock: lock };
        files.sweep()?;
        Ok(files)
    }

    /// Removes what a server left half written that was killed.
    fn sweep(&self) -> io::Result<()> {
        self.folders()?
            .iter()
            .try_for_each(|folder| unless_gone(fs::remove_file(folder.join(WRITING))).map(|_| ()))
    }

    /// The folders of keys; what others put into the directory is not looked at.
    fn folders(&self) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for other in fs::read_dir(&self.dir)? {
            let other = other?;
            if is_folder(other.file_name().as_bytes()) && other.file_type()?.is_dir() {
                folders.push(other.path());
            }
        }
        Ok(folders)
    }

    /// The folder of who has the key of this identity.
    fn folder(&self, key: Option<&str>) -> PathBuf {
        let naming = match key {
            Some(identity) => Naming::of("slot files").number(1).bytes(identity.as_bytes()),
            None => Naming::of("slot files").number(0),
        };
        let [high, low] = naming.end();
        self.dir.join(format!("{high:016x}{low:016x}"))
    }

    /// Has `write` write a file, which takes the place of one of the same name when it is whole and on the disk.
    ///
    /// # Errors
    /// As `write` does; 507 where there is no room for so much.
    pub(crate) fn save(
        &self,
        key: Option<&str>,
        name: &FileName,
        write: impl FnOnce(u64, &mut BufWriter<File>) -> Result<Moved, KeptError>,
    ) -> Result<Moved, ApiError> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder(key);
        self.make(&folder).map_err(failed)?;
        let room = self.room(&folder, key, name).map_err(failed)?;
        let Some(room) = room else { return Err(too_many()) };
        let writing = folder.join(WRITING);
        let written = written(&writing, |out| write(room, out));
        let moved = written.and_then(|moved| {
            fs::rename(&writing, folder.join(&name.0))?;
            File::open(&folder)?.sync_all()?;
            Ok(moved)
        });
        moved.map_err(|error| {
            // What is left of it is overwritten by the next.
            _ = fs::remove_file(&writing);
            told(error)
        })
    }

    /// Makes the folder, where there is none, so that it outlives a loss of power.
    fn make(&self, folder: &Path) -> io::Result<()> {
        match own_directory(folder, false)? {
            true => File::open(&self.dir)?.sync_all(),
            false => Ok(()),
        }
    }

    /// Has `read` read a file.
    ///
    /// # Errors
    /// As `read` does; 400 if there is no such file.
    pub(crate) fn restore(
        &self,
        key: Option<&str>,
        name: &FileName,
        read: impl FnOnce(&mut io::BufReader<File>) -> Result<Moved, KeptError>,
    ) -> Result<Moved, ApiError> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened =
            OpenOptions::new().read(true).custom_flags(flags).open(self.folder(key).join(&name.0));
        let file = opened.ok().filter(|file| file.metadata().is_ok_and(|about| about.is_file()));
        let file = file.ok_or_else(|| {
            let why = format!("there is no file {:?} of this key's", name.0);
            ApiError::field("filename", why).code("slot_file_not_found")
        })?;
        read(&mut io::BufReader::with_capacity(BUFFER_BYTES, file)).map_err(told)
    }

    /// Bytes that a file of this name may have; none where there are too many files.
    fn room(&self, folder: &Path, key: Option<&str>, name: &FileName) -> io::Result<Option<u64>> {
        let (mut all, mut own, mut files) = (0, 0, 0);
        for other in self.folders()? {
            let is_own = other == folder;
            let Some(entries) = unless_gone(fs::read_dir(&other))? else { continue };
            for file in entries {
                let file = file?;
                // What is written anew gives its room to what takes its place.
                if is_own && (file.file_name() == name.0[..] || file.file_name() == WRITING) {
                    continue;
                }
                // Of a link too it is what lies here.
                let Some(about) = unless_gone(file.metadata())? else { continue };
                if !about.is_file() {
                    continue;
                }
                let bytes = about.len();
                all += bytes;
                own += if is_own { bytes } else { 0 };
                files += usize::from(is_own);
            }
        }
        // A quarter is left to others, as in the queue.
        let own_max = match key {
            Some(_) => self.bytes_max - self.bytes_max / 4,
            None => self.bytes_max,
        };
        let room = self.bytes_max.saturating_sub(all).min(own_max.saturating_sub(own));
        Ok((files < FILES_MAX).then_some(room))
    }
}

/// Whether a folder of a key can be called so.
fn is_folder(name: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == FOLDER_DIGITS && name.iter().all(is_digit)
}

/// None of what was removed meanwhile.
fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The file, which is locked until it is closed.
fn locked(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io::Error::other(
            "another server saves slots there; give each a directory of its own",
        )),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Makes a directory that nobody else looks into, where there is none; gives whether it was made, if without parents.
fn own_directory(dir: &Path, with_parents: bool) -> io::Result<bool> {
    let made = DirBuilder::new().mode(0o700).recursive(with_parents).create(dir);
    made.map(|()| true).or_else(|error| {
        let is_there = fs::symlink_metadata(dir).is_ok_and(|about| about.is_dir());
        if is_there { Ok(false) } else { Err(error) }
    })
}

/// Writes a file that nobody else reads, and waits until it is on the disk.
fn written(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<Moved, KeptError>,
) -> Result<Moved, KeptError> {
    // What a server left that was killed; a link is removed and not followed.
    _ = fs::remove_file(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    let moved = write(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()?;
    Ok(moved)
}

fn too_many() -> ApiError {
    let why =
        format!("{FILES_MAX} files are all that a key may have; save under a name that there is");
    ApiError::new(StatusCode::INSUFFICIENT_STORAGE, why).code("slot_files_full")
}

fn failed(error: io::Error) -> ApiError {
    let why = format!("the directory of slot files cannot be used: {error}");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, why).code("slot_files_full")
        }
        _ => ApiError::failed(why),
    }
}

/// What a slot's error means to who asked.
pub(crate) fn told(error: KeptError) -> ApiError {
    /// When to come again: answers under way take seconds.
    const RETRY: std::time::Duration = std::time::Duration::from_secs(1);
    let why = error.to_string();
    match error {
        KeptError::Nothing(_) => ApiError::bad(why).code("slot_empty"),
        KeptError::Busy(_) => ApiError::unavailable(why, "slot_busy", RETRY),
        KeptError::Gone(_) | KeptError::Crowded => {
            ApiError::unavailable(why, "slot_crowded", RETRY)
        }
        KeptError::TooMuch { .. } => ApiError::field("filename", why).code("slot_file_too_large"),
        KeptError::TooLong { .. } => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, why).code("slot_files_full")
        }
        KeptError::Other(_) => ApiError::field("filename", why).code("slot_file_of_other_engine"),
        KeptError::Damaged(_) => ApiError::field("filename", why).code("slot_file_damaged"),
        KeptError::Nameless => ApiError::failed(why),
        KeptError::Ended => ApiError::draining(why),
        KeptError::Io(error) => failed(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const KEY: Option<&str> = Some("kitchen");

    fn name(text: &str) -> FileName {
        FileName::parse(text).unwrap()
    }

    fn save(files: &SlotFiles, key: Option<&str>, to: &str, text: &str) -> Result<Moved, u16> {
        let saved = files.save(key, &name(to), |room, out| {
            let bytes = text.len() as u64;
            if bytes > room {
                return Err(KeptError::TooLong { bytes, max: room });
            }
            out.write_all(text.as_bytes())?;
            Ok(Moved { tokens: 1, bytes })
        });
        saved.map_err(|error| error.status.as_u16())
    }

    fn read(files: &SlotFiles, key: Option<&str>, from: &str) -> Result<String, u16> {
        let mut text = String::new();
        let read = files.restore(key, &name(from), |file| {
            file.read_to_string(&mut text)?;
            Ok(Moved { tokens: 1, bytes: 1 })
        });
        read.map(|_| text).map_err(|error| error.status.as_u16())
    }

    #[test]
    fn a_name_is_no_path() {
        let long = "a".repeat(129);
        for text in
            ["", ".", "..", ".writing", "a/b", "../a", "/a", "a\\b", "a b", "ä", "a\0", &long]
        {
            let refused = FileName::parse(text).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("filename"), "{text:?}");
        }
        for text in ["a", "a.bin", "A-1_b..c", &long[1..]] {
            assert!(FileName::parse(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn files_are_a_keys_own_and_no_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let files = SlotFiles::new(&dir.path().join("a/b"), 1000).unwrap();
        save(&files, KEY, "one", "mine").unwrap();
        assert_eq!(read(&files, KEY, "one").as_deref(), Ok("mine"));
        for other in [None, Some("cellar")] {
            assert_eq!(read(&files, other, "one"), Err(400));
        }
        save(&files, KEY, "one", "newer").unwrap();
        assert_eq!(read(&files, KEY, "one").as_deref(), Ok("newer"));
        let (folder, secret) = (files.folder(KEY), dir.path().join("secret"));
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, folder.join("link")).unwrap();
        symlink(&secret, folder.join(WRITING)).unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        for to in ["link", "folder", "none"] {
            assert_eq!(read(&files, KEY, to), Err(400), "{to}");
        }
        save(&files, KEY, "link", "own").unwrap();
        assert_eq!(read(&files, KEY, "link").as_deref(), Ok("own"));
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("one"))), (0o700, 0o600));
    }

    #[test]
    fn all_files_together_have_a_limit_and_a_key_has_less() {
        let dir = tempfile::tempdir().unwrap();
        let files = SlotFiles::new(dir.path(), 100).unwrap();
        let text = |bytes: usize| "x".repeat(bytes);
        assert_eq!(save(&files, KEY, "a", &text(76)), Err(507), "a quarter is left to others");
        save(&files, KEY, "a", &text(75)).unwrap();
        assert_eq!(save(&files, KEY, "b", &text(1)), Err(507));
        save(&files, KEY, "a", &text(70)).unwrap();
        save(&files, Some("cellar"), "a", &text(30)).unwrap();
        assert_eq!(save(&files, KEY, "b", &text(1)), Err(507), "others have it");
        assert_eq!(read(&files, KEY, "b"), Err(400), "nothing is left of what did not fit");
        assert_eq!(read(&files, KEY, "a").map(|text| text.len()), Ok(70));
    }

    #[test]
    fn what_others_put_there_is_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let files = SlotFiles::new(dir.path(), 100).unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::write(dir.path().join("lost+found/a"), "x".repeat(100)).unwrap();
        save(&files, KEY, "a", &"x".repeat(75)).unwrap();
        assert_eq!(save(&files, None, "a", &"x".repeat(26)), Err(507), "own folders are");
    }

    #[test]
    fn one_server_has_a_directory_and_sweeps_what_the_last_left_half() {
        let dir = tempfile::tempdir().unwrap();
        let files = SlotFiles::new(dir.path(), 100).unwrap();
        save(&files, KEY, "a", "whole").unwrap();
        let half = files.folder(KEY).join(WRITING);
        fs::write(&half, "half").unwrap();
        let second = SlotFiles::new(dir.path(), 100).unwrap_err().to_string();
        assert!(second.contains("another server"), "{second}");
        assert!(half.exists(), "who has it not sweeps nothing");
        drop(files);
        let files = SlotFiles::new(dir.path(), 100).unwrap();
        assert!(!half.exists());
        assert_eq!(read(&files, KEY, "a").as_deref(), Ok("whole"));
    }

    #[test]
    fn a_half_file_is_removed_and_a_full_disk_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let files = SlotFiles::new(dir.path(), 100).unwrap();
        for (kind, status) in [
            (io::ErrorKind::StorageFull, 507),
            (io::ErrorKind::QuotaExceeded, 507),
            (io::ErrorKind::Other, 500),
        ] {
            let saved = files.save(KEY, &name("a"), |_, out| {
                out.write_all(b"half")?;
                Err(io::Error::from(kind).into())
            });
            assert_eq!(saved.unwrap_err().status.as_u16(), status);
        }
        assert_eq!(fs::read_dir(files.folder(KEY)).unwrap().count(), 0);
    }
}
