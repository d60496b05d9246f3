//! The tests of the crate from outside, in one program: it links once what they all need.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod eval;
mod faults;
mod heads;
mod operators;
mod opsets;
mod qdq;
mod surgery;
mod wire;
mod world;
