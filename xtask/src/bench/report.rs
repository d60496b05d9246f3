//! Tells what was measured: a Markdown table on standard output, JSON in a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Outcome;
use super::measure::Figures;

/// Prints and writes; gives the targets that were missed, in words.
pub(super) fn write(outcomes: &[Outcome], runs: usize, path: &Path) -> Result<Vec<String>> {
    println!(
        "| case (medians of {runs}) | smelt: CPU s (user) | peak RSS | wall | rival: CPU s (user) | peak RSS | wall | CPU ratio | targets |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    outcomes.iter().for_each(|outcome| println!("{}", row(outcome)));
    let all: Vec<Value> = outcomes.iter().map(to_json).collect();
    let text = serde_json::to_string_pretty(&json!({ "runs": runs, "cases": all }))?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    eprintln!("bench: wrote {}", path.display());
    Ok(outcomes.iter().flat_map(missed).collect())
}

fn row(outcome: &Outcome) -> String {
    let what = outcome.case.what;
    let rival = outcome.rival.as_ref().map_or("| | ".to_owned(), side);
    let ratio = ratio(outcome).map_or(String::new(), |ratio| format!("{ratio:.2}"));
    let missed = missed(outcome);
    let verdict = if missed.is_empty() { "held".to_owned() } else { missed.join("; ") };
    format!("| {what} | {} | {rival} | {ratio} | {verdict} |", side(&outcome.smelt))
}

fn side(figures: &Figures) -> String {
    let Figures { cpu_s, user_s, rss_mib, wall_s } = figures;
    format!("{cpu_s:.2} ({user_s:.2}) | {rss_mib:.1} MiB | {wall_s:.1} s")
}

/// smelt's CPU time as a share of the rival's.
fn ratio(outcome: &Outcome) -> Option<f64> {
    outcome.rival.as_ref().map(|rival| outcome.smelt.cpu_s / rival.cpu_s)
}

fn missed(outcome: &Outcome) -> Vec<String> {
    let targets = &outcome.case.targets;
    let checks = [
        ("MiB", Some(outcome.smelt.rss_mib), targets.rss_mib_max),
        ("CPU s", Some(outcome.smelt.cpu_s), targets.cpu_s_max),
        ("of the rival's CPU", ratio(outcome), targets.cpu_ratio_max),
    ];
    let over = checks.into_iter().filter_map(|(unit, found, max)| {
        let (found, max) = (found?, max?);
        (found > max).then(|| format!("{}: {found:.2} {unit}, more than {max}", outcome.case.name))
    });
    over.collect()
}

fn to_json(outcome: &Outcome) -> Value {
    let figures = |f: &Figures| json!({ "cpu_s": f.cpu_s, "user_s": f.user_s, "wall_s": f.wall_s, "rss_mib": f.rss_mib });
    let case = outcome.case;
    json!({
        "name": case.name,
        "what": case.what,
        "smelt": figures(&outcome.smelt),
        "rival": outcome.rival.as_ref().map(figures),
        "cpu_ratio": ratio(outcome),
        "targets": {
            "rss_mib_max": case.targets.rss_mib_max,
            "cpu_s_max": case.targets.cpu_s_max,
            "cpu_ratio_max": case.targets.cpu_ratio_max,
        },
        "missed": missed(outcome),
    })
}
