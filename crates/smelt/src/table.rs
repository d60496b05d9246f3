//! Sets text in columns, and the summary of a run.

use std::fmt;

use smelt_exec::{RunReport, StageReport, StageStatus, Writes};

/// Rows of text, as wide as they need.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()] }
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
        for row in &self.rows {
            line.clear();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                let gap = width.saturating_sub(cell.chars().count()) + 2;
                line.extend(std::iter::repeat_n(' ', gap));
            }
            f.write_str(line.trim_end())?;
            f.write_str("\n")?;
        }
        Ok(())
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
    }
    table
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

/// What cannot be known where nobody watched what stages wrote, a line; empty where somebody did.
pub(crate) fn unwatched(report: &RunReport) -> &'static str {
    let mut attempts = report.stages.iter().flat_map(|stage| &stage.attempts);
    if attempts.any(|attempt| attempt.writes == Some(Writes::Unwatched)) {
        "What stages wrote outside of their directories was not watched: the kernel has no Landlock for it (Linux 5.19 has).\n"
    } else {
        ""
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
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "B"]);
        table.row(["longer".into(), "x".into()]);
        assert_eq!(table.to_string(), "A       B\nlonger  x\n");
    }
}
