//! Hashes each 64 KiB of large files, so that of a chunk that is new only what is new in it need be fetched.
//!
//! Large files are cut into large chunks, of which a server takes fewer in the same time, and a change of a few bytes makes a
//! new one of each.  What was changed in place, as weights are, lies where it lay: so a file has a piece for each 64 KiB from
//! its beginning on.  Nobody trusts the hashes, which are short (XXH3, 64 bits): what is put together by them is a chunk, and
//! its digest is compared.

use smelt_store::Manifest;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::chunk::{INDEX_BYTES_MAX, is_large};

/// Bytes of a piece; the last one of a file may have fewer.
pub const PIECE_BYTES: usize = 64 << 10;

/// The first bytes of a list.
const FORMAT: &[u8; 16] = b"smelt-pieces-1\n\n";
const HASH_BYTES: usize = 8;

/// The hashes of a file's pieces.
pub type Hashes = Vec<u64>;

/// How many pieces a file has.
const fn count(file_bytes: u64) -> usize {
    file_bytes.div_ceil(PIECE_BYTES as u64) as usize
}

/// Takes the content of a file as it comes.
#[derive(Default)]
pub struct Hasher {
    /// Of the piece that has begun.
    state: Xxh3Default,
    held: usize,
    hashes: Hashes,
}

impl Hasher {
    /// Adds what comes next.
    pub fn add(&mut self, mut content: &[u8]) {
        while !content.is_empty() {
            let (now, rest) = content.split_at(content.len().min(PIECE_BYTES - self.held));
            if now.len() == PIECE_BYTES {
                self.hashes.push(xxh3_64(now));
            } else {
                self.state.update(now);
                self.held += now.len();
                if self.held == PIECE_BYTES {
                    self.end_piece();
                }
            }
            content = rest;
        }
    }

    fn end_piece(&mut self) {
        self.hashes.push(self.state.digest());
        self.state.reset();
        self.held = 0;
    }

    /// Those of all that came.
    pub fn finish(mut self) -> Hashes {
        if self.held > 0 {
            self.end_piece();
        }
        self.hashes
    }
}

/// The pieces of an output's large files, one after the other, as a blob: a name of the form, then each hash in eight bytes,
/// the lowest first.  Nothing where no file is large, or the list would be longer than a server takes.
pub(crate) fn to_bytes(files: &[Hashes]) -> Option<Vec<u8>> {
    let hashes = files.iter().flatten();
    let bytes: Vec<u8> =
        FORMAT.iter().copied().chain(hashes.flat_map(|hash| hash.to_le_bytes())).collect();
    (FORMAT.len() < bytes.len() && bytes.len() <= INDEX_BYTES_MAX).then_some(bytes)
}

/// The same of each file, none of those that are not large.  Nothing where it is no list of these files.
pub(crate) fn read(bytes: &[u8], files: &Manifest) -> Option<Vec<Hashes>> {
    let (hashes, rest) = bytes.strip_prefix(FORMAT)?.as_chunks::<HASH_BYTES>();
    let counts = files.files().iter().map(|it| if is_large(it.size) { count(it.size) } else { 0 });
    let counts: Vec<usize> = counts.collect();
    if !rest.is_empty() || counts.iter().sum::<usize>() != hashes.len() {
        return None;
    }
    let mut hashes = hashes.iter().map(|hash| u64::from_le_bytes(*hash));
    Some(counts.into_iter().map(|count| hashes.by_ref().take(count).collect()).collect())
}

#[cfg(test)]
mod tests {
    use smelt_store::{Digest, FileEntry};

    use super::*;

    fn hashes(content: &[u8], step: usize) -> Hashes {
        let mut hasher = Hasher::default();
        content.chunks(step).for_each(|part| hasher.add(part));
        hasher.finish()
    }

    #[test]
    fn pieces_are_the_same_however_the_content_comes() {
        let content: Vec<u8> = (0..3 * PIECE_BYTES + 7).map(|at| (at % 251) as u8).collect();
        let whole: Hashes = content.chunks(PIECE_BYTES).map(xxh3_64).collect();
        assert_eq!(whole.len(), 4);
        for step in [1000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, content.len()] {
            assert_eq!(hashes(&content, step), whole, "{step}");
        }
        assert!(hashes(b"", 1).is_empty());
        // Other boards hash the same for ever.
        assert_eq!(hashes(b"abc", 1), [0x78af_5f94_892f_3950]);
    }

    #[test]
    fn a_list_is_read_of_its_own_files_alone() {
        let file = |path: &str, size| {
            let (path, sha256) = (path.to_owned(), Digest::of(path.as_bytes()));
            FileEntry { path, size, sha256, executable: false }
        };
        let large = (16 << 20) + 1;
        let files = |size| Manifest::new(vec![file("a", 9), file("b", size)]).unwrap();
        let own: Hashes = (0..257).map(|at| at << 40).collect();
        let list = vec![Vec::new(), own];
        let bytes = to_bytes(&list).unwrap();
        assert_eq!(read(&bytes, &files(large)), Some(list));
        assert_eq!(read(&bytes, &files(large + PIECE_BYTES as u64)), None);
        assert_eq!(read(&bytes, &files(9)), None);
        assert_eq!(read(&bytes[..bytes.len() - 1], &files(large)), None);
        assert_eq!(read(&bytes[1..], &files(large)), None);
        assert_eq!(to_bytes(&[Vec::new(), Vec::new()]), None);
        assert_eq!(to_bytes(&[vec![0; INDEX_BYTES_MAX / HASH_BYTES]]), None);
    }
}
