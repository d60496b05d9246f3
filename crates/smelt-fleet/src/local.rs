//! Finds chunks in outputs that are here: another version of what is to be fetched has most of them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::chunk::{Chunk, cut, is_large};
use crate::pieces::{Hasher, PIECE_BYTES};

/// Chunks that are here, and where; 100 bytes of memory each.
#[derive(Debug, Default)]
pub struct LocalChunks {
    files: Vec<PathBuf>,
    /// The file and where in it.
    places: HashMap<Chunk, (usize, u64)>,
    /// The same of pieces of large files, by their hashes.
    pieces: HashMap<u64, (usize, u64)>,
}

impl LocalChunks {
    /// Adds those of a file of so many bytes.  One that cannot be read has none.
    pub fn add(&mut self, path: &Path, bytes: u64) {
        let Ok(file) = File::open(path) else { return };
        self.files.push(path.to_owned());
        let number = self.files.len() - 1;
        let (mut at, mut hasher) = (0, Hasher::default());
        for (chunk, content) in cut(file, bytes).map_while(Result::ok) {
            self.places.entry(chunk).or_insert((number, at));
            at += u64::from(chunk.bytes);
            if is_large(bytes) {
                hasher.add(&content);
            }
        }
        for (piece, hash) in (0_u64..).zip(hasher.finish()) {
            self.pieces.entry(hash).or_insert((number, piece * PIECE_BYTES as u64));
        }
    }

    /// Whether there are pieces at all.
    pub(crate) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Where a piece seems to lie: the file's number and how many bytes are before it.
    pub(crate) fn piece(&self, hash: u64) -> Option<(usize, u64)> {
        self.pieces.get(&hash).copied()
    }

    /// Reads what lies there now, whatever it is.
    pub(crate) fn read_at(&self, (file, at): (usize, u64), to: &mut [u8]) -> io::Result<()> {
        File::open(&self.files[file])?.read_exact_at(to, at)
    }

    /// The content of a chunk, if it is here as it was.
    pub(crate) fn read(&self, chunk: &Chunk) -> Option<Vec<u8>> {
        let mut content = vec![0; chunk.bytes as usize];
        self.read_at(*self.places.get(chunk)?, &mut content).ok()?;
        (Chunk::of(&content) == *chunk).then_some(content)
    }
}
