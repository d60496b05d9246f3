use std::collections::{HashMap, HashSet};

use smelt_random::Random;

use super::*;
use crate::failure::FailureClass;
use crate::pipeline::{Escalation, Overrides, Pipeline};
use crate::plan::Pins;
use crate::retry::{Retry, SwapSpec, WarmUp};

fn random_plan(chance: &mut Random) -> Plan {
    let count = 1 + chance.below(9);
    let mut text = "smelt = 1\nname = \"w\"\n[resources]\ngpu = 2\n".to_owned();
    for at in 0..count {
        let needs: Vec<_> =
            (0..at).filter(|_| chance.one_in(3)).map(|need| format!("\"s{need}\"")).collect();
        // Some stages are twins: the same work under two names.
        let work = if chance.one_in(4) { 0 } else { at };
        text.push_str(&format!(
            "[stage.s{at}]\nkind = \"command\"\nargv = [\"{work}\"]\noutputs = [\"o\"]\ninputs = [{}]\n",
            needs.join(", ")
        ));
        let tokens = chance.below(3);
        if tokens > 0 {
            text.push_str(&format!("resources = {{ gpu = {tokens} }}\n"));
        }
    }
    let mut pipeline = Pipeline::parse("w.toml", &text, &Overrides::default()).unwrap();
    for stage in &mut pipeline.stages {
        stage.retry = random_retry(chance);
    }
    Plan::build(&pipeline, &Pins::default()).unwrap()
}

fn random_retry(chance: &mut Random) -> Retry {
    let step = |chance: &mut Random| match chance.below(3) {
        0 => Escalation::default(),
        n => Escalation { params: [("x".to_owned(), n.into())].into(), ..Escalation::default() },
    };
    Retry {
        attempts_max: 1 + chance.below(4) as u32,
        settle: chance.one_in(3).then_some(std::time::Duration::from_secs(1)),
        drop_caches: chance.one_in(3),
        temporary_swap: chance.one_in(3).then(SwapSpec::default),
        warm_up: chance.one_in(3).then(|| WarmUp::parse("p.toml#s").unwrap()),
        escalate: (0..chance.below(3)).map(|_| step(chance)).collect(),
        reboot: chance.one_in(4),
    }
}

const CLASSES: [FailureClass; 8] = [
    FailureClass::KilledExternally,
    FailureClass::MemoryLimit,
    FailureClass::DiskFull,
    FailureClass::OomKilled,
    FailureClass::DeviceMemory,
    FailureClass::Thrash,
    FailureClass::ToolRejected,
    FailureClass::BoardReset,
];

fn failure(chance: &mut Random) -> Failure {
    Failure { class: CLASSES[chance.below(CLASSES.len())], exit: None, message: String::new() }
}

/// What is known of the attempts of a stage, over runs.
#[derive(Default, Clone)]
struct Past {
    attempts: u32,
    class: Option<FailureClass>,
    used: BTreeSet<Rung>,
}

impl Past {
    /// The next attempt changes something or answers what passes by itself, and climbs no rung in vain.
    fn check(&mut self, seed: u64, retry: &Retry, n: u32, changes: &[Change], rebooted: bool) {
        assert!(n <= retry.attempts_max, "seed {seed}: too often");
        let rungs: BTreeSet<Rung> = changes.iter().map(Change::rung).collect();
        assert_eq!(rungs.len(), changes.len(), "seed {seed}: a rung twice for one attempt");
        if n == 1 {
            assert_eq!(changes, [], "seed {seed}: attempt 1 is the stage as written");
            return *self = Self { attempts: 1, ..Self::default() };
        }
        assert_eq!(n, self.attempts + 1, "seed {seed}: an attempt was left out");
        let passes = self.class.is_some_and(FailureClass::passes_by_itself);
        assert!(passes || !changes.is_empty(), "seed {seed}: nothing changed");
        let again = rungs.contains(&Rung::WarmUp) && self.used.contains(&Rung::WarmUp);
        assert!(!again, "seed {seed}: warmed up twice");
        assert_eq!(rungs.contains(&Rung::Reboot), rebooted, "seed {seed}: only a new run reboots");
        assert!(!rebooted || !self.used.contains(&Rung::Reboot), "seed {seed}: rebooted twice");
        self.used.extend(rungs);
        self.attempts = n;
    }
}

fn output_of(key: Digest) -> Digest {
    Digest::from_bytes(key.as_bytes().map(|b| b ^ 0xFF))
}

/// Plays the world: random finish order, hits, holds, failures, at most one interrupt in each run, and
/// another run after a reboot.  Returns how many reboots there were.
fn simulate(seed: u64) -> u32 {
    let mut chance = Random::new(seed);
    let plan = random_plan(&mut chance);
    let ids: Vec<StageId> = plan.stages().map(|(id, _)| id).collect();
    let only = if chance.one_in(4) { vec![ids[chance.below(ids.len())]] } else { Vec::new() };
    let force: BTreeSet<StageId> = ids.iter().copied().filter(|_| chance.one_in(6)).collect();
    // What came from elsewhere, with a key that follows from nothing that is here.
    let known = |&id: &StageId| {
        let is_known = !only.is_empty() && !force.contains(&id) && chance.one_in(4);
        is_known.then(|| (id, Digest::of(&[id.index() as u8])))
    };
    let known = ids.iter().filter_map(known).collect();
    let mut wishes = Wishes {
        jobs: 1 + chance.below(3),
        keep_going: chance.one_in(2),
        wait: !chance.one_in(4),
        only,
        is_share: false,
        known,
        force,
        once: chance.one_in(8),
        earlier: BTreeMap::new(),
        begin: BTreeMap::new(),
    };
    if chance.one_in(8) {
        let behind = |&id: &StageId| (id, vec![Change::DropCaches]);
        wishes.begin = ids.iter().filter(|_| chance.one_in(2)).map(behind).collect();
    }
    let mut past = HashMap::new();
    let mut reboots = 0;
    while let Some(earlier) = play(seed, &mut chance, &plan, &wishes, &mut past) {
        reboots += 1;
        assert!(reboots <= 10, "seed {seed}: every stage reboots once at most");
        wishes.earlier = earlier;
    }
    reboots
}

/// One run; what it leaves to the next where the board is to be rebooted.
fn play(
    seed: u64,
    chance: &mut Random,
    plan: &Plan,
    wishes: &Wishes,
    past: &mut HashMap<Digest, Past>,
) -> Option<BTreeMap<Digest, Earlier>> {
    let (mut schedule, mut commands) = Schedule::begin(plan, wishes.clone());
    let mut running: HashMap<StageId, (Digest, u32)> = HashMap::new();
    let mut looking: Vec<(StageId, Digest)> = Vec::new();
    let mut done: HashSet<StageId> = HashSet::new();
    let mut stopped: HashSet<StageId> = HashSet::new();
    let mut running_once: HashSet<StageId> = HashSet::new();
    let mut interrupted = false;
    let mut steps = 0;
    loop {
        for command in commands.drain(..) {
            match command {
                Command::Look(stage, key) => {
                    assert!(!interrupted, "seed {seed}: looked after an interrupt");
                    looking.push((stage, key));
                }
                Command::Start { stage, key, attempt, forced, changes } => {
                    assert!(!interrupted, "seed {seed}: started after an interrupt");
                    let is_new = !running_once.contains(&stage);
                    assert!(
                        !wishes.once || is_new,
                        "seed {seed}: tried again although once is enough"
                    );
                    assert!(!is_new || forced == wishes.force.contains(&stage));
                    let earlier = wishes.earlier.get(&key).filter(|_| is_new);
                    let rebooted = attempt > 1 && earlier.is_some_and(|earlier| earlier.rebooted);
                    let retry = &plan.stage(stage).retry;
                    if let Some(Earlier { attempts, class, used, .. }) = earlier {
                        // A twin begins where the run before left the key, whatever the first has done.
                        let (attempts, class) = (*attempts, Some(*class));
                        past.insert(key, Past { attempts, class, used: used.clone() });
                    }
                    let begin = wishes.begin.get(&stage).filter(|_| attempt == 1);
                    match begin {
                        Some(begin) => {
                            assert_eq!(changes, *begin, "seed {seed}: as was asked");
                            let used = begin.iter().map(Change::rung).collect();
                            past.insert(key, Past { attempts: 1, used, ..Past::default() });
                        }
                        None => {
                            let past = past.entry(key).or_default();
                            past.check(seed, retry, attempt, &changes, rebooted);
                        }
                    }
                    running_once.insert(stage);
                    assert!(!wishes.known.contains_key(&stage), "seed {seed}: built what is known");
                    let needs = || plan.stage(stage).needs();
                    assert!(needs().all(|need| done.contains(&need)), "seed {seed}: too early");
                    assert_eq!(schedule.key(stage), Some(key));
                    let same_key = running.values().any(|(other, _)| *other == key);
                    assert!(!same_key, "seed {seed}: one key built twice at once");
                    let before = running.insert(stage, (key, attempt));
                    assert!(before.is_none(), "seed {seed}: started twice");
                    assert!(running.len() <= wishes.jobs, "seed {seed}: too many at once");
                    check_leases(seed, plan, &schedule, running.keys());
                }
                Command::Stop(stage) => {
                    assert!(
                        running.contains_key(&stage),
                        "seed {seed}: stopped what is not running"
                    );
                    stopped.insert(stage);
                }
            }
        }
        if schedule.is_finished() {
            break;
        }
        steps += 1;
        assert!(steps < 10_000, "seed {seed}: does not end");
        let event = if !interrupted && chance.one_in(40) {
            interrupted = true;
            Event::Interrupt
        } else if let Some((stage, key)) =
            (!looking.is_empty()).then(|| looking.swap_remove(chance.below(looking.len())))
        {
            if chance.one_in(3) {
                done.insert(stage);
                Event::Found(stage, output_of(key))
            } else {
                Event::Missing(stage)
            }
        } else if running.is_empty() {
            assert!(
                schedule.is_waiting_for_others(),
                "seed {seed}: nothing to do and not finished"
            );
            Event::Tick
        } else {
            let mut stages: Vec<_> = running.keys().copied().collect();
            stages.sort();
            let stage = stages[chance.below(stages.len())];
            let (key, attempt) = running.remove(&stage).unwrap();
            if stopped.contains(&stage) && !chance.one_in(4) {
                Event::Stopped(stage)
            } else {
                match chance.below(8) {
                    0..3 => {
                        let failure = failure(chance);
                        past.entry(key).or_default().class = Some(failure.class);
                        Event::Failed(stage, failure)
                    }
                    3 if attempt == 1 => {
                        running_once.remove(&stage);
                        Event::Held(stage)
                    }
                    _ => {
                        done.insert(stage);
                        Event::Sealed(stage, output_of(key))
                    }
                }
            }
        };
        commands = schedule.on_event(event);
    }
    check_the_end(seed, plan, &schedule, &running, interrupted);
    (schedule.ending() == Some(Ending::Reboot)).then(|| left(plan, &schedule, past))
}

/// What the journal of a run that ended for a reboot says of the stages that had not.
fn left(
    plan: &Plan,
    schedule: &Schedule<'_>,
    past: &HashMap<Digest, Past>,
) -> BTreeMap<Digest, Earlier> {
    let waits = plan.stages().filter(|(id, _)| schedule.state(*id) == State::Interrupted);
    let earlier = |(id, _)| {
        let key = schedule.key(id).expect("a stage that failed has a key");
        let Past { attempts, class, used } = past[&key].clone();
        let class = class.expect("a stage that waits for a reboot has failed");
        (key, Earlier { attempts, class, used, rebooted: true })
    };
    waits.map(earlier).collect()
}

/// Every stage that runs holds what it needs, and nothing is held twice.
fn check_leases<'a>(
    seed: u64,
    plan: &Plan,
    schedule: &Schedule<'_>,
    running: impl Iterator<Item = &'a StageId>,
) {
    let mut held = HashSet::new();
    for &stage in running {
        let ids = schedule.leases(stage).iter().flat_map(|lease| &lease.ids);
        let count = ids.filter(|id| held.insert((*id).clone())).count() as u64;
        let wanted = plan.stage(stage).resources.get("gpu").copied().unwrap_or(0);
        assert_eq!(count, wanted, "seed {seed}: {:?}", schedule.leases(stage));
    }
}

fn check_the_end(
    seed: u64,
    plan: &Plan,
    schedule: &Schedule<'_>,
    running: &HashMap<StageId, (Digest, u32)>,
    interrupted: bool,
) {
    assert!(running.is_empty(), "seed {seed}: finished while something runs");
    let any = |wanted: State| plan.stages().any(|(id, _)| schedule.state(id) == wanted);
    let reboots = schedule.ending() == Some(Ending::Reboot);
    assert!(interrupted || reboots || !any(State::Interrupted), "seed {seed}");
    assert_eq!(any(State::Failed), schedule.first_failure().is_some(), "seed {seed}");
    let all_good = plan.stages().all(|(id, _)| {
        schedule.state(id).output().is_some() || schedule.state(id) == State::Unwanted
    });
    let reason = any(State::Failed) || schedule.ending().is_some();
    assert!(all_good || reason, "seed {seed}: stages left out without a reason");
}

#[test]
fn any_world_ends_and_keeps_the_rules() {
    let worlds = if std::env::var_os("SMELT_SOAK").is_some() { 1_000_000 } else { 20_000 };
    let reboots: u32 = (1..=worlds).map(simulate).sum();
    println!("{worlds} worlds, {reboots} reboots");
    assert!(u64::from(reboots) > worlds / 100);
}

#[test]
fn what_a_known_stage_needs_is_not_looked_at() {
    let text = "smelt = 1\nname = \"w\"\n".to_owned()
        + &[("a", ""), ("b", "\"a\""), ("c", "\"b\"")].map(|(name, needs)| {
            format!("[stage.{name}]\nkind = \"command\"\nargv = [\"{name}\"]\noutputs = [\"o\"]\ninputs = [{needs}]\n")
        }).concat();
    let plan = plan_of(&text);
    let [a, b, c] = ["a", "b", "c"].map(|name| plan.find(name).unwrap());
    let key = Digest::of(b"by another store");
    let known = BTreeMap::from([(b, key)]);
    let wishes = Wishes { only: vec![c], known, ..Wishes::default() };
    let (mut schedule, commands) = Schedule::begin(&plan, wishes.clone());
    assert_eq!((commands, schedule.state(a)), (vec![Command::Look(b, key)], State::Unwanted));
    let looked = schedule.on_event(Event::Found(b, output_of(key)));
    assert_eq!(looked, [Command::Look(c, schedule.key(c).unwrap())]);
    assert!(!schedule.is_whole() && schedule.is_known(b) && !schedule.is_known(c));
    let share = Wishes { is_share: true, ..wishes.clone() };
    assert!(Schedule::begin(&plan, share).0.is_whole());
    assert!(Schedule::begin(&plan, Wishes::default()).0.is_whole());
    // One that was collected meanwhile ends the run: it cannot be built without what it needs.
    let (mut schedule, _) = Schedule::begin(&plan, wishes);
    assert_eq!(schedule.on_event(Event::Missing(b)), []);
    assert!(schedule.is_finished() && schedule.ending() == Some(Ending::Failed));
}

fn plan_of(text: &str) -> Plan {
    let pipeline = Pipeline::parse("w.toml", text, &Overrides::default()).unwrap();
    Plan::build(&pipeline, &Pins::default()).unwrap()
}

fn chain() -> Plan {
    let text = "smelt = 1\nname = \"w\"\n\
        [stage.a]\nkind = \"command\"\nargv = [\"a\"]\noutputs = [\"o\"]\n\
        [stage.b]\nkind = \"command\"\nargv = [\"b\"]\noutputs = [\"o\"]\ninputs = [\"a\"]\n";
    plan_of(text)
}

fn pair() -> Plan {
    let text = "smelt = 1\nname = \"w\"\n\
        [stage.a]\nkind = \"command\"\nargv = [\"a\"]\noutputs = [\"o\"]\n\
        [stage.b]\nkind = \"command\"\nargv = [\"b\"]\noutputs = [\"o\"]\n";
    plan_of(text)
}

#[test]
fn nothing_starts_before_the_store_has_answered_for_all() {
    let plan = pair();
    let (a, b) = (plan.find("a").unwrap(), plan.find("b").unwrap());
    let (mut schedule, _) = Schedule::begin(&plan, Wishes { jobs: 1, ..Wishes::default() });
    assert_eq!(schedule.on_event(Event::Missing(b)), []);
    let started = schedule.on_event(Event::Missing(a));
    assert!(matches!(started[..], [Command::Start { stage, .. }] if stage == a), "{started:?}");
}

#[test]
fn an_unchanged_output_stops_the_wave() {
    let plan = chain();
    let (a, b) = (plan.find("a").unwrap(), plan.find("b").unwrap());
    let output = Digest::from_bytes([7; 32]);
    let key_of_b = |event: Event| {
        let (mut schedule, commands) = Schedule::begin(&plan, Wishes::default());
        assert!(matches!(commands[..], [Command::Look(stage, _)] if stage == a));
        schedule.on_event(Event::Missing(a));
        let commands = schedule.on_event(event);
        let [Command::Look(stage, key)] = commands[..] else { panic!("{commands:?}") };
        assert_eq!(stage, b);
        key
    };
    let built = key_of_b(Event::Sealed(a, output));
    let found = key_of_b(Event::Found(a, output));
    let other = key_of_b(Event::Sealed(a, Digest::from_bytes([8; 32])));
    assert_eq!(built, found, "b's key covers what a holds, not how it came to be");
    assert_ne!(built, other);
}

#[test]
fn nobody_waits_with_no_wait() {
    let plan = chain();
    let a = plan.find("a").unwrap();
    let (mut schedule, _) = Schedule::begin(&plan, Wishes { wait: false, ..Wishes::default() });
    schedule.on_event(Event::Missing(a));
    let commands = schedule.on_event(Event::Held(a));
    assert_eq!(commands, []);
    assert!(schedule.is_finished());
    assert_eq!(schedule.ending(), Some(Ending::Held));
}

#[test]
fn an_attempt_that_the_user_stopped_ends_the_run_as_stopped() {
    let plan = chain();
    let a = plan.find("a").unwrap();
    let (mut schedule, _) = Schedule::begin(&plan, Wishes::default());
    schedule.on_event(Event::Missing(a));
    // Its sealing saw the flag before the schedule heard of the signal.
    schedule.on_event(Event::Stopped(a));
    assert!(schedule.is_finished());
    assert_eq!(schedule.ending(), Some(Ending::Interrupted));
}

#[test]
fn what_another_run_builds_is_looked_at_again() {
    let plan = chain();
    let a = plan.find("a").unwrap();
    let (mut schedule, look) = Schedule::begin(&plan, Wishes::default());
    schedule.on_event(Event::Missing(a));
    assert!(!schedule.is_waiting_for_others());
    assert_eq!(schedule.on_event(Event::Held(a)), []);
    assert!(schedule.is_waiting_for_others());
    assert_eq!(schedule.on_event(Event::Tick), look);
}

#[test]
fn a_failure_ends_the_run_unless_it_is_to_keep_going() {
    let plan = pair();
    let (a, b) = (plan.find("a").unwrap(), plan.find("b").unwrap());
    let class = FailureClass::ToolRejected;
    let after = |keep_going| {
        let (mut schedule, _) = Schedule::begin(&plan, Wishes { keep_going, ..Wishes::default() });
        schedule.on_event(Event::Missing(a));
        schedule.on_event(Event::Missing(b));
        let failure = Failure { class, exit: None, message: String::new() };
        schedule.on_event(Event::Failed(a, failure));
        (schedule.ending(), schedule.state(b))
    };
    assert_eq!(after(false), (Some(Ending::Failed), State::Skipped));
    assert_eq!(after(true), (None, State::Running { attempt: 1 }));
}

/// Another stage asked for the reboot; this one has no rung of its own and had failed as well.
#[test]
fn a_reboot_is_a_change_for_every_stage_that_had_failed() {
    let text = "smelt = 1\nname = \"w\"\n[stage.a]\nkind = \"command\"\nargv = [\"a\"]\n\
        outputs = [\"o\"]\nretry = { attempts = 2 }\n";
    let plan = plan_of(text);
    let a = plan.find("a").unwrap();
    let key = Schedule::begin(&plan, Wishes::default()).0.key(a).unwrap();
    let first = |attempts, rebooted| {
        let class = FailureClass::DeviceMemory;
        let earlier = Earlier { attempts, class, used: BTreeSet::new(), rebooted };
        let earlier = BTreeMap::from([(key, earlier)]);
        let (mut schedule, _) = Schedule::begin(&plan, Wishes { earlier, ..Wishes::default() });
        let mut started = schedule.on_event(Event::Missing(a));
        let Some(Command::Start { attempt, changes, .. }) = started.pop() else { panic!() };
        (attempt, changes)
    };
    assert_eq!(first(1, true), (2, vec![Change::Reboot]));
    assert_eq!(first(1, false), (1, vec![]), "nothing has changed");
    assert_eq!(first(2, true), (1, vec![]), "its attempts are used up");
}
