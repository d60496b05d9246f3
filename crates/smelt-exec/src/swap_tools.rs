//! Does to the real machine what a temporary swap file takes: `mkswap`, `swapon`, `swapoff`, and a
//! note under a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{self, statfs};

use crate::swap::{Ground, System};

/// Above the usual -2 and zram's 5 on boards: compressed memory is filled after the disk, since it
/// takes what is short.
const PRIORITY: &str = "32";
/// A note is a path.
const NOTE_BYTES_MAX: usize = 8 << 10;

/// This machine.
pub(crate) struct Tools;

impl System for Tools {
    type Held = Flock<File>;

    /// Locked before it has its name, so that nobody takes it for a dead one's.
    fn note(&self, note: &Path, swap: &Path) -> Result<Flock<File>, String> {
        let fail = |error: io::Error| format!("cannot write {}: {error}", note.display());
        let dir = note.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(dir).map_err(fail)?;
        let draft = note.with_extension("new");
        let file = File::create(&draft).map_err(fail)?;
        let mut held = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, error)| fail(error.into()))?;
        held.write_all(swap.as_os_str().as_encoded_bytes()).map_err(fail)?;
        held.sync_all().map_err(fail)?;
        fs::rename(&draft, note).map_err(fail)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail)?;
        Ok(held)
    }

    fn dead_notes(&self, dir: &Path) -> Vec<(PathBuf, PathBuf, Flock<File>)> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let notes = entries.map(|entry| entry.path());
        let notes = notes.filter(|path| path.extension().is_some_and(|last| last == "note"));
        notes
            .filter_map(|note| {
                let file = File::open(&note).ok()?;
                let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
                let text = fs::read(&note).ok().filter(|text| text.len() <= NOTE_BYTES_MAX)?;
                let swap = PathBuf::from(String::from_utf8(text).ok()?);
                // What others may write into the store must not make root remove anything.
                is_ours(&swap).then_some((note, swap, held))
            })
            .collect()
    }

    fn allocate(&self, swap: &Path, bytes: u64) -> Result<(), String> {
        let fail = |error: io::Error| format!("cannot make {}: {error}", swap.display());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(swap);
        let file = file.map_err(fail)?;
        let length = i64::try_from(bytes).map_err(|_| "such a size no file has".to_owned())?;
        fallocate(&file, FallocateFlags::empty(), 0, length).map_err(|error| fail(error.into()))
    }

    fn format(&self, swap: &Path) -> Result<(), String> {
        tool("mkswap", &[swap])
    }

    fn turn_on(&self, swap: &Path) -> Result<(), String> {
        tool("swapon", &[Path::new("-p"), Path::new(PRIORITY), swap])
    }

    fn is_on(&self, swap: &Path) -> bool {
        let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let wanted = fs::canonicalize(swap).unwrap_or_else(|_| swap.to_owned());
        names(&table).any(|name| Path::new(&name) == wanted)
    }

    fn turn_off(&self, swap: &Path) -> Result<(), String> {
        tool("swapoff", &[swap])
    }

    fn remove(&self, file: &Path) -> Result<(), String> {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {error}", file.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a file is named as [`crate::swap::TemporarySwap::on`] names them.
fn is_ours(swap: &Path) -> bool {
    let name = swap.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    swap.is_absolute() && name.starts_with("smelt-") && name.ends_with(".swap")
}

/// The files in `/proc/swaps`, which writes blanks in names as `\040` and such.
fn names(table: &str) -> impl Iterator<Item = String> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next())
        .map(|name| String::from_utf8_lossy(&unescaped(name.as_bytes())).into_owned())
}

/// A name as the kernel's tables write it, without its escapes.
pub(crate) fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

/// Runs one of the system's tools, which lie where not every `PATH` leads.
fn tool(name: &str, arguments: &[&Path]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(name)
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed");
    Err(format!("{name}: {}", line.trim()))
}

/// What a directory lies on.
pub(crate) fn ground(dir: &Path) -> Result<Ground, String> {
    let fail = |error: io::Error| format!("cannot look at {}: {error}", dir.display());
    let volume = statfs(dir).map_err(|error| fail(error.into()))?;
    let device = fs::metadata(dir).map_err(fail)?.dev();
    // Its type is another with each C library.
    let free_bytes = volume.blocks_available() * u64::try_from(volume.block_size()).unwrap_or(0);
    Ok(Ground {
        file_system: named(volume.filesystem_type()),
        ram_device: ram_device(device),
        free_bytes,
    })
}

/// File systems on which a preallocated file can be swap.
fn named(kind: statfs::FsType) -> Result<&'static str, String> {
    match kind {
        statfs::EXT4_SUPER_MAGIC => Ok("ext4"),
        XFS => Ok("xfs"),
        F2FS => Ok("f2fs"),
        statfs::TMPFS_MAGIC => Err("tmpfs is memory itself; name a directory on a disk".to_owned()),
        statfs::BTRFS_SUPER_MAGIC => {
            Err("btrfs takes no plain file as swap; name a directory on ext4 or xfs".to_owned())
        }
        _ => {
            Err("its file system is not known to take swap files (ext4, xfs and f2fs do)"
                .to_owned())
        }
    }
}

/// `XFS_SUPER_MAGIC` of `linux/magic.h`, which not every C library has.
const XFS: statfs::FsType = statfs::FsType(0x5846_5342);
/// `F2FS_SUPER_MAGIC` of the same.
const F2FS: statfs::FsType = statfs::FsType(0xF2F5_2010);

/// The name of the block device, where it is memory.
fn ram_device(device: u64) -> Option<String> {
    let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let target = fs::read_link(link).ok()?;
    let name = target.file_name()?.to_str()?;
    (name.starts_with("zram") || name.starts_with("ram")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_kernels_table_are_read_as_they_are() {
        let table = "Filename\tType\tSize\n/a\\040b/smelt-x.swap  file 1\n/dev/zram0 partition 2\n";
        assert_eq!(names(table).collect::<Vec<_>>(), ["/a b/smelt-x.swap", "/dev/zram0"]);
        assert_eq!(unescaped(b"\\9\\04"), b"\\9\\04");
    }

    #[test]
    fn a_note_is_somebodys_as_long_as_he_lives() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("swap/r.a.2.note");
        let held = Tools.note(&note, Path::new("/d/smelt-r.a.2.swap")).unwrap();
        let dead = || Tools.dead_notes(&dir.path().join("swap"));
        assert!(dead().is_empty());
        drop(held);
        let [(found, swap, _)] = &dead()[..] else { panic!("one note is dead") };
        assert_eq!((found, swap.as_path()), (&note, Path::new("/d/smelt-r.a.2.swap")));
        fs::write(&note, "/etc/passwd").unwrap();
        assert!(dead().is_empty(), "no note makes us remove what is not ours");
    }

    #[test]
    fn memory_is_no_place_for_swap() {
        let ground = ground(Path::new("/dev/shm")).unwrap();
        let refused = ground.refuses(Path::new("/dev/shm"), 1 << 20).unwrap();
        assert!(refused.contains("tmpfs is memory itself"), "{refused}");
    }
}
