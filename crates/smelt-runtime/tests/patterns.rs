//! Runs whole services on a simulated device: any pattern of requests is answered as each request alone.
//!
//! The decoder and the graph are those of the contract, slow by a seed and with memory of their own.  What a request should be
//! answered is worked out on another decoder, token by token, without a service.

use crate::shapes_model::spec;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use smelt_backend::sampling::{Chosen, Sampler, Settings};
use smelt_backend::simulated::{Behaviour, IMAGE_TOKENS, SimulatedDecoder, SimulatedGraph};
use smelt_backend::{
    Decoder, FeatureSpan, ImageEmbeds, KvOptions, MemoryPlace, SlotInput, VisionEngine,
};
use smelt_random::Random;
use smelt_runtime::deployment::{Deployment, Text};
use smelt_runtime::generation::{Constraint, Finish, SamplingParams};
use smelt_runtime::image::{View, VisionInput};
use smelt_runtime::prepare::Prepared;
use smelt_runtime::service::{
    Client, Event, EventReceiver, KvMemory, Options, Priority, Refused, Request, Service,
    StartError,
};
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};
use smelt_runtime::vision::Vision;

/// Patterns that are tried, or as many as `SMELT_PATTERNS` says.
const PATTERNS: u64 = 20_000;
/// A simulated device is slow by waiting, so a core plays several at once.
const PLAYERS_A_CORE: usize = 4;
const SIDE: usize = 56;
const MAX_SEQ_LEN: usize = 400;

pub(crate) fn behaviour(vocab: usize) -> Behaviour {
    Behaviour { vocab, is_apart: false, ..Behaviour::default() }
}

pub(crate) fn kv(slots: usize) -> KvOptions {
    KvOptions { max_slots: Some(slots), max_seq_len: Some(MAX_SEQ_LEN), ..KvOptions::default() }
}

pub(crate) fn engine(delay: Duration) -> VisionEngine {
    VisionEngine::new(Box::new(SimulatedGraph::open(SIDE, delay)), None).unwrap()
}

/// All of a deployment but its engines; every service shares it.
pub(crate) fn text() -> Arc<Text> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
    let dir = golden.join("internvl3-tiny/checkpoint");
    let spec = spec::internvl("simulated", SIDE, vec![0]);
    let vocab =
        smelt_runtime::tokenizer::Tokenizer::open(&dir.join("tokenizer.json")).unwrap().vocab();
    let decoder = SimulatedDecoder::open(kv(1), behaviour(vocab));
    let engines = vec![engine(Duration::ZERO)];
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).unwrap();
    Deployment::of_engines(&dir, (spec, tokenizer), engines, Box::new(decoder)).unwrap().text
}

/// What is asked, and what becomes of it.
pub(crate) struct Asked {
    pub(crate) prepared: Prepared,
    pub(crate) choice_params: Vec<SamplingParams>,
    pub(crate) priority: Priority,
    pub(crate) client: Client,
    pub(crate) leaves: bool,
}

impl Asked {
    /// As a service takes it.
    pub(crate) fn request(&self) -> Request {
        Request {
            client: self.client,
            prepared: self.prepared.clone(),
            choice_params: self.choice_params.clone(),
            constraint: Constraint::default(),
            priority: self.priority,
            deadline: None,
            scored: None,
        }
    }
}

/// One of a few pictures, of one or two parts.
fn view(number: i32) -> View {
    let part = |at: i32| VisionInput {
        grid: 0,
        frames: vec![vec![(number * 40 + at) as u8; SIDE * SIDE * 3]],
    };
    let parts: Vec<VisionInput> = (0..1 + number % 2).map(part).collect();
    let tokens = parts.len() * IMAGE_TOKENS;
    View::new(parts, tokens)
}

pub(crate) fn asked(random: &mut Random, text: &Text) -> Asked {
    let image = text.image_token.unwrap();
    let word = |family: i32, at: i32| (family * 31 + at * 7 + 1) as u32 % 200;
    let family = random.between(0, 3);
    let mut tokens: Vec<u32> = (0..random.between(1, 80)).map(|at| word(family, at)).collect();
    let mut views = Vec::new();
    while random.chance(30) && views.len() < 3 {
        let view = view(random.between(0, 3));
        tokens.extend(vec![image; view.tokens]);
        views.push(view);
    }
    let own = random.between(0, 50);
    tokens.extend((0..random.between(1, 40)).map(|at| word(own, at)));
    let sampling_params = |random: &mut Random| {
        let temperature = if random.chance(50) { 0.0 } else { 1.0 };
        let seed = random.between(0, 1000) as u64;
        let frequency_penalty = if random.chance(20) { 0.7 } else { 0.0 };
        let top_logprobs = random.chance(20).then_some(2);
        let sampling =
            Settings { temperature, seed, frequency_penalty, top_logprobs, ..Settings::GREEDY };
        SamplingParams {
            sampling,
            ignore_eos: true,
            ..SamplingParams::greedy(random.between(1, 24) as usize)
        }
    };
    let choice_params = (0..random.between(1, 2)).map(|_| sampling_params(random)).collect();
    let priority = if random.chance(25) { Priority::High } else { Priority::Normal };
    let client = Client { id: random.between(0, 2) as u64, ..Client::default() };
    let prepared = Prepared { tokens, views, ..Prepared::default() };
    Asked { prepared, choice_params, priority, client, leaves: random.chance(10) }
}

/// What `sampling_params` makes of the prompt, token by token.
pub(crate) fn alone(
    text: &Text,
    Prepared { tokens, views, .. }: &Prepared,
    sampling_params: &SamplingParams,
) -> Vec<Chosen> {
    let mut decoder = SimulatedDecoder::open(kv(1), behaviour(text.vocab));
    let engine = engine(Duration::ZERO);
    let vision = Vision::new(text.spec.image.clone().unwrap(), vec![engine]).unwrap();
    let parts = views.iter().flat_map(|view| &view.parts);
    let features: Vec<_> = parts.map(|part| vision.encode(part).unwrap()).collect();
    let spans: Vec<FeatureSpan<'_>> = features
        .iter()
        .map(|features| FeatureSpan { features, tokens: 0..features.tokens })
        .collect();
    let image = ImageEmbeds { token: text.image_token.unwrap(), features: &spans };
    let image = (!views.is_empty()).then_some(image);
    let mut sampler = Sampler::new(&sampling_params.sampling, tokens, text.vocab).unwrap();
    let mut all: Vec<Chosen> = Vec::new();
    while all.len() < sampling_params.new_tokens_max {
        let draw = [sampler.draw(None)];
        let last = all.last().map(|chosen| [chosen.token]);
        let run = match &last {
            Some(last) => SlotInput::new(0, last),
            None => SlotInput { image, ..SlotInput::new(0, tokens) },
        };
        let chosen = decoder.step(&[run.choosing(&draw)]).unwrap()[0].chosen[0].clone().unwrap();
        sampler.count(chosen.token);
        all.push(chosen);
    }
    all
}

fn service(random: &mut Random, text: &Arc<Text>) -> Service {
    let slots = random.between(1, 8) as usize;
    let delays = random.chance(2);
    let (delay_us_max, seed) = (if delays { 200 } else { 0 }, random.between(0, 1 << 20) as u64);
    let behaviour = Behaviour { is_apart: delays, seed, delay_us_max, ..behaviour(text.vocab) };
    let decoder = SimulatedDecoder::open(kv(slots), behaviour);
    let block_bytes = decoder.kv_usage().block_bytes as u64;
    let blocks = random.between(11, 40) as u64;
    let engine = engine(Duration::from_micros(delay_us_max));
    let vision = Vision::new(text.spec.image.clone().unwrap(), vec![engine]).unwrap();
    let deployment = Deployment {
        text: Arc::clone(text),
        vision: Some(vision),
        llm: Box::new(decoder),
        engines: None,
    };
    let running_max = random.between(1, slots as i32) as usize;
    let kv = KvMemory::Bytes(blocks * block_bytes);
    Service::start(deployment, Options { running_max, kv, ..Options::default() }).unwrap()
}

/// Hears all answers of a request: tokens, and whether memory ended it.
fn hear(
    events: &mut EventReceiver,
    answers: usize,
    seed: u64,
) -> Vec<(Vec<Chosen>, Option<Finish>)> {
    let mut heard = vec![(Vec::new(), None); answers];
    while let Some(event) = events.wait() {
        match event {
            Event::Emitted { choice, tokens, .. } => {
                let chosen = tokens.into_iter();
                let chosen =
                    chosen.map(|said| Chosen { token: said.token, logprobs: said.logprobs });
                heard[choice].0.extend(chosen);
            }
            Event::Ended { choice, finish, .. } => heard[choice].1 = Some(finish),
            Event::Failed(failure) => panic!("seed {seed}: {failure}"),
            Event::Looking { .. } | Event::Read { .. } | Event::Scored { .. } => {}
        }
    }
    heard
}

/// Plays one pattern; gives how many answers were compared, and how many slots were taken back meanwhile.
fn play(seed: u64, text: &Arc<Text>) -> (usize, u64) {
    let mut random = Random::new(seed);
    let service = service(&mut random, text);
    let mut waiting = Vec::new();
    for _ in 0..random.between(1, 8) {
        let asked = asked(&mut random, text);
        match service.submit(asked.request()) {
            Ok(events) if !asked.leaves => waiting.push((asked, events)),
            Ok(_) | Err(Refused::TooLong { .. } | Refused::Busy { .. }) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    let mut compared = 0;
    for (asked, mut events) in waiting {
        let heard = hear(&mut events, asked.choice_params.len(), seed);
        for (sampling_params, (found, finish)) in asked.choice_params.iter().zip(heard) {
            let expected = alone(text, &asked.prepared, sampling_params);
            match finish {
                Some(Finish::Full) => assert!(expected.starts_with(&found), "seed {seed}"),
                _ => assert_eq!(found, expected, "seed {seed}"),
            }
            compared += 1;
        }
    }
    (compared, service.stats().preemptions)
}

#[test]
fn a_service_is_sized_by_the_memory_of_its_decoder() {
    let text = text();
    let block = SimulatedDecoder::open(kv(4), behaviour(text.vocab)).kv_usage();
    let (block_bytes, block_tokens) = (block.block_bytes as u64, block.block_tokens as u64);
    let start = |place, blocks: u64, memory_max| {
        let memory_bytes = Some(blocks * block_bytes);
        let behaviour = Behaviour { place, memory_bytes, ..behaviour(text.vocab) };
        let llm = Box::new(SimulatedDecoder::open(kv(4), behaviour));
        let deployment = Deployment { text: Arc::clone(&text), vision: None, llm, engines: None };
        Service::start(deployment, Options { memory_max, ..Options::default() })
    };
    let device = start(MemoryPlace::Device, 40, None).unwrap();
    assert_eq!(device.plan().tokens, 36 * block_tokens, "a tenth is left to others");
    assert!(device.is_on_device());
    assert_eq!(device.may_take_bytes(), 0, "runs of this machine need not make room for it");
    // What the process holds of the machine's memory is more than that, whatever the device has.
    let capped = start(MemoryPlace::Device, 40, Some(20 * block_bytes)).unwrap_err();
    assert!(matches!(capped, StartError::OverCap(_)), "{capped}");
    let capped = start(MemoryPlace::Device, 40, Some(1 << 30)).unwrap();
    assert_eq!(capped.plan().tokens, 36 * block_tokens);
    let unified = start(MemoryPlace::Unified, 40, None).unwrap();
    assert_eq!((unified.plan().tokens, unified.is_on_device()), (36 * block_tokens, false));
    assert_eq!(unified.may_take_bytes(), 36 * block_bytes);
    let host = start(MemoryPlace::Host, 40, None).unwrap();
    let full = 4 * MAX_SEQ_LEN as u64 / block_tokens;
    assert_eq!(host.plan().tokens, full * block_tokens, "others measure the machine");
    for (place, blocks) in [(MemoryPlace::Unified, 40), (MemoryPlace::Device, 40)] {
        let refused = start(place, blocks, Some(1)).unwrap_err();
        assert!(matches!(refused, StartError::DoesNotFit(_)), "{refused}");
    }
}

#[test]
fn any_pattern_is_answered_as_each_request_alone() {
    let patterns = std::env::var("SMELT_PATTERNS").ok().and_then(|count| count.parse().ok());
    let patterns = patterns.unwrap_or(PATTERNS);
    let (text, next) = (text(), AtomicU64::new(1));
    let play_some = || {
        let (mut compared, mut preempted) = (0, 0);
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed > patterns {
                return (compared, preempted);
            }
            let (answers, preemptions) = play(seed, &text);
            compared += answers;
            preempted += u64::from(preemptions > 0);
        }
    };
    let (compared, preempted) = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let players: Vec<_> = (0..cores * PLAYERS_A_CORE).map(|_| scope.spawn(play_some)).collect();
        let played =
            players.into_iter().map(|player| player.join().expect("a seed failed, see above"));
        played.fold((0, 0), |sum, played| (sum.0 + played.0, sum.1 + played.1))
    });
    println!("{compared} answers, slots were taken back in {preempted} patterns");
    assert!(compared > 0 && preempted > 0);
}
