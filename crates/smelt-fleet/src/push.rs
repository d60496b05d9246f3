//! Publishes a sealed output: first what the server lacks of its chunks, last the entries that lead to it.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use smelt_store::{FileEntry, Manifest};

use crate::chunk::{CHUNKS_MAX, Chunk, FileChunks, Index, IndexError, cut, is_large};
use crate::dsse::Envelope;
use crate::keys::{KeyError, SigningKey};
use crate::pieces::{self, Hasher, Hashes};
use crate::remote::{Blob, Entry, Key, Remote, RemoteError};
use crate::statement::Statement;

/// Chunks that are cut before the server is asked which of them it lacks: one question for 4 MiB, and some times as much
/// memory, since the next ones are cut meanwhile.
const WINDOW_BYTES: usize = 4 << 20;
/// A statement is one blob of one message.  It takes some 300 bytes for each file.
const STATEMENT_BYTES_MAX: usize = 3 << 20;

/// What became of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Of all its files.
    pub bytes: u64,
    /// Of the chunks that the server lacked.
    pub sent: u64,
}

/// An output cannot be published; the server has no entry of it then.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The server refused or is gone.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Nobody signs it.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Whoever asked wants no more; what was sent stays there.
    #[error("stopped; what was sent is not sent again")]
    Stopped,
    /// It has more files, or larger ones, than an entry takes.
    #[error("it does not fit one entry of a server: {0}")]
    TooLarge(String),
    /// A file is not what was sealed.
    #[error("{} is not what was sealed any more: smelt cache fsck", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl From<IndexError> for PushError {
    fn from(error: IndexError) -> Self {
        Self::TooLarge(error.to_string())
    }
}

/// Publishes the output that lies in `folder` under every key of its statement, signed by `signer`; `told` hears of bytes as
/// they are read, and says whether to go on.  What the server has of it, from an earlier call that was cut short too, is not sent again.
///
/// # Errors
/// If the server does not take it, or the output is not what the statement says; nothing leads to it then.
pub fn push(
    remote: &dyn Remote,
    statement: &Statement,
    folder: &Path,
    signer: &SigningKey,
    told: &mut dyn FnMut(u64) -> bool,
) -> Result<Pushed, PushError> {
    let too_large = |text: String| PushError::TooLarge(text);
    let payload = statement.to_json().map_err(|error| too_large(error.to_string()))?;
    let envelope = Envelope::sign(payload, &[signer])?.to_json();
    let envelope = envelope.map_err(|error| too_large(error.to_string()))?;
    if envelope.len() > STATEMENT_BYTES_MAX {
        let (bytes, files) = (envelope.len(), statement.files.files().len());
        let text = format!("a statement of {bytes} bytes, for {files} files");
        return Err(too_large(text));
    }
    let mut sender = Sender { remote, sent: 0 };
    let (files, hashes) = sender.send_files(&statement.files, folder, told)?;
    let index = Index::new(files);
    let (index_json, chunks) = (index.to_json()?, once(index.chunks()));
    let named = |content: Vec<u8>| (Blob::of(&content), content);
    let [index, envelope] = [index_json, envelope].map(named);
    let pieces = pieces::to_bytes(&hashes).map(named);
    let name = |list: &(Blob, Vec<u8>)| list.0;
    let (statement_name, pieces_name) = (envelope.0, pieces.as_ref().map(name));
    let entry = Entry { statement: statement_name, index: index.0, pieces: pieces_name, chunks };
    sender.send([index, envelope].into_iter().chain(pieces).collect())?;
    if !told(0) {
        return Err(PushError::Stopped);
    }
    let recipes = statement.recipes.iter().map(|recipe| Key::Recipe(*recipe));
    let own = [Key::Tree(statement.tree), Key::Content(statement.key)];
    let anywhere = statement.anywhere.map(Key::Anywhere);
    for key in own.into_iter().chain(recipes).chain(anywhere) {
        remote.publish(&key, &entry)?;
    }
    Ok(Pushed { bytes: statement.files.bytes(), sent: sender.sent })
}

/// Each of them where it comes first.
fn once(chunks: impl Iterator<Item = Chunk>) -> Vec<Chunk> {
    let mut seen = HashSet::new();
    chunks.filter(|chunk| seen.insert(*chunk)).collect()
}

/// A chunk of a file, which has its number.
struct Cut {
    file: usize,
    chunk: Chunk,
    content: Vec<u8>,
}

/// Cuts files, a window after the other, until all are cut or nobody takes them any more; the pieces of those that are large.
fn cut_files(
    files: &Manifest,
    folder: &Path,
    to: &SyncSender<Result<Vec<Cut>, PushError>>,
) -> Vec<Hashes> {
    let (mut window, mut held, mut hashes) = (Vec::new(), 0, Vec::new());
    for (file, entry) in files.files().iter().enumerate() {
        let path = folder.join(&entry.path);
        let failed = |source| PushError::Read { path: path.clone(), source };
        let give_up = |error| {
            let _ = to.send(Err(failed(error)));
            Vec::new()
        };
        let opened = match File::open(&path) {
            Ok(opened) => opened,
            Err(error) => return give_up(error),
        };
        let mut hasher = Hasher::default();
        for cut in cut(opened, entry.size) {
            let (chunk, content) = match cut {
                Ok(cut) => cut,
                Err(error) => return give_up(error),
            };
            if is_large(entry.size) {
                hasher.add(&content);
            }
            held += content.len();
            window.push(Cut { file, chunk, content });
            if held >= WINDOW_BYTES {
                held = 0;
                if to.send(Ok(std::mem::take(&mut window))).is_err() {
                    return Vec::new();
                }
            }
        }
        hashes.push(hasher.finish());
    }
    let _ = to.send(Ok(window));
    hashes
}

/// Sends what the server lacks.
struct Sender<'a> {
    remote: &'a dyn Remote,
    sent: u64,
}

impl Sender<'_> {
    /// Sends the files of an output, which are cut beside that; their chunks, and the pieces of those that are large.
    fn send_files(
        &mut self,
        files: &Manifest,
        folder: &Path,
        told: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Vec<FileChunks>, Vec<Hashes>), PushError> {
        let chunks =
            |entry: &FileEntry| FileChunks { path: entry.path.clone(), chunks: Vec::new() };
        let mut all: Vec<FileChunks> = files.files().iter().map(chunks).collect();
        let hashes = thread::scope(|scope| {
            // One window waits here while the one before it is sent.
            let (to, windows) = sync_channel(0);
            let cutter = scope.spawn(move || cut_files(files, folder, &to));
            windows.into_iter().try_for_each(|window| self.take(window?, &mut all, told))?;
            Ok::<_, PushError>(cutter.join().expect("whoever cuts does not panic"))
        })?;
        let has_all = |(entry, file): &(&FileEntry, &FileChunks)| {
            file.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum::<u64>() == entry.size
        };
        match files.files().iter().zip(&all).find(|both| !has_all(both)) {
            Some((entry, _)) => Err(PushError::Changed { path: folder.join(&entry.path) }),
            None => Ok((all, hashes)),
        }
    }

    /// Notes and sends one window.
    fn take(
        &mut self,
        window: Vec<Cut>,
        all: &mut [FileChunks],
        told: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), PushError> {
        let bytes = window.iter().map(|cut| u64::from(cut.chunk.bytes)).sum();
        window.iter().for_each(|cut| all[cut.file].chunks.push(cut.chunk));
        if all.iter().map(|file| file.chunks.len()).sum::<usize>() > CHUNKS_MAX {
            return Err(PushError::TooLarge(format!("it has more than {CHUNKS_MAX} chunks")));
        }
        self.send(window.into_iter().map(|cut| (cut.chunk, cut.content)).collect())?;
        if told(bytes) { Ok(()) } else { Err(PushError::Stopped) }
    }

    fn send(&mut self, mut blobs: Vec<(Blob, Vec<u8>)>) -> Result<(), RemoteError> {
        let names = once(blobs.iter().map(|(blob, _)| *blob));
        let mut missing: HashSet<Blob> = self.remote.missing(&names)?.into_iter().collect();
        blobs.retain(|(blob, _)| missing.remove(blob));
        self.remote.write(&blobs)?;
        self.sent += blobs.iter().map(|(blob, _)| u64::from(blob.bytes)).sum::<u64>();
        Ok(())
    }
}
