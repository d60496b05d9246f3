//! Decides which stage runs next.
//!
//! Takes events, returns commands.  Knows nothing of processes, files or clocks; `smelt-exec`
//! performs the commands and reports back.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::failure::Failure;
use crate::plan::{Plan, StageId};
use crate::retry::{Change, Earlier, Rung};
use crate::tokens::{Lease, Leases, Pools};

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The store has the result of this stage's key.
    Found(StageId, Digest),
    /// The store has no result for it.
    Missing(StageId),
    /// Another run is building the key.
    Held(StageId),
    /// The attempt ended well and its output is permanent.
    Sealed(StageId, Digest),
    /// The attempt failed.
    Failed(StageId, Failure),
    /// The attempt ended because we asked.
    Stopped(StageId),
    /// Some time has passed: keys held by others are worth another look.
    Tick,
    /// The user wants out.
    Interrupt,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Ask the store for this key; answer with `Found` or `Missing`.
    Look(StageId, Digest),
    /// Take the key and run this attempt; answer `Held`, `Found`, or how it ended.
    Start {
        /// Which stage.
        stage: StageId,
        /// Its content key.
        key: Digest,
        /// From 1.
        attempt: u32,
        /// Run even where the store has the result.
        forced: bool,
        /// What changes before it, and holds while it runs.
        changes: Vec<Change>,
    },
    /// End the attempt; answer `Stopped`, or how it ended before that.
    Stop(StageId),
}

/// Where a stage stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not part of this run (`--only`).
    Unwanted,
    /// Needs a stage that has no output yet.
    Waiting,
    /// The store is being asked.
    Looking,
    /// To be started when there is room.
    Ready,
    /// An attempt runs.
    Running {
        /// From 1.
        attempt: u32,
    },
    /// Another run builds its key.
    Held,
    /// The store had it.
    Hit(Digest),
    /// Built by this run.
    Sealed(Digest),
    /// Given up.
    Failed,
    /// Not started, since the run ended before.
    Skipped,
    /// Stopped by the user.
    Interrupted,
}

impl State {
    /// Whether nothing will change any more.
    pub fn is_final(self) -> bool {
        !matches!(
            self,
            Self::Waiting | Self::Looking | Self::Ready | Self::Running { .. } | Self::Held
        )
    }

    /// The digest of the output, where there is one.
    pub fn output(self) -> Option<Digest> {
        match self {
            Self::Hit(digest) | Self::Sealed(digest) => Some(digest),
            _ => None,
        }
    }
}

/// What the user asked of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Wishes {
    /// Attempts at once.
    pub jobs: usize,
    /// Go on with what does not need a failed stage.
    pub keep_going: bool,
    /// Wait for keys that other runs build; else the run ends there.
    pub wait: bool,
    /// Only these and what they need; empty is everything.
    pub only: Vec<StageId>,
    /// That is all that this machine builds of the pipeline.
    pub is_share: bool,
    /// The content keys of stages whose outputs are there; what these need is not looked at.
    pub known: BTreeMap<StageId, Digest>,
    /// Run these even where the store has their result.
    pub force: BTreeSet<StageId>,
    /// Try every stage once, whatever its `retry` says.
    pub once: bool,
    /// What runs that did not end have tried, by content key.
    pub earlier: BTreeMap<Digest, Earlier>,
    /// What changes before the first attempt at a stage, whatever was before.
    pub begin: BTreeMap<StageId, Vec<Change>>,
}

impl Default for Wishes {
    /// One stage at a time: on these devices memory, not cores, is short.
    fn default() -> Self {
        Self {
            jobs: 1,
            keep_going: false,
            wait: true,
            only: Vec::new(),
            is_share: false,
            known: BTreeMap::new(),
            force: BTreeSet::new(),
            once: false,
            earlier: BTreeMap::new(),
            begin: BTreeMap::new(),
        }
    }
}

impl Wishes {
    /// The stages that the run is about.
    pub fn wanted(&self, plan: &Plan) -> BTreeSet<StageId> {
        match self.only.as_slice() {
            [] => plan.wanted(&[]),
            only => plan.closure_but(only, &self.known),
        }
    }
}

/// A plan under way.
pub struct Schedule<'p> {
    plan: &'p Plan,
    wishes: Wishes,
    states: Vec<State>,
    /// The stages in some states, so that an event costs what it touches and not a walk of the plan.
    tally: Tally,
    dependents: Vec<Vec<StageId>>,
    pools: Pools,
    /// What the attempts under way hold.
    leases: BTreeMap<StageId, Leases>,
    /// The rungs that were climbed for stages that have failed.
    used: BTreeMap<StageId, BTreeSet<Rung>>,
    /// Why the run starts nothing more, once it does not.
    ending: Option<Ending>,
    /// The first failure, which gives the run its exit code.
    first_failure: Option<(StageId, Failure)>,
}

/// Which stages are in which states, as far as events ask; [`Schedule::set`] keeps it.
#[derive(Default)]
struct Tally {
    unfinished: usize,
    looking: usize,
    ready: BTreeSet<StageId>,
    held: BTreeSet<StageId>,
    running: BTreeMap<StageId, Digest>,
    /// Ended without an output since their dependents were last looked at.
    lost: Vec<StageId>,
}

impl Tally {
    fn note(&mut self, stage: StageId, from: State, to: State) {
        match from {
            State::Looking => self.looking -= 1,
            State::Ready => drop(self.ready.remove(&stage)),
            State::Held => drop(self.held.remove(&stage)),
            State::Running { .. } if !matches!(to, State::Running { .. }) => {
                self.running.remove(&stage);
            }
            _ => {}
        }
        match to {
            State::Looking => self.looking += 1,
            State::Ready => drop(self.ready.insert(stage)),
            State::Held => drop(self.held.insert(stage)),
            _ => {}
        }
        if to.is_final() {
            self.unfinished -= 1;
            if to.output().is_none() {
                self.lost.push(stage);
            }
        }
    }
}

/// Why a run starts nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A stage failed and the user does not want to keep going.
    Failed,
    /// The user wants out.
    Interrupted,
    /// Another run holds a key and the user does not want to wait.
    Held,
    /// A stage wants the board rebooted before its next attempt.
    Reboot,
}

impl<'p> Schedule<'p> {
    /// Begins; the commands are those to perform first.
    pub fn begin(plan: &'p Plan, wishes: Wishes) -> (Self, Vec<Command>) {
        let wanted = wishes.wanted(plan);
        let state = |(id, _)| if wanted.contains(&id) { State::Waiting } else { State::Unwanted };
        let mut dependents = vec![Vec::new(); plan.len()];
        for (id, stage) in plan.stages() {
            stage.needs().for_each(|need| dependents[need.index()].push(id));
        }
        let states: Vec<State> = plan.stages().map(state).collect();
        let unfinished = states.iter().filter(|state| !state.is_final()).count();
        let tally = Tally { unfinished, ..Tally::default() };
        let mut schedule = Self {
            plan,
            wishes,
            states,
            tally,
            dependents,
            pools: Pools::of(plan.capacity()),
            leases: BTreeMap::new(),
            used: BTreeMap::new(),
            ending: None,
            first_failure: None,
        };
        let mut commands = Vec::new();
        for (id, _) in plan.stages() {
            schedule.look_if_possible(id, &mut commands);
        }
        commands.extend(schedule.start_what_fits());
        (schedule, commands)
    }

    /// Takes what happened, returns what to do.
    pub fn on_event(&mut self, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Found(stage, output) => self.finish(stage, State::Hit(output), &mut commands),
            Event::Sealed(stage, output) => {
                self.finish(stage, State::Sealed(output), &mut commands)
            }
            Event::Missing(stage) if self.is_known(stage) => self.on_gone(stage),
            Event::Missing(stage) => self.set(stage, State::Ready),
            Event::Held(stage) => self.on_held(stage),
            Event::Failed(stage, failure) => self.on_failed(stage, failure, &mut commands),
            // An attempt may learn of the user's wish before the schedule does.
            Event::Stopped(stage) => {
                self.set(stage, State::Interrupted);
                self.on_interrupt(&mut commands);
            }
            Event::Tick => self.look_again(&mut commands),
            Event::Interrupt => self.on_interrupt(&mut commands),
        }
        self.skip_what_cannot_run();
        commands.extend(self.start_what_fits());
        commands
    }

    /// Whether every stage is in its last state.
    pub fn is_finished(&self) -> bool {
        self.tally.unfinished == 0
    }

    /// Whether a key held by another run is being waited for.
    pub fn is_waiting_for_others(&self) -> bool {
        !self.tally.held.is_empty()
    }

    /// Where `stage` stands.
    pub fn state(&self, stage: StageId) -> State {
        self.states[stage.index()]
    }

    /// Why the run started nothing more before it was done.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The failure that came first.
    pub fn first_failure(&self) -> Option<&(StageId, Failure)> {
        self.first_failure.as_ref()
    }

    /// The tokens that the attempt under way of `stage` holds.
    pub fn leases(&self, stage: StageId) -> &[Lease] {
        self.leases.get(&stage).map_or(&[], Vec::as_slice)
    }

    /// The content key of a stage whose needs all have outputs.
    pub fn key(&self, stage: StageId) -> Option<Digest> {
        key_of(self.plan, &self.states, stage)
    }

    fn finish(&mut self, stage: StageId, state: State, commands: &mut Vec<Command>) {
        self.set(stage, state);
        for dependent in self.dependents[stage.index()].clone() {
            self.look_if_possible(dependent, commands);
        }
    }

    /// Whether a run that ends well has all that this machine builds of the pipeline.
    pub fn is_whole(&self) -> bool {
        self.wishes.is_share || !self.states.contains(&State::Unwanted)
    }

    /// Whether the key of its output was known from the start.
    pub fn is_known(&self, stage: StageId) -> bool {
        self.wishes.known.contains_key(&stage)
    }

    /// A waiting stage whose needs are all there is looked up, forced, or given.
    fn look_if_possible(&mut self, stage: StageId, commands: &mut Vec<Command>) {
        if self.state(stage) != State::Waiting || self.ending.is_some() {
            return;
        }
        let known = self.wishes.known.get(&stage).copied();
        let Some(key) = known.or_else(|| self.key(stage)) else { return };
        if let Some(pin) = self.plan.stage(stage).given() {
            let digest = pin.digest;
            return self.finish(stage, State::Hit(digest), commands);
        }
        if self.wishes.force.contains(&stage) {
            return self.set(stage, State::Ready);
        }
        self.set(stage, State::Looking);
        commands.push(Command::Look(stage, key));
    }

    /// What was there when the run began was collected since: it is not built without what it needs.
    fn on_gone(&mut self, stage: StageId) {
        self.set(stage, State::Skipped);
        self.ending.get_or_insert(Ending::Failed);
    }

    fn on_held(&mut self, stage: StageId) {
        if self.ending.is_some() {
            return self.set(stage, State::Skipped);
        }
        self.set(stage, State::Held);
        if !self.wishes.wait {
            self.ending = Some(Ending::Held);
        }
    }

    fn look_again(&mut self, commands: &mut Vec<Command>) {
        for stage in self.tally.held.clone() {
            if self.wishes.force.contains(&stage) {
                self.set(stage, State::Ready);
            } else {
                let key = self.key(stage).expect("a held stage has a key");
                self.set(stage, State::Looking);
                commands.push(Command::Look(stage, key));
            }
        }
    }

    fn on_failed(&mut self, stage: StageId, failure: Failure, commands: &mut Vec<Command>) {
        let State::Running { attempt } = self.state(stage) else {
            panic!("BUG: stage {stage:?} failed while {:?}", self.state(stage));
        };
        let changes = self.retry(stage, attempt + 1, &failure);
        match changes.filter(|_| self.ending.is_none()) {
            Some(changes) if changes.contains(&Change::Reboot) => self.wait_for_reboot(stage),
            Some(changes) => self.try_again(stage, attempt + 1, changes, commands),
            None => self.give_up(stage, failure),
        }
    }

    /// What changes before attempt `n`, if there is to be one.
    fn retry(&self, stage: StageId, n: u32, failure: &Failure) -> Option<Vec<Change>> {
        let none = BTreeSet::new();
        let used = self.used.get(&stage).unwrap_or(&none);
        let retry = &self.plan.stage(stage).retry;
        retry.changes(n, failure.class, used).filter(|_| !self.wishes.once)
    }

    fn try_again(
        &mut self,
        stage: StageId,
        attempt: u32,
        changes: Vec<Change>,
        commands: &mut Vec<Command>,
    ) {
        let key = self.key(stage).expect("a running stage has a key");
        self.set(stage, State::Running { attempt });
        self.used.entry(stage).or_default().extend(changes.iter().map(Change::rung));
        commands.push(Command::Start { stage, key, attempt, forced: true, changes });
    }

    /// What runs may end; the next run, after the reboot, goes on with the stage.
    fn wait_for_reboot(&mut self, stage: StageId) {
        self.set(stage, State::Interrupted);
        self.ending = Some(Ending::Reboot);
    }

    fn give_up(&mut self, stage: StageId, failure: Failure) {
        self.set(stage, State::Failed);
        self.first_failure.get_or_insert((stage, failure));
        if !self.wishes.keep_going {
            self.ending.get_or_insert(Ending::Failed);
        }
    }

    fn on_interrupt(&mut self, commands: &mut Vec<Command>) {
        self.ending = Some(Ending::Interrupted);
        commands.extend(self.tally.running.keys().map(|&id| Command::Stop(id)));
    }

    /// After the ending nothing starts; without it, only what a failed stage feeds cannot.
    fn skip_what_cannot_run(&mut self) {
        let idle = |state| matches!(state, State::Waiting | State::Ready | State::Held);
        if self.ending.is_some() {
            for (stage, _) in self.plan.stages() {
                if idle(self.state(stage)) {
                    self.set(stage, State::Skipped);
                }
            }
        }
        while let Some(lost) = self.tally.lost.pop() {
            for dependent in self.dependents[lost.index()].clone() {
                if idle(self.state(dependent)) {
                    self.set(dependent, State::Skipped);
                }
            }
        }
    }

    /// Waits for every answer of the store, so that of the stages ready the first goes first.
    fn start_what_fits(&mut self) -> Vec<Command> {
        let mut room = self.wishes.jobs.max(1).saturating_sub(self.tally.running.len());
        if self.tally.looking > 0 || room == 0 || self.tally.ready.is_empty() {
            return Vec::new();
        }
        let mut building: BTreeSet<Digest> = self.tally.running.values().copied().collect();
        let mut next = Vec::new();
        for &stage in &self.tally.ready {
            // What waits for tokens is passed by those that need others, or fewer.
            let wanted = &self.plan.stage(stage).resources;
            if !self.pools.have(wanted) {
                continue;
            }
            let key = key_of(self.plan, &self.states, stage).expect("a ready stage has a key");
            // Two stages of one key are built once: the second finds what the first has made.
            if building.insert(key) {
                next.push((stage, key, self.pools.take(wanted)));
                room -= 1;
            }
            if room == 0 {
                break;
            }
        }
        next.into_iter().map(|(stage, key, leases)| self.start(stage, key, leases)).collect()
    }

    /// Attempt 1, or the one that a run before did not get to.
    fn start(&mut self, stage: StageId, key: Digest, leases: Leases) -> Command {
        let (attempt, changes) = self.first_attempt(stage, &key);
        self.set(stage, State::Running { attempt });
        self.tally.running.insert(stage, key);
        self.leases.insert(stage, leases);
        let forced = self.wishes.force.contains(&stage);
        Command::Start { stage, key, attempt, forced, changes }
    }

    fn first_attempt(&mut self, stage: StageId, key: &Digest) -> (u32, Vec<Change>) {
        if let Some(changes) = self.wishes.begin.get(&stage) {
            self.used.insert(stage, changes.iter().map(Change::rung).collect());
            return (1, changes.clone());
        }
        let Some(earlier) = self.wishes.earlier.get(key) else { return (1, Vec::new()) };
        let Earlier { attempts, class, used, rebooted } = earlier;
        let retry = &self.plan.stage(stage).retry;
        let mut changes = match retry.changes(attempts + 1, *class, used) {
            Some(changes) => changes,
            None if *rebooted && *attempts < retry.attempts_max => Vec::new(),
            // With its attempts used up it begins anew: somebody has asked for that.
            None => return (1, Vec::new()),
        };
        changes.retain(|change| *change != Change::Reboot);
        if *rebooted {
            changes.insert(0, Change::Reboot);
        }
        let all = used.iter().copied().chain(changes.iter().map(Change::rung)).collect();
        let attempt = attempts + 1;
        self.used.insert(stage, all);
        (attempt, changes)
    }

    /// Every state change goes through here; illegal ones are bugs in smelt.
    fn set(&mut self, stage: StageId, to: State) {
        use State::{
            Failed, Held, Hit, Interrupted, Looking, Ready, Running, Sealed, Skipped, Waiting,
        };
        let from = self.state(stage);
        let legal = match (from, to) {
            (Waiting, Looking | Ready | Hit(_) | Skipped) => true,
            // Skipped where it was known and is gone.
            (Looking, Hit(_) | Ready | Skipped) => true,
            (Ready, Running { .. } | Skipped) => true,
            (Running { attempt }, Running { attempt: next }) => next == attempt + 1,
            // Taking the key can show that another run has it, or has just finished with it.
            (Running { .. }, Held | Hit(_) | Sealed(_) | Failed | Interrupted | Skipped) => true,
            (Held, Looking | Ready | Skipped) => true,
            _ => false,
        };
        assert!(legal, "BUG: stage {}: {from:?} -> {to:?}", self.plan.stage(stage).name);
        self.states[stage.index()] = to;
        self.tally.note(stage, from, to);
        let is_over = !matches!(to, Running { .. });
        if is_over && let Some(leases) = self.leases.remove(&stage) {
            self.pools.give_back(leases);
        }
    }
}

fn key_of(plan: &Plan, states: &[State], stage: StageId) -> Option<Digest> {
    let known = |need: StageId| states[need.index()].output();
    plan.stage(stage)
        .needs()
        .all(|need| known(need).is_some())
        .then(|| plan.content_key(stage, |need| known(need).expect("checked on the line above")))
}

#[cfg(test)]
mod tests;
