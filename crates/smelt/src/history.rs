//! Finds runs of the past in the store, and reads what their journals say.

use smelt_exec::{RunReport, recorded};
use smelt_store::{RunId, Store};

use crate::exit::{Exit, Failed};
use crate::load;

/// The store's runs, oldest first.
pub(crate) struct History {
    store: Store,
    runs: Vec<RunId>,
}

impl History {
    /// Opens the store to read, so that one on a read-only disk will do.
    pub(crate) fn open() -> Result<Self, Failed> {
        let store = load::store_to_read()?;
        let runs = store.journals()?;
        Ok(Self { store, runs })
    }

    /// The newest `count` runs, newest first.
    pub(crate) fn newest(&self, count: usize) -> impl Iterator<Item = &RunId> {
        self.runs.iter().rev().take(count)
    }

    /// The run whose id is or contains `text`; the newest without one.
    pub(crate) fn find(&self, text: Option<&str>) -> Result<&RunId, Failed> {
        let none = || Failed::new(Exit::StageFailed, "no run is recorded in this store");
        let last = self.runs.last().ok_or_else(none)?;
        let Some(text) = text else { return Ok(last) };
        let mut found = self.runs.iter().filter(|run| run.as_str().contains(text));
        match (found.next(), found.next()) {
            (Some(run), None) => Ok(run),
            (Some(one), Some(other)) => Err(Failed::usage(format!(
                "{text} may be {one}, {other} or more; `smelt runs` lists them"
            ))),
            (None, _) => Err(Failed::new(
                Exit::StageFailed,
                format!("no run {text} in this store; the last one is {last}"),
            )),
        }
    }

    /// What the run did.
    pub(crate) fn report(&self, run: &RunId) -> Result<RunReport, Failed> {
        let is_running = self.store.is_running(run)?;
        let mut records = Vec::new();
        self.store.read_journal(run, |record| records.push(record))?;
        recorded::report(run.as_str(), records, is_running)
            .map_err(|error| Failed::new(Exit::StageFailed, error))
    }
}
