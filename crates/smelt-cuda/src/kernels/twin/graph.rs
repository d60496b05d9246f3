//! Does what graphs compute beside products.

use half::{bf16, f16};

use super::halves::{activation, add_products, held, set_activation};
use super::rows::{stored, warp_sum};
use super::{Given, number_at};
use crate::kernels::form::Levels;
use crate::kernels::graph::{MAP_OPERANDS, packed_halves};
use crate::kernels::layout::{STRIP_ROWS, level_at, padded_columns};
use crate::kernels::page::{HeadShape, PAGE_TOKENS};
use crate::kernels::rows::NumberKind;
use crate::recording::{Astray, TwinMemory};
use crate::{DeviceAddress, Launch};

/// One number of those that lie somewhere.
fn one(
    memory: &TwinMemory,
    base: DeviceAddress,
    kind: NumberKind,
    at: usize,
) -> Result<f32, Astray> {
    Ok(stored(memory, base, kind, (at, 1))?[0])
}

fn kind(given: Given<'_>, at: usize) -> NumberKind {
    NumberKind::of_word(given.count(at) as u32)
}

pub(super) fn pack(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (by_row, by_column) = (given.wide(2) as usize, given.wide(3) as usize);
    let (rows, columns) = (given.count(6), given.count(7));
    let padded = padded_columns(columns);
    let mut halves = vec![0; packed_halves([rows as u32, columns as u32]) as usize];
    for row in 0..rows {
        for column in 0..columns {
            let from = row * by_row + column * by_column;
            let number = one(memory, given.address(1), kind(given, 5), from)?;
            let (byte, _) = level_at(Levels::Half, row % STRIP_ROWS, column);
            halves[row / STRIP_ROWS * STRIP_ROWS * padded + byte / 2] = held(number).to_bits();
        }
    }
    memory.set_u16s(given.address(0), &halves)
}

/// The sum over a row by a warp: each lane's over the runs of eight numbers that it takes, then over lanes.
fn by_lanes(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; 32];
    for (run, numbers) in x.chunks(8).enumerate() {
        numbers.iter().for_each(|number| lanes[run % 32] = add(lanes[run % 32], *number));
    }
    warp_sum(&lanes)
}

pub(super) fn norm(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (width, columns, is_centred) = (given.count(5), given.count(6), given.count(8) == 1);
    let vector = |at| given.some(at).map(|vector| memory.f32s(vector, width)).transpose();
    let (scale, bias) = (vector(2)?, vector(3)?);
    for row in 0..given.count(4) {
        let x = memory.f32s(number_at(given.address(1), row * width), width)?;
        let mean = if is_centred { by_lanes(&x, |sum, x| sum + x) / width as f32 } else { 0.0 };
        let squares = by_lanes(&x, |sum, x| (x - mean).mul_add(x - mean, sum));
        let inverse = 1.0 / (squares / width as f32 + given.float(9)).sqrt();
        let value = |k: usize| {
            let own = (x[k] - mean) * inverse;
            let own = scale.as_ref().map_or(own, |scale| own * scale[k]);
            bias.as_ref().map_or(own, |bias| own + bias[k])
        };
        let values: Vec<f32> = (0..width).map(value).collect();
        if columns == 0 {
            memory.set_f32s(number_at(given.address(0), row * width), &values)?;
        }
        for k in 0..columns {
            let value = values.get(k).copied().unwrap_or(0.0);
            let rows = given.count(7) * 8;
            set_activation(memory, given.address(0), (k, row, rows), value)?;
        }
    }
    Ok(())
}

pub(super) fn arrange(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (heads, rows, numbers, eights) =
        (given.count(8), given.count(9), given.count(10), given.count(11));
    let all = given.wide(6) as usize / (shape.padded() / 8) / rows;
    let steps = [2, 3, 4, 5].map(|at| given.wide(at) as usize);
    for (head, row) in (0..all).flat_map(|head| (0..rows).map(move |row| (head, row))) {
        let first = head / heads * steps[0] + head % heads * steps[1] + row * steps[2];
        for d in 0..shape.padded() {
            let number = match d < numbers {
                true => one(memory, given.address(1), kind(given, 7), first + d * steps[3])?,
                false => 0.0,
            };
            let at = (head % heads * shape.padded() + d, head / heads * rows + row, eights * 8);
            set_activation(memory, given.address(0), at, number)?;
        }
    }
    Ok(())
}

/// Heads in activations.
#[derive(Clone, Copy)]
struct HeadBlocks {
    halves: DeviceAddress,
    eights: usize,
    first: usize,
    by_head: usize,
    numbers: usize,
}

impl HeadBlocks {
    /// The heads whose arguments begin at `at`.
    fn of(given: Given<'_>, at: usize, numbers: usize) -> Self {
        let [eights, first, by_head] = [1, 2, 3].map(|next| given.count(at + next));
        Self { halves: given.address(at), eights, first, by_head, numbers }
    }

    fn row(&self, memory: &TwinMemory, head: usize, token: usize) -> Result<Vec<f32>, Astray> {
        let first = self.first + head * self.by_head;
        let number = |k| activation(memory, self.halves, (k, token, self.eights * 8));
        (first..first + self.numbers).map(number).collect()
    }
}

/// What a query has of the pages so far.
struct SoFar {
    out: Vec<f32>,
    largest: f32,
    /// Of each of the four lanes that share a query.
    sums: [f32; 4],
}

impl SoFar {
    /// Adds a page's values by its scores, which are exponents of two times `factor`.
    fn add(&mut self, scores: &[f32], values: &[Vec<f32>], factor: f32) {
        let largest = scores.iter().copied().fold(self.largest, f32::max);
        let down = if largest == f32::NEG_INFINITY { 0.0 } else { largest } * -factor;
        let before = self.largest.mul_add(factor, down).exp2();
        self.largest = largest;
        let weights: Vec<f32> =
            scores.iter().map(|score| score.mul_add(factor, down).exp2()).collect();
        for (lane, sum) in self.sums.iter_mut().enumerate() {
            let pairs = (0..PAGE_TOKENS / 8).map(|eight| eight * 8 + lane * 2);
            *sum = pairs.fold(*sum * before, |sum, at| sum + (weights[at] + weights[at + 1]));
        }
        for (d, out) in self.out.iter_mut().enumerate() {
            *out = (0..PAGE_TOKENS).step_by(16).fold(*out * before, |chain, first| {
                let half = |at: usize| f16::from_f32(weights[at]).to_f32();
                add_products(chain, (first..first + 16).map(|at| (half(at), values[at][d])))
            });
        }
    }

    fn sum(&self) -> f32 {
        (self.sums[0] + self.sums[1]) + (self.sums[2] + self.sums[3])
    }
}

/// The score of a query and a key: a chain of products of 16 numbers.
fn score(query: &[f32], key: &[f32]) -> f32 {
    let steps = query.chunks(16).zip(key.chunks(16));
    steps.fold(0.0, |chain, (query, key)| {
        add_products(chain, query.iter().copied().zip(key.iter().copied()))
    })
}

pub(super) fn attend(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (queries, keys, heads, width, eights) =
        (given.count(20), given.count(21), given.count(22), given.count(24), given.count(25));
    let part = |at, numbers| HeadBlocks::of(given, at, given.count(numbers));
    let (own_queries, own_keys, own_values) = (part(1, 23), part(5, 23), part(9, 24));
    let (factor, steps) = (given.float(19), [14, 15, 16, 17].map(|at| given.wide(at) as usize));
    for head in 0..launch.grid[2] as usize * heads {
        let (batch, own) = (head / heads, head % heads);
        for row in 0..queries {
            let token = batch * queries + row;
            let query = own_queries.row(memory, own, token)?;
            let mask = |key: usize, score: f32| {
                let Some(mask) = given.some(13) else { return Ok(score) };
                let from = batch * steps[0] + own * steps[1] + row * steps[2] + key * steps[3];
                let more = one(memory, mask, kind(given, 18), from)?;
                let sum = more.mul_add(std::f32::consts::LOG2_E, score * factor);
                Ok(if sum < f32::MIN { f32::MIN } else { sum })
            };
            let mut so_far =
                SoFar { out: vec![0.0; width], largest: f32::NEG_INFINITY, sums: [0.0; 4] };
            for first in (0..keys).step_by(PAGE_TOKENS) {
                let mut scores = vec![f32::NEG_INFINITY; PAGE_TOKENS];
                let mut values = vec![vec![0.0; width]; PAGE_TOKENS];
                for key in first..keys.min(first + PAGE_TOKENS) {
                    let place = batch * keys + key;
                    let plain = score(&query, &own_keys.row(memory, own, place)?);
                    scores[key - first] = mask(key, plain)?;
                    values[key - first] = own_values.row(memory, own, place)?;
                }
                so_far.add(&scores, &values, if given.some(13).is_some() { 1.0 } else { factor });
            }
            let inverse = 1.0 / so_far.sum();
            for d in 0..width {
                let (value, k) = (so_far.out[d] * inverse + 0.0, own * width + d);
                if eights > 0 {
                    set_activation(memory, given.address(0), (k, token, eights * 8), value)?;
                } else {
                    let at = token * heads * width + k;
                    memory.set_f32s(number_at(given.address(0), at), &[value])?;
                }
            }
        }
    }
    Ok(())
}

/// The error function: its series, of which nothing is left to see behind 4.
fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    if x.abs() > 4.0 {
        return x.signum() as f32;
    }
    let (mut sum, mut term) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    (sum * std::f64::consts::FRAC_2_SQRT_PI) as f32
}

/// What an operator of a chain gives.
pub(super) fn link(op: usize, a: f32, b: f32) -> f32 {
    let half = |a: f32, turn: f32| 0.5 * a * (1.0 + turn);
    match op {
        0 => a.abs(),
        1 => a.sqrt(),
        2 => 1.0 / a,
        3 => a.cos(),
        4 => a.sin(),
        5 => erf(a),
        6 => a.tanh(),
        7 => 1.0 / (1.0 + (-a).exp()),
        8 => a.exp(),
        9 => -a,
        10 => half(a, erf(a * std::f32::consts::FRAC_1_SQRT_2)),
        11 => half(a, ((a + a * a * a * 0.044_715) * 0.797_884_6).tanh()),
        12 => f16::from_f32(a).to_f32(),
        13 => bf16::from_f32(a).to_f32(),
        16 => a + b,
        17 => a - b,
        18 => a * b,
        19 => a / b,
        20 if b == 2.0 => a * a,
        20 if b == 3.0 => a * a * a,
        20 => a.powf(b),
        21 => a.min(b),
        _ => a.max(b),
    }
}

/// Where number `index` lies by steps.
fn place(mut index: usize, sizes: &[u32], steps: &[u32]) -> usize {
    let mut place = 0;
    for (size, step) in sizes.iter().zip(steps).rev() {
        place += index % *size as usize * *step as usize;
        index /= *size as usize;
    }
    place
}

pub(super) fn map(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let after = 1 + MAP_OPERANDS;
    let (count, columns, eights) =
        (given.count(after + 2), given.count(after + 3), given.count(after + 4));
    let words = memory.u32s(given.address(after), given.count(after + 1))?;
    let (head, rest) = words.split_at(3);
    let [dims, operands, links] = [head[0], head[1], head[2]].map(|word| word as usize);
    let (sizes, rest) = rest.split_at(dims);
    let (out_steps, rest) = rest.split_at(dims);
    let (reads, rest) = rest.split_at(operands * (1 + dims));
    for index in 0..count {
        let mut values = Vec::with_capacity(operands + links);
        for (operand, read) in reads.chunks_exact(1 + dims).enumerate() {
            values.push(match read[0] {
                3 => f32::from_bits(read[1]),
                word => {
                    let (base, kind) = (given.address(1 + operand), NumberKind::of_word(word));
                    one(memory, base, kind, place(index, sizes, &read[1..]))?
                }
            });
        }
        for words in rest.chunks_exact(3).take(links) {
            let of = |word: u32| match word as usize {
                operand @ 0..16 => values[operand],
                link => values[operands + link - 16],
            };
            values.push(link(words[0] as usize, of(words[1]), of(words[2])));
        }
        let value = if links == 0 { values[0] } else { values[operands + links - 1] };
        if columns == 0 {
            let at = number_at(given.address(0), place(index, sizes, out_steps));
            memory.set_f32s(at, &[value])?;
        } else {
            let at = (index % columns, index / columns, eights * 8);
            set_activation(memory, given.address(0), at, value)?;
        }
    }
    Ok(())
}

pub(super) fn gather(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (size, count, inner) = (given.count(5), given.count(6), given.count(7));
    let indices = memory.u32s(given.address(2), count)?;
    for row in 0..given.wide(3) as usize / inner {
        let from = row / count * size + indices[row % count] as usize;
        let numbers = stored(memory, given.address(1), kind(given, 4), (from * inner, inner))?;
        memory.set_f32s(number_at(given.address(0), row * inner), &numbers)?;
    }
    Ok(())
}
