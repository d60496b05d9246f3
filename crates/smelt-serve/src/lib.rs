//! Answers OpenAI-style requests over HTTP with what [`smelt_runtime::service`] says.
//!
//! A connection's request is read into a shape of the API, prepared beside the engines, submitted to a
//! service, and what is heard is written in a shape of the API.  Every number, size and time of what clients do has a
//! limit.  Knows nothing of pipelines, engines or where deployments are.

#![forbid(unsafe_code)]

mod account;
mod answer;
mod api;
mod ask;
mod body;
mod client;
mod collect;
mod current;
mod ending;
mod error;
pub mod films;
mod hosts;
mod images;
mod keys;
mod listen;
mod log;
mod meter;
mod metrics;
mod models;
#[cfg(test)]
mod paused;
mod protocols;
mod response_stream;
mod routes;
mod server;
mod slot_files;
mod traces;
mod unread;
mod upstream;

pub use ask::pixels::DECODING_BYTES;
pub use axum::http::HeaderValue;
pub use images::Reach;
pub use keys::{Keys, KeysError};
pub use log::log_to_stderr;
pub use models::{
    Checked, DeploymentInfo, DeviceRoom, Find, Growth, LoadingStep, Open, Progress, Purpose,
    Running, Source, Unfit,
};
pub use server::{Ended, Options, ServeError, TlsError, TlsFiles, bodies_bytes, serve};
pub use traces::{TraceError, TraceOptions};
pub use upstream::{Launch, Upstream, UpstreamError};
