//! Native CPU engines: build them, run them.
//!
//! An engine is a directory of `engine.json` and `weights.bin`.  [`vision`] executes an ONNX graph,
//! [`llm`] a decoder with a key-value cache; both map their weights and compute in f32.  All
//! `unsafe` of the workspace is here.  Knows nothing of requests, pipelines or HTTP.

mod cast;
pub mod engine_file;
mod kernels;
pub mod llm;
pub mod vision;
