//! Holds conversations with TensorRT for RTX as it comes from PyPI, and with libraries that misbehave.
//!
//! Where no library of it is (`SMELT_TENSORRT_RTX`, an active Python environment), the tests that need it say so;
//! `cargo xtask ci` gives them one.

#![allow(clippy::unwrap_used, reason = "a test's failure is a panic")]

mod allocator;
mod graphs;
mod integers;
mod plans;
mod real;
mod rules;
mod stand_ins;
mod world;
