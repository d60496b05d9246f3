//! Publishes a sealed output: first what the server lacks of its chunks, last the entries that lead to it.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::chunk::{CHUNKS_MAX, Chunk, FileChunks, Index, IndexError, cut};
use crate::dsse::Envelope;
use crate::keys::SigningKey;
use crate::remote::{Blob, Entry, Key, Remote, RemoteError};
use crate::statement::Statement;

/// Chunks that are read before the server is asked which of them it lacks: one question for 16 MiB, and as much memory.
const WINDOW_BYTES: usize = 16 << 20;
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
    let envelope = Envelope::sign(payload, &[signer]).to_json();
    let envelope = envelope.map_err(|error| too_large(error.to_string()))?;
    if envelope.len() > STATEMENT_BYTES_MAX {
        let (bytes, files) = (envelope.len(), statement.files.files().len());
        let text = format!("a statement of {bytes} bytes, for {files} files");
        return Err(too_large(text));
    }
    let mut sender = Sender::new(remote);
    let mut files = Vec::new();
    for entry in statement.files.files() {
        let path = folder.join(&entry.path);
        let chunks = sender.send_file(&path, entry.size, told)?;
        files.push(FileChunks { path: entry.path.clone(), chunks });
    }
    let index = Index::new(files);
    let (index_json, chunks) = (index.to_json()?, once(index.chunks()));
    let index = sender.send(index_json)?;
    let statement_blob = sender.send(envelope)?;
    sender.flush()?;
    let entry = Entry { statement: statement_blob, index, chunks };
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

/// Gathers chunks and sends those that the server lacks.
struct Sender<'a> {
    remote: &'a dyn Remote,
    window: Vec<(Blob, Vec<u8>)>,
    held: usize,
    sent: u64,
    /// Of all files so far.
    chunks: usize,
}

impl<'a> Sender<'a> {
    fn new(remote: &'a dyn Remote) -> Self {
        Self { remote, window: Vec::new(), held: 0, sent: 0, chunks: 0 }
    }

    /// Cuts a file of so many bytes and sends it.
    fn send_file(
        &mut self,
        path: &Path,
        bytes: u64,
        told: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Vec<Chunk>, PushError> {
        let failed = |source| PushError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let (mut chunks, mut read) = (Vec::new(), 0);
        for cut in cut(file, bytes) {
            let (chunk, data) = cut.map_err(failed)?;
            read += u64::from(chunk.bytes);
            chunks.push(chunk);
            self.chunks += 1;
            if self.chunks > CHUNKS_MAX {
                let text = format!("it has more than {CHUNKS_MAX} chunks");
                return Err(PushError::TooLarge(text));
            }
            self.add(chunk, data)?;
            if !told(u64::from(chunk.bytes)) {
                return Err(PushError::Stopped);
            }
        }
        if read == bytes { Ok(chunks) } else { Err(PushError::Changed { path: path.to_owned() }) }
    }

    fn send(&mut self, content: Vec<u8>) -> Result<Blob, RemoteError> {
        let blob = Blob::of(&content);
        self.add(blob, content)?;
        Ok(blob)
    }

    fn add(&mut self, blob: Blob, content: Vec<u8>) -> Result<(), RemoteError> {
        self.held += content.len();
        self.window.push((blob, content));
        if self.held < WINDOW_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), RemoteError> {
        let blobs = once(self.window.iter().map(|(blob, _)| *blob));
        let mut missing: HashSet<Blob> = self.remote.missing(&blobs)?.into_iter().collect();
        self.window.retain(|(blob, _)| missing.remove(blob));
        self.remote.write(&self.window)?;
        self.sent += self.window.iter().map(|(blob, _)| u64::from(blob.bytes)).sum::<u64>();
        self.window.clear();
        self.held = 0;
        Ok(())
    }
}
