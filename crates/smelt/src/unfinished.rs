//! Finds what runs of a command have left that did not end: killed, cut off by a reset of the board, or
//! waiting for a reboot.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smelt_exec::recorded::{Death, Open};
use smelt_plan::{Digest, Earlier, Side};
use smelt_store::{RunId, Store};

use crate::exit::Failed;
use crate::flags::{
    FleetFlags, NamedWorker, PipelineFlags, Push, PushLimits, RunFlags, WORKER_WAIT,
};
use crate::history::{History, WARM_UP};

/// So many runs are looked back at: whoever lets more pass does not go on, but begins.
const LOOKED_BACK_MAX: usize = 64;
/// After so many starts that no stage came out of, going on by itself is no use: something resets the
/// board, and it is not a stage.
pub(crate) const RESUMES_MAX: usize = 16;

/// What `smelt run` was told: enough to start it again, and to know the same again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunArguments {
    pub(crate) dir: PathBuf,
    pipeline: PathBuf,
    sets: Vec<String>,
    only: Vec<String>,
    force: Vec<String>,
    check: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on: Option<String>,
    keep_going: bool,
    overcommit: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    require_confinement: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i32,
    jobs: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep_free: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    fleet: FleetFlags,
    #[serde(default, skip_serializing_if = "is_default")]
    push: Push,
    #[serde(default, skip_serializing_if = "is_default")]
    push_limits: PushLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heartbeat: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker_wait: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: NamedWorker,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl RunArguments {
    /// `None` for a warm-up, which ends with the run that wanted it.
    pub(crate) fn of(flags: &RunFlags) -> Option<Self> {
        let RunFlags { pipeline: PipelineFlags { pipeline, sets }, .. } = flags;
        (!flags.is_trial()).then(|| Self {
            dir: std::env::current_dir().unwrap_or_default(),
            pipeline: pipeline.clone(),
            sets: sets.clone(),
            only: flags.only.clone(),
            force: flags.force.clone(),
            check: flags.check.clone(),
            on: flags.on.map(|side| side.name().to_owned()),
            keep_going: flags.keep_going,
            overcommit: flags.overcommit,
            require_confinement: flags.require_confinement,
            priority: flags.priority,
            jobs: flags.jobs,
            keep_free: flags.keep_free,
            fleet: flags.fleet.clone(),
            push: flags.push,
            push_limits: flags.push_limits.clone(),
            heartbeat: flags.heartbeat,
            given: flags.given.clone(),
            worker: flags.worker.clone(),
            worker_wait: Some(flags.worker_wait).filter(|wait| *wait != WORKER_WAIT),
        })
    }

    /// As it is in a journal.
    pub(crate) fn value(told: Option<&Self>) -> Value {
        told.map_or_else(|| json!(WARM_UP), |told| json!(told))
    }

    /// The flags that say the same.
    pub(crate) fn flags(&self) -> RunFlags {
        RunFlags {
            pipeline: PipelineFlags { pipeline: self.pipeline.clone(), sets: self.sets.clone() },
            only: self.only.clone(),
            force: self.force.clone(),
            check: self.check.clone(),
            on: self.on.as_deref().and_then(Side::parse),
            keep_going: self.keep_going,
            overcommit: self.overcommit,
            require_confinement: self.require_confinement,
            priority: self.priority,
            jobs: self.jobs,
            keep_free: self.keep_free,
            fleet: self.fleet.clone(),
            push: self.push,
            push_limits: self.push_limits.clone(),
            heartbeat: self.heartbeat,
            given: self.given.clone(),
            worker: self.worker.clone(),
            worker_wait: self.worker_wait.unwrap_or(WORKER_WAIT),
            no_wait: false,
            events: false,
            warm_up: false,
            begin: Vec::new(),
            once: false,
            json: false,
        }
    }
}

/// The runs of one command since the last that ended, newest first.
#[derive(Default)]
pub(crate) struct Left(Vec<Open>);

impl Left {
    /// What runs of this command have left in the store.
    pub(crate) fn by(told: Option<&RunArguments>, store: &Store) -> Result<Self, Failed> {
        let Some(told) = told else { return Ok(Self::default()) };
        let history = History::of(store.clone())?;
        let command = json!(told);
        let mut left = Vec::new();
        for run in history.newest(LOOKED_BACK_MAX) {
            // Whose is unknown is not ours.
            if history.command(run).ok().as_ref() != Some(&command) {
                continue;
            }
            match history.open_run(run)? {
                Some(open) => left.push(open),
                None => break,
            }
        }
        Ok(Self(left))
    }

    /// How many runs in a row did not end.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether the board was rebooted since one of them asked for it.
    pub(crate) fn is_rebooted(&self) -> bool {
        self.0.iter().any(|open| open.wants_reboot && open.is_other_boot)
    }

    /// How far the ladders of stages were climbed, with the stages' names.
    pub(crate) fn ladders(&self) -> BTreeMap<Digest, (String, Earlier)> {
        let mut all: BTreeMap<Digest, (String, Earlier)> = BTreeMap::new();
        for (key, (stage, earlier)) in self.0.iter().flat_map(|open| &open.ladders) {
            match all.get_mut(key) {
                // What an older run did before counts with what a newer one went on with.
                Some((_, newer)) if newer.attempts > earlier.attempts => {
                    newer.used.extend(earlier.used.iter().copied());
                }
                Some(_) => {}
                None => drop(all.insert(*key, (stage.clone(), earlier.clone()))),
            }
        }
        all
    }
}

/// What the newest run of each command has left.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// Those that did not end, oldest first, with what they were told.
    pub(crate) open: Vec<(RunId, RunArguments, Open)>,
    /// Why nothing is known of others, oldest first.
    pub(crate) unread: Vec<Failed>,
}

/// What there is to go on with.
pub(crate) fn all(history: &History) -> Unfinished {
    let runs = history.newest(LOOKED_BACK_MAX);
    newest_of_each(runs, |run| history.command(run), |run| history.open_run(run))
}

/// Of `runs`, newest first.  One that cannot be read hides none of another command.
fn newest_of_each<'r>(
    runs: impl Iterator<Item = &'r RunId>,
    command: impl Fn(&RunId) -> Result<Value, Failed>,
    open: impl Fn(&RunId) -> Result<Option<Open>, Failed>,
) -> Unfinished {
    let mut known = HashSet::new();
    let mut all = Unfinished::default();
    for run in runs {
        let command = match command(run) {
            Ok(command) => command,
            Err(why) => {
                all.unread.push(why);
                continue;
            }
        };
        let Ok(told) = RunArguments::deserialize(&command) else { continue };
        if !known.insert(command.to_string()) {
            continue;
        }
        match open(run) {
            Ok(open) => all.open.extend(open.map(|open| (run.clone(), told, open))),
            Err(why) => all.unread.push(why),
        }
    }
    all.open.reverse();
    all.unread.reverse();
    all
}

/// Why a run did not end, for a person.
pub(crate) fn why(open: &Open) -> &'static str {
    match (open.wants_reboot, open.death) {
        (true, _) => "waits for a reboot",
        (false, Death::BoardReset) => "was cut off by a reset of the board",
        (false, Death::Died) => "was killed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn run(n: u32) -> RunId {
        format!("20261121-154233-{n:04x}").parse().unwrap()
    }

    fn told(pipeline: &str) -> Value {
        json!({
            "dir": "/d", "pipeline": pipeline, "sets": [], "only": [], "force": [], "check": [],
            "keep_going": false, "overcommit": false, "jobs": 1,
        })
    }

    fn open(pipeline: &str) -> Open {
        Open {
            pipeline: pipeline.to_owned(),
            command: told(pipeline),
            death: Death::Died,
            is_closed: true,
            wants_reboot: false,
            is_other_boot: false,
            at_s: 0.0,
            running: BTreeMap::new(),
            ladders: BTreeMap::new(),
        }
    }

    #[test]
    fn a_run_that_cannot_be_read_hides_no_other() {
        let unreadable = |run: &RunId| Failed::new(Exit::StageFailed, format!("{run} is damaged"));
        let runs = [5, 4, 3, 2, 1].map(run);
        let command = |of: &RunId| match of {
            of if *of == run(5) => Err(unreadable(of)),
            of if *of == run(4) => Ok(json!(WARM_UP)),
            of if *of == run(3) => Ok(told("torn")),
            _ => Ok(told("p")),
        };
        let opened = |of: &RunId| match of {
            of if *of == run(3) => Err(unreadable(of)),
            _ => Ok(Some(open("p"))),
        };
        let Unfinished { open, unread } = newest_of_each(runs.iter(), command, opened);
        let open: Vec<_> = open.into_iter().map(|(run, _, open)| (run, open.pipeline)).collect();
        assert_eq!(open, [(run(2), "p".to_owned())]);
        let unread: Vec<_> = unread.iter().map(ToString::to_string).collect();
        assert_eq!(unread, [3, 5].map(|n| format!("{} is damaged", run(n))));
    }
}
