//! Runs a plan: the one loop that feeds the schedule and performs its commands.
//!
//! The loop owns the schedule, the journal, the key locks and the report.  Threads that attend
//! attempts only send it messages.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use smelt_plan::admission::{Forecast, Room};
use smelt_plan::device::Facts;
use smelt_plan::plan::{From, HubPin, Pin};
use smelt_plan::schedule::{Ending, Wishes};
use smelt_plan::share::SharedKeys;
use smelt_plan::{
    Change, Command, Digest, Event, Failure, FailureClass, Kind, Plan, Rung, Schedule, StageId,
    State, WarmUp,
};
use smelt_store::{Journal, KeyLock, Location, LogError, Lookup, Output, Run, Store, StoreError};
use smelt_watch::{Budget, Cgroups, Counters, Machine};

use crate::attempt::{Attempt, record, seconds};
use crate::boot::boot_id;
use crate::containers;
use crate::controls::Controls;
use crate::elsewhere::{self, Asking, AskingInput, Elsewhere};
use crate::lending::Lending;
use crate::message::{AttemptResult, Ended, Message};
use crate::order::{Input, ProcessSpec, Task};
use crate::prepare::{Preparation, awaited};
use crate::recorded::{FORMAT, groups};
use crate::report::{AttemptReport, FirstFailure, RunReport, RunStatus, StageReport, StageStatus};
use crate::room;
use crate::shim::OURSELVES;
use crate::shims::Shims;
use crate::signatures::Signatures;

mod memory;
mod tokens;

use memory::Memory;
pub use memory::room_of;

/// Messages under way; attempts wait when the loop is behind, progress is dropped.
const MESSAGES_MAX: usize = 256;
/// How soon a key held by another run is looked at again.
const TICK: Duration = Duration::from_millis(200);

/// So many lines are told of a stage that is built elsewhere as they come; then, since a log has several a second, one so often.
const ELSEWHERE_LINES: u32 = 8;
const ELSEWHERE_TOLD: Duration = Duration::from_secs(5);

/// The journal is not synced for an attempt that is over sooner: its result is in the action log.
const SHORT: Duration = Duration::from_secs(1);

/// Records that wait for room in the journal; a run whose disk is full starts little more.
const UNWRITTEN_MAX: usize = 1024;

/// The exit code of whatever does not fit this device.
const DOES_NOT_FIT: i32 = 5;

/// An attempt that the schedule wants started.
#[derive(Debug, Clone)]
struct Start {
    stage: StageId,
    key: Digest,
    n: u32,
    forced: bool,
    /// What changes before it.
    changes: Vec<Change>,
}

/// What was told of a stage that is built elsewhere.
struct ToldElsewhere {
    line: String,
    at: Duration,
    count: u32,
}

/// What the user may be shown.
#[derive(Debug)]
pub enum Progress<'a> {
    /// The store had it.
    Hit(StageId),
    /// An attempt begins.
    Started {
        /// Which stage.
        stage: StageId,
        /// From 1.
        attempt: u32,
        /// What differs from attempt 1.
        changed: Option<&'a str>,
        /// What it is expected to take, where anything is known of it.
        forecast: Option<Forecast>,
    },
    /// An attempt goes on.
    Running {
        /// Which stage.
        stage: StageId,
        /// Since its start.
        elapsed: Duration,
        /// Of all its processes.
        rss_bytes: u64,
        /// Of all its processes, in RAM and swapped out, what the kernel cannot drop: what forecasts are of.
        held_bytes: u64,
        /// The last line of its log.
        last_line: &'a str,
    },
    /// An attempt ended.
    Ended(StageId, &'a AttemptReport),
    /// Another run builds its key.
    Held(StageId),
    /// Another machine builds it, and how far that is.
    Elsewhere(StageId, &'a str),
    /// It waits for tokens that other runs of this machine hold: what for, and who holds some of it.
    Queued(StageId, String),
    /// Tokens are lent within this run alone, for the reason given.
    LendsAlone(&'a str),
    /// No tokens are lent, since somebody holds the lock of all of them: which, and who.
    TokensLocked(&'a str),
    /// It waits for memory: what it is expected to take, what is free, and which servers may take more of it.
    Crowded(StageId, Option<Forecast>, Room, &'a str),
    /// An attempt is halted, so that the others come to an end.
    Parked(StageId),
    /// A halted attempt goes on.
    Resumed(StageId),
    /// A sealed output was damaged and moved aside; the stage is built again.
    Damaged(StageId, &'a str),
    /// An output outside of the store is no longer what was recorded; the stage is built again.
    Changed(StageId, &'a str),
    /// The user wants out.
    Stopping,
}

/// smelt could not do its own part; what a stage did wrong is in the report.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Signals could not be listened to, or orphans not be adopted.
    #[error("cannot prepare this process to supervise others: {0}")]
    Process(std::io::Error),
}

/// What a run needs.
pub struct Runner<'a> {
    /// What is to be done.
    pub plan: &'a Plan,
    /// Where results are kept.
    pub store: &'a Store,
    /// This run's place in the store.
    pub run: &'a Run,
    /// Stages to build again and compare with what the store has; they are to be forced.
    pub check: BTreeSet<StageId>,
    /// What an attempt is expected to take, where anything is known of it.
    pub forecasts: &'a dyn Fn(&Task<'_>) -> Option<Forecast>,
    /// Stages start whatever they are expected to take.
    pub overcommit: bool,
    /// Bytes of memory that stages leave to other programs.
    pub kept_bytes: u64,
    /// Where the machine's tokens are, which all runs share; without it they are lent within this run.
    pub tokens: Option<PathBuf>,
    /// The higher, the sooner it gets tokens that others wait for; see [`crate::lending::PRIORITY_MAX`].
    pub priority: i32,
    /// No stage starts that the kernel cannot hold to what it declares.
    pub must_hold: bool,
    /// Turns a task into a program to run.
    pub orders: &'a dyn Fn(&Task<'_>) -> ProcessSpec,
    /// Has stages built that this machine is the wrong one for; without it they fail.
    pub elsewhere: Option<&'a dyn Fn(&Asking) -> Elsewhere>,
    /// Turns a warm-up into a program to run.
    pub warm_ups: &'a dyn Fn(&WarmUp) -> ProcessSpec,
    /// Where relative paths of the pipeline begin.
    pub folder: &'a Path,
    /// Whether the board has been rebooted since the run that this one continues.
    pub is_rebooted: bool,
    /// What starts this run again, in the words of whoever wants to: it goes into the journal.
    pub command: &'a serde_json::Value,
    /// What known failures say in logs.
    pub signatures: &'a Signatures,
    /// Shows the user what goes on.
    pub progress: &'a mut dyn FnMut(&Progress<'_>),
}

/// Puts a run into the journals that knew its end beforehand: every stage is built, or it is not worth
/// beginning.  Stages are those of the run before, and are not written again.
pub fn journal_without_news(
    run: &Run,
    report: &RunReport,
    command: &serde_json::Value,
) -> Result<(), ExecError> {
    let last = RunReport { stages: Vec::new(), ..report.clone() };
    let begin = json!({
        "format": FORMAT, "pipeline": report.pipeline, "method": "proc", "boot": boot_id(),
        "clock_s": clock_s(), "command": command,
    });
    for (event, detail) in [("begin", begin), ("end", json!(last))] {
        let record = json!({ "event": event, "at_s": 0.0, "detail": detail });
        run.journal().append(&record).map_err(StoreError::from)?;
    }
    Ok(())
}

/// What the clock says, in seconds of the Unix era; names of runs need not.
fn clock_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Runner<'_> {
    /// Runs the plan to its end.
    pub fn run(self, wishes: Wishes) -> Result<RunReport, ExecError> {
        let (sender, receiver) = sync_channel(MESSAGES_MAX);
        let signals = listen(sender.clone())?;
        let shims = Shims::new(self.run.id().as_str()).map_err(ExecError::Process)?;
        let cgroups = Cgroups::find(Path::new("/"));
        let report = thread::scope(|scope| {
            let (schedule, commands) = Schedule::begin(self.plan, wishes);
            let mut hands =
                Threads { scope, receiver, cgroups: cgroups.as_ref(), begin: Instant::now() };
            let mut state = Loop::new(self, schedule, &shims, cgroups.as_ref(), sender, &mut hands);
            let worked = state.work(commands);
            let result = worked.map(|()| state.finish());
            let controls = state.controls;
            // Whoever still sends is not heard, and must not wait to be.
            drop(hands);
            // After a failure of our own nothing may run on without a supervisor.
            controls.values().for_each(|controls| controls.kill());
            result
        });
        shims.close();
        signals.close();
        report
    }
}

/// What differs from attempt 1, for a person: the rungs, and the step's text where it still holds.
fn changed(changes: &[Change], step: Option<&str>) -> Option<String> {
    let mut all: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let has_step = changes.iter().any(|change| matches!(change, Change::Escalate(_)));
    all.extend(step.filter(|step| !has_step && *step != "{}").map(str::to_owned));
    (!all.is_empty()).then(|| all.join(", "))
}

/// What the loop does to the world, and how it hears of it: with threads and processes in a real
/// run, in one thread and without processes in a simulated one.
pub(crate) trait Hands<'s> {
    /// Begins an attempt; how it ends is a message.
    fn launch(&mut self, attempt: Attempt<'s>);
    /// The next message, or `None` after a tick without one.
    fn next(&mut self) -> Option<Message>;
    /// What the machine has left and has counted.
    fn machine(&mut self) -> (Machine, Counters);
    /// Since the run began.
    fn now(&self) -> Duration;
}

/// A thread for every attempt.
struct Threads<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    receiver: Receiver<Message>,
    cgroups: Option<&'scope Cgroups>,
    begin: Instant,
}

impl<'scope> Hands<'scope> for Threads<'scope, '_> {
    fn launch(&mut self, attempt: Attempt<'scope>) {
        self.scope.spawn(move || attempt.run());
    }

    fn next(&mut self) -> Option<Message> {
        self.receiver.recv_timeout(TICK).ok()
    }

    fn machine(&mut self) -> (Machine, Counters) {
        let root = Path::new("/");
        let machine = Machine::read(root);
        let ceiling = self.cgroups.map(Cgroups::ceiling).unwrap_or_default();
        (ceiling.over(machine), Counters::read(root))
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }
}

/// Sends a message for every SIGINT and SIGTERM until closed.
fn listen(sender: SyncSender<Message>) -> Result<signal_hook::iterator::Handle, ExecError> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(ExecError::Process)?;
    let handle = signals.handle();
    thread::spawn(move || {
        for _ in signals.forever() {
            if sender.send(Message::Signal).is_err() {
                return;
            }
        }
    });
    Ok(handle)
}

pub(crate) struct Loop<'h, 'scope, 'a> {
    hands: &'h mut dyn Hands<'scope>,
    sender: SyncSender<Message>,
    schedule: Schedule<'a>,
    begin: Instant,
    shims: &'scope Shims,
    cgroups: Option<&'scope Cgroups>,
    /// Where the outputs lie that stages below may read.
    outputs: HashMap<StageId, PathBuf>,
    /// Those outside of the store, which may change while somebody reads them.
    pins: HashMap<StageId, Pin>,
    keys: HashMap<StageId, Digest>,
    locks: HashMap<StageId, KeyLock>,
    controls: HashMap<StageId, Arc<Controls>>,
    reports: HashMap<StageId, Vec<AttemptReport>>,
    failures: HashMap<StageId, (FailureClass, String)>,
    told_held: HashSet<StageId>,
    told_elsewhere: HashMap<StageId, ToldElsewhere>,
    told_changed: HashSet<StageId>,
    runner: Runner<'a>,
    memory: Memory,
    lending: Option<Lending>,
    interrupted: bool,
    /// The journal has records that a power cut would take.
    is_behind: bool,
    /// Records that the journal could not take yet, in order.
    unwritten: VecDeque<serde_json::Value>,
    /// Why not, and why the results are not kept from a collection, where that is so.
    journal_error: Option<String>,
    keep_error: Option<String>,
    /// The names by which stages call container engines; none where there are no engines.
    engines: OnceCell<Option<PathBuf>>,
}

impl<'h, 'scope, 'a: 'scope> Loop<'h, 'scope, 'a> {
    pub(crate) fn new(
        runner: Runner<'a>,
        schedule: Schedule<'a>,
        shims: &'scope Shims,
        cgroups: Option<&'scope Cgroups>,
        sender: SyncSender<Message>,
        hands: &'h mut dyn Hands<'scope>,
    ) -> Self {
        Self {
            hands,
            sender,
            schedule,
            begin: Instant::now(),
            shims,
            cgroups,
            outputs: HashMap::new(),
            pins: HashMap::new(),
            keys: HashMap::new(),
            locks: HashMap::new(),
            controls: HashMap::new(),
            reports: HashMap::new(),
            failures: HashMap::new(),
            told_held: HashSet::new(),
            told_elsewhere: HashMap::new(),
            told_changed: HashSet::new(),
            runner,
            memory: Memory::default(),
            lending: None,
            interrupted: false,
            is_behind: false,
            unwritten: VecDeque::new(),
            journal_error: None,
            keep_error: None,
            engines: OnceCell::new(),
        }
    }

    pub(crate) fn work(&mut self, commands: Vec<Command>) -> Result<(), ExecError> {
        // What cannot be held in one write is claimed key by key.
        let _ = self.hold();
        self.share_tokens();
        let method = self.cgroups.map_or("proc", Cgroups::name);
        let name = &self.runner.plan.name;
        let (boot, command) = (boot_id(), self.runner.command);
        let begin = json!({
            "format": FORMAT, "pipeline": name, "method": method, "boot": boot,
            "clock_s": clock_s(), "command": command,
        });
        self.journal("begin", begin);
        self.note_given();
        self.perform_all(commands)?;
        while !self.schedule.is_finished() {
            match self.hands.next() {
                Some(message) => self.on_message(message)?,
                None if self.schedule.is_waiting_for_others() => self.happened(Event::Tick)?,
                None => {}
            }
            self.attend_memory()?;
        }
        // What was sealed stays, but what cannot be kept must not be called well.
        self.keep_error = self.keep().err().map(|error| error.to_string());
        Ok(())
    }

    /// The report, the last words of the journal too.
    pub(crate) fn finish(&mut self) -> RunReport {
        let mut report = self.report();
        let mut stages = std::mem::take(&mut report.stages);
        // The attempts have records of their own.
        let attempts: Vec<_> =
            stages.iter_mut().map(|stage| std::mem::take(&mut stage.attempts)).collect();
        for group in groups(&stages) {
            self.journal("stages", json!({ "stages": group }));
        }
        self.journal("end", json!(report));
        if !self.unwritten.is_empty() {
            // Nothing runs any more, and what was being made makes room.
            let _ = self.runner.run.empty();
            self.write(Journal::append);
        }
        report.not_written = self.not_written();
        for (stage, attempts) in stages.iter_mut().zip(attempts) {
            stage.attempts = attempts;
        }
        report.stages = stages;
        report
    }

    /// What a reader of the report must know of our own writes.
    fn not_written(&self) -> Option<String> {
        let kept = self.keep_error.as_ref().map(|error| {
            format!(
                "the results are there, but may not outlive a power cut or a collection: {error}"
            )
        });
        let lacks = self.journal_error.as_ref().map(|error| {
            let count = self.unwritten.len();
            // The first record has what the run was told.
            let is_known = self.unwritten.front().is_none_or(|first| first["event"] != "begin");
            let resume = match is_known {
                true => "takes the run for one that died",
                false => "does not know it: run the same command again",
            };
            format!("{count} records of this run's journal could not be written, so `smelt report` knows less and `smelt resume` {resume}: {error}")
        });
        kept.or(lacks)
    }

    /// From here on a collection spares what this plan leads to.
    fn hold(&self) -> Result<(), ExecError> {
        let stages = self.runner.plan.stages();
        let recipes: Vec<Digest> = stages.map(|(_, stage)| stage.recipe_key).collect();
        self.runner.run.hold(&recipes)?;
        let Some(command) = self.told() else { return Ok(()) };
        Ok(self.runner.run.keep_open(&command, &self.runner.plan.name, &recipes)?)
    }

    /// What this run was told, as one text; `None` for a warm-up, which nobody goes on with.
    fn told(&self) -> Option<String> {
        self.runner.command.is_object().then(|| self.runner.command.to_string())
    }

    /// The other side, and a later run of this one, find by its shared key what is here.
    fn note_shared(&self) {
        let plan = self.runner.plan;
        let keys = SharedKeys::all(plan, |stage| self.schedule.state(stage).output());
        for ((id, _), shared) in plan.stages().zip(keys) {
            let built = self.schedule.state(id).output().and_then(|_| self.keys.get(&id));
            if let Some((shared, key)) = shared.zip(built) {
                // Without it the next run is told to wait.
                let _ = self.runner.store.alias_later(&shared, key);
            }
        }
    }

    /// A good run of the whole plan is what a collection leaves of the pipeline.
    fn keep(&self) -> Result<(), ExecError> {
        self.note_shared();
        // What is reported next must not be lost with a power cut.
        self.runner.store.sync()?;
        if self.status() != RunStatus::Ok {
            return Ok(());
        }
        if self.schedule.is_whole() {
            let keys: Vec<Digest> = self.keys.values().copied().collect();
            self.runner.run.keep_for(&self.runner.plan.name, &keys)?;
        }
        match self.told() {
            Some(command) => Ok(self.runner.run.close_open(&command)?),
            None => Ok(()),
        }
    }

    /// `path:` sources are outputs from the start.
    fn note_given(&mut self) {
        for (id, stage) in self.runner.plan.stages() {
            if let Some(pin) = stage.given() {
                self.outputs.insert(id, pin.path.clone());
                self.pins.insert(id, pin.clone());
            }
        }
    }

    fn on_message(&mut self, message: Message) -> Result<(), ExecError> {
        match message {
            Message::Ended(ended) => self.on_ended(*ended),
            Message::Running { stage, elapsed, rss_bytes, held_bytes, last_line } => {
                self.catch_up();
                let last_line = &last_line;
                self.show(&Progress::Running { stage, elapsed, rss_bytes, held_bytes, last_line });
                Ok(())
            }
            Message::Signal if self.interrupted => {
                // Asked twice: no more patience.
                self.controls.values().for_each(|controls| controls.kill());
                Ok(())
            }
            Message::Signal => {
                self.interrupted = true;
                self.show(&Progress::Stopping);
                self.happened(Event::Interrupt)
            }
        }
    }

    fn on_ended(&mut self, ended: Ended) -> Result<(), ExecError> {
        let Ended { stage, report, result } = ended;
        self.controls.remove(&stage);
        self.memory.ended(stage);
        let record = json!({ "stage": self.name(stage), "attempt": report, "curve": report.curve });
        if report.wall_s < SHORT.as_secs_f64() && matches!(result, AttemptResult::Sealed(_)) {
            self.journal_later("ended", record);
        } else {
            self.journal("ended", record);
        }
        self.show(&Progress::Ended(stage, &report));
        self.reports.entry(stage).or_default().push(report);
        let event = match result {
            AttemptResult::Sealed(output) => {
                self.note_output(stage, &output);
                Event::Sealed(stage, output.digest)
            }
            AttemptResult::Failed(failure) => {
                self.failures.insert(stage, (failure.class, failure.message.clone()));
                Event::Failed(stage, failure)
            }
            AttemptResult::Interrupted => Event::Stopped(stage),
        };
        self.happened(event)
    }

    /// Feeds the schedule, and performs what it says until it says nothing more.
    fn happened(&mut self, event: Event) -> Result<(), ExecError> {
        let commands = self.schedule.on_event(event);
        self.perform_all(commands)
    }

    fn perform_all(&mut self, commands: Vec<Command>) -> Result<(), ExecError> {
        let mut queue = std::collections::VecDeque::from(commands);
        while let Some(command) = queue.pop_front() {
            // The key of a stage that has just ended may be the next one's.
            self.release_what_ended();
            if let Some(event) = self.perform(command)? {
                queue.extend(self.schedule.on_event(event));
            }
        }
        self.release_what_ended();
        Ok(())
    }

    /// Whether its key means nothing, since one of its inputs or tools is not here.
    fn is_without_key(&self, stage: StageId) -> bool {
        self.runner.plan.stage(stage).unread.is_some() && !self.schedule.is_known(stage)
    }

    /// Performs one command; some are answered at once.
    fn perform(&mut self, command: Command) -> Result<Option<Event>, ExecError> {
        match command {
            // It has no key that means anything; when it starts it is told why.
            Command::Look(stage, _) if self.is_without_key(stage) => {
                Ok(Some(Event::Missing(stage)))
            }
            Command::Look(stage, key) => {
                let found = self.claim(stage, key).and_then(|()| self.look(stage, &key));
                match found {
                    Err(ExecError::Store(error)) if !error.is_stopped() => {
                        // It is looked up again when it starts, and then that is why it cannot.
                        Ok(Some(Event::Missing(stage)))
                    }
                    found => Ok(Some(found?.unwrap_or(Event::Missing(stage)))),
                }
            }
            Command::Start { stage, key, attempt, forced, changes } => {
                self.start(Start { stage, key, n: attempt, forced, changes })
            }
            Command::Stop(stage) => {
                if self.memory.gives_up(stage) {
                    return Ok(Some(Event::Stopped(stage)));
                }
                if let Some(controls) = self.controls.get(&stage) {
                    controls.stop();
                }
                Ok(None)
            }
        }
    }

    /// No collection takes away from now on what the key leads to, as long as this run lives.
    fn claim(&mut self, stage: StageId, key: Digest) -> Result<(), ExecError> {
        self.keys.insert(stage, key);
        Ok(self.runner.run.claim(&key)?)
    }

    /// `Found` if the store has the key, which is claimed.
    fn look(&mut self, stage: StageId, key: &Digest) -> Result<Option<Event>, ExecError> {
        // What was asked for elsewhere is here when whoever fetches it says so.
        if self.told_elsewhere.contains_key(&stage) {
            return Ok(None);
        }
        match self.runner.store.lookup(key)? {
            Lookup::Hit(output) => Ok(Some(self.found(stage, &output))),
            Lookup::Miss => Ok(None),
            Lookup::Changed(what) => {
                // A stage is looked up again when it starts.
                if self.told_changed.insert(stage) {
                    self.show(&Progress::Changed(stage, &what));
                }
                Ok(None)
            }
            Lookup::Damaged(damage) => {
                self.show(&Progress::Damaged(stage, &damage.what));
                Ok(None)
            }
        }
    }

    fn found(&mut self, stage: StageId, output: &Output) -> Event {
        self.note_output(stage, output);
        self.show(&Progress::Hit(stage));
        Event::Found(stage, output.digest)
    }

    /// Stages below may read it, and the next plan knows which key this recipe led to.
    fn note_output(&mut self, stage: StageId, output: &Output) {
        self.outputs.insert(stage, output.path().to_owned());
        if let Location::External(path) = &output.location {
            self.pins.insert(stage, Pin { path: path.clone(), digest: output.digest });
        }
        let planned = self.runner.plan.stage(stage);
        // The recipe of what names something that is not here is not whole.
        if planned.unread.is_none() {
            // Without it the next plan knows less before it runs.
            let _ = self.runner.store.alias_later(&planned.recipe_key, &self.keys[&stage]);
        }
    }

    /// Starts a stage, or says why that cannot be.
    fn start(&mut self, start: Start) -> Result<Option<Event>, ExecError> {
        let stage = start.stage;
        match self.try_start(start) {
            Err(ExecError::Store(error)) if !error.is_stopped() => {
                Ok(Some(self.cannot_begin(stage, &error)))
            }
            done => done,
        }
    }

    /// Takes the key, looks once more (another run may just have built it), and starts.
    fn try_start(&mut self, start: Start) -> Result<Option<Event>, ExecError> {
        let Start { stage, key, forced, .. } = start;
        if let Some(why) = &self.runner.plan.stage(stage).unread {
            let message = format!("not started: {why}");
            return Ok(Some(self.not_started(stage, FailureClass::DiskError, message)));
        }
        self.claim(stage, key)?;
        let plan = self.runner.plan;
        if let Some(machine) = &plan.stage(stage).elsewhere {
            return self.ask_elsewhere(stage, key, machine);
        }
        if !self.locks.contains_key(&stage) {
            let Some(lock) = self.runner.store.try_lock_key(&key)? else {
                // Told once, although it is asked for again every tick.
                if self.told_held.insert(stage) {
                    self.show(&Progress::Held(stage));
                }
                return Ok(Some(Event::Held(stage)));
            };
            self.locks.insert(stage, lock);
        }
        if !forced && let Some(event) = self.look(stage, &key)? {
            return Ok(Some(event));
        }
        if let Some(message) = self.lacks_room(stage, &key)? {
            return Ok(Some(self.not_started(stage, FailureClass::DiskFull, message)));
        }
        let forecast = self.forecast(&start);
        self.admit(start, forecast)
    }

    /// Has another machine build a stage, which is to the schedule what another run builds.
    fn ask_elsewhere(
        &mut self,
        stage: StageId,
        key: Digest,
        machine: &Facts,
    ) -> Result<Option<Event>, ExecError> {
        let planned = self.runner.plan.stage(stage);
        let Some(ask) = self.runner.elsewhere else {
            let message = format!("not started: {}", elsewhere::nobody(machine));
            return Ok(Some(self.not_started(stage, FailureClass::DoesNotFit, message)));
        };
        let input = |need: StageId| AskingInput {
            stage: need,
            key: self.keys.get(&need).copied(),
            tree: self.schedule.state(need).output().expect("it is there before what needs it"),
        };
        match ask(&Asking { stage, key, inputs: planned.needs().map(input).collect() }) {
            Elsewhere::Waits(line) => {
                let now = self.hands.now();
                let told = self.told_elsewhere.get(&stage);
                let count = told.map_or(0, |told| told.count);
                let is_news = told.is_none_or(|told| {
                    let is_due = count < ELSEWHERE_LINES || now >= told.at + ELSEWHERE_TOLD;
                    told.line != line && is_due
                });
                if is_news {
                    self.show(&Progress::Elsewhere(stage, &line));
                    let told = ToldElsewhere { line, at: now, count: count + 1 };
                    self.told_elsewhere.insert(stage, told);
                }
                Ok(Some(Event::Held(stage)))
            }
            Elsewhere::Built(line) => match self.runner.store.lookup(&key)? {
                Lookup::Hit(output) => {
                    self.note_output(stage, &output);
                    self.show(&Progress::Elsewhere(stage, &line));
                    Ok(Some(Event::Sealed(stage, output.digest)))
                }
                _ => {
                    let message = "what was built elsewhere is gone again".to_owned();
                    Ok(Some(self.not_started(stage, FailureClass::OutputMissing, message)))
                }
            },
            Elsewhere::Failed(failure) => {
                self.failures.insert(stage, (failure.class, failure.message.clone()));
                Ok(Some(Event::Failed(stage, failure)))
            }
        }
    }

    /// Begins an attempt that has waited so long for memory.
    fn begin(&mut self, start: Start, waited: Duration) -> Result<Option<Event>, ExecError> {
        let stage = start.stage;
        match self.attempt(start, waited) {
            Ok(attempt) => {
                self.launch(stage, attempt);
                Ok(None)
            }
            Err(error) => Ok(Some(self.cannot_begin(stage, &error))),
        }
    }

    /// The store cannot take what a stage needs to begin.
    fn cannot_begin(&mut self, stage: StageId, error: &StoreError) -> Event {
        let class = match (error.is_disk_full(), error.is_disk_failing()) {
            (true, _) => FailureClass::DiskFull,
            (_, true) => FailureClass::DiskError,
            _ => FailureClass::SpawnFailed,
        };
        self.not_started(stage, class, format!("not started: {error}"))
    }

    fn not_started(&mut self, stage: StageId, class: FailureClass, message: String) -> Event {
        self.failures.insert(stage, (class, message.clone()));
        let exit = (class == FailureClass::DoesNotFit).then_some(DOES_NOT_FIT);
        Event::Failed(stage, Failure { class, exit, message })
    }

    /// Why the disk cannot take what the stage is known to make, if it cannot.
    fn lacks_room(&self, stage: StageId, key: &Digest) -> Result<Option<String>, ExecError> {
        let store = self.runner.store;
        let recipe = self.runner.plan.stage(stage).recipe_key;
        // The disk is asked first, because it nearly always has room.
        let free_bytes = store.free_bytes()?;
        Ok(room::shortage(free_bytes, || store.known_bytes(&recipe, key))?)
    }

    fn launch(&mut self, stage: StageId, attempt: Attempt<'scope>) {
        let Attempt { n, key, changed, log, preparation, .. } = &attempt;
        let rungs: Vec<Rung> = preparation.changes.iter().map(Change::rung).collect();
        let (name, planned) = (self.name(stage), self.runner.plan.stage(stage));
        self.journal_later(
            "start",
            json!({
                "stage": name, "kind": planned.kind, "n": n, "key": key, "changed": changed,
                "rungs": rungs, "log": log, "reproducible": planned.is_reproducible(),
            }),
        );
        self.show(&Progress::Started {
            stage,
            attempt: attempt.n,
            changed: attempt.changed.as_deref(),
            forecast: self.memory.forecast(stage),
        });
        self.controls.insert(stage, attempt.controls.clone());
        self.memory.launched(stage);
        self.hands.launch(attempt);
    }

    /// Prepares the directory, the order and all else an attempt needs.
    fn attempt(&self, start: Start, waited: Duration) -> Result<Attempt<'scope>, StoreError> {
        let Start { stage, key, n, changes, .. } = start;
        let Runner { plan, store, run, orders, command, signatures, .. } = &self.runner;
        let planned = plan.stage(stage);
        let spec = planned.attempt(n);
        let label = format!("{}.{n}", planned.name);
        let out = run.work_dir(&label)?;
        let kept = planned.kind.keeps().then(|| store.kept_dir(&key)).transpose()?;
        let order = orders(&Task { kept: kept.as_deref(), ..self.task(stage, &spec, &out) });
        let changed = changed(&changes, spec.changed.as_deref());
        Ok(Attempt {
            store,
            stage,
            key,
            n,
            began: self.begin.elapsed(),
            waited,
            budget: Budget {
                rss_bytes_max: spec.limits.memory_bytes_max,
                duration_max: spec.limits.duration_max,
            },
            survives_kills: planned.survives_kills,
            engines: self.engines(&order),
            keeps: kept.is_some(),
            since: SystemTime::now(),
            order,
            must_hold: self.runner.must_hold,
            log: run.log_path(&format!("{label}.log"))?,
            mark: format!("{}/{label}", run.id()),
            pins: self.pins(stage),
            refers: self.refers(stage),
            record: record(plan, stage, (run.id(), *command), n, changed.as_deref()),
            changed,
            preparation: self.preparation(stage, changes),
            out,
            compare: self.to_compare(stage, &key)?,
            reference: planned.fetched().map(|pin| pin.path.clone()),
            signatures,
            shims: self.shims,
            cgroups: self.cgroups,
            controls: Arc::default(),
            messages: self.sender.clone(),
        })
    }

    /// Where names lie that lead to container engines, for a program that could call one.
    fn engines(&self, order: &ProcessSpec) -> Option<PathBuf> {
        let is_ours = order.argv.first().is_some_and(|program| program == OURSELVES);
        let (_, path) = order.env.iter().rfind(|(name, _)| name == "PATH")?;
        // A `PATH` has no names with colons in it.
        let root = self.runner.store.root();
        let has_colon = root.to_str().is_none_or(|root| root.contains(':'));
        if is_ours || order.strict.is_some() || has_colon {
            return None;
        }
        let put = || {
            let engines = Some(containers::engines_in(path)).filter(|found| !found.is_empty())?;
            let folder = root.join("bin");
            containers::put_names(&folder, &engines).ok()?;
            Some(folder)
        };
        self.engines.get_or_init(put).clone()
    }

    fn preparation(&self, stage: StageId, changes: Vec<Change>) -> Preparation {
        let warm_up = changes.iter().find_map(|change| match change {
            Change::WarmUp(warm_up) => Some((self.runner.warm_ups)(warm_up)),
            _ => None,
        });
        let reports = self.reports.get(&stage).map(Vec::as_slice).unwrap_or_default();
        Preparation {
            changes,
            warm_up,
            awaited: awaited(reports),
            folder: self.runner.folder.to_owned(),
            is_rebooted: self.runner.is_rebooted,
            has_ladder: self.runner.plan.stage(stage).retry.attempts_max > 1,
        }
    }

    fn task<'t>(
        &'t self,
        stage: StageId,
        attempt: &'t smelt_plan::plan::Attempt,
        out: &'t Path,
    ) -> Task<'t> {
        Task {
            id: stage,
            stage: self.runner.plan.stage(stage),
            attempt,
            inputs: self.inputs(stage),
            leases: match self.lending.as_ref().and_then(|lending| lending.leases(stage)) {
                Some(leases) => leases,
                None => self.schedule.leases(stage),
            },
            out,
            kept: None,
        }
    }

    /// What a stage that is only checked must make again.
    fn to_compare(&self, stage: StageId, key: &Digest) -> Result<Option<Output>, StoreError> {
        if !self.runner.check.contains(&stage) {
            return Ok(None);
        }
        Ok(self.runner.store.lookup(key)?.hit())
    }

    fn inputs(&self, stage: StageId) -> Vec<Input<'a>> {
        let plan = self.runner.plan;
        let edges = plan.stage(stage).inputs.iter();
        edges
            .map(|edge| match &edge.from {
                From::Stage(id) => Input {
                    field: edge.field,
                    name: Some(edge.known_as.as_ref().unwrap_or(&plan.stage(*id).name)),
                    path: self.outputs[id].clone(),
                },
                From::Path(Pin { path, .. }) | From::Hub(HubPin { path, .. }) => {
                    Input { field: edge.field, name: None, path: path.clone() }
                }
            })
            .collect()
    }

    /// The outputs that the stage's own output will name, and be nothing without.
    fn refers(&self, stage: StageId) -> Vec<Digest> {
        let stage = self.runner.plan.stage(stage);
        let named = stage.inputs.iter().filter(|edge| stage.kind.names_by_path(edge.field));
        let digest = |from: &From| match from {
            From::Stage(id) => self.schedule.state(*id).output(),
            From::Path(_) | From::Hub(_) => None,
        };
        named.filter_map(|edge| digest(&edge.from)).collect()
    }

    /// What the stage reads outside the store.
    fn pins(&self, stage: StageId) -> Vec<Pin> {
        let pin = |from: &From| match from {
            From::Stage(id) => self.pins.get(id).cloned(),
            From::Path(pin) => Some(pin.clone()),
            // What is fetched is checked by whoever fetches it.
            From::Hub(_) => None,
        };
        let planned = self.runner.plan.stage(stage);
        let inputs = planned.inputs.iter().filter_map(|edge| pin(&edge.from));
        inputs.chain(planned.tools.iter().map(|tool| tool.pin.clone())).collect()
    }

    /// A stage that no longer runs gives its key back.
    fn release_what_ended(&mut self) {
        let schedule = &self.schedule;
        self.locks.retain(|stage, _| matches!(schedule.state(*stage), State::Running { .. }));
        if let Some(lending) = &mut self.lending {
            lending.retain(|stage| !schedule.leases(stage).is_empty());
        }
    }

    fn name(&self, stage: StageId) -> &str {
        self.runner.plan.stage(stage).name.as_str()
    }

    fn show(&mut self, progress: &Progress<'_>) {
        (self.runner.progress)(progress);
    }

    fn journal(&mut self, what: &str, detail: serde_json::Value) {
        let record = self.record_of(what, detail);
        self.unwritten.push_back(record);
        self.write(Journal::append);
        self.is_behind = false;
    }

    /// For what a power cut may take while it is young: [`Loop::catch_up`] follows when an attempt
    /// goes on.
    fn journal_later(&mut self, what: &str, detail: serde_json::Value) {
        let record = self.record_of(what, detail);
        self.unwritten.push_back(record);
        self.write(Journal::append_later);
        self.is_behind = true;
    }

    /// Writes what there is to write.  A journal that takes nothing ends no run: it is tried again with
    /// the next record, in order, and the report says what is lacking.
    fn write(&mut self, append: fn(&Journal, &serde_json::Value) -> Result<(), LogError>) {
        self.journal_error = None;
        while let Some(record) = self.unwritten.front() {
            if let Err(error) = append(self.runner.run.journal(), record) {
                self.journal_error = Some(error.to_string());
                // The first says whose journal it is.
                if self.unwritten.len() > UNWRITTEN_MAX {
                    self.unwritten.remove(1);
                }
                return;
            }
            self.unwritten.pop_front();
        }
    }

    fn record_of(&self, what: &str, detail: serde_json::Value) -> serde_json::Value {
        json!({ "event": what, "at_s": seconds(self.begin.elapsed()), "detail": detail })
    }

    /// After a board was reset, the journal says what ran.
    fn catch_up(&mut self) {
        if self.is_behind {
            // What it could not sync the next record syncs, or says why not.
            let _ = self.runner.run.journal().sync();
            self.is_behind = false;
        }
    }

    fn status(&self) -> RunStatus {
        match self.schedule.ending() {
            Some(Ending::Interrupted) => RunStatus::Interrupted,
            Some(Ending::Held) => RunStatus::Held,
            Some(Ending::Reboot) => RunStatus::Rebooting,
            Some(Ending::Failed) => RunStatus::Failed,
            None if self.schedule.first_failure().is_some() => RunStatus::Failed,
            None if self.keep_error.is_some() => RunStatus::Failed,
            None => RunStatus::Ok,
        }
    }

    fn report(&mut self) -> RunReport {
        let stages = self.runner.plan.stages().map(|(id, _)| id).collect::<Vec<_>>();
        RunReport {
            run: self.runner.run.id().to_string(),
            pipeline: self.runner.plan.name.clone(),
            status: self.status(),
            wall_s: seconds(self.begin.elapsed()),
            first_failure: self.first_failure(),
            not_written: self.not_written(),
            is_damaged: false,
            stages: stages.into_iter().filter_map(|id| self.stage_report(id)).collect(),
        }
    }

    fn first_failure(&self) -> Option<FirstFailure> {
        let (stage, failure) = self.schedule.first_failure()?;
        let stage = self.runner.plan.stage(*stage);
        Some(FirstFailure {
            stage: stage.name.to_string(),
            // Of a foreign program 4 and 5 could mean anything, and a full disk is no bad model.
            exit: failure.exit.filter(|_| {
                failure.class == FailureClass::DoesNotFit
                    || stage.kind != Kind::Command && failure.class == FailureClass::ToolRejected
            }),
            message: failure.message.clone(),
        })
    }

    /// `None` for a stage that was not asked for.
    fn stage_report(&mut self, id: StageId) -> Option<StageReport> {
        let status = match self.schedule.state(id) {
            State::Unwanted => return None,
            State::Hit(_) => StageStatus::Hit,
            State::Sealed(_) => StageStatus::Sealed,
            State::Failed => StageStatus::Failed,
            State::Interrupted => StageStatus::Interrupted,
            State::Waiting
            | State::Looking
            | State::Ready
            | State::Running { .. }
            | State::Held
            | State::Skipped => StageStatus::Skipped,
        };
        let stage = self.runner.plan.stage(id);
        let failure = self.failures.remove(&id).filter(|_| status == StageStatus::Failed);
        let (class, message) = failure.unzip();
        Some(StageReport {
            name: stage.name.to_string(),
            kind: stage.kind,
            status,
            key: self.keys.get(&id).copied(),
            digest: self.schedule.state(id).output(),
            output: self.outputs.get(&id).cloned(),
            reproducible: match status {
                StageStatus::Sealed if self.runner.check.contains(&id) => Some(true),
                StageStatus::Failed if self.runner.check.contains(&id) => Some(false),
                _ => stage.is_reproducible(),
            },
            class,
            message,
            attempts: self.reports.remove(&id).unwrap_or_default(),
        })
    }
}
