//! Reads checkpoints, and makes other files of them: graphs, quantised weights, reference answers.
//!
//! A directory becomes a [`checkpoint::Checkpoint`] (its configuration and its tensor table agree),
//! and everything else reads tensors through it, one block of rows at a time.
//! Knows nothing of engines, pipelines or the store.

pub mod calibrate;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod export;
pub mod families;
#[cfg(test)]
mod golden;
pub mod grid;
pub mod in_order;
pub mod model;
pub mod packed;
pub use smelt_backend::position_ids;
pub use smelt_tensor::dtype;
pub mod price;
pub mod quantize;
pub mod reference;
pub mod repacked;
pub mod safetensors;
pub mod synthetic;
pub mod tensorrt_llm;

mod foreign;
#[cfg(test)]
mod noise;
mod scheme;
mod working;

#[cfg(test)]
mod sample;
