//! Says who has a place among the connections, and who gives way.
//!
//! A connection that has not said what it wants costs its client nothing, so it is worth the least: where places run out, the
//! one that has been silent for the longest time gives way, and no address has too many of them.  Beyond the places that all
//! have some are kept for who looks after the server and for who shows a key.  Plain data: knows no socket and no clock.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Places beyond those that all have.
pub(super) const KEPT: usize = 32;

/// The part of all places that silent connections of one address may take.
const SILENT_PART: usize = 4;

/// The fewest of those: browsers open six at once, and some of them ahead.
const SILENT_LEAST: usize = 8;

/// What one address leaves of all places to others.
const LEFT_PART: usize = 4;

/// A connection's number.
pub(super) type Id = u64;

/// Who is connected.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    most: usize,
    next: Id,
    /// Counts changes: smaller is longer ago.
    clock: u64,
    taken: BTreeMap<Id, Taken>,
}

#[derive(Debug)]
struct Taken {
    address: IpAddr,
    /// Since when it has not said what it wants, if it has not.
    silent: Option<u64>,
}

/// What becomes of somebody who comes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It has this number; the others give way.
    Taken(Id, Vec<Id>),
    /// There is no place, and nobody who gives way.
    Refused,
}

impl ConnectionTable {
    /// So many places for all, and [`KEPT`].
    pub(super) fn new(most: usize) -> Self {
        Self { most, next: 0, clock: 0, taken: BTreeMap::new() }
    }

    /// Somebody comes from `address`, and has not said anything.
    pub(super) fn arrive(&mut self, address: IpAddr) -> Arrival {
        let address = network(address);
        let mut gone = Vec::new();
        let silent = |place: &&Taken| place.address == address && place.silent.is_some();
        let of_address = self.taken.values().filter(|place| place.address == address).count();
        let silent_max = (self.most / SILENT_PART).max(SILENT_LEAST);
        let is_silent_enough = self.taken.values().filter(silent).count() >= silent_max;
        if is_silent_enough || of_address >= self.most - self.most / LEFT_PART {
            match self.longest_silent(Some(address)) {
                Some(id) => gone.push(id),
                None if is_silent_enough || of_address < 2 => {}
                None => return Arrival::Refused,
            }
        }
        if self.taken.len() - gone.len() >= self.most {
            let other = self.longest_silent(None).filter(|id| !gone.contains(id));
            match other {
                Some(id) => gone.push(id),
                None if self.taken.len() - gone.len() < self.most + KEPT => {}
                None => return Arrival::Refused,
            }
        }
        gone.iter().for_each(|id| self.leave(*id));
        self.next += 1;
        let silent = Some(self.tick());
        self.taken.insert(self.next, Taken { address, silent });
        Arrival::Taken(self.next, gone)
    }

    /// The system has no more files: who has been silent for the longest time gives way.
    pub(super) fn give_way(&mut self) -> Option<Id> {
        let id = self.longest_silent(None)?;
        self.leave(id);
        Some(id)
    }

    /// All that it wants is said.
    pub(super) fn asked(&mut self, id: Id) {
        if let Some(place) = self.taken.get_mut(&id) {
            place.silent = None;
        }
    }

    /// Whether so many others have asked that there are only the places that are kept.
    pub(super) fn is_crowded(&self, id: Id) -> bool {
        let others = self.taken.iter().filter(|(other, _)| **other != id);
        others.filter(|(_, place)| place.silent.is_none()).count() >= self.most
    }

    /// Whether it is there.
    pub(super) fn has(&self, id: Id) -> bool {
        self.taken.contains_key(&id)
    }

    /// It was answered, or what it says goes on.
    pub(super) fn is_silent(&mut self, id: Id) {
        let now = self.tick();
        if let Some(place) = self.taken.get_mut(&id) {
            place.silent.get_or_insert(now);
        }
    }

    /// It is gone.
    pub(super) fn leave(&mut self, id: Id) {
        self.taken.remove(&id);
    }

    fn longest_silent(&self, of: Option<IpAddr>) -> Option<Id> {
        let meant = self.taken.iter().filter(|(_, place)| of.is_none_or(|of| place.address == of));
        let silent = meant.filter_map(|(id, place)| Some((place.silent?, *id)));
        silent.min().map(|(_, id)| id)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// What one client has of addresses: of version 6 a whole network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[track_caller]
    fn taken(arrival: Arrival) -> (Id, Vec<Id>) {
        match arrival {
            Arrival::Taken(id, gone) => (id, gone),
            Arrival::Refused => panic!("there is no place"),
        }
    }

    #[test]
    fn who_is_silent_for_the_longest_time_gives_way() {
        let mut places = ConnectionTable::new(40);
        let ids: Vec<Id> = (0..40).map(|at| taken(places.arrive(address(at))).0).collect();
        places.asked(ids[0]);
        places.is_silent(ids[1]);
        assert_eq!(taken(places.arrive(address(99))).1, [ids[1]], "it was silent before");
        places.is_silent(ids[0]);
        assert_eq!(
            taken(places.arrive(address(98))).1,
            [ids[2]],
            "the first was answered just now"
        );
        assert_eq!(places.give_way(), Some(ids[3]));
    }

    #[test]
    fn an_address_has_so_many_silent_ones() {
        let mut places = ConnectionTable::new(40);
        let ids: Vec<Id> = (0..10).map(|_| taken(places.arrive(address(1))).0).collect();
        assert_eq!(taken(places.arrive(address(1))).1, [ids[0]]);
        assert!(taken(places.arrive(address(2))).1.is_empty(), "others are no worse off");
        // Networks of version 6 are one address each.
        let of = |last| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let ids: Vec<Id> = (0..10).map(|at| taken(places.arrive(of(at))).0).collect();
        assert_eq!(taken(places.arrive(of(99))).1, [ids[0]]);
        let other = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 1]);
        assert!(taken(places.arrive(other)).1.is_empty());
    }

    #[test]
    fn an_address_that_asks_leaves_places_to_others() {
        let mut places = ConnectionTable::new(40);
        for _ in 0..30 {
            let (id, gone) = taken(places.arrive(address(1)));
            places.asked(id);
            assert!(gone.is_empty());
        }
        assert_eq!(places.arrive(address(1)), Arrival::Refused);
        assert!(taken(places.arrive(address(2))).1.is_empty());
    }

    #[test]
    fn some_places_are_kept_for_who_looks_after_the_server() {
        let mut places = ConnectionTable::new(40);
        for at in 0..40 + KEPT as u8 {
            let (id, gone) = taken(places.arrive(address(at)));
            assert!(gone.is_empty());
            places.asked(id);
            assert_eq!(places.is_crowded(id), at >= 40, "{at}");
        }
        assert_eq!(places.arrive(address(200)), Arrival::Refused);
        places.leave(1);
        let (id, _) = taken(places.arrive(address(201)));
        assert!(places.is_crowded(id) && places.has(id) && !places.has(1));
    }
}
