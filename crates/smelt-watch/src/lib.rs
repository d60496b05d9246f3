//! Measures: `/proc` and control groups to [`Sample`]s, samples to [`Peaks`], a [`Curve`] and a
//! [`Verdict`].
//!
//! Reading is thin and separate from judging, which is pure.  Knows nothing of pipelines, stages
//! or retries.

#![forbid(unsafe_code)]

pub mod budget;
pub mod ceiling;
pub mod cgroup;
pub mod counters;
pub mod curve;
pub mod freezer;
pub mod guard;
mod kernel_file;
pub mod machine;
pub mod meter;
pub mod peaks;
pub mod pressure;
pub mod tree;

pub use budget::{Broken, Budget};
pub use ceiling::Ceiling;
pub use cgroup::{Cgroups, Group};
pub use counters::Counters;
pub use curve::Curve;
pub use freezer::Freezer;
pub use guard::{Attended, Guard, Look, Verdict};
pub use machine::Machine;
pub use meter::{Measured, Meter};
pub use peaks::Peaks;
pub use tree::{Sample, Tree, is_zombie};
