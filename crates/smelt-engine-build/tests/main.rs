//! The tests of the crate from outside, in one program: it links once what they all need.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod compile;
mod conformance;
mod cuda;
mod detector;
mod encoders;
mod fusions;
mod golden;
mod hf;
mod llm;
mod onnxruntime;
mod packed;
mod ranges;
mod vision;
