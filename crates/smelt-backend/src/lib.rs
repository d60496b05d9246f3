//! The contract of engines: what a back end opens, and how it is asked.
//!
//! A back end is a row ([`Row`]): by which word `engine.json` calls what it builds, which facts about a device that depends
//! on, and what opens it.  What comes of it is a [`Decoder`], which takes tokens and gives tokens, or a [`Graph`], which
//! takes numbers and gives numbers; a [`VisionEngine`] is a graph that is known to take images.  Everything else here is
//! plain data, where libraries are that back ends load ([`installed`]), and what `engine.json` says of other files
//! ([`files`]).  Knows no back end, no request, and of `engine.json` no more than the heading.

mod check;
mod decoder;
mod device;
pub mod files;
mod graph;
pub mod grid;
mod heading;
pub mod installed;
mod kv;
mod memory;
mod open;
pub mod position_ids;
mod row;
pub mod sampling;
pub mod tactics_file;
mod vision;
mod witness;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "conformance")]
pub mod simulated;

pub use check::check_position_ids;
pub use decoder::{
    Adapter, Answer, Decoder, DecoderFacts, ImageEmbeds, Limits, LogitRows, MAX_SEQ_LEN_MAX,
    MAX_SLOTS_MAX, RowWant, RunError, Scores, SlotInput, Want,
};
pub use device::{Device, NoEngine, choose, misfit};
pub use graph::{
    Constant, DeviceValue, Graph, GraphError, GraphInput, GraphOutput, Pending, Tensor, Value,
};
pub use heading::{ENGINE_FILE, Heading};
pub use kv::{KvBlock, KvOptions, KvType, KvUsage};
pub use memory::{MemoryPlace, MemoryReport, Processors};
pub use open::OpenError;
pub use row::{Backends, Graphs, Opens, Row, only_graph};
pub use vision::{
    FeatureSpan, Features, HostFeatures, PendingFeatures, Takes, VisionEngine, VisionError,
};
pub use witness::Witness;
