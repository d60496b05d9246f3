//! Tells what was measured: Markdown on standard output, JSON and the same Markdown in files.
//!
//! Medians of each side come in.  Where there are several rivals, the faster one is compared with.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::cases::{Case, Work};
use super::{ProcessRun, machine};
use crate::bench::measure::median;
use crate::bench::workflow::Check;

/// A case, measured.
pub(super) struct Row {
    name: String,
    rival: &'static str,
    lines: Vec<Line>,
}

/// One figure of both sides.
struct Line {
    what: &'static str,
    ours: f64,
    theirs: Option<f64>,
    check: Option<Check>,
}

impl Line {
    fn ratio(&self) -> Option<f64> {
        self.theirs.map(|theirs| self.ours / theirs)
    }
}

impl Row {
    /// Takes the runs of each side, ours last.
    pub(super) fn new(
        case: &Case,
        names: Vec<&'static str>,
        taken: &[Vec<ProcessRun>],
        bytes: Option<f64>,
        bandwidth: f64,
    ) -> Result<Self> {
        let medians: Vec<ProcessRun> = taken.iter().map(|runs| medians(runs)).collect();
        let (ours, rivals) = medians.split_last().context("a case has sides")?;
        let faster =
            |a: &(usize, &ProcessRun), b: &(usize, &ProcessRun)| a.1.speed.total_cmp(&b.1.speed);
        let (at, theirs) = rivals.iter().enumerate().max_by(faster).context("it has a rival")?;
        let mut lines = lines(case, ours, theirs);
        if let Some(bytes) = bytes.filter(|_| !is_batched(case)) {
            let share = ours.speed * bytes / bandwidth;
            let min = case.targets.bound_min.filter(|_| case.threads == 2);
            let check = min.map(|min| Check::at_least("of the bound", share, min));
            let theirs = Some(theirs.speed * bytes / bandwidth);
            lines.push(Line { what: "decode, share of the bound", ours: share, theirs, check });
        }
        let what = "memory read, GB/s";
        lines.push(Line { what, ours: bandwidth / 1e9, theirs: None, check: None });
        Ok(Self { name: case.name(), rival: names[at], lines })
    }

    fn missed(&self) -> impl Iterator<Item = String> {
        let checks = self.lines.iter().filter_map(|line| line.check.as_ref());
        checks
            .filter(|check| !check.is_held())
            .map(|check| format!("{}: {}", self.name, check.text()))
    }
}

fn is_batched(case: &Case) -> bool {
    matches!(case.work, Work::Text { slots, .. } if slots > 1)
}

fn lines(case: &Case, ours: &ProcessRun, theirs: &ProcessRun) -> Vec<Line> {
    let targets = &case.targets;
    let speed = match case.work {
        Work::Text { .. } => "decode, tokens/s",
        Work::Pictures { .. } => "pictures/s",
    };
    let faster = |what, of: fn(&ProcessRun) -> f64, min: Option<f64>| {
        let (ours, theirs) = (of(ours), of(theirs));
        let check = min.map(|min| Check::at_least("times the rival", ours / theirs, min));
        Line { what, ours, theirs: Some(theirs), check }
    };
    let smaller = |what, of: fn(&ProcessRun) -> f64, max: Option<f64>| {
        let (ours, theirs) = (of(ours), of(theirs));
        let check = max.map(|max| Check::at_most("of the rival's", ours / theirs, max));
        Line { what, ours, theirs: Some(theirs), check }
    };
    let prefill = |run: &ProcessRun| run.prefill.unwrap_or(f64::NAN);
    let mut lines = vec![faster(speed, |run| run.speed, targets.speed_min)];
    if ours.prefill.is_some() {
        lines.push(faster("prefill, tokens/s", prefill, targets.prefill_min));
    }
    lines.push(smaller("peak RSS, MiB", |run| run.rss_mib, targets.rss_max));
    lines.push(smaller("load, ms", |run| run.load_s * 1e3, None));
    lines.push(smaller("CPU of the process, s", |run| run.cpu_s, None));
    lines
}

/// Each figure's own median.
fn medians(runs: &[ProcessRun]) -> ProcessRun {
    let of = |figure: fn(&ProcessRun) -> f64| median(runs.iter().map(figure));
    let has_prompts = runs.iter().all(|run| run.prefill.is_some());
    ProcessRun {
        load_s: of(|run| run.load_s),
        prefill: has_prompts.then(|| of(|run| run.prefill.unwrap_or(f64::NAN))),
        speed: of(|run| run.speed),
        rss_mib: of(|run| run.rss_mib),
        cpu_s: of(|run| run.cpu_s),
    }
}

/// Prints and keeps everything; fails where a target was missed.
pub(super) fn write(facts: &Value, rows: &[Row], runs: usize, folder: &Path) -> Result<()> {
    let load_after = machine::load()?;
    let text = markdown(facts, load_after, rows, runs);
    print!("{text}");
    let all: Vec<Value> = rows.iter().map(to_json).collect();
    let kept = json!({ "machine": facts, "load_after": load_after, "runs": runs, "cases": all });
    let json = serde_json::to_string_pretty(&kept)? + "\n";
    for (name, text) in [("cpu.json", json), ("cpu.md", text)] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        eprintln!("bench: wrote {}", path.display());
    }
    let missed: Vec<String> = rows.iter().flat_map(Row::missed).collect();
    if !missed.is_empty() {
        bail!("targets missed: {}", missed.join("; "));
    }
    Ok(())
}

fn markdown(facts: &Value, load_after: f64, rows: &[Row], runs: usize) -> String {
    let words =
        |name: &str| facts[name].to_string().replace(['"', '[', ']'], "").replace(',', ", ");
    let mut text = format!(
        "{}; {} cores; {}; {} MiB of memory, {} available; load {} before, {load_after} after; Linux {}\n\n",
        words("processor"),
        words("cores"),
        words("features"),
        words("memory_mib"),
        words("available_mib"),
        words("load"),
        words("kernel"),
    );
    let _ =
        writeln!(text, "| case (medians of {runs}) | figure | smelt | rival | ratio | target |");
    text.push_str("|---|---|---|---|---|---|\n");
    for Row { name, rival, lines } in rows {
        for line in lines {
            let theirs =
                line.theirs.map_or(String::new(), |theirs| format!("{theirs:.2} ({rival})"));
            let ratio = line.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let check = line.check.as_ref().map_or(String::new(), Check::text);
            let Line { what, ours, .. } = line;
            let _ =
                writeln!(text, "| {name} | {what} | {ours:.2} | {theirs} | {ratio} | {check} |");
        }
    }
    text
}

fn to_json(row: &Row) -> Value {
    let line = |line: &Line| {
        json!({
            "figure": line.what,
            "smelt": line.ours,
            "rival": line.theirs,
            "ratio": line.ratio(),
            "target": line.check.as_ref().map(Check::text),
            "held": line.check.as_ref().map(Check::is_held),
        })
    };
    let lines: Vec<Value> = row.lines.iter().map(line).collect();
    json!({ "case": row.name, "rival": row.rival, "figures": lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cpu::cases;

    fn run(speed: f64, rss_mib: f64) -> ProcessRun {
        ProcessRun { load_s: 0.01, prefill: Some(100.0), speed, rss_mib, cpu_s: 1.0 }
    }

    #[test]
    fn the_faster_rival_is_compared_with_and_misses_are_named() {
        let case = cases::all().find(|case| case.name() == "qwen2.5-0.5b-q4-t2").unwrap();
        let slow = vec![run(10.0, 50.0)];
        let fast = vec![run(70.0, 90.0), run(90.0, 100.0), run(80.0, 110.0)];
        let ours = vec![run(88.0, 60.0); 3];
        let names = vec!["slow", "fast", "smelt"];
        let row = Row::new(&case, names, &[slow, fast, ours], Some(1e9), 100e9).unwrap();
        assert_eq!(row.rival, "fast");
        assert_eq!((row.lines[0].ours, row.lines[0].theirs), (88.0, Some(80.0)));
        let missed: Vec<String> = row.missed().collect();
        assert_eq!(
            missed,
            ["qwen2.5-0.5b-q4-t2: 1.100 times the rival, at least 1.15: MISSED"],
            "60 of 100 MiB, equal prompts and 88 % of the bound hold"
        );
    }
}
