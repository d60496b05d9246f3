//! Multiplies packed weights and activations in the kernels' order of sums.

use half::f16;

use super::graph::link;
use super::halves::{activation, add_products, held, set_activation, swiglu};
use super::rows::normed;
use super::{Given, number_at};
use crate::kernels::form::{SPAN_COLUMNS, ScaleKind, WeightForm, WeightPart};
use crate::kernels::graph::LinkOp;
use crate::kernels::layout::{STRIP_ROWS, group_at, part_bytes};
use crate::kernels::pack::read_level;
use crate::recording::{Astray, TwinMemory};
use crate::{DeviceAddress, Launch};

/// From the word of what turns a result to that of the operator of chains: GELU by the error function, by the tangent.
const GELU_BEHIND: usize = LinkOp::GeluErf as usize - 4;

/// The arguments that all kernels of products have.
struct Product<'a> {
    form: WeightForm,
    given: Given<'a>,
    /// Padded columns.
    columns: usize,
}

/// A strip as it is multiplied: what every level, scale and minimum stands for.
struct StripNumbers {
    /// `[rows, columns]`.
    levels: Vec<f32>,
    /// `[rows, groups]` each.
    scales: Vec<f32>,
    mins: Vec<f32>,
}

/// A token's activations, and the sums of their groups where weights have minima.
struct Column {
    x: Vec<f32>,
    sums: Vec<f32>,
}

/// The strip of a row, part by part.
struct StripBytes {
    levels: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    mins: Vec<u8>,
    spans: Vec<u8>,
    min_spans: Vec<u8>,
}

impl<'a> Product<'a> {
    fn of(launch: &'a Launch, form: WeightForm) -> Self {
        let given = Given::of(launch);
        Self { form, given, columns: given.count(14) }
    }

    fn tokens(&self) -> usize {
        self.given.count(11)
    }

    fn strip(&self, memory: &TwinMemory, index: usize) -> Result<StripBytes, Astray> {
        let parts = self.form.parts();
        let read = |at: usize, part: WeightPart| {
            if !parts.contains(&part) {
                return Ok(Vec::new());
            }
            let bytes = part_bytes(self.form, part, self.columns) as u64;
            let from = self.given.address(at).offset(index as u64 * bytes);
            memory.read(from, bytes).map(<[u8]>::to_vec)
        };
        Ok(StripBytes {
            levels: read(0, WeightPart::Levels)?,
            scales: read(1, WeightPart::Scales)?,
            zeros: read(2, WeightPart::Zeros)?,
            mins: read(3, WeightPart::Mins)?,
            spans: read(4, WeightPart::Spans)?,
            min_spans: read(5, WeightPart::MinSpans)?,
        })
    }

    /// A scale or a minimum of a group.
    fn number(&self, own: &[u8], spans: &[u8], row: usize, group: usize) -> f32 {
        let half = |bytes: &[u8], at: usize| {
            f16::from_le_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f32()
        };
        match self.form.scales {
            ScaleKind::Row => 1.0,
            ScaleKind::F16 => half(own, group_at(row, group)),
            ScaleKind::Factors => {
                let factor = f32::from(own[group_at(row, group)].cast_signed());
                half(spans, group_at(row, group * self.form.group / SPAN_COLUMNS)) * factor
            }
        }
    }

    /// The numbers of a strip.
    fn numbers(&self, strip: &StripBytes) -> StripNumbers {
        let groups = self.columns.div_ceil(self.form.group);
        let all = |columns: usize, number: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            (0..STRIP_ROWS * columns).map(|at| number(at / columns, at % columns)).collect()
        };
        let level = |row, k| read_level(self.form, &strip.levels, &strip.zeros, row, k);
        let scale = |row, group| self.number(&strip.scales, &strip.spans, row, group);
        let min = |row, group| match self.form.has_mins {
            true => self.number(&strip.mins, &strip.min_spans, row, group),
            false => 0.0,
        };
        StripNumbers {
            levels: all(self.columns, &level),
            scales: all(groups, &scale),
            mins: all(groups, &min),
        }
    }

    /// What a token brings.
    fn column(&self, memory: &TwinMemory, token: usize) -> Result<Column, Astray> {
        if let Some(norm) = self.given.some(18) {
            return self.state(memory, norm);
        }
        let tokens = self.tokens();
        let x = (0..self.columns)
            .map(|k| activation(memory, self.given.address(8), (k, token, tokens)));
        let groups = if self.form.has_mins { self.columns / self.form.group } else { 0 };
        let place = |group: usize| group * tokens.next_multiple_of(8) + token;
        let sum = |group| Ok(memory.f32s(number_at(self.given.address(9), place(group)), 1)?[0]);
        Ok(Column {
            x: x.collect::<Result<_, _>>()?,
            sums: (0..groups).map(sum).collect::<Result<_, Astray>>()?,
        })
    }

    /// What the state of the only token brings, normed.
    fn state(&self, memory: &TwinMemory, norm: DeviceAddress) -> Result<Column, Astray> {
        let hidden = self.given.count(19);
        let state = memory.f32s(self.given.address(8), hidden)?;
        let own = normed(&state, &memory.f32s(norm, hidden)?, self.given.float(20));
        let mut x: Vec<f32> = own.into_iter().map(|number| held(number).to_f32()).collect();
        x.resize(self.columns, 0.0);
        Ok(Column { x, sums: Vec::new() })
    }

    /// The sum of a row of a strip and the activations of a token.
    fn sum(&self, strip: &StripNumbers, column: &Column, row: usize) -> f32 {
        let (width, group) = (self.columns, self.form.group);
        let levels = strip.levels[row * width..(row + 1) * width].chunks(group);
        let mut sum = 0.0_f32;
        for (at, (levels, x)) in levels.zip(column.x.chunks(group)).enumerate() {
            let steps = levels.chunks(16).zip(x.chunks(16));
            let chain = steps.fold(0.0, |chain, (levels, x)| {
                add_products(chain, levels.iter().copied().zip(x.iter().copied()))
            });
            let own = row * width.div_ceil(group) + at;
            sum = chain.mul_add(strip.scales[own], sum);
            if let Some(all) = column.sums.get(at) {
                sum = (-all).mul_add(strip.mins[own], sum);
            }
        }
        sum
    }

    /// The last steps of a result.
    fn finished(&self, memory: &TwinMemory, sum: f32, row: usize) -> Result<f32, Astray> {
        let number = |base: DeviceAddress| Ok(memory.f32s(number_at(base, row), 1)?[0]);
        let scale = self.given.some(6).map(number).transpose()?;
        let bias = self.given.some(7).map(number).transpose()?;
        let scaled = scale.map_or(sum, |scale| sum * scale);
        Ok(bias.map_or(scaled, |bias| scaled + bias))
    }
}

/// What a kernel of products does, whatever its shape.
pub(super) fn multiply(
    memory: &mut TwinMemory,
    launch: &Launch,
    form: WeightForm,
) -> Result<(), Astray> {
    let product = Product::of(launch, form);
    let given = product.given;
    let (rows, padded, mode) = (given.count(12), given.count(13), given.count(16));
    let columns = (0..product.tokens()).map(|token| product.column(memory, token));
    let columns: Vec<Column> = columns.collect::<Result<_, _>>()?;
    for index in 0..padded / STRIP_ROWS {
        let strip = product.numbers(&product.strip(memory, index)?);
        for (token, column) in columns.iter().enumerate() {
            let mut sums = [0.0; STRIP_ROWS];
            for (row, sum) in sums.iter_mut().enumerate() {
                if mode == 2 || index * STRIP_ROWS + row < rows {
                    let own = product.sum(&strip, column, row);
                    *sum = product.finished(memory, own, index * STRIP_ROWS + row)?;
                }
            }
            match mode {
                0 | 1 => put_rows(memory, &product, (index, token), &sums)?,
                2 => put_swiglu(memory, &product, (index, token), &sums)?,
                _ => put_halves(memory, &product, (index, token), &sums)?,
            }
        }
    }
    Ok(())
}

fn put_rows(
    memory: &mut TwinMemory,
    product: &Product<'_>,
    (strip, token): (usize, usize),
    sums: &[f32; STRIP_ROWS],
) -> Result<(), Astray> {
    let given = product.given;
    let (rows, stride, adds) = (given.count(12), given.count(15), given.count(16) == 1);
    for (row, sum) in (strip * STRIP_ROWS..rows).zip(sums) {
        let at = number_at(given.address(10), token * stride + row);
        let number = |base: DeviceAddress, at| Ok(memory.f32s(number_at(base, at), 1)?[0]);
        let result = match adds {
            true => {
                let gain = given.some(22).map(|gains| number(gains, row)).transpose()?;
                let own = gain.map_or(*sum, |gain| sum * gain);
                number(given.address(21), token * stride + row)? + own
            }
            false => *sum,
        };
        memory.set_f32s(at, &[result])?;
    }
    Ok(())
}

/// Activations, perhaps turned by GELU; rows that only fill a strip are zero.
fn put_halves(
    memory: &mut TwinMemory,
    product: &Product<'_>,
    (strip, token): (usize, usize),
    sums: &[f32; STRIP_ROWS],
) -> Result<(), Astray> {
    let given = product.given;
    let (rows, mode) = (given.count(12), given.count(16));
    for (row, sum) in (strip * STRIP_ROWS..).zip(sums) {
        let number = match mode {
            _ if row >= rows => 0.0,
            3 => *sum,
            mode => link(mode + GELU_BEHIND, *sum, *sum),
        };
        let at = (row, token, product.tokens());
        set_activation(memory, given.address(10), at, number)?;
    }
    Ok(())
}

fn put_swiglu(
    memory: &mut TwinMemory,
    product: &Product<'_>,
    (strip, token): (usize, usize),
    sums: &[f32; STRIP_ROWS],
) -> Result<(), Astray> {
    let given = product.given;
    for (tile, sums) in sums.as_chunks::<16>().0.iter().enumerate() {
        for at in 0..8 {
            let k = (strip * 4 + tile) * 8 + at;
            let number = swiglu(sums[at], sums[at + 8]);
            set_activation(memory, given.address(10), (k, token, product.tokens()), number)?;
        }
    }
    Ok(())
}

/// Rows of a weight as f32.
pub(super) fn widen(
    memory: &mut TwinMemory,
    launch: &Launch,
    form: WeightForm,
) -> Result<(), Astray> {
    let product = Product::of(launch, form);
    let given = product.given;
    let (stride, hidden) = (given.count(15), given.count(24));
    for (token, id) in memory.u32s(given.address(23), product.tokens())?.into_iter().enumerate() {
        let (index, row) = (id as usize / STRIP_ROWS, id as usize % STRIP_ROWS);
        let strip = product.strip(memory, index)?;
        let row_scale = match given.some(6) {
            Some(base) => memory.f32s(number_at(base, id as usize), 1)?[0],
            None => 1.0,
        };
        let number = |k: usize| {
            let group = k / form.group;
            let scale = product.number(&strip.scales, &strip.spans, row, group) * row_scale;
            let min = if form.has_mins {
                product.number(&strip.mins, &strip.min_spans, row, group)
            } else {
                0.0
            };
            read_level(form, &strip.levels, &strip.zeros, row, k) * scale - min
        };
        let numbers: Vec<f32> = (0..hidden).map(number).collect();
        memory.set_f32s(number_at(given.address(10), token * stride), &numbers)?;
    }
    Ok(())
}
