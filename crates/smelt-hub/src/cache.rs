//! The hub's cache on disk, as Python's `huggingface_hub` lays it out, so that each finds what the
//! other has fetched.
//!
//! ```text
//! models--ORG--NAME/blobs/<hash>              a file's content
//! models--ORG--NAME/blobs/<hash>.incomplete   what has arrived of it
//! models--ORG--NAME/refs/<revision>           the commit that a branch or tag was last seen at
//! models--ORG--NAME/snapshots/<commit>/<file> a link to a blob
//! models--ORG--NAME/trees/<commit>.json       the commit's files, as Python was told of them
//! models--ORG--NAME/smelt/<commit>/<file>     the same, of the files that we read and no others
//! models--ORG--NAME/smelt/<commit>.<GGUF>/…   the same, where one GGUF file of several is meant
//! .locks/models--ORG--NAME/<hash>.lock        flock: held while that blob is fetched
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::error::{HubError, fault};
use super::name::{Commit, FileName, Repo, Revision, is_hex};
use super::select::{is_code, is_weights, select};

/// Bytes read, hashed and written at a time.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// A ref holds 40 digits.
const REF_BYTES_MAX: u64 = 128;
/// An index of a thousand shards takes a few MiB.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// A listing of ten thousand files takes one MiB.
const TREE_BYTES_MAX: u64 = 32 << 20;
/// Configurations take a few KiB.
pub(super) const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Two processes rarely want the same file; polling costs nothing.
const LOCK_PERIOD: Duration = Duration::from_millis(200);
/// A download of the largest file over a slow line; after that something hangs.
const LOCK_HOURS_MAX: u64 = 12;
/// Left free for everybody else.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// The hash that names a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hash {
    /// Of the content: large files.
    Sha256(String),
    /// Of the content as a git blob: small files.
    Git(String),
}

impl Hash {
    /// Tells the two apart by their length.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if is_hex(text, 64) {
            return Some(Self::Sha256(text.to_owned()));
        }
        is_hex(text, 40).then(|| Self::Git(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::Git(text) => text,
        }
    }

    /// The hash of this kind that the file at `path` has.
    pub(super) fn of_same_kind_at(&self, path: &Path) -> Result<String, HubError> {
        let file = File::open(path).map_err(fault("open", path))?;
        self.of_same_kind(&file).map_err(fault("read", path))
    }

    /// The hash of this kind that `file` has, read from its start.
    pub(super) fn of_same_kind(&self, file: &File) -> io::Result<String> {
        match self {
            Self::Sha256(_) => digest(Sha256::new(), file),
            Self::Git(_) => {
                let header = format!("blob {}\0", file.metadata()?.len());
                digest(Sha1::new().chain_update(header), file)
            }
        }
    }
}

fn digest<D: sha2::Digest>(mut hasher: D, file: &File) -> io::Result<String> {
    use std::os::unix::fs::FileExt;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let count = file.read_at(&mut chunk, offset)?;
        if count == 0 {
            return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hasher.update(&chunk[..count]);
        offset += count as u64;
    }
}

/// What the cache holds of one repository.
pub(super) struct Folder {
    repo: Repo,
    root: PathBuf,
    locks: PathBuf,
}

impl Folder {
    pub(super) fn new(cache: &Path, repo: &Repo) -> Self {
        let name = repo.folder();
        Self {
            repo: repo.clone(),
            root: cache.join(&name),
            locks: cache.join(".locks").join(&name),
        }
    }

    pub(super) fn snapshot(&self, commit: &Commit) -> PathBuf {
        self.root.join("snapshots").join(commit.as_str())
    }

    /// What we read of a commit, of one GGUF file where that is named: Python may add files to a snapshot,
    /// but not here.
    pub(super) fn view(&self, commit: &Commit, file: Option<&FileName>) -> PathBuf {
        let file = file.map(|file| format!(".{}", file.in_path()));
        self.root.join("smelt").join(format!("{commit}{}", file.unwrap_or_default()))
    }

    pub(super) fn blob(&self, hash: &Hash) -> PathBuf {
        self.root.join("blobs").join(hash.as_str())
    }

    pub(super) fn partial(&self, hash: &Hash) -> PathBuf {
        self.root.join("blobs").join(format!("{}.incomplete", hash.as_str()))
    }

    /// Makes the directories that a download writes to.
    pub(super) fn create(&self, commit: &Commit) -> Result<(), HubError> {
        let dirs = [self.root.join("blobs"), self.snapshot(commit)];
        for dir in dirs.into_iter().chain([self.locks.clone()]) {
            fs::create_dir_all(&dir).map_err(fault("create", &dir))?;
        }
        Ok(())
    }

    /// The commit that `revision` was last seen at.
    pub(super) fn commit_of(&self, revision: &Revision) -> Option<Commit> {
        if let Some(commit) = revision.as_commit() {
            return Some(commit);
        }
        let file = File::open(self.root.join("refs").join(revision.as_str())).ok()?;
        let mut text = String::new();
        file.take(REF_BYTES_MAX).read_to_string(&mut text).ok()?;
        Commit::parse(text.trim())
    }

    /// Remembers the commit that `revision` was seen at.
    pub(super) fn note(&self, revision: &Revision, commit: &Commit) -> Result<(), HubError> {
        if revision.as_commit().is_some() || self.commit_of(revision).as_ref() == Some(commit) {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision.as_str());
        let dir = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(dir).map_err(fault("create", dir))?;
        // Not beside the refs, where Python would take it for one.
        let new = self.root.join(format!("blobs/ref.{}.incomplete", std::process::id()));
        fs::write(&new, commit.as_str()).map_err(fault("write", &new))?;
        fs::rename(&new, &path).map_err(fault("write", &path))
    }

    /// Where a file of the commit may lie: as a blob, or, where the cache was copied by something
    /// that knows no links, in the snapshot itself.
    pub(super) fn places(&self, commit: &Commit, file: &str, hash: &Hash) -> [PathBuf; 2] {
        [self.blob(hash), self.snapshot(commit).join(file)]
    }

    /// How many of a file's `bytes` are not here, whole or in part.
    pub(super) fn missing_bytes(
        &self,
        commit: &Commit,
        file: &str,
        hash: &Hash,
        bytes: u64,
    ) -> u64 {
        let mut places = self.places(commit, file, hash).into_iter();
        if places.any(|place| size_of(&place) == Some(bytes)) {
            return 0;
        }
        bytes.saturating_sub(size_of(&self.partial(hash)).unwrap_or(0))
    }

    /// Makes the snapshot's `file` a link to its blob, unless it is a file of its own.
    pub(super) fn link(&self, commit: &Commit, file: &str, blob: &Path) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(file);
        if path == blob { Ok(()) } else { self.relink(&path, blob) }
    }

    /// Makes the view of the commit hold links to these files and nothing else; whatever folders they lie
    /// in, they lie beside each other here.
    pub(super) fn show(
        &self,
        commit: &Commit,
        file: Option<&FileName>,
        files: &[Kept],
    ) -> Result<PathBuf, HubError> {
        let view = self.view(commit, file);
        fs::create_dir_all(&view).map_err(fault("create", &view))?;
        for entry in fs::read_dir(&view).map_err(fault("list", &view))? {
            let path = entry.map_err(fault("list", &view))?.path();
            if !files.iter().any(|file| path.ends_with(file.base())) {
                fs::remove_file(&path).map_err(fault("remove", &path))?;
            }
        }
        for file in files {
            self.relink(&view.join(file.base()), &file.path)?;
        }
        File::open(&view).and_then(|dir| dir.sync_all()).map_err(fault("sync", &view))?;
        Ok(view)
    }

    /// Makes `path`, some folders below the root, a relative link to `to`, so that the cache can
    /// be moved.  A link that is right is left alone: others may be reading through it.
    fn relink(&self, path: &Path, to: &Path) -> Result<(), HubError> {
        let folders = path.parent().and_then(|dir| dir.strip_prefix(&self.root).ok());
        let up = "../".repeat(folders.map_or(0, |folders| folders.components().count()));
        let to = Path::new(&up).join(to.strip_prefix(&self.root).unwrap_or(to));
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(fault("create", dir))?;
        }
        let is_linked = || fs::read_link(path).is_ok_and(|now| now == to);
        if is_linked() {
            return Ok(());
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(fault("replace", path)(error));
            }
            _ => {}
        }
        match symlink(&to, path) {
            // Another process was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_linked() => Ok(()),
            made => made.map_err(fault("link", path)),
        }
    }

    /// Waits until no other process fetches this blob; the lock lasts until it is dropped.
    pub(super) fn lock(&self, hash: &Hash, file: &str) -> Result<File, HubError> {
        let path = self.locks.join(format!("{}.lock", hash.as_str()));
        let lock = File::options().append(true).create(true).open(&path);
        let lock = lock.map_err(fault("open", &path))?;
        let begin = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::Error(error)) => return Err(fault("lock", &path)(error)),
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PERIOD),
            }
            if begin.elapsed() > Duration::from_secs(LOCK_HOURS_MAX * 3600) {
                let (repo, file) = (self.repo.to_string(), file.to_owned());
                return Err(HubError::Locked { repo, file, hours: LOCK_HOURS_MAX, path });
            }
        }
    }

    /// Refuses a download that the disk cannot hold.
    pub(super) fn check_space(&self, missing_bytes: u64) -> Result<(), HubError> {
        let Ok(disk) = nix::sys::statvfs::statvfs(&self.root) else { return Ok(()) };
        let free_bytes = disk.blocks_available().saturating_mul(disk.fragment_size());
        let needed_bytes = missing_bytes.saturating_add(FREE_BYTES_MIN);
        if missing_bytes == 0 || needed_bytes <= free_bytes {
            return Ok(());
        }
        let (repo, path) = (self.repo.to_string(), self.root.clone());
        Err(HubError::NoSpace { repo, path, needed_bytes, free_bytes })
    }

    /// What the snapshot holds of the files that we read, if nothing of them is known to be
    /// missing: of all that Python has listed, else of the weights that an index speaks of.
    pub(super) fn complete(&self, commit: &Commit, file: Option<&FileName>) -> Option<Vec<Kept>> {
        let dir = self.snapshot(commit);
        let mut names = self.listed(commit).or_else(|| names_in(&dir))?;
        // What lies in folders is not seen at the top.
        let parts = file.map(FileName::parts).unwrap_or_default();
        names.extend(parts.into_iter().filter(|part| size_of(&dir.join(part)).is_some()));
        names.sort_unstable();
        names.dedup();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut chosen = select(&names, file).ok()?;
        chosen.sort_unstable();
        let shards = shards(&dir).filter(|_| file.is_none()).unwrap_or_default();
        let has = |file: &str| size_of(&dir.join(file)).is_some();
        // Nothing here runs code; a cache without it serves all but those who open what is made.
        chosen.retain(|file| !is_code(file) || has(file));
        let is_complete = chosen.iter().copied().chain(shards.iter().map(String::as_str)).all(has);
        is_complete.then(|| chosen.into_iter().map(|name| self.kept(&dir, name)).collect())
    }

    /// The text of a file of a commit, if it is there and small.
    pub(super) fn small_file(&self, commit: &Commit, file: &str) -> Option<String> {
        let dirs = [self.view(commit, None), self.snapshot(commit)];
        let open = |dir: PathBuf| File::open(dir.join(file)).ok();
        let mut text = String::new();
        let file = dirs.into_iter().find_map(open)?;
        file.take(SMALL_BYTES_MAX + 1).read_to_string(&mut text).ok()?;
        (text.len() as u64 <= SMALL_BYTES_MAX).then_some(text)
    }

    /// The names of a commit's files, where Python has listed them (`huggingface_hub` 2 does).
    fn listed(&self, commit: &Commit) -> Option<Vec<String>> {
        let file = File::open(self.root.join("trees").join(format!("{commit}.json"))).ok()?;
        let tree = serde_json::from_reader(io::BufReader::new(file.take(TREE_BYTES_MAX)));
        let tree: Tree = tree.ok()?;
        Some(tree.files.into_keys().collect())
    }

    /// Where all that was fetched of the repository lies, and how many bytes it is.
    pub(super) fn all(&self) -> Option<(PathBuf, u64)> {
        let blobs = self.root.join("blobs");
        let sizes = names_in(&blobs)?.into_iter().filter_map(|name| size_of(&blobs.join(name)));
        Some((self.root.clone(), sizes.sum()))
    }

    fn kept(&self, snapshot: &Path, name: &str) -> Kept {
        let link = snapshot.join(name);
        let hash = fs::read_link(&link).ok().and_then(|to| Hash::parse(to.file_name()?.to_str()?));
        let path = hash.as_ref().map_or(link, |hash| self.blob(hash));
        Kept { name: name.to_owned(), path, hash }
    }
}

/// The names in a directory.
fn names_in(dir: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(dir).ok()?;
    Some(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// A file of a commit that is in the cache.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// `None` for one that was put there without a hash.
    pub(super) hash: Option<Hash>,
}

impl Kept {
    /// Its name without folders.
    fn base(&self) -> &str {
        self.name.rsplit_once('/').map_or(&self.name, |(_, base)| base)
    }
}

/// Makes a finished partial file the blob, for good.
pub(super) fn publish(partial: &Path, blob: &Path, file: &mut File) -> Result<(), HubError> {
    file.flush().and_then(|()| file.sync_all()).map_err(fault("sync", partial))?;
    fs::rename(partial, blob).map_err(fault("rename", partial))?;
    let dir = blob.parent().unwrap_or(blob);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(fault("sync", dir))
}

/// The size of a file, or of the file that a link leads to.
pub(super) fn size_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
}

#[derive(Deserialize)]
struct Tree {
    files: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// The files of weights that the snapshot's index names; `None` without an index.
fn shards(dir: &Path) -> Option<Vec<String>> {
    let file = File::open(dir.join("model.safetensors.index.json")).ok()?;
    let index = serde_json::from_reader(io::BufReader::new(file.take(INDEX_BYTES_MAX)));
    let index: Index = index.ok()?;
    let mut shards: Vec<String> = index.weight_map.into_values().collect();
    shards.sort_unstable();
    shards.dedup();
    Some(shards.into_iter().filter(|shard| is_weights(shard)).collect())
}
