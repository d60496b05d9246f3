//! Exports parts of a checkpoint as ONNX models with external data.
//!
//! A checkpoint and an element type come in; `model.onnx` and `model.onnx.data` come out, the
//! same bytes on every machine.  Weights pass through in blocks; the graph is written by hand,
//! not traced, so nothing is executed.  Knows nothing of engines.

#[cfg(test)]
mod tests;
mod vision;
mod weights;

use std::io;
use std::path::{Path, PathBuf};

use smelt_onnx::{CheckError, DataError, IR_VERSION, Model, OPSET, WriteError, check};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::dtype::Dtype;
use crate::model::Part;
use weights::WeightStream;

/// Why a checkpoint could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint holds the language model only.
    #[error(
        "{} has no vision tower: it was quantised; export from the checkpoint it was made of",
        dir.display()
    )]
    NoVision {
        /// The checkpoint.
        dir: PathBuf,
    },
    /// Graphs compute in floats.
    #[error("cannot export a graph in {dtype}; use f32, f16 or bf16")]
    NotFloat {
        /// The type asked for.
        dtype: Dtype,
    },
    /// A weight is NaN or infinite.
    #[error(
        "tensor {tensor} holds {value} at element {element}; every answer would be NaN, so fetch the checkpoint again"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// NaN or an infinity.
        value: f32,
        /// The index of the first such element, counted through the tensor.
        element: u64,
    },
    /// A weight has no f16 value.
    #[error("tensor {tensor} holds {value}, beyond f16's 65504; export in bf16 or f32")]
    BeyondF16 {
        /// The tensor.
        tensor: String,
        /// The first such value.
        value: f32,
    },
    /// The output directory cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    CreateDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The weights cannot be written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The graph cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What was written is no sound model: a bug, or a disk that lost bytes.
    #[error("the exported model is unsound: {0}")]
    Unsound(#[from] CheckError),
}

/// Exports the vision tower, pixel shuffle and projector of `checkpoint` to `out_dir`.
///
/// The model maps `pixel_values` [tiles, channels, side, side] to `image_embeds`
/// [tiles, tokens, hidden], both of type `dtype`; `progress` is told each weight.
///
/// # Errors
/// When `dtype` is no float the graph can have, a weight does not fit it, or a file cannot be
/// read or written.
pub fn vision(
    checkpoint: &Checkpoint,
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let tower = checkpoint.internvl3()?;
    if !checkpoint.has(Part::Vision) {
        return Err(ExportError::NoVision { dir: checkpoint.dir().to_owned() });
    }
    let mut stream = WeightStream::create(checkpoint, dtype, out_dir)?;
    let weights = vision::weights(checkpoint.model());
    let mut initializers = Vec::with_capacity(weights.len());
    for (n, (name, dims)) in weights.iter().enumerate() {
        progress(&format!("weight {} of {}: {name}", n + 1, weights.len()));
        initializers.push(stream.copy(name, dims)?);
    }
    let model = Model {
        ir_version: IR_VERSION,
        opset: OPSET,
        other_opsets: vec![],
        producer: "smelt".to_owned(),
        metadata: vec![],
        graph: vision::graph(tower, stream.element_type(), initializers),
    };
    model.write(out_dir)?;
    Ok(check(&model, out_dir)?)
}
