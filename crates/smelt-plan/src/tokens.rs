//! Counts what stages share: devices by their ids, other things by amount.
//!
//! A pipeline declares how much of each there is, a stage how much it takes while it runs.  A
//! device is lent by name, so that two stages never meet on one.  Knows nothing of what a token
//! stands for.

use std::collections::{BTreeMap, BTreeSet};

/// More devices of one kind than this is no machine.
pub const DEVICES_MAX: u64 = 1024;

/// How much of one thing there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Capacity {
    /// Things that differ, each with the id that a program knows it by.
    Devices(Vec<String>),
    /// So much of something that is all alike, in bytes where it is memory.
    Amount(u64),
}

impl Capacity {
    /// The most that can be taken at once.
    pub fn amount(&self) -> u64 {
        match self {
            Self::Devices(ids) => ids.len() as u64,
            Self::Amount(amount) => *amount,
        }
    }
}

/// What a running stage holds of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The name of the thing.
    pub resource: String,
    /// How much of it.
    pub amount: u64,
    /// Which ones, where they have ids.
    pub ids: Vec<String>,
}

/// All that one stage holds.
pub(crate) type Leases = Vec<Lease>;

/// What is free of each thing.
pub(crate) struct Pools(BTreeMap<String, Pool>);

enum Pool {
    /// All of them, and the positions of those that are lent.
    Devices(Vec<String>, BTreeSet<usize>),
    Amount(u64),
}

impl Pools {
    pub(crate) fn of(capacity: &BTreeMap<String, Capacity>) -> Self {
        let pool = |capacity: &Capacity| match capacity {
            Capacity::Devices(ids) => Pool::Devices(ids.clone(), BTreeSet::new()),
            Capacity::Amount(amount) => Pool::Amount(*amount),
        };
        Self(capacity.iter().map(|(name, capacity)| (name.clone(), pool(capacity))).collect())
    }

    /// Whether all of `wanted` is free.
    pub(crate) fn have(&self, wanted: &BTreeMap<String, u64>) -> bool {
        wanted.iter().all(|(name, amount)| self.free(name) >= *amount)
    }

    /// Takes `wanted`, which is free, the first devices first.
    pub(crate) fn take(&mut self, wanted: &BTreeMap<String, u64>) -> Leases {
        assert!(self.have(wanted), "BUG: tokens taken that are not free: {wanted:?}");
        wanted.iter().map(|(name, amount)| self.lend(name, *amount)).collect()
    }

    pub(crate) fn give_back(&mut self, leases: Leases) {
        for lease in leases {
            match self.0.get_mut(&lease.resource) {
                Some(Pool::Devices(all, lent)) => lent.retain(|&at| !lease.ids.contains(&all[at])),
                Some(Pool::Amount(free)) => *free += lease.amount,
                None => {}
            }
        }
    }

    fn free(&self, name: &str) -> u64 {
        match self.0.get(name) {
            Some(Pool::Devices(all, lent)) => (all.len() - lent.len()) as u64,
            Some(Pool::Amount(free)) => *free,
            None => 0,
        }
    }

    fn lend(&mut self, name: &str, amount: u64) -> Lease {
        let mut ids = Vec::new();
        match self.0.get_mut(name) {
            Some(Pool::Devices(all, lent)) => {
                let free: Vec<usize> = (0..all.len()).filter(|at| !lent.contains(at)).collect();
                for at in free.into_iter().take(amount as usize) {
                    lent.insert(at);
                    ids.push(all[at].clone());
                }
            }
            Some(Pool::Amount(free)) => *free -= amount,
            None => {}
        }
        Lease { resource: name.to_owned(), amount, ids }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools() -> Pools {
        let devices = Capacity::Devices(["0", "2", "5"].map(str::to_owned).into());
        Pools::of(&BTreeMap::from([
            ("gpu".to_owned(), devices),
            ("memory".to_owned(), Capacity::Amount(100)),
        ]))
    }

    fn want(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn no_device_is_lent_twice_and_all_come_back() {
        let mut pools = pools();
        let first = pools.take(&want(&[("gpu", 2), ("memory", 60)]));
        assert_eq!(first[0].ids, ["0", "2"]);
        assert!(!pools.have(&want(&[("gpu", 1), ("memory", 41)])), "all or nothing");
        let second = pools.take(&want(&[("gpu", 1), ("memory", 40)]));
        assert_eq!(second[0].ids, ["5"]);
        assert!(!pools.have(&want(&[("gpu", 1)])));
        pools.give_back(first);
        assert_eq!(pools.take(&want(&[("gpu", 2)]))[0].ids, ["0", "2"]);
        pools.give_back(second);
        assert!(pools.have(&want(&[("memory", 100)])));
    }

    #[test]
    fn what_is_not_declared_is_not_there() {
        assert!(!pools().have(&want(&[("dla", 1)])));
        assert!(pools().have(&want(&[])));
    }
}
