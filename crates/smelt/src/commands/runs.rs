//! `smelt runs`: lists the runs that the store remembers, newest first.

use serde_json::{Value, json};
use smelt_exec::RunReport;
use smelt_exec::lending::{Lent, Party, lent};
use smelt_exec::served::{self, Server};
use smelt_report::summary::counts;
use smelt_store::{RunId, Store, Wait};

use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::{ForgetFlags, RunsCommand, RunsFlags};
use crate::history::History;
use crate::leftovers::clear_dead;
use crate::load;
use crate::table::{Table, bytes, seconds};

pub(crate) fn run(flags: &RunsFlags) -> Result<Exit, Failed> {
    if let Some(RunsCommand::Forget(flags)) = &flags.command {
        return forget(flags);
    }
    let history = History::open()?;
    let count = if flags.all { usize::MAX } else { flags.last };
    let seen = |run| (run, history.began(run), history.report(run));
    let runs: Vec<_> = history.newest(count).map(seen).collect();
    let Lent { held, waiting } = lent(&load::tokens());
    let servers = served::servers(&load::tokens());
    if flags.json {
        let rows = runs.iter().map(|(run, began, report)| as_json(run, began, report));
        let list: Vec<Value> = rows.collect();
        let held: Vec<Value> =
            held.iter().map(|(what, who)| json!({ "what": what, "by": who })).collect();
        let text = json!({ "runs": list, "held": held, "queue": waiting, "servers": servers });
        answer(format_args!("{text}\n"))?;
        return Ok(Exit::Ok);
    }
    queue(&held, &waiting)?;
    serving(&servers)?;
    let mut table =
        Table::new(&["Run", "Pipeline", "Began (UTC)", "Status", "Built", "Hit", "Failed", "Time"]);
    for (run, began, report) in &runs {
        table.row(row(run, began, report));
    }
    answer(table)?;
    Ok(Exit::Ok)
}

/// Who holds the machine's tokens and who waits for some, of all stores; nothing where nobody waits.
fn queue(held: &[(String, Party)], waiting: &[Party]) -> Result<(), Failed> {
    if waiting.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["Tokens", "Run", "Pipeline", "Stage", "Priority"]);
    let mut row = |what: String, who: &Party| {
        let Party { run, pipeline, stage, priority, .. } = who;
        table.row([what, run.clone(), pipeline.clone(), stage.clone(), priority.to_string()]);
    };
    held.iter().for_each(|(what, who)| row(format!("{what} held"), who));
    for who in waiting {
        let wants = who.wants.iter().map(|(name, amount)| format!("{amount} of {name}"));
        row(format!("{} waited for", wants.collect::<Vec<_>>().join(", ")), who);
    }
    answer(table)?;
    answer("\n")
}

/// What servers of this machine hold of its memory, of all stores; nothing where there is none.
fn serving(servers: &[Server]) -> Result<(), Failed> {
    if servers.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["Server", "Pid", "Holds", "May hold"]);
    for Server { name, pid, holds_bytes, holds_max_bytes, .. } in servers {
        table.row([name.clone(), pid.to_string(), bytes(*holds_bytes), bytes(*holds_max_bytes)]);
    }
    answer(table)?;
    answer("\n")
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
        if history.open_run(run)?.is_some()
            && let Some(dead) = store.dead_run(run)?
        {
            dead.close_journal(&json!({ "event": "forgotten", "at_s": 0.0, "detail": null }))?;
            dead.clear()?;
        }
        store.forget_open(run)?;
        answer(format_args!("run {run} is forgotten\n"))?;
    }
    Ok(Exit::Ok)
}

fn row(run: &RunId, began: &str, report: &Result<RunReport, Failed>) -> [String; 8] {
    let (id, began) = (run.to_string(), began.to_owned());
    let Ok(report) = report else {
        let [unknown, empty] = ["-", "unreadable"].map(str::to_owned);
        let none = || unknown.clone();
        return [id, none(), began, empty, none(), none(), none(), none()];
    };
    let [built, hit, failed] = counts(report).map(|count| count.to_string());
    let status = if report.is_damaged { "damaged" } else { report.status.name() };
    let (status, time) = (status.to_owned(), seconds(report.wall_s));
    [id, report.pipeline.clone(), began, status, built, hit, failed, time]
}

fn as_json(run: &RunId, began: &str, report: &Result<RunReport, Failed>) -> Value {
    // By RFC 3339.
    let began = began.replace(' ', "T") + "Z";
    match report {
        Ok(report) => {
            let [built, hit, failed] = counts(report);
            json!({
                "run": run.as_str(), "pipeline": report.pipeline, "began": began,
                "status": report.status, "journal_damaged": report.is_damaged, "built": built, "hit": hit, "failed": failed,
                "wall_s": report.wall_s,
            })
        }
        Err(why) => json!({
            "run": run.as_str(), "began": began, "status": "unreadable",
            "message": why.to_string(),
        }),
    }
}
