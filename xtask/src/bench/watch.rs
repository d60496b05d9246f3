//! Measures what watching costs: the supervisor beside a stage whose processes only wait, sampled as
//! any stage is, and `smelt watch` on this machine.
//!
//! Time on a processor is counted by the scheduler in nanoseconds (`/proc/PID/task/*/schedstat`), so
//! a busy machine does not stretch it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::remove;
use super::workflow::Check;
use crate::ci::cargo;
use crate::target;

/// Trees of so many processes.
const TREES: [usize; 2] = [11, 51];
/// Until the tree stands and the first, quicker samples are over.
const SETTLE: Duration = Duration::from_secs(3);
/// How long it is watched.
const MEASURED: Duration = Duration::from_secs(20);
/// Runs when `--runs` does not say; the median counts.
const RUNS: usize = 3;
/// What may be: the whole of one core is 100.
const PERCENT_MAX: f64 = 1.0;
const MIB_MAX: f64 = 30.0;

/// What one process took.
#[derive(Clone, Copy)]
struct Cost {
    /// Of one core.
    percent: f64,
    /// The most resident memory.
    mib: f64,
}

/// `cargo xtask bench watch [--runs N]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (runs, _) = super::parse(arguments, &[], RUNS)?;
    cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    let folder = target().join("bench/watch");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut rows = Vec::new();
    for processes in TREES {
        eprintln!("bench: a tree of {processes} processes");
        let costs = (0..runs).map(|_| of_supervisor(&folder, processes));
        let what = format!("the supervisor of a stage of {processes} processes");
        rows.push((what, median(costs.collect::<Result<_>>()?)));
    }
    eprintln!("bench: smelt watch");
    let costs = (0..runs).map(|_| of_watch());
    rows.push(("`smelt watch`, once a second".to_owned(), median(costs.collect::<Result<_>>()?)));
    report(&rows, runs, &folder.join("watch.json"))
}

/// A run with one stage, which is stopped when it has been measured.
fn of_supervisor(folder: &Path, processes: usize) -> Result<Cost> {
    remove(&folder.join("store"))?;
    // The leader is one of them.
    let waiting = processes - 1;
    let pipeline = format!(
        "smelt = 1\nname = \"watched\"\n[stage.wait]\nkind = \"command\"\noutputs = [\"o\"]\n\
         argv = [\"sh\", \"-c\", \"for i in $(seq {waiting}); do sleep 1000 & done; wait\"]\n"
    );
    let path = folder.join("pipeline.toml");
    fs::write(&path, pipeline).with_context(|| path.display().to_string())?;
    let mut command = Command::new(target().join("release/smelt"));
    command.arg("run").arg(path).env("SMELT_CACHE", folder.join("store"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    measured(child.context("cannot start smelt")?)
}

fn of_watch() -> Result<Cost> {
    let mut command = Command::new(target().join("release/smelt"));
    let child = command.args(["watch", "--json"]).stdout(Stdio::null()).spawn();
    measured(child.context("cannot start smelt")?)
}

/// Watches the process for a while and ends it.
fn measured(mut child: Child) -> Result<Cost> {
    sleep(SETTLE);
    let cost = cost(child.id());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).context("kill")?;
    child.wait().context("wait")?;
    cost
}

fn cost(pid: u32) -> Result<Cost> {
    let (begin, before) = (Instant::now(), cpu_ns(pid)?);
    sleep(MEASURED);
    let ns = cpu_ns(pid)?.saturating_sub(before) as f64;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("it has ended")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.split_ascii_whitespace().next()?.parse::<f64>().ok());
    let mib = kib.context("no VmHWM")? / 1024.0;
    Ok(Cost { percent: ns / begin.elapsed().as_nanos() as f64 * 100.0, mib })
}

/// Nanoseconds on a processor of every thread that lives.
fn cpu_ns(pid: u32) -> Result<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("it has ended")?;
    let of_task = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    Ok(tasks.flatten().filter_map(of_task).sum())
}

fn median(mut costs: Vec<Cost>) -> Cost {
    let mut middle = |of: fn(&Cost) -> f64| {
        costs.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&costs[costs.len() / 2])
    };
    Cost { percent: middle(|cost| cost.percent), mib: middle(|cost| cost.mib) }
}

/// A Markdown table on standard output, JSON in a file; fails where a target was missed.
fn report(rows: &[(String, Cost)], runs: usize, path: &Path) -> Result<()> {
    println!("| what (medians of {runs}) | targets |");
    println!("|---|---|");
    let mut missed = Vec::new();
    let mut cases: Vec<Value> = Vec::new();
    for (what, Cost { percent, mib }) in rows {
        let checks = [
            Check::at_most("% of one core", *percent, PERCENT_MAX),
            Check::at_most("MiB", *mib, MIB_MAX),
        ];
        println!("| {what} | {} |", checks.each_ref().map(Check::text).join("; "));
        cases.push(json!({ "what": what, "cpu_percent": percent, "rss_peak_mib": mib }));
        let failed = checks.iter().filter(|check| !check.is_held());
        missed.extend(failed.map(|check| format!("{what}: {}", check.text())));
    }
    let text = serde_json::to_string_pretty(&json!({ "runs": runs, "cases": cases }))?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    eprintln!("bench: wrote {}", path.display());
    if !missed.is_empty() {
        bail!("targets missed: {}", missed.join("; "));
    }
    Ok(())
}
