//! Writes a safetensors file whose table is known before its bytes.
//!
//! The header goes out first, then the data as a stream in table order; `finish` refuses a file
//! that is not exactly as long as its header says.  Keeps no tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::SafetensorsError;
use super::header::{self, HEADER_BYTES_MAX, Lie, METADATA};
use crate::dtype::Dtype;

/// Bytes collected before they go to the system; blocks of as many go there as they are.
const BUFFER_BYTES: usize = 128 << 10;

/// The header is padded with spaces to a multiple of this, so that data starts aligned.
const ALIGN_BYTES: usize = 8;

/// What a writer needs to know of a tensor before its bytes arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// A file being written.  Dropped before [`Writer::finish`], it leaves a file that no reader opens,
/// unless every byte had arrived.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    promised: u64,
    given: u64,
}

impl Writer {
    /// Creates `path`, or empties it, and writes the header for `tensors` in the given order.
    ///
    /// # Errors
    /// [`SafetensorsError::Lie`] if a name repeats or a size overflows, before the file is touched.
    pub fn create(
        path: &Path,
        tensors: &[TensorSpec],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self, SafetensorsError> {
        let (header, promised) = header_bytes(tensors, metadata)
            .map_err(|lie| SafetensorsError::Lie { path: path.into(), lie })?;
        let failed =
            |action| move |source| SafetensorsError::Io { action, path: path.into(), source };
        let file = File::create(path).map_err(failed("create"))?;
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        file.write_all(&header).map_err(failed("write"))?;
        Ok(Self { path: path.into(), file, promised, given: 0 })
    }

    /// Appends `bytes`, the next of the data in table order.
    ///
    /// # Errors
    /// [`SafetensorsError::WrongLength`] if the table has no room for them; nothing is written then.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SafetensorsError> {
        let given = self.given + bytes.len() as u64;
        if given > self.promised {
            return Err(self.wrong_length(given));
        }
        self.file.write_all(bytes).map_err(|source| self.write_failed(source))?;
        self.given = given;
        Ok(())
    }

    /// Takes the next `bytes` of the data, to be written in any order.
    ///
    /// # Errors
    /// [`SafetensorsError::WrongLength`] if the table has no room for them.
    pub(crate) fn region(&mut self, bytes: u64) -> Result<Region<'_>, SafetensorsError> {
        let given = self.given + bytes;
        if given > self.promised {
            return Err(self.wrong_length(given));
        }
        let start = self.file.stream_position().map_err(|source| self.write_failed(source))?;
        Ok(Region { writer: self, start, bytes, written: 0 })
    }

    /// Flushes the file after checking that every promised byte arrived.
    ///
    /// # Errors
    /// [`SafetensorsError::WrongLength`] if some did not, [`SafetensorsError::Io`] if the last
    /// ones could not be written.
    pub fn finish(mut self) -> Result<(), SafetensorsError> {
        if self.given != self.promised {
            return Err(self.wrong_length(self.given));
        }
        self.file.flush().map_err(|source| self.write_failed(source))
    }

    fn wrong_length(&self, given: u64) -> SafetensorsError {
        SafetensorsError::WrongLength { path: self.path.clone(), promised: self.promised, given }
    }

    fn write_failed(&self, source: std::io::Error) -> SafetensorsError {
        SafetensorsError::Io { action: "write", path: self.path.clone(), source }
    }
}

/// A part of a file whose bytes come in any order, each once.
pub(crate) struct Region<'a> {
    writer: &'a mut Writer,
    start: u64,
    bytes: u64,
    written: u64,
}

impl Region<'_> {
    /// Writes `bytes` at `offset` of the region.
    ///
    /// # Errors
    /// [`SafetensorsError::WrongLength`] if they end outside it, or the system's.
    pub(crate) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), SafetensorsError> {
        self.written += bytes.len() as u64;
        if offset + bytes.len() as u64 > self.bytes {
            return Err(self.writer.wrong_length(self.writer.given + offset + bytes.len() as u64));
        }
        let file = self.writer.file.get_ref();
        file.write_all_at(bytes, self.start + offset)
            .map_err(|source| self.writer.write_failed(source))
    }

    /// Goes on behind the region.
    ///
    /// # Errors
    /// [`SafetensorsError::WrongLength`] if not as many bytes were written as it has.
    pub(crate) fn finish(self) -> Result<(), SafetensorsError> {
        if self.written != self.bytes {
            return Err(self.writer.wrong_length(self.writer.given + self.written));
        }
        let end = std::io::SeekFrom::Start(self.start + self.bytes);
        self.writer.file.seek(end).map_err(|source| self.writer.write_failed(source))?;
        self.writer.given += self.bytes;
        Ok(())
    }
}

/// The length and JSON of a header, and the bytes of data it promises.
fn header_bytes(
    tensors: &[TensorSpec],
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, u64), Lie> {
    let (entries, promised) = place(tensors)?;
    let table = Table { metadata, entries };
    let mut json =
        serde_json::to_vec(&table).map_err(|error| Lie::BadJson { why: error.to_string() })?;
    json.resize(json.len().next_multiple_of(ALIGN_BYTES), b' ');
    let claimed = json.len() as u64;
    if claimed > HEADER_BYTES_MAX {
        return Err(Lie::HeaderTooLong { claimed });
    }
    let mut bytes = claimed.to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok((bytes, promised))
}

/// Gives each tensor its range, one after the other.  The metadata's key is no tensor's name.
fn place(tensors: &[TensorSpec]) -> Result<(Entries<'_>, u64), Lie> {
    let given = tensors.iter().map(|spec| spec.name.as_str());
    let mut names: Vec<&str> = given.chain([METADATA]).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Lie::DuplicateName { name: twice[0].to_owned() });
    }
    let mut entries = Vec::with_capacity(tensors.len());
    let mut start = 0_u64;
    for spec in tensors {
        let end = header::size_bytes(spec.dtype, &spec.shape)
            .and_then(|size| start.checked_add(size))
            .ok_or_else(|| Lie::ShapeOverflow {
                tensor: spec.name.clone(),
                shape: spec.shape.clone(),
            })?;
        let (dtype, shape) = (spec.dtype.name(), spec.shape.as_slice());
        entries.push((spec.name.as_str(), Entry { dtype, shape, data_offsets: (start, end) }));
        start = end;
    }
    Ok((entries, start))
}

/// The header's JSON object: metadata first, then tensors in the order given.
struct Table<'a> {
    metadata: &'a BTreeMap<String, String>,
    entries: Entries<'a>,
}

/// The tensors by name, in the order of the file.
type Entries<'a> = Vec<(&'a str, Entry<'a>)>;

#[derive(Serialize)]
struct Entry<'a> {
    dtype: &'a str,
    shape: &'a [usize],
    data_offsets: (u64, u64),
}

impl Serialize for Table<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (name, entry) in &self.entries {
            map.serialize_entry(name, entry)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::Reader;

    fn spec(name: &str, dtype: Dtype, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    fn refusal(specs: &[TensorSpec]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let error = Writer::create(&path, specs, &BTreeMap::new()).unwrap_err();
        assert!(!path.exists(), "a refused table must not touch the file");
        error.to_string()
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let specs = [
            spec("z", Dtype::I8, &[2, 3]),
            spec("a", Dtype::F32, &[]),
            spec("empty", Dtype::F16, &[0, 4]),
        ];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut writer = Writer::create(&path, &specs, &metadata).unwrap();
        for piece in [&[1, 2][..], &[3, 4, 5, 6, 7], &[], &[8, 9, 10]] {
            writer.write(piece).unwrap();
        }
        writer.finish().unwrap();

        let reader = Reader::open(&path).unwrap();
        let names: Vec<_> = reader.tensors().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["z", "a", "empty"]);
        let scalar = reader.get("a").unwrap();
        assert_eq!((scalar.shape.len(), scalar.elements(), scalar.size_bytes()), (0, 1, 4));
        let mut bytes = [0; 4];
        reader.read_at(scalar, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [7, 8, 9, 10]);
        let header_bytes = std::fs::metadata(&path).unwrap().len() - 10;
        assert!(header_bytes.is_multiple_of(ALIGN_BYTES as u64), "data must start aligned");
    }

    #[test]
    fn tables_that_no_reader_would_take_are_refused() {
        let twice = [spec("a", Dtype::I8, &[1]), spec("a", Dtype::I8, &[2])];
        assert!(refusal(&twice).contains("names \"a\" twice"));
        assert!(refusal(&[spec(METADATA, Dtype::I8, &[1])]).contains("__metadata__"));
        assert!(refusal(&[spec("a", Dtype::F32, &[usize::MAX, 2])]).contains("overflows"));
        let half = usize::MAX / 2 + 1;
        let sum = [spec("a", Dtype::I8, &[half]), spec("b", Dtype::I8, &[half])];
        assert!(refusal(&sum).contains("tensor b"));
    }

    #[test]
    fn missing_and_surplus_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let create = || Writer::create(&path, &[spec("a", Dtype::I8, &[4])], &BTreeMap::new());
        let mut short = create().unwrap();
        short.write(&[1, 2, 3]).unwrap();
        let error = short.finish().unwrap_err().to_string();
        assert!(error.contains("promises 4 data bytes, 3 were given"), "{error}");
        let error = create().unwrap().write(&[0; 5]).unwrap_err().to_string();
        assert!(error.contains("promises 4 data bytes, 5 were given"), "{error}");
    }

    #[test]
    fn a_dropped_writer_leaves_a_file_that_does_not_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let specs = [spec("a", Dtype::I8, &[4])];
        let mut writer = Writer::create(&path, &specs, &BTreeMap::new()).unwrap();
        writer.write(&[1, 2]).unwrap();
        drop(writer);
        let error = Reader::open(&path).unwrap_err().to_string();
        assert!(error.contains("tensor a ends at data byte 4, but the file has 2"), "{error}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let specs = [spec("a", Dtype::I8, &[4])];
        let full = Path::new("/dev/full");
        let mut writer = Writer::create(full, &specs, &BTreeMap::new()).unwrap();
        writer.write(&[0; 4]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.starts_with("cannot write /dev/full: No space left"), "{error}");
    }
}
