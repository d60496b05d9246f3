//! `smelt runs`: lists the runs that the store remembers, newest first.

use serde_json::{Value, json};
use smelt_exec::{RunReport, StageStatus};
use smelt_store::{RunId, Store, Wait};

use crate::commands::run::clear_dead;
use crate::exit::{Exit, Failed};
use crate::flags::{ForgetFlags, RunsCommand, RunsFlags};
use crate::history::History;
use crate::load;
use crate::say::answer;
use crate::table::{Table, seconds};

pub(crate) fn run(flags: &RunsFlags) -> Result<Exit, Failed> {
    if let Some(RunsCommand::Forget(flags)) = &flags.command {
        return forget(flags);
    }
    let history = History::open()?;
    let count = if flags.all { usize::MAX } else { flags.last };
    let runs: Vec<_> = history.newest(count).map(|run| (run, history.report(run))).collect();
    if flags.json {
        let list: Vec<Value> = runs.iter().map(|(run, report)| as_json(run, report)).collect();
        answer(format_args!("{}\n", json!({ "runs": list })))?;
        return Ok(Exit::Ok);
    }
    let mut table =
        Table::new(&["Run", "Pipeline", "Began (UTC)", "Status", "Built", "Hit", "Failed", "Time"]);
    for (run, report) in &runs {
        table.row(row(run, report));
    }
    answer(table)?;
    Ok(Exit::Ok)
}

/// What is forgotten is no longer gone on with, and no longer spared by collections.
fn forget(flags: &ForgetFlags) -> Result<Exit, Failed> {
    let root = load::root()?;
    Store::open_read_only(&root, Wait::Yes)?;
    let store = Store::open(&root, Wait::Yes)?;
    clear_dead(&store)?;
    let history = History::of(store.clone())?;
    let runs = match flags.all {
        true => store.open_runs()?,
        false => {
            let found = flags.runs.iter().map(|text| history.find(Some(text)).cloned());
            found.collect::<Result<Vec<_>, _>>()?
        }
    };
    for run in &runs {
        if store.is_running(run)? {
            if flags.all {
                continue;
            }
            return Err(Failed::new(Exit::Held, format!("run {run} goes on; stop it first")));
        }
        if history.open_run(run)?.is_some() {
            store.close_journal(run, &json!({ "event": "forgotten", "at_s": 0.0, "detail": null }))?;
        }
        store.forget_open(run)?;
        answer(format_args!("run {run} is forgotten\n"))?;
    }
    Ok(Exit::Ok)
}

fn row(run: &RunId, report: &Result<RunReport, Failed>) -> [String; 8] {
    let (id, began) = (run.to_string(), run.began());
    let Ok(report) = report else {
        let [unknown, empty] = ["-", "unreadable"].map(str::to_owned);
        let none = || unknown.clone();
        return [id, none(), began, empty, none(), none(), none(), none()];
    };
    let [built, hit, failed] = counts(report).map(|count| count.to_string());
    let (status, time) = (report.status.name().to_owned(), seconds(report.wall_s));
    [id, report.pipeline.clone(), began, status, built, hit, failed, time]
}

fn as_json(run: &RunId, report: &Result<RunReport, Failed>) -> Value {
    match report {
        Ok(report) => {
            let [built, hit, failed] = counts(report);
            json!({
                "run": run.as_str(), "pipeline": report.pipeline, "began": began(run),
                "status": report.status, "built": built, "hit": hit, "failed": failed,
                "wall_s": report.wall_s,
            })
        }
        Err(why) => json!({
            "run": run.as_str(), "began": began(run), "status": "unreadable",
            "message": why.to_string(),
        }),
    }
}

/// By RFC 3339.
fn began(run: &RunId) -> String {
    run.began().replace(' ', "T") + "Z"
}

/// Stages built, found and failed.
pub(crate) fn counts(report: &RunReport) -> [usize; 3] {
    [StageStatus::Sealed, StageStatus::Hit, StageStatus::Failed]
        .map(|status| report.stages.iter().filter(|stage| stage.status == status).count())
}
