//! Says why a checkpoint could not be opened or read.

use std::io;
use std::path::PathBuf;

use super::{WEIGHTS_FILE, WHOLE_TENSOR_BYTES_MAX};
use crate::config::ConfigError;
use crate::dtype::Dtype;
use crate::packed::PackedError;
use crate::packed::gguf::GgufError;
use crate::safetensors::{SafetensorsError, ShardError};

/// Why a checkpoint could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused a side file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A side file is too long or no UTF-8.
    #[error("cannot read {}: {why}", path.display())]
    BadText {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights file was refused.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The weights are split over files that do not fit their index.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// Weights that another tool quantised were refused.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// A GGUF file was refused.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// There are several GGUF files and nothing says which one is meant.
    #[error("{} holds several .gguf files ({first}, {second}); name one of them", dir.display())]
    SeveralGguf {
        /// The directory.
        dir: PathBuf,
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
    /// The weights are pickles, which run code when opened.
    #[error(
        "{} holds pickled weights ({file}), which are not read because they can run code; convert them to {WEIGHTS_FILE}",
        dir.display()
    )]
    Pickled {
        /// The checkpoint.
        dir: PathBuf,
        /// The first pickle found.
        file: String,
    },
    /// There are no weights.
    #[error("{} has no {WEIGHTS_FILE}; is it a checkpoint directory?", dir.display())]
    NoWeights {
        /// The checkpoint.
        dir: PathBuf,
    },
    /// A tensor the configuration calls for is absent.
    #[error(
        "{} lacks tensor {tensor}, which the configuration calls for with shape {shape:?}",
        path.display()
    )]
    MissingTensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape it should have.
        shape: Vec<usize>,
    },
    /// A tensor the configuration does not call for is present.
    #[error(
        "{} has tensor {tensor} of shape {shape:?}, which the configuration does not call for; the two belong to different models, and smelt never aligns one layout to another",
        path.display()
    )]
    UnexpectedTensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The weights are those of another family of decoders than the configuration names.
    #[error(
        "{}: tensor {tensor} is {presence}, as in {found}, but the configuration names {named}; smelt never aligns one layout to another: use the configuration that came with these weights",
        path.display()
    )]
    OtherDecoder {
        /// The weights file.
        path: PathBuf,
        /// A tensor that tells the two apart.
        tensor: String,
        /// `present` or `missing`.
        presence: &'static str,
        /// The class whose layers the file has.
        found: &'static str,
        /// The class the configuration names.
        named: &'static str,
    },
    /// A tensor's shape contradicts the configuration.
    #[error(
        "{}: tensor {tensor} has shape {found:?}, but the configuration calls for {expected:?}",
        path.display()
    )]
    WrongShape {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape the configuration calls for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor's element type is not one its place allows.
    #[error("{}: tensor {tensor} is {found}, but must be {expected}", path.display())]
    WrongDtype {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The dtype in the file.
        found: Dtype,
        /// The dtypes its place allows.
        expected: &'static str,
    },
    /// A weight is NaN or infinite.
    #[error(
        "{}: tensor {tensor} holds NaN or an infinity at element {element}; every answer would be NaN, so fetch the checkpoint again",
        path.display()
    )]
    NotFinite {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The index of the first such element, counted through the tensor.
        element: u64,
    },
    /// A caller asked for a tensor this model does not have.
    #[error("{} has no tensor {tensor}", path.display())]
    UnknownTensor {
        /// The weights file.
        path: PathBuf,
        /// The tensor asked for.
        tensor: String,
    },
    /// A caller asked for rows past the end of a tensor.
    #[error("{}: tensor {tensor} has {rows} rows, not rows {start}..{end}", path.display())]
    NoSuchRows {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Rows it has.
        rows: usize,
        /// First row asked for.
        start: usize,
        /// One past the last row asked for.
        end: usize,
    },
    /// A caller asked for a large tensor in one piece.
    #[error(
        "{}: tensor {tensor} takes {bytes} bytes as f32, more than the {WHOLE_TENSOR_BYTES_MAX} read at once; read it in rows",
        path.display()
    )]
    TooLarge {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Bytes as f32.
        bytes: usize,
    },
    /// A caller asked for a part this model does not have.
    #[error("{} is a {family} model, which has no {part} of the kind asked for", path.display())]
    NoPart {
        /// The checkpoint.
        path: PathBuf,
        /// The part.
        part: &'static str,
        /// The model's family.
        family: &'static str,
    },
    /// The file that marks a quantised checkpoint is wrong.
    #[error("{}: {why}", path.display())]
    BadMark {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}
