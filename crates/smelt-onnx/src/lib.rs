//! Reads, writes, builds and checks ONNX models whose weights stay on disk.
//!
//! [`Model::read`] gives plain values; a weight is a name, a shape and a byte range that
//! [`read_initializer`] reads piece by piece.  [`GraphBuilder`] and [`ExternalData`] make a
//! model, [`check`] judges one by the standard and [`target`] by one back end, [`inspect`]
//! describes one, [`eval`] computes one and [`surgery`] changes one.  Knows nothing of checkpoints, engines or pipelines.

mod builder;
mod check;
mod cost;
mod decode;
mod element_type;
mod encode;
pub mod eval;
mod external;
mod inspect;
mod model;
mod proto;
mod skim;
pub mod surgery;
mod survey;
pub mod target;

pub use builder::{GraphBuilder, Value};
pub use check::{CheckError, IR_VERSION_MAX, IR_VERSION_MIN, OPSET_MAX, OPSET_MIN, check};
pub use decode::ReadError;
pub use element_type::ElementType;
pub use encode::{MODEL_FILE, WriteError, located};
pub use external::{
    DATA_FILE, DataError, ExternalData, TENSOR_ALIGNMENT_BYTES, TensorWriter, read_initializer,
};
pub use inspect::{Inspection, Large, Port, Weights, inspect};
pub use model::{Attribute, AttributeValue, Data, Dim, Graph, Initializer, Model, Node, ValueInfo};
pub use skim::{GRAPH_BYTES_MAX, INLINE_BYTES_MAX, PROTOBUF_BYTES_MAX, ReadFault};

/// The operator set written by default: the newest that TensorRT 10.3 converts well and the
/// first with `LayerNormalization`.
pub const OPSET: i64 = 17;

/// The file format written by default, the one that goes with operator set 17.
pub const IR_VERSION: i64 = 8;
