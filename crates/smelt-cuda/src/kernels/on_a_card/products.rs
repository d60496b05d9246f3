//! Products of every form by every shape.

use std::collections::BTreeMap;

use half::f16;
use smelt_random::Random;
use smelt_tensor::packed::BlockForm;

use super::{Bench, bits};
use crate::kernels::form::{Levels, ScaleKind, WeightForm, WeightPart};
use crate::kernels::layout::{STRIP_ROWS, activation_len, padded_columns, padded_rows};
use crate::kernels::pack::{
    BlockNumbers, BlockRows, LevelScales, WeightRows, WeightSource, pack_strip, read_row,
};
use crate::kernels::product::{
    Activations, DeviceWeight, Outcome, ProductShape, State, default_shape, product,
    product_of_state, widen,
};
use crate::kernels::rows::{Norm, group_sums, norm};
use crate::owned::DeviceBuffer;
use crate::{DeviceAddress, Processors};

/// Every way in which tokens fill blocks.
pub(super) const TOKENS: [usize; 10] = [1, 2, 7, 8, 9, 16, 32, 64, 100, 356];

/// The parts of a made-up weight, as a checkpoint has them.
#[derive(Default)]
struct Raw {
    numbers: Vec<f32>,
    levels: Vec<u8>,
    high: Vec<u8>,
    halves: [Vec<u16>; 2],
    factors: [Vec<u8>; 2],
    zeros: Vec<u8>,
    row_scales: Vec<f32>,
}

/// The form of ggml's blocks that a form holds, if it is for such.
fn blocks_of(form: WeightForm) -> Option<BlockForm> {
    let of = |blocks: &BlockForm| WeightForm::of_blocks(*blocks) == Some(form);
    let is_one = form.has_mins || form.scales == ScaleKind::Factors;
    BlockForm::ALL.into_iter().find(of).filter(|_| is_one)
}

impl Raw {
    fn random(random: &mut Random, form: WeightForm, rows: usize, columns: usize) -> Self {
        let mut raw = Self::default();
        let halves = |random: &mut Random, count: usize| -> Vec<u16> {
            (0..count).map(|_| f16::from_f32(0.01 + random.unit() * 0.05).to_bits()).collect()
        };
        let bytes = |random: &mut Random, count: usize| -> Vec<u8> {
            (0..count).map(|_| random.below(256) as u8).collect()
        };
        if let Some(blocks) = blocks_of(form) {
            raw.levels = bytes(random, rows * columns / 2);
            let words = blocks.word_columns().map_or(0, |width| columns / width);
            raw.high = bytes(random, rows * words * 4);
            for which in 0..if blocks.has_mins { 2 } else { 1 } {
                raw.halves[which] = halves(random, rows * columns / blocks.span);
                if blocks.has_factors() {
                    let count = rows * columns / blocks.group;
                    raw.factors[which] = (0..count).map(|_| random.below(16) as u8).collect();
                }
            }
            return raw;
        }
        let groups = columns.div_ceil(form.group);
        raw.numbers = random.noise(rows * columns);
        raw.levels = bytes(random, rows * columns);
        raw.halves[0] = halves(random, rows * groups);
        let zeros = if form.scales == ScaleKind::Row { rows } else { rows * groups };
        raw.zeros = (0..zeros).map(|_| random.below(16) as u8).collect();
        raw.row_scales = (0..rows).map(|_| 0.01 + random.unit() * 0.05).collect();
        raw
    }

    fn source(&self, form: WeightForm, columns: usize) -> WeightSource<'_> {
        let scales = match form.scales {
            ScaleKind::Row => LevelScales::Rows(&self.row_scales),
            _ => LevelScales::Groups { halves: &self.halves[0], group: form.group },
        };
        let rows = match (blocks_of(form), form.levels) {
            (Some(blocks), _) => WeightRows::Blocks(self.blocks(blocks)),
            (None, Levels::Half) => WeightRows::Numbers(&self.numbers),
            (None, Levels::Eight) => WeightRows::Bytes { bytes: &self.levels, scales },
            (None, Levels::Four) => {
                let zeros = form.has_zeros.then_some(&self.zeros[..]);
                WeightRows::Nibbles { nibbles: &self.levels, scales, zeros }
            }
        };
        WeightSource { columns, rows }
    }

    fn blocks(&self, form: BlockForm) -> BlockRows<'_> {
        let numbers = |which: usize| BlockNumbers {
            halves: &self.halves[which],
            factors: form.has_factors().then_some(&self.factors[which][..]),
        };
        BlockRows {
            form,
            nibbles: &self.levels,
            high: &self.high,
            scales: numbers(0),
            mins: form.has_mins.then(|| numbers(1)),
        }
    }
}

/// A weight on the device, and its numbers.
struct Weight {
    device: DeviceWeight,
    /// `[padded rows, padded columns]`.
    dense: Vec<f32>,
    _parts: Vec<DeviceBuffer>,
}

impl Weight {
    fn new(bench: &Bench, form: WeightForm, rows: usize, columns: usize) -> Self {
        let raw = Raw::random(&mut Random::new(7 + rows as u64), form, rows, columns);
        let source = raw.source(form, columns);
        let (padded, all) = (padded_columns(columns), padded_rows(rows));
        let mut parts: BTreeMap<WeightPart, Vec<u8>> = BTreeMap::new();
        let mut dense = vec![0.0; all * padded];
        for first in (0..rows).step_by(STRIP_ROWS) {
            let row_of = |row| (first + row < rows).then_some((source, first + row));
            let strip = pack_strip(form, columns, row_of);
            for row in 0..STRIP_ROWS {
                let at = (first + row) * padded;
                read_row(form, &strip, row, &mut dense[at..at + padded]);
            }
            for (part, bytes) in strip.parts {
                parts.entry(part).or_default().extend(bytes);
            }
        }
        let parts: BTreeMap<WeightPart, DeviceBuffer> =
            parts.into_iter().map(|(part, bytes)| (part, bench.put(&bytes))).collect();
        let place = |part| parts.get(&part).map_or(DeviceAddress::NULL, DeviceBuffer::address);
        let device = DeviceWeight {
            form,
            rows: rows as u32,
            columns: padded as u32,
            levels: place(WeightPart::Levels),
            scales: place(WeightPart::Scales),
            zeros: place(WeightPart::Zeros),
            mins: place(WeightPart::Mins),
            spans: place(WeightPart::Spans),
            min_spans: place(WeightPart::MinSpans),
            row_scales: place(WeightPart::RowScales),
        };
        Self { device, dense, _parts: parts.into_values().collect() }
    }

    fn columns(&self) -> usize {
        self.device.columns as usize
    }

    /// The product with a row of activations, and the sum of the sizes of what is added up.
    fn expect(&self, row: usize, x: &[f32]) -> (f64, f64) {
        let weights = &self.dense[row * self.columns()..][..self.columns()];
        weights.iter().zip(x).fold((0.0, 0.0), |(sum, size), (w, x)| {
            let product = f64::from(*w) * f64::from(*x);
            (sum + product, size + product.abs())
        })
    }
}

/// What is compared for one weight.
struct Trial<'a> {
    bench: &'a Bench,
    weight: &'a Weight,
    bias: DeviceAddress,
    /// `[tokens, columns]`, halves.
    x: Vec<f32>,
    /// `[tokens][padded rows]`: results before and sizes.
    expect: Vec<Vec<(f64, f64)>>,
    /// Bits of each token's row the first time.
    first: BTreeMap<usize, Vec<u32>>,
}

/// Products of a form, of rows and columns, for so many tokens: within rounding of f64, and of each token the same bits
/// every time.
pub(super) fn check(
    bench: &Bench,
    form: WeightForm,
    (rows, columns): (usize, usize),
    tokens: &[usize],
) {
    let weight = &Weight::new(bench, form, rows, columns);
    let mut random = Random::new(3);
    let most = tokens.iter().copied().max().unwrap_or(0);
    let wide = weight.columns();
    let noise = random.noise(most * wide);
    let x: Vec<f32> = noise.iter().map(|x| f16::from_f32(x * 2.0).to_f32()).collect();
    let mut bias = random.noise(padded_rows(rows));
    bias[rows..].fill(0.0);
    let row_of = |x: &[f32]| -> Vec<(f64, f64)> {
        let result = |row: usize| {
            let (sum, size) = weight.expect(row, x);
            (sum + f64::from(bias[row]), size + f64::from(bias[row].abs()))
        };
        (0..padded_rows(rows)).map(result).collect()
    };
    let expect = x.chunks_exact(wide).map(row_of).collect();
    let bias = bench.put_floats(&bias);
    let first = BTreeMap::new();
    let mut trial = Trial { bench, weight, bias: bias.address(), x, expect, first };
    for &tokens in tokens {
        trial.all_shapes(form, tokens);
    }
    trial.rows_as_floats(rows);
    trial.states(form);
}

/// Products of so many tokens that most of them fill tiles, and some do not: of rows that are whole strips and that are no
/// multiple of four, of few columns and of an odd number of groups.
pub(super) fn check_prompts(bench: &Bench, form: WeightForm) {
    // Factors of scales span 256 columns.
    let few = if form.scales == ScaleKind::Factors { 256 } else { 128 };
    check(bench, form, (330, few), &[257, 413, 699]);
    check(bench, form, (192, 640 / few * few), &[256, 511]);
    check(bench, form, (76, 256), &[300]);
}

impl Trial<'_> {
    /// The kernels that multiply so many tokens: those whose blocks stay for several tiles with few blocks and with many.
    fn kernels(&self, form: WeightForm, tokens: u32) -> Vec<(ProductShape, Processors)> {
        let all = self.bench.processors();
        let usual =
            default_shape(form, [self.weight.device.rows, self.weight.device.columns], tokens, all);
        let mut kernels = Vec::new();
        for shape in ProductShape::all_on(form, all) {
            // The twin has one function for all shapes.
            if !shape.norms() && shape.takes(tokens) && (self.bench.is_card || shape == usual) {
                kernels.push((shape, all));
                if matches!(shape, ProductShape::Wide(_)) {
                    kernels.push((shape, Processors { count: 2, ..all }));
                }
            }
        }
        kernels
    }

    fn all_shapes(&mut self, form: WeightForm, tokens: usize) {
        let wide = self.weight.columns();
        let halves = self.bench.put_activations(&self.x[..tokens * wide], tokens, wide);
        let sums = self.bench.poisoned(wide / form.group * tokens.next_multiple_of(8) * 4);
        let (count, columns) = (tokens as u32, wide as u32);
        if form.has_mins {
            let group = form.group as u32;
            let (sums, halves) = (sums.address(), halves.address());
            self.bench.run(&[group_sums(sums, halves, count, columns, group)]);
        }
        let x = Activations { halves: halves.address(), sums: sums.address(), tokens: count };
        let mut gated = None;
        for by in self.kernels(form, count) {
            self.stored(x, by);
            self.added(x, by);
            let own = self.gated(x, by);
            let first = gated.get_or_insert_with(|| own.clone());
            assert!(own == *first, "{} {} of {tokens}: other bits behind a gate", form.name, by.0);
        }
    }

    fn stored(&mut self, x: Activations, by: (ProductShape, Processors)) {
        let (shape, _) = by;
        let (rows, tokens) = (self.weight.device.rows as usize, x.tokens as usize);
        let stride = rows + 3;
        let out = self.bench.poisoned((tokens + 1) * stride * 4);
        let outcome = Outcome::Store { out: out.address(), stride: stride as u32 };
        self.bench.run(&[product(&self.weight.device, self.bias, x, outcome, by)]);
        let found = self.bench.floats(&out);
        let form = self.weight.device.form.name;
        for (token, row) in found.chunks_exact(stride).enumerate() {
            let written = if token < tokens { rows } else { 0 };
            let is_left = row[written..].iter().all(|number| number.to_bits() == u32::MAX);
            assert!(is_left, "{form} {shape}: more was written than there is");
            for (at, number) in row[..written].iter().enumerate() {
                let (expect, size) = self.expect[token][at];
                let off = (f64::from(*number) - expect).abs();
                assert!(off <= 4e-6 * size, "{form} {shape} of {tokens}: {number} for {expect}");
            }
            if token < tokens {
                let own = bits(&row[..rows]);
                let first = self.first.entry(token).or_insert_with(|| own.clone());
                assert!(own == *first, "{form} {shape} of {tokens}: token {token} has other bits");
            }
        }
    }

    fn added(&self, x: Activations, by: (ProductShape, Processors)) {
        let (rows, tokens) = (self.weight.device.rows as usize, x.tokens as usize);
        let before = Random::new(9).noise(tokens * rows);
        let out = self.bench.put_floats(&before);
        let outcome = Outcome::Add { out: out.address(), stride: rows as u32 };
        self.bench.run(&[product(&self.weight.device, self.bias, x, outcome, by)]);
        let found = self.bench.floats(&out);
        for (at, (found, before)) in found.iter().zip(before).enumerate() {
            let own = f32::from_bits(self.first[&(at / rows)][at % rows]);
            assert_eq!(found.to_bits(), (before + own).to_bits(), "{}", by.0);
        }
    }

    /// The bits of what comes behind gates.
    fn gated(&self, x: Activations, by: (ProductShape, Processors)) -> Vec<u32> {
        let (shape, _) = by;
        let device = &self.weight.device;
        let (all, tokens) = (padded_rows(device.rows as usize), x.tokens as usize);
        let weight = DeviceWeight { rows: all as u32, ..*device };
        let columns = padded_columns(all / 2);
        let out = self.bench.poisoned(columns * tokens.next_multiple_of(8) * 2);
        let outcome = Outcome::Swiglu { out: out.address() };
        self.bench.run(&[product(&weight, self.bias, x, outcome, by)]);
        let found = self.bench.activations(&out, tokens, columns);
        for (token, found) in found.chunks_exact(columns).enumerate() {
            for (k, found) in found[..all / 2].iter().enumerate() {
                let row = k / 8 * 16 + k % 8;
                let ((gate, gate_size), (up, up_size)) =
                    (self.expect[token][row], self.expect[token][row + 8]);
                let open = gate / (1.0 + (-gate).exp());
                // Halves are held inside their range.
                let most = f64::from(f16::MAX);
                let expect = (open * up).clamp(-most, most);
                let off = (f64::from(*found) - expect).abs();
                // What rounding in the sums becomes: the slope of the gate is at most 1.1.
                let sums = 4e-6 * (1.1 * gate_size * up.abs() + up_size * open.abs());
                let form = device.form.name;
                let bound = 2e-3 * expect.abs() + 1e-3 + sums;
                assert!(off <= bound, "{form} {shape}: {found} for {expect}");
            }
        }
        let written = found.chunks_exact(columns).flat_map(|token| bits(&token[..all / 2]));
        written.collect()
    }

    /// A state that a product norms itself: the bits are those of a norm and a product behind it.
    fn states(&self, form: WeightForm) {
        let (device, wide) = (&self.weight.device, self.weight.columns());
        let hidden = wide - 3;
        let mut random = Random::new(4);
        let state: Vec<f32> = random.noise(hidden).iter().map(|x| x * 30.0).collect();
        let [numbers, weights] = [state, random.noise(hidden)].map(|x| self.bench.put_floats(&x));
        let state = State {
            numbers: numbers.address(),
            norm: weights.address(),
            hidden: hidden as u32,
            eps: 1e-6,
        };
        let halves = self.bench.poisoned(activation_len(1, wide) * 2);
        let apart = norm(Norm {
            out: halves.address(),
            x: state.numbers,
            weight: state.norm,
            rows: DeviceAddress::NULL,
            tokens: 1,
            hidden: state.hidden,
            columns: device.columns,
            eps: state.eps,
        });
        let x = Activations { halves: halves.address(), sums: DeviceAddress::NULL, tokens: 1 };
        let processors = self.bench.processors();
        let usual = (default_shape(form, [device.rows, device.columns], 1, processors), processors);
        let result = |launches: &dyn Fn(Outcome) -> Vec<crate::Launch>| {
            let out = self.bench.poisoned(device.rows as usize * 4);
            let outcome = Outcome::Store { out: out.address(), stride: device.rows };
            self.bench.run(&launches(outcome));
            bits(&self.bench.floats(&out))
        };
        for shape in ProductShape::all(form).into_iter().filter(|shape| shape.norms()) {
            let together =
                result(&|to| vec![product_of_state(device, self.bias, state, to, shape)]);
            let behind =
                result(&|to| vec![apart.clone(), product(device, self.bias, x, to, usual)]);
            assert!(together == behind, "{} {shape}: a normed state has other bits", form.name);
        }
    }

    fn rows_as_floats(&self, rows: usize) {
        let (wide, stride) = (self.weight.columns(), self.weight.columns() - 3);
        let ids = [rows as u32 - 1, 0, 17, rows as u32 - 1];
        let out = self.bench.poisoned(ids.len() * stride * 4);
        let list = self.bench.put_words(&ids);
        let to = (out.address(), stride as u32);
        self.bench.run(&[widen(&self.weight.device, list.address(), ids.len() as u32, to)]);
        for (id, found) in ids.into_iter().zip(self.bench.floats(&out).chunks_exact(stride)) {
            let expect = &self.weight.dense[id as usize * wide..][..stride];
            for (found, expect) in found.iter().zip(expect) {
                let off = (found - expect).abs();
                assert!(off <= expect.abs() * 1e-6 + 1e-7, "row {id}: {found} for {expect}");
            }
        }
    }
}
