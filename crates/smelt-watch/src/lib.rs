//! Measures: `/proc` and control groups to [`Sample`]s, samples and what the kernel tells by itself
//! ([`Listener`]) to [`Peaks`], a [`Curve`] and a [`Verdict`].
//!
//! Reading is thin and separate from judging, which is pure.  Knows nothing of pipelines, stages
//! or retries.

#![forbid(unsafe_code)]

pub mod activity;
pub mod budget;
pub mod ceiling;
pub mod cgroup;
pub mod counters;
pub mod curve;
pub mod disks;
pub mod exits;
pub mod family;
pub mod freezer;
mod genetlink;
pub mod guard;
pub mod headway;
mod kernel_file;
pub mod kernel_log;
pub mod listener;
pub mod machine;
pub mod meter;
pub mod nvmap;
pub mod peaks;
pub mod phases;
pub mod pressure;
pub mod processes;
mod roster;
pub mod survey;
pub mod swaps;
mod taskstats;
pub mod tegrastats;
pub mod tree;

pub use budget::{Broken, Budget};
pub use ceiling::Ceiling;
pub use cgroup::{Cgroups, Group};
pub use counters::Counters;
pub use curve::Curve;
pub use disks::{Disks, Short};
pub use freezer::Freezer;
pub use guard::{Attended, Guard, Look, Verdict};
pub use headway::{Headway, Pace};
pub use kernel_log::KernelEvent;
pub use listener::Listener;
pub use machine::Machine;
pub use meter::{Measured, Meter};
pub use peaks::Peaks;
pub use survey::Survey;
pub use tree::{Sample, Tree, began_ticks, is_stopped, is_zombie};
