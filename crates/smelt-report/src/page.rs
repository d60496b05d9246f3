//! Writes a run as one page that needs nothing else: no network, no script.
//!
//! Positions are percentages of the page and text is text, so the page reads on a phone as well;
//! colours follow the reader's light or dark.  Only the tails of failed attempts' logs are read
//! from outside.

mod curves;
mod ladder;
mod timeline;

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use smelt_exec::{AttemptReport, RunReport, RunStatus, StageReport, StageStatus, log_tail};

use crate::amount::{bytes, seconds};
use crate::summary::{confinement, counts};

/// A row for each of so many stages; a page of more is no help to anybody.
const ROWS_MAX: usize = 1000;
/// What a person reads of a log before opening it.
const TAIL_LINES: usize = 40;

/// The page; `began` is when the run did.
pub fn page(report: &RunReport, began: &str) -> String {
    let mut page = String::new();
    let title = format!("{} · {}", escape(&report.pipeline), escape(&report.run));
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str(&format!("<title>{title}</title>\n<style>\n"));
    page.push_str(include_str!("page/page.css"));
    page.push_str("</style></head><body>\n");
    page.push_str(&head(report, began));
    page.push_str(&failures(report));
    page.push_str(&ladder::section(report));
    page.push_str(&timeline::section(report));
    page.push_str(&curves::section(report));
    page.push_str(&table(report));
    page.push_str(&methods(report));
    page.push_str("</body></html>\n");
    page
}

/// Text that is text in a page, whatever it holds.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

fn head(report: &RunReport, began: &str) -> String {
    let status = report.status.name();
    let [built, hit, failed] = counts(report);
    let attempts = report.stages.iter().flat_map(|stage| &stage.attempts);
    let most = attempts.map(|attempt| attempt.peaks.peak_rss_bytes).max();
    let most = most
        .map_or_else(String::new, |most| format!("<span>peak RSS <b>{}</b></span>", bytes(most)));
    format!(
        "<header class=\"card\"><div class=\"head\"><h1>{}</h1><span class=\"badge {status}\">{status}</span></div>\n\
         <p class=\"dim\">run {} · began {} UTC{}</p>\n\
         <div class=\"facts\"><span><b>{built}</b> built</span><span><b>{hit}</b> found</span>\
         <span><b>{failed}</b> failed</span><span>took <b>{}</b></span>{most}</div></header>\n",
        escape(&report.pipeline),
        escape(&report.run),
        escape(began),
        unfinished(report.status),
        seconds(report.wall_s),
    )
}

fn unfinished(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Died => " · it has no last word: this is what was recorded before it died",
        RunStatus::Running => " · it goes on: this is what was recorded so far",
        _ => "",
    }
}

fn failures(report: &RunReport) -> String {
    let failed: Vec<_> =
        report.stages.iter().filter(|stage| stage.status == StageStatus::Failed).collect();
    if failed.is_empty() {
        return String::new();
    }
    let mut text = "<h2>What failed</h2>\n".to_owned();
    for stage in failed.iter().take(ROWS_MAX) {
        text.push_str(&failure(stage));
    }
    text
}

fn failure(stage: &StageReport) -> String {
    let mut text = format!("<div class=\"card failure\"><h3>{}</h3>\n", escape(&stage.name));
    let none = stage.attempts.is_empty();
    if let Some(message) = stage.message.as_ref().filter(|_| none) {
        let _ = writeln!(text, "<p>{}</p>", escape(message));
    }
    for attempt in &stage.attempts {
        let with = attempt.changed.as_ref().map(|changed| format!(" with {}", escape(changed)));
        let _ = writeln!(
            text,
            "<p>Attempt {}{}: {} after {} — <b>{}</b></p>",
            attempt.n,
            with.unwrap_or_default(),
            attempt.class.map_or(attempt.outcome.as_str(), |class| class.name()),
            seconds(attempt.wall_s),
            escape(attempt.message.as_deref().unwrap_or("no message")),
        );
    }
    if let Some(last) = stage.attempts.last().filter(|last| last.log.is_absolute()) {
        let _ =
            writeln!(text, "<p class=\"dim\">Log: {}</p>", escape(&last.log.display().to_string()));
        let tail = log_tail(&last.log, TAIL_LINES);
        if !tail.is_empty() {
            let _ = writeln!(text, "<pre>{}</pre>", escape(&tail));
        }
    }
    text + "</div>\n"
}

/// The columns, and how each is made of an attempt.
type Column = (&'static str, fn(&AttemptReport) -> String);
const COLUMNS: [Column; 21] = [
    ("Time", |attempt| seconds(attempt.wall_s)),
    ("CPU", |attempt| seconds(attempt.cpu_s)),
    ("Peak RSS", |attempt| bytes(attempt.peaks.peak_rss_bytes)),
    ("Largest process", |attempt| bytes(attempt.peaks.peak_rss_process_bytes)),
    ("Most held", |attempt| bytes(attempt.peaks.held_peak_bytes)),
    ("Peak VMS", |attempt| bytes(attempt.peaks.peak_vms_bytes)),
    ("Swap", |attempt| bytes(attempt.peaks.swap_peak_bytes)),
    ("Page cache", |attempt| known(attempt.peaks.page_cache_peak_bytes, bytes)),
    ("Group peak", |attempt| known(attempt.peaks.cgroup_peak_bytes, bytes)),
    ("Major faults", |attempt| known(attempt.counters.major_faults, |n| n.to_string())),
    ("Swap in/out", |attempt| {
        let [to, from] = [attempt.counters.swap_in_pages, attempt.counters.swap_out_pages]
            .map(|pages| known(pages, |n| n.to_string()));
        format!("{to}/{from}")
    }),
    ("Stalled", |attempt| known(attempt.counters.pressure_some_us, |us| seconds(us as f64 / 1e6))),
    ("Waited", |attempt| passed(attempt.waited_s)),
    ("Halted", |attempt| passed(attempt.parked_s)),
    ("Least available", |attempt| known(attempt.peaks.mem_available_min_bytes, bytes)),
    ("Least CmaFree", |attempt| known(attempt.peaks.cma_free_min_bytes, bytes)),
    ("CMA refused", |attempt| known(attempt.counters.cma_alloc_fails, |n| n.to_string())),
    ("OOM kills", |attempt| known(attempt.counters.oom_kills, |n| n.to_string())),
    ("GPU", |attempt| known(attempt.peaks.gpu_max_percent.map(u64::from), |n| format!("{n} %"))),
    ("Power", |attempt| {
        known(attempt.peaks.power_max_mw, |mw| format!("{:.1} W", mw as f64 / 1e3))
    }),
    ("Heat", |attempt| {
        known(attempt.peaks.temperature_max_c.map(u64::from), |c| format!("{c} °C"))
    }),
];

/// Time that few attempts have.
fn passed(time_s: f64) -> String {
    if time_s > 0.0 { seconds(time_s) } else { "–".to_owned() }
}

fn known(value: Option<u64>, text: impl Fn(u64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

fn table(report: &RunReport) -> String {
    let mut text = "<h2>Every stage</h2>\n<div class=\"card wide\"><table><thead><tr><th>Stage</th><th>Status</th>".to_owned();
    for (name, _) in &COLUMNS {
        let _ = write!(text, "<th>{name}</th>");
    }
    text.push_str("</tr></thead><tbody>\n");
    for stage in report.stages.iter().take(ROWS_MAX) {
        text.push_str(&rows(stage));
    }
    text.push_str("</tbody></table></div>\n");
    text + &left_out(report.stages.len(), ROWS_MAX, "stages")
}

/// A note where a list was cut.
fn left_out(count: usize, max: usize, what: &str) -> String {
    if count <= max {
        return String::new();
    }
    format!(
        "<p class=\"dim\">{} more {what} are left out here; the JSON report has them.</p>\n",
        count - max
    )
}

fn rows(stage: &StageReport) -> String {
    let name = escape(&stage.name);
    let status = stage.status.name();
    if stage.attempts.is_empty() {
        let cells = "<td>–</td>".repeat(COLUMNS.len());
        return format!("<tr><td>{name}</td><td class=\"{status}\">{status}</td>{cells}</tr>\n");
    }
    let many = stage.attempts.len() > 1;
    let row = |attempt: &AttemptReport| {
        let which = if many {
            format!(" <span class=\"dim\">attempt {}</span>", attempt.n)
        } else {
            String::new()
        };
        let outcome = escape(&attempt.outcome);
        let cells: String =
            COLUMNS.iter().map(|(_, cell)| format!("<td>{}</td>", cell(attempt))).collect();
        format!("<tr><td>{name}{which}</td><td class=\"{outcome}\">{outcome}</td>{cells}</tr>\n")
    };
    stage.attempts.iter().map(row).collect()
}

/// What the figures were measured with; attempts of a run hardly differ, so the last one speaks.
fn methods(report: &RunReport) -> String {
    let Some(attempt) = report.stages.iter().flat_map(|stage| &stage.attempts).next_back() else {
        return String::new();
    };
    let mut by_means: std::collections::BTreeMap<&str, Vec<&str>> = Default::default();
    for (figure, means) in &attempt.methods {
        by_means.entry(means).or_default().push(figure);
    }
    let mut text = format!(
        "<h2>How it was measured</h2>\n<div class=\"card\"><p>By {}.</p>\n",
        match attempt.method.as_str() {
            "proc" => "samples of /proc alone".to_owned(),
            method => format!("samples of /proc, and a control group ({})", escape(method)),
        }
    );
    for line in confinement(report).lines() {
        let _ = writeln!(text, "<p>{line}</p>");
    }
    for (means, figures) in by_means {
        let _ =
            writeln!(text, "<p><b>{}</b>: {}</p>", means_text(means), escape(&figures.join(", ")));
    }
    text + "</div>\n"
}

fn means_text(means: &str) -> String {
    match means {
        "proc" => "sampled from /proc".to_owned(),
        "cgroup" => "counted by the kernel for the attempt's control group".to_owned(),
        "taskstats" => "told by the kernel at every end of a task".to_owned(),
        "rusage" => "the kernel's account of ended processes".to_owned(),
        "machine" => "of the whole machine while the attempt ran".to_owned(),
        other => escape(other),
    }
}
