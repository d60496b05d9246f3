//! Removes from a working directory what is no part of the output that is to be sealed.
//!
//! A log with a time in it, a cache or a lock beside the declared outputs would make every seal another
//! tree, and stages below would be built again for nothing.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskError, FileKind, fault, remove_tree};
use crate::store::Store;
use crate::walk::inside;

/// Names of what was left out that are kept for a person to read.
const NAMED_MAX: usize = 16;

/// What lay in a working directory and was no part of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// How many files and directories, what is in a directory not counted.
    pub count: u64,
    /// The first of them, sorted.
    pub names: Vec<String>,
}

impl Store {
    /// Removes everything in `dir` that is none of `names` and in none of them.  `.` is everything.
    pub fn keep_only(&self, dir: &Path, names: &[String]) -> Result<LeftOut, DiskError> {
        let wanted = Wanted::of(names);
        let mut left = LeftOut::default();
        prune(self.disk(), dir, Path::new(""), &wanted, &mut left)?;
        Ok(left)
    }
}

/// The declared names, and the directories that lead to them.
struct Wanted {
    names: BTreeSet<PathBuf>,
    ways: BTreeSet<PathBuf>,
}

impl Wanted {
    fn of(names: &[String]) -> Self {
        let names: BTreeSet<PathBuf> = names.iter().map(|name| plain(name)).collect();
        let ways = names.iter().flat_map(|name| name.ancestors().skip(1)).map(Path::to_owned);
        Self { ways: ways.collect(), names }
    }

    fn has(&self, path: &Path) -> bool {
        path.ancestors().any(|part| self.names.contains(part))
    }
}

/// The path without `.`; `..` was refused with the pipeline.
fn plain(name: &str) -> PathBuf {
    let parts = Path::new(name).components();
    parts.filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn prune(
    disk: &dyn Disk,
    base: &Path,
    dir: &Path,
    wanted: &Wanted,
    left: &mut LeftOut,
) -> Result<(), DiskError> {
    let full = inside(base, dir);
    let mut names = disk.list(&full).map_err(fault("list", &full))?;
    names.sort_unstable();
    for name in names {
        let (path, full) = (dir.join(&name), full.join(&name));
        if wanted.has(&path) {
            continue;
        }
        if wanted.ways.contains(&path) {
            // What is no directory cannot lead there; sealing says what it is.
            if disk.lstat(&full).map_err(fault("look at", &full))?.kind == FileKind::Dir {
                prune(disk, base, &path, wanted, left)?;
            }
            continue;
        }
        remove_tree(disk, &full)?;
        left.count += 1;
        if left.names.len() < NAMED_MAX {
            left.names.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::Wait;

    #[track_caller]
    fn check(names: &[&str], files: &[&str], stays: &[&str], left: (u64, &[&str])) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store"), Wait::No).unwrap();
        let work = dir.path().join("work");
        for file in files {
            fs::create_dir_all(work.join(file).parent().unwrap()).unwrap();
            fs::write(work.join(file), "x").unwrap();
        }
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let found = store.keep_only(&work, &names).unwrap();
        assert_eq!(
            (found.count, found.names),
            (left.0, left.1.iter().map(|&n| n.into()).collect())
        );
        let is_there = |file: &&&str| work.join(file).exists();
        assert_eq!(files.iter().filter(is_there).copied().collect::<Vec<_>>(), stays);
    }

    #[test]
    fn what_is_declared_stays_with_all_that_is_in_it() {
        check(&["o"], &["o", "log.txt", "d/x"], &["o"], (2, &["d", "log.txt"]));
        check(&["d"], &["d/a", "d/e/b", "da"], &["d/a", "d/e/b"], (1, &["da"]));
        check(&["./d//a"], &["d/a", "d/b", "d/c/e"], &["d/a"], (2, &["d/b", "d/c"]));
        check(&["a", "d/a/b"], &["a", "d/a/b", "d/a/c"], &["a", "d/a/b"], (1, &["d/a/c"]));
        check(&["."], &["a", "d/b"], &["a", "d/b"], (0, &[]));
        check(&["o"], &["o"], &["o"], (0, &[]));
    }

    #[test]
    fn a_few_are_named_and_all_are_counted() {
        let files: Vec<String> = (0..40).map(|n| format!("s{n:02}")).chain(["o".into()]).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        check(&["o"], &files, &["o"], (40, &files[..NAMED_MAX]));
    }
}
