//! The part of a run's page that says what was changed before attempts, and how the machine stood.

use std::fmt::Write;

use smelt_exec::{AttemptReport, Condition, RunReport, RungReport, StageReport};

use super::{escape, left_out};
use crate::amount::{bytes, seconds};

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
    let is_told = |(_, figure): &&Figure| {
        rows.iter().flat_map(|(_, attempt)| course(attempt, *figure)).any(|known| known.is_some())
    };
    let figures: Vec<Figure> = FIGURES.iter().filter(is_told).copied().collect();
    let names = figures.iter().map(|(name, _)| format!("<th>{name}</th>")).collect::<String>();
    let mut text = format!(
        "<h2>What was changed</h2>\n<div class=\"card wide\"><table><thead><tr><th>Stage</th>\
         <th>Attempt</th><th>Outcome</th><th class=\"words\">Changed</th>{names}</tr></thead><tbody>\n"
    );
    for (stage, attempt) in rows.iter().take(ROWS_MAX) {
        text.push_str(&row(stage, attempt, &figures));
    }
    text.push_str(
        "</tbody></table></div>\n<p class=\"dim\">Before anything was changed → as the attempt began → \
         when it was over.</p>\n",
    );
    text + &left_out(rows.len(), ROWS_MAX, "attempts")
}

/// A column, and what it shows of a condition.
type Figure = (&'static str, fn(&Condition) -> Option<u64>);
const FIGURES: [Figure; 4] = [
    ("Available", |at| at.mem_available_bytes),
    ("Swap free", |at| at.swap_free_bytes),
    ("CmaFree", |at| at.cma_free_bytes),
    ("Page cache", |at| at.page_cache_bytes),
];

fn course(attempt: &AttemptReport, figure: fn(&Condition) -> Option<u64>) -> [Option<u64>; 3] {
    [&attempt.before, &attempt.prepared, &attempt.after].map(|at| figure(at.as_ref()?))
}

fn row(stage: &StageReport, attempt: &AttemptReport, figures: &[Figure]) -> String {
    let rungs: Vec<String> = attempt.rungs.iter().map(rung).collect();
    let outcome = attempt.class.map_or(attempt.outcome.as_str(), |class| class.name());
    let mut text = format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"words\">{}</td>",
        escape(&stage.name),
        attempt.n,
        escape(outcome),
        rungs.join("<br>")
    );
    for (_, figure) in figures {
        let course = course(attempt, *figure);
        let course = course.map(|known| known.map_or_else(|| "–".to_owned(), bytes));
        let _ = write!(text, "<td>{}</td>", course.join(" → "));
    }
    text + "</tr>\n"
}

fn rung(rung: &RungReport) -> String {
    let not = if rung.done { "" } else { "not done: " };
    let time =
        if rung.wall_s >= 0.1 { format!(" ({})", seconds(rung.wall_s)) } else { String::new() };
    format!("<b>{}</b> {not}{}{time}", rung.rung.name(), escape(&rung.what))
}
