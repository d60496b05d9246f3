//! `smelt report`: tells what a run did, as a table, JSON, a page or a trace.

use std::fs;
use std::path::Path;

use serde_json::json;
use smelt_report::arms::{Arms, RungRow, Side};
use smelt_report::{page, summary, trace};

use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::ReportFlags;
use crate::history::History;
use crate::table::{self, Table};

pub(crate) fn run(flags: &ReportFlags) -> Result<Exit, Failed> {
    let history = History::open()?;
    if flags.arms {
        return arms(flags, &history);
    }
    let id = history.find(flags.run.as_deref())?;
    let report = history.report(id)?;
    if let Some(file) = &flags.html {
        write(file, &page::page(&report, &history.began(id)))?;
    }
    if let Some(file) = &flags.trace {
        write(file, &trace::events(&report).to_string())?;
    }
    if flags.json {
        let text = serde_json::to_string(&report).expect("a report holds only plain data");
        answer(format_args!("{text}\n"))?;
    } else if flags.html.is_none() && flags.trace.is_none() {
        answer(format_args!(
            "run {} of {}, began {} UTC, {} after {}\n\n",
            report.run,
            report.pipeline,
            history.began(id),
            report.status.name(),
            table::seconds(report.wall_s)
        ))?;
        if report.is_damaged {
            answer("The journal of this run is damaged; this is what is left of it.\n\n")?;
        }
        answer(table::summary(&report))?;
        answer(summary::failures(&report))?;
        answer(summary::confinement(&report))?;
    }
    Ok(Exit::Ok)
}

/// Rungs with and without, over all runs that can be read.
fn arms(flags: &ReportFlags, history: &History) -> Result<Exit, Failed> {
    let mut arms = Arms::default();
    for report in history.all().iter().filter_map(|run| history.report(run).ok()) {
        arms.take(&report);
    }
    let rows = arms.rows();
    if flags.json {
        let row = |row: &RungRow| {
            json!({
                "pipeline": row.pipeline, "stage": row.stage, "class": row.class, "rung": row.rung,
                "with": Side::from(row.with), "without": Side::from(row.without),
            })
        };
        let list: Vec<_> = rows.iter().map(row).collect();
        answer(format_args!("{}\n", json!({ "arms": list })))?;
        return Ok(Exit::Ok);
    }
    if rows.is_empty() {
        tell(format_args!("smelt: no stage was tried again with a rung of its ladder yet"));
    }
    let header = ["Pipeline", "Stage", "After", "Rung", "With it", "Without it"];
    let mut table = Table::new(&header);
    for row in rows {
        let (with, without) = (row.with.to_string(), row.without.to_string());
        let (class, rung) = (row.class.to_owned(), row.rung.name().to_owned());
        table.row([row.pipeline, row.stage, class, rung, with, without]);
    }
    answer(table)?;
    Ok(Exit::Ok)
}

fn write(file: &Path, text: &str) -> Result<(), Failed> {
    fs::write(file, text).map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", file.display()))
    })?;
    tell(format_args!("smelt: wrote {}", file.display()));
    Ok(())
}
