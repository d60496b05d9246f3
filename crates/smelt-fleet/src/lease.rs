//! Leases of keys: of the builders that share a fleet, one builds a result while the others wait for it.
//!
//! Whoever takes a lease renews it until the result is published.  One that is renewed no more runs out.  Each renewal names
//! the revision of the one before, so that a builder that was away finds out that the lease is another's.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use smelt_store::Digest;

use crate::remote::plain;

/// How often a lease is looked at that another builder has.
const LOOK: Duration = Duration::from_secs(1);
/// A lease is renewed so often before it would run out.
const RENEWALS: u32 = 3;
/// Leases that are asked for in one go, so that hundreds are had within a second by a line whose answers take a while.
const TAKEN_AT_ONCE: usize = 64;

/// Who has a lease, and how far that builder is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// Tells this run from every other.
    pub id: String,
    /// The builder's name, for a person.
    pub builder: String,
    /// The public key by which it will vouch for what it builds.
    pub key: String,
    /// What it builds now.
    pub stage: String,
    /// How many stages are done.
    pub done: usize,
    /// Of how many that it builds.
    pub all: usize,
    /// The last line of the log.
    pub line: String,
}

impl Holder {
    /// A builder of that name and public key, as nobody else is, before it builds `all` stages.
    pub fn new(builder: &str, key: &str, all: usize) -> Self {
        let mut id = [0; 16];
        // Without chance two builders would take each other's leases for their own.
        SystemRandom::new().fill(&mut id).expect("the system has random numbers");
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let (builder, key) = (builder.to_owned(), key.to_owned());
        Self { id, builder, key, all, ..Self::default() }
    }

    fn to_json(&self) -> Vec<u8> {
        let line = plain(&self.line);
        serde_json::to_vec(&Self { line, ..self.clone() }).expect("texts are JSON")
    }

    /// What a server says: nothing where somebody else has written something.
    fn from_json(json: &[u8]) -> Self {
        let read: Self = serde_json::from_slice(json).unwrap_or_default();
        let Self { id, builder, key, stage, done, all, line } = read;
        let [builder, key, stage, line] = [builder, key, stage, line].map(|text| plain(&text));
        Self { id, builder, key, stage, done: done.min(all), all, line }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.builder.is_empty() { "another builder" } else { &self.builder };
        match self.stage.as_str() {
            "" if self.all == 1 => write!(f, "{name} builds a stage")?,
            "" => write!(f, "{name} builds {} stages", self.all)?,
            stage => write!(f, "{name} builds {stage} ({} of {} are done)", self.done, self.all)?,
        }
        if self.line.is_empty() { Ok(()) } else { write!(f, ": {}", self.line) }
    }
}

/// A server of leases did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{server}: {problem}")]
pub struct TableError {
    /// Its address.
    pub server: String,
    /// What it said, or that it said nothing.
    pub problem: String,
}

/// A lease as a server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What its holder said last.
    pub said: Vec<u8>,
    /// Changes with every renewal.
    pub revision: u64,
}

impl Entry {
    /// Who has it, as far as that is said.
    pub fn holder(&self) -> Holder {
        Holder::from_json(&self.said)
    }
}

/// A server of leases: each is there until it was renewed for the last time so long ago.
pub trait LeaseTable: Send + Sync {
    /// How long a lease lasts.
    fn lasts(&self) -> Duration;

    /// Takes the leases of these keys that nobody has: the revision of each.
    ///
    /// # Errors
    /// If the server does not answer; some may be taken then.
    fn take(&self, keys: &[Digest], said: &[u8]) -> Result<Vec<Option<u64>>, TableError>;

    /// Renews the leases that have these revisions: the new ones.
    ///
    /// # Errors
    /// If the server does not answer; some may be renewed then.
    fn renew(&self, leases: &[(Digest, u64)], said: &[u8]) -> Result<Vec<Option<u64>>, TableError>;

    /// Gives back the leases that have these revisions.
    ///
    /// # Errors
    /// If the server does not answer.
    fn release(&self, leases: &[(Digest, u64)]) -> Result<(), TableError>;

    /// The leases of keys that anybody has, in their order.
    ///
    /// # Errors
    /// If the server does not answer.
    fn look_each(&self, keys: &[Digest]) -> Result<Vec<Option<Entry>>, TableError>;

    /// The lease of a key, if anybody has it.
    ///
    /// # Errors
    /// If the server does not answer.
    fn look(&self, key: &Digest) -> Result<Option<Entry>, TableError> {
        Ok(self.look_each(&[*key])?.pop().flatten())
    }
}

/// What came of asking for leases.
pub enum Claim {
    /// All of them.
    Ours(Lease),
    /// Somebody has this one, so none was taken.
    Theirs(Digest),
}

/// The first of the keys that somebody has.
///
/// # Errors
/// If the server does not answer.
pub fn held(table: &dyn LeaseTable, keys: &BTreeSet<Digest>) -> Result<Option<Digest>, TableError> {
    let keys: Vec<Digest> = keys.iter().copied().collect();
    for some in keys.chunks(TAKEN_AT_ONCE) {
        let found = table.look_each(some)?;
        if let Some(at) = found.iter().position(Option::is_some) {
            return Ok(Some(some[at]));
        }
    }
    Ok(None)
}

/// Takes the leases of all keys or of none.  The first is taken alone: of builders that want the same one goes on, and the others
/// hold nothing while they wait.
///
/// # Errors
/// If the server does not answer; what was taken runs out then.
pub fn claim(
    table: Arc<dyn LeaseTable>,
    keys: &BTreeSet<Digest>,
    holder: Holder,
) -> Result<Claim, TableError> {
    let began = Instant::now();
    let mut taken = Taken { table, leases: Vec::new() };
    let keys: Vec<Digest> = keys.iter().copied().collect();
    let (first, others) = keys.split_at(keys.len().min(1));
    for part in [first].into_iter().chain(others.chunks(TAKEN_AT_ONCE)) {
        if let Some(theirs) = taken.take(part, &holder)? {
            taken.release();
            return Ok(Claim::Theirs(theirs));
        }
    }
    Ok(Claim::Ours(Lease::keep(taken, holder, began)))
}

/// What came of waiting for somebody's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Nobody has it any more.
    Free,
    /// Whoever waited wants no more.
    Stopped,
}

/// Waits until nobody has a key's lease; `told` hears who has it, and says whether to go on.  A server that is gone may come
/// back until a lease would have run out.
///
/// # Errors
/// If the server does not answer any more.
pub fn wait(
    table: &dyn LeaseTable,
    key: &Digest,
    told: &mut dyn FnMut(&Holder) -> bool,
) -> Result<Waited, TableError> {
    let (mut answered, mut holder) = (Instant::now(), Holder::default());
    loop {
        match table.look(key) {
            Ok(None) => return Ok(Waited::Free),
            Ok(Some(entry)) => (answered, holder) = (Instant::now(), entry.holder()),
            Err(error) if answered.elapsed() >= table.lasts() => return Err(error),
            Err(_) => {}
        }
        if !told(&holder) {
            return Ok(Waited::Stopped);
        }
        thread::sleep(LOOK);
    }
}

/// Leases that were taken, with their revisions.
struct Taken {
    table: Arc<dyn LeaseTable>,
    leases: Vec<(Digest, u64)>,
}

impl Taken {
    /// Takes some more; the first that somebody else has.
    fn take(&mut self, keys: &[Digest], holder: &Holder) -> Result<Option<Digest>, TableError> {
        let taken = self.table.take(keys, &holder.to_json())?;
        let mut theirs = None;
        for (key, revision) in keys.iter().zip(taken) {
            // An answer may have got lost on its way.
            let revision = revision.map_or_else(|| self.own(key, holder), |new| Ok(Some(new)))?;
            match revision {
                Some(revision) => self.leases.push((*key, revision)),
                None => theirs = theirs.or(Some(*key)),
            }
        }
        Ok(theirs)
    }

    /// Renews all; whether all are still this builder's.
    fn renew(&mut self, holder: &Holder) -> Result<bool, TableError> {
        let renewed = self.table.renew(&self.leases, &holder.to_json())?;
        for (at, revision) in renewed.into_iter().enumerate() {
            let key = self.leases[at].0;
            let revision = revision.map_or_else(|| self.own(&key, holder), |new| Ok(Some(new)))?;
            let Some(revision) = revision else { return Ok(false) };
            self.leases[at].1 = revision;
        }
        Ok(true)
    }

    /// The revision of a lease of which the server says that it is this very builder's.
    fn own(&self, key: &Digest, holder: &Holder) -> Result<Option<u64>, TableError> {
        let entry = self.table.look(key)?;
        let own = entry.filter(|entry| entry.holder().id == holder.id);
        Ok(own.map(|entry| entry.revision))
    }

    fn release(&mut self) {
        // What is not given back runs out.
        let _ = self.table.release(&self.leases);
        self.leases.clear();
    }
}

/// Leases that are renewed beside what is built, and given back when this is dropped.
pub struct Lease {
    kept: Arc<Kept>,
    thread: Option<JoinHandle<()>>,
}

struct Kept {
    taken: Mutex<Taken>,
    holder: Mutex<Holder>,
    /// When they were renewed last.
    renewed: Mutex<Instant>,
    lasts: Duration,
    /// Somebody else has one of them.
    is_lost: AtomicBool,
    /// Set, and told of, when nothing is to be renewed any more.
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Lease {
    fn keep(taken: Taken, holder: Holder, began: Instant) -> Self {
        let lasts = taken.table.lasts();
        let kept = Arc::new(Kept {
            taken: Mutex::new(taken),
            holder: Mutex::new(holder),
            renewed: Mutex::new(began),
            lasts,
            is_lost: AtomicBool::new(false),
            is_over: Mutex::new(false),
            over: Condvar::new(),
        });
        let renewing = kept.clone();
        let thread = thread::spawn(move || while !renewing.waits() && renewing.renew() {});
        Self { kept, thread: Some(thread) }
    }

    /// What others are told from the next renewal on.
    pub fn tell(&self, change: impl FnOnce(&mut Holder)) {
        change(&mut locked(&self.kept.holder));
    }

    /// What is known of them, without asking.
    pub fn state(&self) -> LeaseState {
        let is_old = locked(&self.kept.renewed).elapsed() >= self.kept.lasts;
        match (self.kept.is_lost.load(Ordering::Relaxed), is_old) {
            (true, _) => LeaseState::Lost,
            (false, true) => LeaseState::Unknown,
            (false, false) => LeaseState::Ours,
        }
    }

    /// What the server says of them.
    pub fn confirm(&self) -> LeaseState {
        self.kept.renew();
        self.state()
    }
}

/// Whether leases are still those of whoever took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Nobody else has one.
    Ours,
    /// Somebody else has.
    Lost,
    /// The server has not answered for so long that somebody else may have.
    Unknown,
}

impl Kept {
    /// Waits until the next renewal; whether there is to be none.
    fn waits(&self) -> bool {
        let is_over = locked(&self.is_over);
        let waited =
            self.over.wait_timeout_while(is_over, self.lasts / RENEWALS, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Renews now; whether somebody else may not have one of them.  A server that does not answer is asked again.
    fn renew(&self) -> bool {
        let (began, holder) = (Instant::now(), locked(&self.holder).clone());
        match locked(&self.taken).renew(&holder) {
            Ok(true) => *locked(&self.renewed) = began,
            Ok(false) => self.is_lost.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        !self.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *locked(&self.kept.is_over) = true;
        self.kept.over.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ended by itself where a lease was lost.
            let _ = thread.join();
        }
        locked(&self.kept.taken).release();
    }
}

/// What nobody has left half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A server in memory, whose time only goes on when it is told to.
    #[derive(Default)]
    struct Table {
        entries: Mutex<BTreeMap<Digest, Entry>>,
        revision: AtomicU64,
        is_gone: AtomicBool,
        /// It does what it is asked, and its answer gets lost.
        is_mute: AtomicBool,
        lasts: Option<Duration>,
    }

    impl Table {
        fn write(&self, key: &Digest, said: &[u8], old: Option<u64>) -> Option<u64> {
            let mut entries = locked(&self.entries);
            if entries.get(key).map(|entry| entry.revision) != old {
                return None;
            }
            let revision = 1 + self.revision.fetch_add(1, Ordering::Relaxed);
            entries.insert(*key, Entry { said: said.to_vec(), revision });
            Some(revision)
        }

        fn answer<T>(&self, answer: T) -> Result<T, TableError> {
            if self.is_mute.load(Ordering::Relaxed) { Err(gone()) } else { Ok(answer) }
        }

        fn asked(&self) -> Result<(), TableError> {
            if self.is_gone.load(Ordering::Relaxed) { Err(gone()) } else { Ok(()) }
        }

        fn runs_out(&self, key: &Digest) {
            locked(&self.entries).remove(key);
        }

        fn count(&self) -> usize {
            locked(&self.entries).len()
        }
    }

    fn gone() -> TableError {
        TableError { server: "memory".to_owned(), problem: "it is gone".to_owned() }
    }

    impl LeaseTable for Table {
        fn lasts(&self) -> Duration {
            self.lasts.unwrap_or(Duration::from_secs(3600))
        }

        fn take(&self, keys: &[Digest], said: &[u8]) -> Result<Vec<Option<u64>>, TableError> {
            self.asked()?;
            self.answer(keys.iter().map(|key| self.write(key, said, None)).collect())
        }

        fn renew(
            &self,
            leases: &[(Digest, u64)],
            said: &[u8],
        ) -> Result<Vec<Option<u64>>, TableError> {
            self.asked()?;
            let renew = |(key, old): &(Digest, u64)| self.write(key, said, Some(*old));
            self.answer(leases.iter().map(renew).collect())
        }

        fn release(&self, leases: &[(Digest, u64)]) -> Result<(), TableError> {
            self.asked()?;
            let is_given = |key: &Digest, entry: &Entry| leases.contains(&(*key, entry.revision));
            locked(&self.entries).retain(|key, entry| !is_given(key, entry));
            Ok(())
        }

        fn look_each(&self, keys: &[Digest]) -> Result<Vec<Option<Entry>>, TableError> {
            self.asked()?;
            let entries = locked(&self.entries);
            Ok(keys.iter().map(|key| entries.get(key).cloned()).collect())
        }
    }

    fn keys(names: &str) -> BTreeSet<Digest> {
        names.bytes().map(|name| Digest::of(&[name])).collect()
    }

    fn ours(table: &Arc<Table>, names: &str, builder: &str) -> Option<Lease> {
        match claim(table.clone(), &keys(names), Holder::new(builder, "", 3)).unwrap() {
            Claim::Ours(lease) => Some(lease),
            Claim::Theirs(key) => {
                assert!(keys(names).contains(&key));
                None
            }
        }
    }

    #[test]
    fn of_builders_that_want_some_of_the_same_one_gets_all() {
        let table = Arc::new(Table::default());
        let first = ours(&table, "abc", "first").unwrap();
        assert_eq!(table.count(), 3);
        assert!(ours(&table, "cdxyz", "second").is_none());
        // It holds none while it waits.
        assert_eq!(table.count(), 3);
        let other = ours(&table, "xyz", "third").unwrap();
        assert_eq!([first.confirm(), other.confirm()], [LeaseState::Ours; 2]);
        drop(first);
        assert_eq!(table.count(), 3);
        assert!(ours(&table, "abc", "second").is_some());
    }

    #[test]
    fn of_many_at_once_one_has_it() {
        let table = Arc::new(Table::default());
        let has = thread::scope(|scope| {
            let all: Vec<_> = (0..16)
                .map(|n| (n, table.clone()))
                .map(|(n, table)| scope.spawn(move || ours(&table, "ab", &n.to_string())))
                .collect();
            all.into_iter().filter_map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!((has.len(), table.count()), (1, 2));
    }

    #[test]
    fn who_was_away_finds_out() {
        let table = Arc::new(Table::default());
        let away = ours(&table, "a", "away").unwrap();
        table.runs_out(&Digest::of(b"a"));
        let successor = ours(&table, "a", "successor").unwrap();
        assert_eq!([away.confirm(), away.state()], [LeaseState::Lost; 2]);
        drop(away);
        // It gives back what is its own, and that is nothing.
        assert_eq!(successor.confirm(), LeaseState::Ours);
        assert_eq!(table.count(), 1);
    }

    #[test]
    fn an_answer_that_got_lost_costs_no_lease() {
        let table = Arc::new(Table::default());
        let lease = ours(&table, "ab", "one").unwrap();
        table.is_mute.store(true, Ordering::Relaxed);
        assert_eq!(lease.confirm(), LeaseState::Ours);
        table.is_mute.store(false, Ordering::Relaxed);
        assert_eq!(lease.confirm(), LeaseState::Ours);
        let holder = Holder::new("two", "", 1);
        table.is_mute.store(true, Ordering::Relaxed);
        assert!(claim(table.clone(), &keys("c"), holder.clone()).is_err());
        table.is_mute.store(false, Ordering::Relaxed);
        assert!(matches!(claim(table.clone(), &keys("c"), holder), Ok(Claim::Ours(_))));
    }

    #[test]
    fn without_a_server_a_lease_counts_until_it_would_have_run_out() {
        let lasts = Duration::from_millis(300);
        let table = Arc::new(Table { lasts: Some(lasts), ..Table::default() });
        let lease = ours(&table, "a", "one").unwrap();
        thread::sleep(2 * lasts);
        assert_eq!(lease.state(), LeaseState::Ours, "it is renewed");
        table.is_gone.store(true, Ordering::Relaxed);
        assert!(wait(&*table, &Digest::of(b"a"), &mut |_| true).is_err());
        thread::sleep(2 * lasts);
        assert_eq!([lease.state(), lease.confirm()], [LeaseState::Unknown; 2]);
    }

    #[test]
    fn whoever_waits_hears_who_builds_what() {
        let table = Arc::new(Table::default());
        let lease = ours(&table, "a", "bench").unwrap();
        lease.tell(|holder| {
            (holder.stage, holder.done, holder.all) = ("llm".to_owned(), 3, 12);
            holder.line = "layer 7\u{1b}[2J".to_owned();
        });
        assert_eq!(lease.confirm(), LeaseState::Ours);
        let mut heard = Vec::new();
        let waited = wait(&*table, &Digest::of(b"a"), &mut |holder| {
            heard.push(holder.to_string());
            false
        });
        assert_eq!(waited, Ok(Waited::Stopped));
        assert_eq!(heard, ["bench builds llm (3 of 12 are done): layer 7\u{FFFD}[2J"]);
        drop(lease);
        assert_eq!(wait(&*table, &Digest::of(b"a"), &mut |_| true), Ok(Waited::Free));
        // What somebody else has written there.
        table.take(&[Digest::of(b"b")], b"junk").unwrap();
        let entry = table.look(&Digest::of(b"b")).unwrap().unwrap();
        assert!(entry.holder().to_string().starts_with("another builder builds"));
    }

    #[test]
    fn who_only_takes_finds_the_key_that_somebody_has_among_any_number() {
        let table = Arc::new(Table::default());
        let many: BTreeSet<Digest> = (0..150u8).map(|name| Digest::of(&[name])).collect();
        let found = |keys: &BTreeSet<Digest>| held(&*table, keys).unwrap();
        assert_eq!(found(&many), None);
        let lease = ours(&table, "b", "one").unwrap();
        assert_eq!(found(&many), Some(Digest::of(b"b")));
        assert_eq!(found(&keys("ac")), None);
        drop(lease);
        assert_eq!(found(&many), None);
        table.is_gone.store(true, Ordering::Relaxed);
        assert!(held(&*table, &many).is_err());
    }
}
