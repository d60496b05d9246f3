//! Keeps tensor bytes in a file beside the model: writes them as a stream, reads ranges.
//!
//! One tensor after the other, each on a page boundary, so that a reader may map it.
//! Knows nothing of graphs or of what the numbers mean.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use crate::ElementType;
use crate::model::{Data, Initializer};

/// Name of the external data file in the model's directory.
pub const DATA_FILE: &str = "model.onnx.data";

/// Tensors begin at multiples of this, the page size of every supported device but those
/// with 16 KiB or 64 KiB pages, whose readers map from the page below.
pub const TENSOR_ALIGNMENT_BYTES: u64 = 4096;

const ZEROS: [u8; TENSOR_ALIGNMENT_BYTES as usize] = [0; TENSOR_ALIGNMENT_BYTES as usize];

/// Tensor bytes that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("tensor data {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A data file would be outside the model's directory.
    #[error(
        "tensor {name:?}: external data {location:?} is not inside the model's directory; save the model again with its data beside it"
    )]
    Outside {
        /// The tensor.
        name: String,
        /// The path the model gives.
        location: String,
    },
    /// A data file is a link out of the model's directory.
    #[error(
        "tensor {name:?}: external data {location:?} is a link to {}, outside the model's directory; copy that file beside the model if you trust it",
        target.display()
    )]
    Linked {
        /// The tensor.
        name: String,
        /// The path the model gives.
        location: String,
        /// Where the link leads.
        target: PathBuf,
    },
    /// Bytes beyond the end of a tensor were asked for.
    #[error("tensor {name:?} has {length} bytes; bytes {offset}..{end} were asked for")]
    BeyondEnd {
        /// The tensor.
        name: String,
        /// Its bytes.
        length: u64,
        /// First byte asked for.
        offset: u64,
        /// One past the last byte asked for.
        end: u64,
    },
    /// A shape has more bytes than can be counted.
    #[error("tensor {name:?}: the size of shape {dims:?} overflows")]
    Overflow {
        /// The tensor.
        name: String,
        /// Its shape.
        dims: Vec<usize>,
    },
    /// More or fewer bytes were written than the shape asks for.
    #[error("tensor {name:?} takes {expected} bytes and {written} were written")]
    WrongLength {
        /// The tensor.
        name: String,
        /// Bytes of its shape.
        expected: u64,
        /// Bytes that came.
        written: u64,
    },
}

/// The external data file of a model being written.
#[derive(Debug)]
pub struct ExternalData {
    file: File,
    path: PathBuf,
    end: u64,
}

impl ExternalData {
    /// Creates [`DATA_FILE`] in `dir`, empty.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(dir: &Path) -> Result<Self, DataError> {
        let path = dir.join(DATA_FILE);
        match File::create(&path) {
            Ok(file) => Ok(Self { file, path, end: 0 }),
            Err(source) => Err(DataError::Io { path, source }),
        }
    }

    /// Begins a tensor of shape `dims` on the next boundary.
    ///
    /// # Errors
    /// When the shape overflows or the padding cannot be written.
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: ElementType,
        dims: &[usize],
    ) -> Result<TensorWriter<'_>, DataError> {
        let Some(expected) = dtype.byte_len(dims) else {
            return Err(DataError::Overflow { name: name.to_owned(), dims: dims.to_vec() });
        };
        let padding = self.end.next_multiple_of(TENSOR_ALIGNMENT_BYTES) - self.end;
        self.append(&ZEROS[..padding as usize])?;
        let data = Data::External {
            location: DATA_FILE.to_owned(),
            offset: self.end,
            length: expected as u64,
        };
        let tensor = Initializer { name: name.to_owned(), dtype, dims: dims.to_vec(), data };
        Ok(TensorWriter { begin: self.end, expected: expected as u64, file: self, tensor })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file
            .write_all(bytes)
            .map_err(|source| DataError::Io { path: self.path.clone(), source })?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// One tensor on its way to the external data file.
#[derive(Debug)]
#[must_use = "a tensor is complete only when finished"]
pub struct TensorWriter<'a> {
    file: &'a mut ExternalData,
    tensor: Initializer,
    begin: u64,
    expected: u64,
}

impl TensorWriter<'_> {
    /// Appends the next bytes of the tensor, unbuffered: pass blocks, not elements.
    ///
    /// # Errors
    /// When they do not fit the shape or cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let written = self.file.end - self.begin + bytes.len() as u64;
        if written > self.expected {
            return Err(self.wrong_length(written));
        }
        self.file.append(bytes)
    }

    /// Ends the tensor and gives the initializer that refers to it.
    ///
    /// # Errors
    /// When bytes are missing.
    pub fn finish(self) -> Result<Initializer, DataError> {
        let written = self.file.end - self.begin;
        if written < self.expected {
            return Err(self.wrong_length(written));
        }
        Ok(self.tensor)
    }

    fn wrong_length(&self, written: u64) -> DataError {
        let name = self.tensor.name.clone();
        DataError::WrongLength { name, expected: self.expected, written }
    }
}

/// Fills `out` with the bytes of `tensor` from `byte_offset` on; `dir` is the directory of
/// its model.
///
/// # Errors
/// When the range is not all in the tensor, its file is not in `dir` (links followed; see
/// [`DataError::Linked`]), or reading fails.
pub fn read_initializer(
    dir: &Path,
    tensor: &Initializer,
    byte_offset: u64,
    out: &mut [u8],
) -> Result<(), DataError> {
    let length = match &tensor.data {
        Data::Inline(bytes) => bytes.len() as u64,
        Data::External { length, .. } => *length,
    };
    let end = byte_offset.saturating_add(out.len() as u64);
    if end > length {
        let name = tensor.name.clone();
        return Err(DataError::BeyondEnd { name, length, offset: byte_offset, end });
    }
    match &tensor.data {
        Data::Inline(bytes) => {
            out.copy_from_slice(&bytes[byte_offset as usize..end as usize]);
            Ok(())
        }
        Data::External { location, offset, .. } => {
            let path = place(dir, &tensor.name, location)?;
            File::open(&path)
                .and_then(|file| file.read_exact_at(out, offset.saturating_add(byte_offset)))
                .map_err(|source| DataError::Io { path, source })
        }
    }
}

/// The path of external data at `location`, which must stay inside `dir`, as it is spelled and where
/// its links lead.
///
/// Caches of a hub lay models out as links to blobs; such links, and no others, may leave `dir`.
pub(crate) fn place(dir: &Path, tensor: &str, location: &str) -> Result<PathBuf, DataError> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.is_empty() || !Path::new(location).components().all(inside) {
        return Err(DataError::Outside { name: tensor.to_owned(), location: location.to_owned() });
    }
    let path = dir.join(location);
    if !passes_link(dir, location) {
        return Ok(path);
    }
    let home = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    // What leads nowhere is told by whoever opens it.
    let (Ok(target), Ok(home)) = (path.canonicalize(), home.canonicalize()) else {
        return Ok(path);
    };
    if target.starts_with(&home) || is_blob(&target, &home) {
        return Ok(path);
    }
    Err(DataError::Linked { name: tensor.to_owned(), location: location.to_owned(), target })
}

/// Whether a part of `location` below `dir` is a link.
fn passes_link(dir: &Path, location: &str) -> bool {
    let mut path = dir.to_owned();
    Path::new(location).components().any(|part| {
        path.push(part);
        path.is_symlink()
    })
}

/// Whether `target` is a blob of the repository in whose cache `home` lies:
/// `models--ORG--NAME/blobs/HASH` for `models--ORG--NAME/snapshots/COMMIT/…`, which is how
/// `huggingface_hub` lays models out.
fn is_blob(target: &Path, home: &Path) -> bool {
    let is_called = |path: &Path, names: &[&str]| names.iter().any(|name| path.ends_with(name));
    let views = home.ancestors().filter(|path| is_called(path, &["snapshots", "smelt"]));
    let repos = views.filter_map(Path::parent).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("models--"))
    });
    repos.map(|repo| repo.join("blobs")).any(|blobs| target.parent() == Some(&blobs))
}
