//! What a board has learned of its server and its neighbours, and what it asks of them because of that.
//!
//! Times are since the pull began, so that it needs no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::choice::{Room, next_room};
use crate::chunk::Chunk;
use crate::remote::Blob;

/// Chunks that neighbours are asked after at once, another handful each time: some 80 bytes each, to each of them.
pub(super) const ASKED_MAX: usize = 256;
/// What the server is asked for at first, the least, and the most: as much as without neighbours.
const SERVER_BYTES: u64 = 512 << 10;
const SERVER_BYTES_MIN: u64 = 64 << 10;
const SERVER_BYTES_MAX: u64 = 12 << 20;
/// What a neighbour is asked for at first, the least, and the most: one message.
const NEIGHBOUR_BYTES: u64 = 1 << 20;
const NEIGHBOUR_BYTES_MIN: u64 = 64 << 10;
const NEIGHBOUR_BYTES_MAX: u64 = 3 << 20;
/// What all of them are asked for: as much memory beside that of the server's window.
const NEIGHBOURS_BYTES_MAX: u64 = 8 << 20;
/// How long what comes to neighbours is waited for while nothing else comes: they may have been killed.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a neighbour that sent nothing is left alone, doubled from one time to the next, and the most.
const REST: Duration = Duration::from_millis(250);
const REST_MAX: Duration = Duration::from_secs(8);
/// How long neighbours may be slower than the server before it helps.
const SLOW_MAX: Duration = Duration::from_secs(3);
/// What the server is taken to send in a second until it has sent something: a line of 2 Mbit/s.
const SERVER_RATE: f64 = 256e3;

/// What is known by now.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    /// This board's own.
    seed: u64,
    /// How often neighbours were looked at.
    round: u64,
    server_room: u64,
    rooms: BTreeMap<usize, u64>,
    /// Bytes a second of the server, when it was asked last.
    server_rate: f64,
    /// Since when neighbours are slower.
    slow_since: Option<Duration>,
    /// When something came last.
    came: Duration,
    /// Of neighbours that sent nothing: how often in a row, and until when they are left alone.
    rests: BTreeMap<usize, (u32, Duration)>,
}

impl Learned {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            round: 0,
            server_room: SERVER_BYTES,
            rooms: BTreeMap::new(),
            server_rate: SERVER_RATE,
            slow_since: None,
            came: Duration::ZERO,
            rests: BTreeMap::new(),
        }
    }

    /// The numbers of some of what is wanted, in an order of this board's own that is another one each time.
    pub(super) fn some(&mut self, wanted: &[Blob]) -> Vec<usize> {
        self.round += 1;
        let seed = self.seed ^ scrambled(self.round);
        let key = |at: &usize| drawn(seed, &wanted[*at]);
        let mut numbers: Vec<usize> = (0..wanted.len()).collect();
        if numbers.len() > ASKED_MAX {
            numbers.select_nth_unstable_by_key(ASKED_MAX, key);
            numbers.truncate(ASKED_MAX);
        }
        numbers.sort_unstable_by_key(key);
        numbers
    }

    /// What may be asked for now: of the server no more than so many bytes.
    pub(super) fn room(&self, server_max: u64, now: Duration) -> Room {
        let is_slow = self.slow_since.is_some_and(|since| now.saturating_sub(since) > SLOW_MAX);
        Room {
            server: self.server_room.min(server_max),
            neighbours: NEIGHBOURS_BYTES_MAX,
            helps: is_slow,
            waits: self.is_patient(now),
        }
    }

    /// Whether something has come not too long ago.
    pub(super) fn is_patient(&self, now: Duration) -> bool {
        now.saturating_sub(self.came) < PATIENCE
    }

    /// What a neighbour may be asked for now.
    pub(super) fn room_of(&self, neighbour: usize, now: Duration) -> u64 {
        match self.rests.get(&neighbour) {
            Some((_, until)) if now < *until => 0,
            _ => self.rooms.get(&neighbour).copied().unwrap_or(NEIGHBOUR_BYTES),
        }
    }

    pub(super) fn server_sent(&mut self, chunks: &[Chunk], took: Duration) {
        let bytes = chunks.iter().map(|it| u64::from(it.bytes)).sum::<u64>();
        let (seconds, limits) = (took.as_secs_f64(), (SERVER_BYTES_MIN, SERVER_BYTES_MAX));
        self.server_room = next_room(self.server_room, bytes, seconds, limits);
        self.server_rate = bytes as f64 / seconds.max(1e-3);
    }

    /// Who sent less than it was asked for, or took long, is asked for less, and who sent nothing for a while not at all.
    pub(super) fn neighbour_sent(
        &mut self,
        neighbour: usize,
        (wanted, bytes): (u64, u64),
        took: Duration,
        now: Duration,
    ) {
        let (empty, _) = self.rests.remove(&neighbour).unwrap_or_default();
        if bytes == 0 {
            let rest = REST.saturating_mul(1 << empty.min(10)).min(REST_MAX);
            self.rests.insert(neighbour, (empty + 1, now + rest));
        }
        let room = self.rooms.get(&neighbour).copied().unwrap_or(NEIGHBOUR_BYTES);
        let limits = (NEIGHBOUR_BYTES_MIN, NEIGHBOUR_BYTES_MAX);
        let next = match bytes < wanted {
            true => (room / 2).max(NEIGHBOUR_BYTES_MIN),
            false => next_room(room, bytes, took.as_secs_f64(), limits),
        };
        self.rooms.insert(neighbour, next);
    }

    /// So many bytes came of neighbours that were asked, in so long.
    pub(super) fn neighbours_sent(&mut self, bytes: u64, took: Duration, now: Duration) {
        let is_slower = (bytes as f64) < self.server_rate * took.as_secs_f64();
        self.slow_since = is_slower.then(|| self.slow_since.unwrap_or(now));
    }

    /// Something came.  Whoever has waited in vain waits again only when neighbours send something.
    pub(super) fn came(&mut self, of_neighbours: bool, now: Duration) {
        if of_neighbours || self.is_patient(now) {
            self.came = now;
        }
    }
}

/// A number that follows from a chunk and a seed.
pub(super) fn drawn(seed: u64, blob: &Blob) -> u64 {
    let first = blob.digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
    scrambled(seed ^ u64::from_le_bytes(*first))
}

/// Steele, Lea and Flood's SplitMix64: each bit of the result depends on all of the number.
fn scrambled(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use smelt_store::Digest;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn boards_ask_after_others_and_each_time_after_others() {
        let blob = |at: u32| Blob { digest: Digest::of(&at.to_le_bytes()), bytes: 1 };
        let wanted: Vec<Blob> = (0..10_000).map(blob).collect();
        let (mut one, mut other) = (Learned::new(1), Learned::new(2));
        let (first, second) = (one.some(&wanted), one.some(&wanted));
        assert_eq!((first.len(), second.len()), (ASKED_MAX, ASKED_MAX));
        let common =
            |one: &[usize], other: &[usize]| one.iter().filter(|it| other.contains(it)).count();
        assert!(common(&first, &second) < 30 && common(&first, &other.some(&wanted)) < 30);
        assert_eq!(Learned::new(1).some(&wanted), first, "a seed gives it again");
        assert_eq!(one.some(&wanted[..3]).len(), 3);
    }

    #[test]
    fn the_server_helps_slow_neighbours_after_a_while() {
        let mut learned = Learned::new(1);
        learned.server_sent(&[Chunk { digest: Digest::of(b""), bytes: 1_000_000 }], S);
        learned.neighbours_sent(2_000_000, S, S);
        assert!(!learned.room(1, 9 * S).helps);
        learned.neighbours_sent(10_000, S, 10 * S);
        learned.neighbours_sent(0, S, 12 * S);
        assert!(!learned.room(1, 12 * S).helps && learned.room(1, 14 * S).helps);
        learned.neighbours_sent(2_000_000, S, 14 * S);
        assert!(!learned.room(1, 20 * S).helps);
    }

    #[test]
    fn who_is_busy_or_slow_is_asked_for_less() {
        let mut learned = Learned::new(1);
        let before = learned.room_of(7, S);
        learned.neighbour_sent(7, (before, before), S / 10, S);
        assert_eq!(learned.room_of(7, S), 2 * before);
        learned.neighbour_sent(7, (before, 1), S / 10, S);
        learned.neighbour_sent(7, (before, before), 2 * S, S);
        assert_eq!((learned.room_of(7, S), learned.room_of(8, S)), (before / 2, before));
        learned.neighbour_sent(7, (before, 0), S, S);
        learned.neighbour_sent(7, (before, 0), S, 2 * S);
        assert_eq!(learned.room_of(7, 2 * S + REST), 0);
        assert!(learned.room_of(7, 2 * S + 2 * REST) > 0);
    }

    #[test]
    fn patience_ends_and_begins_again() {
        let mut learned = Learned::new(1);
        assert!(learned.room(1, 14 * S).waits && !learned.room(1, 16 * S).waits);
        learned.came(false, 16 * S);
        assert!(!learned.room(1, 16 * S).waits, "what the server sends is no reason to wait again");
        learned.came(true, 16 * S);
        assert!(learned.room(1, 16 * S).waits);
    }
}
