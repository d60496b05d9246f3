//! `smelt report`: tells what a run did, as a table, JSON, a page or a trace.

use std::fs;
use std::path::Path;

use crate::exit::{Exit, Failed};
use crate::flags::ReportFlags;
use crate::history::History;
use crate::report::{html, trace};
use crate::say::{answer, tell};
use crate::table;

pub(crate) fn run(flags: &ReportFlags) -> Result<Exit, Failed> {
    let history = History::open()?;
    let id = history.find(flags.run.as_deref())?;
    let report = history.report(id)?;
    if let Some(file) = &flags.html {
        write(file, &html::page(&report, &id.began()))?;
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
            id.began(),
            report.status.name(),
            table::seconds(report.wall_s)
        ))?;
        answer(table::summary(&report))?;
        answer(table::failures(&report))?;
        answer(table::unwatched(&report))?;
    }
    Ok(Exit::Ok)
}

fn write(file: &Path, text: &str) -> Result<(), Failed> {
    fs::write(file, text).map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", file.display()))
    })?;
    tell(format_args!("smelt: wrote {}", file.display()));
    Ok(())
}
