//! `smelt run`: builds what a pipeline describes and prints the summary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Instant, SystemTime};

use serde_json::Value;
use smelt_exec::{
    Asking, Confinement, Progress, RunReport, RunStatus, Runner, Signatures, StageReport,
    StageStatus, Task,
};
use smelt_fleet::lease::{Holder, Lease};
use smelt_forecast::{Alike, Forecasts, Towers};
use smelt_plan::admission::Forecast;
use smelt_plan::kind::WRITES;
use smelt_plan::plan::Stage;
use smelt_plan::schedule::Wishes;
use smelt_plan::share::Led;
use smelt_plan::{Change, Digest, Kind, Plan, Rung, Share, StageId, WarmUp};
use smelt_report::summary;
use smelt_store::{Lookup, Run, StoreError, Wait};

use super::open;
use crate::checkpoints::Checkpoints;
use crate::console::{answer, fail, offer, tell, warn};
use crate::course::{self, Course};
use crate::events::{self, Events};
use crate::exit::{Exit, Failed};
use crate::flags::RunFlags;
use crate::fleet::sharing::{self, Sharing};
use crate::fleet::workers::{Asked, Workers};
use crate::ladder;
use crate::last_run::{self, LastRun};
use crate::leftovers::{clear_dead, finish};
use crate::load::{self, Access, Loaded, Part, Standing};
use crate::memo::Memo;
use crate::progress::Display;
use crate::reboot;
use crate::stage::{self, exposed};
use crate::stop::stop_flag;
use crate::story::Story;
use crate::unfinished::{Left, RunArguments};
use crate::user_signatures;
use crate::{known_bad, refusals, secrets, table, tools};

/// Who starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Somebody who may want a stage begun anew whose attempts are used up.
    ByUser,
    /// Nobody: the board has booted.
    AfterBoot,
    /// Somebody who named a model, of which nothing but the deployment is wanted.
    ByName,
    /// The same on the way to an answer: standard output is for that.
    OnTheWay,
}

pub(crate) fn run(flags: &RunFlags) -> Result<Exit, Failed> {
    run_as(flags, Start::ByUser)
}

pub(crate) fn run_as(flags: &RunFlags, start: Start) -> Result<Exit, Failed> {
    let wait = if flags.no_wait { Wait::No } else { Wait::Yes };
    let stop = stop_flag()?;
    let access = Access::Build(wait, stop.clone(), part(flags)?);
    let (signer, board) = (sharing::signer(flags)?, sharing::board(flags)?);
    let announce = |report: &RunReport| board.iter().for_each(|it| sharing::announce(it, report));
    let memo = Memo::of(flags)?;
    if let Some(report) = memo.as_ref().map(|memo| memo.recall(&access)).transpose()?.flatten() {
        announce(&report);
        return answer_report(flags, &report, start);
    }
    let loaded = load::plan(&flags.pipeline, access)?;
    let (plan, store) = (&loaded.plan, &loaded.store);
    let confinement = confinement(flags, plan)?;
    let share = share(flags, &loaded)?;
    let mut wishes = wishes(flags, plan, &share)?;
    let sharing = Sharing::begin(flags, &loaded, signer, &stop, &mut wishes)?;
    need_here(&loaded, &wishes)?;
    need_secrets(&loaded, &flags.pipeline.pipeline, &wishes)?;
    if start.is_by_name() {
        refuse(&loaded, &flags.pipeline.pipeline, &wishes)?;
    }
    let signatures = user_signatures::signatures(&flags.pipeline.pipeline)?;
    ladder::check_warm_ups(&flags.pipeline.pipeline, plan)?;
    clear_dead(store)?;
    let told = RunArguments::of(flags);
    let left = Left::by(told.as_ref().filter(|_| ladder::is_any(plan)), store)?;
    let command = RunArguments::value(told.as_ref());
    if let Some(message) = ladder::used_up(plan, &left).filter(|_| start == Start::AfterBoot) {
        return ladder::give_up(store, plan, &command, &message);
    }
    wishes.earlier = ladder::earlier(plan, &left);
    let run = match store.begin_run(SystemTime::now()) {
        Err(error) if error.is_disk_full() => {
            return answer_report(flags, &not_begun(plan, &wishes, &error), start);
        }
        begun => begun?,
    };
    let last = LastRun::read(store, &flags.pipeline.pipeline);
    tell_before(flags, &loaded, (&last, &wishes), &confinement, start)?;
    let lease = sharing.lease();
    let begun = Begun { flags, loaded: &loaded, run: &run, left, command, signatures, last, lease };
    let report = begun.build(wishes)?;
    begun.keep(memo, &report);
    finish(run);
    sharing.publish(&report);
    // Others need not wait until this is told.
    drop(sharing);
    announce(&report);
    let mut exit = answer_report(flags, &report, start)?;
    if exit == Exit::Ok && !share.waiting.is_empty() {
        tell(format_args!("smelt: {}", waits(flags, plan, &share)));
        exit = Exit::DoesNotFit;
    }
    if report.status == RunStatus::Rebooting {
        reboot::reboot(store.root());
    }
    Ok(exit)
}

/// What of the pipeline the flags want built.
fn part(flags: &RunFlags) -> Result<Part, Failed> {
    if flags.given.is_some() {
        let given = sharing::given_by_name(flags)?.into_keys().collect();
        return Ok(Part::Behind { only: flags.only.clone(), given });
    }
    Ok(flags.on.map_or(Part::All, Part::Side))
}

impl Start {
    /// Whether a model was named, and no pipeline that somebody wrote.
    fn is_by_name(self) -> bool {
        matches!(self, Self::ByName | Self::OnTheWay)
    }
}

/// A run that has a journal.
struct Begun<'a> {
    flags: &'a RunFlags,
    loaded: &'a Loaded,
    run: &'a Run,
    /// What earlier runs of the same command have left.
    left: Left,
    /// What starts it again, for its journal.
    command: Value,
    signatures: Signatures,
    last: LastRun,
    /// By which other builders wait for this run.
    lease: Option<&'a Lease>,
}

impl Begun<'_> {
    /// Builds what is wished for, and once more what is to be checked; shows how far it is.
    fn build(&self, wishes: Wishes) -> Result<RunReport, Failed> {
        let (flags, plan) = (self.flags, &self.loaded.plan);
        let again = checks(flags, plan, &wishes)?;
        let alike = Alike::read(&self.loaded.store);
        let towers = towers_of(self.loaded)?;
        let took = |stage: &str| self.last.took(stage);
        let forecasts = Forecasts { took: &took, alike: &alike, towers: &towers };
        let forecasts = |task: &Task<'_>| forecasts.of_task(task);
        let expected = course::expected(plan, &self.last);
        let course = Course::new(plan, &wishes.wanted(plan), &expected, flags.jobs);
        let (mut display, mut events) = (Display::new(course), Events::default());
        let begin = Instant::now();
        let mut show = |progress: &Progress<'_>| {
            display.show(progress);
            if let Some(lease) = self.lease {
                lease.tell(|holder| tell_holder(holder, plan, progress));
            }
            if flags.events {
                offer_event(events.line(plan, display.course(), progress, begin.elapsed()));
            }
        };
        let mut report = self.attempt(BTreeSet::new(), wishes.clone(), &forecasts, &mut show)?;
        if report.status == RunStatus::Ok && !again.is_empty() {
            let only = again.iter().copied().collect();
            let wishes = Wishes { only, force: again.clone(), keep_going: true, ..wishes };
            report = with_checked(report, self.attempt(again, wishes, &forecasts, &mut show)?);
        }
        display.finish();
        Ok(report)
    }

    /// Runs the plan to its end, the stages of `check` to be compared with what the store has of them.
    fn attempt(
        &self,
        check: BTreeSet<StageId>,
        wishes: Wishes,
        forecasts: &dyn Fn(&Task<'_>) -> Option<Forecast>,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<RunReport, Failed> {
        let (flags, folder) = (self.flags, self.flags.pipeline.folder());
        let Loaded { plan, store, .. } = self.loaded;
        let workers = Workers::new(flags, self.loaded);
        thread::scope(|scope| {
            let asked = Asked::new(scope, &workers);
            let ask = |asking: &Asking| asked.ask(asking);
            let runner = Runner {
                plan,
                store,
                run: self.run,
                check,
                forecasts,
                overcommit: flags.overcommit,
                kept_bytes: flags.keep_free.unwrap_or(0),
                must_hold: flags.require_confinement,
                tokens: Some(load::tokens()),
                priority: flags.priority,
                orders: &|task: &Task<'_>| stage::order::order(task, folder, store),
                elsewhere: workers.is_any().then_some(&ask),
                warm_ups: &|warm_up: &WarmUp| ladder::warm_up(warm_up, folder, store),
                folder,
                is_rebooted: self.left.is_rebooted(),
                command: &self.command,
                signatures: &self.signatures,
                progress,
            };
            Ok(runner.run(wishes)?)
        })
    }

    /// Writes down what the next run wants to know.
    fn keep(&self, memo: Option<Memo>, report: &RunReport) {
        let Loaded { plan, store, .. } = self.loaded;
        last_run::keep(store, &self.flags.pipeline.pipeline, plan, report);
        Alike::keep(store, plan, report);
        let is_new =
            |stage: &&StageReport| stage.kind == Kind::Deployment && !stage.attempts.is_empty();
        for tree in report.stages.iter().filter(is_new).filter_map(|stage| stage.digest) {
            open::note_compared(store, &store.root().join("out").join(tree.to_string()));
        }
        if let Some(memo) = memo.filter(|_| report.status == RunStatus::Ok) {
            // Without it the next run only takes a little longer.
            let _ = memo.keep(self.loaded, report);
        }
    }
}

/// What other builders are told of a run that they wait for.
fn tell_holder(holder: &mut Holder, plan: &Plan, progress: &Progress<'_>) {
    match progress {
        Progress::Started { stage, .. } => {
            holder.stage = plan.stage(*stage).name.to_string();
            holder.line.clear();
        }
        Progress::Running { stage, last_line, .. } => {
            holder.stage = plan.stage(*stage).name.to_string();
            (*last_line).clone_into(&mut holder.line);
        }
        Progress::Ended(..) => holder.done += 1,
        _ => {}
    }
}

/// What holds the stages; refused where the flags want more than the kernel can.
fn confinement(flags: &RunFlags, plan: &Plan) -> Result<Confinement, Failed> {
    let confinement = Confinement::find().map_err(Failed::usage)?;
    if flags.require_confinement {
        require_confinement(plan, &confinement)?;
    }
    Ok(confinement)
}

/// Says what is known before the first stage starts.
fn tell_before(
    flags: &RunFlags,
    loaded: &Loaded,
    (last, wishes): (&LastRun, &Wishes),
    confinement: &Confinement,
    start: Start,
) -> Result<(), Failed> {
    let Loaded { plan, store, .. } = loaded;
    if let Some(line) = tools::count_now(plan, last) {
        tell(format_args!("smelt: {line}"));
    }
    // Whoever named a model was refused before.
    if !start.is_by_name() {
        warn_of_refusals(loaded, last, wishes)?;
    }
    let folder = flags.pipeline.folder();
    exposed::lines(plan, folder, store.root(), confinement.way).into_iter().for_each(warn);
    warn_of_known_bad(flags, loaded, last, wishes)
}

/// Says what was seen to go wrong with stages like those that are to be built.
fn warn_of_known_bad(
    flags: &RunFlags,
    loaded: &Loaded,
    last: &LastRun,
    wishes: &Wishes,
) -> Result<(), Failed> {
    let known = known_bad::lines(&loaded.plan, flags.pipeline.folder());
    if known.is_empty() || flags.is_trial() {
        return Ok(());
    }
    let (wanted, story) = (wishes.wanted(&loaded.plan), Story::of(loaded, last)?);
    let is_built = |id: StageId| wanted.contains(&id) && is_to_be_built(&story, wishes, id);
    known.into_iter().filter(|(id, _)| is_built(*id)).for_each(|(_, line)| warn(line));
    Ok(())
}

fn is_to_be_built(story: &Story<'_>, wishes: &Wishes, id: StageId) -> bool {
    let standing = &story.standings[id.index()].0;
    wishes.force.contains(&id) || !matches!(standing, Standing::Hit { .. })
}

/// Says what will be refused at its end; the rest is built all the same, and is of use when that is mended.
fn warn_of_refusals(loaded: &Loaded, last: &LastRun, wishes: &Wishes) -> Result<(), Failed> {
    let refused = foreseen(loaded, last, wishes)?;
    refused.iter().for_each(|(&id, why)| warn(refusals::line(&loaded.plan, id, why)));
    Ok(())
}

/// Refuses now what would be refused at its end.
fn refuse(loaded: &Loaded, pipeline: &Path, wishes: &Wishes) -> Result<(), Failed> {
    let refused = foreseen(loaded, &LastRun::read(&loaded.store, pipeline), wishes)?;
    refused.into_values().next().map_or(Ok(()), |why| Err(Failed::model(why)))
}

/// The stages that are wanted and will be refused, and why.
fn foreseen(
    loaded: &Loaded,
    last: &LastRun,
    wishes: &Wishes,
) -> Result<BTreeMap<StageId, String>, Failed> {
    let plan = &loaded.plan;
    if !refusals::may_be(plan) {
        return Ok(BTreeMap::new());
    }
    let wanted = wishes.wanted(plan);
    let mut refused = refusals::of(&Checkpoints::of(plan, &Story::of(loaded, last)?));
    refused.retain(|id, _| wanted.contains(id));
    Ok(refused)
}

/// Refuses now what a stage that is to be built would lack after hours.
fn need_secrets(loaded: &Loaded, pipeline: &Path, wishes: &Wishes) -> Result<(), Failed> {
    let plan = &loaded.plan;
    let missing = secrets::missing(plan, &wishes.wanted(plan));
    if missing.is_empty() {
        return Ok(());
    }
    let last = LastRun::read(&loaded.store, pipeline);
    let story = Story::of(loaded, &last)?;
    let first = missing.into_iter().find(|(id, _)| is_to_be_built(&story, wishes, *id));
    first.map_or(Ok(()), |(id, name)| Err(secrets::refused(plan.stage(id), &name)))
}

/// Refuses what the kernel would not hold.
fn require_confinement(plan: &Plan, confinement: &Confinement) -> Result<(), Failed> {
    if confinement.way.is_none() {
        return Err(Failed::new(Exit::DoesNotFit, confinement.words()));
    }
    let is_free = |stage: &&Stage| {
        let writes = stage.params.get(WRITES).and_then(Value::as_array);
        writes.is_some_and(|places| places.iter().any(|place| place == "/"))
    };
    match plan.stages().map(|(_, stage)| stage).find(is_free) {
        Some(stage) => {
            let name = &stage.name;
            let message =
                format!("stage {name} declares writes = [\"/\"], which lifts its confinement");
            Err(Failed::new(Exit::DoesNotFit, message))
        }
        None => Ok(()),
    }
}

/// The report of a run that has no journal, since not even a name for it can be written.
fn not_begun(plan: &Plan, wishes: &Wishes, error: &StoreError) -> RunReport {
    let wanted = wishes.wanted(plan);
    let stage = |(_, stage): (StageId, &smelt_plan::plan::Stage)| StageReport {
        name: stage.name.to_string(),
        kind: stage.kind,
        status: StageStatus::Skipped,
        key: None,
        digest: None,
        output: None,
        reproducible: stage.is_reproducible(),
        class: None,
        message: None,
        attempts: Vec::new(),
    };
    RunReport {
        run: String::new(),
        pipeline: plan.name.clone(),
        status: RunStatus::Failed,
        wall_s: 0.0,
        first_failure: None,
        not_written: Some(format!("the run was not begun: {error}")),
        is_damaged: false,
        stages: plan.stages().filter(|(id, _)| wanted.contains(id)).map(stage).collect(),
    }
}

/// Tells a program what happens; that nobody reads it any more, or that it cannot be written, ends no run.
fn offer_event(line: Option<Value>) {
    if let Some(line) = line {
        let _ = offer(format_args!("{line}\n"));
    }
}

fn answer_report(flags: &RunFlags, report: &RunReport, start: Start) -> Result<Exit, Failed> {
    if start == Start::OnTheWay {
        tell(table::summary(report));
    } else if flags.events {
        answer(format_args!("{}\n", events::end(report)))?;
    } else if flags.json {
        let text = serde_json::to_string(report).expect("a report holds only plain data");
        answer(format_args!("{text}\n"))?;
    } else {
        answer(table::summary(report))?;
    }
    Ok(tell_end(flags, report))
}

/// What the run is about where it is of one side alone, by what the store has.
fn share(flags: &RunFlags, loaded: &Loaded) -> Result<Share, Failed> {
    let Some(side) = flags.on else { return Ok(Share::default()) };
    let Loaded { plan, store, .. } = loaded;
    let here = |key: Option<Digest>| -> Result<Option<Digest>, Failed> {
        let hit = key.map(|key| store.lookup(&key)).transpose()?.and_then(Lookup::hit);
        Ok(key.filter(|_| hit.is_some()))
    };
    let here =
        |led: Led| Ok(Led { by_recipe: here(led.by_recipe)?, by_shared: here(led.by_shared)? });
    let led = load::look(loaded, Some(side))?.led.into_iter().map(here);
    let led: Vec<Led> = led.collect::<Result<_, Failed>>()?;
    let share = Share::of(plan, side, |id| led[id.index()]);
    match (share.targets.is_empty(), share.waiting.is_empty()) {
        (false, _) => Ok(share),
        (true, false) => Err(Failed::new(Exit::DoesNotFit, waits(flags, plan, &share))),
        (true, true) => {
            let file = flags.pipeline.pipeline.display();
            let message = format!("no stage of {file} is the {side}'s: say on = \"{side}\" in it");
            Err(Failed::usage(message))
        }
    }
}

/// Refuses a run that builds a stage of which something is not here.
fn need_here(loaded: &Loaded, wishes: &Wishes) -> Result<(), Failed> {
    let Loaded { plan, absent, .. } = loaded;
    let built = wishes.wanted(plan).into_iter().filter(|id| !wishes.known.contains_key(id));
    let lacks = built.filter_map(|id| absent.get(&plan.stage(id).name)).next();
    lacks.map_or(Ok(()), |failed| Err(failed.clone()))
}

/// Why a side cannot build all that is its own, and how that is brought.
fn waits(flags: &RunFlags, plan: &Plan, share: &Share) -> String {
    let name = |id: StageId| plan.stage(id).name.as_str();
    let waiting: Vec<&str> = share.waiting.iter().map(|(id, _)| name(*id)).collect();
    let lacking: BTreeSet<StageId> = share.waiting.iter().map(|(_, lacks)| *lacks).collect();
    let file = flags.pipeline.pipeline.display();
    let bundled: Vec<String> = lacking.iter().map(|id| format!("{file}#{}", name(*id))).collect();
    let other = flags.on.map_or("other side", |side| side.other().name());
    format!(
        "{} waits for what the {other} builds: there `smelt run {file} --on {other}` and `smelt bundle {} --out FILE`, here `smelt unbundle FILE`",
        waiting.join(", "),
        bundled.join(" ")
    )
}

fn wishes(flags: &RunFlags, plan: &Plan, share: &Share) -> Result<Wishes, Failed> {
    let find = |names: &[String]| -> Result<Vec<_>, Failed> {
        names.iter().map(|name| Ok(plan.find(name)?)).collect()
    };
    let only = if flags.on.is_some() { share.targets.clone() } else { find(&flags.only)? };
    let force: BTreeSet<StageId> = find(&flags.force)?.into_iter().collect();
    let wanted = plan.wanted(&only);
    if let Some(stage) = force.iter().find(|stage| !wanted.contains(stage)) {
        let name = &plan.stage(*stage).name;
        return Err(Failed::usage(format!("--force {name}: --only leaves this stage out")));
    }
    let mut begin = BTreeMap::new();
    for id in only.iter().filter(|_| !flags.begin.is_empty()) {
        begin.insert(*id, changes(plan.stage(*id), &flags.begin)?);
    }
    Ok(Wishes {
        jobs: flags.jobs,
        keep_going: flags.keep_going,
        wait: !flags.no_wait,
        only,
        is_share: flags.on.is_some(),
        known: share.known.clone(),
        force,
        // A warm-up that failed is not tried again, and wants no warm-up of its own.
        once: flags.is_trial(),
        earlier: BTreeMap::new(),
        begin,
    })
}

/// What rungs change before a stage, as its `retry` says.
pub(crate) fn changes(stage: &Stage, rungs: &[Rung]) -> Result<Vec<Change>, Failed> {
    let of = |rung: &Rung| {
        let word = rung.name();
        stage.retry.change(*rung).ok_or_else(|| {
            let why = format!("stage {} says no {word}: add it to its retry", stage.name);
            Failed::usage(why)
        })
    };
    rungs.iter().map(of).collect()
}

/// What executing the vision towers holds that a run of `loaded` builds, by the sources that it finds.
fn towers_of(loaded: &Loaded) -> Result<Towers, Failed> {
    // Looking everything up is worth it only where there is something to learn.
    if !loaded.plan.stages().any(|(_, stage)| stage.kind == Kind::EngineBuild) {
        return Ok(Towers::default());
    }
    let standings = load::standings(loaded)?;
    let output = |id: StageId| standings[id.index()].0.path().map(Path::to_owned);
    Ok(Towers::of_plan(&loaded.plan, output))
}

/// The stages to build twice; what makes other bytes every time need not be tried.
fn checks(flags: &RunFlags, plan: &Plan, wishes: &Wishes) -> Result<BTreeSet<StageId>, Failed> {
    let wanted = wishes.wanted(plan);
    let mut checks = BTreeSet::new();
    for name in &flags.check {
        let id = plan.find(name)?;
        let stage = plan.stage(id);
        if stage.is_reproducible() == Some(false) || stage.given().is_some() {
            let kind = stage.kind.name();
            let message = format!(
                "--check {name}: a stage of kind \"{kind}\" promises no equal bytes, or is only read"
            );
            return Err(Failed::usage(message));
        }
        if stage.elsewhere.is_some() {
            let message = format!("--check {name}: it is built elsewhere, and checked there");
            return Err(Failed::usage(message));
        }
        if !wanted.contains(&id) {
            return Err(Failed::usage(format!("--check {name}: --only leaves this stage out")));
        }
        checks.insert(id);
    }
    Ok(checks)
}

/// The report of a run, with the stages that were built once more as they came out.
fn with_checked(mut report: RunReport, again: RunReport) -> RunReport {
    for checked in again.stages.into_iter().filter(|stage| !stage.attempts.is_empty()) {
        if let Some(stage) = report.stages.iter_mut().find(|stage| stage.name == checked.name) {
            // What was built first stays; a check that failed is the stage's failure.
            let attempts = std::mem::take(&mut stage.attempts);
            *stage = checked;
            stage.attempts.splice(0..0, attempts);
        }
    }
    report.status = again.status;
    report.first_failure = again.first_failure;
    report.not_written = again.not_written;
    report
}

/// The last word, on standard error, and the exit code.
fn tell_end(flags: &RunFlags, report: &RunReport) -> Exit {
    let pipeline = flags.pipeline.pipeline.display();
    if let Some(what) = &report.not_written {
        tell(format_args!("smelt: {what}"));
    }
    if let Some(line) = summary::unwatched(report) {
        tell(format_args!("smelt: nothing confined the stages. {line}"));
    }
    match report.status {
        RunStatus::Ok if report.stages.iter().all(|stage| stage.status == StageStatus::Hit) => {
            tell(format_args!("smelt: nothing to do: every stage of {pipeline} is already built"));
            Exit::Ok
        }
        RunStatus::Ok => Exit::Ok,
        RunStatus::Failed => {
            tell_failures(report);
            exit_of_failure(report)
        }
        RunStatus::Interrupted => {
            tell(format_args!(
                "smelt: stopped; what was sealed is kept, run the same command to go on"
            ));
            Exit::Interrupted
        }
        RunStatus::Rebooting => {
            tell(format_args!(
                "smelt: the next attempt wants a reboot; what was sealed is kept, `smelt resume` goes on"
            ));
            Exit::Interrupted
        }
        RunStatus::Held => {
            tell(format_args!(
                "smelt: another run is building a stage of {pipeline}; run without --no-wait to wait for it"
            ));
            Exit::Held
        }
        RunStatus::Running | RunStatus::Died => unreachable!("only journals tell of such runs"),
    }
}

fn tell_failures(report: &RunReport) {
    for stage in report.stages.iter().filter(|stage| stage.status == StageStatus::Failed) {
        let message = stage.message.as_deref().unwrap_or("failed");
        fail(format_args!("stage {}: {message}", stage.name));
        if let Some(attempt) = stage.attempts.last() {
            fail(format_args!("its log is {}", attempt.log.display()));
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
