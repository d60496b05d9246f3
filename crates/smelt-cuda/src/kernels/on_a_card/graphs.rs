//! What graphs compute beside products.

use half::{bf16, f16};
use smelt_random::Random;

use super::{Bench, apart, bits};
use crate::kernels::form::WeightForm;
use crate::kernels::graph::{
    AttendAll, Chain, Form, GatherNumbers, HeadBlocks, HeadColumns, HeadsView, LinkOp, LinkSource,
    Map, NormNumbers, Numbers, Operand, Pack, arrange, attend, gather, map, norm, pack,
    packed_halves,
};
use crate::kernels::layout::{activation_len, padded_columns};
use crate::kernels::product::{
    Activations, DeviceWeight, Outcome, ProductShape, Turn, default_shape, product,
};
use crate::kernels::rows::NumberKind;
use crate::kernels::source::graph_head;
use crate::owned::DeviceBuffer;
use crate::{DeviceAddress, Launch, Processors};

/// Where a result goes, and what it is read back as.
struct Place {
    out: DeviceBuffer,
    form: Form,
    rows: usize,
    columns: usize,
}

impl Place {
    /// Room for rows of either form, every number of which is none; what fills columns is zero, as somebody clears it.
    fn new(bench: &Bench, rows: usize, columns: usize, is_plain: bool) -> Self {
        let form = match is_plain {
            true => Form::Rows,
            false => Form::Activations { rows: rows as u32, columns: columns as u32 },
        };
        let bytes = if is_plain {
            rows * columns * 4
        } else {
            activation_len(rows, padded_columns(columns)) * 2
        };
        Self { out: bench.poisoned(bytes), form, rows, columns }
    }

    fn read(&self, bench: &Bench) -> Vec<f32> {
        match self.form {
            Form::Rows => bench.floats(&self.out),
            Form::Activations { .. } => {
                let padded = padded_columns(self.columns);
                let all = bench.activations(&self.out, self.rows, padded);
                all.chunks_exact(padded).flat_map(|row| &row[..self.columns]).copied().collect()
            }
        }
    }
}

const FORMS: [bool; 2] = [true, false];

/// Numbers as they are kept in each kind, and what they are then.
fn kept(numbers: &[f32], kind: NumberKind) -> (Vec<u8>, Vec<f32>) {
    let one = |x: &f32| match kind {
        NumberKind::F16 => (f16::from_f32(*x).to_le_bytes().to_vec(), f16::from_f32(*x).to_f32()),
        NumberKind::Bf16 => {
            (bf16::from_f32(*x).to_le_bytes().to_vec(), bf16::from_f32(*x).to_f32())
        }
        NumberKind::F32 => (x.to_le_bytes().to_vec(), *x),
    };
    let (bytes, numbers): (Vec<Vec<u8>>, Vec<f32>) = numbers.iter().map(one).unzip();
    (bytes.concat(), numbers)
}

/// Norms, chains, gathers and weights, for so many rows of so many numbers.
pub(super) fn check(bench: &Bench, sizes: &[(usize, usize)]) {
    for &(rows, width) in sizes {
        norms(bench, rows, width);
        chains(bench, rows, width);
        gathers(bench, rows, width);
        weights(bench, rows, width);
    }
}

fn norms(bench: &Bench, rows: usize, width: usize) {
    let mut random = Random::new(width as u64);
    let x: Vec<f32> = random.noise(rows * width).iter().map(|x| x * 20.0 + 3.0).collect();
    let (scale, bias) = (random.noise(width), random.noise(width));
    let [from, scales, biases] = [&x, &scale, &bias].map(|numbers| bench.put_floats(numbers));
    for (is_plain, centred) in FORMS.into_iter().flat_map(|form| [(form, true), (form, false)]) {
        let place = Place::new(bench, rows, width, is_plain);
        bench.run(&[norm(NormNumbers {
            out: place.out.address(),
            form: place.form,
            x: from.address(),
            scale: scales.address(),
            bias: if centred { biases.address() } else { DeviceAddress::NULL },
            rows: rows as u32,
            width: width as u32,
            centred,
            eps: 1e-6,
        })]);
        let expect: Vec<f64> = x
            .chunks_exact(width)
            .flat_map(|row| {
                let mean: f64 = row.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
                let mean = if centred { mean } else { 0.0 };
                let square = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
                let root = (square / width as f64 + 1e-6).sqrt();
                let own = row.iter().zip(&scale).zip(&bias);
                let own = own.map(move |((x, scale), bias)| {
                    let bias = if centred { f64::from(*bias) } else { 0.0 };
                    (f64::from(*x) - mean) / root * f64::from(*scale) + bias
                });
                own.collect::<Vec<_>>()
            })
            .collect();
        let off = apart(&place.read(bench), &expect);
        assert!(off < if is_plain { 1e-5 } else { 5e-4 }, "norm of {width}: {off}");
    }
}

/// GELU of a number times what its column has, and a row added that lies elsewhere.
fn chains(bench: &Bench, rows: usize, width: usize) {
    let mut random = Random::new(9);
    let (x, more) = (random.noise(rows * width), random.noise(rows * width));
    let column = random.noise(width);
    let (bytes, column) = kept(&column, NumberKind::Bf16);
    let (from, columns, others) =
        (bench.put_floats(&x), bench.put(&bytes), bench.put_floats(&more));
    let numbers = |kind, steps: &[usize]| Operand::Numbers { kind, steps: steps.to_vec() };
    let of = LinkSource::Operand;
    let chain = Chain {
        shape: vec![rows, width],
        steps: vec![width, 1],
        operands: vec![
            numbers(NumberKind::F32, &[width, 1]),
            numbers(NumberKind::Bf16, &[0, 1]),
            // Columns of what lies row by row.
            numbers(NumberKind::F32, &[1, rows]),
            Operand::Number(3.0),
        ],
        links: vec![
            (LinkOp::Mul, of(0), of(3)),
            (LinkOp::GeluErf, LinkSource::Link(0), LinkSource::Link(0)),
            (LinkOp::Mul, LinkSource::Link(1), of(1)),
            (LinkOp::Sub, of(2), LinkSource::Link(2)),
        ],
    };
    let program = chain.program().unwrap();
    let words = bench.put_words(&program.words);
    let expect: Vec<f64> = (0..rows * width)
        .map(|at| {
            let (row, k) = (at / width, at % width);
            let x = 3.0 * f64::from(x[at]);
            let gelu = 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2));
            f64::from(more[k * rows + row]) - gelu * f64::from(column[k])
        })
        .collect();
    for is_plain in FORMS {
        let place = Place::new(bench, rows, width, is_plain);
        bench.run(&[map(&Map {
            out: place.out.address(),
            form: place.form,
            operands: [&from, &columns, &others].map(DeviceBuffer::address).to_vec(),
            program_at: words.address(),
            program: &program,
        })]);
        let off = apart(&place.read(bench), &expect);
        assert!(off < if is_plain { 1e-5 } else { 5e-4 }, "a chain over {rows} x {width}: {off}");
    }
    every_operator(bench);
}

/// The error function by its series, of which nothing is left to see behind 6.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut sum, mut term) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// Each operator alone, on numbers that it takes.
fn every_operator(bench: &Bench) {
    let x: Vec<f32> = (0..13).map(|at| 0.05 + 0.3 * at as f32).collect();
    let from = bench.put_floats(&x);
    let gelu_tanh =
        |x: f64| 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x * x * x)).tanh());
    type Function<'a> = &'a dyn Fn(f64) -> f64;
    let by = 1.7_f32;
    let wide = f64::from(by);
    let all: [(LinkOp, Function<'_>); 21] = [
        (LinkOp::Abs, &f64::abs),
        (LinkOp::Sqrt, &f64::sqrt),
        (LinkOp::Reciprocal, &f64::recip),
        (LinkOp::Cos, &f64::cos),
        (LinkOp::Sin, &f64::sin),
        (LinkOp::Erf, &erf),
        (LinkOp::Tanh, &f64::tanh),
        (LinkOp::Sigmoid, &|x| 1.0 / (1.0 + (-x).exp())),
        (LinkOp::Exp, &f64::exp),
        (LinkOp::Neg, &|x| -x),
        (LinkOp::GeluErf, &|x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))),
        (LinkOp::GeluTanh, &gelu_tanh),
        (LinkOp::RoundF16, &|x| f16::from_f64(x).to_f64()),
        (LinkOp::RoundBf16, &|x| bf16::from_f64(x).to_f64()),
        (LinkOp::Add, &|x| x + wide),
        (LinkOp::Sub, &|x| x - wide),
        (LinkOp::Mul, &|x| x * wide),
        (LinkOp::Div, &|x| x / wide),
        (LinkOp::Pow, &|x| x.powf(wide)),
        (LinkOp::Min, &|x| x.min(wide)),
        (LinkOp::Max, &|x| x.max(wide)),
    ];
    for (op, function) in all {
        let steps = vec![1];
        let numbers = Operand::Numbers { kind: NumberKind::F32, steps: steps.clone() };
        let chain = Chain {
            shape: vec![x.len()],
            steps,
            operands: vec![numbers, Operand::Number(by)],
            links: vec![(op, LinkSource::Operand(0), LinkSource::Operand(1))],
        };
        let program = chain.program().unwrap();
        let words = bench.put_words(&program.words);
        let place = Place::new(bench, 1, x.len(), true);
        bench.run(&[map(&Map {
            out: place.out.address(),
            form: place.form,
            operands: vec![from.address()],
            program_at: words.address(),
            program: &program,
        })]);
        let expect: Vec<f64> = x.iter().map(|x| function(f64::from(*x))).collect();
        let off = apart(&place.read(bench), &expect);
        assert!(off < 1e-6, "{op:?} is off by {off}");
    }
}

fn gathers(bench: &Bench, rows: usize, width: usize) {
    let mut random = Random::new(4);
    let table = random.noise(2 * rows * width);
    let indices: Vec<u32> = (0..rows + 3).map(|_| random.below(rows) as u32).collect();
    let list = bench.put_words(&indices);
    for kind in [NumberKind::F16, NumberKind::Bf16, NumberKind::F32] {
        let (bytes, numbers) = kept(&table, kind);
        let from = bench.put(&bytes);
        let out = bench.poisoned(2 * indices.len() * width * 4);
        bench.run(&[gather(GatherNumbers {
            out: out.address(),
            from: Numbers { at: from.address(), kind },
            indices: list.address(),
            outer: 2,
            size: rows as u32,
            count: indices.len() as u32,
            inner: width as u32,
        })]);
        let row = |outer: usize, index: u32| {
            let first = (outer * rows + index as usize) * width;
            numbers[first..first + width].to_vec()
        };
        let expect: Vec<f32> = (0..2)
            .flat_map(|outer| indices.iter().map(move |index| (outer, *index)))
            .flat_map(|(outer, index)| row(outer, index))
            .collect();
        assert_eq!(bench.floats(&out), expect, "{kind:?}");
    }
}

/// Rows of so many numbers that are filled up with zeros.
fn filled(rows: &[f32], columns: usize, padded: usize) -> Vec<f32> {
    let mut filled = vec![0.0; rows.len() / columns * padded];
    for (to, from) in filled.chunks_exact_mut(padded).zip(rows.chunks_exact(columns)) {
        to[..columns].copy_from_slice(from);
    }
    filled
}

/// Weights of every kind, row by row and column by column, multiplied by activations: a row's bits are those of it alone.
fn weights(bench: &Bench, rows: usize, columns: usize) {
    let mut random = Random::new(12);
    let outputs = 72;
    let (weight, x) = (random.noise(outputs * columns), random.noise(rows * columns));
    let padded = padded_columns(columns);
    let halves: Vec<f32> = x.iter().map(|x| f16::from_f32(*x).to_f32()).collect();
    let filled = filled(&halves, columns, padded);
    for (kind, by_rows) in [
        (NumberKind::F16, true),
        (NumberKind::Bf16, false),
        (NumberKind::F32, true),
        (NumberKind::F32, false),
    ] {
        let (bytes, numbers) = kept(&weight, kind);
        let from = bench.put(&bytes);
        let shape = [outputs as u32, columns as u32];
        let steps = if by_rows { [columns as u64, 1] } else { [1, outputs as u64] };
        let levels = bench.poisoned(packed_halves(shape) as usize * 2);
        bench.run(&[pack(Pack {
            out: levels.address(),
            from: Numbers { at: from.address(), kind },
            shape,
            steps,
        })]);
        let multiply = |x: &[f32], rows: usize| {
            let halves = bench.put_activations(x, rows, padded);
            let out = bench.poisoned(rows * outputs * 4);
            let null = DeviceAddress::NULL;
            let (wide, levels) = (padded as u32, levels.address());
            let device =
                DeviceWeight::of_levels(WeightForm::OF_GRAPHS, outputs as u32, wide, levels);
            let tokens = rows as u32;
            let x = Activations { halves: halves.address(), sums: null, tokens };
            let outcome = Outcome::Store { out: out.address(), stride: outputs as u32 };
            let processors = bench.processors();
            let shape = default_shape(device.form, [outputs as u32, wide], tokens, processors);
            bench.run(&[product(&device, null, x, outcome, (shape, processors))]);
            bench.floats(&out)
        };
        let found = multiply(&filled, rows);
        let number = |row: usize, k: usize| {
            let at = row as u64 * steps[0] + k as u64 * steps[1];
            f64::from(f16::from_f32(numbers[at as usize]).to_f32())
        };
        let expect: Vec<f64> = (0..rows * outputs)
            .map(|at| {
                let (row, output) = (at / outputs, at % outputs);
                let of = |k: usize| f64::from(halves[row * columns + k]) * number(output, k);
                (0..columns).map(of).sum()
            })
            .collect();
        let off = apart(&found, &expect);
        assert!(off < 1e-5, "{kind:?} {by_rows}: {off}");
        let last = rows - 1;
        let alone = multiply(&filled[last * padded..], 1);
        assert_eq!(bits(&alone), bits(&found[last * outputs..]), "{kind:?}: a row alone");
    }
}

/// What becomes of products in graphs, by every kernel of halves: the bits of each are those of the first, and of a row
/// those of it alone.
pub(super) fn outcomes(bench: &Bench, outputs: usize, columns: usize, rows: usize) {
    let mut random = Random::new(outputs as u64);
    let shape = [outputs as u32, columns as u32];
    let (weight, x) = (random.noise(outputs * columns), random.noise(rows * columns));
    let vectors = [0, 1].map(|_| random.noise(outputs));
    let before = random.noise(rows * outputs);
    let [from, bias, gains] =
        [&weight, &vectors[0], &vectors[1]].map(|numbers| bench.put_floats(numbers));
    let levels = bench.poisoned(packed_halves(shape) as usize * 2);
    let numbers = Numbers { at: from.address(), kind: NumberKind::F32 };
    let steps = [columns as u64, 1];
    bench.run(&[pack(Pack { out: levels.address(), from: numbers, shape, steps })]);
    let half = |x: f32| f64::from(f16::from_f32(x).to_f32());
    let expect: Vec<f64> = (0..rows * outputs)
        .map(|at| {
            let (row, output) = (at / outputs, at % outputs);
            let of = |k: usize| half(x[row * columns + k]) * half(weight[output * columns + k]);
            (0..columns).map(of).sum::<f64>() + f64::from(vectors[0][output])
        })
        .collect();
    let sums =
        expect.iter().zip(&before).enumerate().map(|(at, (own, before))| {
            f64::from(*before) + own * f64::from(vectors[1][at % outputs])
        });
    let sums: Vec<f64> = sums.collect();
    let erf = |x: &f64| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2));
    let tanh = |x: &f64| 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x.powi(3))).tanh());
    let device = DeviceWeight::of_levels(
        WeightForm::OF_GRAPHS,
        outputs as u32,
        columns as u32,
        levels.address(),
    );
    let trial = Trial { bench, device, bias: bias.address(), gains: gains.address() };
    for (turn, expect) in [
        (None, sums),
        (Some(Turn::None), expect.clone()),
        (Some(Turn::GeluErf), expect.iter().map(erf).collect()),
        (Some(Turn::GeluTanh), expect.iter().map(tanh).collect()),
    ] {
        let all = trial.by_every_kernel(&x, &before, turn);
        let (first, others) = all.split_first().expect("there are kernels");
        let off = apart(first, &expect);
        assert!(off < if turn.is_none() { 1e-5 } else { 5e-4 }, "{turn:?}: off by {off}");
        for other in others {
            assert!(bits(other) == bits(first), "{turn:?}: another kernel, other bits");
        }
        let last = rows - 1;
        let alone = trial.by_every_kernel(&x[last * columns..], &before[last * outputs..], turn);
        for alone in alone {
            assert!(bits(&alone) == bits(&first[last * outputs..]), "{turn:?}: a row alone");
        }
    }
}

/// A weight that every kernel multiplies.
struct Trial<'a> {
    bench: &'a Bench,
    device: DeviceWeight,
    bias: DeviceAddress,
    gains: DeviceAddress,
}

impl Trial<'_> {
    /// Results of each kernel: turned activations, or the sum with `before`.
    fn by_every_kernel(&self, x: &[f32], before: &[f32], turn: Option<Turn>) -> Vec<Vec<f32>> {
        let Self { bench, device, bias, .. } = *self;
        let (columns, outputs) = (device.columns as usize, device.rows as usize);
        let rows = x.len() / columns;
        let (halves, before) = (bench.put_activations(x, rows, columns), bench.put_floats(before));
        let sums = DeviceAddress::NULL;
        let x = Activations { halves: halves.address(), sums, tokens: rows as u32 };
        let mut all = Vec::new();
        let mut by = |kernel: &dyn Fn(Outcome) -> Launch| {
            let place = Place::new(bench, rows, outputs, turn.is_none());
            let (out, gains, stride) = (place.out.address(), self.gains, device.rows);
            bench.run(&[kernel(match turn {
                None => Outcome::Sum { out, before: before.address(), gains, stride },
                Some(turn) => Outcome::Halves { out, turn },
            })]);
            all.push(place.read(bench));
        };
        let all_processors = bench.processors();
        let usual =
            default_shape(device.form, [device.rows, device.columns], x.tokens, all_processors);
        for shape in ProductShape::all_on(device.form, all_processors) {
            if !shape.has_room(device.form, device.columns) {
                continue;
            }
            // The twin has one function for all shapes.
            if shape.takes(x.tokens) && (bench.is_card || shape == usual) {
                by(&|outcome| product(&device, bias, x, outcome, (shape, all_processors)));
            }
            if matches!(shape, ProductShape::Wide(_)) {
                // More tiles than blocks.
                let few = Processors { count: 2, ..all_processors };
                by(&|outcome| product(&device, bias, x, outcome, (shape, few)));
            }
        }
        all
    }
}

/// Attention of `[batch, rows]` of heads of `dim` numbers, with kernels for heads of up to `most`.
pub(super) struct Attending {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) dim: usize,
    pub(super) most: usize,
}

impl Attending {
    /// With and without a mask, against f64; each of the batch alone has the bits that it has in company.
    pub(super) fn check(&self, bench: &Bench) {
        let Self { batch, heads, rows, dim, .. } = *self;
        let mut random = Random::new((rows * dim) as u64);
        let x: Vec<f32> =
            random.noise(batch * rows * 3 * heads * dim).iter().map(|x| x * 2.0).collect();
        // A sixth of the keys is hidden, and never one from itself.
        let hides = |row: usize, key: usize| row != key && (row * 7 + key).is_multiple_of(6);
        let mask: Vec<f32> = (0..rows * rows)
            .map(|at| if hides(at / rows, at % rows) { f32::MIN } else { 0.25 })
            .collect();
        for (is_masked, is_plain) in
            FORMS.into_iter().flat_map(|mask| FORMS.map(|form| (mask, form)))
        {
            let mask = is_masked.then_some(&mask[..]);
            let found = self.run(bench, &x, batch, mask, is_plain);
            let off = apart(&found, &self.expect(&x, mask));
            assert!(off < 2e-3, "{rows} rows of {dim}, masked {is_masked}: off by {off}");
            let (one, own) = (rows * 3 * heads * dim, rows * heads * dim);
            for item in 0..batch {
                let alone = self.run(bench, &x[item * one..(item + 1) * one], 1, mask, is_plain);
                let among = &found[item * own..(item + 1) * own];
                assert_eq!(bits(&alone), bits(among), "{item} of {batch} alone");
            }
        }
    }

    fn run(
        &self,
        bench: &Bench,
        x: &[f32],
        batch: usize,
        mask: Option<&[f32]>,
        is_plain: bool,
    ) -> Vec<f32> {
        let Self { heads, rows, dim, most, .. } = *self;
        let head = graph_head(most);
        let (from, width) = (bench.put_floats(x), 3 * heads * dim);
        let shape = [batch, heads, rows, dim].map(|size| size as u32);
        let steps = [rows * width, dim, width, 1].map(|step| step as u64);
        let part = |at: usize| {
            let at = from.address().offset((at * heads * dim * 4) as u64);
            HeadsView { from: Numbers { at, kind: NumberKind::F32 }, shape, steps }
        };
        // What comes from products lies in blocks already, where eights of numbers are whole.
        let wide = padded_columns(width);
        let filled = || filled(x, width, wide);
        let whole = (dim % 8 == 0).then(|| bench.put_activations(&filled(), batch * rows, wide));
        let padded = head.padded();
        let columns = padded_columns(heads * padded);
        let arranged = || bench.poisoned(activation_len(batch * rows, columns) * 2);
        let parts = [arranged(), arranged(), arranged()];
        let blocks = |at: usize| {
            let (halves, first, by_head) = match &whole {
                Some(whole) => (whole.address(), at * heads * dim, dim),
                None => (parts[at].address(), 0, padded),
            };
            let columns = HeadColumns { first: first as u32, by_head: by_head as u32 };
            HeadBlocks { halves, eights: (batch * rows).div_ceil(8) as u32, columns }
        };
        let hidden = mask.map(|mask| bench.put_floats(mask));
        let mask = hidden.as_ref().map(|hidden| HeadsView {
            from: Numbers { at: hidden.address(), kind: NumberKind::F32 },
            shape: [batch, heads, rows, rows].map(|size| size as u32),
            steps: [0, 0, rows as u64, 1],
        });
        let place = Place::new(bench, batch * rows, heads * dim, is_plain);
        let arranging = (0..3).map(|at| arrange(parts[at].address(), part(at), head));
        let attending = AttendAll {
            out: place.out.address(),
            form: place.form,
            queries: blocks(0),
            keys: blocks(1),
            values: blocks(2),
            mask,
            scale: 1.0 / (dim as f32).sqrt(),
            heads: [batch as u32, heads as u32],
            rows: [rows as u32; 2],
            numbers: [dim as u32; 2],
            head,
        };
        let attending = attend(attending, bench.processors());
        bench.run(&arranging.chain([attending]).collect::<Vec<_>>());
        place.read(bench)
    }

    fn expect(&self, x: &[f32], mask: Option<&[f32]>) -> Vec<f64> {
        let Self { batch, heads, rows, dim, .. } = *self;
        let width = 3 * heads * dim;
        let number = |item: usize, row: usize, part: usize, head: usize, d: usize| {
            f64::from(x[(item * rows + row) * width + (part * heads + head) * dim + d])
        };
        let mut out = vec![0.0; batch * rows * heads * dim];
        for at in 0..batch * rows * heads {
            let (item, row, head) = (at / heads / rows, at / heads % rows, at % heads);
            let score = |key: usize| {
                let dot: f64 = (0..dim)
                    .map(|d| number(item, row, 0, head, d) * number(item, key, 1, head, d))
                    .sum();
                let more = mask.map_or(0.0, |mask| f64::from(mask[row * rows + key]));
                dot / (dim as f64).sqrt() + more
            };
            let scores: Vec<f64> = (0..rows).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..dim {
                let own = weights.iter().enumerate();
                let mixed: f64 =
                    own.map(|(key, weight)| weight * number(item, key, 2, head, d)).sum();
                out[at * dim + d] = mixed / sum;
            }
        }
        out
    }
}
