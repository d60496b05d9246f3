//! Holds the kernels of blocks against sums in f64 and against each other.

use half::f16;
use smelt_random::Random;
use smelt_tensor::packed::BlockForm;

use super::super::tests::{floats_of, run, stripe_all};
use super::super::{Arithmetic, STRIPE, Striped, stripe_elements, stripe_nibbles};
use super::{Blocks, Halves};
use crate::kernels::isa::Isa;
use crate::kernels::testing::{close, rounds, size};
use crate::kernels::threads::Threads;

/// A weight row after row, and in stripes.
struct Weights {
    form: BlockForm,
    rows: usize,
    columns: usize,
    nibbles: Vec<u8>,
    high: Vec<u8>,
    scales: Numbers,
    mins: Option<Numbers>,
    /// `[rows, columns]`, multiplied out.
    wide: Vec<f32>,
}

/// Numbers of groups in stripes.
struct Numbers {
    halves: Vec<u16>,
    factors: Option<Vec<u8>>,
    /// `[rows, groups]`, multiplied out.
    wide: Vec<f32>,
}

impl Numbers {
    fn random(random: &mut Random, form: BlockForm, [rows, columns]: [usize; 2]) -> Self {
        let (spans, groups) = (columns / form.span, columns / form.group);
        let half = |random: &mut Random| f16::from_f32(random.signed());
        let halves: Vec<f16> = (0..rows * spans).map(|_| half(random)).collect();
        let most = if form.has_mins { 64 } else { 256 };
        let factor = |random: &mut Random| random.below(most) as u8;
        let factors: Vec<u8> = (0..rows * groups).map(|_| factor(random)).collect();
        let wide = (0..rows * groups).map(|at| {
            let (row, group) = (at / groups, at % groups);
            let half = halves[row * spans + group * form.group / form.span].to_f32();
            if form.has_factors() { half * f32::from(factors[at].cast_signed()) } else { half }
        });
        let wide = wide.collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        let striped = stripe_all(&bytes, spans * 2, |rows| stripe_elements(rows, spans, 2));
        let halves = striped.as_chunks::<2>().0.iter().map(|&b| u16::from_le_bytes(b)).collect();
        let lay = || stripe_all(&factors, groups, |rows| stripe_elements(rows, groups, 1));
        Self { halves, factors: form.has_factors().then(lay), wide }
    }

    fn view(&self) -> Halves<'_> {
        Halves { halves: &self.halves, factors: self.factors.as_deref() }
    }
}

impl Weights {
    /// Random quants, or only `quant`.
    fn random(random: &mut Random, form: BlockForm, shape: [usize; 2], quant: Option<u8>) -> Self {
        let [rows, columns] = shape;
        let most = 1 << form.bits;
        let quant = |random: &mut Random| quant.unwrap_or_else(|| random.below(most) as u8);
        let quants: Vec<u8> = (0..rows * columns).map(|_| quant(random)).collect();
        let scales = Numbers::random(random, form, shape);
        let mins = form.has_mins.then(|| Numbers::random(random, form, shape));
        let groups = columns / form.group;
        let wide = quants.iter().enumerate().map(|(at, &quant)| {
            let group = at / columns * groups + at % columns / form.group;
            let quant = f32::from(quant) - f32::from(form.middle());
            let product = quant * scales.wide[group];
            mins.as_ref().map_or(product, |mins| product - mins.wide[group])
        });
        let wide = wide.collect();
        let nibbles: Vec<u8> =
            quants.as_chunks::<2>().0.iter().map(|two| two[0] & 15 | (two[1] & 15) << 4).collect();
        let nibbles = stripe_all(&nibbles, columns / 2, |rows| stripe_nibbles(rows, columns));
        let high = form.word_columns().map_or_else(Vec::new, |width| {
            let words = columns / width;
            let rows: Vec<u8> =
                quants.chunks(columns).flat_map(|quants| high_words(form, width, quants)).collect();
            stripe_all(&rows, words * 4, |rows| stripe_elements(rows, words, 4))
        });
        Self { form, rows, columns, nibbles, high, scales, mins, wide }
    }

    fn view(&self) -> Striped<'_> {
        let blocks = Blocks {
            form: self.form,
            nibbles: &self.nibbles,
            high: &self.high,
            scales: self.scales.view(),
            mins: self.mins.as_ref().map(Numbers::view),
        };
        Striped::blocks(blocks, self.rows, self.columns)
    }
}

/// What is above four bits of a row's quants, as [`BlockForm`] has it.
fn high_words(form: BlockForm, width: usize, quants: &[u8]) -> Vec<u8> {
    let word = |quants: &[u8]| {
        let mut word = [0; 4];
        for (column, quant) in quants.iter().enumerate() {
            word[column % 4] |= quant >> 4 << (column / 4 * form.high_bits() as usize);
        }
        word
    };
    quants.chunks(width).flat_map(word).collect()
}

#[track_caller]
fn check(weights: &Weights, tokens: usize, random: &mut Random) {
    let Weights { form, rows, columns, ref wide, .. } = *weights;
    let what = format!("{} {rows}x{columns}, {tokens} tokens", form.name);
    let (x, bias) = (random.noise(tokens * columns), random.noise(rows));
    let view = weights.view();
    let integers =
        |x: &[f32], isa, threads| run(Arithmetic::Integers, view, x, &bias, isa, threads);
    let (one, many) = (Threads::new(1), Threads::new(3));
    let first = integers(&x, Isa::all()[0], &one);
    close(&first, &floats_of(wide, columns, &x, &bias, true), 1e-5, &what);
    for isa in Isa::all() {
        assert_eq!(integers(&x, isa, &one), first, "{what} {isa:?}");
        assert_eq!(integers(&x, isa, &many), first, "{what} {isa:?} by threads");
        for (token, row) in x.chunks(columns).enumerate() {
            assert_eq!(
                integers(row, isa, &one)[..],
                first[token * rows..][..rows],
                "{what} {isa:?}"
            );
        }
    }
    let floats = run(Arithmetic::Floats, view, &x, &bias, Isa::detect(), &many);
    close(&floats, &floats_of(wide, columns, &x, &bias, false), 1e-5, &format!("{what} in floats"));
    let mut row = vec![0.0; columns];
    for (index, wide) in wide.chunks(columns).enumerate() {
        view.widen_row(index, &mut row);
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&row), bits(wide), "{what}: row {index}");
    }
}

#[test]
fn blocks_are_the_exact_sums_on_every_path() {
    let mut random = Random::new(31);
    for round in 0..rounds(48) {
        let form = BlockForm::ALL[round % BlockForm::ALL.len()];
        let width = form.span.max(32);
        let columns = width * (1 + random.below(size(1024 / width)));
        let rows = 1 + random.below(size(40));
        let tokens = 1 + random.below(size(if round % 5 == 0 { 30 } else { 9 }));
        let weights = Weights::random(&mut random, form, [rows, columns], None);
        check(&weights, tokens, &mut random);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn the_largest_levels_do_not_overflow() {
    for form in BlockForm::ALL {
        for quant in [0, ((1_u32 << form.bits) - 1) as u8] {
            let weights = Weights::random(&mut Random::new(5), form, [STRIPE, 512], Some(quant));
            let (view, bias, threads) = (weights.view(), [0.0; STRIPE], Threads::new(1));
            for x in [[1.0; 512], [-1.0; 512]] {
                let expect = floats_of(&weights.wide, 512, &x, &bias, true);
                for isa in Isa::all() {
                    let out = run(Arithmetic::Integers, view, &x, &bias, isa, &threads);
                    close(&out, &expect, 1e-5, &format!("{} {quant} {isa:?}", form.name));
                }
            }
        }
    }
}

#[test]
fn numbers_that_are_none_are_not_hidden() {
    let mut random = Random::new(6);
    for form in BlockForm::ALL {
        let weights = Weights::random(&mut random, form, [STRIPE, 256], None);
        for odd in [f32::NAN, f32::INFINITY] {
            let mut x = random.noise(256);
            x[40] = odd;
            for isa in Isa::all() {
                let (view, bias) = (weights.view(), [0.0; STRIPE]);
                let out = run(Arithmetic::Integers, view, &x, &bias, isa, &Threads::new(1));
                assert!(out.iter().any(|out| !out.is_finite()), "{} {isa:?} {odd}", form.name);
            }
        }
    }
}
