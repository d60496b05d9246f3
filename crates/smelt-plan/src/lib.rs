//! Decides: pipeline text to [`Pipeline`], pipeline to [`Plan`] with keys, plan to [`Schedule`].
//!
//! Everything here is a plain function over data.  Knows nothing of processes, files, clocks or
//! the environment; `smelt-exec` does what the schedule says and reports back.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods)]

pub mod admission;
pub mod device;
pub mod digest;
pub mod explain;
pub mod failure;
pub mod key;
pub mod kind;
pub mod name;
pub mod pipeline;
pub mod plan;
pub mod quantity;
pub mod retry;
pub mod schedule;
mod schema;
pub mod share;
pub mod side;
pub mod text;
pub mod tokens;
pub mod validity;

pub use digest::Digest;
pub use failure::{Failure, FailureClass};
pub use kind::Kind;
pub use name::StageName;
pub use pipeline::{Pipeline, PipelineError};
pub use plan::{Pins, Plan, StageId};
pub use retry::{Change, Earlier, Retry, Rung, SwapSpec, WarmUp};
pub use schedule::{Command, Event, Schedule, State};
pub use schema::schema;
pub use share::Share;
pub use side::Side;
