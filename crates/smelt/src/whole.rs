//! Compares engines with their digests before they answer, once a boot.
//!
//! Engines were whole when they were sealed; cards and disks lose bits afterwards, and a flipped bit of
//! a weight is an answer that is wrong and looks right.  Reading everything takes about a second a
//! gigabyte, so it is done once after each start of the machine and noted; while their files look as
//! they did, engines are opened without.  Notes may be lost at any time.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use smelt_engine::engine_file::OpenError;
use smelt_exec::boot_id;

use crate::exit::Failed;
use crate::say::tell;

/// Notes kept: a board has a few models; what tests and scripts leave must not grow for ever.
const NOTES_MAX: usize = 256;
/// An engine larger than this is checked audibly: it takes a second or more.
const AUDIBLE_BYTES: u64 = 1 << 30;

/// Runs `check` unless the engines in `dirs` passed it since the machine was started, and are as they
/// were.
///
/// # Errors
/// When `check` finds damage.
pub(crate) fn once_a_boot(
    dirs: &[PathBuf],
    check: impl FnOnce() -> Result<(), OpenError>,
) -> Result<(), Failed> {
    let (looks, bytes) = looks(dirs);
    let note = notes().join(format!("{:016x}", hash(&looks)));
    if fs::read_to_string(&note).is_ok_and(|noted| noted == looks) {
        return Ok(());
    }
    if bytes >= AUDIBLE_BYTES {
        let gigabytes = bytes as f64 / 1e9;
        tell(format_args!("comparing {gigabytes:.1} GB with their digests, once a boot"));
    }
    check().map_err(Failed::invalid)?;
    // Without a note the next start checks again.
    let _ = keep(&note, &looks);
    Ok(())
}

/// Writes a note; too many are forgotten, all at once.
fn keep(note: &Path, looks: &str) -> io::Result<()> {
    let dir = notes();
    if fs::read_dir(&dir).is_ok_and(|entries| entries.count() >= NOTES_MAX) {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    fs::write(note, looks)
}

/// How every file of the engines looks, a line each, and the bytes of all of them.
fn looks(dirs: &[PathBuf]) -> (String, u64) {
    let entries = dirs.iter().flat_map(fs::read_dir).flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let (mut lines, mut bytes) = (String::new(), 0);
    for path in files {
        let path = fs::canonicalize(&path).unwrap_or(path);
        let Ok(data) = fs::metadata(&path) else { continue };
        bytes += data.len();
        let (len, inode) = (data.len(), data.ino());
        let changed = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
        lines += &format!("{} {len} {inode} {changed:?}\n", path.display());
    }
    (lines, bytes)
}

/// Where notes of this boot are, in memory where there is such a place.
fn notes() -> PathBuf {
    let memory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let root = memory.filter(|dir| Path::is_dir(dir)).unwrap_or_else(std::env::temp_dir);
    root.join(format!("smelt-whole-{}", boot_id()))
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smelt_engine::engine_file::{ENGINE_FILE, WEIGHTS_FILE};
    use std::cell::Cell;
    use tempfile::TempDir;

    #[test]
    fn engines_are_read_once_until_they_change() {
        let dir = TempDir::new().unwrap();
        let weights = dir.path().join(WEIGHTS_FILE);
        fs::write(dir.path().join(ENGINE_FILE), "{}").unwrap();
        fs::write(&weights, "12").unwrap();
        let checked = Cell::new(0);
        let open = || {
            once_a_boot(&[dir.path().to_owned()], || {
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
    }

    #[test]
    fn damage_is_told_each_time() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join(WEIGHTS_FILE), "12").unwrap();
        let damaged = || OpenError::Damaged { path: dir.path().into(), problem: "worn".into() };
        for _ in 0..2 {
            let failed = once_a_boot(&[dir.path().to_owned()], || Err(damaged())).unwrap_err();
            assert!(failed.to_string().contains("worn"), "{failed}");
        }
    }
}
