//! Fetches the headers of a hub's GGUF files, so that what they hold is known before they are here.
//!
//! Each becomes a file of its true length in which nothing but the tables is written: whatever opens GGUF files opens it.
//! A weight that is read of it is zero, so nothing but sizes may be asked of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use smelt_hub::{Commit, GgufFile, Hub, Repo};
use smelt_model::packed::gguf::{Beginning, beginning};

use crate::atomic_dir::AtomicDir;
use crate::exit::{Exit, Failed};
use crate::hub;

/// The first piece of a header: all of it where a tokenizer is small.
const PIECE_BYTES: u64 = 1 << 20;
/// Each piece brings the whole to so many times what is here.
const GROWTH: u64 = 4;
/// The longest header: those of the largest vocabularies that are published take some 16 MiB.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Headers of a GGUF file's parts, in a folder that is gone when this is dropped.
pub(crate) struct GgufHeaders {
    _scratch: AtomicDir,
    first: PathBuf,
}

impl GgufHeaders {
    /// Fetches those of `files`, the parts of one in their order.
    ///
    /// # Errors
    /// Where the hub does not send them, or one is none that is read.
    pub(crate) fn fetch(
        hub: &Hub,
        repo: &Repo,
        commit: &Commit,
        files: &[GgufFile],
    ) -> Result<Self, Failed> {
        let scratch = AtomicDir::scratch(&std::env::temp_dir().join("smelt-gguf"))?;
        let mut paths = Vec::new();
        for file in files {
            let name = Path::new(&file.name).file_name().unwrap_or_default();
            let path = scratch.path().join(name);
            let part = |range: Range<u64>| {
                hub.part(repo, commit, &file.name, range).map_err(|error| hub::failed(&error))
            };
            let written = write(&path, file.bytes, &part);
            written
                .map_err(|why| why.renamed(path.display(), format!("hf:{repo}:{}", file.name)))?;
            paths.push(path);
        }
        let first = paths.into_iter().next();
        let first = first.ok_or_else(|| Failed::model(format!("hf:{repo} has no GGUF file")))?;
        Ok(Self { _scratch: scratch, first })
    }

    /// The first part, beside which the others lie.
    pub(crate) fn first(&self) -> &Path {
        &self.first
    }
}

/// Writes at `path` what must be here of a file of so many `bytes`, `part` by part, and makes it as long.
fn write(
    path: &Path,
    bytes: u64,
    part: &dyn Fn(Range<u64>) -> Result<Vec<u8>, Failed>,
) -> Result<(), Failed> {
    let failed = |error: io::Error| cannot_write(path, &error);
    let file = File::create_new(path).map_err(failed)?;
    let mut here = 0;
    let factors = loop {
        let end = (here * GROWTH).clamp(PIECE_BYTES, HEADER_BYTES_MAX).min(bytes);
        if end <= here {
            let why =
                format!("{}: its header has more than {HEADER_BYTES_MAX} bytes", path.display());
            return Err(Failed::model(why));
        }
        file.write_all_at(&part(here..end)?, here).map_err(failed)?;
        here = end;
        match beginning(path, bytes).map_err(Failed::model)? {
            Beginning::CutOff => {}
            Beginning::Whole(factors) => break factors,
        }
    };
    if let Some(range) = factors.filter(|range| range.end > here) {
        file.write_all_at(&part(range.clone())?, range.start).map_err(failed)?;
    }
    file.set_len(bytes).map_err(failed)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failed {
    let why = format!("cannot write {}: {error}; set TMPDIR to another disk", path.display());
    Failed::new(Exit::StageFailed, why)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use smelt_model::checkpoint::Checkpoint;

    use super::*;

    fn golden() -> PathBuf {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        tests.join("data/golden/gguf-words/smollm.gguf")
    }

    /// A GGUF file whose one table is an array of so many bytes.
    fn padded(count: u64) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([0_u64, 1].map(u64::to_le_bytes).concat());
        bytes.extend(3_u64.to_le_bytes());
        bytes.extend(b"pad");
        bytes.extend([9_u32, 0].map(u32::to_le_bytes).concat());
        bytes.extend(count.to_le_bytes());
        bytes.resize(bytes.len() + count as usize, 7);
        bytes
    }

    /// What is written of `whole`, and which parts were asked for.
    fn written(whole: &[u8], path: &Path) -> (Result<(), String>, Vec<Range<u64>>) {
        let asked = RefCell::new(Vec::new());
        let part = |range: Range<u64>| {
            asked.borrow_mut().push(range.clone());
            Ok(whole[range.start as usize..range.end as usize].to_vec())
        };
        let written = write(path, whole.len() as u64, &part).map_err(|why| why.to_string());
        (written, asked.into_inner())
    }

    #[test]
    fn a_header_describes_what_the_whole_file_holds() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut whole) = (folder.path().join("m.gguf"), fs::read(golden()).unwrap());
        let true_one = Checkpoint::open(&golden()).unwrap();
        // Nothing of the weights that begin behind the first piece is asked for.
        whole.resize(whole.len() + 3 * PIECE_BYTES as usize, 0);
        let (written, asked) = written(&whole, &path);
        let first = 0..PIECE_BYTES;
        assert_eq!((written, asked.as_slice()), (Ok(()), std::slice::from_ref(&first)));
        let described = Checkpoint::open(&path).unwrap();
        assert_eq!(described.config(), true_one.config());
        assert_eq!(described.scheme_words(), true_one.scheme_words());
        assert_eq!(described.bytes(), true_one.bytes());
    }

    #[test]
    fn a_long_header_is_fetched_piece_by_piece_and_has_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (end, asked) = written(&padded(5 * PIECE_BYTES), &path("a.gguf"));
        let bytes = padded(5 * PIECE_BYTES).len() as u64;
        let m = PIECE_BYTES;
        assert_eq!((end, asked), (Ok(()), vec![0..m, m..4 * m, 4 * m..bytes]));
        let (end, _) = written(&padded(HEADER_BYTES_MAX), &path("b.gguf"));
        assert!(end.unwrap_err().contains("more than 67108864 bytes"));
        let cut = &padded(100)[..80];
        let (end, _) = written(cut, &path("c.gguf"));
        assert!(end.unwrap_err().contains("fetch it again"));
        let (end, _) = written(b"no model at all", &path("d.gguf"));
        assert!(end.unwrap_err().contains("it does not begin with GGUF"));
    }
}
