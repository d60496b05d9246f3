//! Declares the flags of `smelt watch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Ten times a second is more than eyes can follow.
const INTERVAL_MIN: f64 = 0.1;
/// Whoever looks less often than once an hour wants another tool.
const INTERVAL_MAX: f64 = 3600.0;

#[derive(Debug, Args)]
pub(crate) struct WatchFlags {
    /// Print one reading and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print each reading as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Watch this process and all below it besides, and end when it has ended
    #[arg(long, value_name = "PID", conflicts_with = "run")]
    pub(crate) pid: Option<u32>,
    /// Watch the stages of a run of smelt besides, of whichever store, and end when it has ended:
    /// a part of its name, or "latest"
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Seconds between readings, 0.1 or more; on a machine where one takes long they are rarer
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// How many of the largest processes to list
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) top: usize,
    /// Read a captured tree of another device's files (its /proc and /sys) instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["pid", "run"])]
    pub(crate) root: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (INTERVAL_MIN..=INTERVAL_MAX).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("a number of seconds from {INTERVAL_MIN} to {INTERVAL_MAX}"))
}
