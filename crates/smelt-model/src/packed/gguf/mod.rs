//! Reads GGUF files: llama.cpp's one file of configuration and weights.
//!
//! `header` parses and checks the file's tables, `config` makes a configuration of the metadata,
//! `names` maps the tensors, `blocks` takes the quantised ones apart.  A `Gguf` is an open file.
//! Knows nothing of how a checkpoint uses it.  The tokenizer in the metadata is not read.
//!
//! Source of the format: `docs/gguf.md` of <https://github.com/ggml-org/ggml>.

pub(crate) mod blocks;
pub(crate) mod config;
mod header;
pub(crate) mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use header::GgufLie;

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
    /// Opens the file at `path`; its tensors' bytes are served by the second of the pair.
    ///
    /// # Errors
    /// [`GgufError`] naming the file and what is wrong with it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Shards), GgufError> {
        let failed = |source| GgufError::Io { path: path.into(), source };
        let lies = |lie| GgufError::Lie { path: path.into(), lie };
        let file = File::open(path).map_err(failed)?;
        let header = Header::read(&file).map_err(failed)?.map_err(lies)?;
        let factors = factors(&file, &header).map_err(failed)?;
        let config = config::of(&header, factors.as_deref()).map_err(lies)?;
        let is_interleaved = header.text("general.architecture") == Some("llama");
        let Header { data_start, tensors, kinds, .. } = header;
        let reader = Reader::of_ranges(path, file, data_start, tensors);
        Ok((Self { kinds, config, is_interleaved }, Shards::of_reader(reader)))
    }

    /// The interleaved head width of the rows of `tensor`, if it is one whose rows are.
    pub(crate) fn interleaved(&self, tensor: &str, head_dim: usize) -> Option<usize> {
        let is_rotated = [".attn_q.", ".attn_k."].iter().any(|part| tensor.contains(part));
        (self.is_interleaved && is_rotated).then_some(head_dim)
    }
}

/// The longest table of rotary factors: those of a head of 8192.
const FACTOR_BYTES_MAX: u64 = 16 << 10;

/// The rotary factors of the file, if it has some.
fn factors(file: &File, header: &Header) -> io::Result<Option<Vec<f32>>> {
    let is_one = |tensor: &&Tensor| {
        tensor.name == config::ROPE_FACTORS
            && tensor.dtype == Dtype::F32
            && tensor.size_bytes() <= FACTOR_BYTES_MAX
    };
    let Some(tensor) = header.tensors.iter().find(is_one) else { return Ok(None) };
    let mut bytes = vec![0; tensor.size_bytes() as usize];
    file.read_exact_at(&mut bytes, header.data_start + tensor.start())?;
    Ok(Some(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}
