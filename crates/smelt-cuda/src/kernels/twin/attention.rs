//! Attends page by page, and joins pages in their order.

use half::f16;
use smelt_backend::KvType;

use super::halves::{add_products, held, set_activation};
use super::rows::TokenHeads;
use super::{Given, number_at};
use crate::kernels::page::{HeadShape, KeyOrValue, PAGE_TOKENS};
use crate::recording::{Astray, TwinMemory};
use crate::{DeviceAddress, Launch};

/// Neighbouring tokens of a slot.
#[derive(Clone, Copy)]
struct Run {
    row: usize,
    tokens: usize,
    start: usize,
    table: usize,
}

/// What a page gives a row, or what pages so far did.
#[derive(Clone)]
struct Partial {
    out: Vec<f32>,
    largest: f32,
    sum: f32,
}

/// Where a layer's pages are.
struct Layer {
    shape: HeadShape,
    pool: DeviceAddress,
    tables: DeviceAddress,
    page_bytes: u64,
}

/// Keys and values of one head of one page, as halves.
struct PageHead {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

fn floats(halves: &[u16]) -> Vec<f32> {
    halves.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect()
}

fn runs(memory: &TwinMemory, at: DeviceAddress, count: usize) -> Result<Vec<Run>, Astray> {
    let words = memory.u32s(at, count * 4)?;
    let (runs, _) = words.as_chunks::<4>();
    let run = |run: &[u32; 4]| {
        let [row, tokens, start, table] = run.map(|word| word as usize);
        Run { row, tokens, start, table }
    };
    Ok(runs.iter().map(run).collect())
}

impl Layer {
    /// Of a launch whose arguments from `first` on are the pool, tables and bytes of a page.
    fn given(given: Given<'_>, first: usize, shape: HeadShape) -> Self {
        let (pool, tables) = (given.address(first), given.address(first + 1));
        Self { shape, pool, tables, page_bytes: given.wide(first + 2) }
    }

    /// A page's head, of which the first `end` positions are read.
    fn head(
        &self,
        memory: &TwinMemory,
        page: usize,
        kv_head: usize,
        end: usize,
    ) -> Result<PageHead, Astray> {
        let page = memory.u32s(number_at(self.tables, page), 1)?[0];
        let start = u64::from(page) * self.page_bytes + (kv_head * self.shape.bytes()) as u64;
        let head = self.pool.offset(start);
        let rows = |which| {
            let row = |position| {
                if position >= end {
                    return Ok(vec![0.0; self.shape.padded()]);
                }
                (0..self.shape.padded())
                    .map(|d| self.number(memory, head, which, (position, d)))
                    .collect()
            };
            (0..PAGE_TOKENS).map(row).collect::<Result<Vec<Vec<f32>>, Astray>>()
        };
        Ok(PageHead { keys: rows(KeyOrValue::Key)?, values: rows(KeyOrValue::Value)? })
    }

    fn number(
        &self,
        memory: &TwinMemory,
        head: DeviceAddress,
        which: KeyOrValue,
        (position, d): (usize, usize),
    ) -> Result<f32, Astray> {
        let at = head.offset(self.shape.number_at(which, position, d) as u64);
        if self.shape.kind == KvType::Int8 {
            let level = memory.read(at, 1)?[0].cast_signed();
            let scale_at = head.offset(self.shape.scale_at(which, position) as u64);
            let scale = memory.f32s(scale_at, 1)?[0];
            return Ok(held(f32::from(level) * scale).to_f32());
        }
        Ok(f16::from_bits(memory.u16s(at, 1)?[0]).to_f32())
    }
}

/// What a query makes of a page of which it sees the first `visible` positions.
fn attend(query: &[f32], page: &PageHead, visible: usize) -> Partial {
    let score = |(position, key): (usize, &Vec<f32>)| {
        let steps = query.chunks(16).zip(key.chunks(16));
        let score = steps.fold(0.0, |chain, (query, key)| {
            add_products(chain, query.iter().copied().zip(key.iter().copied()))
        });
        if position >= visible { f32::NEG_INFINITY } else { score }
    };
    let scores: Vec<f32> = page.keys.iter().enumerate().map(score).collect();
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let down = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    let weights: Vec<f32> = scores.iter().map(|score| (score - down).exp2()).collect();
    // Four lanes have two neighbouring positions of each eight.
    let lane = |t: usize| (0..16).fold(0.0, |sum, at| sum + weights[at / 2 * 8 + t * 2 + at % 2]);
    let sum = (lane(0) + lane(1)) + (lane(2) + lane(3));
    let halves: Vec<f32> = weights.iter().map(|weight| f16::from_f32(*weight).to_f32()).collect();
    let number = |d: usize| {
        (0..PAGE_TOKENS).step_by(16).fold(0.0, |chain, first| {
            let products =
                (first..first + 16).map(|position| (halves[position], page.values[position][d]));
            add_products(chain, products)
        })
    };
    Partial { out: (0..query.len()).map(number).collect(), largest, sum }
}

impl Partial {
    fn nothing(len: usize) -> Self {
        Self { out: vec![0.0; len], largest: f32::NEG_INFINITY, sum: 0.0 }
    }

    /// Joins what the next page gave.
    fn join(&mut self, now: &Self) {
        let largest = self.largest.max(now.largest);
        let before = (self.largest - largest).exp2();
        let factor = (now.largest - largest).exp2();
        let joined = |before_part: f32, part: f32| before_part.mul_add(before, part * factor);
        self.sum = joined(self.sum, now.sum);
        self.out.iter_mut().zip(&now.out).for_each(|(out, part)| *out = joined(*out, *part));
        self.largest = largest;
    }
}

/// What is true of a launch's rows.
struct Rows {
    heads: usize,
    kv_heads: usize,
    tokens: usize,
}

impl Rows {
    /// Of a launch whose arguments from `first` on are tokens, heads and key heads.
    fn given(given: Given<'_>, first: usize) -> Self {
        let [tokens, heads, kv_heads] = [0, 1, 2].map(|at| given.count(first + at));
        Self { heads, kv_heads, tokens }
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn query(
        &self,
        memory: &TwinMemory,
        queries: DeviceAddress,
        (row, head): (usize, usize),
        padded: usize,
    ) -> Result<Vec<f32>, Astray> {
        let at = (row * self.heads + head) * padded;
        Ok(floats(&memory.u16s(queries.offset(at as u64 * 2), padded)?))
    }

    /// Attention of a run over all of its pages; `query` gives the numbers of a head of one of its tokens.
    fn attend(
        &self,
        memory: &mut TwinMemory,
        layer: &Layer,
        run: Run,
        query: impl Fn(&TwinMemory, usize, usize) -> Result<Vec<f32>, Astray>,
        (out, dim): (DeviceAddress, usize),
    ) -> Result<(), Astray> {
        let (end, group) = (run.start + run.tokens, self.group());
        for kv_head in 0..self.kv_heads {
            let pages = (0..end.div_ceil(PAGE_TOKENS)).map(|page| {
                layer.head(memory, run.table + page, kv_head, end - page * PAGE_TOKENS)
            });
            let pages: Vec<PageHead> = pages.collect::<Result<_, _>>()?;
            for at in 0..run.tokens * group {
                let (token, head) = (at / group, kv_head * group + at % group);
                let (query, seen) = (query(memory, token, head)?, run.start + token + 1);
                let mut so_far = Partial::nothing(layer.shape.padded());
                for (page, first) in pages.iter().zip((0..seen).step_by(PAGE_TOKENS)) {
                    so_far.join(&attend(&query, page, (seen - first).min(PAGE_TOKENS)));
                }
                self.put(memory, out, (run.row + token, head), (&so_far, dim))?;
            }
        }
        Ok(())
    }

    /// Writes a head's numbers as activations.
    fn put(
        &self,
        memory: &mut TwinMemory,
        out: DeviceAddress,
        (row, head): (usize, usize),
        (partial, dim): (&Partial, usize),
    ) -> Result<(), Astray> {
        let inverse = 1.0 / partial.sum;
        for d in 0..dim {
            let number = partial.out[d] * inverse + 0.0;
            set_activation(memory, out, (head * dim + d, row, self.tokens), number)?;
        }
        Ok(())
    }
}

pub(super) fn prompt(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let layer = Layer::given(given, 3, shape);
    let rows = Rows::given(given, 6);
    for run in runs(memory, given.address(2), launch.grid[2] as usize)? {
        let query = |memory: &TwinMemory, token, head| {
            rows.query(memory, given.address(1), (run.row + token, head), shape.padded())
        };
        rows.attend(memory, &layer, run, query, (given.address(0), given.count(9)))?;
    }
    Ok(())
}

/// All of attention of few rows: queries, keys and values come from the product before.
pub(super) fn together(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let layer = Layer::given(given, 7, shape);
    let rows = Rows::given(given, 10);
    for run in runs(memory, given.address(6), launch.grid[2] as usize)? {
        let mut queries = Vec::new();
        for token in 0..run.tokens {
            let heads = TokenHeads {
                shape,
                token: run.row + token,
                all: given.address(1),
                stride: given.count(14),
                heads: [rows.heads, rows.kv_heads],
                norms: [given.some(2), given.some(3)],
                cosines: given.address(4),
                sines: given.address(5),
                eps: given.float(15),
                query_scale: given.float(16),
                table: run.table,
                position: run.start + token,
                pool: layer.pool,
                tables: layer.tables,
                page_bytes: layer.page_bytes,
            };
            queries.push(heads.take(memory)?);
        }
        let query = |_: &TwinMemory, token: usize, head: usize| Ok(floats(&queries[token][head]));
        rows.attend(memory, &layer, run, query, (given.address(0), given.count(13)))?;
    }
    Ok(())
}

/// Where the partial result of a row lies among those of a launch.
struct PartPlace {
    kv_heads: usize,
    pages: usize,
    rows: usize,
}

impl PartPlace {
    fn of(&self, run: usize, kv_head: usize, page: usize, row: usize) -> usize {
        ((run * self.kv_heads + kv_head) * self.pages + page) * self.rows + row
    }
}

pub(super) fn pages(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let layer = Layer::given(given, 4, shape);
    let rows = Rows { tokens: 0, heads: given.count(7), kv_heads: given.count(8) };
    let (pages, count) = (given.count(10), launch.grid[2] as usize);
    let place = PartPlace { kv_heads: rows.kv_heads, pages, rows: given.count(9) };
    for (index, run) in runs(memory, given.address(3), count)?.into_iter().enumerate() {
        let end = if run.tokens == 0 { 0 } else { run.start + run.tokens };
        for (page, first) in (0..pages).zip((0..end).step_by(PAGE_TOKENS)) {
            for kv_head in 0..rows.kv_heads {
                let own = layer.head(memory, run.table + page, kv_head, end - first)?;
                for at in 0..run.tokens * rows.group() {
                    let (token, inside) = (at / rows.group(), at % rows.group());
                    let head = kv_head * rows.group() + inside;
                    let query = (run.row + token, head);
                    let query = rows.query(memory, given.address(2), query, shape.padded())?;
                    let visible = (run.start + token + 1).saturating_sub(first).min(PAGE_TOKENS);
                    let partial = attend(&query, &own, visible);
                    let at = place.of(index, kv_head, page, at);
                    let marks = [partial.largest, partial.sum];
                    memory.set_f32s(number_at(given.address(1), at * 2), &marks)?;
                    let parts = number_at(given.address(0), at * shape.padded());
                    memory.set_f32s(parts, &partial.out)?;
                }
            }
        }
    }
    Ok(())
}

pub(super) fn join(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let rows = Rows::given(given, 4);
    let place = PartPlace { kv_heads: rows.kv_heads, pages: given.count(9), rows: given.count(8) };
    let count = launch.grid[2] as usize;
    for (index, run) in runs(memory, given.address(3), count)?.into_iter().enumerate() {
        for (token, head) in
            (0..run.tokens * rows.heads).map(|at| (at / rows.heads, at % rows.heads))
        {
            let (kv_head, row) = (head / rows.group(), token * rows.group() + head % rows.group());
            let mut so_far = Partial::nothing(shape.padded());
            for page in 0..(run.start + token + 1).div_ceil(PAGE_TOKENS) {
                let at = place.of(index, kv_head, page, row);
                let marks = memory.f32s(number_at(given.address(2), at * 2), 2)?;
                let parts = number_at(given.address(1), at * shape.padded());
                let out = memory.f32s(parts, shape.padded())?;
                so_far.join(&Partial { out, largest: marks[0], sum: marks[1] });
            }
            let to = (run.row + token, head);
            rows.put(memory, given.address(0), to, (&so_far, given.count(7)))?;
        }
    }
    Ok(())
}
