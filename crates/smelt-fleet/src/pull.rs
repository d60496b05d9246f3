//! Fetches an output that somebody published: its statement is judged first, then its chunks come, each compared with the
//! list of them.
//!
//! Nobody signs that list, since it only says how to fetch: whoever takes the files compares them with the statement's, as
//! [`smelt_store::Store::seal_fetched`] does.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use smelt_store::{Digest, FileEntry};

use crate::chunk::{Chunk, Index, IndexError};
use crate::dsse::{DsseError, Envelope};
use crate::judge::{Asked, Refusal, Vouched, judge};
use crate::local::LocalChunks;
use crate::remote::{Blob, Key, Remote, RemoteError, plain};
use crate::trust::Trust;

/// Chunks that are asked for at once: some batches on their way, and as much memory.
const WINDOW_BYTES: u64 = 12 << 20;
/// As a pusher's.
const STATEMENT_BYTES_MAX: u32 = 4 << 20;

/// An output that somebody trusted vouches for, and that can be fetched.
#[derive(Debug)]
pub struct Offer {
    /// Who says what of it.
    pub vouched: Vouched,
    /// The same as it was signed, to be judged again later.
    pub envelope: Envelope,
    index: Index,
}

/// What came of fetching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// By the server.
    pub bytes: u64,
    /// Of an earlier call that was cut short.
    pub kept: u64,
    /// From outputs that are here.
    pub local: u64,
}

/// Nothing can be had of a server under a key, though it says so.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The server refused or is gone.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Nobody who is trusted vouches for it.
    #[error("{server}: {refusal}")]
    Refused {
        /// Where it is.
        server: String,
        /// Why.
        refusal: Refusal,
    },
    /// An entry that leads to nothing: the server has removed part of it, which is as if there were none.
    #[error("{server} has an entry but no longer its {what}")]
    Gone {
        /// Where it is.
        server: String,
        /// What is missing.
        what: &'static str,
    },
    /// It sent something else than what it was asked for.
    #[error("{server} answered with other bytes than those asked for: {what}")]
    Wrong {
        /// Where it is.
        server: String,
        /// Of which.
        what: String,
    },
    /// Whoever asked wants no more; what was fetched stays.
    #[error("stopped; what was fetched is kept")]
    Stopped,
    /// The disk refused.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PullError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Write { source, .. } if full.contains(&source.kind()))
    }
}

/// What is published under a key, if anything is and somebody trusted vouches for it.  `now` is in seconds of the Unix era.
///
/// # Errors
/// If the server does not answer, or what it has is refused.
pub fn offer(
    remote: &dyn Remote,
    key: Key,
    trust: &Trust,
    now: u64,
) -> Result<Option<Offer>, PullError> {
    let Some(entry) = remote.entry(&key)? else { return Ok(None) };
    let server = || remote.name().to_owned();
    if entry.statement.bytes > STATEMENT_BYTES_MAX || entry.index.bytes > STATEMENT_BYTES_MAX {
        let what = format!("a statement of {} bytes", entry.statement.bytes.max(entry.index.bytes));
        return Err(PullError::Wrong { server: server(), what });
    }
    let [statement, index] = [(entry.statement, "statement"), (entry.index, "list of chunks")];
    let json = blob(remote, statement.0, statement.1)?;
    let wrong = |what: String| PullError::Wrong { server: server(), what: plain(&what) };
    let odd = |error: DsseError| wrong(error.to_string());
    let asked = Asked { key, instance: remote.instance(), least: 1 };
    let envelope = Envelope::from_json(&json).map_err(odd)?;
    let judged = judge(trust, &envelope, &asked, now);
    let refused = |refusal| PullError::Refused { server: server(), refusal };
    let vouched = judged.map_err(refused)?;
    let odd = |error: IndexError| wrong(error.to_string());
    let json = blob(remote, index.0, index.1)?;
    let index = Index::read(&json, &vouched.statement.files).map_err(odd)?;
    Ok(Some(Offer { vouched, envelope, index }))
}

/// One blob that is what it is called.
fn blob(remote: &dyn Remote, blob: Blob, what: &'static str) -> Result<Vec<u8>, PullError> {
    let server = || remote.name().to_owned();
    let found = remote.read(&[blob])?.pop().flatten();
    let content = found.ok_or_else(|| PullError::Gone { server: server(), what })?;
    let is_it = content.len() == blob.bytes as usize && Digest::of(&content) == blob.digest;
    if is_it {
        Ok(content)
    } else {
        Err(PullError::Wrong { server: server(), what: what.to_owned() })
    }
}

impl Offer {
    /// The chunks of outputs that are here, each a folder, of which this one may be another version: those of files of the
    /// same names.
    pub fn local(&self, folders: &[PathBuf]) -> LocalChunks {
        let mut local = LocalChunks::default();
        for entry in self.vouched.statement.files.files() {
            folders.iter().for_each(|folder| local.add(&folder.join(&entry.path), entry.size));
        }
        local
    }

    /// Fetches its files into a folder, but for the chunks that are here; `told` hears of bytes as they are there, and says
    /// whether to go on.  What an earlier call has left in the folder
    /// is gone on with, so at most one chunk of each file comes twice.
    ///
    /// # Errors
    /// If it cannot be written, or the server has other bytes than those that it lists: the folder is to be kept only where the
    /// same is fetched into it again.
    pub fn fetch(
        &self,
        remote: &dyn Remote,
        local: &LocalChunks,
        folder: &Path,
        told: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Fetched, PullError> {
        let files = self.vouched.statement.files.files();
        let mut fetch = Fetch { remote, local, fetched: Fetched::default(), told };
        let mut open = Vec::new();
        for (entry, file) in files.iter().zip(&self.index.files) {
            let draft = Draft::begin(folder, entry, &file.chunks)?;
            fetch.tell(draft.kept)?;
            fetch.fetched.kept += draft.kept;
            open.push(draft);
            fetch.some(&mut open, false)?;
        }
        fetch.some(&mut open, true)?;
        Ok(fetch.fetched)
    }
}

/// Asks for chunks window by window.
struct Fetch<'a> {
    remote: &'a dyn Remote,
    local: &'a LocalChunks,
    fetched: Fetched,
    told: &'a mut dyn FnMut(u64) -> bool,
}

impl Fetch<'_> {
    fn tell(&mut self, bytes: u64) -> Result<(), PullError> {
        if (self.told)(bytes) { Ok(()) } else { Err(PullError::Stopped) }
    }

    /// Fetches what the drafts lack: all of it, or as long as it fills windows.
    fn some(&mut self, open: &mut Vec<Draft<'_>>, all: bool) -> Result<(), PullError> {
        loop {
            let lacks = open.iter().map(Draft::lacks).sum::<u64>();
            let is_window = lacks >= WINDOW_BYTES || (all && lacks > 0);
            // A file that has no chunks, or all of them, waits for nobody.
            if !(is_window || all || open.len() >= OPEN_MAX) {
                return Ok(());
            }
            if lacks == 0 {
                return open.drain(..).try_for_each(Draft::finish);
            }
            self.window(open)?;
        }
    }

    /// Fetches one window for the first of the drafts, and ends those that are whole then.
    fn window(&mut self, open: &mut Vec<Draft<'_>>) -> Result<(), PullError> {
        let (mut asked, mut bytes) = (Vec::new(), 0);
        for (number, draft) in open.iter().enumerate() {
            for chunk in draft.left {
                if bytes >= WINDOW_BYTES {
                    break;
                }
                bytes += u64::from(chunk.bytes);
                asked.push((number, *chunk, self.local.read(chunk)));
            }
        }
        let is_missing = |(_, chunk, here): &(_, Blob, Option<_>)| here.is_none().then_some(*chunk);
        let missing: Vec<Blob> = asked.iter().filter_map(is_missing).collect();
        let mut answers = self.remote.read(&missing)?.into_iter();
        for (number, chunk, here) in asked {
            let bytes = u64::from(chunk.bytes);
            let content = if let Some(content) = here {
                self.fetched.local += bytes;
                content
            } else {
                self.fetched.bytes += bytes;
                checked(self.remote.name(), chunk, answers.next().flatten(), open[number].entry)?
            };
            open[number].add(&content)?;
            self.tell(bytes)?;
        }
        let whole = open.iter().take_while(|draft| draft.left.is_empty()).count();
        open.drain(..whole).try_for_each(Draft::finish)
    }
}

/// Files that are written at once: a process may have 1024 open.
const OPEN_MAX: usize = 256;

fn checked(
    server: &str,
    chunk: Chunk,
    answer: Option<Vec<u8>>,
    entry: &FileEntry,
) -> Result<Vec<u8>, PullError> {
    let server = server.to_owned();
    let Some(content) = answer else {
        return Err(PullError::Gone { server, what: "chunks" });
    };
    let is_it = content.len() == chunk.bytes as usize && Digest::of(&content) == chunk.digest;
    let what = || format!("a chunk of {}", entry.path);
    if is_it { Ok(content) } else { Err(PullError::Wrong { server, what: what() }) }
}

/// A file that is being written.
struct Draft<'a> {
    entry: &'a FileEntry,
    path: PathBuf,
    file: File,
    /// Chunks that it lacks.
    left: &'a [Chunk],
    /// Bytes that were there.
    kept: u64,
}

impl<'a> Draft<'a> {
    /// Opens a file and keeps the chunks that are there.
    fn begin(folder: &Path, entry: &'a FileEntry, chunks: &'a [Chunk]) -> Result<Self, PullError> {
        let path = folder.join(&entry.path);
        let failed = |source| PullError::Write { path: path.clone(), source };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        // One that was about to be sealed may be written by nobody.
        let writable = Permissions::from_mode(0o644);
        let _ = fs::symlink_metadata(&path).is_ok_and(|it| it.is_file())
            && fs::set_permissions(&path, writable).is_ok();
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        let mut file = open.open(&path).map_err(failed)?;
        let (mut kept, mut have) = (0, 0);
        let mut buffer = Vec::new();
        for chunk in chunks {
            buffer.clear();
            let read = (&file).take(chunk.bytes.into()).read_to_end(&mut buffer);
            if read.is_err() || Chunk::of(&buffer) != *chunk {
                break;
            }
            kept += u64::from(chunk.bytes);
            have += 1;
        }
        file.set_len(kept).map_err(failed)?;
        file.seek(SeekFrom::Start(kept)).map_err(failed)?;
        Ok(Self { entry, file, left: &chunks[have..], kept, path })
    }

    fn lacks(&self) -> u64 {
        self.left.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// Adds the next chunk.
    fn add(&mut self, content: &[u8]) -> Result<(), PullError> {
        let written = self.file.write_all(content);
        written.map_err(|source| PullError::Write { path: self.path.clone(), source })?;
        self.left = &self.left[1..];
        Ok(())
    }

    /// Ends a file that has all of its chunks.
    fn finish(self) -> Result<(), PullError> {
        let Self { entry, path, file, .. } = self;
        let mode = if entry.executable { 0o755 } else { 0o644 };
        let set = file.set_permissions(Permissions::from_mode(mode));
        set.map_err(|source| PullError::Write { path, source })
    }
}
