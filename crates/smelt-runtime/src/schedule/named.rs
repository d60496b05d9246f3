//! Knows slots by the names that their owners gave them, empties them and fills them from elsewhere.
//!
//! A name is an owner's own, and no place in the engine: it means what the owner's latest task of that name left.  Only slots
//! that are kept are touched, so no task ever waits, gives way or is answered otherwise for what is done here.

use crate::prefix::{Mark, Piece};

use super::{Owner, Schedule, Use};

/// What an owner has under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: u32,
    /// Tokens of the latest task of that name, or of what it left.
    pub tokens: usize,
    /// Whether a task of that name has not ended.
    pub is_busy: bool,
}

/// What has to be done to fill a slot from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Put a block behind what this slot holds.
    Into(usize),
    /// Forget what this slot holds, and ask again.
    Forget(usize),
    /// Nothing: tasks need the room.
    Crowded,
    /// Nothing: the slot does not hold any more what was put there.
    Gone,
}

impl Schedule {
    /// What the owner has, by name.
    pub fn named(&self, owner: u64) -> Vec<Named> {
        let tasks = self.tasks.values().filter(|task| task.owner.id == owner);
        let busy = tasks.filter_map(|task| {
            let (name, tokens) = (task.owner.name?, task.pieces.len());
            Some(((name, true, task.order), Named { name, tokens, is_busy: true }))
        });
        let kept = self.kept_of(owner).filter_map(|(slot, since)| {
            let (name, tokens) = (self.owners[slot].name?, self.prefixes.held(slot).len());
            Some(((name, false, since), Named { name, tokens, is_busy: false }))
        });
        let mut all: Vec<_> = busy.chain(kept).collect();
        all.sort_unstable_by_key(|(rank, _)| *rank);
        // The last of each name counts.
        let mut named: Vec<Named> = Vec::new();
        for (_, next) in all {
            named.pop_if(|last| last.name == next.name);
            named.push(next);
        }
        named
    }

    /// What the owner's latest task of that name left, if it is still there, and where.
    pub fn kept(&self, owner: u64, name: u32) -> Option<(Mark, &[Piece])> {
        let of_name = self.kept_of(owner).filter(|(slot, _)| self.owners[*slot].name == Some(name));
        let (slot, _) = of_name.max_by_key(|(_, since)| *since)?;
        Some((self.prefixes.mark(slot), self.prefixes.held(slot)))
    }

    /// A slot that begins with all of `pieces`, whosever it is: what equal pieces left is equal.  The one that held them
    /// at `mark` is not searched for while it has not changed.
    pub fn holder(&self, mark: Mark, pieces: &[Piece]) -> Option<usize> {
        if self.prefixes.mark(mark.slot) == mark {
            return Some(mark.slot);
        }
        let found = self.prefixes.longest(pieces)?;
        (found.len == pieces.len()).then_some(found.slot)
    }

    /// Forgets all that is kept under a name; gives the slots, each with the tokens that it held.
    pub fn erase(&mut self, owner: u64, name: u32) -> Vec<(usize, usize)> {
        let of_name = self.kept_of(owner).filter(|(slot, _)| self.owners[*slot].name == Some(name));
        let slots: Vec<usize> = of_name.map(|(slot, _)| slot).collect();
        let erase = |slot: usize| {
            let tokens = self.prefixes.held(slot).len();
            self.forget(slot);
            (slot, tokens)
        };
        slots.into_iter().map(erase).collect()
    }

    /// Where the next block goes, with so many blocks free: into the slot that was `filled` so far, or into any for the
    /// first.
    pub fn put(&mut self, filled: Option<Mark>, blocks_free: usize) -> Put {
        let slot = match filled {
            Some(mark) => match self.slots[mark.slot] {
                Use::Kept { .. } if self.prefixes.mark(mark.slot) == mark => mark.slot,
                _ => return Put::Gone,
            },
            None => match self.slot_for(None) {
                Some(slot) if self.slots[slot] == Use::Empty => slot,
                Some(slot) => return self.forgotten(slot),
                None => return Put::Crowded,
            },
        };
        if self.is_tight {
            return Put::Crowded;
        }
        if 1 + self.promised() > blocks_free {
            return self.oldest_kept(Some(slot)).map_or(Put::Crowded, |slot| self.forgotten(slot));
        }
        Put::Into(slot)
    }

    /// Takes note that a block of `pieces` was put into a slot, which is the owner's from then on;
    /// gives how it is filled now.
    pub fn did_put(&mut self, slot: usize, owner: Owner, pieces: &[Piece]) -> Mark {
        self.prefixes.append(slot, pieces);
        self.owners[slot] = owner;
        self.slots[slot] = Use::Kept { since: self.tick(), is_whole: owner.name.is_some() };
        self.touched.push(slot);
        self.prefixes.mark(slot)
    }

    fn forgotten(&mut self, slot: usize) -> Put {
        self.forget(slot);
        Put::Forget(slot)
    }

    /// Slots that are kept for an owner, and since when.
    pub(super) fn kept_of(&self, owner: u64) -> impl Iterator<Item = (usize, u64)> {
        let all = self.slots.iter().zip(&self.owners).enumerate();
        all.filter_map(move |(slot, (r#use, of))| match r#use {
            Use::Kept { since, .. } if of.id == owner => Some((slot, *since)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Capacity, Priority, Step};
    use super::*;

    const BLOCK: usize = 64;

    fn pieces(from: u32, count: usize) -> Vec<Piece> {
        (from..).take(count).map(Piece::Token).collect()
    }

    fn owner(id: u64, name: u32) -> Owner {
        Owner { id, name: Some(name), ..Owner::default() }
    }

    fn schedule(slots: usize) -> Schedule {
        let blocks_total = slots * 4;
        Schedule::new(Capacity { slots, running_max: slots, block_tokens: BLOCK, blocks_total })
    }

    /// A task that is read and leaves what it read.
    fn asked(schedule: &mut Schedule, id: u64, owner: Owner, pieces: Vec<Piece>) {
        schedule.arrive(id, owner, Priority::Normal, pieces);
        loop {
            match schedule.next(100) {
                Step::Read { task, tokens, is_last, .. } => {
                    schedule.did_read(task, tokens, 1);
                    if is_last {
                        break;
                    }
                }
                Step::Rest => panic!("nothing is read"),
                _ => {}
            }
        }
        schedule.end(id);
    }

    /// What the owner's name 0 means.
    fn kept(schedule: &Schedule, owner: u64) -> Option<Vec<Piece>> {
        schedule.kept(owner, 0).map(|(_, pieces)| pieces.to_vec())
    }

    #[test]
    fn a_name_is_an_owners_own_and_means_the_latest() {
        let mut schedule = schedule(4);
        asked(&mut schedule, 0, owner(1, 0), pieces(0, 70));
        asked(&mut schedule, 1, owner(2, 0), pieces(1000, 80));
        asked(&mut schedule, 2, owner(1, 0), pieces(2000, 90));
        schedule.arrive(3, owner(1, 5), Priority::Normal, pieces(3000, 10));
        let held = |name, tokens, is_busy| Named { name, tokens, is_busy };
        assert_eq!(schedule.named(1), [held(0, 90, false), held(5, 10, true)]);
        assert_eq!(schedule.named(2), [held(0, 80, false)]);
        assert_eq!(schedule.named(3), []);
        assert_eq!(kept(&schedule, 1), Some(pieces(2000, 90)));
        assert_eq!(schedule.kept(1, 5), None, "it has not ended");
        let mut erased: Vec<usize> =
            schedule.erase(1, 0).into_iter().map(|(_, tokens)| tokens).collect();
        erased.sort_unstable();
        assert_eq!((erased, schedule.kept(1, 0)), (vec![70, 90], None));
        assert_eq!(kept(&schedule, 2), Some(pieces(1000, 80)));
    }

    #[test]
    fn what_is_put_back_is_found_and_makes_no_task_wait() {
        let mut schedule = schedule(2);
        let known = pieces(0, 100);
        assert_eq!(schedule.put(None, 8), Put::Into(0));
        let first = schedule.did_put(0, owner(1, 0), &known[..BLOCK]);
        assert_eq!(schedule.put(Some(first), 7), Put::Into(0));
        let whole = schedule.did_put(0, owner(1, 0), &known[BLOCK..]);
        assert_eq!(schedule.put(Some(first), 7), Put::Gone, "it holds more");
        assert_eq!(kept(&schedule, 1), Some(known.clone()));
        for mark in [first, whole] {
            assert_eq!(schedule.holder(mark, &known[..90]), Some(0));
        }
        assert_eq!(schedule.holder(first, &pieces(0, 101)), None);
        // Both slots are kept: the older one gives way.
        asked(&mut schedule, 0, owner(2, 0), pieces(1000, 70));
        assert_eq!(schedule.put(None, 4), Put::Forget(0));
        assert_eq!(schedule.put(None, 6), Put::Into(0));
        assert_eq!(schedule.put(None, 0), Put::Forget(1));
        assert_eq!(schedule.put(None, 0), Put::Crowded);
        // Who has a slot keeps it, and the room that its prompt needs.
        schedule.arrive(1, owner(2, 0), Priority::Normal, pieces(1000, 70));
        assert!(matches!(schedule.next(100), Step::Admit { slot: 0, .. }));
        assert_eq!(schedule.put(Some(whole), 100), Put::Gone);
        assert_eq!(schedule.put(None, 2), Put::Crowded);
        assert_eq!(schedule.put(None, 3), Put::Into(1));
    }
}
