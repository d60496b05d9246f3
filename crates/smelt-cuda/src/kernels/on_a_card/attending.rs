//! Keys and values put into pages, and attention over them.

use smelt_backend::KvType;
use smelt_random::Random;

use super::{Bench, apart, bits};
use crate::kernels::attention::{
    Attend, PAGE_ROWS, Partials, attend_pages, attend_prompt, attend_together,
};
use crate::kernels::layout::{activation_len, padded_columns};
use crate::kernels::page::{HeadShape, PAGE_TOKENS};
use crate::kernels::rows::{Heads, LayerPages, Rotate, Rotations, rotate_and_keep, rotations};
use crate::owned::DeviceBuffer;
use crate::{DeviceAddress, Launch, Processors};

/// Layers of a page, and the one that is looked at.
const LAYERS: usize = 2;
const LAYER: usize = 1;

/// Tokens of one slot: how many are there before, and how many come.
#[derive(Clone, Copy)]
struct Slot {
    start: usize,
    tokens: usize,
    /// Where its pages begin in the tables.
    table: u32,
}

struct Trial<'a> {
    bench: &'a Bench,
    heads: Heads,
    slots: Vec<Slot>,
    /// Queries, keys and values of each slot's tokens, `[tokens, projected]`.
    data: Vec<Vec<f32>>,
    norms: [Vec<f32>; 2],
    frequencies: Vec<f32>,
    pages: LayerPages,
    /// What the pages lie in.
    pool: DeviceBuffer,
    _tables: DeviceBuffer,
}

/// What tokens on their way into pages lie in, and what is told of them.
struct Coming {
    rotate: Rotate,
    turning: Launch,
    queries: DeviceBuffer,
    _kept: Vec<DeviceBuffer>,
}

/// Attention of runs `(tokens before, tokens that come)`, all at once and page by page.
pub(super) fn check(
    bench: &Bench,
    shape: HeadShape,
    (queries, keys): (u32, u32),
    runs: &[(usize, usize)],
) {
    let heads = Heads { queries, keys, shape };
    let trial = Trial::new(bench, heads, runs);
    // Of long runs the last token comes to what is there; all come of short ones.
    for (index, [_, _, start, _]) in trial.few().into_iter().enumerate() {
        if start > 0 {
            trial.keep(&[(index, 0..start as usize)]);
        }
    }
    let coming: Vec<_> = trial
        .slots
        .iter()
        .enumerate()
        .map(|(index, slot)| (index, slot.start..slot.start + slot.tokens))
        .collect();
    let found = trial.together(&coming);
    let pages = bench.bytes(&trial.pool);
    let queries = trial.keep(&coming);
    assert!(bench.bytes(&trial.pool) == pages || found.is_empty(), "{shape:?}: pages differ");
    let whole = trial.at_once(&queries);
    for found in found {
        trial.equals(&found, &whole, "in one launch");
    }
    let bound = if shape.kind == KvType::Int8 { 2e-2 } else { 2e-3 };
    let expect: Vec<f64> = (0..trial.slots.len()).flat_map(|slot| trial.expect(slot)).collect();
    let off = apart(&whole, &expect);
    assert!(off < bound, "attention of {shape:?} is off by {off}");
    trial.page_by_page(&queries, &whole);
}

impl<'a> Trial<'a> {
    fn new(bench: &'a Bench, heads: Heads, runs: &[(usize, usize)]) -> Self {
        let mut random = Random::new(heads.shape.dim as u64 + runs.len() as u64);
        let (dim, width) = (heads.shape.dim, heads.projected());
        let count: usize = runs.iter().map(|(start, tokens)| pages(start + tokens)).sum();
        // Page 0 is nobody's.
        let mut numbers: Vec<u32> = (1..=count as u32).collect();
        random.shuffle(&mut numbers);
        let (mut slots, mut tables) = (Vec::new(), vec![0]);
        for &(start, tokens) in runs {
            slots.push(Slot { start, tokens, table: tables.len() as u32 });
            tables.extend(numbers.drain(..pages(start + tokens)));
        }
        let data =
            slots.iter().map(|slot| random.noise((slot.start + slot.tokens) * width)).collect();
        let norms = [(); 2].map(|()| (0..dim).map(|_| 0.5 + random.unit()).collect());
        let frequency = |pair: usize| 1e4_f64.powf(-2.0 * pair as f64 / dim as f64) as f32;
        let page_bytes = heads.shape.page_bytes(LAYERS, heads.keys as usize);
        let pool = bench.poisoned((count + 1) * page_bytes);
        let tables = bench.put_words(&tables);
        let pages = LayerPages {
            pool: pool.address().offset(heads.shape.layer_start(LAYER, heads.keys as usize) as u64),
            tables: tables.address(),
            page_bytes: page_bytes as u64,
        };
        let frequencies = (0..dim / 2).map(frequency).collect();
        Self { bench, heads, slots, data, norms, frequencies, pages, pool, _tables: tables }
    }

    /// The three places of a token, which turn the pairs of a head in turns.
    fn places(position: usize) -> [u32; 3] {
        [position as u32, position as u32 + 1, 2 * position as u32]
    }

    /// Puts some tokens of some slots into their pages; gives their queries.
    fn keep(&self, parts: &[(usize, std::ops::Range<usize>)]) -> DeviceBuffer {
        let coming = self.coming(parts);
        self.bench.run(&[coming.turning, rotate_and_keep(coming.rotate)]);
        coming.queries
    }

    /// Some tokens of some slots, on their way there.
    fn coming(&self, parts: &[(usize, std::ops::Range<usize>)]) -> Coming {
        let (bench, dim, width) = (self.bench, self.heads.shape.dim, self.heads.projected());
        let (mut all, mut places, mut tables, mut positions) = (vec![], vec![], vec![], vec![]);
        for (slot, range) in parts {
            for position in range.clone() {
                all.extend_from_slice(&self.data[*slot][position * width..(position + 1) * width]);
                places.extend(Self::places(position));
                tables.push(self.slots[*slot].table);
                positions.push(position as u32);
            }
        }
        let (tokens, pairs) = (positions.len(), dim / 2);
        let axes: Vec<u32> = (0..pairs as u32).map(|pair| pair % 3).collect();
        let [cosines, sines] = [(); 2].map(|()| bench.poisoned(tokens * pairs * 4));
        let queries = tokens * self.heads.queries as usize * self.heads.shape.padded() * 2;
        let queries = bench.poisoned(queries);
        let [all, frequencies, query_norm, key_norm] =
            [&all, &self.frequencies, &self.norms[0], &self.norms[1]]
                .map(|numbers| bench.put_floats(numbers));
        let [places, axes, tables, positions] =
            [&places, &axes, &tables, &positions].map(|words| bench.put_words(words));
        let turning = rotations(Rotations {
            cosines: cosines.address(),
            sines: sines.address(),
            places: places.address(),
            frequencies: frequencies.address(),
            axes: axes.address(),
            tokens: tokens as u32,
            pairs: pairs as u32,
            factor: 1.0,
        });
        let rotate = Rotate {
            queries: queries.address(),
            all: all.address(),
            stride: width as u32,
            query_norm: query_norm.address(),
            key_norm: key_norm.address(),
            cosines: cosines.address(),
            sines: sines.address(),
            row_tables: tables.address(),
            row_positions: positions.address(),
            pages: self.pages,
            tokens: tokens as u32,
            heads: self.heads,
            eps: 1e-6,
        };
        let floats = [all, frequencies, query_norm, key_norm, cosines, sines];
        let _kept = floats.into_iter().chain([places, axes, tables, positions]).collect();
        Coming { rotate, turning, queries, _kept }
    }

    fn tokens(&self) -> usize {
        self.slots.iter().map(|slot| slot.tokens).sum()
    }

    /// Numbers of a token that attends, and those that activations have.
    fn widths(&self) -> (usize, usize) {
        let width = self.heads.queries as usize * self.heads.shape.dim;
        (width, padded_columns(width))
    }

    /// The runs of all slots: first row, tokens, position of the first, pages.
    fn runs(&self) -> Vec<[u32; 4]> {
        let mut row = 0;
        let run = |slot: &Slot| {
            let run = [row, slot.tokens as u32, slot.start as u32, slot.table];
            row += slot.tokens as u32;
            run
        };
        self.slots.iter().map(run).collect()
    }

    fn attend(&self, out: DeviceAddress, queries: &DeviceBuffer, runs: DeviceAddress) -> Attend {
        Attend {
            out,
            queries: queries.address(),
            runs,
            count: 0,
            tokens_max: 0,
            pages: self.pages,
            tokens: self.tokens() as u32,
            heads: self.heads,
        }
    }

    /// What launches make of all tokens, `[tokens, heads * dim]`; nothing where there are none.
    fn attended(
        &self,
        runs: &[[u32; 4]],
        launches: impl Fn(Attend) -> Vec<Launch>,
        queries: &DeviceBuffer,
    ) -> Option<Vec<f32>> {
        let (width, columns) = self.widths();
        let out = self.bench.poisoned(activation_len(self.tokens(), columns) * 2);
        let list = self.bench.put_words(runs.as_flattened());
        let longest = runs.iter().map(|[_, tokens, ..]| *tokens).max().unwrap_or(0);
        let attend = Attend {
            count: runs.len() as u32,
            tokens_max: longest,
            ..self.attend(out.address(), queries, list.address())
        };
        let launches = launches(attend);
        if launches.is_empty() {
            return None;
        }
        self.bench.run(&launches);
        let all = self.bench.activations(&out, self.tokens(), columns);
        Some(all.chunks_exact(columns).flat_map(|row| &row[..width]).copied().collect())
    }

    fn at_once(&self, queries: &DeviceBuffer) -> Vec<f32> {
        let launches = |attend| vec![attend_prompt(attend, self.bench.processors())];
        self.attended(&self.runs(), launches, queries).expect("there is a launch")
    }

    /// Short runs, and the last token of each long one.
    fn few(&self) -> Vec<[u32; 4]> {
        let group = self.heads.group();
        let few = |[row, tokens, start, table]: [u32; 4]| {
            let skipped = if tokens * group <= PAGE_ROWS { 0 } else { tokens - 1 };
            [row + skipped, tokens - skipped, start + skipped, table]
        };
        self.runs().into_iter().map(few).collect()
    }

    /// Those, one without tokens as those that fill a batch, and the most pages and rows of any.
    fn filled(&self) -> (Vec<[u32; 4]>, u32, u32) {
        let mut runs = self.few();
        runs.push([0; 4]);
        let longest = runs.iter().map(|[_, tokens, ..]| *tokens).max().unwrap_or(0);
        let ends = runs.iter().map(|[_, tokens, start, _]| pages((start + tokens) as usize));
        let pages = ends.max().unwrap_or(0) as u32 + 1;
        (runs, pages, longest * self.heads.group())
    }

    /// What one launch makes of short runs, for several numbers of processors, by which pages are dealt otherwise; keys and
    /// values go into their pages.  Nothing where this device has no such launch, or it has no room.
    fn together(&self, parts: &[(usize, std::ops::Range<usize>)]) -> Vec<Vec<f32>> {
        let (runs, pages, rows) = self.filled();
        let coming = self.coming(parts);
        let mut found = Vec::new();
        self.bench.run(std::slice::from_ref(&coming.turning));
        for count in [1, 16, 50, 132, 1000] {
            let processors = Processors { count, ..self.bench.processors() };
            let together = |attend| {
                let launch = attend_together(attend, coming.rotate, (pages, rows), processors);
                launch.into_iter().collect::<Vec<_>>()
            };
            let launches = self.attended(&runs, together, &coming.queries);
            found.extend(launches);
        }
        found
    }

    /// Of short runs, and the last token of each long one, the bits are those of all at once.
    fn equals(&self, found: &[f32], whole: &[f32], how: &str) {
        let (width, shape) = (self.widths().0, self.heads.shape);
        for [row, tokens, start, _] in self.few() {
            let range = row as usize * width..(row + tokens) as usize * width;
            let is_same = bits(&found[range.clone()]) == bits(&whole[range]);
            assert!(is_same, "{shape:?}: {tokens} tokens at {start} have other bits {how}");
        }
    }

    fn page_by_page(&self, queries: &DeviceBuffer, whole: &[f32]) {
        let (runs, count, rows) = self.filled();
        let (parts, marks) = Partials::bytes(self.heads, runs.len() as u32, count, rows);
        let [parts, marks] = [parts, marks].map(|bytes| self.bench.poisoned(bytes as usize));
        let partials =
            Partials { parts: parts.address(), marks: marks.address(), pages: count, rows };
        // A warp for each page, and all pages of a head for few.
        for multiprocessors in [132, 1] {
            let launches = |attend| attend_pages(attend, partials, multiprocessors).to_vec();
            let found = self.attended(&runs, launches, queries).expect("there is a launch");
            self.equals(&found, whole, "page by page");
        }
    }

    /// Attention of a slot's tokens that come, by definition.
    fn expect(&self, slot: usize) -> Vec<f64> {
        let Slot { start, tokens, .. } = self.slots[slot];
        let Heads { queries, keys, shape: HeadShape { dim, .. } } = self.heads;
        let (queries, keys) = (queries as usize, keys as usize);
        let head = |position, head: usize| self.turned(slot, position, head);
        let all_keys: Vec<Vec<Vec<f64>>> = (0..keys)
            .map(|key| (0..start + tokens).map(|at| head(at, queries + key)).collect())
            .collect();
        let mut out = Vec::new();
        for position in start..start + tokens {
            for query_head in 0..queries {
                let (key_head, query) = (query_head * keys / queries, head(position, query_head));
                let dot = |key: &Vec<f64>| -> f64 {
                    key.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>() / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = all_keys[key_head][..=position].iter().map(dot).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mut row = vec![0.0; dim];
                for (at, weight) in weights.iter().enumerate() {
                    let value = self.raw(slot, at, queries + keys + key_head);
                    row.iter_mut()
                        .zip(value)
                        .for_each(|(row, value)| *row += weight / sum * f64::from(*value));
                }
                out.extend(row);
            }
        }
        out
    }

    fn raw(&self, slot: usize, position: usize, head: usize) -> &[f32] {
        let dim = self.heads.shape.dim;
        &self.data[slot][position * self.heads.projected() + head * dim..][..dim]
    }

    /// A head of queries or keys, normed and turned.
    fn turned(&self, slot: usize, position: usize, head: usize) -> Vec<f64> {
        let raw = self.raw(slot, position, head);
        let norm = &self.norms[usize::from(head >= self.heads.queries as usize)];
        let square: f64 = raw.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let root = (square / raw.len() as f64 + 1e-6).sqrt();
        let row: Vec<f64> =
            raw.iter().zip(norm).map(|(x, norm)| f64::from(*x) / root * f64::from(*norm)).collect();
        let (half, places) = (row.len() / 2, Self::places(position));
        let turn = |d: usize| {
            let pair = d % half;
            let angle = f64::from(self.frequencies[pair] * places[pair % 3] as f32);
            let other = if d < half { -row[d + half] } else { row[d - half] };
            row[d] * angle.cos() + other * angle.sin()
        };
        (0..row.len()).map(turn).collect()
    }
}

impl Heads {
    /// Numbers of queries, keys and values of a token.
    fn projected(self) -> usize {
        (self.queries + 2 * self.keys) as usize * self.shape.dim
    }
}

fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}
