//! Runs one process and says what it took: CPU seconds, peak resident memory, wall time.
//!
//! A process of its own, `xtask measure`, waits for the one that is measured: what the kernel
//! counts for a process's children is then the work of that one alone.

use std::ffi::OsString;
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};

use crate::target;

/// What one process took; as medians, each figure for itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Figures {
    /// User and system time.
    pub(super) cpu_s: f64,
    pub(super) user_s: f64,
    pub(super) wall_s: f64,
    /// The largest resident set, file pages included.
    pub(super) rss_mib: f64,
}

impl Figures {
    pub(super) fn medians(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(runs.iter().map(figure));
        Self {
            cpu_s: of(|f| f.cpu_s),
            user_s: of(|f| f.user_s),
            wall_s: of(|f| f.wall_s),
            rss_mib: of(|f| f.rss_mib),
        }
    }
}

/// The middle of some numbers, the upper one of two.
pub(super) fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Runs `command`, which must succeed.
pub(super) fn run(command: &[OsString]) -> Result<Figures> {
    told(command).map(|(figures, _)| figures)
}

/// This very program: a build that ran meanwhile may have put another in its file's place.
pub(super) const OWN: &str = "/proc/self/exe";

/// Runs `command`, which must succeed; gives also what it wrote to standard output.
pub(super) fn told(command: &[OsString]) -> Result<(Figures, String)> {
    let log = target().join("bench/last.log");
    let output = Command::new(OWN)
        .arg("measure")
        .args(command)
        .stderr(File::create(&log).with_context(|| log.display().to_string())?)
        .output()
        .context("cannot start xtask")?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", std::fs::read_to_string(&log).unwrap_or_default());
    }
    let figures: Value = serde_json::from_slice(&output.stdout).context("xtask measure")?;
    let number = |name: &str| figures[name].as_f64().with_context(|| format!("no {name}"));
    let taken = Figures {
        cpu_s: number("user_s")? + number("system_s")?,
        user_s: number("user_s")?,
        wall_s: number("wall_s")?,
        rss_mib: number("rss_kib")? / 1024.0,
    };
    Ok((taken, figures["stdout"].as_str().unwrap_or_default().to_owned()))
}

/// `xtask measure PROGRAM ARGUMENT…`: runs it and prints its figures.
pub(crate) fn child(command: &[String]) -> Result<()> {
    let (program, arguments) = command.split_first().context("nothing to measure")?;
    let begin = Instant::now();
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    let wall = begin.elapsed();
    if !output.status.success() {
        bail!("{program} ended with {}", output.status);
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    println!(
        "{}",
        json!({
            "user_s": seconds(usage.user_time()),
            "system_s": seconds(usage.system_time()),
            "wall_s": wall.as_secs_f64(),
            "rss_kib": usage.max_rss(),
            "stdout": String::from_utf8_lossy(&output.stdout),
        })
    );
    Ok(())
}
