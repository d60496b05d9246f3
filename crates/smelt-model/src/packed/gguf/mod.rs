//! Reads GGUF files: llama.cpp's one file of configuration, tokenizer and weights, or several parts of one.
//!
//! `header` parses and checks the file's tables, `config` makes a configuration of the metadata,
//! `tokenizer` the files of a tokenizer, `names` maps the tensors, `blocks` takes the quantised ones apart,
//! `split` finds the parts of a file.  A `Gguf` is an open file.
//! Knows nothing of how a checkpoint uses it.
//!
//! Source of the format: `docs/gguf.md` of <https://github.com/ggml-org/ggml>.

pub(crate) mod blocks;
pub(crate) mod config;
mod header;
pub(crate) mod names;
pub(crate) mod split;
#[cfg(test)]
mod tests;
pub(crate) mod tokenizer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use header::GgufLie;
pub use tokenizer::SideFile;

use crate::dtype::Dtype;
use crate::safetensors::{Reader, Shards, Tensor};
use blocks::Kind;
use header::Header;

/// Why a GGUF file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file contradicts itself or the format, or holds what is not read.
    #[error("{} is no GGUF file that smelt reads: {lie}", path.display())]
    Lie {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        lie: GgufLie,
    },
}

/// An open GGUF file.
#[derive(Debug)]
pub(crate) struct Gguf {
    /// How each tensor is stored.
    pub(crate) kinds: BTreeMap<String, Kind>,
    /// A `config.json` that says what the metadata says.
    pub(crate) config: String,
    /// Whether rows of the query and key projections are interleaved, as llama.cpp has Llama's.
    pub(crate) is_interleaved: bool,
}

impl Gguf {
    /// Opens the file at `path`, and the other parts where it is the first of several; their tensors' bytes
    /// are served by the second of the pair.
    ///
    /// # Errors
    /// [`GgufError`] naming the file and what is wrong with it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Shards), GgufError> {
        let lies = |lie| GgufError::Lie { path: path.into(), lie };
        let parts = parts(path)?;
        let factors = parts.iter().find_map(|part| factors(part).transpose()).transpose()?;
        let tensors = parts.iter().flat_map(|part| part.header.tensors.iter().cloned()).collect();
        let kinds = parts.iter().flat_map(|part| part.header.kinds.clone()).collect();
        let Some(first) = parts.first() else { unreachable!("a file is a part of itself") };
        let (entries, data_start) = (first.header.entries.clone(), first.header.data_start);
        let whole = Header { entries, data_start, tensors, kinds };
        let config = config::of(&whole, factors.as_deref()).map_err(lies)?;
        let is_interleaved = whole.text("general.architecture") == Some("llama");
        let reader = |GgufShard { path, file, header }: GgufShard| {
            Reader::of_ranges(&path, file, header.data_start, header.tensors)
        };
        let readers = parts.into_iter().map(reader).collect();
        let gguf = Self { kinds: whole.kinds, config, is_interleaved };
        Ok((gguf, Shards::of_readers(path, readers)))
    }

    /// The interleaved head width of the rows of `tensor`, if it is one whose rows are.
    pub(crate) fn interleaved(&self, tensor: &str, head_dim: usize) -> Option<usize> {
        let is_rotated = [".attn_q.", ".attn_k."].iter().any(|part| tensor.contains(part));
        (self.is_interleaved && is_rotated).then_some(head_dim)
    }
}

/// The longest table of rotary factors: those of a head of 8192.
const FACTOR_BYTES_MAX: u64 = 16 << 10;

/// What of a GGUF file must be here so that a checkpoint is opened of it, and nothing but weights is missing.
#[derive(Debug, PartialEq, Eq)]
pub enum Beginning {
    /// More than is here: its tables go on.
    CutOff,
    /// Its tables are all here; beside them these bytes are read, if there are any: its rotary factors.
    Whole(Option<Range<u64>>),
}

/// What must be here of a GGUF file of so many `bytes`, of which the file at `path` holds the first ones.
///
/// # Errors
/// [`GgufError`] naming the file and what is wrong with what is here.
pub fn beginning(path: &Path, bytes: u64) -> Result<Beginning, GgufError> {
    let failed = |source| GgufError::Io { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let is_all = file.metadata().map_err(failed)?.len() >= bytes;
    match Header::read_beginning(&file, bytes).map_err(failed)? {
        Ok(header) => Ok(Beginning::Whole(factor_range(&header))),
        Err(GgufLie::CutOff { .. }) if !is_all => Ok(Beginning::CutOff),
        Err(lie) => Err(GgufError::Lie { path: path.into(), lie }),
    }
}

/// Where the rotary factors lie in a file, if it has some.
fn factor_range(header: &Header) -> Option<Range<u64>> {
    let is_one = |tensor: &&Tensor| {
        tensor.name == config::ROPE_FACTORS
            && tensor.dtype == Dtype::F32
            && tensor.size_bytes() <= FACTOR_BYTES_MAX
    };
    let tensor = header.tensors.iter().find(is_one)?;
    let start = header.data_start + tensor.start();
    Some(start..start + tensor.size_bytes())
}

/// The rotary factors of a file, if it has some.
fn factors(part: &GgufShard) -> Result<Option<Vec<f32>>, GgufError> {
    let GgufShard { path, file, header } = part;
    let Some(range) = factor_range(header) else { return Ok(None) };
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start)
        .map_err(|source| GgufError::Io { path: path.clone(), source })?;
    Ok(Some(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}

/// The files of a tokenizer that the metadata of the file at `path` stands for, those that are `wanted`.
///
/// # Errors
/// [`GgufError`] naming the entry that is missing, wrong or not read.
pub(crate) fn side_files(
    path: &Path,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<SideFile>, GgufError> {
    let failed = |source| GgufError::Io { path: path.into(), source };
    let lies = |lie| GgufError::Lie { path: path.into(), lie };
    let file = File::open(path).map_err(failed)?;
    let header = Header::read_with_words(&file).map_err(failed)?.map_err(lies)?;
    tokenizer::files(&header, wanted).map_err(lies)
}

/// One of the files of a GGUF.
struct GgufShard {
    path: PathBuf,
    file: File,
    header: Header,
}

impl GgufShard {
    fn open(path: &Path) -> Result<Self, GgufError> {
        let failed = |source| GgufError::Io { path: path.into(), source };
        let lies = |lie| GgufError::Lie { path: path.into(), lie };
        let file = File::open(path).map_err(failed)?;
        let header = Header::read(&file).map_err(failed)?.map_err(lies)?;
        Ok(Self { path: path.into(), file, header })
    }
}

/// The file at `path` with the other parts of it, if there are some.
fn parts(path: &Path) -> Result<Vec<GgufShard>, GgufError> {
    let lies = |lie| GgufError::Lie { path: path.into(), lie };
    let first = GgufShard::open(path)?;
    let others = split::others(path, &first.header).map_err(lies)?;
    let mut parts = vec![first];
    for (number, other) in (1..).zip(others) {
        if !other.exists() {
            let file = other.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(lies(GgufLie::MissingPart { file }));
        }
        let part = GgufShard::open(&other)?;
        split::check(&part.header, number)
            .map_err(|lie| GgufError::Lie { path: other.clone(), lie })?;
        parts.push(part);
    }
    split::check_all(&parts.iter().map(|part| &part.header).collect::<Vec<_>>()).map_err(lies)?;
    Ok(parts)
}
