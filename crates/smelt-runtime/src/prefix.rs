//! Finds which slot holds the longest beginning of a prompt.
//!
//! Token ids of slots in, a slot and a number of tokens out; the engine then forks that slot.  Keys
//! of pictures stand for their contents, since image tokens look alike.  Knows nothing of the cache
//! itself: whoever changes a slot says so here too.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// 128 bits that nothing else has: of a cryptographic hash of contents.
pub type Identity = [u64; 2];

/// What stands at a position: a token, or a part of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// A token of the text.
    Token(u32),
    /// An image token of the picture with this identity.
    Picture(Identity),
    /// The first piece of a prompt that goes on only from what has the same identity: other answers to it, or
    /// other prompts of who may know of it.
    Alone(Identity),
}

/// A beginning that a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixHit {
    /// The slot.
    pub slot: usize,
    /// How many pieces of the prompt it begins with.
    pub len: usize,
}

/// A slot as it was at a moment: while it is as it was, it holds what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The slot.
    pub slot: usize,
    /// How often what it holds had changed.
    changes: u64,
}

/// What slots hold, and an index of their whole blocks.
#[derive(Debug, Default)]
pub struct Prefixes {
    slots: Vec<CachedPrefix>,
    /// Tokens whose keys and values lie in one block of the cache.
    block_tokens: usize,
    /// Slots by the hash of everything up to the end of a block.
    blocks: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct CachedPrefix {
    pieces: Vec<Piece>,
    /// The hash of all pieces up to the end of each whole block.
    hashes: Vec<u64>,
    /// How often any of this changed.
    changes: u64,
}

impl Prefixes {
    /// `slots` empty slots of a cache with blocks of so many tokens.
    pub fn new(slots: usize, block_tokens: usize) -> Self {
        let slots = (0..slots).map(|_| CachedPrefix::default()).collect();
        Self { slots, block_tokens: block_tokens.max(1), ..Self::default() }
    }

    /// What `slot` holds; nothing for slots that do not exist.
    pub fn held(&self, slot: usize) -> &[Piece] {
        self.slots.get(slot).map_or(&[], |held| &held.pieces)
    }

    /// By what `slot` is known again without comparing what it holds.
    pub fn mark(&self, slot: usize) -> Mark {
        Mark { slot, changes: self.slots.get(slot).map_or(0, |held| held.changes) }
    }

    /// Adds `pieces` to what `slot` holds.  A slot that does not exist stays away.
    pub fn append(&mut self, slot: usize, pieces: &[Piece]) {
        let Some(held) = self.slots.get_mut(slot) else { return };
        held.changes += 1;
        held.pieces.extend_from_slice(pieces);
        for block in held.hashes.len()..held.pieces.len() / self.block_tokens {
            let before = held.hashes.last().copied();
            let pieces = &held.pieces[block * self.block_tokens..(block + 1) * self.block_tokens];
            let hash = self.hasher.hash_one((before, pieces));
            held.hashes.push(hash);
            self.blocks.entry(hash).or_default().push(slot);
        }
    }

    /// Forgets what `slot` holds behind its first `len` pieces.
    pub fn truncate(&mut self, slot: usize, len: usize) {
        let Some(held) = self.slots.get_mut(slot) else { return };
        held.changes += 1;
        held.pieces.truncate(len);
        for hash in
            held.hashes.drain((held.pieces.len() / self.block_tokens).min(held.hashes.len())..)
        {
            let Some(slots) = self.blocks.get_mut(&hash) else { continue };
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.blocks.remove(&hash);
            }
        }
    }

    /// Lets `to` hold the first `len` pieces of `from`, and nothing else.
    pub fn fork(&mut self, from: usize, to: usize, len: usize) {
        let held = self.held(from);
        let pieces = held[..len.min(held.len())].to_vec();
        self.truncate(to, 0);
        self.append(to, &pieces);
    }

    /// The slot that begins with most of `prompt`, of several the first; nothing if none shares a
    /// piece.  Whole blocks are found by their hash, and only slots that share most of them are
    /// compared.  An engine has to be given at least one token, so who forks a slot that holds all of
    /// a prompt leaves the last piece out.
    pub fn longest(&self, prompt: &[Piece]) -> Option<PrefixHit> {
        let (mut before, mut slots) = (None, (0..self.slots.len()).collect::<Vec<_>>());
        for pieces in prompt.chunks_exact(self.block_tokens) {
            let hash = self.hasher.hash_one((before, pieces));
            let Some(next) = self.blocks.get(&hash) else { break };
            slots.clone_from(next);
            before = Some(hash);
        }
        let shared = |slot: &usize| {
            let pairs = self.slots[*slot].pieces.iter().zip(prompt);
            PrefixHit { slot: *slot, len: pairs.take_while(|(held, asked)| held == asked).count() }
        };
        let all = slots.iter().map(shared).filter(|found| found.len > 0);
        all.reduce(|best, next| {
            let is_better = (next.len, best.slot) > (best.len, next.slot);
            if is_better { next } else { best }
        })
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const SLOTS: usize = 5;

    /// The definition: every slot compared piece by piece.
    fn by_comparing(model: &[Vec<Piece>], prompt: &[Piece]) -> Option<PrefixHit> {
        let shared = |held: &[Piece]| held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let len = model.iter().map(|held| shared(held)).max()?;
        let slot = model.iter().position(|held| shared(held) == len)?;
        (len > 0).then_some(PrefixHit { slot, len })
    }

    /// A text of few words, so that many begin alike.
    fn pieces(random: &mut Random) -> Vec<Piece> {
        let (seed, len) = (random.below(3) as u64, random.below(300));
        let mut text = Random::new(seed);
        let mut all: Vec<Piece> = (0..len).map(|_| Piece::Token(text.below(50) as u32)).collect();
        if random.below(3) == 0 {
            let end = all.len().min(90);
            all[end.min(20)..end].fill(Piece::Picture([random.below(2) as u64, 0]));
        }
        all
    }

    #[test]
    fn the_longest_is_what_comparing_all_finds() {
        for seed in 1..=300 {
            let mut random = Random::new(seed);
            let (mut prefixes, mut model) = (Prefixes::new(SLOTS, 64), vec![Vec::new(); SLOTS]);
            for _ in 0..30 {
                let slot = random.below(SLOTS);
                match random.below(4) {
                    0 => {
                        let len = random.below(model[slot].len() + 1);
                        prefixes.truncate(slot, len);
                        model[slot].truncate(len);
                    }
                    1 => {
                        let (to, len) = (random.below(SLOTS), random.below(model[slot].len() + 1));
                        prefixes.fork(slot, to, len);
                        model[to] = model[slot][..len].to_vec();
                    }
                    _ => {
                        let more = pieces(&mut random);
                        prefixes.append(slot, &more);
                        model[slot].extend(more);
                    }
                }
                let prompt = pieces(&mut random);
                assert_eq!(prefixes.longest(&prompt), by_comparing(&model, &prompt), "seed {seed}");
                assert_eq!(prefixes.held(slot), model[slot], "seed {seed}");
            }
            (0..SLOTS).for_each(|slot| prefixes.truncate(slot, 0));
            assert!(prefixes.blocks.is_empty(), "seed {seed}: the index leaks");
        }
    }

    #[test]
    fn a_mark_knows_a_slot_until_it_changes() {
        let mut prefixes = Prefixes::new(2, 64);
        prefixes.append(0, &[Piece::Token(1); 70]);
        let mark = prefixes.mark(0);
        prefixes.fork(0, 1, 64);
        assert_eq!(prefixes.mark(0), mark);
        prefixes.truncate(0, 64);
        prefixes.append(0, &[Piece::Token(2); 6]);
        assert_ne!(prefixes.mark(0), mark, "it holds as much of something else");
    }

    #[test]
    fn other_pictures_under_the_same_tokens_are_not_shared() {
        let mut prefixes = Prefixes::new(2, 64);
        let with = |picture| [[Piece::Token(1); 10], [Piece::Picture([0, picture]); 10]].concat();
        prefixes.append(1, &with(7));
        assert_eq!(prefixes.longest(&with(7)), Some(PrefixHit { slot: 1, len: 20 }));
        assert_eq!(prefixes.longest(&with(8)), Some(PrefixHit { slot: 1, len: 10 }));
        assert_eq!(prefixes.longest(&[Piece::Token(2)]), None);
        prefixes.append(9, &with(7));
        assert_eq!(prefixes.held(9), &[]);
    }
}
