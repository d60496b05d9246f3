//! Takes the memory that passes compute in, once, for as many rows as a pass may have.
//!
//! What products take lies in blocks of halves, whose columns are filled up; everything else is rows of floats.  Knows the
//! sizes of a model, not what is computed.

use std::sync::Arc;

use super::choices::ListPlaces;
use super::inputs::FEW_ROWS_MAX;
use super::memory::Arena;
use super::model::Model;
use super::pages::PAGE_TOKENS;
use crate::DeviceAddress;
use crate::driver::{Driver, DriverError, Stream};
use crate::kernels::choose::{ChooseBuffers, RESULT_BYTES, ROW_FACTS_BYTES, blocks};
use crate::kernels::layout::{activation_len, padded_columns};

/// Bytes of partial results of attention, where longest sequences do not want more: as many as 32 sequences of some
/// thousand tokens have at once.
const PARTS_BYTES: usize = 64 << 20;

/// The memory that passes compute in.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Most rows of a pass.
    pub(super) rows_max: usize,
    /// Rows of partial results that there is room for, of one key head.
    pub(super) parts_rows: usize,
    /// The states of tokens, `[rows, hidden]` floats.
    pub(super) states: DeviceAddress,
    /// What a product takes, blocks of halves.
    pub(super) normed: DeviceAddress,
    /// The same in the order of sorted columns.
    pub(super) sorted: DeviceAddress,
    /// Sums of groups of what a product takes.
    pub(super) sums: DeviceAddress,
    /// Queries, keys and values, `[rows, projected]` floats.
    pub(super) projected: DeviceAddress,
    /// Queries as attention takes them, halves.
    pub(super) queries: DeviceAddress,
    /// What attention gives, blocks of halves.
    pub(super) attended: DeviceAddress,
    /// What stands inside the MLP, blocks of halves.
    pub(super) middle: DeviceAddress,
    /// Cosines and sines of each row's place, `[rows, head_dim / 2]` floats each.
    pub(super) cosines: DeviceAddress,
    pub(super) sines: DeviceAddress,
    /// Partial results of attention, and their marks.
    pub(super) parts: DeviceAddress,
    pub(super) marks: DeviceAddress,
    /// `[rows of logits, vocab]` floats.
    pub(super) logits: DeviceAddress,
    /// What choosing tokens works in, without what is asked.
    choosing: ChooseBuffers,
    /// Every buffer and its bytes.
    all: [(DeviceAddress, u64); COUNT],
    _arena: Arena,
}

/// Buffers there are.
const COUNT: usize = 21;

/// Bytes of each buffer, in the order of the fields.
struct Sizes {
    parts_rows: usize,
    bytes: [u64; COUNT],
}

impl Buffers {
    /// For passes of `rows` rows and `logits` rows of logits at once, of sequences of at most `tokens` tokens.
    ///
    /// # Errors
    /// [`DriverError`] where the card has no room for them.
    pub(super) fn new(
        driver: &Arc<dyn Driver>,
        model: &Model,
        rows: usize,
        logits: usize,
        tokens: usize,
    ) -> Result<Self, DriverError> {
        let Sizes { parts_rows, bytes } = sizes(model, rows, logits, tokens);
        let mut arena = Arena::new(driver, bytes.iter().map(|bytes| Arena::aligned(*bytes)).sum());
        let mut all = [(DeviceAddress::NULL, 0); COUNT];
        for (place, bytes) in all.iter_mut().zip(bytes) {
            *place = (arena.take(bytes)?, bytes);
        }
        let at = all.map(|(address, _)| address);
        let [states, normed, sorted, sums, projected, queries, attended, ..] = at;
        let [.., middle, cosines, sines, parts, marks, logits, _, _, _, _, _, _, _, _] = at;
        let [.., rows_own, allowed, lengths, faults, _, _, _, _] = at;
        let [.., largest, weights, facts, results] = at;
        let none = DeviceAddress::NULL;
        let choosing = ChooseBuffers {
            logits,
            choices: none,
            biases: none,
            counts: none,
            masks: none,
            rows: rows_own,
            allowed,
            lengths,
            faults,
            largest,
            weights,
            facts,
            results,
            next: none,
        };
        Ok(Self {
            rows_max: rows,
            parts_rows,
            states,
            normed,
            sorted,
            sums,
            projected,
            queries,
            attended,
            middle,
            cosines,
            sines,
            parts,
            marks,
            logits,
            choosing,
            all,
            _arena: arena,
        })
    }

    /// Puts on the stream that all of them become zero, which some have to be before the first pass.
    ///
    /// # Errors
    /// [`DriverError`].
    pub(super) fn clear(&self, driver: &dyn Driver, stream: Stream) -> Result<(), DriverError> {
        let filled = self.all.iter().filter(|(_, bytes)| *bytes > 0);
        filled.into_iter().try_for_each(|(at, bytes)| driver.memset(stream, *at, 0, *bytes))
    }

    /// What choosing tokens needs, of what is asked at `lists`.
    pub(super) fn choosing(&self, lists: ListPlaces) -> ChooseBuffers {
        let ListPlaces { choices, biases, counts, masks } = lists;
        ChooseBuffers { choices, biases, counts, masks, ..self.choosing }
    }
}

fn sizes(model: &Model, rows: usize, logits: usize, tokens: usize) -> Sizes {
    let sizes = &model.sizes;
    let floats = |count: usize| (count * size_of::<f32>()) as u64;
    let halves = |columns: usize| (activation_len(rows, padded_columns(columns)) * 2) as u64;
    let widest = model.linears().map(|linear| linear.columns).max().unwrap_or(0);
    let groups = model.linears().map(|linear| linear.weight);
    let groups = groups.filter(|weight| weight.form.has_mins);
    let groups = groups.map(|weight| weight.columns as usize / weight.form.group).max();
    let sorts = model.linears().any(|linear| linear.order.is_some());
    let pad = model.heads.shape.padded();
    let parts_rows = parts_rows(model, tokens);
    let parts = parts_rows * sizes.kv_heads;
    let bytes = [
        floats(rows * sizes.hidden),
        halves(sizes.hidden),
        if sorts { halves(widest) } else { 0 },
        floats(groups.unwrap_or(0) * rows.next_multiple_of(8)),
        floats(rows * model.projected()),
        (rows * sizes.heads * pad * 2) as u64,
        halves(model.attended()),
        halves(sizes.intermediate.next_multiple_of(8)),
        floats(rows * sizes.head_dim / 2),
        floats(rows * sizes.head_dim / 2),
        floats(parts * pad),
        floats(parts * 2),
        floats(logits * sizes.vocab),
        floats(logits * sizes.vocab),
        floats(logits * sizes.vocab),
        floats(logits),
        floats(logits),
        floats(logits * 2 * blocks(sizes.vocab)),
        floats(logits * 2 * blocks(sizes.vocab)),
        (logits * ROW_FACTS_BYTES) as u64,
        (logits * RESULT_BYTES) as u64,
    ];
    Sizes { parts_rows, bytes }
}

/// Rows of partial results of one key head: what the longest sequence of one token a step needs, and a fixed amount if
/// that is more, but no more than all of it.
fn parts_rows(model: &Model, tokens: usize) -> usize {
    let row_bytes = (model.heads.shape.padded() + 2) * size_of::<f32>() * model.sizes.kv_heads;
    let longest = tokens.div_ceil(PAGE_TOKENS).next_power_of_two();
    let one = longest * model.group().min(FEW_ROWS_MAX);
    one.max((PARTS_BYTES / row_bytes).min(longest * FEW_ROWS_MAX * FEW_ROWS_MAX))
}
