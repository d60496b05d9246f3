//! Puts what a run tells into JSON lines, for programs that show a run.
//!
//! A line is what a journal's record is: what happened, when, and what is to be said of it.  `end` comes last and has the
//! document of `run --json`.  Plain functions over data.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use smelt_exec::{Progress, RunReport};
use smelt_plan::{Plan, StageId};

use crate::course::Course;

/// How often a program hears of a stage that runs: stages are looked at ten times a second.
const RUNNING_PERIOD: Duration = Duration::from_millis(500);

/// What was told so far.
#[derive(Default)]
pub(crate) struct Events {
    /// When somebody last heard of a stage that runs.
    told: HashMap<StageId, Duration>,
}

impl Events {
    /// The line of what happened at `at`, after `course` heard of it; nothing of what was told a moment ago.
    pub(crate) fn line(
        &mut self,
        plan: &Plan,
        course: &Course,
        progress: &Progress<'_>,
        at: Duration,
    ) -> Option<Value> {
        if let Progress::Running { stage, .. } = progress {
            let is_early = |told: &Duration| at < *told + RUNNING_PERIOD;
            if self.told.get(stage).is_some_and(is_early) {
                return None;
            }
            self.told.insert(*stage, at);
            return Some(record("running", at, course.as_json(*stage)));
        }
        let (event, detail) = told(plan, progress);
        Some(record(event, at, detail))
    }
}

/// The last line.
pub(crate) fn end(report: &RunReport) -> Value {
    json!({ "event": "end", "at_s": report.wall_s, "detail": report })
}

fn record(event: &str, at: Duration, detail: Value) -> Value {
    json!({ "event": event, "at_s": at.as_secs_f64(), "detail": detail })
}

/// What happened in a word, and what is to be said of it.
fn told(plan: &Plan, progress: &Progress<'_>) -> (&'static str, Value) {
    let name = |stage: &StageId| plan.stage(*stage).name.to_string();
    let of = |stage: &StageId| json!({ "stage": name(stage) });
    let why = |stage: &StageId, why: &str| json!({ "stage": name(stage), "why": why });
    match progress {
        Progress::Hit(stage) => ("hit", of(stage)),
        Progress::Started { stage, attempt, changed, forecast } => (
            "start",
            json!({
                "stage": name(stage), "kind": plan.stage(*stage).kind, "n": attempt,
                "changed": changed, "forecast": forecast,
            }),
        ),
        // It is told by what is known of it besides.
        Progress::Running { stage, .. } => ("running", of(stage)),
        Progress::Ended(stage, attempt) => {
            ("ended", json!({ "stage": name(stage), "attempt": attempt }))
        }
        Progress::Held(stage) => ("held", of(stage)),
        Progress::Elsewhere(stage, line) => ("elsewhere", why(stage, line)),
        Progress::Queued(stage, what) => ("queued", why(stage, what)),
        Progress::TokensLocked(what) => ("tokens-locked", json!({ "why": what })),
        Progress::LendsAlone(what) => ("lends-alone", json!({ "why": what })),
        Progress::Crowded(stage, forecast, room, servers) => (
            "crowded",
            json!({
                "stage": name(stage), "forecast": forecast,
                "total_bytes": room.total_bytes, "free_bytes": room.free_bytes(),
                "why": servers,
            }),
        ),
        Progress::Parked(stage) => ("parked", of(stage)),
        Progress::Resumed(stage) => ("resumed", of(stage)),
        Progress::Damaged(stage, what) => ("damaged", why(stage, what)),
        Progress::Changed(stage, what) => ("changed", why(stage, what)),
        Progress::Stopping => ("stopping", json!({})),
    }
}

#[cfg(test)]
mod tests {
    use smelt_plan::Pipeline;

    use super::*;
    use crate::pins;

    fn plan() -> Plan {
        let text = "smelt = 1\nname = \"p\"\n[stage.a]\nkind = \"command\"\nargv = [\"true\"]\noutputs = [\"o\"]\n";
        let pipeline = Pipeline::parse("p.toml", text, &Default::default()).unwrap();
        Plan::build(&pipeline, &pins::none(&pipeline)).unwrap()
    }

    #[test]
    fn lines_are_records_and_what_runs_is_told_at_a_pace() {
        let plan = plan();
        let a = plan.find("a").unwrap();
        let mut course = Course::new(&plan, &plan.wanted(&[]), &[], 1);
        let mut events = Events::default();
        let mut hear = |at_ms, progress: &Progress<'_>| {
            course.hear(progress);
            events.line(&plan, &course, progress, Duration::from_millis(at_ms))
        };
        let started = Progress::Started { stage: a, attempt: 1, changed: None, forecast: None };
        let line = hear(500, &started).unwrap();
        assert_eq!((&line["event"], &line["at_s"]), (&json!("start"), &json!(0.5)));
        assert_eq!(line["detail"]["stage"], "a", "{line}");
        let running = |last_line| Progress::Running {
            stage: a,
            elapsed: Duration::from_secs(1),
            rss_bytes: 5,
            held_bytes: 3,
            last_line,
        };
        let line = hear(600, &running("[1/4] packing")).unwrap();
        assert_eq!(line["detail"]["done"], 0.25, "{line}");
        assert_eq!(line["detail"]["doing"], "packing", "{line}");
        assert_eq!(line["detail"]["held_bytes"], 3, "{line}");
        assert!(hear(700, &running("[2/4] packing")).is_none(), "a moment later");
        assert_eq!(hear(1200, &running("[3/4] packing")).unwrap()["detail"]["done"], 0.75);
        assert_eq!(hear(1300, &Progress::Hit(a)).unwrap()["event"], "hit");
    }
}
