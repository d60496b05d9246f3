//! Does what the schedule says: spawns stages, watches them, stops them, seals and journals.
//!
//! Each stage runs under a shim of its own (see [`shim`]).  Decisions are made in `smelt-plan`
//! (what next), `smelt-watch` (too much?) and [`classify`] (how did it end); this crate obeys.
//! It does not know what a stage means: the caller turns a stage into an [`Order`].

#![forbid(unsafe_code)]

mod attempt;
pub mod classify;
mod confine;
mod controls;
mod log;
mod message;
mod order;
mod orphans;
pub mod recorded;
mod refused;
pub mod report;
mod room;
mod run;
pub mod shim;
mod shims;
#[cfg(test)]
mod simulation;

pub use confine::Writes;
pub use log::tail as log_tail;
pub use order::{Input, Order, Task};
pub use orphans::MARK as ATTEMPT_MARK;
pub use report::{AttemptReport, FirstFailure, RunReport, RunStatus, StageReport, StageStatus};
pub use run::{ExecError, Progress, Runner, clear_dead_runs, journal_without_news, room_of};
