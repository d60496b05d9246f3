//! Native CPU engines: opens and runs them.
//!
//! An engine is a directory of `engine.json` and `weights.bin`.  [`graph`] executes any ONNX graph,
//! [`vision`] one from pictures to tokens, [`llm`] a decoder with a key-value cache; all map their
//! weights and give f32.  [`BACKENDS`] opens them by the contract of `smelt-backend`; `smelt-engine-build` makes them, by
//! what [`engine_file`] writes.  The `unsafe` of the processors' kernels is here.  Knows nothing of checkpoints, ONNX files, requests,
//! pipelines or HTTP.

mod backends;
mod cast;
pub mod engine_file;
pub mod graph;
mod kernels;
pub mod llm;
pub mod memory;
pub mod onnxruntime;
mod processors;
pub mod tactics;
pub mod vision;

pub use backends::{BACKENDS, ROWS};
