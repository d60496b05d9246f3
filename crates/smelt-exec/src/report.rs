//! What a run did, in the shape that `run --json` and `report --json` print.  Fields may be added,
//! never renamed.
//!
//! Plain data: [`crate::recorded`] makes it from a journal, the loop of a run as it goes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use smelt_plan::{Digest, FailureClass, Kind, Rung};
use smelt_store::LeftOut;
use smelt_watch::{Counters, Curve, KernelEvent, Peaks, Short};
use std::collections::BTreeMap;

use crate::condition::Condition;
use crate::confine::{Network, Way, Writes};

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunReport {
    /// The run's id.
    pub run: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// How it ended.
    pub status: RunStatus,
    /// Wall seconds from its begin to its end, or to the last that is known of it.
    pub wall_s: f64,
    /// The failure that came first, which gives the run its exit code.
    pub first_failure: Option<FirstFailure>,
    /// What smelt itself could not write, where that was so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_written: Option<String>,
    /// Its journal is damaged: this is what is left of it.
    #[serde(default, rename = "journal_damaged", skip_serializing_if = "std::ops::Not::not")]
    pub is_damaged: bool,
    /// Each stage, in the order of the plan.
    #[serde(default)]
    pub stages: Vec<StageReport>,
}

/// The failure that came first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FirstFailure {
    /// Which stage.
    pub stage: String,
    /// The exit code of a stage of our own.
    pub exit: Option<i32>,
    /// One line on why.
    pub message: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A stage wants the board rebooted before its next attempt; the next run goes on with it.
    Rebooting,
    /// It goes on.
    Running,
    /// It was killed, or the machine went down: it neither goes on nor did it end.
    Died,
}

impl RunStatus {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Held => "held",
            Self::Rebooting => "rebooting",
            Self::Running => "running",
            Self::Died => "died",
        }
    }
}

/// One stage of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// The failure class, where it failed; one that could not begin has no attempt to say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FailureClass>,
    /// The one line on why it failed.
    pub message: Option<String>,
    /// The attempts of this run; none for a hit.
    #[serde(default)]
    pub attempts: Vec<AttemptReport>,
}

/// How a stage stands at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// It was stopped by the user, or its run died.
    Interrupted,
    /// It goes on.
    Running,
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
            Self::Running => "running",
        }
    }
}

/// One attempt.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptReport {
    /// From 1.
    pub n: u32,
    /// `sealed`, `failed` or `interrupted`; `running` or `died` where nothing else is known.
    pub outcome: String,
    /// Seconds from the run's begin to its start.
    pub began_s: f64,
    /// The failure class, where it failed.
    pub class: Option<FailureClass>,
    /// Its exit code, where it exited.
    pub exit: Option<i32>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// The one line on why it failed.
    pub message: Option<String>,
    /// The signature of a known failure that its log holds, where it failed.
    pub signature: Option<String>,
    /// Bytes that were asked for and refused, where the log tells.
    pub refused_bytes: Option<u64>,
    /// What differed from attempt 1.
    pub changed: Option<String>,
    /// What was changed before it, rung by rung.
    pub rungs: Vec<RungReport>,
    /// How the machine stood before anything was changed, where that was looked at.
    pub before: Option<Condition>,
    /// How it stood as the attempt started, where something was changed.
    pub prepared: Option<Condition>,
    /// How it stood when everything was over and put back.
    pub after: Option<Condition>,
    /// How memory was measured: by samples of `/proc` (`proc`), or by a control group besides
    /// (`cgroup-v1`, `cgroup-v2`).
    pub method: String,
    /// What each figure was measured with: `proc`, `cgroup`, `taskstats` (the kernel told of every
    /// end of a task), `rusage` (its account of ended processes) or `machine` (it is of the whole
    /// machine meanwhile).
    pub methods: BTreeMap<String, String>,
    /// Wall seconds, sealing included.
    pub wall_s: f64,
    /// CPU seconds of its processes.
    pub cpu_s: f64,
    /// Peaks and lows while it ran.
    #[serde(flatten)]
    pub peaks: Peaks,
    /// What happened while it ran.
    #[serde(flatten)]
    pub counters: Counters,
    /// The course of its memory.  The journal keeps it, JSON reports leave it out: it is drawn.
    #[serde(skip)]
    pub curve: Curve,
    /// What the kernel wrote into its log meanwhile that may have ended it; of the whole machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernel_events: Vec<KernelEvent>,
    /// Processes that outlived it and were killed.
    pub leftovers: u32,
    /// Seconds that it waited for memory before it began.
    pub waited_s: f64,
    /// Seconds that it was halted, for others to come to an end.
    pub parked_s: f64,
    /// Seconds that nothing of it could run for want of memory, where its group counts them.
    pub starved_s: f64,
    /// By what means its `limits.memory` was held, where it has one.
    pub limit: Option<LimitHeld>,
    /// What it left in its directory besides the outputs it declares, which was not sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// A disk that was found short meanwhile, or when it had ended.
    #[serde(rename = "disk_short", skip_serializing_if = "Option::is_none")]
    pub short: Option<Short>,
    /// How its writes were held to what it declares, where it was started.
    pub writes: Option<Writes>,
    /// By what, where they were confined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confined_by: Option<Way>,
    /// How a strict one, which reads no more than it declares, was held to no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Its log.
    pub log: PathBuf,
    /// Why the log is not whole, where it is not.
    pub log_error: Option<String>,
}

/// By what means a memory limit is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitHeld {
    /// A control group: the kernel swaps out, drops caches, and kills where neither helps.
    Kernel,
    /// Samples, and an end to whoever is found above it.
    Sampling,
}

/// A rung of the ladder that was climbed for an attempt, or could not be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RungReport {
    /// Which.
    pub rung: Rung,
    /// Whether it was done.
    pub done: bool,
    /// What was done, or why it was not.
    pub what: String,
    /// Seconds it took.
    pub wall_s: f64,
}
