use std::collections::{HashMap, HashSet};

use super::*;
use crate::failure::FailureClass;
use crate::pipeline::{Overrides, Pipeline, Step};
use crate::plan::Pins;

/// xorshift64*: the worlds need variety, not quality.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn random_plan(chance: &mut Chance) -> Plan {
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
        stage.attempts_max = 1 + chance.below(3) as u32;
        stage.escalate = vec![Step::default(); chance.below(3)];
    }
    Plan::build(&pipeline, &Pins::default()).unwrap()
}

fn failure(chance: &mut Chance) -> Failure {
    let classes =
        [FailureClass::KilledExternally, FailureClass::MemoryLimit, FailureClass::DiskFull];
    Failure { class: classes[chance.below(3)], exit: None, message: String::new() }
}

fn output_of(key: Digest) -> Digest {
    Digest::from_bytes(key.as_bytes().map(|b| b ^ 0xFF))
}

/// Plays the world: random finish order, hits, holds, failures, at most one interrupt.
fn simulate(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let plan = random_plan(&mut chance);
    let ids: Vec<StageId> = plan.stages().map(|(id, _)| id).collect();
    let wishes = Wishes {
        jobs: 1 + chance.below(3),
        keep_going: chance.one_in(2),
        wait: !chance.one_in(4),
        only: if chance.one_in(4) { vec![ids[chance.below(ids.len())]] } else { Vec::new() },
        force: ids.iter().copied().filter(|_| chance.one_in(6)).collect(),
    };
    let (mut schedule, mut commands) = Schedule::begin(&plan, wishes.clone());
    let mut running: HashMap<StageId, (Digest, u32)> = HashMap::new();
    let mut looking: Vec<(StageId, Digest)> = Vec::new();
    let mut done: HashSet<StageId> = HashSet::new();
    let mut stopped: HashSet<StageId> = HashSet::new();
    let mut interrupted = false;
    let mut steps = 0;
    loop {
        for command in commands.drain(..) {
            match command {
                Command::Look(stage, key) => {
                    assert!(!interrupted, "seed {seed}: looked after an interrupt");
                    looking.push((stage, key));
                }
                Command::Start { stage, key, attempt, forced } => {
                    assert!(!interrupted, "seed {seed}: started after an interrupt");
                    assert!(attempt <= plan.stage(stage).attempts_max, "seed {seed}: too often");
                    assert!(attempt > 1 || forced == wishes.force.contains(&stage));
                    let needs = || plan.stage(stage).needs();
                    assert!(needs().all(|need| done.contains(&need)), "seed {seed}: too early");
                    assert_eq!(schedule.key(stage), Some(key));
                    let same_key = running.values().any(|(other, _)| *other == key);
                    assert!(!same_key, "seed {seed}: one key built twice at once");
                    let before = running.insert(stage, (key, attempt));
                    assert!(before.is_none(), "seed {seed}: started twice");
                    assert!(running.len() <= wishes.jobs, "seed {seed}: too many at once");
                    check_leases(seed, &plan, &schedule, running.keys());
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
                    0 | 1 => Event::Failed(stage, failure(&mut chance)),
                    2 if attempt == 1 => Event::Held(stage),
                    _ => {
                        done.insert(stage);
                        Event::Sealed(stage, output_of(key))
                    }
                }
            }
        };
        commands = schedule.on_event(event);
    }
    check_the_end(seed, &plan, &schedule, &running, interrupted);
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
    assert!(interrupted || !any(State::Interrupted), "seed {seed}");
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
    (1..=worlds).for_each(simulate);
    println!("{worlds} worlds");
}

fn chain() -> Plan {
    let text = "smelt = 1\nname = \"w\"\n\
        [stage.a]\nkind = \"command\"\nargv = [\"a\"]\noutputs = [\"o\"]\n\
        [stage.b]\nkind = \"command\"\nargv = [\"b\"]\noutputs = [\"o\"]\ninputs = [\"a\"]\n";
    let pipeline = Pipeline::parse("w.toml", text, &Overrides::default()).unwrap();
    Plan::build(&pipeline, &Pins::default()).unwrap()
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
