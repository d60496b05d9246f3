//! Keeps answers for who goes on from them: so many bytes and so long, for the key that asked and none other.
//!
//! A conversation that goes on shares its turns with the answers before it, so a picture is held once.  Where room is
//! short, who keeps most gives way first.  The time comes from whoever asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer is kept: a day's work.
pub(crate) const KEPT_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Most answers that are kept: each is looked at by who looks for one.
const ANSWERS_MAX: usize = 4096;

/// What an answer takes beside its texts, and each text beside its bytes.
const BESIDE_BYTES: usize = 256;

/// A text that is counted as long as somebody holds it.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) text: String,
    _room: Room,
}

/// A part of what all that is kept may take, given back when it is dropped.
#[derive(Debug)]
struct Room {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An answer that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// As it was told.
    pub(crate) told: Arc<Piece>,
    /// The conversation with it, each piece a list of a chat's turns.
    pub(crate) turns: Vec<Arc<Piece>>,
}

#[derive(Debug)]
struct Entry {
    id: String,
    owner: Option<String>,
    since: Instant,
    answered: Answered,
}

impl Entry {
    fn is(&self, owner: Option<&str>, id: &str) -> bool {
        self.id == id && self.owner.as_deref() == owner
    }

    /// Its own bytes; pieces that others have as well count for each.
    fn bytes(&self) -> usize {
        let pieces = self.answered.turns.iter().chain([&self.answered.told]);
        pieces.map(|piece| piece.text.len() + BESIDE_BYTES).sum()
    }
}

/// All answers that are kept, the oldest first.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes_max: usize,
    held: Arc<AtomicUsize>,
    entries: Mutex<VecDeque<Entry>>,
}

impl Kept {
    /// Room for so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, held: Arc::default(), entries: Mutex::default() }
    }

    /// Bytes that may be kept besides what is.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.held.load(Ordering::Relaxed)) as u64
    }

    /// The entries that are not too old.
    fn entries(&self, now: Instant) -> MutexGuard<'_, VecDeque<Entry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |entry: &Entry| now.duration_since(entry.since) >= KEPT_TIME_MAX;
        while entries.front().is_some_and(is_old) {
            entries.pop_front();
        }
        entries
    }

    /// The text, counted; none if there is no room for it however much gives way.
    pub(crate) fn piece(&self, text: String, now: Instant) -> Option<Arc<Piece>> {
        let mut entries = self.entries(now);
        let bytes = text.len() + BESIDE_BYTES;
        while self.held.load(Ordering::Relaxed) + bytes > self.bytes_max {
            if bytes > self.bytes_max || !give_way(&mut entries) {
                return None;
            }
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        let _room = Room { bytes, held: Arc::clone(&self.held) };
        Some(Arc::new(Piece { text, _room }))
    }

    /// Keeps an answer for who has the key `owner`.
    pub(crate) fn keep(&self, owner: Option<&str>, id: &str, answered: Answered, now: Instant) {
        let mut entries = self.entries(now);
        if entries.len() >= ANSWERS_MAX {
            give_way(&mut entries);
        }
        let (id, owner) = (id.to_owned(), owner.map(str::to_owned));
        entries.push_back(Entry { id, owner, since: now, answered });
    }

    /// The answer of this name, if it is kept for `owner`.
    pub(crate) fn find(&self, owner: Option<&str>, id: &str, now: Instant) -> Option<Answered> {
        let entries = self.entries(now);
        let entry = entries.iter().find(|entry| entry.is(owner, id))?;
        Some(entry.answered.clone())
    }

    /// Forgets an answer; whether there was one.
    pub(crate) fn forget(&self, owner: Option<&str>, id: &str, now: Instant) -> bool {
        let mut entries = self.entries(now);
        let place = entries.iter().position(|entry| entry.is(owner, id));
        place.and_then(|at| entries.remove(at)).is_some()
    }
}

/// Drops the oldest answer of who keeps most; whether there was one.
fn give_way(entries: &mut VecDeque<Entry>) -> bool {
    let mut of_owners: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for entry in entries.iter() {
        *of_owners.entry(entry.owner.as_deref()).or_default() += entry.bytes();
    }
    let most = of_owners.into_iter().max_by_key(|(_, bytes)| *bytes);
    let Some(most) = most.map(|(owner, _)| owner.map(str::to_owned)) else { return false };
    let oldest = entries.iter().position(|entry| entry.owner == most);
    oldest.and_then(|at| entries.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps an answer of so many bytes, behind the turns of another.
    fn keep(kept: &Kept, owner: &str, id: &str, bytes: usize, before: &[Arc<Piece>], now: Instant) {
        let piece = |bytes: usize| kept.piece("x".repeat(bytes - BESIDE_BYTES), now);
        let (Some(told), Some(turn)) = (piece(BESIDE_BYTES), piece(bytes)) else { return };
        let turns = before.iter().cloned().chain([turn]).collect();
        kept.keep(Some(owner), id, Answered { told, turns }, now);
    }

    fn has(kept: &Kept, owner: &str, id: &str, now: Instant) -> bool {
        kept.find(Some(owner), id, now).is_some()
    }

    #[test]
    fn answers_are_the_keys_own() {
        let (kept, now) = (Kept::new(1 << 20), Instant::now());
        keep(&kept, "a", "1", 1000, &[], now);
        assert!(has(&kept, "a", "1", now) && !has(&kept, "b", "1", now));
        assert!(kept.find(None, "1", now).is_none());
        assert!(!kept.forget(Some("b"), "1", now) && kept.forget(Some("a"), "1", now));
        assert!(!has(&kept, "a", "1", now));
        assert_eq!(kept.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_keeps_most_gives_way_first() {
        let (kept, now) = (Kept::new(100_000), Instant::now());
        keep(&kept, "a", "1", 10_000, &[], now);
        for id in 0..20 {
            keep(&kept, "b", &id.to_string(), 10_000, &[], now);
            assert!(kept.held.load(Ordering::Relaxed) <= 100_000);
        }
        assert!(has(&kept, "a", "1", now));
        assert!(!has(&kept, "b", "0", now) && has(&kept, "b", "19", now));
        keep(&kept, "b", "too large", 200_000, &[], now);
        assert!(has(&kept, "b", "19", now) && !has(&kept, "b", "too large", now));
    }

    #[test]
    fn a_conversation_is_held_once_and_as_long_as_one_goes_on_from_it() {
        let (kept, now) = (Kept::new(100_000), Instant::now());
        keep(&kept, "a", "0", 50_000, &[], now);
        for id in 1..9 {
            let before = kept.find(Some("a"), &(id - 1).to_string(), now).unwrap();
            keep(&kept, "a", &id.to_string(), 1000, &before.turns, now);
        }
        let last = kept.find(Some("a"), "8", now).unwrap();
        assert_eq!(last.turns.len(), 9);
        let held = kept.held.load(Ordering::Relaxed);
        kept.forget(Some("a"), "0", now);
        assert_eq!(kept.held.load(Ordering::Relaxed), held - BESIDE_BYTES);
    }

    #[test]
    fn what_is_old_is_gone() {
        let (kept, now) = (Kept::new(1 << 20), Instant::now());
        keep(&kept, "a", "1", 1000, &[], now);
        assert!(has(&kept, "a", "1", now + KEPT_TIME_MAX - Duration::from_secs(1)));
        assert!(!has(&kept, "a", "1", now + KEPT_TIME_MAX));
        assert_eq!(kept.held.load(Ordering::Relaxed), 0);
        for id in 0..ANSWERS_MAX + 9 {
            keep(&kept, "a", &id.to_string(), BESIDE_BYTES, &[], now);
        }
        assert!(kept.entries(now).len() <= ANSWERS_MAX);
    }
}
