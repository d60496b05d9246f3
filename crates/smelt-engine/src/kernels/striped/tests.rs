//! Holds the kernels of stripes against sums in f64 and against each other.

use half::{bf16, f16};
use smelt_random::Random;

use super::*;
use crate::kernels::isa::Isa;
use crate::kernels::testing::{close, rounds, size};
use crate::kernels::threads::Threads;

/// Weights as they are stored row after row, and in stripes.
struct Weights {
    rows: usize,
    columns: usize,
    form: TestMatrix,
    /// `[rows, columns]` multiplied out.
    wide: Vec<f32>,
}

enum TestMatrix {
    F32(Vec<f32>),
    Half(Vec<u16>, bool),
    Quants {
        bits: Bits,
        quants: Vec<u8>,
        group_runs: usize,
        scales: Scales,
        zeros: Option<Vec<u8>>,
    },
}

enum Scales {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

impl Weights {
    fn view(&self) -> Striped<'_> {
        match &self.form {
            TestMatrix::F32(all) => Striped::floats(Elements::F32(all), self.rows, self.columns),
            TestMatrix::Half(all, true) => {
                Striped::floats(Elements::F16(all), self.rows, self.columns)
            }
            TestMatrix::Half(all, false) => {
                Striped::floats(Elements::Bf16(all), self.rows, self.columns)
            }
            TestMatrix::Quants { bits, quants, group_runs, scales, zeros } => {
                let scales = match scales {
                    Scales::F32(all) => Elements::F32(all),
                    Scales::F16(all) => Elements::F16(all),
                };
                let (bits, group_runs, zeros) = (*bits, *group_runs, zeros.as_deref());
                let quants = QuantizedStripes { bits, quants, group_runs, scales, zeros };
                Striped::quants(quants, self.rows, self.columns)
            }
        }
    }
}

/// The parts of a weight, `rows` rows of `len` bytes, each stripe through `stripe`.
pub(super) fn stripe_all(all: &[u8], len: usize, stripe: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    all.chunks(len * STRIPE).flat_map(stripe).collect()
}

fn halves(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<2>().0.iter().map(|&pair| u16::from_le_bytes(pair)).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&quad| f32::from_le_bytes(quad)).collect()
}

fn float_weights(random: &mut Random, rows: usize, columns: usize, kind: usize) -> Weights {
    let wide = random.noise(rows * columns);
    let (bytes, wide): (Vec<u8>, Vec<f32>) = match kind {
        0 => (wide.iter().flat_map(|w| w.to_le_bytes()).collect(), wide),
        1 => {
            let all: Vec<f16> = wide.iter().map(|&w| f16::from_f32(w)).collect();
            let bytes = all.iter().flat_map(|w| w.to_le_bytes()).collect();
            (bytes, all.iter().map(|w| w.to_f32()).collect())
        }
        _ => {
            let all: Vec<bf16> = wide.iter().map(|&w| bf16::from_f32(w)).collect();
            let bytes = all.iter().flat_map(|w| w.to_le_bytes()).collect();
            (bytes, all.iter().map(|w| w.to_f32()).collect())
        }
    };
    let width = if kind == 0 { 4 } else { 2 };
    let striped = stripe_all(&bytes, columns * width, |rows| stripe_elements(rows, columns, width));
    let form = if kind == 0 {
        TestMatrix::F32(floats(&striped))
    } else {
        TestMatrix::Half(halves(&striped), kind == 1)
    };
    Weights { rows, columns, form, wide }
}

/// Quants with a scale for every `group` columns.
fn quantized_weights(
    random: &mut Random,
    [rows, columns, group]: [usize; 3],
    bits: Bits,
    asymmetric: bool,
) -> Weights {
    let groups = columns.div_ceil(group);
    let halved = random.below(2) == 0;
    let scale = |random: &mut Random| {
        let scale = random.signed();
        if halved { f16::from_f32(scale).to_f32() } else { scale }
    };
    let scales: Vec<f32> = (0..rows * groups).map(|_| scale(random)).collect();
    let asymmetric = asymmetric && bits == Bits::Four;
    let zeros: Vec<u8> = (0..rows * groups).map(|_| random.below(17) as u8).collect();
    let row_bytes = if bits == Bits::Four { columns.div_ceil(2) } else { columns };
    let bytes: Vec<u8> = (0..rows * row_bytes).map(|_| random.below(256) as u8).collect();
    let wide = (0..rows * columns).map(|at| {
        let (row, column) = (at / columns, at % columns);
        let group = row * groups + column / group;
        let quant = match bits {
            Bits::Eight => f32::from(bytes[at] as i8),
            Bits::Four => {
                let nibble = (bytes[row * row_bytes + column / 2] >> (column % 2 * 4)) & 15;
                f32::from(nibble) - if asymmetric { f32::from(zeros[group]) } else { 8.0 }
            }
        };
        quant * scales[group]
    });
    let wide = wide.collect();
    let quants = stripe_all(&bytes, row_bytes, |rows| match bits {
        Bits::Four => stripe_nibbles(rows, columns),
        Bits::Eight => stripe_bytes(rows, columns),
    });
    let scale_bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let scales =
        floats(&stripe_all(&scale_bytes, groups * 4, |rows| stripe_elements(rows, groups, 4)));
    let scales = if halved {
        Scales::F16(scales.iter().map(|&scale| f16::from_f32(scale).to_bits()).collect())
    } else {
        Scales::F32(scales)
    };
    let zeros =
        asymmetric.then(|| stripe_all(&zeros, groups, |rows| stripe_elements(rows, groups, 1)));
    let group_runs = group.div_ceil(RUN);
    Weights {
        rows,
        columns,
        form: TestMatrix::Quants { bits, quants, group_runs, scales, zeros },
        wide,
    }
}

/// The activations as the kernels of quants see them.
fn rounded(x: &[f32], columns: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks(columns) {
        for run in row.chunks(RUN) {
            let max = run.iter().fold(0f32, |max, x| max.max(x.abs()));
            let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
            out.extend(run.iter().map(|x| (x * inverse).round_ties_even() * (max / 127.0)));
        }
    }
    out
}

fn product(weights: &Weights, x: &[f32], bias: &[f32]) -> Vec<f64> {
    floats_of(&weights.wide, weights.columns, x, bias, false)
}

/// The product of `wide` `[rows, columns]` and `x`, as it is or as the kernels of quants see it.
pub(super) fn floats_of(
    wide: &[f32],
    columns: usize,
    x: &[f32],
    bias: &[f32],
    is_rounded: bool,
) -> Vec<f64> {
    let rows = |x: &[f32]| -> Vec<f64> {
        let row = |(w, bias): (&[f32], &f32)| {
            let sum: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            sum + f64::from(*bias)
        };
        wide.chunks(columns).zip(bias).map(row).collect()
    };
    let x = if is_rounded { rounded(x, columns) } else { x.to_vec() };
    x.chunks(columns).flat_map(rows).collect()
}

fn run_quants(weights: &Weights, x: &[f32], bias: &[f32], isa: Isa, threads: &Threads) -> Vec<f32> {
    run(Arithmetic::Integers, weights.view(), x, bias, isa, threads)
}

/// `x` by `view`, plus `bias`.
pub(super) fn run(
    arithmetic: Arithmetic,
    view: Striped<'_>,
    x: &[f32],
    bias: &[f32],
    isa: Isa,
    threads: &Threads,
) -> Vec<f32> {
    let mut input = Input::default();
    input.fill(x, view.columns(), view.rounding(arithmetic), isa, threads);
    let mut out = vec![7.0; input.tokens() * view.rows()];
    let (bias, stride) = (Some(bias), view.rows());
    multiply(&input, vec![Job { weight: view, bias, out: &mut out, stride }], isa, threads);
    out
}

#[track_caller]
fn check(weights: &Weights, tokens: usize, random: &mut Random, what: &str) {
    let x = random.noise(tokens * weights.columns);
    let bias = random.noise(weights.rows);
    let view = weights.view();
    let seen = if view.is_quantized() { rounded(&x, weights.columns) } else { x.clone() };
    let expect = product(weights, &seen, &bias);
    let (one, many) = (Threads::new(1), Threads::new(3));
    let first = run_quants(weights, &x, &bias, Isa::all()[0], &one);
    close(&first, &expect, 3e-6, what);
    for isa in Isa::all() {
        assert_eq!(run_quants(weights, &x, &bias, isa, &one), first, "{what} {isa:?}");
        assert_eq!(run_quants(weights, &x, &bias, isa, &many), first, "{what} {isa:?} by threads");
        for (token, row) in x.chunks(weights.columns).enumerate() {
            let alone = run_quants(weights, row, &bias, isa, &one);
            assert_eq!(alone[..], first[token * weights.rows..][..weights.rows], "{what} {isa:?}");
        }
    }
    let floats = run(Arithmetic::Floats, view, &x, &bias, Isa::detect(), &many);
    close(&floats, &product(weights, &x, &bias), 3e-6, &format!("{what} in floats"));
    let mut row = vec![0.0; weights.columns];
    for (index, wide) in weights.wide.chunks(weights.columns).enumerate() {
        view.widen_row(index, &mut row);
        assert_eq!(row, wide, "{what}: row {index}");
    }
}

#[test]
fn levels_of_odd_shapes_are_the_exact_sums_on_every_path() {
    let mut random = Random::new(21);
    for round in 0..rounds(120) {
        let group = [32, 64, 128, usize::MAX][round % 4];
        let (rows, columns) = (1 + random.below(size(70)), 1 + random.below(size(400)));
        let group = if group == usize::MAX { columns } else { group };
        let bits = if round % 3 == 0 { Bits::Eight } else { Bits::Four };
        let weights = quantized_weights(&mut random, [rows, columns, group], bits, round % 2 == 0);
        let tokens = 1 + random.below(size(if round % 5 == 0 { 30 } else { 9 }));
        let what = format!("{bits:?} {rows}x{columns} in {group}, {tokens} tokens");
        check(&weights, tokens, &mut random, &what);
    }
}

#[test]
fn floats_of_odd_shapes_are_the_exact_sums_on_every_path() {
    let mut random = Random::new(22);
    for round in 0..rounds(60) {
        let (rows, columns) = (1 + random.below(size(70)), 1 + random.below(size(700)));
        let weights = float_weights(&mut random, rows, columns, round % 3);
        let tokens = 1 + random.below(size(15));
        let what = format!("{} {rows}x{columns}, {tokens} tokens", round % 3);
        check(&weights, tokens, &mut random, &what);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn extreme_levels_do_not_overflow() {
    for bits in [Bits::Four, Bits::Eight] {
        for byte in [0u8, 0xff, 0x7f, 0x80] {
            let columns = 9000;
            let mut weights =
                quantized_weights(&mut Random::new(1), [16, columns, columns], bits, false);
            let row = vec![byte; if bits == Bits::Four { columns / 2 } else { columns } * 16];
            let TestMatrix::Quants { quants, .. } = &mut weights.form else { unreachable!() };
            *quants = match bits {
                Bits::Four => stripe_nibbles(&row, columns),
                Bits::Eight => stripe_bytes(&row, columns),
            };
            let mut x = vec![1.0; columns];
            x.iter_mut().skip(columns / 2).for_each(|x| *x = -1.0);
            let bias = vec![0.0; 16];
            let (isa, threads) = (Isa::all(), Threads::new(1));
            let first = run_quants(&weights, &x, &bias, isa[0], &threads);
            for isa in isa {
                assert_eq!(
                    run_quants(&weights, &x, &bias, isa, &threads),
                    first,
                    "{bits:?} {byte:#x}"
                );
            }
        }
    }
}

#[test]
fn jobs_share_an_input_and_leave_what_lies_between_their_rows() {
    let mut random = Random::new(23);
    let (threads, isa) = (Threads::new(2), Isa::detect());
    let [a, b] =
        [40, 19].map(|rows| quantized_weights(&mut random, [rows, 96, 32], Bits::Four, true));
    let x = random.noise(5 * 96);
    let mut input = Input::default();
    input.fill(&x, 96, Rounding::Runs, isa, &threads);
    let (mut first, mut second) = (vec![3.0; 5 * 50], vec![4.0; 5 * 19]);
    let jobs = vec![
        Job { weight: a.view(), bias: None, out: &mut first, stride: 50 },
        Job { weight: b.view(), bias: None, out: &mut second, stride: 19 },
    ];
    multiply(&input, jobs, isa, &threads);
    assert_eq!(second, run_quants(&b, &x, &[0.0; 19], isa, &threads));
    let alone = run_quants(&a, &x, &[0.0; 40], isa, &threads);
    for (row, alone) in first.chunks(50).zip(alone.chunks(40)) {
        assert_eq!(row[..40], *alone);
        assert_eq!(row[40..], [3.0; 10]);
    }
}

#[test]
fn numbers_that_are_none_are_not_hidden() {
    let mut random = Random::new(24);
    let weights = quantized_weights(&mut random, [16, 64, 32], Bits::Four, false);
    for odd in [f32::NAN, f32::INFINITY] {
        let mut x = random.noise(64);
        x[40] = odd;
        for isa in Isa::all() {
            let out = run_quants(&weights, &x, &[0.0; 16], isa, &Threads::new(1));
            assert!(out.iter().any(|out| !out.is_finite()), "{isa:?} {odd}");
        }
    }
}
