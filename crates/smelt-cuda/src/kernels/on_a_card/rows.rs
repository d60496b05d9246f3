//! What happens to rows between products.

use half::{bf16, f16};
use smelt_random::Random;

use super::{Bench, apart};
use crate::DeviceAddress;
use crate::kernels::layout::{activation_len, padded_columns};
use crate::kernels::rows::{
    Embed, Norm, NumberKind, Reorder, Scatter, SwigluRows, embed, norm, reorder, scatter,
    swiglu_rows,
};

/// All of it, for so many tokens of so many numbers.
pub(super) fn check(bench: &Bench, sizes: &[(usize, usize)]) {
    for &(tokens, hidden) in sizes {
        norms(bench, tokens, hidden);
        gates(bench, tokens, hidden);
        sorted(bench, tokens, hidden);
        tables(bench, tokens, hidden);
    }
}

fn norms(bench: &Bench, tokens: usize, hidden: usize) {
    let mut random = Random::new(hidden as u64);
    let x: Vec<f32> = random.noise((tokens + 2) * hidden).iter().map(|x| x * 30.0).collect();
    let weight = random.noise(hidden);
    let mut listed: Vec<u32> = (0..tokens as u32 + 2).collect();
    random.shuffle(&mut listed);
    let columns = padded_columns(hidden);
    let (from, weights, rows) =
        (bench.put_floats(&x), bench.put_floats(&weight), bench.put_words(&listed));
    for is_listed in [false, true] {
        let out = bench.poisoned(activation_len(tokens, columns) * 2);
        bench.run(&[norm(Norm {
            out: out.address(),
            x: from.address(),
            weight: weights.address(),
            rows: if is_listed { rows.address() } else { DeviceAddress::NULL },
            tokens: tokens as u32,
            hidden: hidden as u32,
            columns: columns as u32,
            eps: 1e-6,
        })]);
        let found = bench.activations(&out, tokens, columns);
        for (token, found) in found.chunks_exact(columns).enumerate() {
            let row = if is_listed { listed[token] as usize } else { token };
            let x = &x[row * hidden..(row + 1) * hidden];
            let square: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let root = (square / hidden as f64 + 1e-6).sqrt();
            let expect: Vec<f64> =
                x.iter().zip(&weight).map(|(x, w)| f64::from(*x) / root * f64::from(*w)).collect();
            assert!(apart(&found[..hidden], &expect) < 5e-4, "norm of {hidden}");
            assert!(found[hidden..].iter().all(|x| *x == 0.0), "what fills columns is zero");
        }
    }
}

fn gates(bench: &Bench, tokens: usize, width: usize) {
    let mut random = Random::new(5);
    let both: Vec<f32> = random.noise(tokens * 2 * width).iter().map(|x| x * 6.0).collect();
    let columns = padded_columns(width);
    let from = bench.put_floats(&both);
    let out = bench.poisoned(activation_len(tokens, columns) * 2);
    let stride = 2 * width as u32;
    bench.run(&[swiglu_rows(SwigluRows {
        out: out.address(),
        gates: (from.address(), stride),
        ups: (from.address().offset(width as u64 * 4), stride),
        tokens: tokens as u32,
        width: width as u32,
        columns: columns as u32,
    })]);
    let found = bench.activations(&out, tokens, columns);
    for (found, both) in found.chunks_exact(columns).zip(both.chunks_exact(2 * width)) {
        let (gates, ups) = both.split_at(width);
        let expect = gates.iter().zip(ups).map(|(gate, up)| {
            let gate = f64::from(*gate);
            gate / (1.0 + (-gate).exp()) * f64::from(*up)
        });
        assert!(apart(&found[..width], &expect.collect::<Vec<_>>()) < 5e-4);
        assert!(found[width..].iter().all(|x| *x == 0.0));
    }
}

fn sorted(bench: &Bench, tokens: usize, columns: usize) {
    let mut random = Random::new(6);
    let padded = padded_columns(columns);
    let noise = random.noise(tokens * padded);
    let x: Vec<f32> = noise.iter().map(|x| f16::from_f32(*x).to_f32()).collect();
    let mut order: Vec<u32> = (0..columns as u32).collect();
    random.shuffle(&mut order);
    let (from, list) = (bench.put_activations(&x, tokens, padded), bench.put_words(&order));
    let out = bench.poisoned(activation_len(tokens, padded) * 2);
    bench.run(&[reorder(Reorder {
        out: out.address(),
        x: from.address(),
        order: list.address(),
        tokens: tokens as u32,
        columns: columns as u32,
        padded_columns: padded as u32,
    })]);
    let found = bench.activations(&out, tokens, padded);
    for (found, x) in found.chunks_exact(padded).zip(x.chunks_exact(padded)) {
        let expect: Vec<f32> = order.iter().map(|column| x[*column as usize]).collect();
        assert_eq!(found[..columns], expect);
        assert!(found[columns..].iter().all(|x| *x == 0.0));
    }
}

/// Embeddings, and rows of images put or added.
fn tables(bench: &Bench, tokens: usize, hidden: usize) {
    let mut random = Random::new(8);
    let vocab = 11;
    let table = random.noise(vocab * hidden);
    let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab) as u32).collect();
    let list = bench.put_words(&ids);
    for kind in [NumberKind::F16, NumberKind::Bf16, NumberKind::F32] {
        let (bytes, kept): (Vec<Vec<u8>>, Vec<f32>) = table
            .iter()
            .map(|x| match kind {
                NumberKind::F16 => {
                    (f16::from_f32(*x).to_le_bytes().to_vec(), f16::from_f32(*x).to_f32())
                }
                NumberKind::Bf16 => {
                    (bf16::from_f32(*x).to_le_bytes().to_vec(), bf16::from_f32(*x).to_f32())
                }
                NumberKind::F32 => (x.to_le_bytes().to_vec(), *x),
            })
            .unzip();
        let from = bench.put(&bytes.concat());
        let out = bench.poisoned(tokens * hidden * 4);
        let (tokens_word, width) = (tokens as u32, hidden as u32);
        bench.run(&[embed(Embed {
            out: out.address(),
            table: from.address(),
            kind,
            ids: list.address(),
            tokens: tokens_word,
            hidden: width,
        })]);
        let row = |id: u32| &kept[id as usize * hidden..(id as usize + 1) * hidden];
        let mut expect: Vec<f32> = ids.iter().flat_map(|id| row(*id)).copied().collect();
        assert_eq!(bench.floats(&out), expect, "embeddings of {kind:?}");
        let (rows, sources) = (bench.put_words(&[tokens_word - 1]), bench.put_words(&[3]));
        for adds in [false, true] {
            bench.run(&[scatter(Scatter {
                x: out.address(),
                from: from.address(),
                kind,
                rows: rows.address(),
                sources: sources.address(),
                count: 1,
                hidden: width,
                adds,
            })]);
            let last = &mut expect[(tokens - 1) * hidden..];
            for (number, from) in last.iter_mut().zip(row(3)) {
                *number = if adds { *number + from } else { *from };
            }
            assert_eq!(bench.floats(&out), expect, "images of {kind:?}, adds {adds}");
        }
    }
}
