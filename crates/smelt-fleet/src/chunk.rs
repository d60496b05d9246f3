//! Cuts files into chunks where their content says so, and lists the chunks of an output.
//!
//! FastCDC (Xia et al. 2016 and 2020, by the crate `fastcdc`): what is inserted or replaced in a file changes the chunks
//! that it touches and no others, so that another version of an output shares most of them.

use std::io::{self, Read};

use fastcdc::v2020::{ChunkData, StreamCDC};
use serde::{Deserialize, Serialize};
use smelt_store::{Digest, Manifest};

/// A list of chunks is one blob and is read into memory; servers take 4 MiB in a message.
pub const INDEX_BYTES_MAX: usize = 3 << 20;
/// An entry of a server names every chunk, in a message of the same 4 MiB: some 90 bytes each.
pub const CHUNKS_MAX: usize = 30_000;
/// Two of the largest go in one message.
pub const CHUNK_BYTES_MAX: usize = 3 << 19;

const FORMAT: &str = "smelt-chunks 1";

/// From here on a file is large: it is cut into large chunks, and its [pieces](crate::pieces) are listed as well.  Tests are content
/// with less.
const LARGE_FILE_BYTES: u64 = if cfg!(test) { 16 << 20 } else { 1 << 30 };

/// Whether a file of so many bytes is cut into large chunks.
pub(crate) const fn is_large(file_bytes: u64) -> bool {
    file_bytes >= LARGE_FILE_BYTES
}

/// How a file is cut: the least, the usual and the most bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    least: usize,
    usual: usize,
    most: usize,
}

impl Sizes {
    /// By the size of the file: small chunks share more, and of a large one they would be too many, for an entry and for a
    /// server, which takes longer for each.
    const fn of(file_bytes: u64) -> Self {
        if is_large(file_bytes) {
            Self { least: 256 << 10, usual: 512 << 10, most: CHUNK_BYTES_MAX }
        } else {
            Self { least: 64 << 10, usual: 128 << 10, most: 1 << 20 }
        }
    }
}

/// A run of bytes of a file, by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(Digest, u32)", into = "(Digest, u32)")]
pub struct Chunk {
    /// Of its content.
    pub digest: Digest,
    /// How many.
    pub bytes: u32,
}

impl From<(Digest, u32)> for Chunk {
    fn from((digest, bytes): (Digest, u32)) -> Self {
        Self { digest, bytes }
    }
}

impl From<Chunk> for (Digest, u32) {
    fn from(chunk: Chunk) -> Self {
        (chunk.digest, chunk.bytes)
    }
}

impl Chunk {
    /// Of some content, at most [`CHUNK_BYTES_MAX`] of it.
    pub fn of(content: &[u8]) -> Self {
        let bytes = u32::try_from(content.len()).expect("a chunk is at most 1.5 MiB");
        Self { digest: Digest::of(content), bytes }
    }
}

/// The chunks of a file of so many bytes, with their content, one after the other.
pub fn cut(file: impl Read, bytes: u64) -> impl Iterator<Item = io::Result<(Chunk, Vec<u8>)>> {
    let Sizes { least, usual, most } = Sizes::of(bytes);
    let chunk = |cut: Result<ChunkData, fastcdc::v2020::Error>| {
        let data = cut.map_err(io::Error::from)?.data;
        Ok((Chunk::of(&data), data))
    };
    StreamCDC::new(file, least, usual, most).map(chunk)
}

/// The chunks of a file of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileChunks {
    /// As its manifest names it.
    pub path: String,
    /// In the order of its content; none of an empty file.
    pub chunks: Vec<Chunk>,
}

/// The chunks of all files of an output, in the order of its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    format: String,
    /// The files.
    pub files: Vec<FileChunks>,
}

/// A list of chunks that is none of an output.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is no JSON of this form.
    #[error("the list of chunks cannot be read: {0}")]
    Unreadable(String),
    /// See [`CHUNKS_MAX`].
    #[error("{count} chunks, more than the {CHUNKS_MAX} that an entry takes")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// It contradicts what was signed.
    #[error("the list of chunks is not that of the signed files: {0}")]
    Other(String),
}

impl Index {
    /// Of files that were cut.
    pub fn new(files: Vec<FileChunks>) -> Self {
        Self { format: FORMAT.to_owned(), files }
    }

    /// Every chunk, in order; one that repeats comes as often.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> {
        self.files.iter().flat_map(|file| file.chunks.iter().copied())
    }

    /// As a blob.
    ///
    /// # Errors
    /// If it has too many chunks.
    pub fn to_json(&self) -> Result<Vec<u8>, IndexError> {
        let count = self.chunks().count();
        if count > CHUNKS_MAX {
            return Err(IndexError::TooMany { count });
        }
        Ok(serde_json::to_vec(self).expect("texts and numbers are JSON"))
    }

    /// Reads what somebody says to be the chunks of these files.
    ///
    /// # Errors
    /// If it is no list, too long, or not of these files: every byte of them must come from one chunk.
    pub fn read(json: &[u8], files: &Manifest) -> Result<Self, IndexError> {
        let unreadable = |text: &str| IndexError::Unreadable(text.to_owned());
        if json.len() > INDEX_BYTES_MAX {
            return Err(unreadable("it is too long"));
        }
        let read = serde_json::from_slice::<Self>(json);
        let index = read.map_err(|error| IndexError::Unreadable(error.to_string()))?;
        if index.format != FORMAT {
            return Err(unreadable("it is of another version"));
        }
        index.check(files)?;
        Ok(index)
    }

    fn check(&self, files: &Manifest) -> Result<(), IndexError> {
        let count = self.chunks().count();
        if count > CHUNKS_MAX {
            return Err(IndexError::TooMany { count });
        }
        if self.files.len() != files.files().len() {
            let (found, expected) = (self.files.len(), files.files().len());
            return Err(IndexError::Other(format!("{found} files instead of {expected}")));
        }
        for (file, entry) in self.files.iter().zip(files.files()) {
            let is_odd = |chunk: &&Chunk| !(1..=CHUNK_BYTES_MAX).contains(&(chunk.bytes as usize));
            if let Some(odd) = file.chunks.iter().find(is_odd) {
                let text = format!("a chunk of {} has {} bytes", entry.path, odd.bytes);
                return Err(IndexError::Other(text));
            }
            let bytes: u64 = file.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
            if file.path != entry.path || bytes != entry.size {
                let text = format!("{bytes} bytes of {} instead of {}", file.path, entry.size);
                return Err(IndexError::Other(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;
    use smelt_store::FileEntry;

    use super::*;

    fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
        let mut chance = Random::new(seed);
        (0..count).map(|_| chance.below(256) as u8).collect()
    }

    fn chunks(content: &[u8]) -> Vec<Chunk> {
        cut(content, content.len() as u64).map(|chunk| chunk.unwrap().0).collect()
    }

    fn index_of(content: &[u8]) -> Index {
        Index::new(vec![FileChunks { path: "model".to_owned(), chunks: chunks(content) }])
    }

    fn manifest(path: &str, content: &[u8]) -> Manifest {
        let sha256 = Digest::of(content);
        let size = content.len() as u64;
        Manifest::new(vec![FileEntry { path: path.to_owned(), size, sha256, executable: false }])
            .unwrap()
    }

    #[test]
    fn chunks_put_together_are_the_file() {
        let content = random_bytes(1, 3 << 20);
        let cut: Vec<_> = cut(&content[..], content.len() as u64).map(Result::unwrap).collect();
        let whole: Vec<u8> = cut.iter().flat_map(|(_, data)| data.clone()).collect();
        assert!(whole == content);
        assert!(cut.len() > 8 && cut.iter().all(|(chunk, data)| *chunk == Chunk::of(data)));
        assert!(chunks(b"").is_empty());
        assert_eq!(chunks(b"abc"), [Chunk::of(b"abc")]);
    }

    #[test]
    fn what_is_inserted_changes_few_chunks() {
        let mut content = random_bytes(2, 8 << 20);
        let before = chunks(&content);
        let inserted = random_bytes(3, 1000);
        content.splice(4_000_000..4_000_000, inserted);
        let after = chunks(&content);
        let new: Vec<&Chunk> = after.iter().filter(|chunk| !before.contains(chunk)).collect();
        assert!(!new.is_empty() && new.len() <= 3, "{} of {}", new.len(), after.len());
    }

    /// A reader of another version must find the same chunks, or nothing is shared.
    #[test]
    fn files_are_cut_where_they_always_were() {
        let first = chunks(&random_bytes(1, 1 << 20));
        let bytes: Vec<u32> = first.iter().map(|chunk| chunk.bytes).collect();
        assert_eq!(bytes, [134_088, 123_224, 72_754, 357_602, 112_863, 140_760, 107_285]);
    }

    #[test]
    fn the_largest_file_of_each_size_has_fewer_chunks_than_an_entry_takes() {
        for largest in [0x3fff_ffff, 18 << 30] {
            let Sizes { least, usual, most } = Sizes::of(largest);
            assert!(least < usual && usual < most && most <= CHUNK_BYTES_MAX);
            // As measured, and somewhat more where content repeats.
            let mean = usual as u64 * 4 / 3;
            assert!(largest / mean < CHUNKS_MAX as u64 * 19 / 20, "{largest}");
        }
    }

    #[test]
    fn an_index_comes_back() {
        let content = random_bytes(4, 1 << 20);
        let index = index_of(&content);
        let json = index.to_json().unwrap();
        assert_eq!(Index::read(&json, &manifest("model", &content)), Ok(index));
    }

    #[test]
    fn an_index_of_other_files_is_refused() {
        let content = random_bytes(5, 1 << 20);
        let good = index_of(&content);
        let files = manifest("model", &content);
        let refused = |change: &dyn Fn(&mut Index)| {
            let mut index = good.clone();
            change(&mut index);
            let json = serde_json::to_vec(&index).unwrap();
            Index::read(&json, &files).unwrap_err().to_string()
        };
        let other = "the list of chunks is not that of the signed files";
        assert!(refused(&|it| it.files[0].chunks.truncate(1)).starts_with(other));
        assert!(refused(&|it| it.files[0].path = "../model".to_owned()).starts_with(other));
        assert!(refused(&|it| it.files.clear()).starts_with(other));
        assert!(refused(&|it| it.files[0].chunks[0].bytes = u32::MAX).starts_with(other));
        assert!(refused(&|it| it.files[0].chunks[0].bytes = 0).starts_with(other));
        assert!(refused(&|it| it.format = "smelt-chunks 2".to_owned()).contains("version"));
        let many = vec![good.files[0].chunks[0]; CHUNKS_MAX + 1];
        assert!(refused(&|it| it.files[0].chunks = many.clone()).contains("30001"));
        assert!(Index::read(b"[]", &files).is_err());
        assert!(Index::read(&vec![b' '; INDEX_BYTES_MAX + 1], &files).is_err());
        assert!(
            Index::new(vec![FileChunks { path: "m".to_owned(), chunks: many.clone() }])
                .to_json()
                .is_err()
        );
    }

    #[test]
    fn the_longest_list_fits() {
        let chunk = Chunk { digest: Digest::of(b""), bytes: CHUNK_BYTES_MAX as u32 };
        let chunks = vec![chunk; CHUNKS_MAX];
        let index = Index::new(vec![FileChunks { path: "model".to_owned(), chunks }]);
        assert!(index.to_json().unwrap().len() < INDEX_BYTES_MAX);
    }
}
