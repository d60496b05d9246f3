//! Lists what is in a directory tree.
//!
//! Yields every file and every directory with its facts, and judges nothing: sealing, digesting
//! a source and verifying an output each refuse different things.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskError, FileKind, Stat, fault};
use crate::manifest::FILES_MAX;

/// Deeper than any real output; keeps paths below the system's limit.
const DEPTH_MAX: usize = 64;
/// Empty or nested directories count too, so that a tree of nothing but directories ends.
const DIRS_MAX: usize = 4 * FILES_MAX;

/// A tree that cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// Too many files or directories.
    #[error(
        "{} holds more than {FILES_MAX} files (SMELT_FILES_MAX) or {DIRS_MAX} directories: pack them into fewer",
        path.display()
    )]
    TooMany {
        /// The tree.
        path: PathBuf,
    },
    /// Too deep.
    #[error("{} is more than {DEPTH_MAX} directories deep", path.display())]
    TooDeep {
        /// The directory.
        path: PathBuf,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// What to make of symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// They are listed as links.
    Keep,
    /// A link to a file is listed as that file; other links are listed as links.
    FollowToFiles,
}

/// One thing in a tree that is not a directory.
pub(crate) struct WalkEntry {
    /// Relative to the root of the tree.
    pub(crate) path: PathBuf,
    pub(crate) stat: Stat,
}

/// The contents of a tree.
pub(crate) struct Tree {
    pub(crate) files: Vec<WalkEntry>,
    /// Relative; a directory comes before those inside it, so the root (an empty path) is first.
    pub(crate) dirs: Vec<PathBuf>,
}

/// Lists the tree below `root`, in no order that means anything.
pub(crate) fn walk(disk: &dyn Disk, root: &Path, links: Links) -> Result<Tree, WalkError> {
    let mut tree = Tree { files: Vec::new(), dirs: Vec::new() };
    let mut waiting = VecDeque::from([PathBuf::new()]);
    while let Some(dir) = waiting.pop_front() {
        let full = inside(root, &dir);
        if dir.components().count() > DEPTH_MAX {
            return Err(WalkError::TooDeep { path: full });
        }
        for name in disk.list(&full).map_err(fault("list", &full))? {
            let (path, full) = (dir.join(&name), full.join(&name));
            match look(disk, &full, links)? {
                stat if stat.kind == FileKind::Dir => waiting.push_back(path),
                stat => tree.files.push(WalkEntry { path, stat }),
            }
        }
        tree.dirs.push(dir);
        if tree.files.len() > FILES_MAX || tree.dirs.len() + waiting.len() > DIRS_MAX {
            return Err(WalkError::TooMany { path: root.to_owned() });
        }
    }
    Ok(tree)
}

/// The full path of something in a tree; the root itself is an empty path.
pub(crate) fn inside(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
}

fn look(disk: &dyn Disk, path: &Path, links: Links) -> Result<Stat, DiskError> {
    let stat = disk.lstat(path).map_err(fault("look at", path))?;
    if stat.kind != FileKind::Link || links == Links::Keep {
        return Ok(stat);
    }
    let target = disk.stat(path).map_err(fault("follow the link", path))?;
    Ok(if target.kind == FileKind::File { target } else { stat })
}
