//! Does what happens to rows between products.

use half::{bf16, f16};
use smelt_backend::KvType;

use super::halves::{activation, held, set_activation, swiglu as swiglu_of};
use super::{Given, number_at};
use crate::kernels::page::{HeadShape, KeyOrValue, PAGE_TOKENS};
use crate::kernels::rows::{NumberKind, ROW_THREADS};
use crate::recording::{Astray, TwinMemory};
use crate::{DeviceAddress, Launch};

/// `count` numbers from number `first` of a table on.
pub(super) fn stored(
    memory: &TwinMemory,
    base: DeviceAddress,
    kind: NumberKind,
    (first, count): (usize, usize),
) -> Result<Vec<f32>, Astray> {
    if kind == NumberKind::F32 {
        return memory.f32s(number_at(base, first), count);
    }
    let bits = memory.u16s(base.offset(first as u64 * 2), count)?;
    let widen = |bits| match kind {
        NumberKind::Bf16 => bf16::from_bits(bits).to_f32(),
        _ => f16::from_bits(bits).to_f32(),
    };
    Ok(bits.into_iter().map(widen).collect())
}

pub(super) fn embed(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (hidden, kind) = (given.count(3), NumberKind::of_word(given.count(4) as u32));
    let ids = memory.u32s(given.address(2), launch.grid[0] as usize)?;
    for (token, id) in ids.into_iter().enumerate() {
        let row = stored(memory, given.address(1), kind, (id as usize * hidden, hidden))?;
        memory.set_f32s(number_at(given.address(0), token * hidden), &row)?;
    }
    Ok(())
}

pub(super) fn scatter(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (hidden, kind) = (given.count(4), NumberKind::of_word(given.count(5) as u32));
    let count = launch.grid[0] as usize;
    let rows = memory.u32s(given.address(2), count)?;
    let sources = memory.u32s(given.address(3), count)?;
    for (row, source) in rows.into_iter().zip(sources) {
        let mut own = stored(memory, given.address(1), kind, (source as usize * hidden, hidden))?;
        let at = number_at(given.address(0), row as usize * hidden);
        if given.count(6) == 1 {
            let before = memory.f32s(at, hidden)?;
            own.iter_mut().zip(before).for_each(|(own, before)| *own += before);
        }
        memory.set_f32s(at, &own)?;
    }
    Ok(())
}

/// Sums that warps of 32 add up pair by pair.
pub(super) fn warp_sum(lanes: &[f32]) -> f32 {
    let mut sums = lanes.to_vec();
    let mut apart = 16;
    while apart > 0 {
        sums = (0..32).map(|lane| sums[lane] + sums[lane ^ apart]).collect();
        apart /= 2;
    }
    sums[0]
}

/// A row normed by its root mean square, before it is rounded.
pub(super) fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut squares = vec![0.0_f32; ROW_THREADS as usize];
    for (run, numbers) in x.chunks(8).enumerate() {
        let own = &mut squares[run % ROW_THREADS as usize];
        numbers.iter().for_each(|number| *own = number.mul_add(*number, *own));
    }
    let sum = squares.chunks(32).fold(0.0, |all, lanes| all + warp_sum(lanes));
    let inverse = 1.0 / (sum / x.len() as f32 + eps).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x * inverse * weight).collect()
}

pub(super) fn norm(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (tokens, hidden, columns) = (given.count(4), given.count(5), given.count(6));
    let weight = memory.f32s(given.address(2), hidden)?;
    let rows = given.some(3).map(|rows| memory.u32s(rows, tokens)).transpose()?;
    for token in 0..tokens {
        let row = rows.as_ref().map_or(token, |rows| rows[token] as usize);
        let x = memory.f32s(number_at(given.address(1), row * hidden), hidden)?;
        let own = normed(&x, &weight, given.float(7));
        for k in 0..columns {
            let number = own.get(k).copied().unwrap_or(0.0);
            set_activation(memory, given.address(0), (k, token, tokens), number)?;
        }
    }
    Ok(())
}

pub(super) fn swiglu(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (tokens, width, columns) = (given.count(3), given.count(4), given.count(7));
    for token in 0..tokens {
        let row = |base, stride| memory.f32s(number_at(base, token * stride), width);
        let gates = row(given.address(1), given.count(5))?;
        let ups = row(given.address(2), given.count(6))?;
        for k in 0..columns {
            let number = if k < width { swiglu_of(gates[k], ups[k]) } else { 0.0 };
            set_activation(memory, given.address(0), (k, token, tokens), number)?;
        }
    }
    Ok(())
}

pub(super) fn reorder(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (tokens, columns, padded) = (given.count(3), given.count(4), given.count(5));
    let order = memory.u32s(given.address(2), columns)?;
    for token in 0..tokens {
        for k in 0..padded {
            let number = match order.get(k) {
                Some(from) => {
                    activation(memory, given.address(1), (*from as usize, token, tokens))?
                }
                None => 0.0,
            };
            set_activation(memory, given.address(0), (k, token, tokens), number)?;
        }
    }
    Ok(())
}

pub(super) fn group_sums(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (tokens, columns, group) = (given.count(2), given.count(3), given.count(4));
    let stride = tokens.next_multiple_of(8);
    for at in 0..columns / group * stride {
        let (own, token) = (at / stride, at % stride);
        let mut sum = 0.0;
        for k in own * group..(own + 1) * group {
            sum += activation(memory, given.address(1), (k, token, tokens))?;
        }
        memory.set_f32s(number_at(given.address(0), at), &[sum])?;
    }
    Ok(())
}

pub(super) fn rotations(memory: &mut TwinMemory, launch: &Launch) -> Result<(), Astray> {
    let given = Given::of(launch);
    let (tokens, pairs, factor) = (launch.grid[0] as usize, given.count(5), given.float(6));
    let frequencies = memory.f32s(given.address(3), pairs)?;
    let axes = memory.u32s(given.address(4), pairs)?;
    for token in 0..tokens {
        let places = memory.u32s(number_at(given.address(2), token * 3), 3)?;
        for pair in 0..pairs {
            let angle = frequencies[pair] * places[axes[pair] as usize] as f32;
            let (sine, cosine) = f64::from(angle).sin_cos();
            let at = token * pairs + pair;
            memory.set_f32s(number_at(given.address(0), at), &[cosine as f32 * factor])?;
            memory.set_f32s(number_at(given.address(1), at), &[sine as f32 * factor])?;
        }
    }
    Ok(())
}

/// The heads of one token, from a product to pages and queries.
pub(super) struct TokenHeads {
    pub(super) shape: HeadShape,
    /// Its row of the pass, which has `stride` numbers.
    pub(super) token: usize,
    pub(super) all: DeviceAddress,
    pub(super) stride: usize,
    /// Heads of queries, and of keys.
    pub(super) heads: [usize; 2],
    /// Norms of both.
    pub(super) norms: [Option<DeviceAddress>; 2],
    pub(super) cosines: DeviceAddress,
    pub(super) sines: DeviceAddress,
    pub(super) eps: f32,
    pub(super) query_scale: f32,
    /// Where its pages begin in the tables, and its position.
    pub(super) table: usize,
    pub(super) position: usize,
    pub(super) pool: DeviceAddress,
    pub(super) tables: DeviceAddress,
    pub(super) page_bytes: u64,
}

impl TokenHeads {
    /// Puts keys and values into their page; gives queries as they are kept.
    pub(super) fn take(&self, memory: &mut TwinMemory) -> Result<Vec<Vec<u16>>, Astray> {
        let ([heads, kv_heads], dim, mut queries) = (self.heads, self.shape.dim, Vec::new());
        for head in 0..heads + 2 * kv_heads {
            let from = number_at(self.all, self.token * self.stride + head * dim);
            let own = memory.f32s(from, dim)?;
            if head < heads {
                let turned = self.turned(memory, &own, self.norms[0])?;
                let scaled = turned.iter().map(|number| held(number * self.query_scale).to_bits());
                let mut bits: Vec<u16> = scaled.collect();
                bits.resize(self.shape.padded(), 0);
                queries.push(bits);
            } else if head < heads + kv_heads {
                let turned = self.turned(memory, &own, self.norms[1])?;
                self.keep(memory, &turned, (KeyOrValue::Key, head - heads))?;
            } else {
                self.keep(memory, &own, (KeyOrValue::Value, head - heads - kv_heads))?;
            }
        }
        Ok(queries)
    }

    /// Normed where it has a norm, and turned.
    fn turned(
        &self,
        memory: &TwinMemory,
        own: &[f32],
        norm: Option<DeviceAddress>,
    ) -> Result<Vec<f32>, Astray> {
        let dim = self.shape.dim;
        let mut row = own.to_vec();
        if let Some(norm) = norm {
            let weight = memory.f32s(norm, dim)?;
            let mut lanes = [0.0_f32; 32];
            for (d, number) in own.iter().enumerate() {
                lanes[d % 32] = number.mul_add(*number, lanes[d % 32]);
            }
            let factor = 1.0 / (warp_sum(&lanes) / dim as f32 + self.eps).sqrt();
            row.iter_mut()
                .zip(weight)
                .for_each(|(number, weight)| *number = *number * factor * weight);
        }
        let half = dim / 2;
        let cosines = memory.f32s(number_at(self.cosines, self.token * half), half)?;
        let sines = memory.f32s(number_at(self.sines, self.token * half), half)?;
        let turn = |d: usize| {
            let other = if d < half { -row[d + half] } else { row[d - half] };
            row[d] * cosines[d % half] + other * sines[d % half]
        };
        Ok((0..dim).map(turn).collect())
    }

    /// Puts a key or a value into its page.
    fn keep(
        &self,
        memory: &mut TwinMemory,
        own: &[f32],
        (which, kv_head): (KeyOrValue, usize),
    ) -> Result<(), Astray> {
        let shape = self.shape;
        let page = number_at(self.tables, self.table + self.position / PAGE_TOKENS);
        let page_start = u64::from(memory.u32s(page, 1)?[0]) * self.page_bytes;
        let head = self.pool.offset(page_start + (kv_head * shape.bytes()) as u64);
        let position = self.position % PAGE_TOKENS;
        let at = |d| head.offset(shape.number_at(which, position, d) as u64);
        let padded = own.iter().copied().chain(std::iter::repeat(0.0)).take(shape.padded());
        if shape.kind == KvType::Int8 {
            let largest = own.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
            let is_sound = own.iter().all(|number| number.is_finite());
            let scale = if is_sound { largest / 127.0 } else { f32::NAN };
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (d, number) in padded.enumerate() {
                let level = (number * inverse).round_ties_even() as i8;
                memory.write(at(d), 1)?.copy_from_slice(&level.to_le_bytes());
            }
            let place = head.offset(shape.scale_at(which, position) as u64);
            return memory.set_f32s(place, &[scale]);
        }
        for (d, number) in padded.enumerate() {
            memory.set_u16s(at(d), &[held(number).to_bits()])?;
        }
        Ok(())
    }
}

pub(super) fn keep(
    memory: &mut TwinMemory,
    launch: &Launch,
    shape: HeadShape,
) -> Result<(), Astray> {
    let given = Given::of(launch);
    let heads = [given.count(12), given.count(13)];
    for token in 0..given.count(11) {
        let told = |list| Ok(memory.u32s(number_at(given.address(list), token), 1)?[0] as usize);
        let one = TokenHeads {
            shape,
            token,
            all: given.address(1),
            stride: given.count(15),
            heads,
            norms: [given.some(2), given.some(3)],
            cosines: given.address(4),
            sines: given.address(5),
            eps: given.float(16),
            query_scale: given.float(17),
            table: told(6)?,
            position: told(7)?,
            pool: given.address(8),
            tables: given.address(9),
            page_bytes: given.wide(10),
        };
        for (head, bits) in one.take(memory)?.into_iter().enumerate() {
            let at = (token * heads[0] + head) * shape.padded();
            memory.set_u16s(given.address(0).offset(at as u64 * 2), &bits)?;
        }
    }
    Ok(())
}
