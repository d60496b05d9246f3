//! Holds engines against the f32 reference and the weights they were built from, and asks golden prompts.
//!
//! Cheapest first, and what is wrong is named as closely as it can be: digests; then sizes and every
//! weight, beside the checkpoint's own (`weights.rs`); then what the engines compute.  They answer a
//! built-in prompt (`probe.rs`) with 16 tokens; the reference, which shares no arithmetic with them,
//! scores prompt and answer in one teacher-forced pass that streams the checkpoint: the vision
//! engine, if there is one, the decoder against the very weights it was built from (tight: only rounding may differ),
//! and the whole against the checkpoint (loose: quantisation may cost something).  Last, golden
//! prompts go the way of a conversation and must be answered as expected (`golden.rs`).
//!
//! Every weight is compared, always.  What the reference computes is sampled, since it took three quarters of a
//! build: some tokens of the picture, the smallest of several grids.  [`Verification::full`] computes all.
//!
//! A decoder for GPUs has its weights compared on any machine; what it computes is asked of a card that agrees, and where
//! there is none one line says so.
//!
//! The two halves may be done apart: one of weights only, behind which a deployment may be asked already, and one that
//! goes on from it.  Either records which engines it is of ([`smelt_runtime::proof`]).

#![forbid(unsafe_code)]

mod bounds;
mod compute;
mod costs;
mod course;
pub mod decoder;
mod golden;
#[cfg(test)]
mod on_a_twin;
mod parties;
mod probe;
mod record;
mod verification;
mod verify;
mod weights;

pub use verification::{Device, Verification};
pub use verify::verify;
