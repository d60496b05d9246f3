//! Plays whole runs in simulated worlds: the real schedule, loop, store and journal on a disk in
//! memory, without processes or clocks.
//!
//! A seed decides everything: the pipeline, what two runs and a collection do beside each other at
//! every disk operation, which stages fail, when the user stops, when the disk fails, runs full or
//! loses power, and what it then loses.  After each life of a world the promises are checked: what
//! was sealed is there with the right content and is not built again, nothing half-made has a name,
//! and no key is built twice at one time.  In the last life nothing goes wrong, and a run must end
//! well.  A seed that fails is printed; `SMELT_SIM_SEED` plays it alone.

mod sweep;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use smelt_plan::admission::{Basis, Forecast};
use smelt_plan::pipeline::Overrides;
use smelt_plan::plan::Pins;
use smelt_plan::schedule::Wishes;
use smelt_plan::{
    Change, Digest, Earlier, Failure, FailureClass, Pipeline, Plan, Rung, Schedule, StageId,
};
use smelt_random::Random;
use smelt_store::sim::{Failure as DiskFailure, Left, SimDisk, Trouble};
use smelt_store::turns::TurnScheduler;
use smelt_store::{DeadRun, Limits, Store, What};
use smelt_watch::meter::Strain;
use smelt_watch::{Counters, Machine, Sample};

use crate::attempt::Attempt;
use crate::boot::boot_id;
use crate::classify::{End, OomKills, Outcome, Shortage, Stopped, classify};
use crate::controls::LastSample;
use crate::message::{AttemptResult, Message};
use crate::order::{ProcessSpec, ShimReport, Task};
use crate::recorded;
use crate::report::{AttemptReport, RunReport, RunStatus, StageStatus};
use crate::run::{Hands, Loop, Runner};
use crate::shims::Shims;
use crate::signatures::Signatures;

const ROOT: &str = "/data/cache";
/// A run that ticks so often without an end is stuck.
const TICKS_MAX: u32 = 20_000;

/// What every actor of a world may see: the promises, and what is under way.
#[derive(Clone, Default)]
struct Ledger {
    /// Keys that were acknowledged, with their trees, and that nobody may lose.
    sealed: BTreeMap<Digest, Digest>,
    /// Of these, what the last good run of a pipeline keeps, so that no collection may take it.
    kept: BTreeMap<String, BTreeSet<Digest>>,
    /// Whether a collection goes on in this life, which may take away what nobody holds.
    collects: bool,
    building: BTreeSet<Digest>,
    /// How much was built, for the sums at the end.
    builds: u64,
    hits: u64,
}

impl Ledger {
    /// Whoever built has ended, in whatever way.
    fn end_life(&mut self, disk: &SimDisk) {
        self.building.clear();
        if disk.met().contains("/out/") && !disk.is_down() {
            // A sealed file that could not be read is given up, as it should be.
            self.sealed.clear();
        }
    }
}

/// One world.
struct World {
    ledger: Mutex<Ledger>,
    shims: Shims,
    signatures: Signatures,
}

impl World {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pipeline of command stages, as the seed draws it: `needs[n]` are the stages that stage n reads.
#[derive(Clone)]
struct Drawn {
    name: &'static str,
    needs: Vec<Vec<usize>>,
    /// What the stages' programs are called; another word is another key.
    words: Vec<String>,
    attempts: usize,
    /// The rungs between them, as a pipeline says them.
    rungs: &'static str,
}

/// Ladders of several shapes; an attempt of a simulated world performs none of them.
const RUNGS: [&str; 4] = [
    "",
    ", settle = \"1s\", warm-up = \"w.toml#s\"",
    ", temporary-swap = \"1MiB\", escalate = [{}, { env = { A = \"1\" } }]",
    ", drop-caches = true, reboot = true",
];

impl Drawn {
    fn draw(chance: &mut Random) -> Self {
        let count = 2 + chance.below(3);
        let need = |n: usize, chance: &mut Random| {
            (0..n).filter(|_| chance.below(2) == 0).collect::<Vec<_>>()
        };
        let needs = (0..count).map(|n| need(n, chance)).collect();
        // Equal words of stages that read the same are equal keys.
        let words = (0..count).map(|n| format!("tool-{}", n.min(2))).collect();
        let rungs = RUNGS[chance.below(RUNGS.len())];
        Self { name: "one", needs, words, attempts: 1 + chance.below(3), rungs }
    }

    /// Another pipeline that shares stages with this one.
    fn sibling(&self, chance: &mut Random) -> Self {
        let mut other = Self { name: "two", ..self.clone() };
        let changed = chance.below(other.words.len());
        other.words[changed] += "-changed";
        other
    }

    fn plan(&self) -> Plan {
        let mut text = format!("smelt = 1\nname = \"{}\"\n", self.name);
        for (n, needs) in self.needs.iter().enumerate() {
            let inputs: Vec<_> = needs.iter().map(|need| format!("\"s{need}\"")).collect();
            text += &format!(
                "[stage.s{n}]\nkind = \"command\"\nargv = [\"{}\"]\noutputs = [\"o\"]\ninputs = [{}]\n\
                 retry = {{ attempts = {}{} }}\n",
                self.words[n],
                inputs.join(", "),
                self.attempts,
                self.rungs
            );
        }
        let overrides = Overrides::parse::<&str>(&[]).unwrap();
        let pipeline = Pipeline::parse("p.toml", &text, &overrides).unwrap();
        Plan::build(&pipeline, &Pins::default()).unwrap()
    }

    /// What stage `n` must make.
    fn content(&self, n: usize) -> String {
        let needs: Vec<_> = self.needs[n].iter().map(|&need| self.content(need)).collect();
        made(&self.words[n], &needs)
    }
}

/// A stage's program: its output says what it was made of.
fn made(word: &str, inputs: &[String]) -> String {
    // The first tool makes the same, changed or not, so that the change goes no further.
    format!("{}({})", word.replace("0-changed", "0"), inputs.join(","))
}

fn order(task: &Task<'_>) -> ProcessSpec {
    let word = task.attempt.params["argv"][0].as_str().unwrap().to_owned();
    let inputs = task.inputs.iter().map(|input| input.path.display().to_string());
    ProcessSpec {
        argv: std::iter::once(word).chain(inputs).collect(),
        env: Vec::new(),
        dir: task.out.to_owned(),
        input: String::new(),
        listed: None,
        outputs: vec!["o".to_owned()],
        validate: Vec::new(),
        writes: Vec::new(),
        capabilities: Vec::new(),
        strict: None,
        secrets: Vec::new(),
    }
}

fn warm_up(_: &smelt_plan::WarmUp) -> ProcessSpec {
    ProcessSpec {
        argv: vec!["warm".to_owned()],
        env: Vec::new(),
        dir: PathBuf::from("/"),
        input: String::new(),
        listed: None,
        outputs: Vec::new(),
        validate: Vec::new(),
        writes: Vec::new(),
        capabilities: Vec::new(),
        strict: None,
        secrets: Vec::new(),
    }
}

/// An attempt that failed: which, how, and the rungs used so far.
type Failed = (u32, FailureClass, BTreeSet<Rung>);

const CLASSES: [FailureClass; 5] = [
    FailureClass::ToolRejected,
    FailureClass::KilledExternally,
    FailureClass::OomKilled,
    FailureClass::DeviceMemory,
    FailureClass::Thrash,
];

/// What journals say that runs of this pipeline have left which did not end, the newest first.
fn earlier(store: &Store, pipeline: &str) -> Result<BTreeMap<Digest, Earlier>, String> {
    let mut all: BTreeMap<Digest, Earlier> = BTreeMap::new();
    for run in store.journals().map_err(|error| error.to_string())?.iter().rev() {
        if store.is_running(run).map_err(|error| error.to_string())? {
            continue;
        }
        let mut records = Vec::new();
        let read = store.read_journal(run, |record| records.push(record));
        read.map_err(|error| error.to_string())?;
        let is_ours = records.first().is_some_and(|begin| begin["detail"]["pipeline"] == pipeline);
        match recorded::open(&records, &boot_id()) {
            Some(open) if is_ours => {
                for (key, (_, earlier)) in open.ladders {
                    all.entry(key).or_insert(earlier);
                }
            }
            None if is_ours => break,
            _ => {}
        }
    }
    Ok(all)
}

/// Ends attempts in an order that chance gives, in the thread of the loop.
struct Simulated<'s> {
    world: &'s World,
    disk: SimDisk,
    turns: Arc<TurnScheduler>,
    actor: usize,
    chance: Random,
    /// Whether stages fail and the user stops.
    is_rough: bool,
    running: Vec<Attempt<'s>>,
    /// What this run has sealed itself, and so holds.
    sealed: BTreeSet<Digest>,
    /// Stages that this run has attempted.
    begun: BTreeSet<StageId>,
    /// How attempts at a key failed last, with the rungs that were climbed for it.
    failed: BTreeMap<Digest, Failed>,
    /// What runs before had left of that.
    before: BTreeMap<Digest, Failed>,
    attempts_max: u32,
    ticks: u32,
    counters: Counters,
}

impl<'s> Hands<'s> for Simulated<'s> {
    fn launch(&mut self, attempt: Attempt<'s>) {
        let mut ledger = self.world.ledger();
        assert!(ledger.building.insert(attempt.key), "a key is built twice at one time");
        let known = if ledger.collects {
            self.sealed.contains(&attempt.key)
        } else {
            ledger.sealed.contains_key(&attempt.key)
        };
        // What cannot be read is given up, as it should be.
        let is_unreadable = self.disk.met().contains("/out/");
        assert!(!known || is_unreadable, "{} was acknowledged and is built again", attempt.mark);
        ledger.builds += 1;
        drop(ledger);
        self.check_retry(&attempt);
        self.running.push(attempt);
    }

    fn next(&mut self) -> Option<Message> {
        self.ticks += 1;
        assert!(self.ticks < TICKS_MAX, "the run does not come to an end");
        if self.is_rough && self.chance.below(150) == 0 {
            return Some(Message::Signal);
        }
        if self.running.is_empty() || self.chance.below(6) == 0 {
            self.turns.give_way(self.actor);
            return None;
        }
        let attempt = self.running.swap_remove(self.chance.below(self.running.len()));
        let outcome = self.outcome(&attempt);
        let report = AttemptReport { n: attempt.n, ..AttemptReport::default() };
        let ended = attempt.conclude(outcome, report);
        if let AttemptResult::Failed(failure) = &ended.result {
            let used = self.failed.remove(&attempt.key).filter(|_| attempt.n > 1);
            let used = used.map_or_else(BTreeSet::new, |(_, _, used)| used);
            self.failed.insert(attempt.key, (attempt.n, failure.class, used));
        }
        let mut ledger = self.world.ledger();
        ledger.building.remove(&attempt.key);
        if let AttemptResult::Sealed(output) = &ended.result {
            ledger.sealed.insert(attempt.key, output.digest);
            self.sealed.insert(attempt.key);
        }
        drop(ledger);
        Some(Message::Ended(Box::new(ended)))
    }

    /// What others take comes and goes; what runs here takes what it is expected to, or less.
    fn machine(&mut self) -> (Machine, Counters) {
        let others = if self.is_rough { self.chance.below(800) as u64 * MIB } else { 0 };
        let held = self.running.iter().map(|attempt| self.hold(attempt)).sum::<u64>();
        let free = (MEMORY_BYTES + SWAP_BYTES).saturating_sub(others + held);
        let machine = Machine {
            mem_total_bytes: Some(MEMORY_BYTES),
            mem_available_bytes: Some(free.saturating_sub(SWAP_BYTES)),
            swap_total_bytes: Some(SWAP_BYTES),
            swap_free_bytes: Some(free.min(SWAP_BYTES)),
            ..Machine::default()
        };
        for pages in [&mut self.counters.swap_in_pages, &mut self.counters.swap_out_pages] {
            let swapped = if others + held > MEMORY_BYTES { 5_000 } else { 0 };
            *pages = Some(pages.unwrap_or(0) + swapped);
        }
        (machine, self.counters)
    }

    fn now(&self) -> Duration {
        TICK * self.ticks
    }
}

const MIB: u64 = 1 << 20;
const MEMORY_BYTES: u64 = 1000 * MIB;
const SWAP_BYTES: u64 = 500 * MIB;
/// How long a simulated tick is.
const TICK: Duration = Duration::from_millis(250);

impl Simulated<'_> {
    /// Lets the loop see what an attempt holds.
    fn hold(&self, attempt: &Attempt<'_>) -> u64 {
        let most = if self.is_rough { 4 * MIB } else { MIB };
        let held = u64::from(attempt.key.as_bytes()[0]) * most;
        let sample = Sample { rss_anon_bytes: held, ..Sample::default() };
        let strain =
            Strain { stalled_us: Some(u64::from(self.ticks) * 100_000), ..Strain::default() };
        attempt.controls.see(LastSample { sample, strain });
        held
    }

    /// A retry goes on where the ladder was left, has changed something, and climbs nothing in vain.
    fn check_retry(&mut self, attempt: &Attempt<'_>) {
        assert!(attempt.n <= self.attempts_max, "{}: too often", attempt.mark);
        let rungs: BTreeSet<Rung> = attempt.preparation.changes.iter().map(Change::rung).collect();
        let is_first = self.begun.insert(attempt.stage);
        if attempt.n == 1 {
            return assert!(rungs.is_empty(), "{}: attempt 1 changes nothing", attempt.mark);
        }
        let before = self.before.get(&attempt.key).filter(|(n, ..)| n + 1 == attempt.n);
        if let Some(before) = before.filter(|_| is_first) {
            // A twin begins where the run before left the key, whatever the first has done.
            self.failed.insert(attempt.key, before.clone());
        }
        let none = || (0, FailureClass::DoesNotFit, BTreeSet::new());
        let (n, class, used) = self.failed.entry(attempt.key).or_insert_with(none);
        assert!(attempt.n > *n, "{}: an attempt twice", attempt.mark);
        // An attempt that there was no room for was never begun, and nobody here knows its class.
        let is_known = attempt.n == *n + 1;
        let changed = class.passes_by_itself() || !rungs.is_empty();
        assert!(!is_known || changed, "{}: nothing changed", attempt.mark);
        for once in [Rung::WarmUp, Rung::Reboot] {
            assert!(!(rungs.contains(&once) && used.contains(&once)), "{}: again", attempt.mark);
        }
        used.extend(rungs);
    }

    fn outcome(&mut self, attempt: &Attempt<'_>) -> Outcome {
        let failed =
            |class, message: String| Outcome::Failed(Failure { class, exit: None, message });
        if attempt.controls.why() == Some(Stopped::Exhausted) {
            return failed(FailureClass::Thrash, "memory and swap were used up".to_owned());
        }
        if self.is_rough && self.chance.below(12) == 0 {
            let class = CLASSES[self.chance.below(CLASSES.len())];
            return failed(class, "as the seed says".to_owned());
        }
        if self.is_rough && self.chance.below(30) == 0 {
            return self.is_killed_and_says_nothing(attempt);
        }
        match self.make(attempt) {
            Ok(()) => Outcome::Done,
            // A program that looks at no write says that all is well.
            Err(_) if self.disk.is_full() && self.chance.coin() => Outcome::Done,
            Err(error) => failed(FailureClass::DiskFull, error.to_string()),
        }
    }

    /// The kernel kills a child of it, and it leaves half an output and says that all is well.
    fn is_killed_and_says_nothing(&self, attempt: &Attempt<'_>) -> Outcome {
        // A disk that cannot take that has nothing to do with it.
        let _ = self.disk.write(&attempt.out.join("o"), b"half");
        classify(&End {
            report: Some(ShimReport {
                exit: Some(0),
                signal: None,
                cpu_s: 0.0,
                rss_process_peak_bytes: 0,
                carried_bytes: 0,
                major_faults: 0,
                leftovers: 0,
                writes: None,
                confined_by: None,
                network: None,
                short: None,
                late: false,
                spawn_error: None,
                log_error: None,
            }),
            stopped: attempt.controls.why(),
            oom_kills: OomKills::Own(1),
            survives_kills: attempt.survives_kills,
            shortage: Shortage::default(),
            short: None,
            disk_line: None,
            found: None,
            limit_bytes: None,
            refused: None,
            last_line: String::new(),
        })
    }

    /// What the stage's program does: reads its inputs, writes its output, syncs nothing.
    fn make(&self, attempt: &Attempt<'_>) -> std::io::Result<()> {
        let [word, inputs @ ..] = attempt.order.argv.as_slice() else { panic!("a word at least") };
        let mut contents = Vec::new();
        for input in inputs {
            let content = match self.disk.read(&Path::new(input).join("o")) {
                // Somebody who could not read it has given it up; else nobody may.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let met = self.disk.met();
                    assert!(met.contains("/out/"), "{input} was taken from a run ({met})");
                    return Err(error);
                }
                read => read?,
            };
            contents.push(String::from_utf8(content).unwrap());
        }
        if self.is_rough {
            // A stray that is another one each time.
            let _ = self.disk.write(&attempt.out.join("log"), self.ticks.to_string().as_bytes());
        }
        self.disk.write(&attempt.out.join("o"), made(word, &contents).as_bytes())
    }
}

/// What some stages are expected to take, and now and then more than there is.
fn forecasts(plan: &Plan, chance: &mut Random, is_rough: bool) -> HashMap<StageId, Forecast> {
    if chance.coin() {
        return HashMap::new();
    }
    let most = if is_rough { 1600 } else { 900 };
    let bases = [Basis::Learned, Basis::Alike, Basis::Estimated, Basis::Declared];
    let mut forecast =
        || Forecast { bytes: chance.below(most) as u64 * MIB, basis: bases[chance.below(4)] };
    plan.stages().map(|(id, _)| (id, forecast())).collect()
}

/// One run from opening the store to its last word; `Err` if smelt could not do its part.
fn run(
    world: &World,
    disk: &SimDisk,
    (turns, actor): (&Arc<TurnScheduler>, usize),
    drawn: &Drawn,
    mut chance: Random,
    is_rough: bool,
) -> Result<RunReport, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let store = disk.open_store(Path::new(ROOT)).map_err(|error| text(&error))?;
    for dead in store.dead_runs().map_err(|error| text(&error))? {
        dead.and_then(DeadRun::clear).map_err(|error| text(&error))?;
    }
    let now = UNIX_EPOCH + Duration::from_nanos(disk.now_ns() as u64);
    let run = store.begin_run(now).map_err(|error| text(&error))?;
    let plan = drawn.plan();
    let jobs = 1 + chance.below(3);
    let keep_going = chance.coin();
    let earlier = earlier(&store, drawn.name)?;
    let before = earlier
        .iter()
        .map(|(key, earlier)| (*key, (earlier.attempts, earlier.class, earlier.used.clone())));
    let before: BTreeMap<Digest, Failed> = before.collect();
    let wishes = Wishes { jobs, keep_going, earlier, ..Wishes::default() };
    let (schedule, commands) = Schedule::begin(&plan, wishes);
    let forecasts = forecasts(&plan, &mut chance, is_rough);
    let runner = Runner {
        plan: &plan,
        store: &store,
        run: &run,
        orders: &order,
        elsewhere: None,
        warm_ups: &warm_up,
        folder: Path::new("/"),
        is_rebooted: false,
        command: &serde_json::Value::Null,
        check: BTreeSet::new(),
        signatures: &world.signatures,
        forecasts: &|task| forecasts.get(&task.id).copied(),
        overcommit: false,
        kept_bytes: 0,
        must_hold: false,
        tokens: None,
        priority: 0,
        progress: &mut |_| {},
    };
    let (sender, _receiver) = sync_channel(1);
    let turns = Arc::clone(turns);
    let mut hands = Simulated {
        world,
        disk: disk.clone(),
        turns,
        actor,
        chance,
        is_rough,
        running: Vec::new(),
        sealed: BTreeSet::new(),
        begun: BTreeSet::new(),
        failed: before.clone(),
        before,
        attempts_max: drawn.attempts as u32,
        ticks: 0,
        counters: Counters::default(),
    };
    let mut state = Loop::new(runner, schedule, &world.shims, None, sender, &mut hands);
    let worked = state.work(commands);
    let report = worked.map(|()| state.finish()).map_err(|error| text(&error));
    drop(state);
    for abandoned in &hands.running {
        world.ledger().building.remove(&abandoned.key);
    }
    let report = report?;
    check_report(world, &hands.disk, drawn, &plan, &report);
    run.finish().map_err(|error| text(&error))?;
    Ok(report)
}

/// What a report calls built must be there, and right.
fn check_report(world: &World, disk: &SimDisk, drawn: &Drawn, plan: &Plan, report: &RunReport) {
    let mut ledger = world.ledger();
    for stage in &report.stages {
        if !matches!(stage.status, StageStatus::Hit | StageStatus::Sealed) {
            continue;
        }
        // What another run had not synced when it was found here may be lost, as the report says.
        if stage.status == StageStatus::Hit && report.not_written.is_some() {
            continue;
        }
        ledger.hits += u64::from(stage.status == StageStatus::Hit);
        let n: usize = stage.name[1..].parse().unwrap();
        let file: PathBuf = stage.output.as_ref().unwrap().join("o");
        let content = disk.get(&file).map(|bytes| String::from_utf8(bytes).unwrap());
        // Somebody could not read it, or power is gone.
        let is_excused = disk.is_down() || disk.met().contains("/out/");
        if content.is_some() || !is_excused {
            let met = disk.met();
            assert_eq!(content, Some(drawn.content(n)), "the output of {} ({met})", stage.name);
        }
        let stray = stage.output.as_ref().map(|path| path.join("log"));
        assert!(stray.is_none_or(|stray| disk.get(&stray).is_none()), "{} has a log", stage.name);
        let tree = stage.output.as_ref().and_then(|path| path.file_name()?.to_str()?.parse().ok());
        ledger.sealed.extend(stage.key.zip(tree));
    }
    if report.status == RunStatus::Ok {
        let keys = report.stages.iter().filter_map(|stage| stage.key).collect();
        ledger.kept.insert(plan.name.clone(), keys);
    }
}

/// A collection beside the runs; what it takes away is promised no longer.
fn collect(world: &World, disk: &SimDisk, mut chance: Random) -> Result<(), String> {
    let store = disk.open_store(Path::new(ROOT)).map_err(|error| error.to_string())?;
    for _ in 0..=chance.below(2) {
        let bytes_max = [None, Some(0), Some(200)][chance.below(3)];
        let age_max = [None, Some(Duration::ZERO)][chance.below(2)];
        let done = store.collect(&Limits { bytes_max, age_max, takes_open: false });
        let mut ledger = world.ledger();
        match done {
            Ok(done) => {
                for victim in &done.removed {
                    if let What::Output(tree) = &victim.what {
                        ledger.sealed.retain(|_, sealed| sealed != tree);
                    }
                }
            }
            Err(error) => {
                // Nobody knows what it has taken.
                ledger.sealed.clear();
                return Err(error.to_string());
            }
        }
    }
    Ok(())
}

/// What goes wrong in one life of a world.
fn trouble(chance: &mut Random) -> Trouble {
    let at = chance.next_u64() % 900;
    match chance.below(8) {
        0..4 => Trouble::CrashAfterChange(at / 3),
        4 => Trouble::FailAt(at, DiskFailure::Eio),
        5 => Trouble::FailAt(at, DiskFailure::Enospc),
        6 => Trouble::FullFrom(at),
        _ => Trouble::Nothing,
    }
}

/// Two runs and a collection, in turns, until all have ended.
fn live(world: &World, disk: &SimDisk, pipelines: &[Drawn], chance: &mut Random) {
    let collects = chance.below(2) == 0;
    let runs = 1 + chance.below(2);
    let turns = Arc::new(TurnScheduler::new(runs + usize::from(collects), chance.next_u64()));
    world.ledger().collects = collects;
    std::thread::scope(|scope| {
        for actor in 0..runs {
            let drawn = &pipelines[chance.below(pipelines.len())];
            let (seed, turns) = (Random::new(chance.next_u64()), Arc::clone(&turns));
            let disk = disk.for_actor(&turns, actor);
            scope.spawn(move || {
                let _part = turns.begin(actor);
                // What smelt could not do, the next life does.
                let _ = run(world, &disk, (&turns, actor), drawn, seed, true);
            });
        }
        if collects {
            let (seed, turns) = (Random::new(chance.next_u64()), Arc::clone(&turns));
            let disk = disk.for_actor(&turns, runs);
            scope.spawn(move || {
                let _part = turns.begin(runs);
                let _ = collect(world, &disk, seed);
            });
        }
    });
}

/// What must hold of a disk between two lives.
fn check_between(world: &World, disk: &SimDisk) {
    let store = disk.open_store(Path::new(ROOT)).expect("a store that was opened once opens again");
    let checkup = store.check().expect("nothing goes wrong while we look");
    assert!(checkup.damaged.is_empty(), "half-made: {:?}", checkup.damaged);
    assert_eq!(checkup.lost, 0, "the action log has lost results");
    check_promises(world, &store);
}

fn check_promises(world: &World, store: &Store) {
    for (key, tree) in &world.ledger().sealed {
        let found = store.lookup(key).expect("nothing goes wrong while we look").hit();
        assert_eq!(found.map(|output| output.digest), Some(*tree), "{key} was acknowledged");
    }
}

/// Plays one world; how much was built and found.
fn play(seed: u64) -> (u64, u64) {
    let mut chance = Random::new(seed);
    let drawn = Drawn::draw(&mut chance);
    let pipelines = [drawn.clone(), drawn.sibling(&mut chance)];
    let world = World {
        ledger: Mutex::default(),
        shims: Shims::new("sim").unwrap(),
        signatures: Signatures::none(),
    };
    let mut disk = SimDisk::new();
    disk.put(Path::new("/data/there"), b"");
    for _ in 0..=chance.below(3) {
        if chance.below(4) == 0 {
            let hours = chance.below(2000) as i64 - 1000;
            disk.jump(hours * 3_600_000_000_000);
        }
        disk.plan(trouble(&mut chance));
        live(&world, &disk, &pipelines, &mut chance);
        world.ledger().end_life(&disk);
        if disk.is_down() || chance.below(3) == 0 {
            disk = disk.after_crash(Left::Random(chance.next_u64()));
        }
        disk.plan(Trouble::Nothing);
        check_between(&world, &disk);
    }
    let turns = Arc::new(TurnScheduler::new(1, 0));
    let last = disk.for_actor(&turns, 0);
    for drawn in &pipelines {
        let report = run(&world, &last, (&turns, 0), drawn, Random::new(chance.next_u64()), false);
        assert_eq!(report.expect("nothing goes wrong").status, RunStatus::Ok);
    }
    collect(&world, &last, Random::new(chance.next_u64())).expect("nothing goes wrong");
    check_between(&world, &disk);
    let ledger = world.ledger();
    let kept = ledger.kept.values().flatten().filter(|key| !ledger.sealed.contains_key(key));
    assert_eq!(kept.count(), 0, "what the last good runs made is kept");
    (ledger.builds, ledger.hits)
}

const WORLDS: u64 = 20_000;

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("Linux says it");
    (0..CpuSet::count()).filter(|&one| allowed.is_set(one).unwrap_or(false)).collect()
}

/// Keeps this thread, and those that it starts, on one processor: actors of a world take turns, and to wake one on another
/// processor takes longer than most turns.
fn stay_on(processor: usize) {
    let mut only = CpuSet::new();
    only.set(processor).expect("it is one of the allowed");
    sched_setaffinity(Pid::from_raw(0), &only).expect("it is one of the allowed");
}

#[test]
fn in_every_world_what_was_promised_is_kept() {
    if let Ok(seed) = std::env::var("SMELT_SIM_SEED") {
        let seed = seed.parse().expect("SMELT_SIM_SEED is a number");
        println!("world {seed}: {:?} builds and hits", play(seed));
        return;
    }
    let worlds = if std::env::var_os("SMELT_SOAK").is_some() { 10 * WORLDS } else { WORLDS };
    let begin = std::time::Instant::now();
    let (next, failed) = (AtomicU64::new(1), AtomicU64::new(0));
    let play_some = || {
        let (mut builds, mut hits) = (0, 0);
        while failed.load(Relaxed) == 0 {
            let seed = next.fetch_add(1, Relaxed);
            if seed > worlds {
                break;
            }
            match std::panic::catch_unwind(|| play(seed)) {
                Ok((built, hit)) => (builds, hits) = (builds + built, hits + hit),
                Err(_) => failed.store(seed, Relaxed),
            }
        }
        (builds, hits)
    };
    let (builds, hits) = std::thread::scope(|scope| {
        let play_on = |processor| {
            stay_on(processor);
            play_some()
        };
        let players: Vec<_> =
            processors().into_iter().map(|one| scope.spawn(move || play_on(one))).collect();
        let played = players.into_iter().map(|player| player.join().expect("it catches panics"));
        played.fold((0, 0), |sum, played| (sum.0 + played.0, sum.1 + played.1))
    });
    let seed = failed.into_inner();
    assert_eq!(
        seed, 0,
        "world {seed} fails; play it alone with: SMELT_SIM_SEED={seed} cargo test -p smelt-exec in_every_world"
    );
    println!("{worlds} worlds in {:?}: {builds} attempts, {hits} hits", begin.elapsed());
    assert!(builds > 2 * worlds && hits > worlds);
}
