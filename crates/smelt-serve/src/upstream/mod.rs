//! Has another program's server answer: starts it, watches it, starts it again, and passes requests on to it.
//!
//! Whether it is well is judged by [`keeper`], which is plain data; [`child`] starts and asks; [`pass`] passes on.  A server that
//! ends, hangs, opens no port or takes too much memory is named with its reason, and nothing of it is left.

mod child;
mod exchange;
mod first;
mod keeper;
mod lines;
mod pass;
mod seat;
mod watcher;

pub(crate) use watcher::Stats;
pub use watcher::{Launch, Upstream, UpstreamError};
