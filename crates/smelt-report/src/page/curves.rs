//! Draws the course of each attempt's memory as small charts.

use std::fmt::Write;

use smelt_exec::{AttemptReport, RunReport, StageReport};
use smelt_plot::course;
use smelt_watch::Curve;

use super::{escape, left_out};
use crate::amount::{bytes, seconds};

/// Charts of more attempts make a page slow; the longest are the interesting ones.
const CARDS_MAX: usize = 60;

/// The section; nothing if nothing ran.
pub(super) fn section(report: &RunReport) -> String {
    let mut cards: Vec<(&StageReport, &AttemptReport)> = report
        .stages
        .iter()
        .flat_map(|stage| stage.attempts.iter().map(move |attempt| (stage, attempt)))
        .collect();
    if cards.is_empty() {
        return String::new();
    }
    let count = cards.len();
    if count > CARDS_MAX {
        cards.sort_by(|a, b| b.1.wall_s.total_cmp(&a.1.wall_s));
        cards.truncate(CARDS_MAX);
    }
    let mut text = "<h2>Memory over time</h2>\n<div class=\"grid\">\n".to_owned();
    for (stage, attempt) in cards {
        text.push_str(&card(stage, attempt));
    }
    text.push_str("</div>\n");
    text + &left_out(count, CARDS_MAX, "attempts")
}

fn card(stage: &StageReport, attempt: &AttemptReport) -> String {
    let which = match stage.attempts.len() {
        1 => String::new(),
        _ => format!(
            " <span class=\"dim\">attempt {}, {}</span>",
            attempt.n,
            escape(&attempt.outcome)
        ),
    };
    let mut text = format!("<div class=\"card\"><h3>{}{which}</h3>\n", escape(&stage.name));
    let curve = &attempt.curve;
    if curve.len() < 2 {
        let _ = writeln!(
            text,
            "<p class=\"dim\">Over after {}: too short for a curve. Peak RSS {}.</p>",
            seconds(attempt.wall_s),
            bytes(attempt.peaks.peak_rss_bytes)
        );
        return text + "</div>\n";
    }
    text.push_str(&charts(curve));
    text + "</div>\n"
}

/// A line of a chart: its colour's name, what it is, its values.
struct Line {
    class: &'static str,
    what: String,
    values: Vec<f64>,
}

fn charts(curve: &Curve) -> String {
    let floats = |column: &[u64]| column.iter().map(|&value| value as f64).collect::<Vec<_>>();
    let most = |column: &[u64]| bytes(column.iter().max().copied().unwrap_or(0) << 10);
    let has = |column: &[u64]| column.iter().any(|&value| value > 0);
    let mut memory = vec![Line {
        class: "rss",
        what: format!("RSS, most {}", most(&curve.rss_kib)),
        values: floats(&curve.rss_kib),
    }];
    if has(&curve.swap_kib) {
        let what = format!("swap, most {}", most(&curve.swap_kib));
        memory.push(Line { class: "swap", what, values: floats(&curve.swap_kib) });
    }
    let mut text = chart(&curve.at_ms, &memory, None);
    if has(&curve.stalled_us) {
        let values = curve.stalled_share();
        let most = values.iter().copied().fold(0.0, f64::max) * 100.0;
        let what = format!("stalled for memory, most {most:.1} %");
        text.push_str(&chart(&curve.at_ms, &[Line { class: "stall", what, values }], Some(1.0)));
    }
    if has(&curve.cma_free_kib) {
        let least = bytes(curve.cma_free_kib.iter().min().copied().unwrap_or(0) << 10);
        let what = format!("CmaFree, least {least}");
        let values = floats(&curve.cma_free_kib);
        text.push_str(&chart(&curve.at_ms, &[Line { class: "cma", what, values }], None));
    }
    text
}

/// One chart; its height is `top`, or the largest value.
fn chart(at_ms: &[u64], lines: &[Line], top: Option<f64>) -> String {
    let largest = lines.iter().flat_map(|line| &line.values).copied().fold(0.0, f64::max);
    let top = top.unwrap_or(largest * 1.05).max(f64::MIN_POSITIVE);
    let end = at_ms.last().copied().unwrap_or(0);
    let mut text = "<figure class=\"chart\"><figcaption><span>".to_owned();
    for line in lines {
        let Line { class, what, .. } = line;
        let _ = write!(text, "<span class=\"key {class}\"><span>{what}</span></span> ");
    }
    let _ = writeln!(
        text,
        "</span><span class=\"dim\">{}</span></figcaption>",
        seconds(end as f64 / 1e3)
    );
    let curves = lines.iter().map(|Line { class, what, values }| course::Curve {
        class,
        what,
        values,
        is_filled: *class != "swap",
    });
    let curves: Vec<_> = curves.collect();
    text + &course::svg(at_ms, &curves, top) + "</figure>\n"
}
