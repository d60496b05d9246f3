//! Finds chunks in outputs that are here: another version of what is to be fetched has most of them.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::chunk::{Chunk, cut};

/// Chunks that are here, and where; 100 bytes of memory each.
#[derive(Debug, Default)]
pub struct LocalChunks {
    files: Vec<PathBuf>,
    /// The file and where in it.
    places: HashMap<Chunk, (usize, u64)>,
}

impl LocalChunks {
    /// Adds those of a file of so many bytes.  One that cannot be read has none.
    pub fn add(&mut self, path: &Path, bytes: u64) {
        let Ok(file) = File::open(path) else { return };
        self.files.push(path.to_owned());
        let mut at = 0;
        for (chunk, _) in cut(file, bytes).map_while(Result::ok) {
            self.places.entry(chunk).or_insert((self.files.len() - 1, at));
            at += u64::from(chunk.bytes);
        }
    }

    /// The content of a chunk, if it is here as it was.
    pub(crate) fn read(&self, chunk: &Chunk) -> Option<Vec<u8>> {
        let (number, at) = self.places.get(chunk)?;
        let mut content = vec![0; chunk.bytes as usize];
        File::open(&self.files[*number]).ok()?.read_exact_at(&mut content, *at).ok()?;
        (Chunk::of(&content) == *chunk).then_some(content)
    }
}
