//! The lines that a run ends with.

use std::collections::BTreeSet;

use smelt_exec::{Network, RunReport, StageStatus, Writes};

/// Stages built, found and failed.
pub fn counts(report: &RunReport) -> [usize; 3] {
    [StageStatus::Sealed, StageStatus::Hit, StageStatus::Failed]
        .map(|status| report.stages.iter().filter(|stage| stage.status == status).count())
}

/// Why stages failed and where their logs lie, a line each; empty where none did.
pub fn failures(report: &RunReport) -> String {
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
pub fn unwatched(report: &RunReport) -> Option<&'static str> {
    let mut attempts = report.stages.iter().flat_map(|stage| &stage.attempts);
    attempts.any(|attempt| attempt.writes == Some(Writes::Unwatched)).then_some(
        "What stages wrote outside of their directories was not watched: the kernel has no Landlock for it (Linux 5.19 has), and we may not mount.",
    )
}

/// By what attempts were confined, or that what they wrote cannot be known, a line; empty where there were none.
pub fn confinement(report: &RunReport) -> String {
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
