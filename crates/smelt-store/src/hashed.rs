//! Says what digests files of sealed outputs have, for processes that would hash them again.
//!
//! What the store has hashed since the boot it need not hash as long as the file looks the same; whoever is told so may
//! say the same of the file that it has opened itself.  Knows nothing of who is told.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::disk::{Stat, stat_of};
use crate::stat_cache::Owner;
use crate::store::Store;
use crate::walk::{Links, walk};

/// Smaller files are hashed in less time than it takes to tell of them.
const BYTES_MIN: u64 = 1 << 20;
/// Files of an output that are told of, some 300 bytes each; no engine has as many that are large.
const FILES_MAX: usize = 1000;

/// A large file of a sealed output, and how it looked when the store hashed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashedFile {
    path: PathBuf,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    inode: u64,
    sha256: Digest,
}

impl HashedFile {
    fn new(path: PathBuf, stat: &Stat, sha256: Digest) -> Self {
        let Stat { size, mtime_ns, ctime_ns, inode, .. } = *stat;
        Self { path, size, mtime_ns, ctime_ns, inode, sha256 }
    }

    /// The digest of what is open at `path` and looks like `now`, if it is this file as it was.
    pub fn digest_of(&self, path: &Path, now: &Metadata) -> Option<Digest> {
        let now = Self::new(path.to_owned(), &stat_of(now), self.sha256);
        (now == *self).then_some(self.sha256)
    }
}

impl Store {
    /// The large files below the sealed output at `tree` that the store has hashed since the boot and that look as they did
    /// then.  Of what lies elsewhere, or cannot be looked at, nothing is said.
    pub fn hashed_files(&self, tree: &Path) -> Vec<HashedFile> {
        if !tree.starts_with(self.layout().out()) {
            return Vec::new();
        }
        let Ok(found) = walk(self.disk(), tree, Links::Keep) else { return Vec::new() };
        let large = found.files.into_iter().filter(|found| found.stat.size >= BYTES_MIN);
        let hashed = large.filter_map(|found| {
            let path = tree.join(&found.path);
            let sha256 = self.digester().known(&path, &found.stat, Owner::Store)?;
            Some(HashedFile::new(path, &found.stat, sha256))
        });
        hashed.take(FILES_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::SystemTime;

    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::Wait;

    /// A store with a sealed file of `bytes`, and where that lies.
    fn sealed(bytes: &[u8]) -> (TempDir, Store, PathBuf) {
        let root = TempDir::new().unwrap();
        let store = Store::open(root.path(), Wait::No).unwrap();
        let run = store.begin_run(SystemTime::now()).unwrap();
        let work = run.work_dir("s.1").unwrap();
        fs::write(work.join("weights"), bytes).unwrap();
        let output = store.seal(&Digest::of(b"key"), &work, Value::Null).unwrap();
        let path = output.path().to_owned();
        (root, store, path)
    }

    fn now(tree: &Path) -> Metadata {
        fs::metadata(tree.join("weights")).unwrap()
    }

    #[test]
    fn a_sealed_file_is_told_of_with_its_digest() {
        let bytes = vec![7; BYTES_MIN as usize];
        let (_root, store, tree) = sealed(&bytes);
        let [file] = &store.hashed_files(&tree)[..] else { panic!("one file is large") };
        let digest_of = |name: &str| file.digest_of(&tree.join(name), &now(&tree));
        assert_eq!(digest_of("weights"), Some(Digest::of(&bytes)));
        assert_eq!(digest_of("other"), None);
        let text = serde_json::to_string(file).unwrap();
        assert_eq!(serde_json::from_str::<HashedFile>(&text).unwrap(), *file);
    }

    #[test]
    fn a_file_that_was_written_to_is_not_known_any_more() {
        let bytes = vec![7; BYTES_MIN as usize];
        let (_root, store, tree) = sealed(&bytes);
        let files = store.hashed_files(&tree);
        let path = tree.join("weights");
        assert!(files[0].digest_of(&path, &now(&tree)).is_some());
        File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(files[0].digest_of(&path, &now(&tree)), None);
        assert_eq!(store.hashed_files(&tree), []);
    }

    #[test]
    fn what_is_small_or_lies_elsewhere_is_not_told_of() {
        let (root, store, tree) = sealed(b"few");
        assert_eq!(store.hashed_files(&tree), []);
        let elsewhere = root.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("weights"), vec![7; BYTES_MIN as usize]).unwrap();
        store.digest_tree(&elsewhere).unwrap();
        assert_eq!(store.hashed_files(&elsewhere), []);
    }
}
