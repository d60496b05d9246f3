//! Says how the check stands that goes on behind a deployment: whether what its engines compute was held against the
//! reference.
//!
//! A deployment says of itself that this was to follow ([`smelt_runtime::proof`]).  Whether it has is asked of the store's
//! outputs; whether it goes on, or failed, of the runs of the pipeline that made the deployment.  Whoever asks the
//! deployment, lists it or serves it tells the same of it.

use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_exec::{RunReport, RunStatus, StageReport, StageStatus};
use smelt_plan::kind::verify::WEIGHTS_ONLY;
use smelt_plan::plan::{From, Stage};
use smelt_plan::{FailureClass, Kind, Plan, StageId};
use smelt_runtime::deployment::{self, Spec};
use smelt_runtime::proof::Proven;

use crate::built::Built;
use crate::exit::{Exit, Failed};
use crate::flags::PipelineFlags;
use crate::history::History;
use crate::leases;
use crate::load;
use crate::unfinished::RunArguments;

/// So many runs are looked back at for one that checked, or checks.
const RUNS_MAX: usize = 32;

/// How the check of a deployment stands whose engines' weights are the checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    /// They compute what the reference does.
    Passed,
    /// A run holds them against the reference now.
    Runs {
        /// Which run.
        run: String,
    },
    /// They do not compute what the reference does.
    Failed {
        /// The stage that found it.
        stage: String,
        /// What it found.
        why: String,
    },
    /// Nobody has held them against the reference, or nobody came to an end.
    Open,
}

impl Check {
    /// The word in JSON.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Runs { .. } => "running",
            Self::Failed { .. } => "failed",
            Self::Open => "open",
        }
    }

    /// What a list says behind what a deployment does; nothing where there is nothing more to say.
    pub(crate) fn remark(&self) -> &'static str {
        match self {
            Self::Passed => "",
            Self::Runs { .. } => " (reference check goes on)",
            Self::Failed { .. } => " (failed the reference check)",
            Self::Open => " (not checked against the reference)",
        }
    }

    /// What whoever is about to ask hears; nothing where all is well.
    pub(crate) fn line(&self) -> Option<String> {
        match self {
            Self::Passed => None,
            Self::Runs { run } => Some(format!(
                "{WEIGHTS} run {run} still holds what it computes against the reference"
            )),
            Self::Failed { stage, why } => Some(failed(stage, why)),
            Self::Open => {
                Some(format!("{WEIGHTS} what it computes was not held against the reference yet"))
            }
        }
    }

    /// That it is not to be asked, where that is so.
    pub(crate) fn refusal(&self) -> Option<Failed> {
        match self {
            Self::Failed { stage, why } => Some(Failed::new(Exit::StageFailed, failed(stage, why))),
            Self::Passed | Self::Runs { .. } | Self::Open => None,
        }
    }
}

/// What is known where more is to follow.
const WEIGHTS: &str = "not verified yet: its weights are the checkpoint's, but";

/// What is said of engines that do not compute what the reference does.
pub(crate) fn failed(stage: &str, why: &str) -> String {
    format!("the engines failed the reference check (stage {stage}): {why}")
}

/// What the check of a run came to in a stage, if that says anything of the engines: what was wrong with the machine
/// does not.
pub(crate) fn of_stage(stage: &StageReport) -> Option<Check> {
    let is_wrong = |class: FailureClass| class == FailureClass::OutputInvalid;
    let class = stage.class.or_else(|| stage.attempts.last()?.class);
    match stage.status {
        StageStatus::Hit | StageStatus::Sealed => Some(Check::Passed),
        StageStatus::Failed if class.is_some_and(is_wrong) => Some(Check::Failed {
            stage: stage.name.clone(),
            why: stage.message.clone().unwrap_or_default(),
        }),
        _ => None,
    }
}

/// What of the store decides.
pub(crate) struct Checks {
    proven: Proven,
    history: Option<History>,
}

impl Checks {
    /// Of the store.
    pub(crate) fn read() -> Self {
        let root = load::root().unwrap_or_default();
        let history = History::open().ok();
        Self { proven: Proven::read(&root.join("out")), history }
    }

    /// How the check of a deployment stands; nothing of one of which no more was to follow.
    pub(crate) fn of(&self, built: &Built) -> Option<Check> {
        let spec = deployment::read_spec(&built.dir).ok()?;
        spec.verified?;
        if self.proven.covers(&spec) {
            return Some(Check::Passed);
        }
        Some(self.by_runs(built, &spec).unwrap_or(Check::Open))
    }

    /// As far as runs tell, the newest first.
    fn by_runs(&self, built: &Built, spec: &Spec) -> Option<Check> {
        let (history, names) = (self.history.as_ref()?, checks_of(built)?);
        let engines: Vec<&str> = engines(spec).collect();
        let runs = history.newest(RUNS_MAX);
        // What was found before it was made is of other engines.
        let mut runs = runs.take_while(|run| built.run.as_ref().is_none_or(|first| *run >= first));
        runs.find_map(|run| {
            let only = asked_for(&history.command(run).ok()?, built)?;
            judge(&names, &only, &history.report(run).ok()?, &engines)
        })
    }
}

/// How the check of the deployment in `dir` stands, and how it was built, where it lies in the store and more was to
/// follow.
pub(crate) fn of_dir(dir: &Path) -> Option<(Check, Option<Built>)> {
    // Most deployments wait for nothing, so nothing else is read of them.
    deployment::read_spec(dir).ok()?.verified?;
    let sealed = leases::sealed(dir);
    let all = crate::built::all().unwrap_or_default();
    let built =
        all.into_iter().find(|built| sealed.as_ref().is_some_and(|one| one.tree == built.tree));
    match built {
        Some(built) => Some((Checks::read().of(&built)?, Some(built))),
        // A copy of it proves nothing.
        None => Some((Check::Open, None)),
    }
}

/// The names of a deployment's engines: digests of their files.
fn engines(spec: &Spec) -> impl Iterator<Item = &str> {
    let dirs = spec.vision.iter().chain([&spec.llm]).flat_map(|dirs| dirs.all());
    dirs.filter_map(|dir| dir.strip_prefix("../"))
}

/// The stages of the deployment's pipeline that check it, by name.
fn checks_of(built: &Built) -> Option<Vec<String>> {
    let plan = load::plan_unpinned(&flags_of(built)?).ok()?;
    let stages = checks_in(&plan, plan.find(&built.stage).ok()?);
    Some(stages.into_iter().map(|id| plan.stage(id).name.to_string()).collect())
}

/// The pipeline that made a deployment, with what was set.
pub(crate) fn flags_of(built: &Built) -> Option<PipelineFlags> {
    Some(PipelineFlags { pipeline: built.file.clone()?, sets: built.sets.clone() })
}

/// The stages that hold the decoder of a deployment against the reference, after its weights were compared.
pub(crate) fn checks_in(plan: &Plan, deployment: StageId) -> Vec<StageId> {
    let decoders = |stage: &Stage| {
        let inputs = stage.inputs.iter().filter(|input| input.field == "llm");
        let stages = inputs.filter_map(|input| match input.from {
            From::Stage(id) => Some(id),
            From::Path(_) | From::Hub(_) => None,
        });
        stages.collect::<Vec<_>>()
    };
    let own = decoders(plan.stage(deployment));
    let is_check = |stage: &Stage| {
        let computes = stage.params.get(WEIGHTS_ONLY) != Some(&Value::Bool(true));
        stage.kind == Kind::Verify && computes && decoders(stage).iter().any(|id| own.contains(id))
    };
    plan.stages().filter(|(_, stage)| is_check(stage)).map(|(id, _)| id).collect()
}

/// The stages that a run was asked for, all where there are none, if it was of the deployment's pipeline.
fn asked_for(command: &Value, built: &Built) -> Option<Vec<String>> {
    let told: RunArguments = serde_json::from_value(command.clone()).ok()?;
    let flags = told.flags();
    let place: PathBuf = told.dir.join(&flags.pipeline.pipeline);
    let is_same = Some(&place) == built.file.as_ref() && flags.pipeline.sets == built.sets;
    is_same.then_some(flags.only)
}

/// What a run of the stages `only` says of the checks `names` of a deployment with `engines`; nothing where an older
/// one may say more.
fn judge(names: &[String], only: &[String], report: &RunReport, engines: &[&str]) -> Option<Check> {
    let own = || report.stages.iter().filter(|stage| names.contains(&stage.name));
    if report.status == RunStatus::Running {
        let is_to_come = own().next().is_none()
            && (only.is_empty() || only.iter().any(|name| names.contains(name)));
        let is_at_it =
            own().any(|stage| matches!(stage.status, StageStatus::Running | StageStatus::Failed));
        return (is_to_come || is_at_it).then(|| Check::Runs { run: report.run.clone() });
    }
    // A run that has ended knows what it checked.
    let has = |name: &&str| {
        let mut digests = report.stages.iter().filter_map(|stage| stage.digest);
        digests.any(|digest| digest.to_string() == **name)
    };
    if !engines.iter().all(has) {
        return None;
    }
    let found: Vec<Check> = own().filter_map(of_stage).collect();
    let failed = found.iter().find(|check| matches!(check, Check::Failed { .. })).cloned();
    // What passed and is not there any more is to be done again.
    failed.or_else(|| (!found.is_empty()).then_some(Check::Open))
}

#[cfg(test)]
mod tests {
    use smelt_exec::AttemptReport;
    use smelt_plan::{Digest, Pipeline};

    use super::*;
    use crate::pins;

    #[test]
    fn the_checks_of_a_deployment_are_those_of_its_decoder_that_compute() {
        let text = r#"
smelt = 1
name = "p"
[stage.source]
kind = "source"
from = "synthetic:internvl3-1b"
[stage.llm]
kind = "llm-engine-build"
checkpoint = "source"
[stage.other]
kind = "llm-engine-build"
checkpoint = "source"
max-slots = 2
[stage.weights]
kind = "verify"
llm = "llm"
against = "source"
weights-only = true
[stage.reference]
kind = "verify"
llm = "llm"
against = "source"
compared = "weights"
[stage.verify-other]
kind = "verify"
llm = "other"
against = "source"
[stage.deployment]
kind = "deployment"
checkpoint = "source"
llm = "llm"
verified = "weights"
"#;
        let pipeline = Pipeline::parse("p.toml", text, &Default::default()).unwrap();
        let plan = Plan::build(&pipeline, &pins::none(&pipeline)).unwrap();
        let found = checks_in(&plan, plan.find("deployment").unwrap());
        assert_eq!(found, [plan.find("reference").unwrap()]);
    }

    fn engine() -> Digest {
        Digest::of(b"engine")
    }

    fn stage(name: &str, status: StageStatus, class: Option<FailureClass>) -> StageReport {
        StageReport {
            name: name.to_owned(),
            kind: Kind::Verify,
            status,
            key: None,
            digest: (name == "llm").then(engine),
            output: None,
            reproducible: None,
            class: None,
            message: Some("logits differ".to_owned()),
            attempts: vec![AttemptReport { class, ..AttemptReport::default() }],
        }
    }

    /// What a run says of the check of one stage, its decoder being that of the deployment or not.
    fn judged(status: RunStatus, only: &[&str], stages: Vec<StageReport>) -> Option<Check> {
        let report = RunReport {
            run: "r".to_owned(),
            pipeline: "p".to_owned(),
            status,
            wall_s: 0.0,
            first_failure: None,
            not_written: None,
            is_damaged: false,
            stages,
        };
        let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
        judge(&["reference".to_owned()], &only, &report, &[engine().to_string().as_str()])
    }

    #[test]
    fn a_run_that_goes_on_will_tell() {
        let runs = Some(Check::Runs { run: "r".to_owned() });
        let going = |only: &[&str], stages| judged(RunStatus::Running, only, stages);
        let check = |status| stage("reference", status, None);
        assert_eq!(going(&[], vec![]), runs, "it is to come");
        assert_eq!(going(&["reference"], vec![]), runs);
        assert_eq!(going(&["deployment"], vec![]), None, "nobody asked it to");
        assert_eq!(going(&[], vec![check(StageStatus::Running)]), runs);
        assert_eq!(going(&[], vec![check(StageStatus::Sealed)]), None);
    }

    #[test]
    fn only_what_is_wrong_with_the_engines_fails_them() {
        let ended = |status, class, has_engine: bool| {
            let engine = has_engine.then(|| stage("llm", StageStatus::Hit, None));
            let all = engine.into_iter().chain([stage("reference", status, class)]);
            judged(RunStatus::Failed, &[], all.collect())
        };
        let wrong = Some(FailureClass::OutputInvalid);
        let failed = ended(StageStatus::Failed, wrong, true).unwrap();
        assert_eq!(failed.word(), "failed");
        let line = failed.line().unwrap();
        assert_eq!(line, "the engines failed the reference check (stage reference): logits differ");
        assert_eq!(failed.refusal().unwrap().exit, Exit::StageFailed);
        assert_eq!(ended(StageStatus::Failed, wrong, false), None, "it was of other engines");
        assert_eq!(ended(StageStatus::Failed, Some(FailureClass::OomKilled), true), None);
        assert_eq!(ended(StageStatus::Interrupted, None, true), None);
        // The proof was there and is gone.
        assert_eq!(ended(StageStatus::Sealed, None, true), Some(Check::Open));
    }

    #[test]
    fn what_is_not_verified_is_said_to_be_so() {
        let open = Check::Open.line().unwrap();
        assert!(open.starts_with("not verified yet: its weights are the checkpoint's"), "{open}");
        let runs = Check::Runs { run: "20261121-154233-1a2b".to_owned() }.line().unwrap();
        assert!(runs.contains("run 20261121-154233-1a2b still holds"), "{runs}");
        assert_eq!((Check::Passed.line(), Check::Passed.remark()), (None, ""));
        assert!(Check::Open.refusal().is_none());
    }
}
