//! Tokens that a device chooses, beside those of the host.

use smelt_backend::sampling::{Chooser, Chosen, NotFinite, OwnDraw, Settings, TokenCount};
use smelt_random::Random;

use super::Bench;
use crate::kernels::choose::{
    ChoiceLists, ChooseBuffers, RESULT_BYTES, ROW_FACTS_BYTES, Told, blocks, choose, read_result,
};

/// Rows of every kind: spread as models spread them, even, with ties, with few that count, with zeros of both signs.
fn row(random: &mut Random, kind: usize, vocab: usize) -> Vec<f32> {
    let mut bell = || (random.unit() + random.unit() + random.unit() - 1.5) * 8.0;
    let mut row: Vec<f32> = (0..vocab).map(|_| bell()).collect();
    match kind {
        1 => row.iter_mut().for_each(|x| *x *= 0.05),
        2 => row.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0),
        3 => row[random.below(vocab)] = 40.0,
        4 => row.iter_mut().for_each(|x| *x = if *x > 4.0 { *x } else { *x * 0.0 }),
        5 => row[random.below(vocab)] = f32::NAN,
        6 => row[random.below(vocab)] = f32::INFINITY,
        _ => {}
    }
    row
}

fn draw(random: &mut Random, vocab: usize) -> OwnDraw {
    let settings = Settings {
        temperature: random.pick(&[0.0, 0.3, 0.7, 1.0, 1.0, 1.7]),
        top_k: random.pick(&[0, 0, 0, 1, 5, 40, 64, 500]),
        top_p: random.pick(&[1.0, 1.0, 0.5, 0.9, 0.95, 0.999]),
        min_p: random.pick(&[0.0, 0.0, 0.0, 0.05, 0.3]),
        top_logprobs: random.pick(&[None, Some(0), Some(5), Some(20)]),
        ..Settings::GREEDY
    };
    let mut own =
        OwnDraw { settings, counts: Vec::new(), mask: None, uniform: f64::from(random.unit()) };
    if random.chance(30) {
        own.settings.repetition_penalty = random.pick(&[1.0, 1.2, 0.8]);
        own.settings.frequency_penalty = random.pick(&[0.0, 0.5]);
        own.settings.presence_penalty = random.pick(&[0.0, -0.3]);
        own.counts = (0..vocab as u32)
            .filter(|token| token % 7 == 3)
            .map(|token| TokenCount { token, count: token % 4 })
            .collect();
    }
    if random.chance(30) {
        let token = |random: &mut Random| random.below(vocab) as u32;
        own.settings.logit_bias = (0..9).map(|_| (token(random), random.signed() * 5.0)).collect();
        let again = own.settings.logit_bias[0].0;
        own.settings.logit_bias.push((again, 0.37));
    }
    if random.chance(40) {
        let kept = random.pick(&[2, 10, 60, 100]);
        let mut words = vec![0_u32; vocab.div_ceil(32) + 1];
        for token in 0..vocab {
            if random.chance(kept) {
                words[token / 32] |= 1 << (token % 32);
            }
        }
        // What is beyond the row does not count.
        *words.last_mut().expect("there is one") = u32::MAX;
        words.truncate(words.len() - usize::from(random.coin()));
        own.mask = Some(words);
    }
    own
}

/// A choice of one row: a draw, or a token whose likelihood is asked for.
enum Asked {
    Draw(OwnDraw),
    Score(u32, usize),
}

/// Rows of so many tokens, `rounds` times a batch of all kinds: what the device chooses the host chooses.
pub(super) fn check(bench: &Bench, vocab: usize, rounds: usize) {
    let mut random = Random::new(vocab as u64);
    let mut left = 0;
    for _ in 0..rounds {
        let rows: Vec<Vec<f32>> = (0..7).map(|kind| row(&mut random, kind, vocab)).collect();
        let mut asked: Vec<(usize, Asked)> = Vec::new();
        for at in 0..rows.len() {
            for _ in 0..3 {
                asked.push((at, Asked::Draw(draw(&mut random, vocab))));
            }
            asked.push((at, Asked::Score(random.below(vocab) as u32, random.below(21))));
        }
        left += batch(bench, vocab, &rows, &asked);
    }
    let all = rounds * 7 * 4;
    // Rows with thousands of equal logits are more than a block sorts.
    assert!(left * 5 <= all, "{left} of {all} rows of {vocab} are left to the host");
}

/// How many choices of a batch are left to the host; the others are the host's own.
fn batch(bench: &Bench, vocab: usize, rows: &[Vec<f32>], asked: &[(usize, Asked)]) -> usize {
    let mut lists = ChoiceLists::default();
    for (at, (row, asked)) in asked.iter().enumerate() {
        match asked {
            Asked::Draw(draw) => lists.draw(*row as u32, &draw.as_draw(), Some(at as u32)),
            Asked::Score(token, top) => lists.score(*row as u32, *token, *top),
        }
    }
    let count = asked.len();
    let lines = count * 2 * blocks(vocab) * 4;
    let logits = bench.put_floats(&rows.concat());
    let [choices, biases, counts, masks] =
        [&lists.choices, &lists.biases, &lists.counts, &lists.masks].map(|list| bench.put(list));
    let [adjusted, allowed] = [(); 2].map(|()| bench.poisoned(count * vocab * 4));
    let [lengths, next] = [(); 2].map(|()| bench.poisoned(count * 4));
    let faults = bench.put(&vec![0; count * 4]);
    let [largest, weights] = [(); 2].map(|()| bench.poisoned(lines));
    let facts = bench.put(&vec![0; count * ROW_FACTS_BYTES]);
    let results = bench.poisoned(count * RESULT_BYTES);
    let buffers = ChooseBuffers {
        logits: logits.address(),
        choices: choices.address(),
        biases: biases.address(),
        counts: counts.address(),
        masks: masks.address(),
        rows: adjusted.address(),
        allowed: allowed.address(),
        lengths: lengths.address(),
        faults: faults.address(),
        largest: largest.address(),
        weights: weights.address(),
        facts: facts.address(),
        results: results.address(),
        next: next.address(),
    };
    bench.run(&choose(buffers, lists.asked(), vocab));
    let (results, next) = (bench.bytes(&results), bench.bytes(&next));
    assert!(bench.bytes(&faults).iter().all(|byte| *byte == 0), "faults are left as they came");
    for facts in bench.bytes(&facts).as_chunks::<ROW_FACTS_BYTES>().0 {
        let ranks = &facts[ROW_FACTS_BYTES - 12..];
        assert!(ranks.iter().all(|byte| *byte == 0), "ranks are left as they came");
    }
    let next = next.as_chunks::<4>().0;
    let mut left = 0;
    for (at, result) in results.as_chunks::<RESULT_BYTES>().0.iter().enumerate() {
        let (row, asked) = &asked[at];
        let (expect, top) = expected(&rows[*row], asked);
        match (read_result(result, vocab, top), asked) {
            (Told::LeftToHost, _) => left += 1,
            (found, Asked::Draw(draw)) => {
                let settings = &draw.settings;
                assert_eq!(found, expect, "choice {at} of {vocab} by {settings:?}");
                if let Told::Chosen(Ok(chosen)) = found {
                    assert_eq!(u32::from_le_bytes(next[at]), chosen.token);
                }
            }
            (found, Asked::Score(..)) => assert_eq!(found, expect, "score {at} of {vocab}"),
        }
    }
    left
}

/// What the host says, and how many of the likeliest are told with it.
fn expected(row: &[f32], asked: &Asked) -> (Told, Option<usize>) {
    let mut chooser = Chooser::default();
    match asked {
        Asked::Draw(draw) => {
            let chosen = chooser.choose(row, &draw.as_draw());
            (Told::Chosen(chosen), draw.settings.top_logprobs)
        }
        Asked::Score(token, top) => {
            let score = chooser.score(row, *token, *top);
            let chosen = |logprobs| Chosen { token: *token, logprobs: Some(logprobs) };
            (Told::Chosen(score.map(chosen).map_err(|_| NotFinite)), Some(*top))
        }
    }
}
