//! Reads weights that other tools quantised; [`crate::repacked`] writes them for those tools.
//!
//! A format's file finds the stored tensors of one weight and checks them (a `Stored`); `present`
//! makes the canonical tensors of them, a block of rows at a time.
//! Quants move from word to byte without becoming floats.  Knows tensors and the words of
//! `quantization_config`, nothing of models.
//!
//! The canonical form of a weight `X` `[out, in]`: 4 bits, `X` U8 `[out, ceil(in/2)]`, the low
//! nibble the even column; 8 bits, `X` I8 `[out, in]`.  `X_scale` `[out]` or `[out, groups]` in the
//! source's float type.  `X_zero` U8 `[out, groups]` where asymmetric: `w = (q - zero) * scale`,
//! else `w = (q - 8) * scale`, and `w = q * scale` for 8 bits.  `X_order` I32 `[in]` where columns
//! were sorted: stored column `j` is input channel `order[j]`, and groups are contiguous.
//! What has minima, factors of scales, or 5 or 6 bits is in one of the forms of [`smelt_tensor::packed`].

pub(crate) mod awq;
pub(crate) mod compressed_tensors;
pub mod gguf;
pub(crate) mod gptq;
pub(crate) mod present;
pub(crate) mod quantization;
pub(crate) mod stored;
pub(crate) mod words;
pub(crate) mod zeros;

use std::path::PathBuf;

use crate::dtype::Dtype;
use crate::safetensors::SafetensorsError;

/// Why packed weights could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PackedError {
    /// Weights in a form that is known by name and not read.
    #[error("{}: the weights are {what}, which smelt does not read; {advice}", path.display())]
    Unsupported {
        /// The configuration or weights file.
        path: PathBuf,
        /// What they are.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// The description of the quantisation is wrong.
    #[error("{}: {field} is {found}, but must be {expected}", path.display())]
    BadField {
        /// The configuration.
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A tensor that belongs to a packed weight is absent.
    #[error("{} lacks tensor {tensor}, which belongs to the packed weight {beside}", path.display())]
    Missing {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// A tensor of the weight that is there.
        beside: String,
    },
    /// A tensor of a packed weight has another shape than its format and the model give.
    #[error("{}: tensor {tensor} has shape {found:?}, but must have {expected:?}", path.display())]
    Shape {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// A tensor of a packed weight has another element type than its format gives.
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
    /// The values of a tensor contradict its format.
    #[error("{}: tensor {tensor} {problem}", path.display())]
    BadValues {
        /// The weights file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The weights file was refused.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
}
