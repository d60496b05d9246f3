//! Tells what was measured: Markdown on standard output, JSON and the same Markdown in files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::STEADY_STREAMS;
use crate::bench::workflow::Check;

/// What is promised: tokens a second of the rival's, at least.
const SPEED_MIN: f64 = 1.15;
/// The 99th percentile to the first text, of the rival's, at most.
const TTFT_MAX: f64 = 0.7;
/// What serving adds to a token of the engine's, in milliseconds, at most.
const OVERHEAD_MS_MAX: f64 = 0.2;
/// What a thousand idle clients take, in MiB, at most.
const IDLE_MIB_MAX: f64 = 50.0;

/// One run of one side, or the medians of some.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    tokens_per_s: f64,
    ttft_ms: f64,
    pub(super) tpot_ms: f64,
    rss_mib: f64,
}

impl Figures {
    /// Of a row of the client's document, in which nothing failed.
    pub(super) fn of(row: &Value) -> Result<Self> {
        whole(row)?;
        let number = |value: &Value| value.as_f64().with_context(|| format!("no figure in {row}"));
        Ok(Self {
            tokens_per_s: number(&row["tokens_per_s"]["median"])?,
            ttft_ms: number(&row["ttft_text_ms"]["median"])?,
            tpot_ms: number(&row["tpot_ms"]["median"])?,
            rss_mib: number(&row["memory_mib"]["rss"])?,
        })
    }

    pub(super) fn medians(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(all.iter().map(figure).collect());
        Self {
            tokens_per_s: of(|f| f.tokens_per_s),
            ttft_ms: of(|f| f.ttft_ms),
            tpot_ms: of(|f| f.tpot_ms),
            rss_mib: of(|f| f.rss_mib),
        }
    }
}

/// Short requests beside long ones: the time to their first text.
#[derive(Clone, Copy)]
pub(super) struct Mixed {
    median_ms: f64,
    p99_ms: f64,
}

impl Mixed {
    pub(super) fn of(row: &Value) -> Result<Self> {
        whole(row)?;
        let late = |name: &str| row["ttft_text_ms"][name].as_f64().context("no time to first text");
        Ok(Self { median_ms: late("median")?, p99_ms: late("p99")? })
    }

    pub(super) fn medians(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(all.iter().map(figure).collect());
        Self { median_ms: of(|m| m.median_ms), p99_ms: of(|m| m.p99_ms) }
    }
}

fn whole(row: &Value) -> Result<()> {
    match row["errors"].as_array() {
        Some(errors) if errors.is_empty() => Ok(()),
        _ => bail!("requests failed: {}", row["errors"]),
    }
}

/// The middle of some numbers, the upper one of two.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// One figure of both sides.
struct Line {
    what: String,
    ours: f64,
    theirs: Option<f64>,
    check: Option<Check>,
}

/// Prints and keeps everything; fails where a target was missed.
pub(super) fn write(
    facts: &Value,
    runs: usize,
    rows: &[(usize, [Figures; 2])],
    mixed: &[Mixed; 2],
    steps: [f64; 2],
    idle_mib: f64,
    folder: &Path,
) -> Result<()> {
    let lines = lines(rows, mixed, steps, idle_mib);
    let text = markdown(facts, runs, &lines);
    print!("{text}");
    let line = |line: &Line| {
        json!({
            "figure": line.what,
            "smelt": line.ours,
            "rival": line.theirs,
            "target": line.check.as_ref().map(Check::text),
            "held": line.check.as_ref().map(Check::is_held),
        })
    };
    let all: Vec<Value> = lines.iter().map(line).collect();
    let kept = json!({ "machine": facts, "runs": runs, "figures": all });
    let json = serde_json::to_string_pretty(&kept)? + "\n";
    for (name, text) in [("serve.json", json), ("serve.md", text)] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        eprintln!("bench: wrote {}", path.display());
    }
    let checks = lines.iter().filter_map(|line| Some((&line.what, line.check.as_ref()?)));
    let missed: Vec<String> = checks
        .filter(|(_, check)| !check.is_held())
        .map(|(what, check)| format!("{what}: {}", check.text()))
        .collect();
    if missed.is_empty() { Ok(()) } else { bail!("targets missed: {}", missed.join("; ")) }
}

fn lines(
    rows: &[(usize, [Figures; 2])],
    mixed: &[Mixed; 2],
    steps: [f64; 2],
    idle_mib: f64,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut both = |what: String, ours: f64, theirs: f64, check| {
        lines.push(Line { what, ours, theirs: Some(theirs), check });
    };
    for (streams, [ours, theirs]) in rows {
        let ratio = ours.tokens_per_s / theirs.tokens_per_s;
        let check = Check::at_least("times the rival", ratio, SPEED_MIN);
        let at = |what: &str| format!("{what}, {streams} streams");
        both(at("tokens/s"), ours.tokens_per_s, theirs.tokens_per_s, Some(check));
        both(at("first text, ms"), ours.ttft_ms, theirs.ttft_ms, None);
        both(at("a token, ms"), ours.tpot_ms, theirs.tpot_ms, None);
        both(at("peak RSS, MiB"), ours.rss_mib, theirs.rss_mib, None);
    }
    let [ours, theirs] = mixed;
    let check = Check::at_most("of the rival's", ours.p99_ms / theirs.p99_ms, TTFT_MAX);
    both("first text beside long prompts, ms".to_owned(), ours.median_ms, theirs.median_ms, None);
    both("its 99th percentile, ms".to_owned(), ours.p99_ms, theirs.p99_ms, Some(check));
    let [served_ms, alone_ms] = steps;
    // A step gives a token to each stream.
    let added = (served_ms - alone_ms) / STEADY_STREAMS as f64;
    let what = format!(
        "serving {STEADY_STREAMS} streams ({served_ms:.2} ms a step) beside the engine alone ({alone_ms:.2}), ms a token"
    );
    let check = Some(Check::at_most("ms a token", added, OVERHEAD_MS_MAX));
    lines.push(Line { what, ours: added, theirs: None, check });
    let check = Some(Check::at_most("MiB", idle_mib, IDLE_MIB_MAX));
    lines.push(Line {
        what: "1,000 idle clients, MiB".to_owned(),
        ours: idle_mib,
        theirs: None,
        check,
    });
    lines
}

fn markdown(facts: &Value, runs: usize, lines: &[Line]) -> String {
    let mut text = format!(
        "{facts}\n\n| figure (medians of {runs}) | smelt serve | llama-server | target |\n|---|---|---|---|\n"
    );
    for Line { what, ours, theirs, check } in lines {
        let theirs = theirs.map_or(String::new(), |theirs| format!("{theirs:.2}"));
        let check = check.as_ref().map_or(String::new(), Check::text);
        let _ = writeln!(text, "| {what} | {ours:.2} | {theirs} | {check} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(tokens_per_s: f64, tpot_ms: f64) -> Figures {
        Figures { tokens_per_s, ttft_ms: 1.0, tpot_ms, rss_mib: 1.0 }
    }

    #[test]
    fn every_promise_has_a_line() {
        let rows = super::super::STREAMS
            .map(|streams| (streams, [figures(12.0, 50.0), figures(10.0, 60.0)]));
        let mixed = [0.8, 1.0].map(|p99_ms| Mixed { median_ms: 1.0, p99_ms });
        let lines = lines(&rows, &mixed, [50.0, 49.0], 20.0);
        let checks: Vec<bool> =
            lines.iter().filter_map(|line| line.check.as_ref()).map(Check::is_held).collect();
        assert_eq!(checks, [true, true, true, true, false, true, true], "0.8 is more than 0.7");
        let overhead = lines.iter().find(|line| line.what.contains("alone")).unwrap();
        assert!((overhead.ours - 0.125).abs() < 1e-9);
    }

    #[test]
    fn failed_requests_are_no_figures() {
        let row = json!({ "errors": [{ "error": "busy", "count": 1 }] });
        assert!(Figures::of(&row).is_err() && Mixed::of(&row).is_err());
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
