//! Keeps the keys and values of the tokens slots have seen, in blocks that slots may share.
//!
//! A slot is a table of blocks of 64 positions; blocks are made when tokens come and given back to
//! the system when no slot names them any more.  A fork shares blocks; whoever writes into a shared
//! one gets a copy first.  Rows in, per-head views out.  Knows nothing of how they are computed.

use std::sync::Arc;

use memmap2::MmapMut;
use smelt_backend::position_ids::PositionId;
use smelt_backend::{KvType, KvUsage};

use super::RunError;
use crate::kernels::cached_attention::{BLOCK, HeadBlock, HeadShape};

/// The sizes that every block of an engine shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvShape {
    pub(super) layers: usize,
    pub(super) kv_heads: usize,
    pub(super) head: HeadShape,
}

impl KvShape {
    fn block_bytes(self) -> usize {
        self.layers * self.kv_heads * self.head.bytes()
    }

    /// Where a head begins in a block.
    fn head_start(self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head.bytes()
    }
}

/// Bytes of the keys and values of 64 positions, page aligned, zero at first.
type Block = MmapMut;

/// What one sequence has left behind.
#[derive(Debug, Default)]
struct Slot {
    /// Of each token the place that follows it and all before it; as many as there are tokens.
    ends: Vec<u32>,
    /// At least the blocks of all tokens.
    blocks: Vec<Arc<Block>>,
}

/// The slots of an engine and the blocks they hold.
#[derive(Debug)]
pub(super) struct Cache {
    shape: KvShape,
    slots: Vec<Slot>,
    held: usize,
    total: usize,
}

impl Cache {
    /// `slots` empty slots of up to `tokens` tokens.
    pub(super) fn new(shape: KvShape, slots: usize, tokens: usize, bytes_max: Option<u64>) -> Self {
        let slots = (0..slots).map(|_| Slot::default()).collect();
        let mut cache = Self { shape, slots, held: 0, total: 0 };
        cache.set_bytes_max(tokens, bytes_max.unwrap_or(u64::MAX));
        cache
    }

    /// Lets all blocks together take so many bytes from now on, and no more than full slots do.
    pub(super) fn set_bytes_max(&mut self, tokens: usize, bytes_max: u64) {
        let all = self.slots.len() * tokens.div_ceil(BLOCK);
        let fit =
            usize::try_from(bytes_max / self.shape.block_bytes() as u64).unwrap_or(usize::MAX);
        // What is held stays.
        self.total = fit.min(all).max(self.held);
    }

    /// The form of the numbers.
    pub(super) fn kv_type(&self) -> KvType {
        self.shape.head.kind
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

    /// What all slots take.
    pub(super) fn usage(&self) -> KvUsage {
        KvUsage {
            block_tokens: BLOCK,
            block_bytes: self.shape.block_bytes(),
            blocks_held: self.held,
            blocks_total: self.total,
        }
    }

    /// Forgets what `slot` holds behind its first `len` tokens, and gives back the blocks of which
    /// nothing is left.
    pub(super) fn truncate(&mut self, slot: usize, len: usize) {
        let slot = &mut self.slots[slot];
        slot.ends.truncate(len);
        let keep = slot.ends.len().div_ceil(BLOCK).min(slot.blocks.len());
        let dropped = slot.blocks.drain(keep..).filter_map(Arc::into_inner);
        self.held -= dropped.count();
    }

    /// Lets `to` hold the first `len` tokens of `from`, and nothing else; their blocks are shared.
    pub(super) fn fork(&mut self, from: usize, to: usize, len: usize) {
        self.truncate(to, 0);
        let source = &self.slots[from];
        let ends = source.ends[..len].to_vec();
        let blocks = source.blocks[..len.div_ceil(BLOCK)].to_vec();
        self.slots[to] = Slot { ends, blocks };
    }

    /// Makes room for `count` more tokens in each `(slot, count)`; no slot is named twice.
    ///
    /// # Errors
    /// When the blocks do not suffice or the system has no memory; then nothing is changed.
    pub(super) fn reserve(&mut self, more: &[(usize, usize)]) -> Result<(), RunError> {
        let need = self.need(more);
        let (held, total) = (self.held, self.total);
        if need > total - held {
            return Err(RunError::KvFull { more: need, held, total });
        }
        let bytes = self.shape.block_bytes();
        let fresh = (0..need).map(|_| Block::map_anon(bytes).map(Arc::new));
        let fresh: Result<Vec<Arc<Block>>, _> = fresh.collect();
        let mut fresh = fresh.map_err(|_| RunError::NoMemory { bytes: need * bytes })?.into_iter();
        self.held += need;
        for &(slot, count) in more {
            self.slots[slot].grow(count, &mut || fresh.next().expect("`need` counted them"));
        }
        Ok(())
    }

    /// Blocks that have to be made before the tokens can be stored.
    fn need(&self, more: &[(usize, usize)]) -> usize {
        let mut need = 0;
        for (index, &(slot, count)) in more.iter().enumerate() {
            let Slot { ends, blocks } = &self.slots[slot];
            need += (ends.len() + count).div_ceil(BLOCK).saturating_sub(blocks.len());
            let Some(open) = self.slots[slot].open_block(count) else { continue };
            // Of all that write into a shared block, the last one keeps it, if no other slot reads it.
            let earlier = more[..index].iter().filter(|&&(slot, count)| {
                let other = self.slots[slot].open_block(count);
                other.is_some_and(|other| Arc::ptr_eq(open, other))
            });
            need += usize::from(Arc::strong_count(open) - earlier.count() > 1);
        }
        need
    }

    /// Counts tokens whose keys and values were stored for every layer, and which stand at `position_ids`.
    pub(super) fn advance(&mut self, slot: usize, position_ids: &[PositionId]) {
        let mut end = self.next_place(slot);
        let slot = &mut self.slots[slot];
        slot.ends.extend(position_ids.iter().map(|position_id| {
            end = position_id.iter().fold(end, |end, place| end.max(place + 1));
            end
        }));
        debug_assert!(slot.ends.len() <= slot.blocks.len() * BLOCK);
    }

    /// Stores one token's keys and values, `[kv_heads, head_dim]` each, of a layer.  Room was made.
    pub(super) fn store(
        &mut self,
        slot: usize,
        layer: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let (shape, dim) = (self.shape, self.shape.head.dim);
        let block = Arc::get_mut(&mut self.slots[slot].blocks[position / BLOCK])
            .expect("`reserve` has copied what was shared");
        for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate()
        {
            let part = &mut block[shape.head_start(layer, head)..][..shape.head.bytes()];
            shape.head.store(part, position % BLOCK, key, value);
        }
    }

    /// Of the block `index` of `slot` the ends of its tokens, and its bytes; none where no token is in it.
    pub(super) fn block(&self, slot: usize, index: usize) -> Option<(&[u32], &[u8])> {
        let Slot { ends, blocks } = &self.slots[slot];
        let ends = ends.chunks(BLOCK).nth(index)?;
        Some((ends, blocks.get(index)?))
    }

    /// Puts a block that [`Self::block`] gave behind the whole blocks that `slot` holds.
    ///
    /// # Errors
    /// As [`Self::reserve`]; then nothing is changed.
    pub(super) fn put_block(
        &mut self,
        slot: usize,
        ends: &[u32],
        bytes: &[u8],
    ) -> Result<(), RunError> {
        self.reserve(&[(slot, ends.len())])?;
        let slot = &mut self.slots[slot];
        let block = Arc::get_mut(&mut slot.blocks[slot.ends.len() / BLOCK]);
        block.expect("`reserve` has made it").copy_from_slice(bytes);
        slot.ends.extend_from_slice(ends);
        Ok(())
    }

    /// One head's keys and values over positions `0..end`, and what lies behind them in the last
    /// block.
    pub(super) fn head(
        &self,
        slot: usize,
        layer: usize,
        head: usize,
        end: usize,
    ) -> impl Iterator<Item = HeadBlock<'_>> {
        let start = self.shape.head_start(layer, head);
        let blocks = &self.slots[slot].blocks[..end.div_ceil(BLOCK)];
        blocks
            .iter()
            .map(move |block| self.shape.head.view(&block[start..start + self.shape.head.bytes()]))
    }
}

impl Slot {
    /// The block that `count` more tokens would begin in, if it holds tokens already.
    fn open_block(&self, count: usize) -> Option<&Arc<Block>> {
        let is_open = count > 0 && !self.ends.len().is_multiple_of(BLOCK);
        is_open.then(|| &self.blocks[self.ends.len() / BLOCK])
    }

    /// Makes room for `count` more tokens out of `fresh` blocks.
    fn grow(&mut self, count: usize, fresh: &mut impl FnMut() -> Arc<Block>) {
        let shared = self.open_block(count).is_some_and(|open| Arc::strong_count(open) > 1);
        if shared {
            let mut own = fresh();
            let open = &mut self.blocks[self.ends.len() / BLOCK];
            Arc::get_mut(&mut own).expect("a fresh block has one owner").copy_from_slice(open);
            *open = own;
        }
        let blocks = (self.ends.len() + count).div_ceil(BLOCK);
        self.blocks.resize_with(blocks.max(self.blocks.len()), fresh);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use smelt_random::Random;

    use super::*;
    use crate::kernels::cached_attention::Rows;
    use crate::kernels::isa::Isa;
    use crate::kernels::testing::rounds;

    const LAYERS: usize = 2;
    const KV_HEADS: usize = 3;
    const DIM: usize = 4;

    fn cache(slots: usize, tokens: usize, blocks: Option<u64>) -> Cache {
        let head = HeadShape { dim: DIM, kind: KvType::F32 };
        let shape = KvShape { layers: LAYERS, kv_heads: KV_HEADS, head };
        Cache::new(shape, slots, tokens, blocks.map(|blocks| blocks * shape.block_bytes() as u64))
    }

    /// The key and value of a token that was given the number `token`.
    fn row(token: u32, layer: usize) -> Vec<f32> {
        (0..KV_HEADS * DIM).map(|i| (token as usize * 100 + layer * 50 + i) as f32).collect()
    }

    fn append(cache: &mut Cache, slot: usize, tokens: &[u32]) {
        for (offset, &token) in tokens.iter().enumerate() {
            let position = cache.len(slot) + offset;
            for layer in 0..LAYERS {
                let row = row(token, layer);
                cache.store(slot, layer, position, &row, &row);
            }
        }
        let position_ids: Vec<PositionId> = tokens.iter().map(|&token| [0, token, 0]).collect();
        cache.advance(slot, &position_ids);
    }

    /// The value of every position of `slot`.
    fn values(cache: &Cache, slot: usize, layer: usize, head: usize) -> Vec<Vec<f32>> {
        let len = cache.len(slot);
        let blocks: Vec<_> = cache.head(slot, layer, head, len).collect();
        (0..len).map(|at| blocks[at / BLOCK].value(at % BLOCK, DIM)).collect()
    }

    #[test]
    fn blocks_are_put_back_as_they_were() {
        let mut cache = cache(2, 300, None);
        cache.reserve(&[(0, 150)]).unwrap();
        append(&mut cache, 0, &(0..150).collect::<Vec<_>>());
        for index in 0..3 {
            let (ends, bytes) = cache.block(0, index).unwrap();
            let (ends, bytes) = (ends.to_vec(), bytes.to_vec());
            cache.put_block(1, &ends, &bytes).unwrap();
        }
        assert!(cache.block(0, 3).is_none() && cache.block(1, 3).is_none());
        let both = [cache.len(1), cache.next_place(1) as usize];
        assert_eq!(both, [150, 150]);
        assert_eq!((values(&cache, 0, 1, 2), cache.held), (values(&cache, 1, 1, 2), 6));
        // What is put back goes on like any other, and is its own.
        cache.reserve(&[(1, 1)]).unwrap();
        append(&mut cache, 1, &[150]);
        assert_eq!([cache.len(0), cache.len(1)], [150, 151]);
    }

    #[test]
    fn anything_done_to_slots_is_what_a_list_of_tokens_would_be() {
        (1..=rounds(60) as u64).for_each(simulate);
    }

    /// Random forks, releases, cuts and appends, beside plain lists of tokens.
    fn simulate(seed: u64) {
        const SLOTS: usize = 4;
        let mut random = Random::new(seed);
        let total = 4 + random.below(10);
        let mut cache = cache(SLOTS, 300, Some(total as u64));
        let mut model: [Vec<u32>; SLOTS] = Default::default();
        let mut token = 0;
        for _ in 0..if cfg!(miri) { 6 } else { 120 } {
            let slot = random.below(SLOTS);
            match random.below(6) {
                0 => {
                    cache.truncate(slot, 0);
                    model[slot].clear();
                }
                1 => {
                    let len = random.below(model[slot].len() + 1);
                    cache.truncate(slot, len);
                    model[slot].truncate(len);
                }
                2 => {
                    let (from, len) = (random.below(SLOTS), random.below(model[slot].len() + 1));
                    if from != slot {
                        cache.fork(slot, from, len);
                        model[from] = model[slot][..len].to_vec();
                    }
                }
                _ => {
                    let all: Vec<usize> = (0..SLOTS).filter(|_| random.below(2) == 0).collect();
                    let more: Vec<(usize, usize)> = all
                        .into_iter()
                        .map(|slot| (slot, random.below(90).min(300 - model[slot].len())))
                        .collect();
                    let before = (cache.held, cache.need(&more));
                    match cache.reserve(&more) {
                        Ok(()) => {
                            assert_eq!(cache.held, before.0 + before.1);
                            for (slot, count) in more {
                                let tokens: Vec<u32> = (token..token + count as u32).collect();
                                token += count as u32;
                                append(&mut cache, slot, &tokens);
                                model[slot].extend(tokens);
                            }
                        }
                        Err(error) => {
                            let (held, more) = before;
                            assert!(held + more > total, "seed {seed}: refused without need");
                            assert_eq!(error, RunError::KvFull { more, held, total });
                            assert_eq!(cache.held, held);
                        }
                    }
                }
            }
            check(&cache, &model, seed);
        }
        (0..SLOTS).for_each(|slot| cache.truncate(slot, 0));
        assert_eq!(cache.held, 0, "seed {seed}");
    }

    fn check(cache: &Cache, model: &[Vec<u32>], seed: u64) {
        let blocks = cache.slots.iter().flat_map(|slot| &slot.blocks);
        let distinct: BTreeSet<_> = blocks.map(Arc::as_ptr).collect();
        assert_eq!(cache.held, distinct.len(), "seed {seed}: blocks leaked");
        assert!(cache.held <= cache.total, "seed {seed}");
        for (slot, tokens) in model.iter().enumerate() {
            let next = tokens.iter().max().map_or(0, |last| last + 1);
            assert_eq!((cache.len(slot), cache.next_place(slot)), (tokens.len(), next));
            let expect: Vec<Vec<f32>> =
                tokens.iter().map(|&token| row(token, 1)[2 * DIM..3 * DIM].to_vec()).collect();
            assert_eq!(values(cache, slot, 1, 2), expect, "seed {seed}, slot {slot}");
        }
    }

    #[test]
    fn attention_reads_what_was_stored() {
        let mut cache = cache(2, 200, None);
        cache.reserve(&[(0, 130)]).unwrap();
        append(&mut cache, 0, &[1; 130]);
        cache.fork(0, 1, 129);
        let mut out = [0.0; DIM];
        let rows = Rows { queries: &[0.01; DIM], dim: DIM, group: 1, start: 128 };
        rows.attend(Isa::detect(), &mut cache.head(1, 1, 2, 129), &mut out);
        assert_eq!(out[..], row(1, 1)[2 * DIM..]);
        assert_eq!((cache.len(1), cache.next_place(1), cache.usage().blocks_held), (129, 2, 3));
    }

    #[test]
    fn a_step_that_does_not_fit_changes_nothing() {
        let mut cache = cache(3, 200, Some(3));
        cache.reserve(&[(0, 100), (1, 10)]).unwrap();
        append(&mut cache, 0, &[1; 100]);
        append(&mut cache, 1, &[2; 10]);
        let full = RunError::KvFull { more: 1, held: 3, total: 3 };
        assert_eq!(cache.reserve(&[(1, 20), (2, 1)]), Err(full));
        assert_eq!(cache.slots[1].blocks.len(), 1);
        cache.fork(0, 2, 70);
        // Both write into the shared block: one copy is needed, and there is none.
        let full = RunError::KvFull { more: 1, held: 3, total: 3 };
        assert_eq!(cache.reserve(&[(0, 1), (2, 1)]), Err(full));
        cache.truncate(1, 0);
        cache.reserve(&[(0, 1), (2, 1)]).unwrap();
        assert_eq!(cache.usage().blocks_free(), 0);
    }
}
