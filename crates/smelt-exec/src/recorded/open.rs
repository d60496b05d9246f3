//! Reads of a journal what a run that did not end leaves to the next: what it was told to do, and how
//! far the ladders of its stages were climbed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;
use smelt_plan::{Digest, Earlier, FailureClass, Rung};

use super::{Begin, Death, End, Ended, FORMAT, Record, Start};
use crate::report::{RunReport, RunStatus};

/// What a run that did not end leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Open {
    /// The pipeline's name.
    pub pipeline: String,
    /// What it was told, as its caller wrote it; null where it did not.
    pub command: Value,
    /// How it ended, where it was not for a reboot.
    pub death: Death,
    /// Whether its journal says how it ended already.
    pub is_closed: bool,
    /// Whether it ended in order, for the board to be rebooted.
    pub wants_reboot: bool,
    /// Whether this is another boot than the one it ran in.
    pub is_other_boot: bool,
    /// Seconds from its begin to its last record.
    pub at_s: f64,
    /// The stages that ran when it died, by name.
    pub running: BTreeMap<String, Started>,
    /// What counts of the stages that were not sealed, by content key, with their names.
    pub ladders: BTreeMap<Digest, (String, Earlier)>,
}

/// An attempt that was under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Which attempt, from 1.
    pub n: u32,
    /// The stage's content key.
    pub key: Digest,
    /// The rungs that were climbed for it.
    pub rungs: BTreeSet<Rung>,
}

/// What the run leaves, if it did not end, or ended for a reboot; `boot` is the name of this boot.
pub fn open(records: &[Value], boot: &str) -> Option<Open> {
    let (first, rest) = records.split_first()?;
    let begin = Begin::deserialize(first.get("detail")?).ok()?;
    if begin.format != Some(FORMAT) {
        return None;
    }
    let mut open = Open {
        pipeline: begin.pipeline,
        command: begin.command,
        death: Death::between(&begin.boot, boot),
        is_closed: false,
        wants_reboot: false,
        is_other_boot: !begin.boot.is_empty() && begin.boot != boot,
        at_s: 0.0,
        running: BTreeMap::new(),
        ladders: BTreeMap::new(),
    };
    for record in rest {
        let Record { event, at_s, detail } = Record::deserialize(record).ok()?;
        open.at_s = at_s;
        match event.as_str() {
            "start" => open.start(Start::deserialize(detail).ok()?),
            "ended" => open.ended(&Ended::deserialize(detail).ok()?),
            "closed" => {
                open.death = End::deserialize(detail).ok()?.how;
                open.is_closed = true;
            }
            "forgotten" => return None,
            "end" => {
                let end = RunReport::deserialize(detail).ok()?;
                open.wants_reboot = end.status == RunStatus::Rebooting;
                if !open.wants_reboot {
                    return None;
                }
            }
            _ => {}
        }
    }
    open.count_what_ran();
    Some(open)
}

impl Open {
    fn start(&mut self, start: Start) {
        let Start { stage, n, key, rungs, .. } = start;
        self.running.insert(stage, Started { n, key, rungs });
    }

    fn ended(&mut self, ended: &Ended) {
        let Some(started) = self.running.remove(&ended.stage) else { return };
        match ended.attempt.class {
            Some(class) if ended.attempt.outcome == "failed" => {
                self.count(ended.stage.clone(), started, class);
            }
            _ if ended.attempt.outcome == "sealed" => drop(self.ladders.remove(&started.key)),
            // The user stopped it: what failed before still counts.
            _ => {}
        }
    }

    fn count(&mut self, stage: String, started: Started, class: FailureClass) {
        let Started { n, key, mut rungs } = started;
        if let Some((_, before)) = self.ladders.get(&key) {
            rungs.extend(before.used.iter().copied());
        }
        let earlier = Earlier { attempts: n, class, used: rungs, rebooted: false };
        self.ladders.insert(key, (stage, earlier));
    }

    /// An attempt under which the board went down counts; one whose supervisor was killed does not.
    fn count_what_ran(&mut self) {
        if self.death == Death::BoardReset {
            for (stage, started) in self.running.clone() {
                self.count(stage, started, FailureClass::BoardReset);
            }
        }
        if self.wants_reboot {
            self.ladders.values_mut().for_each(|(_, earlier)| earlier.rebooted = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::AttemptReport;

    fn begin() -> Value {
        json!({ "event": "begin", "at_s": 0.0, "detail":
            { "format": FORMAT, "pipeline": "p", "boot": "a", "command": ["c"] } })
    }

    fn start(stage: &str, n: u32, rungs: &[Rung]) -> Value {
        let key = Digest::of(stage.as_bytes());
        json!({ "event": "start", "at_s": 1.0, "detail": { "stage": stage, "kind": "command",
            "n": n, "key": key, "changed": null, "rungs": rungs, "log": "l" } })
    }

    fn ended(stage: &str, n: u32, class: Option<FailureClass>) -> Value {
        let outcome = if class.is_some() { "failed" } else { "sealed" }.to_owned();
        let attempt = AttemptReport { n, outcome, class, ..AttemptReport::default() };
        let curve = smelt_watch::Curve::default();
        json!({ "event": "ended", "at_s": 2.0, "detail":
            { "stage": stage, "attempt": attempt, "curve": curve } })
    }

    fn end(status: &str) -> Value {
        json!({ "event": "end", "at_s": 3.0, "detail": { "run": "r", "pipeline": "p",
            "status": status, "wall_s": 3.0, "first_failure": null } })
    }

    /// `stage attempts class rungs` of each ladder.
    fn ladders(records: &[Value], boot: &str) -> Vec<String> {
        let open = open(records, boot).expect("it did not end");
        let text = |(stage, earlier): &(String, Earlier)| {
            let used: Vec<_> = earlier.used.iter().map(|rung| rung.name()).collect();
            let (n, class) = (earlier.attempts, earlier.class.name());
            format!("{stage} {n} {class} {}", used.join("+"))
        };
        let mut all: Vec<_> = open.ladders.values().map(text).collect();
        all.sort();
        all
    }

    #[test]
    fn what_failed_counts_and_what_was_sealed_does_not() {
        let oom = Some(FailureClass::OomKilled);
        let records = [
            begin(),
            start("a", 1, &[]),
            ended("a", 1, None),
            start("b", 1, &[]),
            ended("b", 1, oom),
            start("b", 2, &[Rung::WarmUp, Rung::Settle]),
        ];
        assert_eq!(ladders(&records, "a"), ["b 1 oom-killed "], "only smelt was killed");
        assert_eq!(ladders(&records, "b"), ["b 2 board-reset settle+warm-up"]);
        let more = [&records[..], &[ended("b", 2, oom), start("b", 3, &[Rung::Settle])]].concat();
        assert_eq!(ladders(&more, "a"), ["b 2 oom-killed settle+warm-up"]);
        let sealed = [&more[..], &[ended("b", 3, None)]].concat();
        assert_eq!(ladders(&sealed, "b"), [""; 0]);
    }

    #[test]
    fn a_run_that_ended_leaves_nothing_unless_it_waits_for_a_reboot() {
        let records = |status: &str| {
            let class = Some(FailureClass::DeviceMemory);
            vec![begin(), start("a", 1, &[]), ended("a", 1, class), end(status)]
        };
        assert_eq!(open(&records("failed"), "a"), None);
        assert_eq!(open(&records("interrupted"), "b"), None);
        let waits = open(&records("rebooting"), "b").unwrap();
        assert!(waits.wants_reboot && waits.is_other_boot);
        let (_, earlier) = waits.ladders.values().next().unwrap();
        assert!(earlier.rebooted && earlier.attempts == 1);
        assert_eq!(waits.command, json!(["c"]));
    }

    #[test]
    fn what_was_closed_stays_so() {
        let close = |how: &str| json!({ "event": "closed", "at_s": 1.0, "detail": { "how": how } });
        let records = |how: &str| vec![begin(), start("a", 1, &[]), close(how)];
        assert!(ladders(&records("died"), "c").is_empty());
        assert_eq!(ladders(&records("board-reset"), "c"), ["a 1 board-reset "]);
        assert!(open(&records("died"), "c").unwrap().is_closed);
    }

    #[test]
    fn what_cannot_be_read_leaves_nothing() {
        assert_eq!(open(&[], "a"), None);
        assert_eq!(open(&[json!({})], "a"), None);
        assert_eq!(open(&[begin(), json!([])], "a"), None);
    }
}
