//! Sets text in columns, and the summary of a run.

use std::collections::BTreeMap;
use std::fmt;

use smelt_exec::{RunReport, StageReport, StageStatus};
pub(crate) use smelt_report::amount::{bytes, seconds};

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

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
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

fn paint_of(status: StageStatus) -> Paint {
    match status {
        StageStatus::Hit | StageStatus::Sealed => Paint::Good,
        StageStatus::Failed => Paint::Bad,
        _ => Paint::Odd,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
