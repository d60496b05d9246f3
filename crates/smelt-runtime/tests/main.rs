//! The tests of the crate from outside, in one program: it links once what they all need.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod company;
mod deployment;
mod detokenizer;
mod frames;
mod gguf_words;
mod golden;
mod markup;
mod patterns;
mod photographs;
mod preprocess;
mod qwen;
mod replicas;
mod service;
mod shapes;
mod shapes_model;
mod similarity;
mod smolvlm;
mod templates;
mod thirty;
mod tiny;
