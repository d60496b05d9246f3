//! The part of a run's page that says what was changed before attempts, and how the machine stood.

use std::fmt::Write;

use smelt_exec::{AttemptReport, Condition, RunReport, RungReport, StageReport};

use super::html::{escape, left_out};
use crate::table::{bytes, seconds};

/// More rungs than this are left out: a ladder has a few for each stage that fails.
const ROWS_MAX: usize = 200;

/// The section; nothing where every attempt ran as it was written.
pub(super) fn section(report: &RunReport) -> String {
    let attempts = |stage| {
        let StageReport { attempts, .. }: &StageReport = stage;
        attempts.iter().map(move |attempt| (stage, attempt))
    };
    let climbed = |(_, attempt): &(&StageReport, &AttemptReport)| !attempt.rungs.is_empty();
    let rows: Vec<_> = report.stages.iter().flat_map(attempts).filter(climbed).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text =
        "<h2>What was changed</h2>\n<div class=\"card wide\"><table><thead><tr><th>Stage</th>\
        <th>Attempt</th><th>Changed</th><th>Available</th><th>Swap free</th><th>CmaFree</th>\
        <th>Page cache</th><th>Outcome</th></tr></thead><tbody>\n"
            .to_owned();
    for (stage, attempt) in rows.iter().take(ROWS_MAX) {
        text.push_str(&row(stage, attempt));
    }
    text.push_str(
        "</tbody></table></div>\n<p class=\"dim\">Before anything was changed → as the attempt \
        began → when it was over.</p>\n",
    );
    text + &left_out(rows.len(), ROWS_MAX, "attempts")
}

fn row(stage: &StageReport, attempt: &AttemptReport) -> String {
    let rungs: Vec<String> = attempt.rungs.iter().map(rung).collect();
    let outcome = attempt.class.map_or(attempt.outcome.as_str(), |class| class.name());
    let mut text = format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td>",
        escape(&stage.name),
        attempt.n,
        rungs.join("<br>")
    );
    let figures: [fn(&Condition) -> Option<u64>; 4] = [
        |at| at.mem_available_bytes,
        |at| at.swap_free_bytes,
        |at| at.cma_free_bytes,
        |at| at.page_cache_bytes,
    ];
    for figure in figures {
        let course = [&attempt.before, &attempt.prepared, &attempt.after]
            .map(|at| at.as_ref().and_then(figure).map_or_else(|| "–".to_owned(), bytes));
        let _ = write!(text, "<td>{}</td>", course.join(" → "));
    }
    let _ = writeln!(text, "<td>{}</td></tr>", escape(outcome));
    text
}

fn rung(rung: &RungReport) -> String {
    let not = if rung.done { "" } else { "not done: " };
    let time =
        if rung.wall_s >= 0.1 { format!(" ({})", seconds(rung.wall_s)) } else { String::new() };
    format!("<b>{}</b> {not}{}{time}", rung.rung.name(), escape(&rung.what))
}
