//! Says which pages of keys and values slots hold, which they share, and which a step takes.
//!
//! Slots and counts in, numbers of pages out; memory is elsewhere.  A fork shares pages; whoever writes into a shared one
//! gets a copy first.  What a step takes is given back where the step fails.  Knows no device and no model.

use std::collections::BTreeSet;

use smelt_backend::RunError;
use smelt_backend::position_ids::PositionId;

/// Tokens of one page.
pub(super) const PAGE_TOKENS: usize = 64;

/// What one sequence has left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    /// Of each token the place that follows it and all before it; as many as there are tokens.
    ends: Vec<u32>,
    /// At least the pages of all tokens.
    pages: Vec<u32>,
}

/// The slots, and who holds which page.
#[derive(Debug)]
pub(super) struct Pages {
    slots: Vec<Slot>,
    /// Holders of each page that ever was.
    holders: Vec<u32>,
    /// Pages that nobody holds.
    free: BTreeSet<u32>,
    /// Pages that there may be.
    total: usize,
}

/// A page that has to be copied before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCopy {
    /// What is read.
    pub(super) from: u32,
    /// What is written.
    pub(super) to: u32,
}

/// What a step has taken, until it is done or has failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Pages that nobody held before and that are not overwritten as a whole.
    pub(super) fresh: Vec<u32>,
    /// Pages to copy before anything is written.
    pub(super) copies: Vec<PageCopy>,
    before: Vec<Before>,
}

/// A slot as it was before a step.
#[derive(Debug, PartialEq, Eq)]
struct Before {
    slot: usize,
    tokens: usize,
    pages: usize,
    copy: Option<PageCopy>,
}

impl Pages {
    /// So many empty slots that may hold `total` pages together.
    pub(super) fn new(slots: usize, total: usize) -> Self {
        let slots = vec![Slot::default(); slots];
        Self { slots, holders: Vec::new(), free: BTreeSet::new(), total }
    }

    /// Slots there are.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Tokens that `slot` holds.
    pub(super) fn len(&self, slot: usize) -> usize {
        self.slots[slot].ends.len()
    }

    /// The place of the token that follows what `slot` holds.
    pub(super) fn next_place(&self, slot: usize) -> u32 {
        self.slots[slot].ends.last().copied().unwrap_or(0)
    }

    /// The pages of `slot`, in order.
    pub(super) fn of(&self, slot: usize) -> &[u32] {
        &self.slots[slot].pages
    }

    /// Of the tokens of page `index` of `slot` the places that follow them; none where no token is in it.
    pub(super) fn ends(&self, slot: usize, index: usize) -> Option<&[u32]> {
        self.slots[slot].ends.chunks(PAGE_TOKENS).nth(index)
    }

    /// Pages that slots hold.
    pub(super) fn held(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// Pages that there may be.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Lets there be so many pages; what is held stays.
    pub(super) fn set_total(&mut self, total: usize) {
        self.total = total.max(self.held());
    }

    /// One more than the largest page that is held.
    pub(super) fn end(&self) -> usize {
        self.holders.len()
    }

    /// Forgets what `slot` holds behind its first `len` tokens, and lets go of pages of which nothing is left.
    pub(super) fn truncate(&mut self, slot: usize, len: usize) {
        let own = &mut self.slots[slot];
        own.ends.truncate(len);
        let keep = own.ends.len().div_ceil(PAGE_TOKENS).min(own.pages.len());
        let dropped = own.pages.split_off(keep);
        dropped.into_iter().for_each(|page| self.let_go(page));
    }

    /// Lets `to` hold the first `len` tokens of `from`, and nothing else; their pages are shared.
    pub(super) fn fork(&mut self, from: usize, to: usize, len: usize) {
        self.truncate(to, 0);
        let source = &self.slots[from];
        let ends = source.ends[..len].to_vec();
        let pages = source.pages[..len.div_ceil(PAGE_TOKENS)].to_vec();
        pages.iter().for_each(|page| self.holders[*page as usize] += 1);
        self.slots[to] = Slot { ends, pages };
    }

    /// Makes room for `count` more tokens in each `(slot, count)`; no slot is named twice.
    ///
    /// # Errors
    /// [`RunError::KvFull`] when the pages do not suffice; then nothing is changed.
    pub(super) fn take(&mut self, more: &[(usize, usize)]) -> Result<Taken, RunError> {
        let (need, held, total) = (self.need(more), self.held(), self.total);
        if need > total - held {
            return Err(RunError::KvFull { more: need, held, total });
        }
        let mut taken = Taken::default();
        // Of all that write into a shared page the one that holds most of it keeps it: what it writes is behind what the
        // others hold, who get theirs back where the step fails.
        let mut more = more.to_vec();
        more.sort_by_key(|(slot, _)| self.len(*slot));
        for (slot, count) in more {
            self.grow(slot, count, &mut taken);
        }
        debug_assert_eq!(self.held(), held + need, "`need` counted them");
        Ok(taken)
    }

    /// Counts tokens whose keys and values a step stores, and which stand at `position_ids`.
    pub(super) fn advance(&mut self, slot: usize, position_ids: &[PositionId]) {
        let mut end = self.next_place(slot);
        self.slots[slot].ends.extend(position_ids.iter().map(|position_id| {
            end = position_id.iter().fold(end, |end, place| end.max(place + 1));
            end
        }));
    }

    /// Counts tokens behind which the places `ends` come.
    pub(super) fn advance_to(&mut self, slot: usize, ends: &[u32]) {
        self.slots[slot].ends.extend_from_slice(ends);
    }

    /// Gives back what a step has taken that failed: every slot is as it was.
    pub(super) fn give_back(&mut self, taken: Taken) {
        for Before { slot, tokens, pages, copy } in taken.before.into_iter().rev() {
            self.slots[slot].ends.truncate(tokens);
            let dropped = self.slots[slot].pages.split_off(pages);
            dropped.into_iter().for_each(|page| self.let_go(page));
            if let Some(PageCopy { from, to }) = copy {
                self.slots[slot].pages[tokens / PAGE_TOKENS] = from;
                self.holders[from as usize] += 1;
                self.let_go(to);
            }
        }
    }

    /// Pages that have to be taken before the tokens can be stored.
    fn need(&self, more: &[(usize, usize)]) -> usize {
        let mut need = 0;
        for (index, &(slot, count)) in more.iter().enumerate() {
            let Slot { ends, pages } = &self.slots[slot];
            need += (ends.len() + count).div_ceil(PAGE_TOKENS).saturating_sub(pages.len());
            let Some(open) = self.open_page(slot, count) else { continue };
            // Of all that write into a shared page, one keeps it, if no other slot reads it.
            let earlier = more[..index].iter();
            let earlier = earlier.filter(|more| self.open_page(more.0, more.1) == Some(open));
            need += usize::from(self.holders[open as usize] as usize - earlier.count() > 1);
        }
        need
    }

    /// The page that `count` more tokens would begin in, if it holds tokens already.
    fn open_page(&self, slot: usize, count: usize) -> Option<u32> {
        let Slot { ends, pages } = &self.slots[slot];
        let is_open = count > 0 && !ends.len().is_multiple_of(PAGE_TOKENS);
        is_open.then(|| pages[ends.len() / PAGE_TOKENS])
    }

    fn grow(&mut self, slot: usize, count: usize, taken: &mut Taken) {
        let (tokens, pages) = (self.len(slot), self.slots[slot].pages.len());
        let shared = self.open_page(slot, count);
        let shared = shared.filter(|page| self.holders[*page as usize] > 1);
        let copy = shared.map(|from| PageCopy { from, to: self.fresh() });
        if let Some(PageCopy { from, to }) = copy {
            self.holders[from as usize] -= 1;
            self.slots[slot].pages[tokens / PAGE_TOKENS] = to;
        }
        taken.copies.extend(copy);
        taken.before.push(Before { slot, tokens, pages, copy });
        for _ in pages..(tokens + count).div_ceil(PAGE_TOKENS) {
            let page = self.fresh();
            self.slots[slot].pages.push(page);
            taken.fresh.push(page);
        }
    }

    /// A page that nobody held; the lowest, so that what lies behind can be given back.
    fn fresh(&mut self) -> u32 {
        let page = self.free.pop_first().unwrap_or_else(|| {
            self.holders.push(0);
            self.holders.len() as u32 - 1
        });
        self.holders[page as usize] = 1;
        page
    }

    fn let_go(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        self.free.insert(page);
        while self.free.last().is_some_and(|last| *last as usize + 1 == self.holders.len()) {
            self.free.pop_last();
            self.holders.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const SLOTS: usize = 4;

    /// Where tokens of these numbers stand: nowhere that repeats.
    fn places(tokens: &[u32]) -> Vec<PositionId> {
        tokens.iter().map(|token| [0, *token, 0]).collect()
    }

    /// A device that keeps the number of each token where its page says.
    #[derive(Default)]
    struct Memory(Vec<[u32; PAGE_TOKENS]>);

    impl Memory {
        fn follow(&mut self, pages: &Pages, taken: &Taken) {
            self.0.resize(self.0.len().max(pages.end()), [u32::MAX; PAGE_TOKENS]);
            for page in &taken.fresh {
                self.0[*page as usize] = [u32::MAX; PAGE_TOKENS];
            }
            for PageCopy { from, to } in &taken.copies {
                self.0[*to as usize] = self.0[*from as usize];
            }
        }

        fn write(&mut self, pages: &Pages, slot: usize, from: usize, tokens: &[u32]) {
            for (at, token) in (from..).zip(tokens) {
                let page = pages.of(slot)[at / PAGE_TOKENS];
                self.0[page as usize][at % PAGE_TOKENS] = *token;
            }
        }

        fn read(&self, pages: &Pages, slot: usize) -> Vec<u32> {
            let at =
                |at: usize| self.0[pages.of(slot)[at / PAGE_TOKENS] as usize][at % PAGE_TOKENS];
            (0..pages.len(slot)).map(at).collect()
        }
    }

    /// Random forks, releases, cuts, steps and steps that fail, beside plain lists of tokens.
    fn simulate(seed: u64) {
        let mut random = Random::new(seed);
        let total = 4 + random.below(10);
        let (mut pages, mut memory) = (Pages::new(SLOTS, total), Memory::default());
        let mut model: [Vec<u32>; SLOTS] = Default::default();
        let mut token = 0;
        for _ in 0..120 {
            let slot = random.below(SLOTS);
            match random.below(6) {
                0 => {
                    pages.truncate(slot, 0);
                    model[slot].clear();
                }
                1 => {
                    let len = random.below(model[slot].len() + 1);
                    pages.truncate(slot, len);
                    model[slot].truncate(len);
                }
                2 => {
                    let (to, len) = (random.below(SLOTS), random.below(model[slot].len() + 1));
                    if to != slot {
                        pages.fork(slot, to, len);
                        model[to] = model[slot][..len].to_vec();
                    }
                }
                _ => {
                    let own: Vec<usize> = (0..SLOTS).filter(|_| random.coin()).collect();
                    let room = |slot: usize| 300 - model[slot].len();
                    let more: Vec<(usize, usize)> = own
                        .into_iter()
                        .map(|slot| (slot, random.below(90).min(room(slot))))
                        .collect();
                    let (held, need) = (pages.held(), pages.need(&more));
                    let Ok(taken) = pages.take(&more) else {
                        assert!(held + need > total, "seed {seed}: refused without need");
                        assert_eq!(pages.held(), held, "seed {seed}");
                        continue;
                    };
                    memory.follow(&pages, &taken);
                    let fails = random.one_in(3);
                    for (slot, count) in more {
                        let tokens: Vec<u32> = (token..token + count as u32).collect();
                        token += count as u32;
                        memory.write(&pages, slot, model[slot].len(), &tokens);
                        pages.advance(slot, &places(&tokens));
                        if !fails {
                            model[slot].extend(tokens);
                        }
                    }
                    if fails {
                        pages.give_back(taken);
                        assert_eq!(pages.held(), held, "seed {seed}: a failed step took pages");
                    }
                }
            }
            check(&pages, &memory, &model, seed);
        }
        (0..SLOTS).for_each(|slot| pages.truncate(slot, 0));
        assert_eq!((pages.held(), pages.end()), (0, 0), "seed {seed}: pages leaked");
    }

    fn check(pages: &Pages, memory: &Memory, model: &[Vec<u32>], seed: u64) {
        let mut holders = vec![0; pages.end()];
        let all = pages.slots.iter().flat_map(|slot| &slot.pages);
        all.for_each(|page| holders[*page as usize] += 1);
        assert_eq!(holders, pages.holders, "seed {seed}");
        let distinct = holders.iter().filter(|count| **count > 0).count();
        assert_eq!(distinct, pages.held(), "seed {seed}");
        assert!(pages.held() <= pages.total(), "seed {seed}");
        for (slot, tokens) in model.iter().enumerate() {
            assert_eq!(memory.read(pages, slot), *tokens, "seed {seed}, slot {slot}");
            let next = tokens.iter().max().map_or(0, |last| last + 1);
            assert_eq!(pages.next_place(slot), next, "seed {seed}, slot {slot}");
        }
    }

    #[test]
    fn anything_done_to_slots_is_what_a_list_of_tokens_would_be() {
        (1..=400).for_each(simulate);
    }

    #[test]
    fn of_two_that_write_into_a_shared_page_one_gets_a_copy() {
        let mut pages = Pages::new(3, 3);
        pages.take(&[(0, 70)]).unwrap();
        pages.advance(0, &places(&(0..70).collect::<Vec<_>>()));
        pages.fork(0, 1, 70);
        let taken = pages.take(&[(0, 1), (1, 1)]).unwrap();
        assert_eq!(taken.copies, [PageCopy { from: 1, to: 2 }]);
        assert_eq!((pages.of(0), pages.of(1)), (&[0, 2][..], &[0, 1][..]));
        pages.give_back(taken);
        assert_eq!((pages.of(0), pages.of(1), pages.held()), (&[0, 1][..], &[0, 1][..], 2));
        // Who holds less of it gets the copy, wherever it stands: what the other writes is behind both.
        pages.truncate(1, 66);
        let taken = pages.take(&[(0, 1), (1, 1)]).unwrap();
        assert_eq!((pages.of(0), pages.of(1)), (&[0, 1][..], &[0, 2][..]));
        pages.give_back(taken);
        pages.fork(0, 1, 70);
        // A third that reads it leaves no room: two copies, and one page.
        pages.fork(0, 2, 70);
        let full = RunError::KvFull { more: 2, held: 2, total: 3 };
        assert_eq!(pages.take(&[(0, 1), (1, 1)]), Err(full));
    }
}
