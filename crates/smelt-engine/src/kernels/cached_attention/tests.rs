//! Checks attention against its definition in f64, and that a row depends on nothing beside it.

use half::f16;
use memmap2::MmapMut;

use smelt_backend::KvType;
use smelt_random::Random;

use super::*;
use crate::kernels::testing::{close, rounds, size};

const KINDS: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

/// Keys and values of one head, kept as a slot keeps them.
struct Kept {
    shape: HeadShape,
    blocks: Vec<MmapMut>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Kept {
    fn new(random: &mut Random, kind: KvType, dim: usize, positions: usize) -> Self {
        let shape = HeadShape { dim, kind };
        let blocks = (0..positions.div_ceil(BLOCK))
            .map(|_| MmapMut::map_anon(shape.bytes()).unwrap())
            .collect();
        let [keys, values] = [3.0, 1.0].map(|scale| {
            let numbers = random.noise(positions * dim);
            numbers.into_iter().map(|number| number * scale).collect::<Vec<f32>>()
        });
        let mut kept = Self { shape, blocks, keys, values };
        for position in 0..positions {
            let row = position * dim..(position + 1) * dim;
            let (key, value) = (&kept.keys[row.clone()], &kept.values[row]);
            shape.store(&mut kept.blocks[position / BLOCK], position % BLOCK, key, value);
        }
        kept
    }

    fn attend(&self, isa: Isa, queries: &[f32], group: usize, start: usize) -> Vec<f32> {
        let rows = Rows { queries, dim: self.shape.dim, group, start };
        let mut out = vec![7.0; queries.len()];
        let mut blocks = self.blocks.iter().map(|block| self.shape.view(block));
        rows.attend(isa, &mut blocks, &mut out);
        out
    }

    /// The definition, over numbers as they are kept.
    fn exact(&self, queries: &[f32], group: usize, start: usize) -> Vec<f64> {
        let dim = self.shape.dim;
        let kept = |numbers: &[f32]| -> Vec<f64> {
            numbers.chunks_exact(dim).flat_map(|row| kept_row(self.shape.kind, row)).collect()
        };
        let (keys, values) = (kept(&self.keys), kept(&self.values));
        let mut out = Vec::new();
        for (row, query) in queries.chunks_exact(dim).enumerate() {
            let keys = keys.chunks_exact(dim).take(start + row / group + 1);
            let scores = keys.map(|key| dot(query, key));
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..dim).map(|i| {
                let values = values.iter().skip(i).step_by(dim);
                weights.iter().zip(values).map(|(weight, value)| weight * value).sum::<f64>() / sum
            }));
        }
        out
    }
}

fn dot(query: &[f32], key: &[f64]) -> f64 {
    query.iter().zip(key).map(|(&query, key)| f64::from(query) * key).sum()
}

fn kept_row(kind: KvType, row: &[f32]) -> Vec<f64> {
    let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let step = f64::from(largest / 127.0);
    let kept = |&x: &f32| match kind {
        KvType::F32 => f64::from(x),
        KvType::F16 => f16::from_f32(x).to_f64(),
        KvType::Int8 if largest == 0.0 => 0.0,
        KvType::Int8 => (f64::from(x) / step).round() * step,
    };
    row.iter().map(kept).collect()
}

fn queries(random: &mut Random, rows: usize, dim: usize) -> Vec<f32> {
    let scale = (dim as f32).sqrt().recip();
    random.noise(rows * dim).into_iter().map(|q| q * scale * 2.0).collect()
}

#[test]
fn every_set_computes_the_definition() {
    let mut random = Random::new(21);
    for round in 0..rounds(120) {
        let dim = [64, 80, 96, 128, 2 * (random.below(40) * 2 + 1)][round % 5];
        let (group, tokens) = (1 + random.below(size(8)), 1 + random.below(size(20)));
        let start = [0, random.below(size(64)), random.below(size(400))][round % 3];
        let kept = Kept::new(&mut random, KINDS[round % 3], dim, start + tokens);
        let queries = queries(&mut random, tokens * group, dim);
        let expect = kept.exact(&queries, group, start);
        let mut first = Vec::new();
        for isa in Isa::all() {
            let what = format!(
                "{isa:?}, {:?}, dim {dim}, group {group}, {start}+{tokens}",
                kept.shape.kind
            );
            let found = kept.attend(isa, &queries, group, start);
            // A quant may fall on the other side of a half.
            let tolerance = if kept.shape.kind == KvType::Int8 { 2e-3 } else { 2e-6 };
            close(&found, &expect, tolerance, &what);
            if first.is_empty() {
                first.clone_from(&found);
            }
            assert!(found == first, "{what}: other bits than the plain path");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_row_is_the_same_however_it_comes() {
    let mut random = Random::new(22);
    for round in 0..60 {
        let kind = KINDS[round % 3];
        let (dim, group) = ([64, 22, 80][round / 3 % 3], 1 + random.below(8));
        let tokens = 40 + random.below(150);
        let kept = Kept::new(&mut random, kind, dim, tokens);
        let queries = queries(&mut random, tokens * group, dim);
        for isa in Isa::all().into_iter().rev().take(2) {
            let whole = kept.attend(isa, &queries, group, 0);
            let mut start = 0;
            while start < tokens {
                let count = (1 + random.below(50)).min(tokens - start);
                let part = start * group * dim..(start + count) * group * dim;
                let found = kept.attend(isa, &queries[part.clone()], group, start);
                assert!(found == whole[part], "{isa:?} {kind:?}: {count} tokens from {start}");
                start += count;
            }
        }
    }
}

#[test]
fn numbers_that_are_none_show() {
    let mut random = Random::new(23);
    for kind in KINDS {
        let mut kept = Kept::new(&mut random, kind, 16, 70);
        let mut bad = vec![0.5; 16];
        bad[3] = f32::NAN;
        kept.shape.store(&mut kept.blocks[1], 2, &bad, &[1.0; 16]);
        for isa in Isa::all() {
            let found = kept.attend(isa, &queries(&mut random, 2, 16), 1, 65);
            assert!(found[..16].iter().all(|x| x.is_finite()), "position 65 does not see 66");
            assert!(found[16..].iter().all(|x| x.is_nan()), "{isa:?} {kind:?}");
        }
    }
}

#[test]
fn large_numbers_stay_finite_in_halves() {
    let shape = HeadShape { dim: 2, kind: KvType::F16 };
    let mut block = MmapMut::map_anon(shape.bytes()).unwrap();
    shape.store(&mut block, 0, &[1e6, -1e6], &[7e4, 1.0]);
    let mut out = [0.0; 2];
    let rows = Rows { queries: &[1.0, 1.0], dim: 2, group: 1, start: 0 };
    rows.attend(Isa::detect(), &mut std::iter::once(shape.view(&block)), &mut out);
    assert_eq!(out, [65504.0, 1.0]);
}
