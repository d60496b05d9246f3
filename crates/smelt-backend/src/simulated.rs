//! A decoder and a graph that only count, with memory of their own: what the contract is tried with where no back end is at hand.
//!
//! A thread plays the device.  Numbers live there behind handles, steps take a while that a seed draws, and steps are
//! refused at random, if asked for.  What a token's logits are is a hash of all that its slot holds, so whatever is lost,
//! swapped or done twice changes them.

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use smelt_random::Random;

use crate::sampling::{Chooser, OwnDraw};
use crate::{
    Answer, Decoder, DecoderFacts, DeviceValue, Graph, GraphError, GraphInput, GraphOutput,
    ImageEmbeds, KvBlock, KvOptions, KvUsage, Limits, LogitRows, MemoryPlace, MemoryReport,
    OpenError, Pending, RunError, SlotInput, Tensor, Value, Witness,
};

/// The token that image features replace.
pub const IMAGE_TOKEN: u32 = 90;
/// Numbers of a token's embedding.
pub const HIDDEN: usize = 4;
/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;
/// Bytes of a block: a hash for each token.
const BLOCK_BYTES: usize = BLOCK_TOKENS * size_of::<u64>();
/// Pixels on a side of what the graph sees in tests of its own.
pub const SIDE: usize = 2;
/// Tokens that the graph gives of it.
pub const IMAGE_TOKENS: usize = 3;

/// How the device behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Whether a thread of its own plays the device; else steps are done when they are submitted.
    pub is_apart: bool,
    /// What draws are made from.
    pub seed: u64,
    /// The longest that a step takes, in microseconds.
    pub delay_us_max: u64,
    /// One step in so many is refused for want of memory; none if 0.
    pub refuses_one_in: u64,
    /// Steps after which it is lost; never if 0.
    pub lost_after: u64,
    /// Where its memory is.
    pub place: MemoryPlace,
    /// Bytes of it that nobody else holds; without a number, as many as full slots take.
    pub memory_bytes: Option<u64>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            vocab: 97,
            is_apart: true,
            seed: 0,
            delay_us_max: 0,
            refuses_one_in: 0,
            lost_after: 0,
            place: MemoryPlace::Device,
            memory_bytes: None,
        }
    }
}

/// What follows `before` when `what` is seen at the position.
fn chained(before: u64, what: &impl Hash) -> u64 {
    // Fixed keys: every device computes the same.
    let mut hash = DefaultHasher::new();
    (before, what).hash(&mut hash);
    hash.finish()
}

/// Logits behind a hash, of so many tokens.
fn logits(state: u64, vocab: usize) -> Vec<f32> {
    let mut random = Random::new(state);
    (0..vocab).map(|_| random.below(4096) as f32 / 256.0 - 8.0).collect()
}

/// A run as the device is given it.
#[derive(Debug)]
struct Job {
    slot: usize,
    /// What each token adds to its slot: a token, or the numbers that stand in its place.
    adds: Vec<(u32, Vec<u32>)>,
    draws: Vec<OwnDraw>,
    scores: Option<(Vec<u32>, usize)>,
    logits: LogitRows,
}

/// What the device is told.
#[derive(Debug)]
enum DeviceCommand {
    Step { jobs: Vec<Job>, delay: Duration },
    Truncate { slot: usize, len: usize },
    Fork { from: usize, to: usize, len: usize },
    Block { slot: usize, index: usize },
    Put { slot: usize, states: Vec<u64> },
}

/// What it answers to some of it.
#[derive(Debug)]
enum DeviceReply {
    Step(Vec<Answer>),
    Block(Vec<u64>),
}

/// The device's own memory, and what is done there.
#[derive(Debug)]
struct Device {
    vocab: usize,
    slots: Vec<Vec<u64>>,
    chooser: Chooser,
}

/// Where the device is.
#[derive(Debug)]
enum DeviceLink {
    /// In a thread that is told what to do; `None` while the decoder is dropped.
    Apart(Option<Sender<DeviceCommand>>, Receiver<DeviceReply>, Option<JoinHandle<()>>),
    /// Here, with what it has answered.
    Here(Box<RefCell<(Device, Option<DeviceReply>)>>),
}

impl Device {
    fn run(mut self, orders: &Receiver<DeviceCommand>, said: &Sender<DeviceReply>) {
        while let Ok(order) = orders.recv() {
            if self.take(order).is_some_and(|answer| said.send(answer).is_err()) {
                return;
            }
        }
    }

    fn take(&mut self, order: DeviceCommand) -> Option<DeviceReply> {
        match order {
            DeviceCommand::Step { jobs, delay } => {
                if !delay.is_zero() {
                    std::thread::sleep(delay);
                }
                return Some(DeviceReply::Step(jobs.iter().map(|job| self.step(job)).collect()));
            }
            DeviceCommand::Truncate { slot, len } => self.slots[slot].truncate(len),
            DeviceCommand::Fork { from, to, len } => {
                self.slots[to] = self.slots[from][..len].to_vec()
            }
            DeviceCommand::Put { slot, states } => self.slots[slot].extend(states),
            DeviceCommand::Block { slot, index } => {
                let held = &self.slots[slot];
                let start = (index * BLOCK_TOKENS).min(held.len());
                let end = held.len().min(start + BLOCK_TOKENS);
                return Some(DeviceReply::Block(held[start..end].to_vec()));
            }
        }
        None
    }

    fn step(&mut self, job: &Job) -> Answer {
        let (tokens, mut answer) = (job.adds.len(), Answer::default());
        for (row, add) in job.adds.iter().enumerate() {
            let held = &mut self.slots[job.slot];
            let state = chained(held.last().copied().unwrap_or_default(), add);
            held.push(state);
            let draw = (row + job.draws.len()).checked_sub(tokens).and_then(|at| job.draws.get(at));
            let score = job.scores.as_ref().and_then(|(next, top)| Some((*next.get(row)?, *top)));
            let shown = match job.logits {
                LogitRows::None => false,
                LogitRows::Last => row + 1 == tokens,
                LogitRows::All => true,
            };
            if draw.is_none() && score.is_none() && !shown {
                continue;
            }
            let logits = logits(state, self.vocab);
            answer.chosen.extend(draw.map(|draw| self.chooser.choose(&logits, &draw.as_draw())));
            let score = score.map(|(token, top)| self.chooser.score(&logits, token, top).ok());
            answer.scores.extend(score);
            if shown {
                answer.logits.extend(logits);
            }
        }
        answer
    }
}

/// A decoder whose keys and values are hashes in a device's memory.
#[derive(Debug)]
pub struct SimulatedDecoder {
    facts: DecoderFacts,
    /// Which blocks each slot holds, and of how many tokens.
    slots: Vec<(usize, Vec<Arc<()>>)>,
    blocks_total: usize,
    random: Random,
    behaviour: Behaviour,
    is_submitted: bool,
    /// Steps that were submitted.
    steps: u64,
    device: DeviceLink,
}

impl SimulatedDecoder {
    /// A decoder with the limits that `kv` says, or 1,000 tokens in each of 8 slots.
    pub fn open(kv: KvOptions, behaviour: Behaviour) -> Self {
        let limits = Limits {
            max_seq_len: kv.max_seq_len.unwrap_or(1000),
            max_slots: kv.max_slots.unwrap_or(8),
        };
        let facts = DecoderFacts {
            limits,
            built_for: limits,
            positions: None,
            vocab: behaviour.vocab,
            kv: kv.form(),
            hidden: HIDDEN,
            deepstack: 0,
            scheme: "none".to_owned(),
            adapters: Vec::new(),
        };
        let (vocab, slots) = (behaviour.vocab, vec![Vec::new(); limits.max_slots]);
        let device = Device { vocab, slots, chooser: Chooser::default() };
        let device = if behaviour.is_apart {
            apart(device)
        } else {
            DeviceLink::Here(Box::new((device, None).into()))
        };
        let mut decoder = Self {
            facts,
            slots: vec![(0, Vec::new()); limits.max_slots],
            blocks_total: 0,
            random: Random::new(behaviour.seed),
            behaviour,
            is_submitted: false,
            steps: 0,
            device,
        };
        decoder.set_kv_bytes_max(kv.bytes_max.unwrap_or(u64::MAX));
        decoder
    }

    fn tell(&self, order: DeviceCommand) {
        match &self.device {
            // A device that is gone is missed by who waits for its answer.
            DeviceLink::Apart(orders, ..) => _ = orders.as_ref().map(|orders| orders.send(order)),
            DeviceLink::Here(device) => {
                let (device, said) = &mut *device.borrow_mut();
                *said = device.take(order).or(said.take());
            }
        }
    }

    fn hear(&self) -> Result<DeviceReply, RunError> {
        let said = match &self.device {
            DeviceLink::Apart(_, said, _) => said.recv().ok(),
            DeviceLink::Here(device) => device.borrow_mut().1.take(),
        };
        said.ok_or_else(|| RunError::Device("it is gone".to_owned()))
    }

    /// Blocks that full slots take.
    fn full_blocks(&self) -> usize {
        self.slots.len() * self.facts.limits.max_seq_len.div_ceil(BLOCK_TOKENS)
    }

    /// Bytes of its memory.
    fn memory_bytes(&self) -> u64 {
        self.behaviour.memory_bytes.unwrap_or((self.full_blocks() * BLOCK_BYTES) as u64)
    }

    fn check(&self, run: &SlotInput<'_>) -> Result<(), RunError> {
        self.facts.check_slot(run.slot)?;
        run.check_alone()?;
        self.facts.check_room(run.slot, self.held(run.slot), run.tokens.len())?;
        self.facts.check_words(run)?;
        self.facts.check_image(run)
    }

    /// Blocks that appending so many tokens to a slot takes, those included that have to be copied.
    fn need(&self, slot: usize, more: usize) -> usize {
        let (len, blocks) = &self.slots[slot];
        let is_open = !len.is_multiple_of(BLOCK_TOKENS);
        let copied = is_open && blocks.last().is_some_and(|block| Arc::strong_count(block) > 1);
        (len + more).div_ceil(BLOCK_TOKENS) - blocks.len() + usize::from(copied)
    }

    fn grow(&mut self, slot: usize, more: usize) {
        let (len, blocks) = &mut self.slots[slot];
        if !len.is_multiple_of(BLOCK_TOKENS)
            && let Some(last) = blocks.last_mut()
            && Arc::strong_count(last) > 1
        {
            *last = Arc::new(());
        }
        *len += more;
        blocks.resize_with(len.div_ceil(BLOCK_TOKENS), || Arc::new(()));
    }
}

impl Drop for SimulatedDecoder {
    fn drop(&mut self) {
        if let DeviceLink::Apart(orders, _, device) = &mut self.device {
            drop(orders.take());
            // A device that panicked has said so.
            _ = device.take().map(JoinHandle::join);
        }
    }
}

/// A thread that plays the device.
fn apart(device: Device) -> DeviceLink {
    let (orders, inbox) = channel();
    let (outbox, said) = channel();
    let device = std::thread::spawn(move || device.run(&inbox, &outbox));
    DeviceLink::Apart(Some(orders), said, Some(device))
}

/// What each token of a run adds to its slot.
fn adds(run: &SlotInput<'_>) -> Result<Vec<(u32, Vec<u32>)>, RunError> {
    let mut rows = run.image.map(|image| rows(&image)).transpose()?.unwrap_or_default().into_iter();
    let token = run.image.map(|image| image.token);
    let places = run.tokens.iter().filter(|other| Some(**other) == token).count();
    if places != rows.len() {
        let numbers = rows.len() * HIDDEN;
        return Err(RunError::ImageCount { places, numbers, hidden: HIDDEN });
    }
    let add = |other: &u32| match Some(*other) == token {
        true => (*other, rows.next().unwrap_or_default()),
        false => (*other, Vec::new()),
    };
    Ok(run.tokens.iter().map(add).collect())
}

/// The bits of the features' numbers, token by token.
fn rows(image: &ImageEmbeds<'_>) -> Result<Vec<Vec<u32>>, RunError> {
    let mut rows = Vec::new();
    for span in image.features {
        let host = span.features.to_host().map_err(|error| RunError::Device(error.to_string()))?;
        let bits: Vec<u32> = host.embeds.iter().map(|number| number.to_bits()).collect();
        rows.extend(
            bits.chunks(HIDDEN)
                .map(<[u32]>::to_vec)
                .skip(span.tokens.start)
                .take(span.tokens.len()),
        );
    }
    Ok(rows)
}

fn job(run: &SlotInput<'_>) -> Result<Job, RunError> {
    let scores = run.want.scores.map(|scores| (scores.next.to_vec(), scores.top));
    let draws = run.want.draws.iter().map(OwnDraw::of).collect();
    Ok(Job { slot: run.slot, adds: adds(run)?, draws, scores, logits: run.want.logits })
}

impl Decoder for SimulatedDecoder {
    fn facts(&self) -> &DecoderFacts {
        &self.facts
    }

    fn memory(&self) -> MemoryReport {
        let total = self.memory_bytes();
        let held = (self.kv_usage().blocks_held * BLOCK_BYTES) as u64;
        match self.behaviour.place {
            MemoryPlace::Host => MemoryReport::HOST,
            place => MemoryReport {
                place,
                total_bytes: Some(total),
                free_bytes: Some(total.saturating_sub(held)),
                largest_bytes: None,
                own_bytes: 0,
                locked_bytes: 0,
            },
        }
    }

    fn kv_usage(&self) -> KvUsage {
        let mut held: Vec<*const ()> =
            self.slots.iter().flat_map(|(_, blocks)| blocks).map(Arc::as_ptr).collect();
        held.sort_unstable();
        held.dedup();
        KvUsage {
            block_tokens: BLOCK_TOKENS,
            block_bytes: BLOCK_BYTES,
            blocks_held: held.len(),
            blocks_total: self.blocks_total,
        }
    }

    fn set_kv_bytes_max(&mut self, bytes: u64) {
        let fit = usize::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        self.blocks_total = fit.min(self.full_blocks()).max(self.kv_usage().blocks_held);
    }

    fn held(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |(len, _)| *len)
    }

    fn submit(&mut self, runs: &[SlotInput<'_>]) -> Result<(), RunError> {
        if self.is_submitted {
            return Err(RunError::OutOfTurn);
        }
        if let Some(why) = self.lost() {
            return Err(RunError::Device(why));
        }
        SlotInput::check_all(runs, |run| self.check(run))?;
        let jobs = runs.iter().map(job).collect::<Result<Vec<_>, _>>()?;
        let more: usize = runs.iter().map(|run| self.need(run.slot, run.tokens.len())).sum();
        let KvUsage { blocks_held: held, blocks_total: total, .. } = self.kv_usage();
        if held + more > total {
            return Err(RunError::KvFull { more, held, total });
        }
        let Behaviour { refuses_one_in, delay_us_max, .. } = self.behaviour;
        if ((held + more) * BLOCK_BYTES) as u64 > self.memory_bytes() {
            return Err(RunError::NoMemory { bytes: more * BLOCK_BYTES });
        }
        if refuses_one_in > 0 && self.random.one_in(refuses_one_in as usize) {
            return Err(RunError::NoMemory { bytes: more * BLOCK_BYTES });
        }
        self.steps += 1;
        if let Some(why) = self.lost() {
            return Err(RunError::Device(why));
        }
        runs.iter().for_each(|run| self.grow(run.slot, run.tokens.len()));
        let delay = Duration::from_micros(self.random.below(delay_us_max as usize + 1) as u64);
        self.tell(DeviceCommand::Step { jobs, delay });
        self.is_submitted = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<Vec<Answer>, RunError> {
        if !std::mem::take(&mut self.is_submitted) {
            return Err(RunError::OutOfTurn);
        }
        match self.hear()? {
            DeviceReply::Step(answers) => Ok(answers),
            DeviceReply::Block(_) => Err(RunError::OutOfTurn),
        }
    }

    fn lost(&self) -> Option<String> {
        let Behaviour { lost_after, .. } = self.behaviour;
        (lost_after > 0 && self.steps >= lost_after).then(|| "the device is lost".to_owned())
    }

    fn truncate(&mut self, slot: usize, len: usize) {
        let Some((held, blocks)) = self.slots.get_mut(slot).filter(|(held, _)| *held > len) else {
            return;
        };
        *held = len;
        blocks.truncate(len.div_ceil(BLOCK_TOKENS));
        self.tell(DeviceCommand::Truncate { slot, len });
    }

    fn fork(&mut self, from: usize, to: usize, len: usize) -> Result<(), RunError> {
        self.facts.check_fork(from, to, self.held(from), len)?;
        self.slots[to] = (len, self.slots[from].1[..len.div_ceil(BLOCK_TOKENS)].to_vec());
        self.tell(DeviceCommand::Fork { from, to, len });
        Ok(())
    }

    fn block(&self, slot: usize, index: usize) -> Result<Option<KvBlock<'_>>, RunError> {
        let start = index * BLOCK_TOKENS;
        if self.is_submitted || start >= self.held(slot) {
            return Ok(None);
        }
        self.tell(DeviceCommand::Block { slot, index });
        let DeviceReply::Block(states) = self.hear()? else { return Err(RunError::OutOfTurn) };
        let ends = (start as u32 + 1..).take(states.len()).collect();
        let mut bytes: Vec<u8> = states.iter().flat_map(|state| state.to_le_bytes()).collect();
        bytes.resize(BLOCK_BYTES, 0);
        Ok(Some(KvBlock { ends: Cow::Owned(ends), bytes: Cow::Owned(bytes) }))
    }

    fn put_block(&mut self, slot: usize, block: &KvBlock<'_>) -> Result<(), RunError> {
        self.facts.check_slot(slot)?;
        let (held, tokens, bytes) = (self.held(slot), block.ends.len(), block.bytes.len());
        let expected = (held as u32 + 1..).take(tokens);
        if !held.is_multiple_of(BLOCK_TOKENS)
            || !(1..=BLOCK_TOKENS).contains(&tokens)
            || bytes != BLOCK_BYTES
            || !expected.eq(block.ends.iter().copied())
        {
            return Err(RunError::NoBlock { slot, tokens, bytes });
        }
        self.facts.check_room(slot, held, tokens)?;
        let KvUsage { blocks_held, blocks_total: total, .. } = self.kv_usage();
        if blocks_held == total {
            return Err(RunError::KvFull { more: 1, held: blocks_held, total });
        }
        let states = block.bytes.as_chunks::<8>().0[..tokens].iter();
        let states = states.map(|state| u64::from_le_bytes(*state)).collect();
        self.grow(slot, tokens);
        self.tell(DeviceCommand::Put { slot, states });
        Ok(())
    }

    fn verify_digest(&self, _told: &mut dyn Witness) -> Result<(), OpenError> {
        Ok(())
    }
}

/// What devices hold of images, behind handles.
type Memory = Arc<Mutex<Vec<Option<Vec<f32>>>>>;

/// A graph from a tile to tokens, whose outputs stay in a memory of its own.
///
/// Clones share it.
#[derive(Clone, Debug)]
pub struct SimulatedGraph {
    inputs: [GraphInput; 1],
    outputs: [GraphOutput; 1],
    memory: Memory,
    delay: Duration,
}

/// Numbers in that memory.
#[derive(Debug)]
struct Handle {
    memory: Memory,
    at: usize,
}

const SHAPE: [usize; 3] = [1, IMAGE_TOKENS, HIDDEN];

impl SimulatedGraph {
    /// A graph that sees tiles of so many pixels on a side, and whose runs take so long.
    pub fn open(side: usize, delay: Duration) -> Self {
        let dims = vec![None, Some(3), Some(side), Some(side)];
        let inputs = [GraphInput { name: "pixel_values".to_owned(), integer: false, dims }];
        let outputs = [GraphOutput { name: "image_embeds".to_owned(), tried: SHAPE.to_vec() }];
        Self { inputs, outputs, memory: Memory::default(), delay }
    }

    /// Values that somebody holds.
    pub fn held(&self) -> usize {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.iter().filter(|value| value.is_some()).count()
    }
}

impl DeviceValue for Handle {
    fn shape(&self) -> &[usize] {
        &SHAPE
    }

    fn bytes(&self) -> usize {
        SHAPE.iter().product::<usize>() * size_of::<f32>()
    }

    fn to_host(&self) -> Result<Tensor, GraphError> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let data = memory[self.at].clone().ok_or_else(|| GraphError::Graph("freed".to_owned()))?;
        Ok(Tensor::F32 { shape: SHAPE.to_vec(), data })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)[self.at] = None;
    }
}

impl Graph for SimulatedGraph {
    fn inputs(&self) -> &[GraphInput] {
        &self.inputs
    }

    fn outputs(&self) -> &[GraphOutput] {
        &self.outputs
    }

    fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, GraphError> {
        GraphInput::check_all(&self.inputs, &inputs)?;
        let pixels = inputs[0].floats().unwrap_or_default();
        let bits: Vec<u32> = pixels.iter().map(|pixel| pixel.to_bits()).collect();
        let number = |at: u64| (chained(at, &bits) % 1000) as f32 / 100.0;
        let data = (0..SHAPE.iter().product::<usize>() as u64).map(number).collect();
        let (memory, delay) = (Arc::clone(&self.memory), self.delay);
        Ok(Pending::new(move || {
            std::thread::sleep(delay);
            let mut values = memory.lock().unwrap_or_else(PoisonError::into_inner);
            values.push(Some(data));
            let at = values.len() - 1;
            drop(values);
            Ok(vec![Value::Device(Arc::new(Handle { memory, at }))])
        }))
    }

    fn verify_digest(&self, _told: &mut dyn Witness) -> Result<(), OpenError> {
        Ok(())
    }

    fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        OpenError::Unfit { path: "simulated".into(), purpose, problem }
    }
}
