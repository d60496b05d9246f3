//! Shares sealed outputs by a server of Bazel's Remote Execution API, each vouched for by a signature.
//!
//! A pusher cuts files into chunks, uploads those that the server lacks, and publishes one entry for each key, last.  A
//! puller asks for keys, judges the signed statement of what it finds by its own trust, fetches chunks, and compares every
//! file with what the statement says before it hands the folder on to be sealed.
//!
//! Knows nothing of stages and engines, and changes no store: what is true of an output comes and goes as plain data.

pub mod address;
pub mod beat;
pub mod bots;
pub mod chunk;
pub mod counts;
pub mod dsse;
pub mod execution;
pub mod held;
pub mod judge;
pub mod keys;
pub mod lease;
pub mod local;
pub mod mdns;
pub mod nats;
pub mod oci;
pub mod paced;
mod packed;
pub mod peer;
pub mod pieces;
pub mod places;
pub mod pull;
pub mod push;
pub mod reapi;
pub mod remote;
mod signer;
#[cfg(test)]
mod simulation;
pub mod site;
mod small_statement;
pub mod ssh;
pub mod statement;
pub mod trust;
pub mod work;
