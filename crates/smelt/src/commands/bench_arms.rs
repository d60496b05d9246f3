//! `smelt bench arms`: builds one stage again and again, behind nothing and behind what its ladder has.
//!
//! Each trial is a run of its own, so that it is watched, limited and recorded as any other; nothing is tried twice in one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use smelt_exec::RunReport;
use smelt_plan::plan::Stage;
use smelt_report::arms::Side;
use smelt_report::trials::{Row, Trial, differ, order};

use super::run::changes;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{Arm, ArmsFlags, PipelineFlags};
use crate::load;
use crate::table::{Table, bytes, seconds};

pub(crate) fn run(flags: &ArmsFlags) -> Result<Exit, Failed> {
    let (pipeline, stage) = target(&flags.target)?;
    let pipeline = PipelineFlags { pipeline, sets: flags.sets.clone() };
    let plan = load::plan_unpinned(&pipeline)?;
    let tried = plan.stage(plan.find(&stage)?);
    flags.arms.iter().try_for_each(|arm| changes(tried, &arm.rungs).map(drop))?;
    let needs: Vec<&str> = tried.needs().map(|need| plan.stage(need).name.as_str()).collect();
    if !needs.is_empty() {
        tell(format_args!("smelt: building what {stage} needs"));
        let built = run_of(&pipeline, needs.iter().flat_map(|need| ["--only", *need]))?;
        if let Some(exit) = built.exit.filter(|exit| *exit != 0) {
            return Err(Failed::new(
                Exit::StageFailed,
                format!("what {stage} needs cannot be built (exit {exit})"),
            ));
        }
    }
    let seed = flags.seed.unwrap_or_else(clock);
    let order = order(flags.arms.len(), flags.runs, seed);
    let mut trials = Vec::with_capacity(order.len());
    for (at, &arm) in order.iter().enumerate() {
        let Arm { name, rungs } = &flags.arms[arm];
        let rungs = rungs.iter().flat_map(|rung| ["--begin", rung.name()]);
        let only = ["--only", &stage, "--force", &stage, "--once"];
        let ended = run_of(&pipeline, only.into_iter().chain(rungs))?;
        let trial = ended.report.as_ref().and_then(|report| Trial::of(arm, report, &stage));
        let Some(trial) = trial else {
            let how =
                ended.exit.map_or_else(|| "a signal".to_owned(), |exit| format!("exit {exit}"));
            return Err(Failed::new(
                Exit::StageFailed,
                format!("a trial of {stage} ended without a report ({how})"),
            ));
        };
        let how = trial.class.unwrap_or("sealed");
        tell(format_args!(
            "[{}/{}] {name}: {how} in {}",
            at + 1,
            order.len(),
            seconds(trial.wall_s)
        ));
        trials.push(trial);
    }
    tell_results(flags, tried, seed, &trials)
}

/// The pipeline and the stage of `PIPELINE#STAGE`.
fn target(target: &Path) -> Result<(PathBuf, String), Failed> {
    let parts = target.to_str().and_then(|text| text.rsplit_once('#'));
    let (file, stage) =
        parts.filter(|(file, stage)| !file.is_empty() && !stage.is_empty()).ok_or_else(|| {
            Failed::usage(format!("{} names no stage: write PIPELINE#STAGE", target.display()))
        })?;
    Ok((PathBuf::from(file), stage.to_owned()))
}

fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ now.as_secs()
}

/// How a run ended.
struct Ended {
    exit: Option<i32>,
    report: Option<RunReport>,
}

/// A run of this pipeline, with these flags, in a process of its own.
fn run_of<'a>(
    pipeline: &PipelineFlags,
    flags: impl IntoIterator<Item = &'a str>,
) -> Result<Ended, Failed> {
    let failed =
        |why: String| Failed::new(Exit::StageFailed, format!("cannot start a trial: {why}"));
    let program = env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["--quiet", "run", "--json"]).args(flags);
    command.args(pipeline.sets.iter().map(|set| format!("--set={set}")));
    command.arg("--").arg(&pipeline.pipeline).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let report = serde_json::from_slice(&output.stdout).ok();
    Ok(Ended { exit: output.status.code(), report })
}

fn tell_results(
    flags: &ArmsFlags,
    stage: &Stage,
    seed: u64,
    trials: &[Trial],
) -> Result<Exit, Failed> {
    let rows: Vec<Row> = (0..flags.arms.len()).map(|arm| Row::of(arm, trials)).collect();
    if flags.json {
        let arm = |(arm, row): (&Arm, &Row)| {
            json!({
                "arm": arm.name, "trials": Side::from(row.count), "wall_s": row.wall_s,
                "peak_rss_bytes": row.peak_rss_bytes, "failures": row.failures,
            })
        };
        let arms: Vec<_> = flags.arms.iter().zip(&rows).map(arm).collect();
        let document = json!({
            "stage": stage.name.as_str(), "seed": seed, "arms": arms, "trials": trials,
        });
        answer(format_args!("{document}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Arm", "Sealed", "Time", "Peak RSS", "Failures"]);
    for (arm, row) in flags.arms.iter().zip(&rows) {
        let time = row.wall_s.map_or_else(
            || "-".to_owned(),
            |[least, median, most]| {
                format!("{} ({} to {})", seconds(median), seconds(least), seconds(most))
            },
        );
        let failures = row.failures.iter().map(|(class, count)| format!("{count} {class}"));
        let failures = failures.collect::<Vec<_>>().join(", ");
        let peak = row.peak_rss_bytes.map_or_else(|| "-".to_owned(), bytes);
        table.row([arm.name.clone(), row.count.to_string(), time, peak, failures]);
    }
    answer(table)?;
    answer(format_args!("{}\n", verdict(&flags.arms, &rows)))?;
    Ok(Exit::Ok)
}

/// What so many trials tell of the arms, each beside the first.
fn verdict(arms: &[Arm], rows: &[Row]) -> String {
    let others = arms.iter().zip(rows).skip(1);
    let of = |(arm, row): (&Arm, &Row)| {
        let (name, first) = (&arm.name, &arms[0].name);
        match differ(row, &rows[0]) {
            false => format!("{name} and {first} are not told apart by so few trials"),
            true if row.count.rate() > rows[0].count.rate() => format!("{name} helps"),
            true => format!("{name} does harm"),
        }
    };
    let told: Vec<String> = others.map(of).collect();
    if told.is_empty() {
        "one arm has nothing to be compared with".to_owned()
    } else {
        told.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use smelt_report::arms::Count;

    use super::*;

    #[test]
    fn a_target_names_a_file_and_a_stage() {
        let found = target(Path::new("a/b#c.toml#engine")).unwrap();
        assert_eq!(found, (PathBuf::from("a/b#c.toml"), "engine".to_owned()));
        for wrong in ["p.toml", "p.toml#", "#engine"] {
            assert!(target(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_trials_tell_is_said_of_each_arm_beside_the_first() {
        let arms = ["cold", "warm-up"].map(|name| Arm { name: name.to_owned(), rungs: Vec::new() });
        let row = |sealed| Row { count: Count { tried: 20, sealed }, ..Row::of(0, &[]) };
        let of = |cold, warm| verdict(&arms, &[row(cold), row(warm)]);
        assert_eq!(of(2, 19), "warm-up helps");
        assert_eq!(of(19, 2), "warm-up does harm");
        assert!(of(10, 12).contains("not told apart"));
    }
}
