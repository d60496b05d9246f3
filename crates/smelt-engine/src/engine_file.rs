//! Reads and writes an engine directory: `engine.json` beside `weights.bin`.
//!
//! Building: tensors are laid out first, then streamed into `weights.bin` while they are hashed,
//! and `engine.json` is written last, so that a broken build leaves no engine.  Opening:
//! `engine.json` is parsed, every range is checked against the size of `weights.bin`, which is
//! mapped and not read.  Knows nothing of graphs or layers.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
pub use smelt_backend::{ENGINE_FILE, OpenError};
use smelt_backend::{Heading, Witness, files};
use smelt_tensor::dtype::Dtype;

use crate::cast;
use crate::kernels::matrix::Elements;
use crate::kernels::striped::{Bits, stripes};
pub use crate::kernels::striped::{RUN, STRIPE, stripe_bytes, stripe_elements, stripe_nibbles};

/// The file that holds its weights.
pub const WEIGHTS_FILE: &str = "weights.bin";
/// Version of the directory's layout; a change of names, meanings or packing raises it.
pub const FORMAT: u32 = 3;

/// The only target here: every CPU path is in one engine, chosen when it runs.
pub(crate) const TARGET: &str = "cpu";
/// Tensors begin at multiples of a cache line, which is also AVX-512's register.
const TENSOR_ALIGN: u64 = 64;
/// `weights.bin` is whole pages long.
const FILE_ALIGN: u64 = 4096;

/// What every engine says about itself; `T` is what its kind adds.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest<T> {
    format: u32,
    kind: String,
    target: String,
    /// Bytes of a device's memory that it takes at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_bytes: Option<u64>,
    engine: T,
    /// Of engines that run on a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernels: Option<KernelsEntry>,
    weights: WeightsEntry,
    tensors: Vec<TensorEntry>,
}

/// The kernels that lie beside an engine for a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelsEntry {
    /// Their file in the engine's directory.
    pub file: String,
    /// The digest of it.
    pub sha256: String,
    /// The version of what they are given.
    pub layout: u32,
    /// Numbers of the heads that they attend with.
    pub head: usize,
}

/// Writes kernels durably as `file` of an engine's directory, and says what they are: `[layout, head]` of [`KernelsEntry`].
///
/// # Errors
/// When the system refuses.
pub fn kernels_entry(
    dir: &Path,
    file: &str,
    image: &[u8],
    [layout, head]: [usize; 2],
) -> io::Result<KernelsEntry> {
    files::write(&dir.join(file), image)?;
    let sha256 = files::hex(&Sha256::digest(image));
    Ok(KernelsEntry { file: file.to_owned(), sha256, layout: layout as u32, head })
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsEntry {
    bytes: u64,
    sha256: String,
}

/// One tensor of `weights.bin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    layout: Layout,
    offset: u64,
}

/// How the numbers of a tensor lie; see `kernels::striped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Row after row.
    Rows,
    /// Sixteen rows side by side, column after column; a vector is one column.
    Stripes,
    /// Quants: sixteen rows side by side, four columns of each; I8 or U8 (nibbles).
    Quads,
}

impl Layout {
    /// Bytes of `shape` numbers of type `dtype`; `None` when there is no such tensor.
    fn byte_len(self, dtype: Dtype, shape: &[usize]) -> Option<u64> {
        let dense = byte_len(dtype, shape)?;
        let (rows, columns) = match (self, shape) {
            (Self::Rows, _) => return Some(dense),
            (_, &[rows]) => (rows, 1),
            (_, &[rows, columns]) => (rows, columns),
            _ => return None,
        };
        // What fills stripes and runs; every size is below that of the dense tensor or a page more.
        let stripe = match (self, dtype) {
            (Self::Quads, Dtype::U8) => Bits::Four.checked_stripe_bytes(columns.checked_mul(2)?)?,
            (Self::Quads, Dtype::I8) => Bits::Eight.checked_stripe_bytes(columns)?,
            (Self::Stripes, _) => columns.checked_mul(STRIPE)?.checked_mul(dtype.size_bytes())?,
            _ => return None,
        };
        stripes(rows).checked_mul(stripe)?.try_into().ok()
    }
}

/// A tensor before it has a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// What it is called.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How its numbers lie.
    pub layout: Layout,
}

impl TensorSpec {
    /// Bytes that it takes; `None` when no file is that large.
    pub fn bytes(&self) -> Option<u64> {
        self.layout.byte_len(self.dtype, &self.shape)
    }
}

/// Bytes of the file in which these tensors lie one after another, as [`EngineWriter`] writes it; `None` when no file is
/// that large.
pub fn weights_bytes<'a>(tensors: impl IntoIterator<Item = &'a TensorSpec>) -> Option<u64> {
    let end = tensors.into_iter().try_fold(0u64, |at, spec| {
        at.checked_next_multiple_of(TENSOR_ALIGN)?.checked_add(spec.bytes()?)
    });
    end?.checked_next_multiple_of(FILE_ALIGN)
}

/// Bytes of `shape` numbers of type `dtype`; `None` when the product overflows.
pub(crate) fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let count = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
    count.checked_mul(dtype.size_bytes())?.try_into().ok()
}

/// Writes an engine directory, tensor after tensor.
pub struct EngineWriter {
    dir: PathBuf,
    out: BufWriter<File>,
    hash: Sha256,
    at: u64,
    entries: Vec<TensorEntry>,
}

impl EngineWriter {
    /// Starts the engine in `dir`, which is created where it is missing.
    ///
    /// # Errors
    /// When the system refuses; so for all that writes here.
    pub fn create(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            out: BufWriter::new(File::create(dir.join(WEIGHTS_FILE))?),
            hash: Sha256::new(),
            at: 0,
            entries: Vec::new(),
        })
    }

    /// Begins the next tensor; its bytes follow through [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn begin(&mut self, spec: TensorSpec) -> io::Result<()> {
        self.pad(TENSOR_ALIGN)?;
        let TensorSpec { name, dtype, shape, layout } = spec;
        let dtype = dtype.name().to_lowercase();
        self.entries.push(TensorEntry { name, dtype, shape, layout, offset: self.at });
        Ok(())
    }

    /// Bytes written so far; right behind [`Self::begin`], where the tensor lies.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Appends little-endian bytes.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self, align: u64) -> io::Result<()> {
        let missing = self.at.next_multiple_of(align) - self.at;
        self.write(&[0; FILE_ALIGN as usize][..missing as usize])
    }

    /// Ends `weights.bin`; the engine still lacks its `engine.json`, which will say that it is of `kind`.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn finish<T>(mut self, kind: &str, engine: T) -> io::Result<Unsealed<T>> {
        self.pad(FILE_ALIGN)?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        let manifest = Manifest {
            format: FORMAT,
            kind: kind.to_owned(),
            target: TARGET.to_owned(),
            device_bytes: None,
            engine,
            kernels: None,
            weights: WeightsEntry { bytes: self.at, sha256: files::hex(&self.hash.finalize()) },
            tensors: self.entries,
        };
        Ok(Unsealed { dir: self.dir, manifest })
    }
}

/// An engine whose weights are written and whose `engine.json` is not.
pub struct Unsealed<T> {
    dir: PathBuf,
    manifest: Manifest<T>,
}

impl<T> Unsealed<T> {
    /// What the engine will say about itself.
    pub fn engine_mut(&mut self) -> &mut T {
        &mut self.manifest.engine
    }

    /// Lets the engine be one for cards of `target`, with these kernels.
    pub fn for_card(&mut self, target: &str, kernels: KernelsEntry) {
        target.clone_into(&mut self.manifest.target);
        self.manifest.device_bytes = Some(self.manifest.weights.bytes);
        self.manifest.kernels = Some(kernels);
    }

    /// Opens the engine before it is sealed, to try it.
    pub(crate) fn preview(&self) -> Result<EngineFile<T>, OpenError>
    where
        T: Clone,
    {
        EngineFile::new(&self.dir, self.manifest.clone())
    }

    /// Writes `engine.json`, durably.
    ///
    /// # Errors
    /// As [`EngineWriter::create`].
    pub fn seal(self) -> io::Result<()>
    where
        T: Serialize,
    {
        let text = serde_json::to_string_pretty(&self.manifest).map_err(io::Error::other)? + "\n";
        files::write(&self.dir.join(ENGINE_FILE), text.as_bytes())
    }
}

/// A place in `weights.bin` that was checked when the engine was opened.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) layout: Layout,
    pub(crate) start: usize,
    len: usize,
}

/// An opened engine directory.
#[derive(Debug)]
pub(crate) struct EngineFile<T> {
    dir: PathBuf,
    pub(crate) engine: T,
    /// Of an engine for cards.
    pub(crate) kernels: Option<KernelsEntry>,
    sha256: String,
    tensors: BTreeMap<String, Stored>,
    pub(crate) weights: Weights,
}

/// The mapped `weights.bin`, shared by the engines of one directory.
#[derive(Clone, Debug)]
pub(crate) struct Weights(Arc<Mmap>);

impl<T: DeserializeOwned> EngineFile<T> {
    /// Opens the engine of `kind` in `dir`.  Reads `engine.json` alone.
    pub(crate) fn open(dir: &Path, kind: &'static str) -> Result<Self, OpenError> {
        Self::open_for(dir, kind, TARGET)
    }

    /// As [`Self::open`], of an engine for `target`.
    pub(crate) fn open_for(
        dir: &Path,
        kind: &'static str,
        target: &str,
    ) -> Result<Self, OpenError> {
        Self::new(dir, read_manifest(dir, kind, target)?)
    }
}

fn read_manifest<T: DeserializeOwned>(
    dir: &Path,
    kind: &'static str,
    target: &str,
) -> Result<Manifest<T>, OpenError> {
    let path = dir.join(ENGINE_FILE);
    let not_ours = |problem: String| OpenError::NotAnEngine { path: path.clone(), problem };
    let (heading, text) = Heading::read_of(dir, FORMAT, kind)?;
    if heading.target != target {
        return Err(not_ours(format!("target {:?} is not {target:?}", heading.target)));
    }
    serde_json::from_str(&text).map_err(|error| not_ours(error.to_string()))
}

fn map_weights(path: &Path, expect: u64) -> Result<Weights, OpenError> {
    let read = |source| OpenError::Read { path: path.to_owned(), source };
    let file = files::open(path, expect)?;
    // SAFETY: the map is read only, and engines are written once and sealed; whoever cuts the file
    // of a running engine ends the process with SIGBUS, which no check here could prevent.
    unsafe { Mmap::map(&file) }.map(|map| Weights(Arc::new(map))).map_err(read)
}

fn place_tensors(
    entries: &[TensorEntry],
    file_len: usize,
) -> Result<BTreeMap<String, Stored>, String> {
    let mut tensors = BTreeMap::new();
    for entry in entries {
        let stored =
            place(entry, file_len).map_err(|why| format!("tensor {:?}: {why}", entry.name))?;
        if tensors.insert(entry.name.clone(), stored).is_some() {
            return Err(format!("tensor {:?} is there twice", entry.name));
        }
    }
    Ok(tensors)
}

fn place(entry: &TensorEntry, file_len: usize) -> Result<Stored, String> {
    let dtype =
        Dtype::parse(&entry.dtype).ok_or_else(|| format!("dtype {:?} is unknown", entry.dtype))?;
    let layout = entry.layout;
    let overflow =
        || format!("shape {:?} of {dtype} in {layout:?} is too large or none", entry.shape);
    let len = layout.byte_len(dtype, &entry.shape).ok_or_else(overflow)?;
    let end = entry.offset.checked_add(len).filter(|&end| end <= file_len as u64);
    if end.is_none() {
        return Err(format!("{len} bytes at {} end outside {WEIGHTS_FILE}", entry.offset));
    }
    if !entry.offset.is_multiple_of(TENSOR_ALIGN) {
        return Err(format!("offset {} is no multiple of {TENSOR_ALIGN}", entry.offset));
    }
    let fits = "a range inside a mapped file fits usize";
    Ok(Stored {
        dtype,
        shape: entry.shape.clone(),
        layout,
        start: entry.offset.try_into().expect(fits),
        len: len.try_into().expect(fits),
    })
}

impl<T> EngineFile<T> {
    fn new(dir: &Path, manifest: Manifest<T>) -> Result<Self, OpenError> {
        let weights = map_weights(&dir.join(WEIGHTS_FILE), manifest.weights.bytes)?;
        let tensors = place_tensors(&manifest.tensors, weights.0.len())
            .map_err(|problem| OpenError::Damaged { path: dir.join(ENGINE_FILE), problem })?;
        let Manifest { engine, kernels, weights: WeightsEntry { sha256, .. }, .. } = manifest;
        Ok(Self { dir: dir.to_owned(), engine, kernels, sha256, tensors, weights })
    }

    /// One of several engines that share the weights: those named behind `own` under their plain names,
    /// and those that are named behind none of `all`.
    pub(crate) fn part<U>(&self, engine: U, own: &str, all: &[String]) -> EngineFile<U> {
        let plain = |name: &str| match name.strip_prefix(own) {
            Some(name) => Some(name.to_owned()),
            None => (!all.iter().any(|other| name.starts_with(other))).then(|| name.to_owned()),
        };
        let tensors = self.tensors.iter();
        EngineFile {
            dir: self.dir.clone(),
            engine,
            kernels: self.kernels.clone(),
            sha256: self.sha256.clone(),
            tensors: tensors.filter_map(|(name, at)| Some((plain(name)?, at.clone()))).collect(),
            weights: self.weights.clone(),
        }
    }

    /// The engine's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The names of all stored tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The stored tensor called `name`.
    pub(crate) fn stored(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The stored tensor called `name`, of the given type, shape and layout; the error is one line.
    pub(crate) fn expect(
        &self,
        name: &str,
        shape: &[usize],
        dtypes: &[Dtype],
        layout: Layout,
    ) -> Result<Stored, OpenError> {
        let problem = match self.stored(name) {
            None => format!("tensor {name:?} is missing"),
            Some(stored) if stored.shape != shape => {
                format!("tensor {name:?} has shape {:?}, not {shape:?}", stored.shape)
            }
            Some(stored) if !dtypes.contains(&stored.dtype) => {
                format!("tensor {name:?} has dtype {}", stored.dtype)
            }
            Some(stored) if stored.layout != layout => {
                format!("tensor {name:?} lies in {:?}, not {layout:?}", stored.layout)
            }
            Some(stored) => return Ok(stored.clone()),
        };
        Err(self.damaged(problem))
    }

    /// An error about `engine.json`.
    pub(crate) fn damaged(&self, problem: String) -> OpenError {
        OpenError::Damaged { path: self.dir.join(ENGINE_FILE), problem }
    }

    /// The refusal of an engine that is whole, but not for `purpose`.
    pub(crate) fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        OpenError::Unfit { path: self.dir.join(ENGINE_FILE), purpose, problem }
    }

    /// Reads all of `weights.bin` and compares its hash with `engine.json`; `told` hears of each piece's bytes.
    pub(crate) fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        let path = self.dir.join(WEIGHTS_FILE);
        let bytes = self.weights.0.len() as u64;
        files::check_all(&path, (&files::open(&path, bytes)?, bytes), &self.sha256, told)
    }
}

impl Weights {
    pub(crate) fn bytes(&self, stored: &Stored) -> &[u8] {
        &self.0[stored.start..stored.start + stored.len]
    }

    /// The numbers of a float or i8 tensor; `None` for other types.
    pub(crate) fn elements(&self, stored: &Stored) -> Option<Elements<'_>> {
        let bytes = self.bytes(stored);
        match stored.dtype {
            Dtype::F32 => cast::slice_of(bytes).map(Elements::F32),
            Dtype::F16 => cast::slice_of(bytes).map(Elements::F16),
            Dtype::BF16 => cast::slice_of(bytes).map(Elements::Bf16),
            Dtype::I8 => cast::slice_of(bytes).map(Elements::I8),
            _ => None,
        }
    }

    /// The bytes of a tensor of bytes, whatever they mean; `None` for other types.
    pub(crate) fn raw(&self, stored: &Stored) -> Option<&[u8]> {
        (stored.dtype.size_bytes() == 1).then(|| self.bytes(stored))
    }

    /// The bytes of a tensor of 32-bit words, whatever they mean; `None` for other types.
    pub(crate) fn words(&self, stored: &Stored) -> Option<&[u8]> {
        (stored.dtype == Dtype::U32).then(|| self.bytes(stored))
    }

    /// The bits of an f16 tensor; `None` for other types.
    pub(crate) fn halves(&self, stored: &Stored) -> Option<&[u16]> {
        (stored.dtype == Dtype::F16).then(|| cast::slice_of(self.bytes(stored))).flatten()
    }

    /// The channels of an i32 tensor; `None` for other types and for negative numbers.
    pub(crate) fn channels(&self, stored: &Stored) -> Option<Vec<u32>> {
        let numbers: &[i32] =
            (stored.dtype == Dtype::I32).then(|| cast::slice_of(self.bytes(stored))).flatten()?;
        numbers.iter().map(|&number| number.try_into().ok()).collect()
    }

    /// The numbers of an i64 tensor; `None` for other types.
    pub(crate) fn integers(&self, stored: &Stored) -> Option<&[i64]> {
        (stored.dtype == Dtype::I64).then(|| cast::slice_of(self.bytes(stored))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn spec(name: &str, dtype: Dtype, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec(), layout: Layout::Rows }
    }

    fn write(dir: &Path) {
        let mut writer = EngineWriter::create(dir).unwrap();
        writer.begin(spec("a", Dtype::I8, &[3])).unwrap();
        writer.write(&[1, 2, 0xff]).unwrap();
        writer.begin(spec("b", Dtype::F32, &[1, 2])).unwrap();
        writer.write(cast::bytes_of(&[1.5f32, -2.0])).unwrap();
        writer.begin(spec("c", Dtype::I64, &[])).unwrap();
        writer.write(cast::bytes_of(&[-7i64])).unwrap();
        writer.finish("test", 42u32).unwrap().seal().unwrap();
    }

    fn open(dir: &Path) -> Result<EngineFile<u32>, OpenError> {
        EngineFile::open(dir, "test")
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = TempDir::new().unwrap();
        write(dir.path());
        let file = open(dir.path()).unwrap();
        assert_eq!(file.engine, 42);
        let Elements::I8(a) = file.weights.elements(file.stored("a").unwrap()).unwrap() else {
            panic!()
        };
        assert_eq!(a, [1, 2, -1]);
        let Elements::F32(b) = file.weights.elements(file.stored("b").unwrap()).unwrap() else {
            panic!()
        };
        assert_eq!(b, [1.5, -2.0]);
        assert_eq!(file.weights.integers(file.stored("c").unwrap()), Some(&[-7][..]));
        assert_eq!(std::fs::metadata(dir.path().join(WEIGHTS_FILE)).unwrap().len(), 4096);
        let mut read = 0;
        file.verify_digest(&mut |bytes| read += bytes).unwrap();
        assert_eq!(read, 4096, "all of it is told of");
        assert!(file.expect("b", &[1, 2], &[Dtype::F32], Layout::Rows).is_ok());
        for (name, shape, word) in [("b", [2, 1], "shape"), ("d", [1, 2], "missing")] {
            let error =
                file.expect(name, &shape, &[Dtype::F32], Layout::Rows).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let error = file.expect("b", &[1, 2], &[Dtype::I8], Layout::Rows).unwrap_err().to_string();
        assert!(error.contains("dtype F32"), "{error}");
    }

    #[test]
    fn two_builds_give_the_same_bytes() {
        let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        write(one.path());
        write(two.path());
        for name in [ENGINE_FILE, WEIGHTS_FILE] {
            let read = |dir: &TempDir| std::fs::read(dir.path().join(name)).unwrap();
            assert_eq!(read(&one), read(&two), "{name}");
        }
    }

    #[track_caller]
    fn check_edit(from: &str, to: &str, words: &str) {
        let dir = TempDir::new().unwrap();
        write(dir.path());
        let path = dir.path().join(ENGINE_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains(ENGINE_FILE), "{error}");
    }

    #[test]
    fn lies_in_engine_json_are_found() {
        check_edit("\"format\": 3", "\"format\": 1", "format 1 is not 3");
        check_edit("\"kind\": \"test\"", "\"kind\": \"llm\"", "is of kind \"llm\", not \"test\"");
        check_edit("\"cpu\"", "\"cuda\"", "target \"cuda\"");
        check_edit("\"engine\": 42", "\"engine\": \"x\"", "invalid type");
        check_edit("\"bytes\": 4096", "\"bytes\": 4097", "4096 bytes where");
        check_edit("\"bytes\": 4096", "\"bites\": 4096", "unknown field");
        check_edit("\"offset\": 64", "\"offset\": 4096", "end outside");
        check_edit("\"offset\": 64", "\"offset\": 18446744073709551615", "end outside");
        check_edit("\"offset\": 64", "\"offset\": 60", "no multiple");
        check_edit("\"f32\"", "\"f31\"", "dtype \"f31\"");
        check_edit("\"name\": \"b\"", "\"name\": \"a\"", "twice");
        check_edit("        2\n", "        9223372036854775807\n", "too large");
        check_edit("{", "", "no engine");
    }

    #[test]
    fn sizes_beyond_all_memory_are_none() {
        let sizes = [[1, usize::MAX], [1, 1 << 60], [0, usize::MAX], [usize::MAX, 1]];
        for shape in sizes {
            for (layout, dtype) in [
                (Layout::Quads, Dtype::I8),
                (Layout::Quads, Dtype::U8),
                (Layout::Stripes, Dtype::F32),
                (Layout::Stripes, Dtype::I8),
            ] {
                let len = layout.byte_len(dtype, &shape);
                assert_eq!(len, None, "{layout:?} {dtype} {shape:?}");
            }
        }
        assert_eq!(Layout::Quads.byte_len(Dtype::I8, &[17, 33]), Some(2 * 64 * 16));
        assert_eq!(Layout::Quads.byte_len(Dtype::U8, &[17, 17]), Some(2 * 64 * 16 / 2));
    }

    #[test]
    fn damaged_weights_are_found() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(WEIGHTS_FILE);
        assert!(matches!(open(dir.path()), Err(OpenError::Read { .. })));
        write(dir.path());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[1] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = open(dir.path()).unwrap().verify_digest(&mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("sha256"), "{error}");
        std::fs::write(&path, &bytes[..100]).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("100 bytes where"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }
}
