//! Sets text in columns, and the summary of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use smelt_exec::{Network, RunReport, StageReport, StageStatus, Writes};

use crate::paint::{Paint, Stream, paint};

/// Rows of text, as wide as they need.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// How a cell of a row is coloured: the row, the column.
    paints: BTreeMap<(usize, usize), Paint>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let header = header.iter().map(|&cell| cell.to_owned()).collect();
        Self { rows: vec![header], paints: BTreeMap::new() }
    }

    /// Colours a cell of the last row, where standard output is coloured.
    pub(crate) fn paint(&mut self, column: usize, paint: Paint) {
        self.paints.insert((self.rows.len() - 1, column), paint);
    }

    fn painted(&self, row: usize, column: usize, cell: &str) -> String {
        let found = self.paints.get(&(row, column));
        found.map_or_else(|| cell.to_owned(), |how| paint(*how, cell, Stream::Out))
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut line = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            line.clear();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line.push_str(&self.painted(at, column, cell));
                let gap = width.saturating_sub(cell.chars().count()) + 2;
                line.extend(std::iter::repeat_n(' ', gap));
            }
            f.write_str(line.trim_end())?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// The first `max` of some names, and how many more there are.
pub(crate) fn some<S: AsRef<str>>(names: impl IntoIterator<Item = S>, max: usize) -> String {
    let names: Vec<S> = names.into_iter().collect();
    let named: Vec<&str> = names.iter().take(max).map(AsRef::as_ref).collect();
    let named = named.join(", ");
    match names.len().saturating_sub(max) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// When something was used that was not used for so many nanoseconds: `today`, or in days, which is as exact as it is
/// known.
pub(crate) fn ago(idle_ns: i64) -> String {
    const DAY_NS: i64 = 86_400_000_000_000;
    match idle_ns / DAY_NS {
        i64::MIN..=0 => "today".to_owned(),
        days => format!("{days} d ago"),
    }
}

/// The table at the end of a run.
pub(crate) fn summary(report: &RunReport) -> Table {
    let mut table = Table::new(&["Stage", "Status", "Time", "Peak RSS", "Peak VMS", "Attempts"]);
    for stage in &report.stages {
        table.row([
            stage.name.clone(),
            stage.status.name().to_owned(),
            time(stage),
            peak(stage, |attempt| attempt.peaks.peak_rss_bytes),
            peak(stage, |attempt| attempt.peaks.peak_vms_bytes),
            stage.attempts.len().to_string(),
        ]);
        table.paint(1, paint_of(stage.status));
    }
    table
}

/// Stages built, found and failed.
pub(crate) fn counts(report: &RunReport) -> [usize; 3] {
    [StageStatus::Sealed, StageStatus::Hit, StageStatus::Failed]
        .map(|status| report.stages.iter().filter(|stage| stage.status == status).count())
}

fn paint_of(status: StageStatus) -> Paint {
    match status {
        StageStatus::Hit | StageStatus::Sealed => Paint::Good,
        StageStatus::Failed => Paint::Bad,
        _ => Paint::Odd,
    }
}

/// Why stages failed and where their logs lie, a line each; empty where none did.
pub(crate) fn failures(report: &RunReport) -> String {
    let mut text = String::new();
    for stage in report.stages.iter().filter(|stage| stage.status == StageStatus::Failed) {
        let message = stage.message.as_deref().unwrap_or("failed");
        text.push_str(&format!("\nstage {}: {message}\n", stage.name));
        for attempt in &stage.attempts {
            let class = attempt.class.map_or(attempt.outcome.as_str(), |class| class.name());
            let changed = attempt.changed.as_deref().unwrap_or("nothing changed");
            let (n, log) = (attempt.n, attempt.log.display());
            text.push_str(&format!("  attempt {n}, {changed}: {class}; its log is {log}\n"));
        }
    }
    text
}

/// That nothing held an attempt to what it declares, where that was so.
pub(crate) fn unwatched(report: &RunReport) -> Option<&'static str> {
    let mut attempts = report.stages.iter().flat_map(|stage| &stage.attempts);
    attempts.any(|attempt| attempt.writes == Some(Writes::Unwatched)).then_some(
        "What stages wrote outside of their directories was not watched: the kernel has no Landlock for it (Linux 5.19 has), and we may not mount.",
    )
}

/// By what attempts were confined, or that what they wrote cannot be known, a line; empty where there were none.
pub(crate) fn confinement(report: &RunReport) -> String {
    let attempts = || report.stages.iter().flat_map(|stage| &stage.attempts);
    if let Some(line) = unwatched(report) {
        return format!("{line}\n");
    }
    let Some(way) = attempts().find_map(|attempt| attempt.confined_by) else {
        return String::new();
    };
    let networks = attempts().filter_map(|attempt| attempt.network).map(Network::words);
    let networks: Vec<_> = networks.collect::<BTreeSet<_>>().into_iter().collect();
    let strict = match networks.is_empty() {
        true => String::new(),
        false => format!(" Strict ones read what they declare and had {}.", networks.join(", ")),
    };
    format!("Stages were confined by {}.{strict}\n", way.words())
}

fn time(stage: &StageReport) -> String {
    if stage.attempts.is_empty() {
        return "-".to_owned();
    }
    seconds(stage.attempts.iter().map(|attempt| attempt.wall_s).sum())
}

fn peak(stage: &StageReport, of: impl Fn(&smelt_exec::AttemptReport) -> u64) -> String {
    // Nothing is known of what ended before it could be looked at.
    let most = stage.attempts.iter().map(of).max().filter(|&most| most > 0);
    most.map_or_else(|| "-".to_owned(), bytes)
}

/// Steps below which a rate says more of chance than of the model, and the least time that clocks and
/// schedulers do not drown.
const STEPS_MIN: u64 = 8;
const SECONDS_MIN: f64 = 0.05;

/// `12.3 tokens/s`, of so many steps in so many seconds; nothing where that is too few to mean anything.
pub(crate) fn rate(steps: u64, seconds: f64) -> Option<String> {
    let is_enough = steps >= STEPS_MIN && seconds >= SECONDS_MIN && seconds.is_finite();
    is_enough.then(|| format!("{:.1} tokens/s", steps as f64 / seconds))
}

/// `0.4 s`, `12.3 s`, `4:05 min`.
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    format!("{}:{:02} min", whole / 60, whole % 60)
}

/// `512 KiB`, `34.5 MiB`, `4.18 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", value / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", value / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        assert_eq!(seconds(0.04), "0.0 s");
        assert_eq!(seconds(245.4), "4:05 min");
        assert_eq!(bytes(0), "0 KiB");
        assert_eq!(bytes(36_175_872), "34.5 MiB");
        assert_eq!(bytes(4_178_000_000), "3.89 GiB");
    }

    #[test]
    fn a_rate_needs_steps_and_time() {
        assert_eq!(rate(10, 1.0).as_deref(), Some("10.0 tokens/s"));
        assert_eq!(rate(9, 4.5).as_deref(), Some("2.0 tokens/s"));
        // Three tokens of a tiny model once were "8625.2 tokens/s".
        for (steps, seconds) in
            [(3, 3.0 / 8625.2), (3, 60.0), (0, 1.0), (1000, 0.01), (8, 0.0), (8, f64::NAN)]
        {
            assert_eq!(rate(steps, seconds), None, "{steps} in {seconds}");
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "B"]);
        table.row(["longer".into(), "x".into()]);
        assert_eq!(table.to_string(), "A       B\nlonger  x\n");
    }
}
