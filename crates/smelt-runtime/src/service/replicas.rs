//! Spreads the requests of one deployment over several decoders of it: replicas, each with a thread of its own.
//!
//! Which one takes a request is a plain function ([`choose`]) of what each has read and owes.  A replica whose device is lost
//! takes nothing until it is open again; one that does not open is given nothing more, and what waited for it goes to the
//! others.  Knows no device.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smelt_backend::{Decoder, OpenError};

use super::event_stream::{Event, Failure};
use super::{Job, Kv, Stats, ToLlm};
use crate::prefix::Piece;

/// Blocks of prompts that are remembered of each replica: 4 million tokens, in some 3 MiB.
const BLOCKS_MAX: usize = 1 << 16;

/// What part of a prompt a replica must have read for it to count: less is read anew faster than others are waited for.
const PART_MIN: usize = 2;

/// Opens the engine of a replica anew, in a fresh context of the same device.
pub type Reopen = Box<dyn FnMut() -> Result<Box<dyn Decoder>, OpenError> + Send>;

/// One place where a deployment is answered.
pub struct Seat {
    /// What its device is called.
    pub name: String,
    /// How it is opened anew when its device was lost; without it, it is given up then.
    pub reopen: Option<Reopen>,
}

impl Seat {
    /// The place of a decoder whose device is never lost.
    pub fn only() -> Self {
        Self { name: String::new(), reopen: None }
    }
}

/// How a replica stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaStatus {
    /// It answers.
    #[default]
    Ready,
    /// Its device was lost, and is being opened anew.
    Reopening,
    /// It was given up.
    Lost,
}

impl ReplicaStatus {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Reopening => "reopening",
            Self::Lost => "lost",
        }
    }
}

/// What is known of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// What its device is called.
    pub name: String,
    /// How it stands.
    pub status: ReplicaStatus,
    /// How often its device was lost.
    pub losses: u64,
    /// Why it was lost at last.
    pub why: Option<String>,
    /// Requests that it owes an answer; texts, of encoders.
    pub owes: usize,
    /// Whether others went on with what it was doing when it was lost at last, as those of encoders do.
    pub went_on: bool,
}

/// What is counted of the replicas of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Devices that do not answer.
    pub lost: usize,
    /// How often one was lost.
    pub losses: u64,
}

impl DeviceCounts {
    /// Those of replicas that stand so.
    pub fn of(states: &[ReplicaState]) -> Self {
        let lost = states.iter().filter(|state| state.status != ReplicaStatus::Ready).count();
        Self { lost, losses: states.iter().map(|state| state.losses).sum() }
    }
}

/// A replica as a request finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    status: ReplicaStatus,
    /// Requests that it owes an answer.
    owes: usize,
    /// Requests that it answers at once.
    places: usize,
    /// Tokens of the prompt that it has read.
    read: usize,
}

/// Which replica takes a prompt of so many tokens: of those with a place that have read a good part of it the one that has
/// read most, else the one that owes least.  Those that are being opened anew wait in line behind all that answer.
fn choose(candidates: &[Candidate], tokens: usize) -> Option<usize> {
    let places = || candidates.iter().enumerate();
    let knows = |one: &Candidate| {
        one.status == ReplicaStatus::Ready && one.owes < one.places && one.read * PART_MIN >= tokens
    };
    let knowing = places().filter(|(_, one)| one.read > 0 && knows(one));
    let least = |status| {
        let of = places().filter(move |(_, one)| one.status == status);
        of.min_by_key(|(_, one)| one.owes)
    };
    let chosen = knowing
        .min_by_key(|(_, one)| (std::cmp::Reverse(one.read), one.owes))
        .or_else(|| least(ReplicaStatus::Ready))
        .or_else(|| least(ReplicaStatus::Reopening));
    chosen.map(|(at, _)| at)
}

/// Which blocks of prompts a replica has read, the last ones.
#[derive(Debug, Default)]
struct ReadBlocks {
    /// When each was read last.
    blocks: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    now: u64,
}

impl ReadBlocks {
    fn note(&mut self, hashes: &[u64]) {
        for &hash in hashes {
            self.now += 1;
            self.blocks.insert(hash, self.now);
            self.order.push_back((hash, self.now));
        }
        // Those that were read again stand there twice.
        while self.blocks.len() > BLOCKS_MAX || self.order.len() > 2 * BLOCKS_MAX {
            let Some((hash, read)) = self.order.pop_front() else { return };
            if self.blocks.get(&hash) == Some(&read) {
                self.blocks.remove(&hash);
            }
        }
    }

    /// Blocks at the beginning that were read.
    fn longest(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.blocks.contains_key(hash)).count()
    }
}

/// Counts a request as long as a replica owes its answer.
#[derive(Debug)]
pub(super) struct Owed(Arc<AtomicUsize>);

impl Owed {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a replica does at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    pub(super) waiting: usize,
    pub(super) reading: usize,
    pub(super) saying: usize,
    pub(super) kept_slots: usize,
    pub(super) kv: Kv,
}

/// What is known of a replica by who gives it work.
struct Known {
    state: ReplicaState,
    read: ReadBlocks,
}

/// The replicas of a service.
pub(super) struct Replicas {
    senders: Vec<Sender<ToLlm>>,
    owed: Vec<Arc<AtomicUsize>>,
    gauges: Vec<Mutex<Gauge>>,
    known: Mutex<Vec<Known>>,
    /// Answers of each at once.
    places: usize,
    block_tokens: usize,
    hasher: RandomState,
}

impl Replicas {
    pub(super) fn new(
        seats: Vec<(String, Sender<ToLlm>)>,
        places: usize,
        block_tokens: usize,
    ) -> Self {
        let (names, senders): (Vec<String>, Vec<_>) = seats.into_iter().unzip();
        let known = names.into_iter().map(|name| Known {
            state: ReplicaState { name, ..ReplicaState::default() },
            read: ReadBlocks::default(),
        });
        Self {
            owed: senders.iter().map(|_| Arc::default()).collect(),
            gauges: senders.iter().map(|_| Mutex::default()).collect(),
            known: Mutex::new(known.collect()),
            senders,
            places,
            block_tokens: block_tokens.max(1),
            hasher: RandomState::new(),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.senders.len()
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How each stands.
    pub(super) fn states(&self) -> Vec<ReplicaState> {
        let owes = self.owed.iter().map(|owed| owed.load(Ordering::Acquire));
        let known = self.known();
        known
            .iter()
            .zip(owes)
            .map(|(one, owes)| ReplicaState { owes, ..one.state.clone() })
            .collect()
    }

    /// The hash of everything up to the end of each whole block of a prompt.
    fn hashes(&self, pieces: &[Piece]) -> Vec<u64> {
        let mut before = None;
        let hash = |block: &[Piece]| {
            before = Some(self.hasher.hash_one((before, block)));
            before
        };
        pieces.chunks_exact(self.block_tokens).filter_map(hash).collect()
    }

    /// Gives a request to the replica that takes it.  Where none is left, its reader hears of that.
    pub(super) fn send(&self, job: Box<Job>) {
        self.send_with(&mut self.known(), job);
    }

    fn send_with(&self, known: &mut [Known], mut job: Box<Job>) {
        let is_one = self.count() == 1;
        let hashes = if is_one { Vec::new() } else { self.hashes(&job.pieces) };
        let candidate = |(one, owed): (&Known, &Arc<AtomicUsize>)| Candidate {
            status: one.state.status,
            owes: owed.load(Ordering::Acquire),
            places: self.places,
            read: one.read.longest(&hashes) * self.block_tokens,
        };
        let candidates: Vec<Candidate> = known.iter().zip(&self.owed).map(candidate).collect();
        let Some(at) = choose(&candidates, job.pieces.len()) else { return fail(*job) };
        known[at].read.note(&hashes);
        job.asked.owed = Some(Owed::new(&self.owed[at]));
        if let Err(SendError(ToLlm::Job(job))) = self.senders[at].send(ToLlm::Job(job)) {
            // A thread that is gone by a fault of ours has said nothing.
            known[at].state.status = ReplicaStatus::Lost;
            self.send_with(known, job);
        }
    }

    /// Sends something to one of them; says whether it is there.
    pub(super) fn tell(&self, at: usize, message: ToLlm) -> bool {
        self.senders.get(at).is_some_and(|sender| sender.send(message).is_ok())
    }

    /// Takes note that one of them holds a prompt that nobody asked.
    pub(super) fn note(&self, at: usize, pieces: &[Piece]) {
        let hashes = self.hashes(pieces);
        if let Some(one) = self.known().get_mut(at) {
            one.read.note(&hashes);
        }
    }

    /// The one that a request without a prompt goes to: that which owes least.
    pub(super) fn least(&self) -> usize {
        let states = self.states();
        let candidate = |state: &ReplicaState| {
            let (status, owes) = (state.status, state.owes);
            Candidate { status, owes, places: self.places, read: 0 }
        };
        choose(&states.iter().map(candidate).collect::<Vec<_>>(), 0).unwrap_or(0)
    }

    pub(super) fn publish(&self, at: usize, gauge: Gauge) {
        if let Some(own) = self.gauges.get(at) {
            *own.lock().unwrap_or_else(PoisonError::into_inner) = gauge;
        }
    }

    /// Adds up what all do at the moment.
    pub(super) fn sum(&self, stats: &mut Stats) {
        for gauge in &self.gauges {
            let gauge = *gauge.lock().unwrap_or_else(PoisonError::into_inner);
            stats.waiting += gauge.waiting;
            stats.reading += gauge.reading;
            stats.saying += gauge.saying;
            stats.kept_slots += gauge.kept_slots;
            stats.kv.block_bytes = stats.kv.block_bytes.max(gauge.kv.block_bytes);
            stats.kv.block_tokens = stats.kv.block_tokens.max(gauge.kv.block_tokens);
            stats.kv.blocks_held += gauge.kv.blocks_held;
            stats.kv.blocks_total += gauge.kv.blocks_total;
        }
    }

    /// The device of a replica was lost: what it had read is gone.  Gives its name.
    pub(super) fn lost(&self, at: usize, why: &str) -> String {
        let mut known = self.known();
        let Known { state, read } = &mut known[at];
        (state.status, state.losses, state.why) =
            (ReplicaStatus::Reopening, state.losses + 1, Some(why.to_owned()));
        *read = ReadBlocks::default();
        state.name.clone()
    }

    /// It answers again.
    pub(super) fn is_back(&self, at: usize) {
        self.known()[at].state.status = ReplicaStatus::Ready;
    }

    /// It will answer no more: what waited for it is the others'.
    pub(super) fn give_up(&self, at: usize, why: &str, waiting: impl FnOnce() -> Vec<Box<Job>>) {
        // Whoever gives it work waits until this is known, so nothing is left behind.
        let mut known = self.known();
        let state = &mut known[at].state;
        (state.status, state.why) = (ReplicaStatus::Lost, Some(why.to_owned()));
        self.publish(at, Gauge::default());
        waiting().into_iter().for_each(|job| self.send_with(&mut known, job));
    }
}

/// Nobody is left who could answer.
fn fail(job: Job) {
    let why = "every device of the model was lost".to_owned();
    job.asked.sender.send(Event::Failed(Failure::Engine(why)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `r3/8:40` is ready, owes 3, has 8 places and read 40 tokens; `o` is being opened, `l` lost.
    fn candidate(text: &str) -> Candidate {
        let (status, numbers) = text.split_at(1);
        let numbers: Vec<usize> =
            numbers.split(['/', ':']).map(|number| number.parse().unwrap()).collect();
        let status = match status {
            "r" => ReplicaStatus::Ready,
            "o" => ReplicaStatus::Reopening,
            _ => ReplicaStatus::Lost,
        };
        Candidate { status, owes: numbers[0], places: numbers[1], read: numbers[2] }
    }

    #[track_caller]
    fn check(candidates: &[&str], tokens: usize, expect: Option<usize>) {
        let candidates: Vec<Candidate> = candidates.iter().map(|text| candidate(text)).collect();
        assert_eq!(choose(&candidates, tokens), expect);
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_was_read() {
        check(&["r0/8:0", "r5/8:64"], 100, Some(1));
        check(&["r0/8:64", "r5/8:128"], 200, Some(1));
        check(&["r3/8:128", "r1/8:128"], 200, Some(1));
    }

    #[test]
    fn else_to_who_owes_least() {
        check(&["r2/8:0", "r1/8:0", "r1/8:0"], 100, Some(1));
        check(&["r0/8:0", "r1/8:64"], 1000, Some(0));
        check(&["r1/8:0", "r8/8:64"], 100, Some(0));
        check(&["r0/8:0"], 0, Some(0));
    }

    #[test]
    fn what_is_lost_takes_nothing_and_what_is_opened_anew_comes_last() {
        check(&["l0/8:64", "r7/8:0"], 100, Some(1));
        check(&["o0/8:64", "r9/8:0"], 100, Some(1));
        check(&["o1/8:0", "l0/8:0", "o0/8:0"], 100, Some(2));
        check(&["l0/8:0", "l0/8:64"], 100, None);
        check(&[], 100, None);
    }

    #[test]
    fn what_is_lost_counts_until_it_is_back() {
        let seat = |name: &str| (name.to_owned(), std::sync::mpsc::channel().0);
        let replicas = Replicas::new(vec![seat("a"), seat("b")], 8, 16);
        let counted = || {
            let DeviceCounts { lost, losses } = DeviceCounts::of(&replicas.states());
            (lost, losses)
        };
        assert_eq!(counted(), (0, 0));
        assert_eq!(replicas.lost(1, "it fell off the bus"), "b");
        assert_eq!(counted(), (1, 1));
        replicas.is_back(1);
        assert_eq!(counted(), (0, 1));
        replicas.lost(1, "again");
        replicas.give_up(1, "for good", Vec::new);
        assert_eq!(counted(), (1, 2));
    }

    #[test]
    fn what_was_read_longest_ago_is_forgotten_first() {
        let mut read = ReadBlocks::default();
        let first: Vec<u64> = (0..10).collect();
        read.note(&first);
        for round in 1..200_u64 {
            read.note(&first[..5]);
            read.note(&(0..1000).map(|at| round * 1000 + at).collect::<Vec<_>>());
        }
        assert!(read.blocks.len() <= BLOCKS_MAX && read.order.len() <= 2 * BLOCKS_MAX);
        assert_eq!((read.longest(&first), read.longest(&[7])), (5, 0));
    }
}
