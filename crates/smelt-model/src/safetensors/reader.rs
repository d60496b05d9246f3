//! Serves bytes of the tensors of one safetensors file.
//!
//! The header is read and checked once, at opening; after that each read is one pread into the
//! caller's buffer.  Maps nothing and keeps no tensor, so memory is the caller's choice.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::SafetensorsError;
use super::header::{self, HEADER_BYTES_MAX, Lie, Tensor};
use crate::foreign::{Expected, START_BYTES, recognise};

/// Bytes of the header length, a little-endian u64.
const LENGTH_BYTES: u64 = 8;

/// An open file whose header has been checked.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    data_start: u64,
    tensors: Vec<Tensor>,
    /// Indices into `tensors`, by name.
    by_name: Vec<usize>,
}

impl Reader {
    /// Opens `path` and checks that its header tells the truth about its length.
    ///
    /// # Errors
    /// [`SafetensorsError::Io`] if it cannot be read, [`SafetensorsError::Lie`] if it is wrong.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        let failed =
            |action| move |source| SafetensorsError::Io { action, path: path.into(), source };
        // Asked before opening: a pipe would keep the open waiting for a writer.
        let facts = fs::metadata(path).map_err(failed("open"))?;
        if !facts.is_file() {
            return Err(failed("open")(io::Error::other("it is not a regular file")));
        }
        let file = File::open(path).map_err(failed("open"))?;
        let header = header_bytes(&file, facts.len()).map_err(failed("read"))?;
        let lies = |lie| SafetensorsError::Lie { path: path.into(), lie };
        let claimed = header.map_err(lies)?;
        let data_start = LENGTH_BYTES + claimed;
        (&file).seek(SeekFrom::Start(LENGTH_BYTES)).map_err(failed("read"))?;
        let json = BufReader::new((&file).take(claimed));
        let tensors = header::parse(json, facts.len() - data_start).map_err(lies)?;
        let by_name = index(&tensors);
        Ok(Self { path: path.into(), file, data_start, tensors, by_name })
    }

    /// Serves the tensors of another format's file, whose ranges have been checked.
    pub(crate) fn of_ranges(
        path: &Path,
        file: File,
        data_start: u64,
        tensors: Vec<Tensor>,
    ) -> Self {
        let by_name = index(&tensors);
        Self { path: path.into(), file, data_start, tensors, by_name }
    }

    /// The file's path, as given to [`Reader::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors by position in the file.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let name_of = |&index: &usize| self.tensors[index].name.as_str();
        let at = self.by_name.binary_search_by_key(&name, name_of).ok()?;
        Some(&self.tensors[self.by_name[at]])
    }

    /// Fills `out` with the bytes of `tensor` from `byte_offset` on.
    ///
    /// # Errors
    /// [`SafetensorsError::OutsideTensor`] if the tensor has no such bytes; nothing is read then.
    pub fn read_at(
        &self,
        tensor: &Tensor,
        byte_offset: u64,
        out: &mut [u8],
    ) -> Result<(), SafetensorsError> {
        let end = byte_offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > tensor.size_bytes()) {
            return Err(self.outside(tensor, byte_offset, out.len()));
        }
        let at = self.data_start + tensor.start + byte_offset;
        self.file.read_exact_at(out, at).map_err(|source| self.read_failed(tensor, source))
    }

    fn outside(&self, tensor: &Tensor, offset: u64, bytes: usize) -> SafetensorsError {
        let (path, size) = (self.path.clone(), tensor.size_bytes());
        SafetensorsError::OutsideTensor { path, tensor: tensor.name.clone(), offset, bytes, size }
    }

    fn read_failed(&self, tensor: &Tensor, source: io::Error) -> SafetensorsError {
        let path = self.path.clone();
        if source.kind() == io::ErrorKind::UnexpectedEof {
            let lie = Lie::Shrunk { tensor: tensor.name.clone() };
            return SafetensorsError::Lie { path, lie };
        }
        SafetensorsError::Io { action: "read", path, source }
    }
}

/// Bytes of the header's JSON; the outer error is the system's, the inner one the file's.
fn header_bytes(file: &File, file_bytes: u64) -> io::Result<Result<u64, Lie>> {
    let mut start = [0; START_BYTES];
    let start = &mut start[..file_bytes.min(START_BYTES as u64) as usize];
    file.read_exact_at(start, 0)?;
    if let Some(what) = recognise(start, Expected::Weights) {
        return Ok(Err(Lie::Foreign { what }));
    }
    let Some(length) = start.first_chunk() else {
        return Ok(Err(Lie::NoHeader { file: file_bytes }));
    };
    let (claimed, present) = (u64::from_le_bytes(*length), file_bytes - LENGTH_BYTES);
    Ok(if claimed > HEADER_BYTES_MAX {
        Err(Lie::HeaderTooLong { claimed })
    } else if claimed > present {
        Err(Lie::HeaderCutOff { claimed, present })
    } else {
        Ok(claimed)
    })
}

fn index(tensors: &[Tensor]) -> Vec<usize> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    by_name
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}"#;

    /// A file of `claimed` as the header length, then `rest`.
    fn file(claimed: u64, rest: &[u8]) -> Vec<u8> {
        [&claimed.to_le_bytes()[..], rest].concat()
    }

    fn good() -> Vec<u8> {
        file(HEADER.len() as u64, &[HEADER.as_bytes(), &[1, 2, 3, 4]].concat())
    }

    fn open(bytes: &[u8]) -> (tempfile::TempDir, Result<Reader, SafetensorsError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        std::fs::write(&path, bytes).unwrap();
        let reader = Reader::open(&path);
        (dir, reader)
    }

    #[track_caller]
    fn check(bytes: &[u8], words: &str) {
        let error = open(bytes).1.unwrap_err().to_string();
        assert!(error.contains("x.safetensors is no valid safetensors file: "), "{error}");
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn any_part_of_a_tensor_can_be_read_and_nothing_else() {
        let reader = open(&good()).1.unwrap();
        let tensor = reader.get("a").unwrap();
        let mut out = [0; 2];
        reader.read_at(tensor, 1, &mut out).unwrap();
        assert_eq!(out, [2, 3]);
        reader.read_at(tensor, 4, &mut []).unwrap();
        for offset in [3, 5, u64::MAX] {
            let error = reader.read_at(tensor, offset, &mut out).unwrap_err().to_string();
            assert!(
                error.contains("of tensor a in") && error.contains("it has 4 bytes"),
                "{error}"
            );
        }
        assert_eq!(out, [2, 3]);
        assert!(reader.get("b").is_none());
    }

    #[test]
    fn files_cut_off_anywhere_are_refused() {
        let whole = good();
        for length in 0..whole.len() {
            assert!(open(&whole[..length]).1.is_err(), "{length} bytes");
        }
        check(&whole[..7], "it has 7 bytes, fewer than the 8");
        check(&whole[..20], "it ends inside its header: 53 bytes claimed, 12 present");
        check(&whole[..whole.len() - 1], "tensor a ends at data byte 4, but the file has 3");
    }

    #[test]
    fn header_lengths_that_lie_cost_no_memory() {
        check(&file(u64::MAX, b"{}"), "its header claims 18446744073709551615 bytes");
        check(&file(HEADER_BYTES_MAX + 1, b"{}"), "its header claims 100000001 bytes");
        check(&file(HEADER_BYTES_MAX, b"{}"), "100000000 bytes claimed, 2 present");
        check(&file(0, b""), "its header does not parse");
    }

    #[test]
    fn a_git_lfs_pointer_is_called_by_its_name() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        check(pointer.as_bytes(), "it is a git-lfs pointer, not the weights; run `git lfs pull`");
    }

    #[test]
    fn a_file_that_shrinks_while_open_is_called_changed() {
        let (dir, reader) = open(&good());
        let reader = reader.unwrap();
        let file = File::options().write(true).open(dir.path().join("x.safetensors")).unwrap();
        file.set_len(good().len() as u64 - 2).unwrap();
        let error = reader.read_at(reader.get("a").unwrap(), 0, &mut [0; 4]).unwrap_err();
        assert!(error.to_string().contains("it ended inside tensor a"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let error = Reader::open(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("it is not a regular file"), "{error}");
        let error = Reader::open(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none: No such file"), "{error}");
    }
}
