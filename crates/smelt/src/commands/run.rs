//! `smelt run`: builds what a pipeline describes and prints the summary.

use std::time::SystemTime;

use smelt_exec::{RunReport, RunStatus, Runner, StageStatus, clear_dead_runs};
use smelt_plan::Plan;
use smelt_plan::schedule::Wishes;
use smelt_store::Wait;

use crate::exit::{Exit, Failed};
use crate::flags::RunFlags;
use crate::load::{self, Loaded};
use crate::progress::Display;
use crate::{stage, table};

pub(crate) fn run(flags: &RunFlags) -> Result<Exit, Failed> {
    let wait = if flags.no_wait { Wait::No } else { Wait::Yes };
    let Loaded { plan, store } = load::plan(&flags.pipeline, wait)?;
    let wishes = wishes(flags, &plan)?;
    clear_dead_runs(&store)?;
    let run = store.begin_run(SystemTime::now())?;
    let mut display = Display::new(&plan);
    let runner = Runner {
        plan: &plan,
        store: &store,
        run: &run,
        orders: &stage::order::order,
        progress: &mut |progress| display.show(progress),
    };
    let report = runner.run(wishes)?;
    display.finish();
    run.finish()?;
    if flags.json {
        let text = serde_json::to_string(&report).expect("a report holds only plain data");
        println!("{text}");
    } else {
        print!("{}", table::summary(&report));
    }
    Ok(tell_end(flags, &report))
}

fn wishes(flags: &RunFlags, plan: &Plan) -> Result<Wishes, Failed> {
    let find = |names: &[String]| -> Result<Vec<_>, Failed> {
        names.iter().map(|name| Ok(plan.find(name)?)).collect()
    };
    Ok(Wishes {
        jobs: flags.jobs,
        keep_going: flags.keep_going,
        wait: !flags.no_wait,
        only: find(&flags.only)?,
        force: find(&flags.force)?.into_iter().collect(),
    })
}

/// The last word, on standard error, and the exit code.
fn tell_end(flags: &RunFlags, report: &RunReport) -> Exit {
    let pipeline = flags.pipeline.pipeline.display();
    match report.status {
        RunStatus::Ok if report.stages.iter().all(|stage| stage.status == StageStatus::Hit) => {
            eprintln!("smelt: nothing to do: every stage of {pipeline} is already built");
            Exit::Ok
        }
        RunStatus::Ok => Exit::Ok,
        RunStatus::Failed => {
            tell_failures(report);
            exit_of_failure(report)
        }
        RunStatus::Interrupted => {
            eprintln!("smelt: stopped; what was sealed is kept, run the same command to go on");
            Exit::Interrupted
        }
        RunStatus::Held => {
            eprintln!(
                "smelt: another run is building a stage of {pipeline}; run without --no-wait to wait for it"
            );
            Exit::Held
        }
    }
}

fn tell_failures(report: &RunReport) {
    for stage in report.stages.iter().filter(|stage| stage.status == StageStatus::Failed) {
        let message = stage.message.as_deref().unwrap_or("failed");
        eprintln!("smelt: stage {}: {message}", stage.name);
        if let Some(attempt) = stage.attempts.last() {
            eprintln!("smelt: its log is {}", attempt.log.display());
        }
    }
}

/// A model that is wrong or does not fit says so through the run's own exit code.
fn exit_of_failure(report: &RunReport) -> Exit {
    match report.first_failure.as_ref().and_then(|failure| failure.exit) {
        Some(4) => Exit::BadModel,
        Some(5) => Exit::DoesNotFit,
        _ => Exit::StageFailed,
    }
}
