//! What a run did, in the shape `run --json` prints and the journal keeps.  Fields may be added,
//! never renamed.

use std::path::PathBuf;

use serde::Serialize;
use smelt_plan::{Digest, FailureClass, Kind};
use smelt_watch::Peaks;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The run's id.
    pub run: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// How it ended.
    pub status: RunStatus,
    /// The failure that came first, which gives the run its exit code.
    pub first_failure: Option<FirstFailure>,
    /// Each stage, in the order of the plan.
    pub stages: Vec<StageReport>,
}

/// The failure that came first.
#[derive(Debug, Clone, Serialize)]
pub struct FirstFailure {
    /// Which stage.
    pub stage: String,
    /// The exit code of a stage of our own.
    pub exit: Option<i32>,
    /// One line on why.
    pub message: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunStatus {
    /// Every wanted stage has its output.
    Ok,
    /// A stage failed.
    Failed,
    /// The user stopped it.
    Interrupted,
    /// Another run holds a key, and the user did not want to wait.
    Held,
}

/// One stage of a run.
#[derive(Debug, Clone, Serialize)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: Kind,
    /// How it stands at the end.
    pub status: StageStatus,
    /// Its content key, where it became known.
    pub key: Option<Digest>,
    /// The digest of its output, where it has one.
    pub digest: Option<Digest>,
    /// Where its output lies, where it has one.
    pub output: Option<PathBuf>,
    /// Whether the same inputs give the same bytes: as its kind promises or, after `--check`, as it was
    /// found; `None` for a program nobody has checked.
    pub reproducible: Option<bool>,
    /// The one line on why it failed.
    pub message: Option<String>,
    /// The attempts of this run; none for a hit.
    pub attempts: Vec<AttemptReport>,
}

/// How a stage stands at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageStatus {
    /// The store had its output.
    Hit,
    /// It was built and its output is permanent.
    Sealed,
    /// It was given up.
    Failed,
    /// It was not started.
    Skipped,
    /// It was stopped by the user.
    Interrupted,
}

impl StageStatus {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Sealed => "sealed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Interrupted => "interrupted",
        }
    }
}

/// One attempt.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AttemptReport {
    /// From 1.
    pub n: u32,
    /// `sealed`, `failed` or `interrupted`.
    pub outcome: String,
    /// The failure class, where it failed.
    pub class: Option<FailureClass>,
    /// Its exit code, where it exited.
    pub exit: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// The one line on why it failed.
    pub message: Option<String>,
    /// What differed from attempt 1.
    pub changed: Option<String>,
    /// How memory was measured: `proc` is sampling of `/proc`.
    pub method: String,
    /// Wall seconds, sealing included.
    pub wall_s: f64,
    /// CPU seconds of its processes.
    pub cpu_s: f64,
    /// Peaks and lows while it ran.
    #[serde(flatten)]
    pub peaks: Peaks,
    /// Page cache peak; only a cgroup can tell.
    pub page_cache_peak_bytes: Option<u64>,
    /// Out-of-memory kills on this machine while it ran.
    pub oom_kills: u64,
    /// Processes that outlived it and were killed.
    pub leftovers: u32,
    /// Its log.
    pub log: PathBuf,
    /// Why the log is not whole, where it is not.
    pub log_error: Option<String>,
}
