//! Finds runs of the past in the store, and reads what their journals say.

use serde_json::Value;
use smelt_exec::recorded::{self, Open, RecordError};
use smelt_exec::{RunReport, boot_id};
use smelt_store::{RunId, Store, Whole};

use crate::exit::{Exit, Failed};
use crate::load;

/// What the journal of a warm-up says in the place of a command.
pub(crate) const WARM_UP: &str = "warm-up";

/// A run has a warm-up for each of its stages at most; so many in a row were no person's.
const WARM_UPS_MAX: usize = 64;

/// The store's runs, oldest first.
pub(crate) struct History {
    store: Store,
    runs: Vec<RunId>,
    /// The name of this boot.
    boot: String,
}

impl History {
    /// Opens the store to read, so that one on a read-only disk will do.
    pub(crate) fn open() -> Result<Self, Failed> {
        Self::of(load::store_to_read()?)
    }

    /// The runs of a store that is open.
    pub(crate) fn of(store: Store) -> Result<Self, Failed> {
        let runs = store.journals()?;
        Ok(Self { store, runs, boot: boot_id() })
    }

    /// The newest `count` runs, newest first.
    pub(crate) fn newest(&self, count: usize) -> impl Iterator<Item = &RunId> {
        self.runs.iter().rev().take(count)
    }

    /// Every run, oldest first.
    pub(crate) fn all(&self) -> &[RunId] {
        &self.runs
    }

    /// The run whose id is or contains `text`; the newest without one, which was no warm-up of another.
    pub(crate) fn find(&self, text: Option<&str>) -> Result<&RunId, Failed> {
        let none = || Failed::new(Exit::StageFailed, "no run is recorded in this store");
        let last = self.runs.last().ok_or_else(none)?;
        let Some(text) = text else { return Ok(self.newest_asked_for()?.unwrap_or(last)) };
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

    fn newest_asked_for(&self) -> Result<Option<&RunId>, Failed> {
        for run in self.newest(WARM_UPS_MAX) {
            if self.command(run)? != WARM_UP {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// What the run did.
    pub(crate) fn report(&self, run: &RunId) -> Result<RunReport, Failed> {
        let is_running = self.store.is_running(run)?;
        let (records, whole) = self.records(run)?;
        let is_damaged = whole == Whole::No;
        recorded::report(run.as_str(), records, is_damaged, is_running, &self.boot)
            .map_err(|error| Failed::new(Exit::StageFailed, error))
    }

    /// What the run leaves to do; `None` where it ended in order, or goes on.
    pub(crate) fn open_run(&self, run: &RunId) -> Result<Option<Open>, Failed> {
        if self.store.is_running(run)? {
            return Ok(None);
        }
        Ok(recorded::open(&self.records(run)?.0, &self.boot))
    }

    /// What the run was told, as far as its journal says.
    pub(crate) fn command(&self, run: &RunId) -> Result<Value, Failed> {
        Ok(self.first(run)?["detail"]["command"].take())
    }

    /// When the run began (UTC), by the clock where its journal says it.
    pub(crate) fn began(&self, run: &RunId) -> String {
        let clock_s = self.first(run).ok().and_then(|first| recorded::began(&first));
        clock_s.map_or_else(|| run.began(), RunId::clock)
    }

    fn first(&self, run: &RunId) -> Result<Value, Failed> {
        let mut first = Value::Null;
        let whole = self.store.read_journal(run, |record| {
            if first.is_null() {
                first = record;
            }
        })?;
        if first.is_null() && whole == Whole::No {
            let error = RecordError::Damaged { run: run.to_string() };
            return Err(Failed::new(Exit::StageFailed, error));
        }
        Ok(first)
    }

    fn records(&self, run: &RunId) -> Result<(Vec<Value>, Whole), Failed> {
        let mut records = Vec::new();
        let whole = self.store.read_journal(run, |record| records.push(record))?;
        Ok((records, whole))
    }
}
