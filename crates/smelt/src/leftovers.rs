//! Ends runs: our own in order, and what dead ones have left.

use smelt_exec::recorded::Death;
use smelt_exec::{clear_dead_runs, clear_dead_swap};
use smelt_store::{Run, Store, StoreError};

use crate::console::tell;
use crate::exit::Failed;

/// Ends what dead runs have left, and says what became of them.
pub(crate) fn clear_dead(store: &Store) -> Result<(), Failed> {
    let closed = clear_dead_runs(store, &mut left_behind)?;
    for run in closed.iter().filter(|run| run.death == Death::BoardReset) {
        tell(format_args!("smelt: {run}"));
    }
    for line in clear_dead_swap(store) {
        tell(format_args!("smelt: {line}"));
    }
    Ok(())
}

/// Ends the run in order.
pub(crate) fn finish(run: Run) {
    if let Err(error) = run.finish() {
        left_behind(&error);
    }
}

/// A working directory that cannot be removed is in nobody's way.
pub(crate) fn left_behind(error: &StoreError) {
    tell(format_args!(
        "smelt: a working directory is left behind: {error}; remove it as its owner"
    ));
}
