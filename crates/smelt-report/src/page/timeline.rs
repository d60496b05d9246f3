//! Draws when each attempt ran: one row a stage, bars placed by percentages.

use std::fmt::Write;

use smelt_exec::{AttemptReport, RunReport, StageReport, StageStatus};

use super::{escape, left_out};
use crate::amount::seconds;

/// As the page's table.
const ROWS_MAX: usize = 1000;
/// What the axis may be divided by, in seconds.
const STEPS: [f64; 22] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 86_400.0,
];
/// On a phone, more labels would touch.
const TICKS_MAX: f64 = 5.0;
/// Bars that end further right have their label before them.
const LABEL_AFTER_MAX: f64 = 70.0;

/// The section; nothing if nothing ran.
pub(super) fn section(report: &RunReport) -> String {
    let ran: Vec<_> = report.stages.iter().filter(|stage| !stage.attempts.is_empty()).collect();
    if ran.is_empty() {
        return format!(
            "<h2>Timeline</h2>\n<div class=\"card\"><p>{}</p></div>\n",
            nothing_ran(report)
        );
    }
    let ends = ran.iter().flat_map(|stage| &stage.attempts).map(ended);
    let whole = ends.fold(report.wall_s, f64::max).max(1e-3);
    let mut text = "<h2>Timeline</h2>\n<div class=\"card timeline\">\n".to_owned();
    text.push_str(&axis(whole));
    for stage in ran.iter().take(ROWS_MAX) {
        text.push_str(&row(stage, whole));
    }
    text.push_str("</div>\n");
    text + &left_out(ran.len(), ROWS_MAX, "stages")
}

fn nothing_ran(report: &RunReport) -> &'static str {
    if report.stages.iter().all(|stage| stage.status == StageStatus::Hit) {
        "Nothing ran: every stage that was asked for was already built."
    } else {
        "Nothing ran."
    }
}

fn ended(attempt: &AttemptReport) -> f64 {
    attempt.began_s + attempt.wall_s
}

/// The seconds at which the axis has marks.
fn ticks(whole: f64) -> Vec<f64> {
    let fits = |step: &&f64| whole / **step <= TICKS_MAX;
    let last = STEPS[STEPS.len() - 1];
    let step = STEPS.iter().find(fits).copied().unwrap_or((whole / TICKS_MAX / last).ceil() * last);
    let count = (whole / step) as usize;
    (0..=count).map(|n| n as f64 * step).filter(|at| at / whole < 0.97).collect()
}

fn axis(whole: f64) -> String {
    let mut text = "<div class=\"row axis\"><span></span><div class=\"track\">".to_owned();
    for at in ticks(whole) {
        let _ = write!(
            text,
            "<span class=\"tick\" style=\"left:{:.3}%\">{}</span>",
            at / whole * 100.0,
            tick(at)
        );
    }
    text + "</div></div>\n"
}

fn tick(at: f64) -> String {
    match at {
        0.0 => "0".to_owned(),
        at if at < 1.0 => format!("{at:.2} s"),
        at if at < 60.0 => format!("{at:.0} s"),
        at if at < 3600.0 => format!("{:.0} min", at / 60.0),
        at => format!("{:.0} h", at / 3600.0),
    }
}

fn row(stage: &StageReport, whole: f64) -> String {
    let mut text =
        format!("<div class=\"row\"><span>{}</span><div class=\"track\">", escape(&stage.name));
    for attempt in &stage.attempts {
        let (left, width) = place(attempt.began_s, attempt.wall_s, whole);
        let _ = write!(
            text,
            "<div class=\"bar {}\" style=\"left:min({left:.3}%, 100% - 3px);width:{width:.3}%\" title=\"{}\"></div>",
            escape(&attempt.outcome),
            escape(&hint(attempt)),
        );
    }
    text.push_str(&label(stage, whole));
    text + "</div></div>\n"
}

/// Left end and width, in per cent.
fn place(began_s: f64, wall_s: f64, whole: f64) -> (f64, f64) {
    let left = (began_s / whole * 100.0).clamp(0.0, 100.0);
    (left, (wall_s / whole * 100.0).clamp(0.0, 100.0 - left))
}

/// The time taken: behind the bars, before them, or on them, wherever there is room.
fn label(stage: &StageReport, whole: f64) -> String {
    let took: f64 = stage.attempts.iter().map(|attempt| attempt.wall_s).sum();
    let tries = match stage.attempts.len() {
        1 => String::new(),
        n => format!(", {n} attempts"),
    };
    let end = stage.attempts.iter().map(ended).fold(0.0, f64::max) / whole * 100.0;
    let begin = stage.attempts.first().map_or(0.0, |attempt| attempt.began_s) / whole * 100.0;
    let (class, at) = match (begin, end) {
        (_, end) if end <= LABEL_AFTER_MAX => ("time", end),
        (begin, _) if begin >= 100.0 - LABEL_AFTER_MAX => ("time before", begin),
        (begin, _) => ("time inside", begin),
    };
    format!("<span class=\"{class}\" style=\"left:{at:.3}%\">{}{tries}</span>", seconds(took))
}

fn hint(attempt: &AttemptReport) -> String {
    let why = attempt.message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
    format!("attempt {}, {} after {}{why}", attempt.n, attempt.outcome, seconds(attempt.wall_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_and_round() {
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]);
        assert_eq!(ticks(3601.0), [0.0, 900.0, 1800.0, 2700.0]);
        for whole in [1e-3, 0.3, 7.0, 59.9, 4000.0, 1e6, 1e9] {
            let ticks = ticks(whole);
            assert!((1..=6).contains(&ticks.len()), "{whole}: {ticks:?}");
        }
    }

    #[test]
    fn bars_stay_on_their_track() {
        assert_eq!(place(0.0, 5.0, 10.0), (0.0, 50.0));
        assert_eq!(place(9.0, 5.0, 10.0), (90.0, 10.0));
        assert_eq!(place(11.0, 5.0, 10.0), (100.0, 0.0));
    }
}
