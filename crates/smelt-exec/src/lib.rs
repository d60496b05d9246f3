//! Does what the schedule says: spawns stages, watches them, stops them, seals and journals.
//!
//! Each stage runs under a shim of its own (see [`shim`]).  Decisions are made in `smelt-plan`
//! (what next), `smelt-watch` (too much?) and [`classify`] (how did it end); this crate obeys.
//! It does not know what a stage means: the caller turns a stage into a [`ProcessSpec`].

mod attempt;
mod boot;
mod caches;
mod cell;
pub mod classify;
mod condition;
mod confine;
pub mod containers;
mod controls;
mod count;
pub mod dead;
mod elsewhere;
mod form;
mod kept;
pub mod lead;
pub mod lending;
mod log;
mod masked;
mod message;
mod notes;
mod order;
mod orphans;
mod prepare;
mod readable;
pub mod recorded;
mod refused;
pub mod report;
mod room;
mod run;
pub mod served;
mod settle;
pub mod shim;
mod shims;
pub mod signatures;
#[cfg(test)]
mod simulation;
mod swap;
mod swap_tools;
mod title;
mod took;

pub use attempt::LOG_VARIABLE;
pub use boot::boot_id;
pub use cell::Cell;
pub use condition::Condition;
pub use confine::{Confinement, Network, SHARED, Space, Strict, Way, Writes};
pub use dead::{Closed, clear_dead_runs, clear_dead_swap};
pub use elsewhere::{Asking, AskingInput, Elsewhere};
pub use form::fault as file_fault;
pub use log::{last_line as log_last_line, tail as log_tail};
pub use order::{Input, ProcessSpec, Task};
pub use orphans::MARK as ATTEMPT_MARK;
pub use report::{
    AttemptReport, FirstFailure, RunReport, RunStatus, RungReport, StageReport, StageStatus,
};
pub use run::{ExecError, Progress, Runner, journal_without_news, room_of};
pub use signatures::{SignatureError, Signatures};
pub use title::call_process;
pub use took::Took;
