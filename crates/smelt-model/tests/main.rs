//! The tests of the crate from outside, in one program: it links once what they all need.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod encoders;
mod packed;
mod tensorrt_llm;
