//! Reads and writes safetensors files, one slice of one tensor at a time.
//!
//! `header` turns the JSON table into checked tensors, [`Reader`] serves their bytes by pread,
//! [`Shards`] makes several files under an index one,
//! [`Writer`] puts the table first and takes the bytes as a stream.
//! Knows nothing of models: names, shapes and byte ranges only.

mod header;
mod reader;
mod shards;
mod writer;

use std::io;
use std::path::PathBuf;

pub use header::{HEADER_BYTES_MAX, Lie, NAME_BYTES_MAX, RANK_MAX, TENSORS_MAX, Tensor};
pub use reader::Reader;
pub use shards::{IndexLie, ShardError, Shards};
pub use writer::{TensorSpec, Writer};

/// Why a safetensors file could not be read or written; the message names the file.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: `open`, `read`, `create`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file contradicts itself or the format.
    #[error("{} is no valid safetensors file: {lie}", path.display())]
    Lie {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        lie: Lie,
    },
    /// A caller asked for bytes past the end of a tensor.
    #[error("cannot read {bytes} bytes at {offset} of tensor {tensor} in {}: it has {size} bytes", path.display())]
    OutsideTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes the tensor has.
        size: u64,
    },
    /// More or fewer bytes were streamed into a writer than its table promises.
    #[error("cannot finish {}: its header promises {promised} data bytes, {given} were given", path.display())]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Data bytes the header promises.
        promised: u64,
        /// Data bytes given, the refused ones included.
        given: u64,
    },
}
