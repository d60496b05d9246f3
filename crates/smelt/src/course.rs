//! Keeps how far a run is: what each stage does, what share of it is done, what memory it holds beside its
//! forecast, and what time is left.
//!
//! Hears what a run tells and answers whoever shows it, in words or as JSON.  It has no clock: times are those that
//! are heard.  What time is left follows from the share that is done, else from what the stage took the last time;
//! where neither is known, nobody pretends to know.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use smelt_exec::Progress;
use smelt_plan::admission::Forecast;
use smelt_plan::plan::{From, Stage};
use smelt_plan::{Plan, StageId};
use smelt_watch::headway::left_words;

use crate::last_run::LastRun;
use crate::table::{bytes, seconds};
use crate::telling::Doing;

/// A run that goes on.
pub(crate) struct Course {
    stages: Vec<StageCourse>,
    /// Stages at once.
    jobs: usize,
}

/// How far one stage is.
struct StageCourse {
    name: String,
    is_wanted: bool,
    /// What it reads comes from a hub, so that what it counts are bytes.
    fetches: bool,
    /// What it took the last time.
    expected: Option<Duration>,
    state: State,
}

/// What a stage does.
enum State {
    Waits,
    Runs(RunningAttempt),
    /// The store has its output, or it failed.
    Ended,
}

/// An attempt that runs.
#[derive(Default)]
struct RunningAttempt {
    elapsed: Duration,
    rss_bytes: u64,
    held_bytes: u64,
    forecast: Option<Forecast>,
    doing: Doing,
}

/// The time that a run still takes at least: stages that wait for each other may take longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimeLeft {
    /// Of the stages of which that is known.
    known: Duration,
    /// Of how many stages it is not known.
    unknown: usize,
}

/// What the stages of a plan took when they were built last; of those that were written otherwise then, the same
/// is the best guess there is.
pub(crate) fn expected(plan: &Plan, last: &LastRun) -> Vec<Option<Duration>> {
    let took = |stage: &Stage| last.took(stage.name.as_str());
    let wall = |(_, stage): (_, &Stage)| Duration::try_from_secs_f64(took(stage)?.wall_s).ok();
    plan.stages().map(wall).collect()
}

impl Course {
    /// Of a run of `only`, or of all stages, that has not begun; its stages took what `expected` says.
    pub(crate) fn new(
        plan: &Plan,
        wanted: &BTreeSet<StageId>,
        expected: &[Option<Duration>],
        jobs: usize,
    ) -> Self {
        let stage = |(id, stage): (StageId, &Stage)| StageCourse {
            name: stage.name.to_string(),
            is_wanted: wanted.contains(&id),
            fetches: stage.inputs.iter().any(|input| matches!(input.from, From::Hub(_))),
            expected: expected.get(id.index()).copied().flatten(),
            state: if stage.given().is_some() { State::Ended } else { State::Waits },
        };
        Self { stages: plan.stages().map(stage).collect(), jobs }
    }

    /// Takes what the run tells.
    pub(crate) fn hear(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Hit(stage) | Progress::Ended(stage, _) => {
                self.stages[stage.index()].state = State::Ended;
            }
            Progress::Started { stage, forecast, .. } => {
                let forecast = *forecast;
                let stage = &mut self.stages[stage.index()];
                let doing = Doing::expected_to_take(stage.expected);
                stage.state =
                    State::Runs(RunningAttempt { forecast, doing, ..RunningAttempt::default() });
            }
            Progress::Running { stage, elapsed, rss_bytes, held_bytes, last_line } => {
                if let State::Runs(attempt) = &mut self.stages[stage.index()].state {
                    attempt.doing.hear(*elapsed, last_line);
                    attempt.elapsed = *elapsed;
                    (attempt.rss_bytes, attempt.held_bytes) = (*rss_bytes, *held_bytes);
                }
            }
            _ => {}
        }
    }

    /// `[2/7] vision-engine`.
    pub(crate) fn label(&self, stage: StageId) -> String {
        self.label_at(stage.index())
    }

    fn label_at(&self, at: usize) -> String {
        format!("[{}/{}] {}", at + 1, self.stages.len(), self.stages[at].name)
    }

    /// The stages that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        let all = self.stages.iter().enumerate();
        all.filter_map(|(at, stage)| matches!(stage.state, State::Runs(_)).then_some(at))
    }

    fn attempt(&self, at: usize) -> Option<&RunningAttempt> {
        match &self.stages.get(at)?.state {
            State::Runs(attempt) => Some(attempt),
            State::Waits | State::Ended => None,
        }
    }

    /// Whether the stage's last line said anything that the one before did not.
    pub(crate) fn is_news(&self, stage: StageId) -> bool {
        self.attempt(stage.index()).is_some_and(|attempt| attempt.doing.is_news())
    }

    /// The line of the stage at a place, if it runs.
    pub(crate) fn line(&self, at: usize) -> Option<String> {
        let attempt = self.attempt(at)?;
        let label = self.label_at(at);
        if attempt.elapsed.is_zero() && attempt.doing.is_silent() {
            return Some(format!("{label} starts"));
        }
        let took = seconds(attempt.elapsed.as_secs_f64());
        let words = attempt.doing.words(attempt.elapsed);
        Some(format!("{label} {took} {} {words}", attempt.memory()))
    }

    /// How far the run as a whole is: `3 of 7 stages, about 4 min left`.  Nothing where a stage's own line says it all.
    pub(crate) fn whole(&self) -> Option<String> {
        let [ended, all] = self.counts();
        (all > ended + 1).then(|| format!("{ended} of {all} stages, {}", self.left().words()))
    }

    /// How many of the stages that are wanted have ended, and how many there are.
    fn counts(&self) -> [usize; 2] {
        let wanted = || self.stages.iter().filter(|stage| stage.is_wanted);
        [wanted().filter(|stage| matches!(stage.state, State::Ended)).count(), wanted().count()]
    }

    /// The time that is left.
    fn left(&self) -> TimeLeft {
        let open = self.stages.iter().filter(|stage| stage.is_wanted && !stage.has_ended());
        TimeLeft::of(&open.map(StageCourse::left).collect::<Vec<_>>(), self.jobs)
    }

    /// What a program hears of a stage that runs.
    pub(crate) fn as_json(&self, stage: StageId) -> Value {
        let at = stage.index();
        let Some(attempt) = self.attempt(at) else { return Value::Null };
        let mut value = attempt.as_json(self.stages[at].fetches);
        value["stage"] = json!(self.stages[at].name);
        let ([ended, all], left) = (self.counts(), self.left());
        value["run"] = json!({
            "stages_ended": ended, "stages": all,
            "left_s": left.exact().map(|left| left.as_secs()),
            "left_known_s": left.known.as_secs(), "stages_untimed": left.unknown,
        });
        value
    }
}

impl StageCourse {
    fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// The time that it still takes, as far as anybody knows.
    fn left(&self) -> Option<Duration> {
        match &self.state {
            State::Waits => self.expected,
            State::Runs(attempt) => attempt.doing.left(attempt.elapsed),
            State::Ended => Some(Duration::ZERO),
        }
    }
}

impl RunningAttempt {
    /// `holds 83.0 MiB of 99.0 MiB` where it has a forecast; else what is resident.
    fn memory(&self) -> String {
        memory(self.rss_bytes, self.held_bytes, self.forecast.map(|forecast| forecast.bytes))
    }

    fn as_json(&self, fetches: bool) -> Value {
        let left_s = self.doing.left(self.elapsed).map(|left| left.as_secs());
        let mut value = json!({
            "elapsed_s": self.elapsed.as_secs_f64(),
            "rss_bytes": self.rss_bytes, "held_bytes": self.held_bytes,
            "forecast_bytes": self.forecast.map(|forecast| forecast.bytes),
            "done": self.doing.done(), "left_s": left_s, "doing": self.doing.what(),
        });
        if let (true, Some([done, all])) = (fetches, self.doing.counts()) {
            value["fetched_bytes"] = json!(done);
            value["fetch_bytes"] = json!(all);
            let rate = self.doing.speed().map(|speed| (speed * all as f64).round());
            value["fetch_bytes_per_s"] = json!(rate);
        }
        value
    }
}

/// What is held of what was expected, or what is resident where nothing was.
pub(crate) fn memory(rss_bytes: u64, held_bytes: u64, forecast_bytes: Option<u64>) -> String {
    match forecast_bytes {
        None => bytes(rss_bytes),
        Some(forecast) if held_bytes <= forecast => {
            format!("holds {} of {}", bytes(held_bytes), bytes(forecast))
        }
        Some(forecast) => {
            format!("holds {}, over its forecast of {}", bytes(held_bytes), bytes(forecast))
        }
    }
}

impl TimeLeft {
    /// Of stages that still take so long, where that is known; so many run at once.
    fn of(stages: &[Option<Duration>], jobs: usize) -> Self {
        let known = || stages.iter().flatten();
        let jobs = u32::try_from(jobs.max(1)).unwrap_or(u32::MAX);
        let (all, longest) = (known().sum::<Duration>(), known().max().copied());
        Self {
            known: (all / jobs).max(longest.unwrap_or_default()),
            unknown: stages.iter().filter(|stage| stage.is_none()).count(),
        }
    }

    /// The time that is left, where it is known of every stage.
    fn exact(&self) -> Option<Duration> {
        (self.unknown == 0).then_some(self.known)
    }

    /// `about 3 min left`; what is not known is said to be so.
    fn words(&self) -> String {
        let (known, unknown) = (left_words(self.known), self.unknown);
        let stages = if unknown == 1 { "stage" } else { "stages" };
        match (unknown, self.known.is_zero()) {
            (0, _) => known,
            (_, true) => format!("{unknown} {stages} of unknown time left"),
            (_, false) => format!("{known}, beside {unknown} {stages} of unknown time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_exec::AttemptReport;
    use smelt_plan::Pipeline;
    use smelt_plan::admission::Basis;
    use smelt_plan::pipeline::Overrides;

    use super::*;
    use crate::pins;

    /// Stages of programs, each of which needs the one before.
    fn plan(names: &[&str]) -> Plan {
        let mut text = "smelt = 1\nname = \"p\"\n".to_owned();
        for (at, name) in names.iter().enumerate() {
            let inputs = at.checked_sub(1).map(|at| format!("\"{}\"", names[at]));
            let inputs = inputs.unwrap_or_default();
            text += &format!("[stage.{name}]\nkind = \"command\"\nargv = [\"true\"]\n");
            text += &format!("inputs = [{inputs}]\noutputs = [\"o\"]\n");
        }
        let pipeline = Pipeline::parse("p.toml", &text, &Overrides::default()).unwrap();
        Plan::build(&pipeline, &pins::none(&pipeline)).unwrap()
    }

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn started(stage: StageId, forecast_bytes: Option<u64>) -> Progress<'static> {
        let forecast = forecast_bytes.map(|bytes| Forecast { bytes, basis: Basis::Learned });
        Progress::Started { stage, attempt: 1, changed: None, forecast }
    }

    fn running(stage: StageId, at_s: u64, last_line: &str) -> Progress<'_> {
        let elapsed = Duration::from_secs(at_s);
        Progress::Running { stage, elapsed, rss_bytes: 9 << 20, held_bytes: 4 << 20, last_line }
    }

    #[test]
    fn a_stage_says_what_it_holds_of_its_forecast_and_what_time_is_left() {
        let plan = plan(&["a"]);
        let a = plan.find("a").unwrap();
        let mut course = Course::new(&plan, &plan.wanted(&[]), &[secs(60)], 1);
        course.hear(&started(a, Some(8 << 20)));
        assert_eq!(course.line(0).unwrap(), "[1/1] a starts");
        course.hear(&running(a, 10, "looking"));
        let line = course.line(0).unwrap();
        assert_eq!(line, "[1/1] a 10.0 s holds 4.0 MiB of 8.0 MiB about 50 s left: looking");
        course.hear(&started(a, None));
        course.hear(&running(a, 70, "looking"));
        // It took longer than the last time: nobody knows.
        assert_eq!(course.line(0).unwrap(), "[1/1] a 1:10 min 9.0 MiB looking");
        assert_eq!(course.whole(), None, "its own line says it all");
    }

    #[test]
    fn more_than_was_forecast_is_said() {
        assert_eq!(memory(9 << 20, 4 << 20, None), "9.0 MiB");
        assert_eq!(memory(9 << 20, 4 << 20, Some(4 << 20)), "holds 4.0 MiB of 4.0 MiB");
        let over = memory(9 << 20, 4 << 20, Some(2 << 20));
        assert_eq!(over, "holds 4.0 MiB, over its forecast of 2.0 MiB");
    }

    #[test]
    fn a_whole_run_says_what_it_knows_and_what_it_does_not() {
        let plan = plan(&["a", "b", "c"]);
        let [a, b, c] = ["a", "b", "c"].map(|name| plan.find(name).unwrap());
        let mut course = Course::new(&plan, &plan.wanted(&[]), &[secs(30), secs(60), None], 1);
        let whole = |course: &Course| course.whole().unwrap_or_default();
        assert_eq!(
            whole(&course),
            "0 of 3 stages, about 90 s left, beside 1 stage of unknown time"
        );
        course.hear(&Progress::Hit(a));
        assert_eq!(
            whole(&course),
            "1 of 3 stages, about 60 s left, beside 1 stage of unknown time"
        );
        course.hear(&started(b, None));
        course.hear(&running(b, 20, "x"));
        let value = course.as_json(b);
        assert_eq!(value["run"]["left_known_s"], 40, "{value}");
        assert!(value["run"]["left_s"].is_null() && value["left_s"] == 40, "{value}");
        course.hear(&Progress::Ended(b, &AttemptReport::default()));
        assert_eq!(whole(&course), "", "one is left");
        assert!(course.as_json(c).is_null(), "it does not run");
        let only = Course::new(&plan, &plan.wanted(&[a]), &[secs(30), secs(60), None], 1);
        assert_eq!(only.counts(), [0, 1]);
    }

    #[test]
    fn time_left_is_a_sum_over_what_is_done_at_once() {
        let words = |stages: &[Option<Duration>], jobs| TimeLeft::of(stages, jobs).words();
        assert_eq!(words(&[secs(120), secs(60)], 1), "about 3 min left");
        assert_eq!(words(&[secs(60), secs(60)], 2), "about 60 s left");
        assert_eq!(words(&[secs(300), secs(60)], 2), "about 5 min left");
        assert_eq!(words(&[None, None], 1), "2 stages of unknown time left");
        assert_eq!(words(&[], 0), "a few seconds left");
    }

    #[test]
    fn what_is_fetched_is_counted_in_bytes() {
        let mut attempt = RunningAttempt::default();
        for (at, line) in [(0, "[0/4000] fetching m"), (4, "[1000/4000] fetching m")] {
            attempt.doing.hear(Duration::from_secs(at), line);
        }
        let value = attempt.as_json(true);
        assert_eq!(value["fetched_bytes"], 1000, "{value}");
        assert_eq!(value["fetch_bytes"], 4000, "{value}");
        assert_eq!(value["fetch_bytes_per_s"], 250.0, "{value}");
        assert!(attempt.as_json(false)["fetch_bytes"].is_null(), "tensors are no bytes");
    }
}
