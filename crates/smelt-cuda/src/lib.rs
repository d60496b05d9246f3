//! Runs engines on NVIDIA's GPUs: the driver, what is asked of it as plain data, and a device that only records.
//!
//! A step is a list of [`Launch`]es that pure functions make; a [`Driver`] does them.  There are two: libcuda, which is
//! looked for when it is asked for and never linked, and `recording`, which needs no GPU.  [`nvrtc`] compiles kernels where
//! an engine is built, and [`cubin`] reads what they take.  `unsafe` is where libraries are called, in two files.  Knows no
//! checkpoints, requests, pipelines or HTTP.

mod address;
mod card;
pub mod cubin;
pub mod decoder;
pub mod driver;
pub mod graph;
pub mod kernels;
mod launch;
pub mod nvrtc;
pub mod owned;
#[cfg(any(test, feature = "recording"))]
pub mod recording;
mod stopwatch;
pub mod tactics;
mod target;

pub use address::DeviceAddress;
pub use card::{CardFacts, Processors, Sm};
pub use driver::{
    CapturedGraph, Driver, DriverError, EventId, GraphExec, HostBytes, MemoryInfo, Module, NoCard,
    Priority, Stream, cards, held_bytes, open,
};
pub use launch::{Arg, Function, Launch, LaunchArgs};
pub use owned::locked_bytes;
pub use stopwatch::Stopwatch;
pub use target::{CudaTarget, Toolkit};
