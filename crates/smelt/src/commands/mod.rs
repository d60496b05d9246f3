//! The commands a person types: each reads its inputs, calls a library, prints the answer.

pub(crate) mod bench;
mod bench_serve;
pub(crate) mod build;
pub(crate) mod cache;
pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod demo;
pub(crate) mod describe;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fit;
pub(crate) mod graph;
pub(crate) mod init;
pub(crate) mod ls;
pub(crate) mod next;
pub(crate) mod onnx;
pub(crate) mod out;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod report;
pub(crate) mod rerank;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod watch;

mod open;
mod target;
