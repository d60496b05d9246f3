//! Compares retries with a rung of the ladder and without it: did the warm-up help?
//!
//! Only retries count, by the class of the failure that they answer, since first attempts fail less
//! often than those after a failure whatever is done.  An observation and no experiment: rungs are
//! climbed together, so one may have helped in another's name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;
use smelt_exec::{AttemptReport, RunReport, StageReport};
use smelt_plan::{Digest, FailureClass, Rung};

/// The quantile of the normal distribution for intervals that hold the rate in 95 of 100 cases.
const Z: f64 = 1.959_964;

/// How often something was tried, and how often it led to an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// How often it was tried.
    pub tried: u32,
    /// How often that led to an output.
    pub sealed: u32,
}

impl Count {
    fn add(&mut self, sealed: bool) {
        self.tried += 1;
        self.sealed += u32::from(sealed);
    }

    /// `None` where nothing was tried.
    pub fn rate(self) -> Option<f64> {
        (self.tried > 0).then(|| f64::from(self.sealed) / f64::from(self.tried))
    }

    /// Wilson's interval (JASA 22, 1927), which holds for few tries and for rates of 0 and 1, too.
    pub fn interval(self) -> (f64, f64) {
        let Some(rate) = self.rate() else { return (0.0, 1.0) };
        let n = f64::from(self.tried);
        let weight = 1.0 + Z * Z / n;
        let middle = (rate + Z * Z / (2.0 * n)) / weight;
        let half = Z / weight * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt();
        ((middle - half).max(0.0), (middle + half).min(1.0))
    }
}

/// `7 of 9 (45 to 94 %)`.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried == 0 {
            return f.write_str("-");
        }
        let (low, high) = self.interval();
        let Self { tried, sealed } = self;
        write!(f, "{sealed} of {tried} ({:.0} to {:.0} %)", low * 100.0, high * 100.0)
    }
}

/// Retries of one stage after one class of failure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    pipeline: String,
    stage: String,
    class: &'static str,
}

/// One rung for one stage and class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RungRow {
    /// Of which pipeline.
    pub pipeline: String,
    /// Its name there.
    pub stage: String,
    /// The failure that retries answered.
    pub class: &'static str,
    /// What retries did or left.
    pub rung: Rung,
    /// Retries with it.
    pub with: Count,
    /// Retries without it.
    pub without: Count,
}

/// One side of a row as `--json` has it.
#[derive(Debug, Serialize)]
pub struct Side {
    tried: u32,
    sealed: u32,
    rate: Option<f64>,
    low: f64,
    high: f64,
}

impl From<Count> for Side {
    fn from(count: Count) -> Self {
        let (low, high) = count.interval();
        Self { tried: count.tried, sealed: count.sealed, rate: count.rate(), low, high }
    }
}

/// A retry: what was done before it, and whether it led to an output.
struct Retry {
    rungs: Vec<Rung>,
    sealed: bool,
}

/// Gathers runs, oldest first.
#[derive(Default)]
pub struct Arms {
    groups: BTreeMap<Group, Vec<Retry>>,
    /// How the last attempt at a key failed: a run may go on with what another began.
    failed: HashMap<Digest, FailureClass>,
}

impl Arms {
    /// Counts the retries of one run.
    pub fn take(&mut self, report: &RunReport) {
        for stage in &report.stages {
            for attempt in &stage.attempts {
                self.take_attempt(&report.pipeline, stage, attempt);
            }
        }
    }

    /// What the user stopped, or died with smelt, says nothing.
    fn take_attempt(&mut self, pipeline: &str, stage: &StageReport, attempt: &AttemptReport) {
        let sealed = attempt.outcome == "sealed";
        if !sealed && attempt.class.is_none() {
            return;
        }
        let Some(key) = stage.key else { return };
        let before = self.failed.remove(&key);
        if let Some(class) = attempt.class {
            self.failed.insert(key, class);
        }
        if let (Some(class), 2..) = (before, attempt.n) {
            let group = Group {
                pipeline: pipeline.to_owned(),
                stage: stage.name.clone(),
                class: class.name(),
            };
            let done = attempt.rungs.iter().filter(|rung| rung.done).map(|rung| rung.rung);
            let rungs = done.collect();
            self.groups.entry(group).or_default().push(Retry { rungs, sealed });
        }
    }

    /// A row for each rung that was climbed at all, by stage and class.
    pub fn rows(&self) -> Vec<RungRow> {
        let mut rows = Vec::new();
        for (Group { pipeline, stage, class }, retries) in &self.groups {
            for rung in Rung::ALL {
                let (mut with, mut without) = (Count::default(), Count::default());
                for retry in retries {
                    let side = if retry.rungs.contains(&rung) { &mut with } else { &mut without };
                    side.add(retry.sealed);
                }
                if with.tried > 0 {
                    let (pipeline, stage) = (pipeline.clone(), stage.clone());
                    rows.push(RungRow { pipeline, stage, class, rung, with, without });
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use smelt_exec::{RunStatus, RungReport, StageStatus};
    use smelt_plan::Kind;

    use super::*;

    fn attempt(n: u32, class: Option<FailureClass>, rungs: &[(Rung, bool)]) -> AttemptReport {
        let outcome = if class.is_some() { "failed" } else { "sealed" }.to_owned();
        let rung = |&(rung, done)| RungReport { rung, done, what: String::new(), wall_s: 0.0 };
        let rungs = rungs.iter().map(rung).collect();
        AttemptReport { n, outcome, class, rungs, ..AttemptReport::default() }
    }

    fn run(attempts: Vec<AttemptReport>) -> RunReport {
        let stage = StageReport {
            name: "s".to_owned(),
            kind: Kind::Command,
            status: StageStatus::Sealed,
            key: Some(Digest::of(b"k")),
            digest: None,
            output: None,
            reproducible: None,
            class: None,
            message: None,
            attempts,
        };
        RunReport {
            run: "r".to_owned(),
            pipeline: "p".to_owned(),
            status: RunStatus::Ok,
            wall_s: 0.0,
            first_failure: None,
            not_written: None,
            is_damaged: false,
            stages: vec![stage],
        }
    }

    fn rows(runs: Vec<RunReport>) -> Vec<String> {
        let mut arms = Arms::default();
        runs.iter().for_each(|run| arms.take(run));
        let side = |count: Count| format!("{}/{}", count.sealed, count.tried);
        let text = |row: RungRow| {
            let (with, without) = (side(row.with), side(row.without));
            format!("{} {} {with} {without}", row.class, row.rung.name())
        };
        arms.rows().into_iter().map(text).collect()
    }

    #[test]
    fn retries_are_compared_by_what_they_answer() {
        let oom = Some(FailureClass::OomKilled);
        let device = Some(FailureClass::DeviceMemory);
        let (warm, cold) = (&[(Rung::WarmUp, true)][..], &[(Rung::WarmUp, false)][..]);
        let runs = vec![
            run(vec![attempt(1, device, &[]), attempt(2, None, warm)]),
            run(vec![attempt(1, device, &[]), attempt(2, device, cold), attempt(3, None, &[])]),
            run(vec![attempt(1, oom, &[]), attempt(2, oom, warm)]),
            // First attempts that end well are no retries.
            run(vec![attempt(1, None, &[])]),
        ];
        assert_eq!(rows(runs), ["device-memory warm-up 1/1 1/2", "oom-killed warm-up 0/1 0/0"]);
    }

    #[test]
    fn a_retry_may_be_another_runs() {
        let device = Some(FailureClass::DeviceMemory);
        let runs = vec![
            run(vec![attempt(1, device, &[])]),
            run(vec![attempt(2, None, &[(Rung::Reboot, true)])]),
        ];
        assert_eq!(rows(runs), ["device-memory reboot 1/1 0/0"]);
        let anew = vec![run(vec![attempt(1, device, &[])]), run(vec![attempt(1, None, &[])])];
        assert_eq!(rows(anew), [""; 0], "begun anew is no retry");
    }

    #[test]
    fn intervals_are_wilsons() {
        // Computed by hand from the formula, in Python, to four digits.
        let check = |sealed, tried, low: f64, high: f64| {
            let (found_low, found_high) = Count { tried, sealed }.interval();
            assert!((found_low - low).abs() < 1e-4, "{found_low}");
            assert!((found_high - high).abs() < 1e-4, "{found_high}");
        };
        check(8, 10, 0.4902, 0.9433);
        check(0, 10, 0.0, 0.2775);
        check(3, 3, 0.4385, 1.0);
        check(0, 0, 0.0, 1.0);
    }
}
