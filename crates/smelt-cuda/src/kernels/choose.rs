//! Lets the device choose tokens from rows of logits, and reads what came of it.
//!
//! Draws become lists of plain numbers for the device, three or four launches do what [`smelt_backend::sampling`] does on the host,
//! step by step, and results become what that gives.  Where a row is too even to be sorted there, the host chooses.

use smelt_backend::sampling::{Chosen, Draw, Logprobs, NotFinite, Settings, TOP_LOGPROBS_MAX};

use crate::{DeviceAddress, Function, Launch, LaunchArgs};

/// Logits whose weights are added up as singles.
pub(super) const WEIGHT_BLOCK: usize = 64;
/// Weights of blocks, or of buckets, that are added up among themselves.
#[cfg(any(test, feature = "recording"))]
pub(super) const SPAN: usize = 64;
/// Tokens of a row that a block adjusts.
pub(super) const ADJUST_TOKENS: usize = 8192;
const ADJUST_THREADS: u32 = 256;
/// Blocks of 64 logits that a block of threads looks at.
const LARGEST_BLOCKS: u32 = 16;
/// Threads that pick a token.
pub(super) const PICK_THREADS: u32 = 1024;
/// Blocks of a row that each of them keeps.
pub(super) const OWN_BLOCKS: usize = 8;
/// The most tokens of a vocabulary whose rows the device can choose from.
pub const VOCAB_MAX: usize = PICK_THREADS as usize * OWN_BLOCKS * WEIGHT_BLOCK;

pub(super) const ADJUST: Function = Function("choose_adjust");
pub(super) const LARGEST: Function = Function("choose_largest");
pub(super) const WEIGH: Function = Function("choose_weigh");
pub(super) const PICK: Function = Function("choose_pick");

/// Bytes of a choice as the device reads it.
pub const CHOICE_BYTES: usize = 80;
/// Where in a choice it lies what is asked: the lowest byte of a word.
const ASKS_AT: usize = 12;
/// Bytes of what came of it.
pub const RESULT_BYTES: usize = 16 + 8 + TOP_LOGPROBS_MAX * 8;

/// Buckets that the weights of a row are added up in, by logit.
pub(super) const BUCKETS: usize = 2048;
/// Bytes of what is known of a row: those, f64 each, and four words.
pub const ROW_FACTS_BYTES: usize = BUCKETS * 8 + 16;

/// What stands for no token.
const NONE: u32 = u32::MAX;
pub(super) const ASKS_TOKEN: u32 = 1;
pub(super) const ASKS_SCORE: u32 = 2;
pub(super) const ADJUSTS: u32 = 4;
pub(super) const MASKS: u32 = 8;

/// What is asked of some rows, as the device reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChoiceLists {
    /// [`CHOICE_BYTES`] each.
    pub choices: Vec<u8>,
    /// Tokens and what is added to them, 8 bytes each.
    pub biases: Vec<u8>,
    /// Tokens and how often they were seen, 8 bytes each.
    pub counts: Vec<u8>,
    /// Words of masks.
    pub masks: Vec<u8>,
}

/// The numbers of one choice.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    uniform: f64,
    row: u32,
    asks: u32,
    scale: f32,
    /// First and count of biases, counts and words of the mask.
    pieces: [(usize, usize); 3],
    token: u32,
    top: u32,
    token_to: u32,
}

impl ChoiceLists {
    /// How many choices there are.
    pub fn len(&self) -> usize {
        self.choices.len() / CHOICE_BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// What they have in common.
    pub fn asked(&self) -> ChoicesAsked {
        let (choices, _) = self.choices.as_chunks::<CHOICE_BYTES>();
        let asks = choices.iter().map(|choice| u32::from(choice[ASKS_AT]));
        let all = asks.fold(0, |all, asks| all | asks);
        ChoicesAsked {
            count: choices.len() as u32,
            adjusts: all & (ADJUSTS | MASKS) != 0,
            scores: all & ASKS_SCORE != 0,
        }
    }

    /// Asks for a token from `row` of the logits; it is put at `token_to` of the next step's tokens, too.
    pub fn draw(&mut self, row: u32, draw: &Draw<'_>, token_to: Option<u32>) {
        let settings = draw.settings;
        // Entries of one token in their order, tokens in theirs: the device finds them together.
        let mut biases = settings.logit_bias.clone();
        biases.sort_by_key(|(token, _)| *token);
        let counts = draw.counts.iter().map(|seen| (seen.token, seen.count as f32));
        let counts = counts.filter(|_| settings.is_penalizing());
        let pieces = [
            append(&mut self.biases, biases.into_iter().map(pair_bytes)),
            append(&mut self.counts, counts.map(pair_bytes)),
            append(
                &mut self.masks,
                draw.mask.iter().flat_map(|mask| mask.words()).map(|word| word.to_le_bytes()),
            ),
        ];
        let adjusts = pieces[0].1 + pieces[1].1 > 0;
        let flag = |flag, is_set: bool| if is_set { flag } else { 0 };
        let asks = ASKS_TOKEN
            | flag(ASKS_SCORE, settings.top_logprobs.is_some())
            | flag(ADJUSTS, adjusts)
            | flag(MASKS, draw.mask.is_some());
        let scale = if settings.is_greedy() { 0.0 } else { 1.0 / settings.temperature };
        let top = settings.top_logprobs.unwrap_or(0).min(TOP_LOGPROBS_MAX) as u32;
        let (token, token_to) = (NONE, token_to.unwrap_or(NONE));
        let numbers =
            Numbers { uniform: draw.uniform, row, asks, scale, pieces, token, top, token_to };
        self.push(numbers, settings);
    }

    /// Asks how likely `token` is by `row` of the logits, and for the `top` likeliest.
    pub fn score(&mut self, row: u32, token: u32, top: usize) {
        let numbers = Numbers {
            uniform: 0.5,
            row,
            asks: ASKS_SCORE,
            scale: 0.0,
            pieces: [(0, 0); 3],
            token,
            top: top.min(TOP_LOGPROBS_MAX) as u32,
            token_to: NONE,
        };
        self.push(numbers, &Settings::GREEDY);
    }

    fn push(&mut self, numbers: Numbers, settings: &Settings) {
        let [biases, counts, words] =
            numbers.pieces.map(|(first, count)| [first as u32, count as u32]);
        let top_k = u32::try_from(settings.top_k).unwrap_or(u32::MAX);
        let out = &mut self.choices;
        out.extend(numbers.uniform.to_le_bytes());
        let words_before = [numbers.row, numbers.asks, numbers.scale.to_bits(), top_k];
        let floats = [
            settings.top_p,
            settings.min_p,
            settings.repetition_penalty,
            settings.presence_penalty,
            settings.frequency_penalty,
        ];
        let all = words_before
            .into_iter()
            .chain(floats.map(f32::to_bits))
            .chain(biases)
            .chain(counts)
            .chain(words)
            .chain([numbers.token, numbers.top, numbers.token_to]);
        out.extend(all.flat_map(u32::to_le_bytes));
    }
}

fn pair_bytes((token, number): (u32, f32)) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&token.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Appends entries of `N` bytes; gives which is the first, and how many they are.
fn append<const N: usize>(
    list: &mut Vec<u8>,
    entries: impl Iterator<Item = [u8; N]>,
) -> (usize, usize) {
    let first = list.len() / N;
    list.extend(entries.flatten());
    (first, list.len() / N - first)
}

/// What came of a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A token, or how likely the one is that was asked about.
    Chosen(Result<Chosen, NotFinite>),
    /// Nothing: the host has to look at the row.
    LeftToHost,
}

/// Reads what came of a choice with `top` of the likeliest; none where no score was asked for.
pub fn read_result(bytes: &[u8; RESULT_BYTES], vocab: usize, top: Option<usize>) -> Told {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let float = |at| f32::from_bits(word(at));
    match word(8) {
        0 => {}
        1 => return Told::Chosen(Err(NotFinite)),
        _ => return Told::LeftToHost,
    }
    let weight = f64::from_bits(u64::from(word(0)) | u64::from(word(4)) << 32).ln();
    let largest = f64::from(float(20));
    let logprob = |logit: f32| (f64::from(logit) - largest - weight) as f32;
    let logprobs = top.map(|top| {
        let places = 0..top.min(vocab).min(TOP_LOGPROBS_MAX);
        let entry = |at| (word(24 + at * 4), logprob(float(24 + TOP_LOGPROBS_MAX * 4 + at * 4)));
        Logprobs { chosen: logprob(float(16)), top: places.map(entry).collect() }
    });
    Told::Chosen(Ok(Chosen { token: word(12), logprobs }))
}

/// What choosing needs on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChooseBuffers {
    /// f32 `[rows, vocab]`.
    pub logits: DeviceAddress,
    /// [`ChoiceLists::choices`].
    pub choices: DeviceAddress,
    /// [`ChoiceLists::biases`].
    pub biases: DeviceAddress,
    /// [`ChoiceLists::counts`].
    pub counts: DeviceAddress,
    /// [`ChoiceLists::masks`].
    pub masks: DeviceAddress,
    /// Adjusted rows, f32 `[choices, vocab]`.
    pub rows: DeviceAddress,
    /// Tokens that masks allow, u32 `[choices, vocab]`.
    pub allowed: DeviceAddress,
    /// Of adjusted rows, u32 `[choices]`.
    pub lengths: DeviceAddress,
    /// u32 `[choices]`, zero before the first step.
    pub faults: DeviceAddress,
    /// f32 `[choices, 2, blocks]`; see [`blocks`].
    pub largest: DeviceAddress,
    /// f32 `[choices, 2, blocks]`.
    pub weights: DeviceAddress,
    /// [`ROW_FACTS_BYTES`] each, zero before the first step.
    pub facts: DeviceAddress,
    /// [`RESULT_BYTES`] each.
    pub results: DeviceAddress,
    /// Tokens of the next step, u32.
    pub next: DeviceAddress,
}

/// Blocks of 64 logits of a row.
pub const fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(WEIGHT_BLOCK)
}

/// What some choices have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoicesAsked {
    /// How many there are.
    pub count: u32,
    /// Whether a row is adjusted, or only some of its tokens may come.
    pub adjusts: bool,
    /// Whether it is asked how likely a token is.
    pub scores: bool,
}

/// Chooses from rows of at most [`VOCAB_MAX`] logits.
pub fn choose(buffers: ChooseBuffers, asked: ChoicesAsked, vocab: usize) -> Vec<Launch> {
    let (all, vocab_word, count) = (blocks(vocab) as u32, vocab as u32, asked.count);
    let launch = |function, grid, threads, args| Launch {
        function,
        grid,
        block: [threads, 1, 1],
        cluster: 1,
        shared_bytes: 0,
        early: true,
        args,
    };
    let ChooseBuffers { logits, choices, rows, allowed, lengths, faults, largest, weights, .. } =
        buffers;
    let adjust = LaunchArgs::new()
        .with(rows)
        .with(allowed)
        .with(lengths)
        .with(faults)
        .with(logits)
        .with(choices)
        .with(buffers.biases)
        .with(buffers.counts)
        .with(buffers.masks)
        .with(vocab_word);
    let of_blocks = |out: DeviceAddress| {
        let args = LaunchArgs::new().with(out).with(rows).with(lengths).with(logits).with(choices);
        args.with(vocab_word).with(all).with(buffers.facts)
    };
    let pick = LaunchArgs::new()
        .with(buffers.results)
        .with(buffers.next)
        .with(largest)
        .with(weights)
        .with(rows)
        .with(allowed)
        .with(lengths)
        .with(faults)
        .with(logits)
        .with(choices)
        .with(vocab_word)
        .with(all)
        .with(buffers.facts);
    let tiles = [vocab.div_ceil(ADJUST_TOKENS) as u32, count, 1];
    let pieces = [all.div_ceil(LARGEST_BLOCKS), count, 1 + u32::from(asked.scores)];
    let adjust = asked.adjusts.then(|| launch(ADJUST, tiles, ADJUST_THREADS, adjust));
    let others = [
        launch(LARGEST, pieces, 256, of_blocks(largest)),
        launch(WEIGH, pieces, 256, of_blocks(weights)),
        launch(PICK, [count, 1, 1], PICK_THREADS, pick),
    ];
    adjust.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use smelt_backend::sampling::{Mask, TokenCount};

    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn a_draw_lies_where_the_device_reads_it() {
        let settings = Settings {
            temperature: 0.5,
            top_k: 7,
            logit_bias: vec![(9, 1.0), (3, 2.0), (9, -1.0)],
            presence_penalty: 0.25,
            top_logprobs: Some(3),
            ..Settings::GREEDY
        };
        let counts = [TokenCount { token: 4, count: 2 }];
        let words = [5, 6];
        let draw = Draw {
            settings: &settings,
            counts: &counts,
            mask: Some(Mask::new(&words)),
            uniform: 0.75,
        };
        let mut lists = ChoiceLists::default();
        lists.score(2, 11, 50);
        lists.draw(1, &draw, Some(8));
        assert_eq!((lists.len(), lists.choices.len()), (2, 2 * CHOICE_BYTES));
        let own = &lists.choices[CHOICE_BYTES..];
        assert_eq!(f64::from_le_bytes(own[..8].try_into().unwrap()), 0.75);
        assert_eq!([word(own, 8), word(own, 12)], [1, 15]);
        assert_eq!(lists.asked(), ChoicesAsked { count: 2, adjusts: true, scores: true });
        assert_eq!(f32::from_bits(word(own, 16)), 2.0);
        assert_eq!(word(own, 20), 7);
        assert_eq!(f32::from_bits(word(own, 36)), 0.25);
        assert_eq!([44, 48, 52, 56, 60, 64].map(|at| word(own, at)), [0, 3, 0, 1, 0, 2]);
        assert_eq!([68, 72, 76].map(|at| word(own, at)), [u32::MAX, 3, 8]);
        let tokens = [0, 8, 16].map(|at| word(&lists.biases, at));
        assert_eq!(tokens, [3, 9, 9]);
        assert_eq!(f32::from_bits(word(&lists.biases, 12)), 1.0, "in the order they came");
        assert_eq!([word(&lists.choices, 12), word(&lists.choices, 68)], [2, 11]);
        assert_eq!(word(&lists.choices, 72), 20);
    }

    #[test]
    fn a_result_becomes_what_the_host_would_say() {
        let mut bytes = [0; RESULT_BYTES];
        bytes[..8].copy_from_slice(&2.0_f64.to_le_bytes());
        bytes[12..16].copy_from_slice(&5_u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&1.0_f32.to_le_bytes());
        bytes[20..24].copy_from_slice(&1.0_f32.to_le_bytes());
        bytes[24..28].copy_from_slice(&5_u32.to_le_bytes());
        bytes[104..108].copy_from_slice(&1.0_f32.to_le_bytes());
        let half = -(2.0_f64.ln() as f32);
        let logprobs = Some(Logprobs { chosen: half, top: vec![(5, half)] });
        let expected = Told::Chosen(Ok(Chosen { token: 5, logprobs }));
        assert_eq!(read_result(&bytes, 100, Some(1)), expected);
        let plain = Told::Chosen(Ok(Chosen { token: 5, logprobs: None }));
        assert_eq!(read_result(&bytes, 100, None), plain);
        bytes[8] = 1;
        assert_eq!(read_result(&bytes, 100, None), Told::Chosen(Err(NotFinite)));
        bytes[8] = 2;
        assert_eq!(read_result(&bytes, 100, None), Told::LeftToHost);
    }
}
