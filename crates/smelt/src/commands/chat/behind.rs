//! Has the engines of a conversation held against the reference behind it, where their weights alone were compared when
//! they were deployed, and hears how that ends.
//!
//! What does it is `smelt run` of the pipeline's own stage, as anybody would start it, at the lowest priority and once
//! the conversation has said what memory it may take; it seals what it finds.  Where another run is at it, that is
//! waited for instead.  Nothing is said of engines that waited for nothing.

use std::ffi::OsString;
use std::io::{self, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use smelt_exec::{RunReport, RunStatus};
use smelt_plan::StageId;

use crate::built::Built;
use crate::check::{self, Check};
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::load::{self, Access, Standing};
use crate::telling::Telling;

/// News that wait to be told; what goes on is dropped where nobody listens.
const NEWS_MAX: usize = 16;
/// How often a check is asked for that another run does.
const ASK_PERIOD: Duration = Duration::from_secs(2);

/// The check behind a conversation.
pub(crate) struct Behind {
    to_do: ToDo,
    news: Option<Receiver<News>>,
    child: Option<Child>,
}

/// What is to be done when the conversation begins.
enum ToDo {
    Nothing,
    /// Another run does it, of the deployment in this directory.
    Await(PathBuf),
    /// A run of the pipeline that made it does.
    Run(Box<CheckRun>),
}

/// The run that checks a deployment.
struct CheckRun {
    built: Built,
    /// The stages that do it.
    stages: Vec<String>,
    /// Whether nothing else of the pipeline is left to do: as a run of all of it, its results are kept as such a run's.
    is_last: bool,
}

/// What is heard of a check.
#[derive(Debug, PartialEq)]
enum News {
    /// How far it is, in a line as stages speak them.
    Line(String),
    Ended(Ended),
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    Passed,
    /// The engines are wrong: the stage that found it, and what.
    Failed(String, String),
    /// It did not come to an end; the engines may be right.
    NotDone(String),
}

impl Behind {
    /// Behind engines that wait for nothing.
    pub(crate) fn nothing() -> Self {
        Self::to_do(ToDo::Nothing)
    }

    fn to_do(to_do: ToDo) -> Self {
        Self { to_do, news: None, child: None }
    }

    /// Behind the deployment in `dir`: says what is not known of its engines yet.  With `is_left_out` it is not done
    /// here.
    ///
    /// # Errors
    /// When its engines are known to be wrong.
    pub(super) fn of(dir: &Path, is_left_out: bool) -> Result<Self, Failed> {
        let Some((check, built)) = check::of_dir(dir) else { return Ok(Self::nothing()) };
        if let Some(failed) = check.refusal() {
            return Err(failed);
        }
        let Some(line) = check.line() else { return Ok(Self::nothing()) };
        let to_do = match &check {
            Check::Runs { .. } => ToDo::Await(dir.to_owned()),
            _ if is_left_out => ToDo::Nothing,
            _ => built.as_ref().and_then(to_run).unwrap_or(ToDo::Nothing),
        };
        let more = match (&to_do, built.as_ref().and_then(|built| built.file.as_ref())) {
            (ToDo::Await(_), _) | (ToDo::Nothing, None) => String::new(),
            (ToDo::Run(run), _) => {
                format!("; that is done behind this ({})", run.stages.join(", "))
            }
            (ToDo::Nothing, Some(file)) => format!("; smelt run {} does that", file.display()),
        };
        tell(format_args!("{line}{more}"));
        Ok(Self::to_do(to_do))
    }

    /// Begins, now that others can see what memory the conversation may take.
    pub(super) fn begin(&mut self) {
        match std::mem::replace(&mut self.to_do, ToDo::Nothing) {
            ToDo::Nothing => {}
            ToDo::Await(dir) => self.news = Some(awaited(dir)),
            ToDo::Run(run) => match start(*run) {
                Ok((child, news)) => (self.child, self.news) = (Some(child), Some(news)),
                Err(error) => tell(format_args!("the reference check cannot be started: {error}")),
            },
        }
    }

    /// Whether something may still be heard.
    pub(super) fn goes_on(&self) -> bool {
        self.news.is_some()
    }

    /// What is to be told of a check that has ended since it was asked last.
    ///
    /// # Errors
    /// When it found the engines wrong.
    pub(super) fn news(&mut self) -> Result<Option<String>, Failed> {
        loop {
            let Some(news) = &self.news else { return Ok(None) };
            match news.try_recv() {
                Ok(News::Line(_)) => {}
                Ok(News::Ended(ended)) => return self.ended(ended).map(Some),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return self.ended(lost()).map(Some),
            }
        }
    }

    /// Waits until a check that this conversation has begun has ended, shows how far it is, and tells how it ended.
    ///
    /// # Errors
    /// When it found the engines wrong.
    pub(super) fn end(&mut self) -> Result<(), Failed> {
        if let Some(line) = self.news()? {
            tell(line);
        }
        let Some(news) = self.news.as_ref().filter(|_| self.child.is_some()) else { return Ok(()) };
        let mut telling = Telling::new();
        let ended = loop {
            match news.recv() {
                Ok(News::Line(line)) => telling.hear(&line),
                Ok(News::Ended(ended)) => break ended,
                Err(_) => break lost(),
            }
        };
        drop(telling);
        tell(self.ended(ended)?);
        Ok(())
    }

    fn ended(&mut self, ended: Ended) -> Result<String, Failed> {
        self.news = None;
        if let Some(mut child) = self.child.take() {
            // It has said its last word.
            let _ = child.wait();
        }
        told(ended)
    }
}

impl Drop for Behind {
    /// What was begun for a conversation ends with it.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
        let _ = child.wait();
        tell("the reference check is stopped with this; the next chat begins it again");
    }
}

/// What is said of a check that has ended.
fn told(ended: Ended) -> Result<String, Failed> {
    match ended {
        Ended::Passed => Ok("verified: it computes what the reference does".to_owned()),
        Ended::Failed(stage, why) => {
            Err(Failed::new(Exit::StageFailed, check::failed(&stage, &why)))
        }
        Ended::NotDone(why) => Ok(format!("not verified: the reference check did not end: {why}")),
    }
}

fn lost() -> Ended {
    Ended::NotDone("what did it is gone".to_owned())
}

/// The stages that check a deployment, where all that they read is there: a pipeline that was changed since would build
/// other engines.
fn to_run(built: &Built) -> Option<ToDo> {
    if cfg!(not(feature = "build")) {
        // Who only serves has no reference.
        return None;
    }
    let loaded = load::plan(&check::flags_of(built)?, Access::Use).ok()?;
    let standings = load::standings(&loaded).ok()?;
    let standing = |id: StageId| &standings[id.index()].0;
    let is_hit = |id: StageId| matches!(standing(id), Standing::Hit { .. });
    let plan = &loaded.plan;
    let own = plan.find(&built.stage).ok()?;
    let is_same = matches!(standing(own), Standing::Hit { digest, .. } if *digest == built.tree);
    let checks = check::checks_in(plan, own).into_iter().filter(|&id| !is_hit(id));
    let checks: Vec<StageId> = checks.collect();
    let is_ready = checks.iter().all(|&id| plan.stage(id).needs().all(is_hit));
    let stages = checks.iter().map(|&id| plan.stage(id).name.to_string()).collect();
    let is_last = plan.stages().all(|(id, _)| is_hit(id) || checks.contains(&id));
    let run = || CheckRun { built: built.clone(), stages, is_last };
    (is_same && is_ready && !checks.is_empty()).then(|| ToDo::Run(Box::new(run())))
}

/// Starts the run that checks a deployment.
fn start(run: CheckRun) -> io::Result<(Child, Receiver<News>)> {
    let CheckRun { built, stages, is_last } = run;
    let program = std::env::current_exe()?;
    let mut arguments: Vec<OsString> = vec!["run".into(), "--events".into()];
    arguments.extend(built.file.iter().map(|file| file.as_os_str().to_owned()));
    let given = |flag, values: &[String]| {
        let all = values.iter().flat_map(|value| [OsString::from(flag), value.into()]);
        all.collect::<Vec<OsString>>()
    };
    arguments.extend(given("--set", &built.sets));
    if !is_last {
        arguments.extend(given("--only", &stages));
    }
    let spawn = |command: &mut Command| {
        command.args(&arguments).stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(Stdio::piped()).spawn()
    };
    // Answers come first; a system without `nice` has no answer to that.
    let mut child = match spawn(Command::new("nice").args(["-n", "19"]).arg(&program)) {
        Err(error) if error.kind() == ErrorKind::NotFound => spawn(&mut Command::new(&program)),
        spawned => spawned,
    }?;
    let stdout = child.stdout.take().expect("it is piped");
    let (sender, news) = sync_channel(NEWS_MAX);
    thread::spawn(move || hear(BufReader::new(stdout), &stages, &sender));
    Ok((child, news))
}

/// Hears the lines of a run to their end.
fn hear(lines: impl io::BufRead, stages: &[String], news: &SyncSender<News>) {
    for line in lines.lines().map_while(Result::ok) {
        match heard(&line, stages) {
            Some(ended @ News::Ended(_)) => {
                let _ = news.send(ended);
                return;
            }
            // Who does not listen now hears of it later.
            Some(line) => _ = news.try_send(line),
            None => {}
        }
    }
    let _ = news.send(News::Ended(lost()));
}

/// What a line of a run says of the check.
fn heard(line: &str, stages: &[String]) -> Option<News> {
    let event: Value = serde_json::from_str(line).ok()?;
    let detail = &event["detail"];
    match event["event"].as_str()? {
        "running" => {
            let (done, doing) = (detail["done"].as_f64()?, detail["doing"].as_str()?);
            let share = (done.clamp(0.0, 1.0) * 1e4).round();
            Some(News::Line(format!("[{share}/10000] reference check: {doing}")))
        }
        "end" => Some(News::Ended(ended(&serde_json::from_value(detail.clone()).ok()?, stages))),
        _ => None,
    }
}

/// How a run of the check ended.
fn ended(report: &RunReport, stages: &[String]) -> Ended {
    let own = report.stages.iter().filter(|stage| stages.contains(&stage.name));
    let found = own.filter_map(check::of_stage);
    for check in found {
        if let Check::Failed { stage, why } = check {
            return Ended::Failed(stage, why);
        }
    }
    if report.status == RunStatus::Ok {
        return Ended::Passed;
    }
    let first = report.first_failure.as_ref().map(|failure| failure.message.clone());
    Ended::NotDone(first.unwrap_or_else(|| format!("its run is {}", report.status.name())))
}

/// Hears of the check of the deployment in `dir` when the run has ended that does it.
fn awaited(dir: PathBuf) -> Receiver<News> {
    let (sender, news) = sync_channel(1);
    thread::spawn(move || {
        let ended = loop {
            thread::sleep(ASK_PERIOD);
            match check::of_dir(&dir).map(|(check, _)| check) {
                Some(Check::Runs { .. }) => {}
                Some(Check::Passed) | None => break Ended::Passed,
                Some(Check::Failed { stage, why }) => break Ended::Failed(stage, why),
                Some(Check::Open) => break Ended::NotDone("its run has ended".to_owned()),
            }
        };
        let _ = sender.send(News::Ended(ended));
    });
    news
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stages() -> Vec<String> {
        vec!["verify".to_owned()]
    }

    /// What a run's last line says, `verify` being as it is and of a class.
    fn ended_as(run: &str, verify: &str, class: Option<&str>) -> Ended {
        let stage = json!({
            "name": "verify", "kind": "verify", "status": verify, "key": null, "digest": null,
            "output": null, "reproducible": false, "class": class, "message": "logits differ",
            "attempts": [],
        });
        let report = json!({
            "run": "r", "pipeline": "p", "status": run, "wall_s": 1.0, "stages": [stage],
            "first_failure": { "stage": "verify", "exit": null, "message": "logits differ" },
        });
        let line = json!({ "event": "end", "at_s": 1.0, "detail": report }).to_string();
        match heard(&line, &stages()) {
            Some(News::Ended(ended)) => ended,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_wrong_engines_fail_a_conversation() {
        assert_eq!(ended_as("ok", "sealed", None), Ended::Passed);
        let wrong = ended_as("failed", "failed", Some("output-invalid"));
        assert_eq!(wrong, Ended::Failed("verify".to_owned(), "logits differ".to_owned()));
        let failed = told(wrong).unwrap_err();
        assert_eq!(failed.exit, Exit::StageFailed);
        assert!(failed.to_string().contains("(stage verify): logits differ"), "{failed}");
        // That a machine is too small says nothing of engines.
        let small = told(ended_as("failed", "failed", Some("does-not-fit"))).unwrap();
        assert!(small.starts_with("not verified: the reference check did not end"), "{small}");
        assert!(matches!(ended_as("interrupted", "interrupted", None), Ended::NotDone(_)));
    }

    #[test]
    fn lines_of_a_run_become_lines_of_a_stage() {
        let line = r#"{"event":"running","at_s":1.5,"detail":{"done":0.25,"doing":"decoder"}}"#;
        let expect = News::Line("[2500/10000] reference check: decoder".to_owned());
        assert_eq!(heard(line, &stages()), Some(expect));
        for other in ["", "{", r#"{"event":"hit","detail":{}}"#, r#"{"event":"running"}"#] {
            assert_eq!(heard(other, &stages()), None, "{other}");
        }
    }

    #[test]
    fn a_run_that_is_gone_proves_nothing() {
        let (sender, news) = sync_channel(NEWS_MAX);
        hear(&b"{\"event\":\"hit\"}\n"[..], &stages(), &sender);
        assert_eq!(news.recv(), Ok(News::Ended(lost())));
    }
}
