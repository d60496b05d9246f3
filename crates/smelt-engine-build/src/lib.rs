//! Builds the engines that `smelt-engine` opens: from checkpoints, and from ONNX graphs.
//!
//! Checkpoints and graphs in, a directory of `engine.json` and `weights.bin` out, a block of weights at a time; what is built
//! is opened and tried before it counts.  Who only runs engines does not need this crate.  Knows nothing of kernels,
//! requests, pipelines or HTTP.

mod build_error;
pub mod graph;
pub mod llm;
pub mod onnxruntime;
pub mod tensorrt;

pub use build_error::BuildError;
