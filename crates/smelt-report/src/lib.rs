//! Tells what a run did and how a pipeline stands, in other people's programs: a browser, a viewer of traces, Graphviz.
//!
//! Pure but for the tails of logs: a report or a plan goes in, text comes out, the same for the same.

pub mod amount;
pub mod arms;
pub mod graph;
pub mod page;
pub mod summary;
pub mod trace;
pub mod trials;
