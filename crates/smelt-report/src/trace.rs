//! Writes a run as Chrome trace events, which Perfetto and chrome://tracing open.
//!
//! The format is the "Trace Event Format" document of the Chromium project: attempts are complete
//! events, in as few lanes as ran at once, and curves are counters.  Times are microseconds.

use serde_json::{Value, json};
use smelt_exec::{AttemptReport, RunReport, StageReport};
use smelt_watch::Curve;

/// All lanes belong to one process, the run.
const PID: u32 = 1;

/// The whole document.
pub fn events(report: &RunReport) -> Value {
    let mut spans: Vec<(&StageReport, &AttemptReport)> = report
        .stages
        .iter()
        .flat_map(|stage| stage.attempts.iter().map(move |attempt| (stage, attempt)))
        .collect();
    spans.sort_by(|a, b| a.1.began_s.total_cmp(&b.1.began_s));
    let times: Vec<(f64, f64)> =
        spans.iter().map(|(_, attempt)| (attempt.began_s, ended(attempt))).collect();
    let lanes = lanes(&times);
    let mut events = vec![named("process_name", 0, &report.pipeline)];
    let count = lanes.iter().max().map_or(0, |lane| lane + 1);
    events.extend((0..count).map(|lane| named("thread_name", lane, &format!("job {}", lane + 1))));
    for ((stage, attempt), lane) in spans.iter().zip(lanes) {
        events.push(span(stage, attempt, lane));
        events.extend(counters(&stage.name, attempt));
    }
    json!({
        "displayTimeUnit": "ms",
        "otherData": { "run": report.run, "pipeline": report.pipeline, "status": report.status },
        "traceEvents": events,
    })
}

fn ended(attempt: &AttemptReport) -> f64 {
    attempt.began_s + attempt.wall_s
}

/// For each span, in the order of their begins, the first lane that is free.
fn lanes(spans: &[(f64, f64)]) -> Vec<usize> {
    let mut free_at: Vec<f64> = Vec::new();
    let place = |&(began, ended): &(f64, f64)| {
        let lane = free_at.iter().position(|&free| free <= began).unwrap_or_else(|| {
            free_at.push(0.0);
            free_at.len() - 1
        });
        free_at[lane] = ended;
        lane
    };
    spans.iter().map(place).collect()
}

fn named(what: &str, lane: usize, name: &str) -> Value {
    json!({ "ph": "M", "pid": PID, "tid": lane, "name": what, "args": { "name": name } })
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).max(0.0) as u64
}

fn span(stage: &StageReport, attempt: &AttemptReport, lane: usize) -> Value {
    json!({
        "ph": "X", "pid": PID, "tid": lane, "cat": stage.kind, "name": stage.name,
        "ts": micros(attempt.began_s), "dur": micros(attempt.wall_s),
        "args": {
            "attempt": attempt.n, "outcome": attempt.outcome, "class": attempt.class,
            "message": attempt.message, "changed": attempt.changed, "cpu_s": attempt.cpu_s,
            "peak_rss_bytes": attempt.peaks.peak_rss_bytes,
            "swap_peak_bytes": attempt.peaks.swap_peak_bytes, "log": attempt.log,
        },
    })
}

/// A counter of memory for each stage, which ends at zero; the others are the machine's.
fn counters(stage: &str, attempt: &AttemptReport) -> Vec<Value> {
    let Curve { at_ms, rss_kib, swap_kib, cma_free_kib, .. } = &attempt.curve;
    let mut events = Vec::new();
    let mut say = |at: u64, name: &str, args: Value| {
        events.push(json!({ "ph": "C", "pid": PID, "name": name, "ts": at, "args": args }));
    };
    let share = attempt.curve.stalled_share();
    let begin = micros(attempt.began_s);
    let memory = format!("memory of {stage}, MiB");
    for at in 0..attempt.curve.len() {
        let time = begin + at_ms[at] * 1000;
        say(time, &memory, json!({ "rss": mib(rss_kib[at]), "swap": mib(swap_kib[at]) }));
        say(time, "stalled, %", json!({ "some": (share[at] * 1000.0).round() / 10.0 }));
        if cma_free_kib[at] > 0 {
            say(time, "CmaFree, MiB", json!({ "free": mib(cma_free_kib[at]) }));
        }
    }
    if !attempt.curve.is_empty() {
        say(micros(ended(attempt)), &memory, json!({ "rss": 0, "swap": 0 }));
    }
    events
}

fn mib(kib: u64) -> f64 {
    (kib as f64 / 102.4).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spans: &[(f64, f64)], expect: &[usize]) {
        assert_eq!(lanes(spans), expect);
    }

    #[test]
    fn a_lane_is_used_again_when_it_is_free() {
        check(&[], &[]);
        check(&[(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (2.5, 5.0), (3.0, 4.0)], &[0, 1, 0, 2, 1]);
    }
}
