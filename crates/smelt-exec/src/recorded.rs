//! Reads a run's journal back: its records in, the report that the run printed out.
//!
//! A run that was killed has no last word; what its attempts wrote is then all there is.  Pure:
//! the caller reads the journal and says whether the run goes on.

mod open;

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smelt_plan::{Digest, FailureClass, Kind, Rung};
use smelt_watch::Curve;
use std::path::PathBuf;

pub use open::{Open, Started, open};

use crate::report::{AttemptReport, RunReport, RunStatus, StageReport, StageStatus};

/// The form of a journal's records, in its first one.
pub const FORMAT: u64 = 1;

/// The store takes records of 1 MiB; this leaves room for what is estimated.
const GROUP_BYTES_MAX: usize = 512 << 10;
/// The fields of a stage with their names, beside its texts of any length.
const STAGE_BYTES: usize = 320;

/// The stages in groups that each fit a record.
pub(crate) fn groups(stages: &[StageReport]) -> Vec<&[StageReport]> {
    let bytes = |stage: &StageReport| {
        let output = stage.output.as_ref().map_or(0, |path| path.as_os_str().len());
        // Letters may be escaped.
        STAGE_BYTES + 2 * (output + stage.message.as_ref().map_or(0, String::len))
    };
    let mut groups = Vec::new();
    let (mut begin, mut sum) = (0, 0);
    for (at, stage) in stages.iter().enumerate() {
        sum += bytes(stage);
        if sum > GROUP_BYTES_MAX && at > begin {
            groups.push(&stages[begin..at]);
            (begin, sum) = (at, bytes(stage));
        }
    }
    groups.extend((begin < stages.len()).then(|| &stages[begin..]));
    groups
}

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RecordError {
    /// It holds nothing: the run was killed before its first word, or the journal was.
    #[error("the journal of {run} is empty")]
    Empty {
        /// The run.
        run: String,
    },
    /// Another version of smelt wrote it.
    #[error(
        "the journal of {run} is of {}, and this smelt reads format {FORMAT}; read it with the smelt that wrote it",
        format.map_or("no known format".to_owned(), |format| format!("format {format}"))
    )]
    Format {
        /// The run.
        run: String,
        /// The number in its first record.
        format: Option<u64>,
    },
    /// What there is of it cannot be read.
    #[error("the journal of {run} is damaged, and nothing is left of it")]
    Damaged {
        /// The run.
        run: String,
    },
    /// A record says what no record says.
    #[error("the journal of {run} holds a record that is none: {what}")]
    Record {
        /// The run.
        run: String,
        /// What is wrong.
        what: String,
    },
}

#[derive(Deserialize)]
struct Record {
    event: String,
    at_s: f64,
    detail: Value,
}

#[derive(Deserialize)]
struct Begin {
    format: Option<u64>,
    pipeline: String,
    #[serde(default)]
    boot: String,
    #[serde(default)]
    command: Value,
}

/// How a run ended that has no last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Death {
    /// smelt was killed; its stages are not to blame.
    Died,
    /// The board went down: this is another boot.
    BoardReset,
}

impl Death {
    /// What became of a run that began in the boot `then`, found dead in the boot `now`.
    fn between(then: &str, now: &str) -> Self {
        if then.is_empty() || now.is_empty() || then == now { Self::Died } else { Self::BoardReset }
    }
}

#[derive(Deserialize)]
struct End {
    how: Death,
}

#[derive(Deserialize)]
struct Start {
    stage: String,
    kind: Kind,
    n: u32,
    key: Digest,
    changed: Option<String>,
    #[serde(default)]
    rungs: BTreeSet<Rung>,
    log: PathBuf,
    /// What its kind says, where the journal does not.
    #[serde(default)]
    reproducible: Option<bool>,
}

#[derive(Deserialize)]
struct Stages {
    stages: Vec<StageReport>,
}

#[derive(Deserialize)]
struct Ended {
    stage: String,
    attempt: AttemptReport,
    curve: Curve,
}

/// When the run began by the clock, in seconds of the Unix era, as its first record says.
pub fn began(first: &Value) -> Option<u64> {
    first["detail"]["clock_s"].as_u64()
}

/// The report of the run, from the records of its journal in order; `boot` is the name of this one.  Of a
/// journal that is damaged the rest is told.
pub fn report(
    run: &str,
    records: Vec<Value>,
    is_damaged: bool,
    is_running: bool,
    boot: &str,
) -> Result<RunReport, RecordError> {
    let mut records = records.into_iter().peekable();
    let Some(first) = records.peek() else {
        let run = run.to_owned();
        return Err(if is_damaged {
            RecordError::Damaged { run }
        } else {
            RecordError::Empty { run }
        });
    };
    let begin = first.get("detail").and_then(|detail| Begin::deserialize(detail).ok());
    let format = begin.as_ref().and_then(|begin| begin.format);
    let (pipeline, then) = match begin.filter(|_| format == Some(FORMAT)) {
        Some(Begin { pipeline, boot, .. }) => {
            records.next();
            (pipeline, boot)
        }
        // The first one is among those that are lost.
        None if is_damaged && format.is_none() => ("?".to_owned(), String::new()),
        None => return Err(RecordError::Format { run: run.to_owned(), format }),
    };
    let mut fold = Fold {
        run,
        wall_s: 0.0,
        stages: Vec::new(),
        places: BTreeMap::new(),
        all: Vec::new(),
        end: None,
        death: Death::between(&then, boot),
        is_again: false,
    };
    for record in records {
        match fold.take(record) {
            Err(_) if is_damaged => {}
            taken => taken?,
        }
    }
    Ok(RunReport { is_damaged, ..fold.report(pipeline, is_running) })
}

struct Fold<'a> {
    run: &'a str,
    wall_s: f64,
    /// The stages that had attempts, in the order of their first.
    stages: Vec<StageReport>,
    places: BTreeMap<String, usize>,
    /// Every stage as it stood at the end, without attempts.
    all: Vec<StageReport>,
    /// The run's last word, without stages.
    end: Option<RunReport>,
    /// How it ended, if it has no last word and does not go on.
    death: Death,
    /// It has built some stages once more, to compare them.
    is_again: bool,
}

impl Fold<'_> {
    fn take(&mut self, record: Value) -> Result<(), RecordError> {
        let Record { event, at_s, detail } = self.parse(record)?;
        self.wall_s = at_s;
        match event.as_str() {
            "start" => {
                let start = self.parse(detail)?;
                self.start(start, at_s);
            }
            "ended" => {
                let ended: Ended = self.parse(detail)?;
                self.ended(ended);
            }
            "stages" => {
                let stages: Stages = self.parse(detail)?;
                self.stages_stand(stages.stages);
            }
            "begin" => self.is_again = true,
            "end" => self.end = Some(self.parse(detail)?),
            "closed" => self.death = self.parse::<End>(detail)?.how,
            // Later versions may say more without changing what these say.
            _ => {}
        }
        Ok(())
    }

    /// A stage that was only checked stands as it came out of the check.
    fn stages_stand(&mut self, stages: Vec<StageReport>) {
        if !self.is_again {
            return self.all.extend(stages);
        }
        for stage in stages.into_iter().filter(|stage| stage.status != StageStatus::Hit) {
            if let Some(before) = self.all.iter_mut().find(|before| before.name == stage.name) {
                *before = stage;
            }
        }
    }

    fn parse<T: DeserializeOwned>(&self, value: Value) -> Result<T, RecordError> {
        serde_json::from_value(value).map_err(|error| RecordError::Record {
            run: self.run.to_owned(),
            what: error.to_string(),
        })
    }

    fn start(&mut self, start: Start, at_s: f64) {
        let Start { stage, kind, n, key, changed, log, rungs: _, reproducible } = start;
        let place = *self.places.entry(stage.clone()).or_insert_with(|| {
            self.stages.push(StageReport {
                name: stage,
                kind,
                status: StageStatus::Running,
                key: Some(key),
                digest: None,
                output: None,
                reproducible: reproducible.or(kind.is_reproducible()),
                class: None,
                message: None,
                attempts: Vec::new(),
            });
            self.stages.len() - 1
        });
        let attempt = AttemptReport { n, changed, log, began_s: at_s, ..AttemptReport::default() };
        let stage = &mut self.stages[place];
        stage.status = StageStatus::Running;
        stage.attempts.push(attempt);
    }

    /// What ended without a start is not known to have been.
    fn ended(&mut self, ended: Ended) {
        let Ended { stage, mut attempt, curve } = ended;
        let Some(&place) = self.places.get(&stage) else { return };
        let stage = &mut self.stages[place];
        stage.status = match attempt.outcome.as_str() {
            "sealed" => StageStatus::Sealed,
            "interrupted" => StageStatus::Interrupted,
            _ => StageStatus::Failed,
        };
        stage.message.clone_from(&attempt.message);
        if curve.is_sound() {
            attempt.curve = curve;
        }
        if let Some(last) = stage.attempts.last_mut().filter(|last| last.n == attempt.n) {
            *last = attempt;
        }
    }

    fn report(mut self, pipeline: String, is_running: bool) -> RunReport {
        let Some(mut end) = self.end.take() else { return self.unfinished(pipeline, is_running) };
        end.stages = std::mem::take(&mut self.all);
        for stage in &mut end.stages {
            if let Some(&place) = self.places.get(&stage.name) {
                stage.attempts = std::mem::take(&mut self.stages[place].attempts);
            }
        }
        end
    }

    /// A run without a last word goes on, or died.
    fn unfinished(self, pipeline: String, is_running: bool) -> RunReport {
        let (status, stage_status, outcome) = match is_running {
            true => (RunStatus::Running, StageStatus::Running, "running"),
            false => (RunStatus::Died, StageStatus::Interrupted, "died"),
        };
        let mut stages = self.stages;
        for stage in stages.iter_mut().filter(|stage| stage.status == StageStatus::Running) {
            stage.status = stage_status;
            if let Some(attempt) = stage.attempts.last_mut() {
                outcome.clone_into(&mut attempt.outcome);
                attempt.wall_s = self.wall_s - attempt.began_s;
                if !is_running && self.death == Death::BoardReset {
                    attempt.class = Some(FailureClass::BoardReset);
                    let message = "the board was reset while it ran".to_owned();
                    attempt.message = Some(message);
                }
            }
        }
        RunReport {
            run: self.run.to_owned(),
            pipeline,
            status,
            wall_s: self.wall_s,
            first_failure: None,
            not_written: None,
            is_damaged: false,
            stages,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn begin() -> Value {
        json!({ "event": "begin", "at_s": 0.0, "detail": { "format": FORMAT, "pipeline": "p", "method": "proc" } })
    }

    fn start(stage: &str, n: u32, at_s: f64) -> Value {
        let key = Digest::of(b"x");
        json!({ "event": "start", "at_s": at_s, "detail":
            { "stage": stage, "kind": "command", "n": n, "key": key, "changed": null, "log": "l" } })
    }

    fn ended(stage: &str, n: u32, outcome: &str, at_s: f64) -> Value {
        let attempt = AttemptReport {
            n,
            outcome: outcome.to_owned(),
            message: (outcome == "failed").then(|| "no".to_owned()),
            ..AttemptReport::default()
        };
        json!({ "event": "ended", "at_s": at_s, "detail":
            { "stage": stage, "attempt": attempt, "curve": { "at_ms": [1], "rss_kib": [2],
              "swap_kib": [0], "stalled_us": [0], "cma_free_kib": [0] } } })
    }

    fn statuses(report: &RunReport) -> Vec<String> {
        report.stages.iter().map(|s| format!("{} {}", s.name, s.status.name())).collect()
    }

    #[test]
    fn a_killed_run_keeps_what_its_attempts_said() {
        let records = vec![
            begin(),
            start("a", 1, 1.0),
            ended("a", 1, "sealed", 2.0),
            start("b", 1, 2.0),
            ended("b", 1, "failed", 3.0),
            start("b", 2, 3.0),
            start("c", 1, 5.5),
        ];
        let died = report("r", records.clone(), false, false, "b").unwrap();
        assert_eq!(died.status, RunStatus::Died);
        assert_eq!(statuses(&died), ["a sealed", "b interrupted", "c interrupted"]);
        let b = &died.stages[1];
        assert_eq!(b.attempts[0].outcome, "failed");
        assert_eq!((b.attempts[1].outcome.as_str(), b.attempts[1].wall_s), ("died", 2.5));
        assert_eq!(died.stages[0].attempts[0].curve.rss_kib, [2]);
        assert_eq!(b.attempts[1].class, None, "a kill of smelt is nobody's failure");
        let running = report("r", records, false, true, "b").unwrap();
        assert_eq!(running.status, RunStatus::Running);
        assert_eq!(statuses(&running), ["a sealed", "b running", "c running"]);
    }

    #[test]
    fn what_ran_in_another_boot_was_cut_off_by_a_reset() {
        let class = |records: Vec<Value>, boot: &str| {
            let report = report("r", records, false, false, boot).unwrap();
            report.stages[0].attempts[0].class
        };
        let mut begin = begin();
        begin["detail"]["boot"] = json!("a");
        let running = vec![begin, start("s", 1, 1.0)];
        assert_eq!(class(running.clone(), "a"), None);
        assert_eq!(class(running.clone(), "b"), Some(FailureClass::BoardReset));
        assert_eq!(class(running.clone(), ""), None, "a kernel that has no name for it");
        let closed = |how: &str| {
            let end = json!({ "event": "closed", "at_s": 1.0, "detail": { "how": how } });
            [running.clone(), vec![end]].concat()
        };
        assert_eq!(class(closed("died"), "b"), None, "it was found dead in its own boot");
        assert_eq!(class(closed("board-reset"), "a"), Some(FailureClass::BoardReset));
    }

    #[test]
    fn a_last_word_stands() {
        let end = json!({ "event": "end", "at_s": 4.0, "detail": {
            "run": "r", "pipeline": "p", "status": "ok", "wall_s": 4.0, "first_failure": null } });
        let stages = |stage: Value| json!({ "event": "stages", "at_s": 4.0, "detail": { "stages": [stage] } });
        let hit = stages(
            json!({ "name": "h", "kind": "source", "status": "hit", "key": null, "output": "/o", "message": null }),
        );
        let sealed = stages(
            json!({ "name": "a", "kind": "command", "status": "sealed", "key": null, "output": "/a", "message": null }),
        );
        let (start, ended) = (start("a", 1, 1.0), ended("a", 1, "sealed", 2.0));
        let records = vec![begin(), start, ended, hit, sealed, end];
        let report = report("r", records, false, false, "b").unwrap();
        assert_eq!(statuses(&report), ["h hit", "a sealed"]);
        assert_eq!(report.stages[1].attempts.len(), 1);
        assert_eq!(report.wall_s, 4.0);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let check = |records: Vec<Value>, words: &str| {
            let error = report("r", records, false, false, "b").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(vec![], "the journal of r is empty");
        check(vec![json!({ "event": "begin", "detail": { "pipeline": "p" } })], "no known format");
        let mut newer = begin();
        newer["detail"]["format"] = json!(2);
        check(vec![newer], "format 2");
        check(vec![begin(), json!([])], "a record that is none");
        check(
            vec![begin(), json!({ "event": "start", "at_s": 1.0, "detail": {} })],
            "missing field",
        );
    }

    #[test]
    fn groups_fit_their_records() {
        let stage = |at: usize| StageReport {
            class: None,
            name: format!("stage-{at}"),
            kind: Kind::EngineBuild,
            status: StageStatus::Interrupted,
            key: Some(Digest::of(b"x")),
            digest: None,
            reproducible: None,
            output: Some(PathBuf::from("\"".repeat(at * 7 % 4000))),
            message: Some("\\".repeat(at % 600)),
            attempts: Vec::new(),
        };
        for count in [0, 1, 5000] {
            let stages: Vec<_> = (0..count).map(stage).collect();
            let groups = groups(&stages);
            assert_eq!(groups.iter().map(|group| group.len()).sum::<usize>(), count);
            for group in groups {
                let text = serde_json::to_string(group).unwrap();
                assert!(!group.is_empty() && text.len() < 1 << 20, "{} bytes", text.len());
            }
        }
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let more = json!({ "event": "parked", "at_s": 1.0, "detail": {} });
        assert!(report("r", vec![begin(), more], false, false, "b").unwrap().stages.is_empty());
    }
}
