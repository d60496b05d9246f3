//! Ends what dead runs left running, closes their journals, clears their directories.

use std::fmt;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use smelt_store::{DeadRun, RunId, Store, StoreError};
use smelt_watch::Cgroups;

use crate::boot::boot_id;
use crate::containers::{self, Engines};
use crate::orphans;
use crate::recorded::{self, Death};
use crate::swap;
use crate::swap_tools::Tools;

/// A run that did not come to its end, and was found so now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The run.
    pub run: RunId,
    /// Its pipeline's name.
    pub pipeline: String,
    /// How it ended.
    pub death: Death,
    /// The stages that ran, each with the attempt.
    pub running: Vec<(String, u32)>,
}

impl fmt::Display for Closed {
    /// One line for a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, pipeline, death, running } = self;
        let how = match death {
            Death::BoardReset => "was cut off by a reset of the board",
            Death::Died => "was killed",
        };
        write!(f, "run {run} of {pipeline} {how}")?;
        for (at, (stage, n)) in running.iter().enumerate() {
            f.write_str(if at == 0 { " while it was at " } else { ", " })?;
            write!(f, "{stage} (attempt {n})")?;
        }
        Ok(())
    }
}

/// Kills what dead runs left running, says in their journals how they ended, and clears their
/// directories.
///
/// What cannot be removed (another user's files, say) is told of and holds up nobody.
pub fn clear_dead_runs(
    store: &Store,
    tell: &mut dyn FnMut(&StoreError),
) -> Result<Vec<Closed>, StoreError> {
    let dead = store.dead_runs()?;
    let cgroups = Cgroups::find(Path::new("/"));
    if let Some(cgroups) = &cgroups {
        cgroups.sweep_empty();
    }
    let now = boot_id();
    let mut closed = Vec::new();
    for dead in dead {
        // Held until all of it is done: a name that is let go of may be a living run's at once.
        let dead = dead?;
        let mark = mark_of(dead.id());
        orphans::kill_marked(&mark);
        end_containers(store, dead.id());
        if let Some(cgroups) = &cgroups {
            cgroups.sweep(&mark);
        }
        match close_with_room(store, &dead, &now) {
            // The next start tries again.
            Err(error) if error.is_disk_full() => {
                tell(&error);
                continue;
            }
            done => closed.extend(done?),
        }
        if let Err(error) = dead.clear() {
            tell(&error);
        }
    }
    Ok(closed)
}

/// Kills containers that its stages have started since it began.
fn end_containers(store: &Store, run: &RunId) {
    let work = store.root().join("work").join(run.as_str());
    let engines = Engines::of(&[]);
    for entry in fs::read_dir(&work).into_iter().flatten().flatten() {
        let notes = containers::notes(&entry.path());
        // Some file systems do not tell when a folder was made; its first note was written soon after.
        let made =
            fs::metadata(&notes).and_then(|stat| stat.created().or_else(|_| stat.modified()));
        if let Ok(made) = made {
            containers::end(&notes, made, &engines);
        }
    }
}

/// How the marks and groups of all its processes begin.
fn mark_of(run: &RunId) -> String {
    format!("{run}/")
}

/// Ends what a run of any store has left whose supervisor is gone; whether nothing was there any more.  As long as a
/// shim of it lives, that does so itself, and clears up.
pub(crate) fn end_left(run: &RunId) -> bool {
    if orphans::lives(&format!("{run}/shim")) {
        return false;
    }
    let mark = mark_of(run);
    let left = orphans::kill_once(&mark);
    if let Some(cgroups) = Cgroups::find(Path::new("/")) {
        cgroups.sweep(&mark);
    }
    left.is_empty()
}

/// Says how it ended; on a full disk what it left in its directories makes room for that.
fn close_with_room(store: &Store, dead: &DeadRun, now: &str) -> Result<Option<Closed>, StoreError> {
    match close(store, dead, now) {
        Err(error) if error.is_disk_full() => {
            dead.empty()?;
            close(store, dead, now)
        }
        done => done,
    }
}

/// Says in the journal how the run ended, once, as long as it is known: two boots later a kill and a
/// reset look alike.
fn close(store: &Store, dead: &DeadRun, now: &str) -> Result<Option<Closed>, StoreError> {
    let records = read(store, dead.id())?;
    let Some(open) = recorded::open(&records, now) else { return Ok(None) };
    if open.is_closed {
        return Ok(None);
    }
    let record = json!({ "event": "closed", "at_s": open.at_s, "detail": { "how": open.death } });
    if !dead.close_journal(&record)? {
        return Ok(None);
    }
    let running = open.running.into_iter().map(|(stage, start)| (stage, start.n)).collect();
    let run = dead.id().clone();
    Ok(Some(Closed { run, pipeline: open.pipeline, death: open.death, running }))
}

fn read(store: &Store, run: &RunId) -> Result<Vec<Value>, StoreError> {
    let mut records = Vec::new();
    store.read_journal(run, |record| records.push(record))?;
    Ok(records)
}

/// Turns off and removes the swap files that dead runs left on; a line for each.
pub fn clear_dead_swap(store: &Store) -> Vec<String> {
    let notes = std::path::absolute(store.root().join(swap::DIR));
    notes.map_or_else(|_| Vec::new(), |notes| swap::clear_dead(&Tools, &notes))
}
