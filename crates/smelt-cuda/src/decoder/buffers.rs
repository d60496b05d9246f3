//! Takes the memory that passes compute in, once, for as many rows as a pass may have.
//!
//! What products take lies in blocks of halves, whose columns are filled up; everything else is rows of floats.  Knows the
//! sizes of a model, not what is computed.

use std::sync::Arc;

use super::inputs::FEW_ROWS_MAX;
use super::memory::Arena;
use super::model::{Linear, Model};
use super::pages::PAGE_TOKENS;
use crate::DeviceAddress;
use crate::driver::{Driver, DriverError};
use crate::kernels::{activation_len, padded_columns};

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
    _arena: Arena,
}

/// Bytes of each buffer, in the order of the fields.
struct Sizes {
    parts_rows: usize,
    bytes: [u64; 13],
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
        let mut all = [DeviceAddress::NULL; 13];
        for (address, bytes) in all.iter_mut().zip(bytes) {
            *address = arena.take(bytes)?;
        }
        let [states, normed, sorted, sums, projected, queries, attended, ..] = all;
        let [.., middle, cosines, sines, parts, marks, logits] = all;
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
            _arena: arena,
        })
    }
}

fn sizes(model: &Model, rows: usize, logits: usize, tokens: usize) -> Sizes {
    let sizes = &model.sizes;
    let floats = |count: usize| (count * size_of::<f32>()) as u64;
    let halves = |columns: usize| (activation_len(rows, padded_columns(columns)) * 2) as u64;
    let widest = linears(model).map(|linear| linear.columns).max().unwrap_or(0);
    let groups = linears(model).filter(|linear| linear.form.has_mins);
    let groups = groups.map(|linear| padded_columns(linear.columns) / linear.form.group).max();
    let sorts = linears(model).any(|linear| linear.order.is_some());
    let pad = model.head_layout.pad();
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
    ];
    Sizes { parts_rows, bytes }
}

/// Rows of partial results of one key head: what the longest sequence of one token a step needs, and a fixed amount if
/// that is more, but no more than all of it.
fn parts_rows(model: &Model, tokens: usize) -> usize {
    let row_bytes = (model.head_layout.pad() + 2) * size_of::<f32>() * model.sizes.kv_heads;
    let longest = tokens.div_ceil(PAGE_TOKENS).next_power_of_two();
    let one = longest * model.group().min(FEW_ROWS_MAX);
    one.max((PARTS_BYTES / row_bytes).min(longest * FEW_ROWS_MAX * FEW_ROWS_MAX))
}

/// Every product of a model.
fn linears(model: &Model) -> impl Iterator<Item = &Linear> {
    let layers = model.layers.iter().flat_map(|layer| {
        let projections = layer.projections.iter().map(|projection| &projection.linear);
        projections.chain([&layer.output, &layer.gate_up, &layer.down])
    });
    layers.chain([&model.head])
}
