//! Tries a decoder against the contract: what any back end must hold, and every test of a back end calls.
//!
//! Each check opens a decoder of its own and panics with what does not hold.  Steps that are refused for want of memory are
//! tried again, since devices share memory; nothing may have changed by then.

use crate::sampling::{Chooser, GREEDY, Mask, Sampler, Settings};
use crate::{
    Adapter, Answer, Decoder, FeatureSpan, Features, ImageEmbeds, KvOptions, LogitRows,
    MemoryPlace, RunError, Scores, SlotInput, Want,
};

/// How often a step is tried that is refused for want of memory.
const TRIES: usize = 100;
/// Tokens of the prompts that are tried; longer than any block.
const PROMPT: usize = 150;

/// Opens the decoder that is tried; the options are those that a check needs.
pub type Open<'a> = &'a dyn Fn(KvOptions) -> Box<dyn Decoder>;

/// What stands for images in prompts of the decoder that is tried.
#[derive(Clone, Debug)]
pub struct TestImage {
    /// The token that features replace.
    pub token: u32,
    /// Two images of at least two tokens each, of different contents.
    pub features: [Features; 2],
}

/// Tries everything; images only where the decoder takes them, with one position a token.
pub fn decoder(open: Open<'_>, image: Option<&TestImage>) {
    cuts_change_no_bit(open);
    company_changes_no_bit(open);
    tokens_are_those_that_the_host_would_choose(open);
    proposed_tokens_are_judged_as_if_they_came_alone(open);
    scores_are_those_of_the_logits(open);
    forks_share_and_part(open);
    blocks_go_out_and_in(open);
    what_cannot_be_is_refused_and_changes_nothing(open);
    memory_is_counted_and_runs_out(open);
    memory_is_reported(open);
    steps_are_waited_for_in_turn(open);
    if let Some(image) = image {
        images_are_what_they_show(open, image);
    }
}

/// A prompt that depends on its number alone.
fn prompt(number: u64, vocab: usize, len: usize) -> Vec<u32> {
    let token = |at: u64| ((number * 7919 + at * at * 31 + at * 17 + 5) % vocab as u64) as u32;
    (0..len as u64).map(token).collect()
}

/// A step that is tried again while memory is short.
#[track_caller]
fn step(decoder: &mut dyn Decoder, runs: &[SlotInput<'_>]) -> Vec<Answer> {
    for _ in 0..TRIES {
        let before: Vec<usize> = runs.iter().map(|run| decoder.held(run.slot)).collect();
        let usage = decoder.kv_usage();
        match decoder.step(runs) {
            Ok(answers) => {
                assert_eq!(answers.len(), runs.len(), "an answer for each run");
                for (run, before) in runs.iter().zip(before) {
                    assert_eq!(
                        decoder.held(run.slot),
                        before + run.tokens.len(),
                        "tokens are held"
                    );
                }
                return answers;
            }
            Err(RunError::NoMemory { .. }) => {
                let held: Vec<usize> = runs.iter().map(|run| decoder.held(run.slot)).collect();
                assert_eq!(held, before, "a refused step changes nothing");
                assert_eq!(decoder.kv_usage(), usage, "a refused step takes nothing");
            }
            Err(error) => panic!("a step was refused: {error}"),
        }
    }
    panic!("memory was short {TRIES} times")
}

#[track_caller]
fn one(decoder: &mut dyn Decoder, run: SlotInput<'_>) -> Answer {
    step(decoder, &[run]).remove(0)
}

/// The logits behind each token of a prompt, alone in slot 0 of a decoder that holds nothing.
#[track_caller]
fn alone(decoder: &mut dyn Decoder, tokens: &[u32]) -> Vec<f32> {
    let answer = one(decoder, SlotInput::new(0, tokens).showing(LogitRows::All));
    decoder.release(0);
    assert_eq!(answer.logits.len(), tokens.len() * decoder.facts().vocab, "a row for each token");
    answer.logits
}

#[track_caller]
fn same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: the first number that differs");
}

fn cuts_change_no_bit(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let vocab = decoder.facts().vocab;
    let tokens = prompt(1, vocab, PROMPT);
    let expected = alone(decoder, &tokens);
    for size in [1, 7, 64, 65, 149] {
        let mut found = Vec::new();
        for cut in tokens.chunks(size) {
            found.extend(one(decoder, SlotInput::new(0, cut).showing(LogitRows::All)).logits);
        }
        same(&found, &expected, "a prompt in pieces");
        decoder.release(0);
    }
    let last = one(decoder, SlotInput::new(1, &tokens).showing(LogitRows::Last)).logits;
    same(&last, &expected[(PROMPT - 1) * vocab..], "the last row alone, in another slot");
}

fn company_changes_no_bit(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let (vocab, slots) = (decoder.facts().vocab, decoder.facts().limits.max_slots.min(4));
    let prompts: Vec<Vec<u32>> =
        (0..slots).map(|slot| prompt(slot as u64, vocab, 40 + 30 * slot)).collect();
    let expected: Vec<Vec<f32>> = prompts.iter().map(|tokens| alone(decoder, tokens)).collect();
    // Prompts of several slots in one step, then single tokens beside what is left of a prompt.
    let firsts: Vec<usize> = (0..slots).map(|slot| 20 + slot).collect();
    let begin =
        |slot: usize| SlotInput::new(slot, &prompts[slot][..firsts[slot]]).showing(LogitRows::All);
    let mut found: Vec<Vec<f32>> = step(decoder, &(0..slots).map(begin).collect::<Vec<_>>())
        .into_iter()
        .map(|answer| answer.logits)
        .collect();
    let mut at = firsts;
    while at.iter().zip(&prompts).any(|(at, tokens)| *at < tokens.len()) {
        let open: Vec<usize> = (0..slots).filter(|slot| at[*slot] < prompts[*slot].len()).collect();
        let end = |slot: usize| match slot == open[0] {
            true => prompts[slot].len().min(at[slot] + 9),
            false => at[slot] + 1,
        };
        let run = |slot: &usize| {
            SlotInput::new(*slot, &prompts[*slot][at[*slot]..end(*slot)]).showing(LogitRows::All)
        };
        let answers = step(decoder, &open.iter().map(run).collect::<Vec<_>>());
        let ends: Vec<usize> = open.iter().map(|slot| end(*slot)).collect();
        for ((slot, end), answer) in open.iter().zip(ends).zip(answers) {
            at[*slot] = end;
            found[*slot].extend(answer.logits);
        }
    }
    for (found, expected) in found.iter().zip(&expected) {
        same(found, expected, "a prompt beside others");
    }
}

/// Ways of choosing that differ in everything.
fn ways() -> Vec<Settings> {
    let plain = Settings { temperature: 0.9, seed: 11, ..Settings::GREEDY };
    vec![
        Settings::GREEDY,
        plain.clone(),
        Settings { top_k: 5, top_logprobs: Some(3), ..plain.clone() },
        Settings { top_p: 0.8, min_p: 0.02, ..plain.clone() },
        Settings {
            repetition_penalty: 1.3,
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            ..plain.clone()
        },
        Settings { logit_bias: vec![(1, 50.0), (2, -50.0)], top_logprobs: Some(0), ..plain },
    ]
}

fn tokens_are_those_that_the_host_would_choose(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let vocab = decoder.facts().vocab;
    let words: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| 0x5555_5555).collect();
    for (number, settings) in ways().iter().enumerate() {
        for mask in [None, Some(Mask::new(&words))] {
            let mut tokens = prompt(number as u64, vocab, 33);
            let mut sampler =
                Sampler::new(settings, &tokens, vocab).expect("the ways have meanings");
            let mut chooser = Chooser::default();
            let mut from = 0;
            for _ in 0..12 {
                let draw = [sampler.draw(mask)];
                let run =
                    SlotInput::new(0, &tokens[from..]).choosing(&draw).showing(LogitRows::Last);
                let answer = one(decoder, run);
                let expected = chooser.choose(&answer.logits, &draw[0]);
                assert_eq!(answer.chosen, [expected], "{settings:?}");
                let token = answer.chosen[0].as_ref().expect("logits are finite").token;
                sampler.count(token);
                from = tokens.len();
                tokens.push(token);
            }
            decoder.release(0);
        }
    }
}

fn proposed_tokens_are_judged_as_if_they_came_alone(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let tokens = prompt(5, decoder.facts().vocab, 20);
    let guesses = prompt(6, decoder.facts().vocab, 5);
    let first = one(decoder, SlotInput::new(0, &tokens).choosing(&[GREEDY]));
    let mut expected = Vec::new();
    decoder.fork(0, 1, tokens.len()).expect("slot 0 holds the prompt");
    for guess in &guesses {
        let answer =
            one(decoder, SlotInput::new(1, std::slice::from_ref(guess)).choosing(&[GREEDY]));
        expected.extend(answer.chosen);
    }
    let together = match decoder.step(&[SlotInput::new(0, &guesses).choosing(&[GREEDY; 5])]) {
        // A back end may say no, and then nothing has happened.
        Err(RunError::Unsupported { .. }) => return assert_eq!(decoder.held(0), tokens.len()),
        Err(RunError::NoMemory { .. }) => {
            one(decoder, SlotInput::new(0, &guesses).choosing(&[GREEDY; 5]))
        }
        Ok(mut answers) => answers.remove(0),
        Err(error) => panic!("guesses were refused: {error}"),
    };
    assert_eq!(together.chosen, expected, "five guesses at once");
    // Those that were wrong are forgotten, and the answer goes on as if they had never been there.
    decoder.truncate(0, tokens.len());
    let token = first.chosen[0].as_ref().expect("logits are finite").token;
    let on = one(decoder, SlotInput::new(0, &[token]).showing(LogitRows::Last)).logits;
    decoder.truncate(1, tokens.len());
    let expected = one(decoder, SlotInput::new(1, &[token]).showing(LogitRows::Last)).logits;
    same(&on, &expected, "behind guesses that were forgotten");
}

fn scores_are_those_of_the_logits(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let vocab = decoder.facts().vocab;
    let tokens = prompt(7, vocab, 70);
    let want = Want {
        draws: &[GREEDY],
        scores: Some(Scores { next: &tokens[1..], top: 2 }),
        logits: LogitRows::All,
    };
    let answer = one(decoder, SlotInput { want, ..SlotInput::new(0, &tokens) });
    let mut chooser = Chooser::default();
    assert_eq!(answer.scores.len(), tokens.len() - 1);
    for ((score, row), next) in
        answer.scores.iter().zip(answer.logits.chunks(vocab)).zip(&tokens[1..])
    {
        assert_eq!(*score, chooser.score(row, *next, 2).ok());
    }
    let last = &answer.logits[(tokens.len() - 1) * vocab..];
    assert_eq!(answer.chosen, [chooser.choose(last, &GREEDY)]);
}

fn forks_share_and_part(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let vocab = decoder.facts().vocab;
    let (tokens, more) = (prompt(8, vocab, 130), prompt(9, vocab, 20));
    one(decoder, SlotInput::new(0, &tokens));
    let before = decoder.kv_usage().blocks_held;
    decoder.fork(0, 1, 100).expect("slot 0 holds as many");
    assert_eq!((decoder.held(0), decoder.held(1)), (130, 100));
    assert_eq!(decoder.kv_usage().blocks_held, before, "a fork takes nothing");
    let found = one(decoder, SlotInput::new(1, &more).showing(LogitRows::All)).logits;
    let kept = one(decoder, SlotInput::new(0, &more).showing(LogitRows::All)).logits;
    let expected = |decoder: &mut dyn Decoder, len: usize| {
        let all = [&tokens[..len], &more].concat();
        let rows = one(decoder, SlotInput::new(2, &all).showing(LogitRows::All)).logits;
        decoder.release(2);
        rows[len * vocab..].to_vec()
    };
    same(&found, &expected(decoder, 100), "a fork that goes its own way");
    same(&kept, &expected(decoder, 130), "what was forked from");
    decoder.truncate(1, 1000);
    assert_eq!(decoder.held(1), 120, "fewer are held than are kept");
    (0..3).for_each(|slot| decoder.release(slot));
    assert_eq!(decoder.kv_usage().blocks_held, 0, "what nobody holds is given back");
}

fn blocks_go_out_and_in(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let vocab = decoder.facts().vocab;
    let (tokens, more) = (prompt(10, vocab, PROMPT), prompt(11, vocab, 3));
    one(decoder, SlotInput::new(0, &tokens));
    let expected = one(decoder, SlotInput::new(0, &more).showing(LogitRows::All)).logits;
    decoder.truncate(0, tokens.len());
    let blocks = tokens.len().div_ceil(decoder.kv_usage().block_tokens);
    for index in 0..blocks {
        let block = decoder.block(0, index).expect("the device works").expect("the block is there");
        let (ends, bytes) = (block.ends.into_owned(), block.bytes.into_owned());
        let block = crate::KvBlock { ends: ends.into(), bytes: bytes.into() };
        decoder.put_block(1, &block).expect("it goes on from whole blocks");
    }
    assert_eq!(decoder.block(0, blocks).expect("the device works"), None, "there are no more");
    assert_eq!(decoder.held(1), tokens.len());
    let found = one(decoder, SlotInput::new(1, &more).showing(LogitRows::All)).logits;
    same(&found, &expected, "behind blocks that were put back");
    let block = crate::KvBlock { ends: vec![1].into(), bytes: vec![0; 3].into() };
    assert!(matches!(decoder.put_block(2, &block), Err(RunError::NoBlock { .. })));
    assert_eq!(decoder.held(2), 0);
}

fn what_cannot_be_is_refused_and_changes_nothing(open: Open<'_>) {
    let mut decoder = open(KvOptions { max_seq_len: Some(64), ..KvOptions::default() });
    let decoder = &mut *decoder;
    let (vocab, slots) = (decoder.facts().vocab, decoder.facts().limits.max_slots);
    let tokens = prompt(12, vocab, 60);
    one(decoder, SlotInput::new(0, &tokens));
    let beyond = [vocab as u32];
    let scores = Some(Scores { next: &beyond, top: 1 });
    let scored = Want { scores, ..Want::default() };
    let adapter = SlotInput { adapter: Some(Adapter(9)), ..SlotInput::new(1, &tokens) };
    let refused: Vec<(&str, Vec<SlotInput<'_>>)> = vec![
        ("a slot that does not exist", vec![SlotInput::new(slots, &tokens)]),
        ("a slot twice", vec![SlotInput::new(1, &tokens), SlotInput::new(1, &tokens)]),
        ("no tokens", vec![SlotInput::new(1, &[])]),
        ("more than a slot holds", vec![SlotInput::new(0, &tokens)]),
        ("a token that is none", vec![SlotInput::new(1, &beyond)]),
        (
            "the likelihood of a token that is none",
            vec![SlotInput { want: scored, ..SlotInput::new(1, &[1]) }],
        ),
        ("more draws than tokens", vec![SlotInput::new(1, &[1]).choosing(&[GREEDY; 2])]),
        ("an adapter that is unknown", vec![adapter]),
        ("one of two", vec![SlotInput::new(1, &tokens), SlotInput::new(0, &tokens)]),
    ];
    let usage = decoder.kv_usage();
    for (what, runs) in refused {
        assert!(decoder.step(&runs).is_err(), "{what}");
        assert_eq!((decoder.held(0), decoder.held(1)), (60, 0), "{what}");
        assert_eq!(decoder.kv_usage(), usage, "{what}");
    }
    for (from, to, len) in [(0, 0, 5), (0, slots, 5), (slots, 0, 5), (0, 1, 61)] {
        assert!(decoder.fork(from, to, len).is_err(), "a fork of {len} from {from} to {to}");
        assert_eq!((decoder.held(0), decoder.held(1)), (60, 0));
    }
    decoder.release(slots);
    assert_eq!(decoder.held(slots), 0);
    one(decoder, SlotInput::new(0, &tokens[..4]));
    assert_eq!(decoder.held(0), 64, "a slot may be full to the last token");
}

fn memory_is_counted_and_runs_out(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let usage = decoder.kv_usage();
    decoder.set_kv_bytes_max(3 * usage.block_bytes as u64);
    assert_eq!(decoder.kv_usage().blocks_total, 3);
    let tokens = prompt(13, decoder.facts().vocab, 2 * usage.block_tokens + 1);
    one(decoder, SlotInput::new(0, &tokens));
    assert_eq!(decoder.kv_usage().blocks_held, 3);
    let full = loop {
        match decoder.step(&[SlotInput::new(1, &tokens[..1])]) {
            Err(RunError::NoMemory { .. }) => {}
            other => break other,
        }
    };
    assert!(matches!(full, Err(RunError::KvFull { more: 1, held: 3, total: 3 })), "{full:?}");
    assert_eq!((decoder.held(0), decoder.held(1)), (tokens.len(), 0));
    decoder.set_kv_bytes_max(0);
    assert_eq!(decoder.kv_usage().blocks_total, 3, "what is held stays");
    decoder.truncate(0, usage.block_tokens);
    assert_eq!(decoder.kv_usage().blocks_held, 1);
    one(decoder, SlotInput::new(1, &tokens[..1]));
}

fn memory_is_reported(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let before = decoder.memory();
    let sized = before.total_bytes.is_some() && before.free_bytes.is_some();
    assert!(sized || before.place != MemoryPlace::Device, "nobody else measures a device");
    let tokens = prompt(16, decoder.facts().vocab, PROMPT);
    one(decoder, SlotInput::new(0, &tokens));
    for report in [before, decoder.memory()] {
        assert_eq!(report.place, before.place, "memory is where it was");
        let parts = [report.largest_bytes, report.free_bytes, report.total_bytes];
        assert!(parts.iter().flatten().is_sorted(), "a piece of what is free, of all: {report:?}");
        let held = report.held_bytes().unwrap_or(u64::MAX);
        assert!(report.own_bytes <= held, "nobody holds more than all: {report:?}");
    }
}

fn steps_are_waited_for_in_turn(open: Open<'_>) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    assert_eq!(decoder.wait(), Err(RunError::OutOfTurn), "nothing was submitted");
    let tokens = prompt(14, decoder.facts().vocab, 10);
    let mut tries = 0;
    while let Err(error) = decoder.submit(&[SlotInput::new(0, &tokens).choosing(&[GREEDY])]) {
        assert!(matches!(error, RunError::NoMemory { .. }) && tries < TRIES, "{error}");
        tries += 1;
    }
    let second = decoder.submit(&[SlotInput::new(1, &tokens)]);
    assert_eq!(second, Err(RunError::OutOfTurn), "one is under way");
    let answers = decoder.wait().expect("the step goes on");
    assert_eq!(answers[0].chosen.len(), 1);
    assert_eq!((decoder.held(0), decoder.held(1)), (10, 0));
    assert_eq!(decoder.wait(), Err(RunError::OutOfTurn), "it was waited for");
}

/// What a run shows.
fn shown<'a>(token: u32, features: &'a [FeatureSpan<'a>]) -> Option<ImageEmbeds<'a>> {
    Some(ImageEmbeds { token, features })
}

fn images_are_what_they_show(open: Open<'_>, image: &TestImage) {
    let mut decoder = open(KvOptions::default());
    let decoder = &mut *decoder;
    let vocab = decoder.facts().vocab;
    let text: Vec<u32> = prompt(15, vocab, 8)
        .into_iter()
        .map(|token| if token == image.token { 0 } else { token })
        .collect();
    let [first, second] = &image.features;
    let (count, other) = (first.tokens, second.tokens);
    let tokens = [&text[..], &vec![image.token; count], &text, &vec![image.token; other]].concat();
    let whole = [
        FeatureSpan { features: first, tokens: 0..count },
        FeatureSpan { features: second, tokens: 0..other },
    ];
    let run = SlotInput {
        image: shown(image.token, &whole),
        ..SlotInput::new(0, &tokens).showing(LogitRows::All)
    };
    let expected = one(decoder, run).logits;
    decoder.release(0);
    // Cut in the middle of the first image.
    let cut = text.len() + 1;
    let parts = [
        FeatureSpan { features: first, tokens: 0..1 },
        FeatureSpan { features: first, tokens: 1..count },
        FeatureSpan { features: second, tokens: 0..other },
    ];
    let run = SlotInput {
        image: shown(image.token, &parts[..1]),
        ..SlotInput::new(0, &tokens[..cut]).showing(LogitRows::All)
    };
    let mut found = one(decoder, run).logits;
    let run = SlotInput {
        image: shown(image.token, &parts[1..]),
        ..SlotInput::new(0, &tokens[cut..]).showing(LogitRows::All)
    };
    found.extend(one(decoder, run).logits);
    same(&found, &expected, "an image in two pieces");
    decoder.release(0);
    if other == count {
        let swapped = [whole[1].clone(), whole[0].clone()];
        let run = SlotInput {
            image: shown(image.token, &swapped),
            ..SlotInput::new(0, &tokens).showing(LogitRows::Last)
        };
        let found = one(decoder, run).logits;
        assert_ne!(found, expected[expected.len() - vocab..], "other images are other prompts");
        decoder.release(0);
    }
    let beyond = |first: usize, end: usize| FeatureSpan { features: second, tokens: first..end };
    let (late, back) = ([beyond(other, 2 * other - 1)], [beyond(other - 1, 0)]);
    let wrongs = [&whole[..1], &parts, &late, &back];
    for (wrong, from) in wrongs.into_iter().zip([0, 0, tokens.len() - other, tokens.len() - other])
    {
        let run = SlotInput {
            image: shown(image.token, wrong),
            ..SlotInput::new(0, &tokens[from..tokens.len() - 1])
        };
        let refused = decoder.step(&[run]);
        assert!(matches!(refused, Err(RunError::ImageCount { .. })), "{refused:?}");
        assert_eq!(decoder.held(0), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::VisionEngine;
    use crate::simulated::{Behaviour, IMAGE_TOKEN, SIDE, SimulatedDecoder, SimulatedGraph};

    #[test]
    fn a_device_of_its_own_memory_that_refuses_at_random_conforms() {
        let graph = SimulatedGraph::open(SIDE, Duration::from_micros(50));
        let engine = VisionEngine::new(Box::new(graph.clone()), None).unwrap();
        let see = |level: f32| engine.features(vec![level; 3 * SIDE * SIDE]).unwrap();
        let image = TestImage { token: IMAGE_TOKEN, features: [see(0.0), see(1.0)] };
        for seed in 0..20 {
            let (is_apart, refuses_one_in) = (seed % 4 > 0, 3 + seed % 5);
            let behaviour = Behaviour {
                seed,
                is_apart,
                delay_us_max: 50,
                refuses_one_in,
                ..Behaviour::default()
            };
            let open = |kv| Box::new(SimulatedDecoder::open(kv, behaviour)) as Box<dyn Decoder>;
            decoder(&open, Some(&image));
        }
        assert_eq!(graph.held(), 2);
        drop(image);
        assert_eq!(graph.held(), 0, "what nobody holds is freed on the device");
    }
}
