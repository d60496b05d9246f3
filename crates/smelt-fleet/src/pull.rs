//! Fetches an output that somebody published: its statement is judged first, then its chunks come, each compared with the
//! list of them.
//!
//! Nobody signs that list, since it only says how to fetch: whoever takes the files compares them with the statement's, as
//! [`smelt_store::Store::seal_fetched`] does.

mod mend;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use smelt_store::{Digest, FileEntry, Manifest};

use crate::chunk::{Chunk, INDEX_BYTES_MAX, Index, IndexError};
use crate::dsse::{DsseError, Envelope};
use crate::judge::{Asked, Refusal, Vouched, judge};
use crate::local::LocalChunks;
use crate::peer::Sealed;
use crate::pieces::{self, Hashes};
use crate::places::PlacesLog;
use crate::remote::{Blob, Entry, Key, Part, Remote, RemoteError, plain};
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
    pieces: Option<Blob>,
}

/// What came of fetching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// By the server and by neighbours.
    pub bytes: u64,
    /// Of them, by neighbours.
    pub neighbours: u64,
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
    let entry = remote.entry(&key)?;
    entry.map(|entry| offer_of(remote, key, &entry, trust, now)).transpose()
}

/// The same of what was found under the key.
///
/// # Errors
/// As [`offer`].
pub fn offer_of(
    remote: &dyn Remote,
    key: Key,
    entry: &Entry,
    trust: &Trust,
    now: u64,
) -> Result<Offer, PullError> {
    let server = || remote.name().to_owned();
    if is_too_large(entry) {
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
    Ok(Offer { vouched, envelope, index, pieces: entry.pieces })
}

/// Whether nobody reads what an entry says.
pub(crate) fn is_too_large(entry: &Entry) -> bool {
    entry.statement.bytes > STATEMENT_BYTES_MAX || entry.index.bytes > STATEMENT_BYTES_MAX
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
    /// The chunks of outputs that are here, of which this one may be another version: of all their files, since one may have
    /// got another name.
    pub fn local(older: &[Sealed]) -> LocalChunks {
        let mut local = LocalChunks::default();
        for Sealed { folder, files, .. } in older {
            files.iter().for_each(|(path, bytes)| local.add(&folder.join(path), *bytes));
        }
        local
    }

    /// Bytes of its files that lie in a folder, as far as the disk holds them: files are not written from their beginning on.
    pub fn bytes_in(&self, folder: &Path) -> u64 {
        let held = |entry: &FileEntry| {
            let stat = fs::symlink_metadata(folder.join(&entry.path)).ok()?;
            Some((stat.blocks() * 512).min(entry.size))
        };
        self.vouched.statement.files.files().iter().filter_map(held).sum()
    }

    /// The pieces of its large files, where others are here.  Without them whole chunks come.
    fn hashes(&self, remote: &dyn Remote, local: &LocalChunks) -> Option<Vec<Hashes>> {
        let list = self.pieces.filter(|list| list.bytes as usize <= INDEX_BYTES_MAX)?;
        remote.ranges().filter(|_| local.has_pieces())?;
        let bytes = blob(remote, list, "list of pieces").ok()?;
        pieces::read(&bytes, &self.vouched.statement.files)
    }

    /// Fetches its files into a folder, but for the chunks that are here; `told` hears of bytes as they are there, and says
    /// whether to go on.  What an earlier call has left in the folder is gone on with, so at most what was asked for at once
    /// comes twice.  `log` hears which chunks are there and which come, for neighbours.
    ///
    /// # Errors
    /// If it cannot be written, or the server has other bytes than those that it lists: the folder is to be kept only where the
    /// same is fetched into it again.
    pub fn fetch(
        &self,
        remote: &dyn Remote,
        local: &LocalChunks,
        (folder, log): (&Path, Option<PlacesLog>),
        told: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Fetched, PullError> {
        let draft = Draft { folder, files: &self.vouched.statement.files, log };
        let fetched = Fetched::default();
        let mut fetch =
            Fetch { remote, draft, wanted: Vec::new(), places: HashMap::new(), fetched, told };
        fetch.begin(&self.index)?;
        fetch.take_local(local)?;
        if !fetch.wanted.is_empty()
            && let Some(hashes) = self.hashes(remote, local)
        {
            fetch.mend(&hashes, local)?;
        }
        while !fetch.wanted.is_empty() {
            fetch.window()?;
        }
        fetch.draft.finish()?;
        Ok(fetch.fetched)
    }
}

/// Where a chunk belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of the file.
    file: usize,
    /// Bytes before it.
    at: u64,
}

/// Asks for chunks window by window.
struct Fetch<'a> {
    remote: &'a dyn Remote,
    draft: Draft<'a>,
    /// Chunks that are not there, each once, in the order of the files.
    wanted: Vec<Blob>,
    places: HashMap<Blob, Vec<Place>>,
    fetched: Fetched,
    told: &'a mut dyn FnMut(u64) -> bool,
}

impl Fetch<'_> {
    fn tell(&mut self, bytes: u64) -> Result<(), PullError> {
        if (self.told)(bytes) { Ok(()) } else { Err(PullError::Stopped) }
    }

    /// Keeps what is there, and notes what is not.
    fn begin(&mut self, index: &Index) -> Result<(), PullError> {
        for (file, chunks) in index.files.iter().map(|file| &file.chunks).enumerate() {
            let (mut at, mut kept) = (0, Vec::new());
            let there = self.draft.begin(file)?;
            for chunk in chunks {
                if there.as_ref().is_some_and(|there| holds(there, at, chunk)) {
                    kept.push((*chunk, Place { file, at }));
                } else {
                    let places = self.places.entry(*chunk).or_default();
                    if places.is_empty() {
                        self.wanted.push(*chunk);
                    }
                    places.push(Place { file, at });
                }
                at += u64::from(chunk.bytes);
            }
            self.draft.note(&kept);
            let kept = kept.iter().map(|(chunk, _)| u64::from(chunk.bytes)).sum();
            self.fetched.kept += kept;
            self.tell(kept)?;
        }
        Ok(())
    }

    /// Takes what outputs that are here have of it.
    fn take_local(&mut self, local: &LocalChunks) -> Result<(), PullError> {
        for chunk in std::mem::take(&mut self.wanted) {
            match local.read(&chunk) {
                Some(content) => self.fetched.local += self.put(chunk, &content)?,
                None => self.wanted.push(chunk),
            }
        }
        Ok(())
    }

    /// Fetches some of what is wanted.
    fn window(&mut self) -> Result<(), PullError> {
        let Self { remote, draft, wanted, .. } = self;
        let parts = remote.read_some(wanted, WINDOW_BYTES, &mut |chunks| draft.asks(chunks))?;
        if parts.is_empty() {
            return self.tell(0);
        }
        let mut have = vec![false; self.wanted.len()];
        for Part { number, content, is_neighbours } in parts {
            let chunk = self.wanted[number];
            let content = match content {
                Some(content) if is_neighbours => content,
                content => self.checked(chunk, content)?,
            };
            let bytes = self.put(chunk, &content)?;
            self.fetched.bytes += bytes;
            self.fetched.neighbours += if is_neighbours { bytes } else { 0 };
            have[number] = true;
        }
        let mut have = have.into_iter();
        self.wanted.retain(|_| have.next() == Some(false));
        Ok(())
    }

    /// Puts a chunk wherever it belongs; how many bytes that were.
    fn put(&mut self, chunk: Chunk, content: &[u8]) -> Result<u64, PullError> {
        let places = self.places.remove(&chunk).unwrap_or_default();
        let bytes = u64::from(chunk.bytes) * places.len() as u64;
        places.iter().try_for_each(|place| self.draft.write(*place, content))?;
        self.draft.note(&places.iter().map(|place| (chunk, *place)).collect::<Vec<_>>());
        self.tell(bytes)?;
        Ok(bytes)
    }

    fn checked(&self, chunk: Chunk, answer: Option<Vec<u8>>) -> Result<Vec<u8>, PullError> {
        let server = self.remote.name().to_owned();
        let Some(content) = answer else {
            return Err(PullError::Gone { server, what: "chunks" });
        };
        let is_it = content.len() == chunk.bytes as usize && Digest::of(&content) == chunk.digest;
        let file = self.places.get(&chunk).and_then(|places| places.first()).map(|it| it.file);
        let what = || format!("a chunk of {}", file.map_or("it", |file| self.draft.path(file)));
        if is_it { Ok(content) } else { Err(PullError::Wrong { server, what: what() }) }
    }
}

/// Whether a chunk lies there.
fn holds(file: &File, at: u64, chunk: &Chunk) -> bool {
    let mut content = vec![0; chunk.bytes as usize];
    file.read_exact_at(&mut content, at).is_ok() && Chunk::of(&content) == *chunk
}

/// Files that are being written.
struct Draft<'a> {
    folder: &'a Path,
    files: &'a Manifest,
    /// Without it neighbours hear later of what is here.
    log: Option<PlacesLog>,
}

impl Draft<'_> {
    fn path(&self, file: usize) -> &str {
        &self.files.files()[file].path
    }

    fn failed(&self, file: usize) -> impl Fn(io::Error) -> PullError {
        let path = self.folder.join(self.path(file));
        move |source| PullError::Write { path: path.clone(), source }
    }

    fn open(&self, file: usize) -> Result<File, PullError> {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        open.open(self.folder.join(self.path(file))).map_err(self.failed(file))
    }

    /// Makes a file; itself, where something lies in it.
    fn begin(&self, file: usize) -> Result<Option<File>, PullError> {
        let FileEntry { path, size, .. } = &self.files.files()[file];
        let (path, failed) = (self.folder.join(path), self.failed(file));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(&failed)?;
        }
        // One that was about to be sealed may be written by nobody.
        let writable = Permissions::from_mode(0o644);
        let _ = fs::symlink_metadata(&path).is_ok_and(|it| it.is_file())
            && fs::set_permissions(&path, writable).is_ok();
        let there = self.open(file)?;
        let length = there.metadata().map_err(&failed)?.len();
        if length > *size {
            there.set_len(*size).map_err(&failed)?;
        }
        Ok((length > 0).then_some(there))
    }

    fn write(&self, place: Place, content: &[u8]) -> Result<(), PullError> {
        let written = self.open(place.file)?.write_all_at(content, place.at);
        written.map_err(self.failed(place.file))
    }

    /// Notes what is there.
    fn note(&mut self, places: &[(Chunk, Place)]) {
        let files = self.files.files();
        let line =
            |(chunk, Place { file, at }): &(Chunk, Place)| (*chunk, *at, &*files[*file].path);
        if self.log.as_mut().is_some_and(|log| log.has(places.iter().map(line)).is_err()) {
            self.log = None;
        }
    }

    /// Notes what the server is asked for.
    fn asks(&mut self, chunks: &[Chunk]) {
        if self.log.as_mut().is_some_and(|log| log.comes(chunks.iter()).is_err()) {
            self.log = None;
        }
    }

    /// Ends files that have all of their chunks.
    fn finish(&self) -> Result<(), PullError> {
        for (file, entry) in self.files.files().iter().enumerate() {
            let mode = if entry.executable { 0o755 } else { 0o644 };
            let path = self.folder.join(&entry.path);
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(self.failed(file))?;
        }
        Ok(())
    }
}
