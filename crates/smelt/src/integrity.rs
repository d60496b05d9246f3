//! Compares engines with their digests before they answer, once a boot.
//!
//! Engines were whole when they were sealed; cards and disks lose bits afterwards, and a flipped bit of
//! a weight is an answer that is wrong and looks right.  Reading everything takes about a second a
//! gigabyte, so it is done once after each start of the machine and noted in the store; while their files look as
//! they did, engines are opened without.  Notes may be lost at any time, and nobody else can write one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
#[cfg(feature = "build")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use smelt_backend::OpenError;
use smelt_exec::boot_id;
use smelt_plan::Digest;
use smelt_store::{Store, Wait};

use crate::exit::Failed;
use crate::load;

/// Engines have some files, those of other programs some hundred; a folder that has more is none.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: u32 = 8;

/// Runs `check` unless the engines in `dirs` passed it since the machine was started, and are as they
/// were.  Without a store nobody remembers.
///
/// # Errors
/// When `check` finds damage.
pub(crate) fn once_a_boot(
    dirs: &[PathBuf],
    check: impl FnOnce() -> Result<(), OpenError>,
) -> Result<(), Failed> {
    let root = load::root().ok().filter(|root| root.join("FORMAT").is_file());
    let store = root.and_then(|root| {
        let store = Store::open(&root, Wait::No);
        store.or_else(|_| Store::open_read_only(&root, Wait::No)).ok()
    });
    once(store.as_ref(), dirs, check)
}

fn once(
    store: Option<&Store>,
    dirs: &[PathBuf],
    check: impl FnOnce() -> Result<(), OpenError>,
) -> Result<(), Failed> {
    let (name, looks) = (name(dirs), noted(&looks(dirs).0));
    if store.and_then(|store| store.note(&name)).is_some_and(|noted| noted == looks) {
        return Ok(());
    }
    check().map_err(Failed::invalid)?;
    // Without a note the next start checks again.
    _ = store.map(|store| store.keep_note(&name, &looks));
    Ok(())
}

/// Notes that the engines in `dirs` were compared since `began`, as far as none of their files has changed since.
#[cfg(feature = "build")]
pub(crate) fn note_compared(store: &Store, dirs: &[PathBuf], began: SystemTime) {
    let is_older = |path: PathBuf| {
        let changed = fs::metadata(path).ok().and_then(|stat| {
            let since =
                Duration::new(stat.ctime().try_into().ok()?, stat.ctime_nsec().try_into().ok()?);
            UNIX_EPOCH.checked_add(since)
        });
        changed.is_some_and(|changed| changed < began)
    };
    // What looks otherwise by now was not compared as it is.
    let looks = looks(dirs).0;
    if files(dirs).into_iter().all(is_older) {
        let _ = store.keep_note(&name(dirs), &noted(&looks));
    }
}

/// A note on engines that look so.
fn noted(looks: &str) -> Vec<u8> {
    format!("boot {}\n{looks}", boot_id()).into_bytes()
}

/// The bytes of all files of the engines in `dirs`.
pub(crate) fn bytes(dirs: &[PathBuf]) -> u64 {
    looks(dirs).1
}

/// The name of a note on these engines.
fn name(dirs: &[PathBuf]) -> Digest {
    let dirs = dirs.iter().map(|dir| fs::canonicalize(dir).unwrap_or_else(|_| dir.clone()));
    let dirs: Vec<String> = dirs.map(|dir| dir.display().to_string()).collect();
    Digest::of(format!("whole engines\n{}", dirs.join("\n")).as_bytes())
}

/// How every file of the engines looks, a line each, and the bytes of all of them.
fn looks(dirs: &[PathBuf]) -> (String, u64) {
    let (mut lines, mut bytes) = (String::new(), 0);
    for path in files(dirs) {
        let Ok(data) = fs::metadata(&path) else { continue };
        bytes += if data.is_file() { data.len() } else { 0 };
        let (len, inode) = (data.len(), data.ino());
        let changed = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
        lines += &format!("{} {len} {inode} {changed:?}\n", path.display());
    }
    (lines, bytes)
}

/// Every file of the engines in `dirs` and the folders below them, once, links followed.
fn files(dirs: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    let mut open: Vec<(PathBuf, u32)> = dirs.iter().map(|dir| (dir.clone(), 0)).collect();
    while let Some((dir, depth)) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push((path, depth + 1));
            } else if files.len() < FILES_MAX {
                files.insert(fs::canonicalize(&path).unwrap_or(path));
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use smelt_engine::engine_file::{ENGINE_FILE, WEIGHTS_FILE};
    use std::cell::Cell;
    use tempfile::TempDir;

    #[test]
    fn engines_are_read_once_until_they_change() {
        let (dir, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let store = Store::open(root.path(), Wait::No).unwrap();
        let weights = dir.path().join(WEIGHTS_FILE);
        fs::write(dir.path().join(ENGINE_FILE), "{}").unwrap();
        fs::write(&weights, "12").unwrap();
        let checked = Cell::new(0);
        let open = || {
            once(Some(&store), &[dir.path().to_owned()], || {
                checked.set(checked.get() + 1);
                Ok(())
            })
        };
        open().unwrap();
        open().unwrap();
        assert_eq!(checked.get(), 1);
        fs::write(&weights, "21").unwrap();
        open().unwrap();
        assert_eq!(checked.get(), 2);
        // Other back ends keep weights under other names.
        fs::write(dir.path().join("model.onnx"), "3").unwrap();
        open().unwrap();
        assert_eq!(checked.get(), 3);
        // Some lie deeper.
        fs::create_dir(dir.path().join("rank0")).unwrap();
        fs::write(dir.path().join("rank0/part"), "4").unwrap();
        open().unwrap();
        fs::write(dir.path().join("rank0/part"), "5").unwrap();
        open().unwrap();
        assert_eq!(checked.get(), 5);
        // Without a store nobody remembers.
        for _ in 0..2 {
            let check = || {
                checked.set(checked.get() + 1);
                Ok(())
            };
            once(None, &[dir.path().to_owned()], check).unwrap();
        }
        assert_eq!(checked.get(), 7);
    }

    #[test]
    fn nobody_else_can_say_that_engines_are_whole() {
        let (dir, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let store = Store::open(root.path(), Wait::No).unwrap();
        fs::write(dir.path().join(WEIGHTS_FILE), "12").unwrap();
        let dirs = [dir.path().to_owned()];
        // What was noted after an earlier start, or of other files, is no note.
        for text in [looks(&dirs).0, format!("boot another\n{}", looks(&dirs).0)] {
            store.keep_note(&name(&dirs), text.as_bytes()).unwrap();
            let checked = Cell::new(false);
            let check = || {
                checked.set(true);
                Ok(())
            };
            once(Some(&store), &dirs, check).unwrap();
            assert!(checked.get(), "{text}");
        }
    }

    /// What a stage has compared need not be compared by whoever opens it; what has changed behind that must.
    #[test]
    #[cfg(feature = "build")]
    fn engines_that_were_compared_are_opened_without_unless_they_have_changed_since() {
        let (dir, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let store = Store::open(root.path(), Wait::No).unwrap();
        fs::write(dir.path().join(WEIGHTS_FILE), "12").unwrap();
        let dirs = [dir.path().to_owned()];
        let is_compared = || {
            let checked = Cell::new(false);
            let check = || {
                checked.set(true);
                Ok(())
            };
            once(Some(&store), &dirs, check).unwrap();
            checked.get()
        };
        let later = SystemTime::now() + Duration::from_secs(1);
        note_compared(&store, &dirs, later);
        assert!(!is_compared());
        fs::write(dir.path().join(WEIGHTS_FILE), "21").unwrap();
        note_compared(&store, &dirs, UNIX_EPOCH);
        assert!(is_compared(), "it was changed while it was compared, or behind that");
    }

    #[test]
    fn damage_is_told_each_time() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join(WEIGHTS_FILE), "12").unwrap();
        let root = TempDir::new().unwrap();
        let store = Store::open(root.path(), Wait::No).unwrap();
        let damaged = || OpenError::Damaged { path: dir.path().into(), problem: "worn".into() };
        for _ in 0..2 {
            let dirs = [dir.path().to_owned()];
            let failed = once(Some(&store), &dirs, || Err(damaged())).unwrap_err();
            assert!(failed.to_string().contains("worn"), "{failed}");
        }
    }
}
