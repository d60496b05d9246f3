//! `smelt bench arms`: builds one stage again and again, behind nothing and behind what its ladder has.
//!
//! Each trial is a run of its own, so that it is watched, limited and recorded as any other; nothing is tried twice in one.

use std::env;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use smelt_exec::RunReport;
use smelt_plan::plan::Stage;
use smelt_report::arms::Side;
use smelt_report::trials::{ArmOutcome, Trial, differ, order};

use super::run::changes;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{Arm, ArmsFlags, PipelineFlags};
use crate::load;
use crate::stop::stop_flag;
use crate::table::{Table, bytes, seconds};

/// How often it is looked whether a trial has ended, which takes seconds at the least.
const TICK: Duration = Duration::from_millis(50);

pub(crate) fn run(flags: &ArmsFlags) -> Result<Exit, Failed> {
    let (pipeline, stage) = target(&flags.target)?;
    let pipeline = PipelineFlags { pipeline, sets: flags.sets.clone() };
    let plan = load::plan_unpinned(&pipeline)?;
    let tried = plan.stage(plan.find(&stage)?);
    flags.arms.iter().try_for_each(|arm| changes(tried, &arm.rungs).map(drop))?;
    let bench = Bench { pipeline: &pipeline, stop: stop_flag()? };
    let needs: Vec<&str> = tried.needs().map(|need| plan.stage(need).name.as_str()).collect();
    if !needs.is_empty() {
        tell(format_args!("smelt: building what {stage} needs"));
        let built = bench.run(needs.iter().flat_map(|need| ["--only", *need]))?;
        if built.exit != Some(0) {
            let why = format!("what {stage} needs could not be built");
            return Err(Failed::new(Exit::StageFailed, why));
        }
    }
    let seed = flags.seed.unwrap_or_else(clock);
    let order = order(flags.arms.len(), flags.runs, seed);
    let mut trials = Vec::with_capacity(order.len());
    for (at, &arm) in order.iter().enumerate() {
        let Arm { name, rungs } = &flags.arms[arm];
        let rungs = rungs.iter().flat_map(|rung| ["--begin", rung.name()]);
        let only = ["--only", &stage, "--force", &stage, "--once"];
        let ended = bench.run(only.into_iter().chain(rungs))?;
        let report = ended.report.ok_or_else(|| "it ended without a report".to_owned());
        match report.and_then(|report| Trial::of(arm, &report, &stage)) {
            Ok(trial) => {
                let how = trial.class.unwrap_or("sealed");
                let (at, all, took) = (at + 1, order.len(), seconds(trial.wall_s));
                tell(format_args!("[{at}/{all}] {name}: {how} in {took}"));
                trials.push(trial);
            }
            Err(_) if bench.stop.load(Ordering::Relaxed) => break,
            Err(why) => {
                let why = format!("a trial of {stage} behind {name} counts for nothing: {why}");
                return Err(Failed::new(Exit::StageFailed, why));
            }
        }
    }
    tell_results(flags, tried, seed, &trials)?;
    let is_whole = trials.len() == order.len();
    Ok(if is_whole { Exit::Ok } else { Exit::Interrupted })
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

/// Runs of one pipeline.
struct Bench<'a> {
    pipeline: &'a PipelineFlags,
    /// Whether somebody wants this to end.
    stop: Arc<AtomicBool>,
}

impl Bench<'_> {
    /// A run with these flags, in a process of its own; who ends this ends that.
    fn run<'a>(&self, flags: impl IntoIterator<Item = &'a str>) -> Result<Ended, Failed> {
        let failed = |error: io::Error| {
            Failed::new(Exit::StageFailed, format!("cannot run a trial: {error}"))
        };
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.args(["--quiet", "run", "--json"]).args(flags);
        command.args(self.pipeline.sets.iter().map(|set| format!("--set={set}")));
        command.arg("--").arg(&self.pipeline.pipeline).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let mut output = child.stdout.take().expect("it was asked for");
        let reading = thread::spawn(move || {
            let mut text = Vec::new();
            output.read_to_end(&mut text).map(|_| text)
        });
        let mut is_told = false;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if self.stop.load(Ordering::Relaxed) && !is_told {
                let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
                is_told = true;
            }
            thread::sleep(TICK);
        };
        let text = reading.join().expect("reading does not panic").map_err(failed)?;
        Ok(Ended { exit: status.code(), report: serde_json::from_slice(&text).ok() })
    }
}

fn tell_results(
    flags: &ArmsFlags,
    stage: &Stage,
    seed: u64,
    trials: &[Trial],
) -> Result<(), Failed> {
    let rows: Vec<ArmOutcome> =
        (0..flags.arms.len()).map(|arm| ArmOutcome::of(arm, trials)).collect();
    if flags.json {
        let arm = |(arm, row): (&Arm, &ArmOutcome)| {
            json!({
                "arm": arm.name, "trials": Side::from(row.count), "wall_s": row.wall_s,
                "peak_rss_bytes": row.peak_rss_bytes, "failures": row.failures,
            })
        };
        let arms: Vec<_> = flags.arms.iter().zip(&rows).map(arm).collect();
        let document = json!({
            "stage": stage.name.as_str(), "seed": seed, "arms": arms, "trials": trials,
        });
        return answer(format_args!("{document}\n"));
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
    answer(format_args!("{}\n", verdict(&flags.arms, &rows)))
}

/// What so many trials tell of the arms, each beside the first.
fn verdict(arms: &[Arm], rows: &[ArmOutcome]) -> String {
    let others = arms.iter().zip(rows).skip(1);
    let of = |(arm, row): (&Arm, &ArmOutcome)| {
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
        let row =
            |sealed| ArmOutcome { count: Count { tried: 20, sealed }, ..ArmOutcome::of(0, &[]) };
        let of = |cold, warm| verdict(&arms, &[row(cold), row(warm)]);
        assert_eq!(of(2, 19), "warm-up helps");
        assert_eq!(of(19, 2), "warm-up does harm");
        assert!(of(10, 12).contains("not told apart"));
    }
}
