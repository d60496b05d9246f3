//! Does what graphs compute beside products.

use half::{bf16, f16};

use super::attention::{PageHead, Partial, attend_through};
use super::halves::{held, set_activation};
use super::rows::{stored, warp_sum};
use super::{Given, number_at};
use crate::kernels::form::Levels;
use crate::kernels::graph::{MAP_OPERANDS, packed_halves};
use crate::kernels::layout::{STRIP_ROWS, level_at, padded_columns};
use crate::kernels::page::{HeadShape, KeyOrValue, PAGE_TOKENS};
use crate::kernels::rows::{NumberKind, ROW_THREADS};
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

/// The sum of what threads have, by warps and then in their order.
fn block_sum(threads: &[f32]) -> f32 {
    threads.chunks(32).fold(0.0, |all, lanes| all + warp_sum(lanes))
}

/// Each thread's sum over the runs of eight numbers that it takes.
fn by_threads(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut threads = vec![0.0_f32; ROW_THREADS as usize];
    for (run, numbers) in x.chunks(8).enumerate() {
        let own = &mut threads[run % ROW_THREADS as usize];
        numbers.iter().for_each(|number| *own = add(*own, *number));
    }
    block_sum(&threads)
}

pub(super) fn norm(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (width, columns, is_centred) = (given.count(4), given.count(5), given.count(7) == 1);
    let vector = |at| given.some(at).map(|vector| memory.f32s(vector, width)).transpose();
    let (scale, bias) = (vector(2)?, vector(3)?);
    let rows = launch.grid[0] as usize;
    for row in 0..rows {
        let x = memory.f32s(number_at(given.address(1), row * width), width)?;
        let mean = if is_centred { by_threads(&x, |sum, x| sum + x) / width as f32 } else { 0.0 };
        let squares = by_threads(&x, |sum, x| (x - mean).mul_add(x - mean, sum));
        let inverse = 1.0 / (squares / width as f32 + given.float(8)).sqrt();
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
            let rows = given.count(6) * 8;
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
    let (heads, rows, numbers, form) =
        (given.count(8), given.count(9), given.count(10), given.count(11));
    let all = given.wide(6) as usize / (shape.padded() / 8) / rows;
    let steps = [2, 3, 4, 5].map(|at| given.wide(at) as usize);
    for head in 0..all {
        let first = head / heads * steps[0] + head % heads * steps[1];
        for row in 0..rows {
            for d in 0..shape.padded() {
                let from = first + row * steps[2] + d * steps[3];
                let number = if d < numbers {
                    one(memory, given.address(1), kind(given, 7), from)? * given.float(12)
                } else {
                    0.0
                };
                let page = head * rows.div_ceil(PAGE_TOKENS) + row / PAGE_TOKENS;
                let in_page =
                    |which| page * shape.bytes() + shape.number_at(which, row % PAGE_TOKENS, d);
                let byte = match form {
                    0 => ((head * rows + row) * shape.padded() + d) * 2,
                    1 => in_page(KeyOrValue::Key),
                    _ => in_page(KeyOrValue::Value),
                };
                memory.set_u16s(given.address(0).offset(byte as u64), &[held(number).to_bits()])?;
            }
        }
    }
    Ok(())
}

/// Halves of a head's page of which `present` positions are there.
fn page_of(
    memory: &TwinMemory,
    at: DeviceAddress,
    shape: HeadShape,
    present: usize,
) -> Result<PageHead, Astray> {
    let rows = |which| {
        let number = |position, d| {
            if position >= present {
                return Ok(0.0);
            }
            let at = at.offset(shape.number_at(which, position, d) as u64);
            Ok(f16::from_bits(memory.u16s(at, 1)?[0]).to_f32())
        };
        let row = |position| (0..shape.padded()).map(|d| number(position, d)).collect();
        (0..PAGE_TOKENS).map(row).collect::<Result<Vec<Vec<f32>>, Astray>>()
    };
    Ok(PageHead { keys: rows(KeyOrValue::Key)?, values: rows(KeyOrValue::Value)? })
}

pub(super) fn attend(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (queries, keys, heads, width) =
        (given.count(9), given.count(10), given.count(11), given.count(12));
    let eights = given.count(13);
    let pages = keys.div_ceil(PAGE_TOKENS);
    let steps = [4, 5, 6, 7].map(|at| given.wide(at) as usize);
    for head in 0..launch.grid[2] as usize * heads {
        let (batch, own) = (head / heads, head % heads);
        for row in 0..queries {
            let at = (head * queries + row) * shape.padded();
            let query = memory.u16s(given.address(1).offset(at as u64 * 2), shape.padded())?;
            let query: Vec<f32> =
                query.into_iter().map(|bits| f16::from_bits(bits).to_f32()).collect();
            let mut so_far = Partial::nothing(shape.padded());
            for page in 0..pages {
                let first = page * PAGE_TOKENS;
                let present = (keys - first).min(PAGE_TOKENS);
                let at = given.address(2).offset(((head * pages + page) * shape.bytes()) as u64);
                let held = page_of(memory, at, shape, present)?;
                let mask = match given.some(3) {
                    None => None,
                    Some(mask) => {
                        let from = batch * steps[0] + own * steps[1] + row * steps[2];
                        let of = |key| one(memory, mask, kind(given, 8), from + key * steps[3]);
                        let all = (first..first + present).map(of);
                        Some(all.collect::<Result<Vec<f32>, Astray>>()?)
                    }
                };
                so_far.join(&attend_through(&query, &held, |score, position| match &mask {
                    _ if position >= present => f32::NEG_INFINITY,
                    None => score,
                    Some(mask) => {
                        let sum = mask[position].mul_add(std::f32::consts::LOG2_E, score);
                        if sum < f32::MIN { f32::MIN } else { sum }
                    }
                }));
            }
            let (token, inverse) = (batch * queries + row, 1.0 / so_far.sum);
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
fn link(op: usize, a: f32, b: f32) -> f32 {
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
