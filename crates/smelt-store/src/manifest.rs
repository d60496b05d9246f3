//! Lists the files of a tree and names the tree by them.
//!
//! A manifest is always sorted and free of paths that repeat, leave the tree, or run through
//! another file: the only way to make one checks that.  Knows nothing of disks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::digest::{Digest, from_hasher};

/// One output is one log record of at most 8 MiB, and a file takes about 200 bytes of it.  A Python
/// environment or a set of pictures has 10,000.
pub const FILES_MAX: usize = 32_768;
/// Far above any real name, far below the system's limit for a path.
pub const PATH_BYTES_MAX: usize = 1024;

/// One file of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Relative to the tree's root, `/` between the parts.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Of the content.
    pub sha256: Digest,
    /// Whether its owner may execute it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
}

/// The files of a tree, sorted by the bytes of their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<FileEntry>", into = "Vec<FileEntry>")]
pub struct Manifest {
    files: Vec<FileEntry>,
}

/// A list of files that is no tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// See [`FILES_MAX`].
    #[error(
        "{count} files in one output, at most {FILES_MAX} (SMELT_FILES_MAX) are kept: pack them into fewer"
    )]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// Empty, absolute, with `.` or `..`, or longer than [`PATH_BYTES_MAX`].
    #[error("{path:?} is not a path inside a tree")]
    BadPath {
        /// The path.
        path: String,
    },
    /// Two entries with one path.
    #[error("{path:?} is listed twice")]
    Twice {
        /// The path.
        path: String,
    },
    /// A file that another path uses as a directory.
    #[error("{path:?} is listed as a file and as a directory")]
    FileAndDir {
        /// The path.
        path: String,
    },
}

impl Manifest {
    /// Sorts and checks a list of files.
    pub fn new(mut files: Vec<FileEntry>) -> Result<Self, ManifestError> {
        if files.len() > FILES_MAX {
            return Err(ManifestError::TooMany { count: files.len() });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut paths = BTreeSet::new();
        for FileEntry { path, .. } in &files {
            check_path(path)?;
            if !paths.insert(path.as_str()) {
                return Err(ManifestError::Twice { path: path.clone() });
            }
        }
        for path in &paths {
            let mut ancestors = path.match_indices('/').map(|(at, _)| &path[..at]);
            if let Some(file) = ancestors.find(|ancestor| paths.contains(ancestor)) {
                return Err(ManifestError::FileAndDir { path: file.to_owned() });
            }
        }
        Ok(Self { files })
    }

    /// The files, sorted by path.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// The sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// What a tree that should be this one has otherwise, as a sentence; `None` for equal trees.
    pub fn difference(&self, found: &Self) -> Option<String> {
        let find = |of: &Self, path: &str| {
            let at = of.files.binary_search_by(|file| file.path.as_str().cmp(path));
            at.ok().map(|at| of.files[at].clone())
        };
        let changed = self.files.iter().find_map(|file| match find(found, &file.path) {
            None => Some(format!("{} is missing", file.path)),
            Some(now) if now.size != file.size => {
                Some(format!("{} has {} bytes instead of {}", file.path, now.size, file.size))
            }
            Some(now) if now.sha256 != file.sha256 => {
                Some(format!("{} has other content", file.path))
            }
            Some(now) => {
                (now != *file).then(|| format!("{} has another executable bit", file.path))
            }
        });
        let added = || found.files.iter().find(|file| find(self, &file.path).is_none());
        changed.or_else(|| Some(format!("{} was added", added()?.path)))
    }

    /// The tree's name: SHA-256 over the framed entries, as `cache/README.md` spells out.
    pub fn digest(&self) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update(b"smelt tree 1\n");
        hasher.update((self.files.len() as u64).to_le_bytes());
        for file in &self.files {
            hasher.update((file.path.len() as u64).to_le_bytes());
            hasher.update(file.path.as_bytes());
            hasher.update([u8::from(file.executable)]);
            hasher.update(file.size.to_le_bytes());
            hasher.update(file.sha256.as_bytes());
        }
        from_hasher(hasher)
    }
}

fn check_path(path: &str) -> Result<(), ManifestError> {
    let inside = |part: &str| !part.is_empty() && part != "." && part != "..";
    if path.len() > PATH_BYTES_MAX || path.contains('\0') || !path.split('/').all(inside) {
        return Err(ManifestError::BadPath { path: path.to_owned() });
    }
    Ok(())
}

impl TryFrom<Vec<FileEntry>> for Manifest {
    type Error = ManifestError;

    fn try_from(files: Vec<FileEntry>) -> Result<Self, ManifestError> {
        Self::new(files)
    }
}

impl From<Manifest> for Vec<FileEntry> {
    fn from(manifest: Manifest) -> Self {
        manifest.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> FileEntry {
        FileEntry { path: path.to_owned(), size: 3, sha256: Digest::of(b"abc"), executable: false }
    }

    #[track_caller]
    fn check(paths: &[&str], expect: Result<&[&str], ManifestError>) {
        let made = Manifest::new(paths.iter().map(|path| entry(path)).collect());
        let made = made.map(|manifest| {
            manifest.files().iter().map(|file| file.path.clone()).collect::<Vec<_>>()
        });
        assert_eq!(made, expect.map(|paths| paths.iter().map(|&path| path.to_owned()).collect()));
    }

    fn bad(path: &str) -> ManifestError {
        ManifestError::BadPath { path: path.to_owned() }
    }

    #[test]
    fn files_are_sorted_by_bytes() {
        check(&["a/b", "b", "a.x"], Ok(&["a.x", "a/b", "b"]));
    }

    #[test]
    fn paths_that_leave_the_tree_are_refused() {
        for path in ["", "/a", "a//b", "../a", "a/..", "./a", "a/", "a\0b"] {
            check(&[path], Err(bad(path)));
        }
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        check(&[&long], Err(bad(&long)));
        check(&[&long[1..]], Ok(&[&long[1..]]));
    }

    #[test]
    fn a_path_is_one_thing() {
        check(&["a", "a"], Err(ManifestError::Twice { path: "a".to_owned() }));
        check(&["a", "a.x", "a/b"], Err(ManifestError::FileAndDir { path: "a".to_owned() }));
    }

    #[test]
    fn files_are_limited_and_their_bytes_are_added() {
        let mut files: Vec<_> = (0..FILES_MAX).map(|at| entry(&at.to_string())).collect();
        assert_eq!(Manifest::new(files.clone()).unwrap().bytes(), 3 * FILES_MAX as u64);
        files.push(entry("one more"));
        assert_eq!(Manifest::new(files), Err(ManifestError::TooMany { count: FILES_MAX + 1 }));
    }

    #[test]
    fn the_digest_covers_every_field() {
        let base = entry("a");
        let mut seen = BTreeSet::new();
        for file in [
            base.clone(),
            FileEntry { path: "b".to_owned(), ..base.clone() },
            FileEntry { size: 4, ..base.clone() },
            FileEntry { sha256: Digest::of(b"abd"), ..base.clone() },
            FileEntry { executable: true, ..base.clone() },
        ] {
            assert!(seen.insert(Manifest::new(vec![file]).unwrap().digest()));
        }
        assert!(seen.insert(Manifest::new(vec![]).unwrap().digest()));
    }

    #[test]
    fn differences_are_named() {
        let of = |files: &[FileEntry]| Manifest::new(files.to_vec()).unwrap();
        let check = |now: &[FileEntry], words: Option<&str>| {
            let base = of(&[entry("a"), entry("b")]);
            assert_eq!(base.difference(&of(now)).as_deref(), words);
        };
        check(&[entry("b"), entry("a")], None);
        check(&[entry("b")], Some("a is missing"));
        check(&[entry("a"), entry("b"), entry("c")], Some("c was added"));
        let other = FileEntry { sha256: Digest::of(b"abd"), ..entry("b") };
        check(&[entry("a"), other.clone()], Some("b has other content"));
        check(&[entry("a"), FileEntry { size: 4, ..other }], Some("b has 4 bytes instead of 3"));
        let runs = FileEntry { executable: true, ..entry("b") };
        check(&[entry("a"), runs], Some("b has another executable bit"));
    }

    #[test]
    fn the_formula_is_the_documented_one() {
        // python3: h = sha256(b"abc").digest(); sha256(b"smelt tree 1\n" + pack("<QQ", 1, 1)
        //   + b"a" + b"\0" + pack("<Q", 3) + h).hexdigest()
        let expect = "eea0ecca18ea58c746414215536e761ecfb61a2c50e5869411ea9c85b313d34f";
        assert_eq!(Manifest::new(vec![entry("a")]).unwrap().digest().to_string(), expect);
    }
}
