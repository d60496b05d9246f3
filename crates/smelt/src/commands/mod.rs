//! The commands a person types: each reads its inputs, calls a library, prints the answer.

#[cfg(any(test, not(feature = "build")))]
pub(crate) mod absent;
pub(crate) mod bench;
#[cfg(feature = "build")]
mod bench_arms;
mod bench_serve;
#[cfg(feature = "build")]
mod build;
#[cfg(feature = "build")]
pub(crate) mod building;
pub(crate) mod bundle;
pub(crate) mod cache;
#[cfg(feature = "build")]
mod calibrate;
pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod deliver;
pub(crate) mod demo;
pub(crate) mod describe;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod explain;
#[cfg(feature = "build")]
mod export;
#[cfg(feature = "build")]
mod fit;
pub(crate) mod fleet;
mod fleet_status;
pub(crate) mod graph;
#[cfg(feature = "build")]
mod init;
pub(crate) mod ls;
pub(crate) mod next;
#[cfg(feature = "build")]
mod onnx;
pub(crate) mod out;
pub(crate) mod peer;
#[cfg(feature = "build")]
mod plan;
pub(crate) mod provenance;
#[cfg(feature = "build")]
mod quantize;
pub(crate) mod report;
pub(crate) mod rerank;
#[cfg(feature = "build")]
mod resume;
pub(crate) mod rm;
#[cfg(feature = "build")]
mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod stage;
pub(crate) mod unbundle;
pub(crate) mod watch;

mod consent;
mod open;
mod seats;
mod target;
#[cfg(feature = "build")]
mod worker;
