//! Compares a sealed tree with its manifest.
//!
//! Answers with a verdict; moving damage away is the store's part.  A disk that cannot read a
//! sealed file is damage too, for an error would come back in every run.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::digester::{AndSync, DigestError, Digester, not_a_file};
use crate::disk::{Disk, DiskError, FileKind, Stat, fault, present};
use crate::manifest::{FileEntry, Manifest};
use crate::stat_cache::Owner;
use crate::walk::{Links, WalkError, walk};

/// What a sealed tree turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every file is what the manifest says.  Strays (relative paths) were put there later; they
    /// are no part of the output and take nothing from it.  `used_ns` is when it was used last.
    Whole { strays: Vec<PathBuf>, used_ns: i64 },
    /// There is no such tree.
    Missing,
    /// Something is wrong, as the sentence says.
    Damaged(String),
}

/// Whether digests that were computed in this boot count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memo {
    Trusted,
    /// Every byte is read.
    Ignored,
}

/// Verifies the tree in `dir`.
pub(crate) fn verify(
    disk: &dyn Disk,
    digester: &Digester,
    dir: &Path,
    manifest: &Manifest,
    memo: Memo,
) -> Result<Verdict, DiskError> {
    let used_ns = match present(disk.lstat(dir)).map_err(fault("look at", dir))? {
        None => return Ok(Verdict::Missing),
        Some(stat) if stat.kind != FileKind::Dir => {
            return Ok(Verdict::Damaged(format!("{} is no directory", dir.display())));
        }
        Some(stat) => stat.mtime_ns,
    };
    let tree = match walk(disk, dir, Links::Keep) {
        Ok(tree) => tree,
        Err(WalkError::Disk(error)) => return damage_or_error(error),
        Err(error) => return Ok(Verdict::Damaged(error.to_string())),
    };
    let mut found: BTreeMap<PathBuf, Stat> =
        tree.files.into_iter().map(|found| (found.path, found.stat)).collect();
    for file in manifest.files() {
        let Some(stat) = found.remove(Path::new(&file.path)) else {
            return Ok(Verdict::Damaged(format!("{} is missing", file.path)));
        };
        match check_file(digester, dir, file, &stat, memo) {
            Ok(None) => {}
            Ok(Some(what)) => return Ok(Verdict::Damaged(format!("{} {what}", file.path))),
            Err(DigestError::Disk(error)) => return damage_or_error(error),
            Err(error) => return Ok(Verdict::Damaged(error.to_string())),
        }
    }
    Ok(Verdict::Whole { strays: found.into_keys().collect(), used_ns })
}

/// What is wrong with one file, if anything.
fn check_file(
    digester: &Digester,
    dir: &Path,
    file: &FileEntry,
    stat: &Stat,
    memo: Memo,
) -> Result<Option<String>, DigestError> {
    if let Some(what) = not_a_file(stat.kind) {
        return Ok(Some(format!("is now {what}")));
    }
    if stat.size != file.size {
        return Ok(Some(format!("has {} bytes, {} were sealed", stat.size, file.size)));
    }
    if stat.is_executable() != file.executable {
        return Ok(Some("has another executable bit".to_owned()));
    }
    let path = dir.join(&file.path);
    let sha256 = match memo {
        Memo::Trusted => digester.digest_file(&path, stat, Owner::Store)?,
        Memo::Ignored => digester.hash(&path, stat, AndSync::No)?,
    };
    Ok((sha256 != file.sha256).then(|| "has other content than was sealed".to_owned()))
}

/// Tells what is wrong with this tree from what is wrong with this process.
fn damage_or_error(error: DiskError) -> Result<Verdict, DiskError> {
    let is_damage = match &error {
        DiskError::Full { .. } => false,
        DiskError::NoAccess { .. } => true,
        DiskError::Io { source, .. } => is_damage(source),
    };
    if is_damage { Ok(Verdict::Damaged(error.to_string())) } else { Err(error) }
}

fn is_damage(error: &io::Error) -> bool {
    use nix::libc::{EBADMSG, EIO, ELOOP, ENOENT, ENOTDIR, EUCLEAN};
    let raw = error.raw_os_error();
    raw.is_some_and(|raw| [EIO, EBADMSG, EUCLEAN, ELOOP, ENOENT, ENOTDIR].contains(&raw))
}
