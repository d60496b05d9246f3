//! Decides what the engine of a language model does next for many requests at once.
//!
//! Events in (a task arrives, a chunk was read, a step was said, a task ends), one [`Step`] out.  A
//! task waits, is given a slot, has its prompt read in chunks between the steps of others, then
//! says a token with every step of all.  Slots of ended tasks keep what they hold until their room
//! is wanted, so that what begins alike is not read again.  Where keys and values do not suffice, kept
//! slots are forgotten first, then the youngest task gives its slot back and later reads on
//! from what it has said.  Knows no engine, clock, text or picture.

mod line;
mod named;
mod share;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::prefix::{Piece, PrefixHit, Prefixes};

pub use line::{Standing, is_passed, next as next_in_line};
pub use named::{Named, Put};
use share::STALL_US;
pub use share::{PromptChunk, Share, Work};

/// A task's name.
pub type TaskId = u64;

/// Tasks of high priority that may be given a slot in a row while others wait: those are slowed, not
/// shut out.
const HIGHS_IN_A_ROW_MAX: u32 = 8;

/// How much earlier chunks count for what a token takes, when there is another one: of the last few.
const MEMORY: f64 = 0.75;

/// Fewest tokens of a chunk: fewer would cost nearly as much.
const CHUNK_TOKENS_MIN: usize = 32;

/// Most tokens of a chunk, however fast: more at once is no faster.
const CHUNK_TOKENS_MAX: usize = 512;

/// Tokens of the first chunk, when nobody knows yet what one takes.
const CHUNK_TOKENS_FIRST: usize = 128;

/// A prompt waits for another one that is being read if they share so many tokens more than any slot
/// holds: as many as one block of keys and values.
const SHARED_TOKENS_MIN: usize = 64;

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Before others.
    High,
    /// As they come.
    #[default]
    Normal,
}

/// Whose a task is, where not all are one's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Owners are told apart by it.
    pub id: u64,
    /// Most slots that the owner's tasks may have at once.
    pub slots_max: Option<usize>,
    /// Most blocks that slots may be kept with for the owner; one that several slots share counts for each.
    pub kept_blocks_max: Option<usize>,
    /// What the owner calls the slot that its task has, and what that leaves there; nothing is found by it where it
    /// says nothing.
    pub name: Option<u32>,
}

/// What there is to be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Slots of the engine.
    pub slots: usize,
    /// Tasks that may have one at once; at most as many.
    pub running_max: usize,
    /// Tokens of one block of keys and values.
    pub block_tokens: usize,
    /// Blocks that there may be.
    pub blocks_total: usize,
}

/// What is to be done next.  Slots have changed in the schedule already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Let `slot` hold the first tokens of another one, or of itself, or nothing.
    Admit {
        /// Whose slot it is now.
        task: TaskId,
        /// The slot.
        slot: usize,
        /// What it begins with.
        from: Option<PrefixHit>,
    },
    /// Run so many of the task's tokens behind those that its slot holds.
    Read {
        /// The task.
        task: TaskId,
        /// Its slot.
        slot: usize,
        /// How many tokens.
        tokens: usize,
        /// Whether logits are wanted: these are the last ones.
        is_last: bool,
    },
    /// Put each task's last token behind what its slot holds.
    Say(Vec<(TaskId, usize)>),
    /// Forget what a slot holds.
    Forget {
        /// The slot.
        slot: usize,
    },
    /// Forget what a slot holds; its task waits again.
    Preempt {
        /// The task.
        task: TaskId,
        /// The slot.
        slot: usize,
    },
    /// The task has all the room there is, and needs more: end it.
    Full {
        /// The task.
        task: TaskId,
    },
    /// Wait for something to happen.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Reading {
        slot: usize,
    },
    /// The prompt is read; what follows is not chosen yet.
    Choosing {
        slot: usize,
    },
    /// The last piece is chosen and not in the slot yet.
    Saying {
        slot: usize,
    },
}

#[derive(Debug)]
struct Task {
    owner: Owner,
    priority: Priority,
    order: u64,
    /// The prompt and what was said.
    pieces: Vec<Piece>,
    state: State,
    /// How often a later one read a chunk since this one did.
    passed: u32,
}

impl Task {
    fn slot(&self) -> Option<usize> {
        match self.state {
            State::Waiting => None,
            State::Reading { slot } | State::Choosing { slot } | State::Saying { slot } => {
                Some(slot)
            }
        }
    }
}

/// A part of a prompt that may be read next, behind the tokens that its slot holds.
struct Part {
    task: TaskId,
    slot: usize,
    held: usize,
    tokens: usize,
    is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Empty,
    /// Nobody's; what it holds may be of use.
    Kept {
        /// When it was last.
        since: u64,
        /// Whether all is there: what is put back piece by piece has no name before it is, and holds what others hold,
        /// too.
        is_whole: bool,
    },
    Taken,
}

/// How many there are of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks without a slot.
    pub waiting: usize,
    /// Tasks whose prompt is being read.
    pub reading: usize,
    /// Tasks that say something.
    pub saying: usize,
    /// Slots that are kept for what they hold.
    pub kept: usize,
}

/// What all tasks of an engine are doing.
#[derive(Debug)]
pub struct Schedule {
    capacity: Capacity,
    tasks: BTreeMap<TaskId, Task>,
    slots: Vec<Use>,
    /// Whose what a slot holds is.
    owners: Vec<Owner>,
    prefixes: Prefixes,
    share: Share,
    /// Counts arrivals and uses of slots.
    clock: u64,
    /// Slots that came to be kept, or were of use, and were not yet compared with the others.
    touched: Vec<usize>,
    highs_in_a_row: u32,
    /// A task was preempted, and none has ended since: whoever came would be preempted, too.
    is_tight: bool,
    /// Blocks that the engine found missing.
    lacking: usize,
    /// What the last chunks took, and their tokens, the earlier the less.
    read_us: f64,
    read_tokens: f64,
}

impl Schedule {
    /// With no tasks and empty slots.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            tasks: BTreeMap::new(),
            slots: vec![Use::Empty; capacity.slots],
            owners: vec![Owner::default(); capacity.slots],
            prefixes: Prefixes::new(capacity.slots, capacity.block_tokens),
            share: Share::default(),
            clock: 0,
            touched: Vec::new(),
            highs_in_a_row: 0,
            is_tight: false,
            lacking: 0,
            read_us: 0.0,
            read_tokens: 0.0,
        }
    }

    /// Whether a prompt of so many tokens can ever be read.
    pub fn fits(&self, tokens: usize) -> bool {
        self.blocks(tokens + 1) <= self.capacity.blocks_total
    }

    /// How many tasks and slots are in which state.
    pub fn counts(&self) -> Counts {
        let count = |is: fn(&State) -> bool| self.tasks.values().filter(|t| is(&t.state)).count();
        Counts {
            waiting: count(|state| matches!(state, State::Waiting)),
            reading: count(|state| matches!(state, State::Reading { .. })),
            saying: count(|s| matches!(s, State::Choosing { .. } | State::Saying { .. })),
            kept: self.slots.iter().filter(|slot| matches!(slot, Use::Kept { .. })).count(),
        }
    }

    /// A task whose prompt, at least one piece, is `pieces` and [fits](Self::fits).
    pub fn arrive(&mut self, id: TaskId, owner: Owner, priority: Priority, pieces: Vec<Piece>) {
        debug_assert!(!pieces.is_empty() && self.fits(pieces.len()));
        let (order, state) = (self.tick(), State::Waiting);
        let task = Task { owner, priority, order, pieces, state, passed: 0 };
        let before = self.tasks.insert(id, task);
        debug_assert!(before.is_none(), "task {id} arrived twice");
    }

    /// Takes note that a [`Step::Read`] was done.
    pub fn did_read(&mut self, task: TaskId, tokens: usize, time_us: u64) {
        self.share.spend(Work::Reading, time_us);
        self.read_us = self.read_us * MEMORY + time_us as f64;
        self.read_tokens = self.read_tokens * MEMORY + tokens as f64;
        self.lacking = 0;
        let Some(order) = self.tasks.get(&task).map(|task| task.order) else { return };
        for other in self.tasks.values_mut() {
            let is_reading = matches!(other.state, State::Reading { .. });
            other.passed += u32::from(is_reading && is_passed(other.order, order));
        }
        let Some(task) = self.tasks.get_mut(&task) else { return };
        let State::Reading { slot } = task.state else { return };
        let held = self.prefixes.held(slot).len();
        task.passed = 0;
        self.prefixes.append(slot, &task.pieces[held..held + tokens]);
        if held + tokens == task.pieces.len() {
            task.state = State::Choosing { slot };
        }
    }

    /// Takes note that a [`Step::Say`] was done.
    pub fn did_say(&mut self, tasks: &[(TaskId, usize)], time_us: u64) {
        self.share.spend(Work::Saying, time_us);
        self.lacking = 0;
        for (id, slot) in tasks {
            let Some(task) = self.tasks.get_mut(id) else { continue };
            self.prefixes.append(*slot, &task.pieces[task.pieces.len() - 1..]);
            task.state = State::Choosing { slot: *slot };
        }
    }

    /// The engine refused a step since it lacks so many blocks; it will be tried again.
    pub fn lack(&mut self, blocks: usize) {
        self.lacking = blocks.max(1);
    }

    /// What a task whose prompt was read, or that has said a token, says next.
    pub fn chose(&mut self, task: TaskId, token: u32) {
        let Some(task) = self.tasks.get_mut(&task) else { return };
        if let State::Choosing { slot } = task.state {
            task.pieces.push(Piece::Token(token));
            task.state = State::Saying { slot };
        }
    }

    /// The task is done, or nobody waits for it; what its slot holds is kept, once of what is equal.
    pub fn end(&mut self, task: TaskId) {
        let Some(task) = self.tasks.remove(&task) else { return };
        self.is_tight = false;
        if let Some(slot) = task.slot() {
            self.slots[slot] = Use::Kept { since: self.tick(), is_whole: true };
            self.touched.push(slot);
        }
    }

    /// What to do next, with so many blocks free.
    pub fn next(&mut self, blocks_free: usize) -> Step {
        if let Some(slot) = self.kept_twice().or_else(|| self.kept_too_long()) {
            return self.forget(slot);
        }
        if let Some(step) = self.admit(blocks_free) {
            return step;
        }
        let mut states = self.tasks.values().map(|task| task.state);
        let is_saying = states.any(|state| matches!(state, State::Saying { .. }));
        let part = self.next_part();
        let chunk = part.as_ref().map(|part| PromptChunk { ends_in_us: self.ends_in_us(part) });
        match (self.share.next(chunk, is_saying), part) {
            (Some(Work::Reading), Some(part)) => self.read(&part, blocks_free),
            (Some(Work::Saying), _) => self.say(blocks_free),
            _ => Step::Rest,
        }
    }

    /// The part of a prompt that is read next, if one is read at all.
    fn next_part(&self) -> Option<Part> {
        let reading = self.tasks.iter().filter_map(|(id, task)| match task.state {
            State::Reading { slot } => Some((*id, slot, task)),
            _ => None,
        });
        let line: Vec<(TaskId, usize, usize, Standing)> = reading
            .map(|(id, slot, task)| {
                let held = self.prefixes.held(slot).len();
                let left = task.pieces.len() - held;
                (id, slot, held, Standing { left, order: task.order, passed: task.passed })
            })
            .collect();
        let standings: Vec<Standing> = line.iter().map(|(.., standing)| *standing).collect();
        let (task, slot, held, Standing { left, .. }) = line[next_in_line(&standings)?];
        let tokens = left.min(self.chunk_tokens());
        Some(Part { task, slot, held, tokens, is_last: tokens == left })
    }

    /// How long a part will take, if its prompt ends with it and chunks were read before.
    fn ends_in_us(&self, part: &Part) -> Option<u64> {
        let is_known = part.is_last && self.read_tokens > 0.0;
        is_known.then(|| (self.read_us * part.tokens as f64 / self.read_tokens) as u64)
    }

    /// The part of a prompt, or what makes room for it.
    fn read(&mut self, part: &Part, blocks_free: usize) -> Step {
        let Part { task, slot, held, tokens, is_last } = *part;
        let need = self.blocks(held + tokens) - self.blocks(held);
        if need.max(self.lacking) > blocks_free {
            return self.make_room();
        }
        Step::Read { task, slot, tokens, is_last }
    }

    /// One step of all answers, or what makes room for it.
    fn say(&mut self, blocks_free: usize) -> Step {
        let saying = self.tasks.iter().filter_map(|(id, task)| match task.state {
            State::Saying { slot } => Some((*id, slot)),
            _ => None,
        });
        let batch: Vec<(TaskId, usize)> = saying.collect();
        let grows = |slot: usize| {
            let held = self.prefixes.held(slot).len();
            self.blocks(held + 1) - self.blocks(held)
        };
        let need: usize = batch.iter().map(|(_, slot)| grows(*slot)).sum();
        if need.max(self.lacking) > blocks_free {
            return self.make_room();
        }
        Step::Say(batch)
    }

    /// Tokens of the next chunk: as many as others can wait for.
    fn chunk_tokens(&self) -> usize {
        if self.read_tokens == 0.0 {
            return CHUNK_TOKENS_FIRST;
        }
        // A step that took no time at all gives a number beyond all bounds.
        let tokens = (STALL_US as f64 * self.read_tokens / self.read_us) as usize;
        let whole = tokens / CHUNK_TOKENS_MIN * CHUNK_TOKENS_MIN;
        whole.clamp(CHUNK_TOKENS_MIN, CHUNK_TOKENS_MAX)
    }

    /// Forgets the slot that was of no use for the longest time; without one, takes the slot of the
    /// youngest task.
    fn make_room(&mut self) -> Step {
        if let Some(slot) = self.oldest_kept(None) {
            return self.forget(slot);
        }
        let running = self.tasks.iter().filter_map(|(id, task)| Some((task, *id, task.slot()?)));
        let mut running: Vec<_> =
            running.map(|(task, id, slot)| ((task.priority, task.order), id, slot)).collect();
        running.sort_unstable();
        match running[..] {
            [] => Step::Rest,
            [(_, task, _)] => Step::Full { task },
            [.., (_, task, slot)] => {
                if let Some(youngest) = self.tasks.get_mut(&task) {
                    youngest.state = State::Waiting;
                }
                self.is_tight = true;
                self.slots[slot] = Use::Empty;
                self.prefixes.truncate(slot, 0);
                Step::Preempt { task, slot }
            }
        }
    }

    /// Gives a slot to the task that is next, or makes room for it, if it can be.
    fn admit(&mut self, blocks_free: usize) -> Option<Step> {
        let running = self.slots.iter().filter(|slot| **slot == Use::Taken).count();
        if self.is_tight || running >= self.capacity.running_max {
            return None;
        }
        let id = self.next_waiting()?;
        let pieces = &self.tasks[&id].pieces;
        // The engine has to be given at least one token.
        let found = self.prefixes.longest(pieces);
        let found = found.map(|found| PrefixHit { len: found.len.min(pieces.len() - 1), ..found });
        let found = found.filter(|found| found.len > 0);
        let shared = found.map_or(0, |found| found.len / self.capacity.block_tokens);
        let need = self.blocks(pieces.len() + 1) - shared;
        if need + self.promised() > blocks_free {
            let other = self.oldest_kept(found.map(|found| found.slot));
            // What is shared may itself be what takes the room.
            let last = || self.oldest_kept(None).filter(|_| running == 0);
            return other.or_else(last).map(|slot| self.forget(slot));
        }
        let slot = self.slot_for(found)?;
        Some(self.take(id, slot, found))
    }

    /// The first in line, of those whose owner may have another slot and that no prompt under way will spare
    /// reading.  Owners with fewer slots go first, so that who asks for much at once waits for nobody but itself.
    fn next_waiting(&self) -> Option<TaskId> {
        let is_normals_turn = self.highs_in_a_row >= HIGHS_IN_A_ROW_MAX;
        let is_later = |task: &Task| (task.priority == Priority::High) == is_normals_turn;
        let taken = self.taken_by_owner();
        let has = |task: &Task| taken.get(&task.owner.id).copied().unwrap_or(0);
        let may = |task: &&Task| task.owner.slots_max.is_none_or(|most| has(task) < most);
        let waiting = self.tasks.iter().filter(|(_, task)| task.state == State::Waiting);
        let mut waiting: Vec<_> = waiting
            .filter(|(_, task)| may(task))
            .map(|(id, task)| ((is_later(task), has(task), task.order), *id, task))
            .collect();
        waiting.sort_unstable_by_key(|(rank, ..)| *rank);
        waiting.into_iter().find(|(.., task)| !self.is_spared(task)).map(|(_, id, _)| id)
    }

    /// How many slots the tasks of each owner have.
    fn taken_by_owner(&self) -> BTreeMap<u64, usize> {
        let mut taken = BTreeMap::new();
        for task in self.tasks.values().filter(|task| task.slot().is_some()) {
            *taken.entry(task.owner.id).or_default() += 1;
        }
        taken
    }

    /// A slot that is kept for nothing: all that it holds is in another one of the same owner's, too.
    fn kept_twice(&mut self) -> Option<usize> {
        while let Some(slot) = self.touched.last().copied() {
            let spare = self.spare(slot);
            if spare.is_some() {
                return spare;
            }
            self.touched.pop();
        }
        None
    }

    /// Of a slot that was of use just now and the others that are kept, one that another one makes needless.
    fn spare(&self, slot: usize) -> Option<usize> {
        if !matches!(self.slots[slot], Use::Kept { .. }) {
            return None;
        }
        let mut others = self.kept_of(self.owners[slot].id).map(|(other, _)| other);
        others.find_map(|other| {
            let pairs = [(other, slot), (slot, other)];
            pairs.into_iter().find(|(one, by)| self.is_needless(*one, *by)).map(|(one, _)| one)
        })
    }

    /// Whether a kept slot is of no use beside another one of the same owner's, which holds all that it holds: if it has no
    /// name, or the other one has the same and was of use later, so that the name means that one.
    fn is_needless(&self, slot: usize, by: usize) -> bool {
        let (Use::Kept { since, is_whole }, Use::Kept { since: later, .. }) =
            (self.slots[slot], self.slots[by])
        else {
            return false;
        };
        let (own, other) = (self.owners[slot], self.owners[by]);
        let is_of_name = own.name.is_none() || own.name == other.name && since < later;
        let (part, whole) = (self.prefixes.held(slot), self.prefixes.held(by));
        slot != by && own.id == other.id && is_of_name && is_whole && whole.starts_with(part)
    }

    /// The oldest slot kept for an owner for whom more is kept than may be.
    fn kept_too_long(&self) -> Option<usize> {
        let kept = |(slot, r#use): (usize, &Use)| match r#use {
            Use::Kept { since, .. } => Some((*since, slot)),
            _ => None,
        };
        let mut kept: Vec<(u64, usize)> = self.slots.iter().enumerate().filter_map(kept).collect();
        kept.sort_unstable();
        let mut blocks = BTreeMap::<u64, usize>::new();
        // From the youngest to the oldest: the last one that is too much is the oldest of its owner.
        kept.into_iter().rev().fold(None, |found, (_, slot)| {
            let Owner { id, kept_blocks_max, .. } = self.owners[slot];
            let held = blocks.entry(id).or_default();
            *held += self.blocks(self.prefixes.held(slot).len());
            kept_blocks_max.filter(|most| *held > *most).map(|_| slot).or(found)
        })
    }

    /// Whether a prompt that is being read shares much with this one, and more than slots hold.
    fn is_spared(&self, task: &Task) -> bool {
        let reading =
            self.tasks.values().filter(|other| matches!(other.state, State::Reading { .. }));
        let shared = |other: &Task| {
            let pairs = other.pieces.iter().zip(&task.pieces);
            pairs.take_while(|(other, own)| other == own).count()
        };
        let Some(most) = reading.map(shared).max() else { return false };
        if most < SHARED_TOKENS_MIN {
            return false;
        }
        let held = self.prefixes.longest(&task.pieces).map_or(0, |found| found.len);
        most >= held + SHARED_TOKENS_MIN
    }

    /// Blocks that tasks with a slot will need soon: for the rest of their prompts, and one token.
    fn promised(&self) -> usize {
        let running = self.tasks.values().filter_map(|task| Some((task, task.slot()?)));
        running
            .map(|(task, slot)| {
                let held = self.prefixes.held(slot).len();
                self.blocks(task.pieces.len() + 1) - self.blocks(held)
            })
            .sum()
    }

    /// The slot for a task that begins with what was found: the same one if the task goes on from
    /// all it holds, else an empty one, else the one of no use for the longest time.
    fn slot_for(&self, found: Option<PrefixHit>) -> Option<usize> {
        let goes_on = |found: &PrefixHit| {
            let is_kept = matches!(self.slots[found.slot], Use::Kept { .. });
            is_kept && found.len == self.prefixes.held(found.slot).len()
        };
        let same = found.filter(goes_on).map(|found| found.slot);
        let empty = || self.slots.iter().position(|slot| *slot == Use::Empty);
        let other = || self.oldest_kept(found.map(|found| found.slot));
        same.or_else(empty).or_else(other).or_else(|| self.oldest_kept(None))
    }

    fn take(&mut self, id: TaskId, slot: usize, from: Option<PrefixHit>) -> Step {
        match from {
            Some(from) if from.slot == slot => self.prefixes.truncate(slot, from.len),
            Some(from) => self.prefixes.fork(from.slot, slot, from.len),
            None => self.prefixes.truncate(slot, 0),
        }
        let now = self.tick();
        if let Some(PrefixHit { slot: source, .. }) = from
            && let Use::Kept { since, .. } = &mut self.slots[source]
        {
            *since = now;
            self.touched.push(source);
        }
        self.slots[slot] = Use::Taken;
        let others_wait = self
            .tasks
            .values()
            .any(|task| task.state == State::Waiting && task.priority == Priority::Normal);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.state = State::Reading { slot };
            task.passed = 0;
            self.owners[slot] = task.owner;
            let is_high = task.priority == Priority::High;
            self.highs_in_a_row = if is_high && others_wait { self.highs_in_a_row + 1 } else { 0 };
        }
        Step::Admit { task: id, slot, from }
    }

    fn forget(&mut self, slot: usize) -> Step {
        self.slots[slot] = Use::Empty;
        self.prefixes.truncate(slot, 0);
        Step::Forget { slot }
    }

    /// The slot that was kept for the longest time, other than this one.
    fn oldest_kept(&self, but: Option<usize>) -> Option<usize> {
        let kept = self.slots.iter().enumerate().filter_map(|(slot, r#use)| match r#use {
            Use::Kept { since, .. } if Some(slot) != but => Some((*since, slot)),
            _ => None,
        });
        kept.min().map(|(_, slot)| slot)
    }

    fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.capacity.block_tokens)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
