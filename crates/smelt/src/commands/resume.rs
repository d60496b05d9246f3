//! `smelt resume`: goes on with runs that did not end.

use serde_json::json;
use smelt_exec::recorded::Death;

use crate::commands::run::{Start, run_as};
use crate::console::{answer, tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::ResumeFlags;
use crate::history::History;
use crate::reboot;
use crate::table::Table;
use crate::unfinished::{self, RunArguments, Unfinished};

pub(crate) fn run(flags: &ResumeFlags) -> Result<Exit, Failed> {
    let history = History::open()?;
    let Unfinished { mut open, unread } = unfinished::all(&history);
    for why in &unread {
        warn(format_args!("{why}; it is passed over"));
    }
    if flags.after_boot {
        open.retain(|(_, _, open)| open.wants_reboot || open.death == Death::BoardReset);
    }
    if flags.list {
        return list(flags, &open);
    }
    let start = if flags.after_boot { Start::AfterBoot } else { Start::ByUser };
    let mut exit = Exit::Ok;
    for (run, told, open) in &open {
        tell(format_args!(
            "smelt: run {run} of {} {}; going on",
            open.pipeline,
            unfinished::why(open)
        ));
        let ended = go_on(told, start)?;
        if exit == Exit::Ok {
            exit = ended;
        }
        if ended == Exit::Interrupted {
            return Ok(exit);
        }
    }
    if open.is_empty() {
        tell(format_args!("smelt: no run in this store waits to go on"));
    }
    reboot::forget(&crate::load::root()?);
    Ok(exit)
}

/// In the directory it was started in, where relative paths of it lead.
fn go_on(told: &RunArguments, start: Start) -> Result<Exit, Failed> {
    let root = std::path::absolute(crate::load::root()?).unwrap_or_default();
    std::env::set_current_dir(&told.dir).map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot go to {}: {error}", told.dir.display()))
    })?;
    if std::path::absolute(crate::load::root()?).ok() != Some(root) {
        let dir = told.dir.display();
        return Err(Failed::usage(format!(
            "run it in {dir}, or set SMELT_CACHE to an absolute path"
        )));
    }
    run_as(&told.flags(), start)
}

fn list(
    flags: &ResumeFlags,
    open: &[(smelt_store::RunId, RunArguments, smelt_exec::recorded::Open)],
) -> Result<Exit, Failed> {
    if flags.json {
        let row =
            |(run, told, open): &(smelt_store::RunId, RunArguments, smelt_exec::recorded::Open)| {
                json!({
                    "run": run.as_str(), "pipeline": open.pipeline, "why": unfinished::why(open),
                    "command": told,
                })
            };
        let rows: Vec<_> = open.iter().map(row).collect();
        answer(format_args!("{}\n", json!({ "runs": rows })))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Run", "Pipeline", "Why", "Directory"]);
    for (run, told, open) in open {
        let dir = told.dir.display().to_string();
        table.row([run.to_string(), open.pipeline.clone(), unfinished::why(open).to_owned(), dir]);
    }
    answer(table)?;
    Ok(Exit::Ok)
}
