//! Says what was found: how grave it is, what was seen, why it matters, what cures it.

use serde::Serialize;

/// Evidence comes from files that others wrote: a line of a terminal is enough of each.
const EVIDENCE_CHARS_MAX: usize = 160;

/// How grave a finding is, the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Builds fail because of it.
    Problem,
    /// It costs time or memory, or makes failures likely.
    Warning,
    /// Worth knowing.
    Note,
    /// As it should be.
    Ok,
}

impl Severity {
    /// The word for reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Note => "note",
            Self::Ok => "ok",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; stable, for scripts.
    pub id: &'static str,
    /// How grave it is.
    pub severity: Severity,
    /// What is so, in one line.
    pub title: String,
    /// Where that was seen, a line each.
    pub evidence: Vec<String>,
    /// Why it matters; empty where all is well.
    pub why: String,
    /// What cures it, where a command does.
    pub fix: Option<Fix>,
}

/// A command that cures a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// For a shell.
    pub command: String,
    /// It takes effect when the device has booted again.
    pub needs_reboot: bool,
    /// Whether `--fix` offers to run it; what can leave a board that does not boot, or ends what
    /// others run, is for a person to do.
    pub can_apply: bool,
}

impl Finding {
    /// A finding without evidence yet.
    pub fn new(severity: Severity, id: &'static str, title: impl AsRef<str>) -> Self {
        let title = plain(title.as_ref());
        Self { id, severity, title, evidence: Vec::new(), why: String::new(), fix: None }
    }

    /// Adds where it was seen.
    pub(crate) fn seen(mut self, evidence: impl AsRef<str>) -> Self {
        self.evidence.push(plain(evidence.as_ref()));
        self
    }

    /// Says why it matters.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Says what cures it.
    #[must_use]
    pub fn cured_by(mut self, fix: impl Into<Option<Fix>>) -> Self {
        self.fix = fix.into();
        self
    }
}

impl Fix {
    /// What helps at once.
    pub fn now(command: impl Into<String>) -> Self {
        Self { command: command.into(), needs_reboot: false, can_apply: true }
    }

    /// What helps after the next boot.
    pub(crate) fn at_boot(command: impl Into<String>) -> Self {
        Self { needs_reboot: true, ..Self::now(command) }
    }

    /// The same, for a person to do.
    #[must_use]
    pub fn by_hand(self) -> Self {
        Self { can_apply: false, ..self }
    }
}

/// One line that cannot move a terminal's cursor, and an end.
fn plain(text: &str) -> String {
    let mut chars = text.chars();
    let shown = chars.by_ref().take(EVIDENCE_CHARS_MAX);
    let line: String = shown.map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if chars.next().is_some() { line + "…" } else { line }
}

/// `512 KiB`, `34.5 MiB`, `7.4 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", value / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", value / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_one_plain_line() {
        assert_eq!(plain("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
        let long = "ä".repeat(EVIDENCE_CHARS_MAX + 1);
        assert_eq!(plain(&long).chars().count(), EVIDENCE_CHARS_MAX + 1);
        assert!(plain(&long).ends_with('…'));
        assert_eq!(plain(&long[2..]), long[2..]);
    }

    #[test]
    fn the_gravest_comes_first() {
        assert!(Severity::Problem < Severity::Warning && Severity::Note < Severity::Ok);
    }
}
