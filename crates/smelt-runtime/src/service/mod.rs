//! Answers many requests at once with one deployment.
//!
//! A [`Service`] is a handle to two threads: one owns the vision engine, if there is one, and looks at
//! pictures, one owns the language model's and does what the [`Schedule`](crate::schedule::Schedule) says.  Requests come
//! prepared ([`Text`]); events leave through an [`EventReceiver`].  What a request is answered depends on nothing but the request.
//! Knows nothing of HTTP.

mod event_stream;
mod image_cache;
mod images;
pub mod kept;
mod llm;
mod marks;
mod replicas;
mod scores;
mod sizing;
mod stats;
mod vision;
mod warm;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use smelt_backend::position_ids::PositionId;
use smelt_backend::{Decoder, MemoryPlace, MemoryReport};
use smelt_watch::{Machine, Sample};

use crate::deployment::{Deployment, Text};
use crate::generate::GenerateError;
use crate::generation::{Constraint, Generation, SamplingParams, SpeakError};
use crate::handle::{self, Gate, Handle, Threads};
use crate::identity::{Identity, Naming};
use crate::image::View;
use crate::prefix::Piece;
use crate::prepare::Prepared;
pub use crate::schedule::Priority;
use crate::schedule::{Capacity, TaskId};
use event_stream::EventSender;
pub use event_stream::{Event, EventReceiver, Failure, TokenInfo};
use images::Images;
pub use marks::{Marks, Times};
pub use replicas::{DeviceCounts, Reopen, ReplicaState, ReplicaStatus, Seat};
use replicas::{Owed, Replicas};
use sizing::{Beside, KvSizes, Memory};
pub use sizing::{DoesNotFit, KvMemory, KvPlan, OverCap, preparing};
pub use stats::{BATCHES, Endings, Histogram, Kv, SECONDS, Stats};
use watch::Watch;

/// Most answers to one request: each takes a slot.
pub const ANSWERS_MAX: usize = 16;

/// How many requests may be where, and what may be kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Requests that may wait beside those being answered.
    pub queue_max: usize,
    /// Answers that may be under way at once; as many as the engine has slots if there are fewer.
    pub running_max: usize,
    /// Bytes of pixels that may wait for the vision engine.
    pub pixel_bytes_max: usize,
    /// Bytes of embeddings of pictures to keep for when they are shown again.
    pub picture_cache_bytes: usize,
    /// Full contexts that keys and values have room for at most; without it, as many as the engine has slots.
    /// Slots beyond share that room: each may keep a prompt in case that the next one begins alike.
    pub contexts_max: Option<usize>,
    /// Bytes that requests may take while they are read and prepared; less under a small cap: [`preparing`].
    pub preparing_bytes: u64,
    /// Bytes that the whole process may take; else those that the deployment says.
    pub memory_max: Option<u64>,
    /// What keys and values may take of them, or of what is free.
    pub kv: KvMemory,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_max: 64,
            running_max: 8,
            pixel_bytes_max: 256 << 20,
            picture_cache_bytes: 64 << 20,
            contexts_max: None,
            preparing_bytes: 0,
            memory_max: None,
            kv: KvMemory::Free,
        }
    }
}

impl Options {
    /// Bytes that pictures may take.
    pub fn picture_bytes(&self) -> u64 {
        (self.picture_cache_bytes + self.pixel_bytes_max) as u64
    }

    /// As they are, with nothing for pictures.
    fn without_pictures(self) -> Self {
        Self { pixel_bytes_max: 0, picture_cache_bytes: 0, ..self }
    }

    /// As they are, with less for pictures where the whole process may take little.
    fn under_cap(self) -> Self {
        let (wanted, given) =
            (self.picture_bytes(), sizing::pictures(self.picture_bytes(), self.memory_max));
        let part = |bytes: usize| (bytes as f64 * given as f64 / wanted.max(1) as f64) as usize;
        Self {
            pixel_bytes_max: part(self.pixel_bytes_max),
            picture_cache_bytes: part(self.picture_cache_bytes),
            ..self
        }
    }
}

/// For whom a request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Clients are told apart by it; 0 where nobody has a name.
    pub id: u64,
    /// What was read and seen is of use to requests of the same alone.
    pub reuse: Option<Identity>,
    /// Most answers at once.
    pub slots_max: Option<usize>,
    /// Most bytes of keys and values that are kept for the client when its answers have ended.
    pub kept_bytes_max: Option<u64>,
    /// What the client calls the slot in which it is answered: [`kept`] finds by it what the answer left.
    pub slot: u32,
}

impl Client {
    /// Most of so many permits that the client's requests may take: a quarter is left to others.
    fn permits_max(&self, permits: usize) -> usize {
        if self.id == 0 { permits } else { (permits - permits / 4).max(1) }
    }

    /// The prompt as others of the same client see it, and strangers do not.
    fn own(&self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        // A picture's identity is the client's already.
        if let (Some(part), Some(first)) = (self.reuse, pieces.first_mut())
            && let Piece::Token(token) = *first
        {
            *first = Piece::Alone(Naming::of("first").name(part).number(token.into()).end());
        }
        pieces
    }
}

/// What is to be answered, and how.
#[derive(Debug)]
pub struct Request {
    /// For whom.
    pub client: Client,
    /// The prompt and its pictures.
    pub prepared: Prepared,
    /// How each answer is said.  Each has its own seed.
    pub choice_params: Vec<SamplingParams>,
    /// What each answer must be.
    pub constraint: Constraint,
    /// Whether it goes before others.
    pub priority: Priority,
    /// When an answer is of no use any more.
    pub deadline: Option<Instant>,
    /// How likely the prompt's tokens are is told too, with so many of the likeliest: then all of it is
    /// read, whatever slots hold.
    pub scored: Option<usize>,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There are too many.
    #[error("{live} requests are under way or wait; try again in {} s", retry_after.as_secs())]
    Busy {
        /// How many requests there are.
        live: usize,
        /// When there may be room.
        retry_after: Duration,
    },
    /// The service is ending.
    #[error("the service is ending and takes nothing new")]
    Draining,
    /// The memory for keys and values never suffices.
    #[error(
        "the prompt is too long: it has {tokens} tokens, but keys and values have room for {max}"
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// What fits, an answer of one token included.
        max: usize,
    },
    /// Too many answers are asked for, or none.
    #[error("{0} answers are asked for; 1 to {ANSWERS_MAX} are possible")]
    Answers(usize),
    /// How it is to be answered has no meaning.
    #[error(transparent)]
    SamplingParams(#[from] SpeakError),
}

/// Why a service cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An engine failed on what it was given to warm up.
    #[error("the engines do not run: {0}")]
    Warm(#[from] GenerateError),
    /// Keys and values have no room at all.
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    /// What is in no device's memory is more than the process may take.
    #[error(transparent)]
    OverCap(#[from] OverCap),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A request on its way.
struct Asked {
    tokens: Vec<u32>,
    /// The place of each token, where the decoder takes three of a token and there are pictures.
    position_ids: Option<Vec<PositionId>>,
    /// Tokens of the prompt that have an embedding, of models that see.
    image_token: Option<u32>,
    images: Images,
    sender: EventSender,
    deadline: Option<Instant>,
    scored: Option<usize>,
    /// Answers, each of which is told of the scored prompt.
    answers: usize,
    /// Counts it where it was given to.
    owed: Option<Owed>,
    _permit: Permit,
}

/// A request with what it is scheduled by.
struct Job {
    client: Client,
    /// The name of its first answer; the others follow.
    first: TaskId,
    priority: Priority,
    pieces: Vec<Piece>,
    generations: Vec<Generation>,
    asked: Asked,
}

impl Job {
    /// Why it need not be answered, if so.
    fn is_over(&self, now: Instant) -> Option<Over> {
        self.asked.is_over(now)
    }
}

/// Why an answer is not gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Left,
    Late,
}

impl Asked {
    fn is_over(&self, now: Instant) -> Option<Over> {
        if self.sender.is_left() {
            return Some(Over::Left);
        }
        self.deadline.is_some_and(|deadline| deadline <= now).then_some(Over::Late)
    }
}

/// Counted as long as its request lives.
struct Permit {
    shared: Arc<Shared>,
    client: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.gate.leave();
        let mut clients = self.shared.clients();
        if let Some(live) = clients.get_mut(&self.client) {
            *live -= 1;
            if *live == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

/// What handles and threads share.
struct Shared {
    stats: Mutex<Stats>,
    gate: Gate,
    /// Requests of each client that were taken and have not ended.
    clients: Mutex<BTreeMap<u64, usize>>,
    /// Bytes of pixels that wait.
    pixel_bytes: AtomicUsize,
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is done by the thread that owns the engine, between two steps.
type Act = Box<dyn FnOnce(&mut llm::LlmThread) + Send>;

enum ToLlm {
    Job(Box<Job>),
    Do(Act),
    Stop,
}

enum ToVision {
    Look(Box<Job>, Vec<View>),
    Stop,
}

/// The threads that answer, and what they share with their handles.
pub struct AnswerThreads {
    text: Arc<Text>,
    shared: Arc<Shared>,
    options: Options,
    plan: KvPlan,
    /// Where keys and values are.
    place: MemoryPlace,
    tokens_max: usize,
    next_task: AtomicU64,
    /// What names the engines, where they were opened from files.
    engines: Option<Identity>,
    replicas: Arc<Replicas>,
    to_vision: Sender<ToVision>,
    /// Those of the replicas, then that of the vision engine.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl AnswerThreads {
    /// Answers of all replicas at once.
    fn running_max(&self) -> usize {
        self.options.running_max * self.replicas.count()
    }
}

/// A decoder that has its memory, and the place where it answers.
struct Ready {
    seat: Seat,
    llm: Box<dyn Decoder>,
    running_max: usize,
    plan: KvPlan,
}

impl Ready {
    fn new(
        (seat, mut llm): (Seat, Box<dyn Decoder>),
        options: &Options,
        picture_bytes: u64,
    ) -> Result<Self, DoesNotFit> {
        let plan = give_memory(&mut *llm, options, picture_bytes, 1)?;
        Ok(Self { seat, llm, running_max: options.running_max, plan })
    }

    /// Tokens that keys and values have room for.
    fn tokens_max(&self) -> usize {
        let kv = self.llm.kv_usage();
        kv.blocks_total * kv.block_tokens
    }
}

/// What keys and values of a decoder have room for as it was given it, for so many answers at once.
fn capacity(llm: &dyn Decoder, running_max: usize) -> Capacity {
    let kv = llm.kv_usage();
    Capacity {
        slots: llm.facts().limits.max_slots,
        running_max,
        block_tokens: kv.block_tokens,
        blocks_total: kv.blocks_total,
    }
}

/// What replicas have room for together; a context is in one of them.
fn all_of(plans: impl Iterator<Item = KvPlan>) -> KvPlan {
    let both = |one: KvPlan, other: KvPlan| KvPlan {
        bytes: one.bytes + other.bytes,
        token_bytes: one.token_bytes.max(other.token_bytes),
        tokens: one.tokens + other.tokens,
        context_max: one.context_max.min(other.context_max),
        batch_max: one.batch_max + other.batch_max,
    };
    plans.reduce(both).unwrap_or_default()
}

/// A handle to the threads that answer.
pub type Service = Handle<AnswerThreads>;

impl Threads for AnswerThreads {
    fn model(&self) -> &str {
        &self.text.spec.model
    }

    fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    fn are_alive(&self) -> bool {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let (replicas, others) = threads.split_at(self.replicas.count().min(threads.len()));
        let is_there = |thread: &JoinHandle<()>| !thread.is_finished();
        replicas.iter().any(is_there) && others.iter().all(is_there)
    }
}

impl Service {
    /// Runs every size of work once, so that the first request is as fast as the tenth, and starts the
    /// threads.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(deployment: Deployment, options: Options) -> Result<Self, StartError> {
        Self::start_heard(deployment, options, &mut |_| {})
    }

    /// As [`Self::start`]; `told` hears which part of what is run once is done, from 0 to 1.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_heard(
        deployment: Deployment,
        options: Options,
        told: &mut dyn FnMut(f64),
    ) -> Result<Self, StartError> {
        Self::start_replicas(deployment, Seat::only(), Vec::new(), options, told)
    }

    /// As [`Self::start_heard`], with other decoders of the same engine beside the deployment's own, which has the place
    /// `seat`: each answers as many at once as `options` say, in memory of its own, and all share one line.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_replicas(
        mut deployment: Deployment,
        seat: Seat,
        others: Vec<(Seat, Box<dyn Decoder>)>,
        options: Options,
        told: &mut dyn FnMut(f64),
    ) -> Result<Self, StartError> {
        let slots = deployment.llm.facts().limits.max_slots;
        let running_max = options.running_max.clamp(1, slots);
        // Who sees nothing keeps nothing for pictures.
        let sees = deployment.vision.is_some();
        let options = if sees { options } else { options.without_pictures() };
        let picture_bytes = options.picture_bytes();
        let memory_max = options.memory_max.or(deployment.text.spec.serving.memory_bytes_max);
        let options = Options { running_max, memory_max, ..options }.under_cap();
        warm::up(&mut deployment, options.running_max, told)?;
        let Deployment { text, vision, llm, engines } = deployment;
        let (place, block_tokens) = (llm.memory().place, llm.kv_usage().block_tokens);
        let (processors, timeline) = (llm.processors(), text.timeline.clone());
        let mut ready = vec![Ready::new((seat, llm), &options, picture_bytes)?];
        for (seat, mut llm) in others {
            warm::decoder(&mut *llm, options.running_max)?;
            ready.push(Ready::new((seat, llm), &options, picture_bytes)?);
        }
        hold_beside(&ready[0].llm.memory(), &options, picture_bytes)?;
        let shared = Arc::new(Shared {
            stats: Mutex::new(Stats::new()),
            gate: Gate::default(),
            clients: Mutex::default(),
            pixel_bytes: AtomicUsize::new(0),
        });
        let plan = all_of(ready.iter().map(|ready| ready.plan));
        let tokens_max = ready.iter().map(Ready::tokens_max).min().unwrap_or_default();
        let inboxes: Vec<_> = ready.iter().map(|_| mpsc::channel()).collect();
        let names = ready.iter().map(|ready| ready.seat.name.clone());
        let senders = names.zip(inboxes.iter().map(|(to, _)| to.clone())).collect();
        let replicas = Arc::new(Replicas::new(senders, options.running_max, block_tokens));
        let (to_vision, vision_inbox) = mpsc::channel();
        let mut service = AnswerThreads {
            plan,
            place,
            tokens_max,
            next_task: AtomicU64::new(0),
            threads: Mutex::default(),
            text,
            shared: Arc::clone(&shared),
            options,
            engines,
            replicas: Arc::clone(&replicas),
            to_vision,
        };
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads = service.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (at, (ready, (_, inbox))) in ready.into_iter().zip(inboxes).enumerate() {
            let watch = Watch::new(at, timeline.as_ref());
            let llm = llm::LlmThread::new(ready, watch, inbox, &shared, &replicas);
            threads.push(named("llm").spawn(|| llm.run())?);
        }
        if let Some(mut vision) = vision {
            vision.share(&processors);
            let vision = vision::VisionThread::new(
                vision,
                options.picture_cache_bytes,
                (vision_inbox, replicas),
                (shared, timeline),
            );
            threads.push(named("vision").spawn(|| vision.run())?);
        }
        Ok(Self(Arc::new(service)))
    }

    /// What requests are prepared with.
    pub fn text(&self) -> &Arc<Text> {
        &self.0.text
    }

    /// What keys and values may take, and what fits into it.
    pub fn plan(&self) -> KvPlan {
        self.0.plan
    }

    /// Whether keys, values and weights are in a device's own memory, and take none of the machine's.
    pub fn is_on_device(&self) -> bool {
        self.0.place == MemoryPlace::Device
    }

    /// Bytes of the machine's memory that keys, values and pictures may take besides what they have.
    pub fn may_take_bytes(&self) -> u64 {
        let (kv, kept) = {
            let stats = self.stats();
            (stats.kv, stats.picture_cache_bytes)
        };
        let pictures = kept + self.0.shared.pixel_bytes.load(Ordering::Acquire);
        let held = (kv.blocks_held * kv.block_bytes) as u64;
        let more = self.0.options.picture_bytes().saturating_sub(pictures as u64);
        if self.is_on_device() { more } else { self.0.plan.bytes.saturating_sub(held) + more }
    }

    /// What was done so far, and what is being done.
    pub fn stats(&self) -> Stats {
        let mut stats = self.0.shared.stats().clone();
        self.0.replicas.sum(&mut stats);
        stats
    }

    /// How each replica stands.
    pub fn replicas(&self) -> Vec<ReplicaState> {
        self.0.replicas.states()
    }

    /// Answers that may be under way at once.
    pub fn running_max(&self) -> usize {
        self.0.running_max()
    }

    /// Takes a request.  Never waits.
    ///
    /// # Errors
    /// [`Refused`] saying what is wrong with it, or that there are too many.
    pub fn submit(&self, request: Request) -> Result<EventReceiver, Refused> {
        let AnswerThreads { shared, text, options, .. } = &*self.0;
        if shared.gate.is_closed() {
            return Err(Refused::Draining);
        }
        let Request { client, prepared, choice_params, constraint, priority, deadline, scored } =
            request;
        let Prepared { tokens, views, position_ids, .. } = prepared;
        let own = |view: View| match client.reuse {
            Some(part) => view.within(part),
            None => view,
        };
        let views: Vec<View> = views.into_iter().map(own).collect();
        if !(1..=ANSWERS_MAX).contains(&choice_params.len()) {
            return Err(Refused::Answers(choice_params.len()));
        }
        if tokens.len() >= self.0.tokens_max {
            return Err(Refused::TooLong { tokens: tokens.len(), max: self.0.tokens_max - 1 });
        }
        let pixel_bytes: usize = views.iter().map(View::bytes).sum();
        let permit = self.permit(&client, pixel_bytes, options)?;
        let generations = choice_params.iter().map(|sampling_params| {
            Generation::new(text, &tokens, sampling_params, constraint.clone())
        });
        let generations = generations.collect::<Result<Vec<_>, _>>()?;
        let pieces = client.own(Prepared::pieces(&tokens, &views, text.image_token));
        let (sender, events) = event_stream::channel();
        let asked = Asked {
            tokens,
            position_ids,
            image_token: text.image_token,
            images: Images::default(),
            sender,
            deadline,
            scored,
            answers: choice_params.len(),
            owed: None,
            _permit: permit,
        };
        let first = self.0.next_task.fetch_add(ANSWERS_MAX as u64, Ordering::Relaxed);
        let job = Box::new(Job { client, first, priority, pieces, generations, asked });
        shared.stats().requests += 1;
        // A thread that is gone drops the request, and its reader hears that nothing more comes.
        if views.is_empty() {
            self.0.replicas.send(job);
        } else {
            shared.pixel_bytes.fetch_add(pixel_bytes, Ordering::AcqRel);
            let _ = self.0.to_vision.send(ToVision::Look(job, views));
        }
        Ok(events)
    }

    /// A place among those that are answered or wait, if there is one.
    fn permit(
        &self,
        client: &Client,
        pixel_bytes: usize,
        options: &Options,
    ) -> Result<Permit, Refused> {
        let shared = &self.0.shared;
        let running_max = self.0.running_max();
        let permits = options.queue_max + running_max;
        let live = shared.gate.enter();
        let of_client = {
            let mut clients = shared.clients();
            let live = clients.entry(client.id).or_default();
            *live += 1;
            *live
        };
        let permit = Permit { shared: Arc::clone(shared), client: client.id };
        let waiting = shared.pixel_bytes.load(Ordering::Acquire);
        // Alone, a picture of any size that was prepared may come in.
        let is_full = waiting > 0 && waiting + pixel_bytes > options.pixel_bytes_max;
        if live < permits && of_client <= client.permits_max(permits) && !is_full {
            return Ok(permit);
        }
        let mut stats = shared.stats();
        stats.refused += 1;
        Err(Refused::Busy { live, retry_after: retry_after(&stats, live, running_max) })
    }
}

/// Lets keys and values take what is left where they are and no more, where one conversation is answered and no
/// service, by a process that may take `memory_max` bytes.
///
/// # Errors
/// [`DoesNotFit`] if not even the shortest context has room.
pub fn give_what_is_left(
    llm: &mut dyn Decoder,
    memory_max: Option<u64>,
) -> Result<KvPlan, DoesNotFit> {
    // The shortest context of all is a block, and the plan is of two at least.
    give_memory(llm, &Options { memory_max, ..Options::default() }, 0, 2)
}

/// Holds what one conversation takes of the machine's memory to what this process may take, where the decoder is in a
/// device's own: see [`give_what_is_left`].
///
/// # Errors
/// [`OverCap`] if it is more.
pub fn hold_what_is_beside(llm: &dyn Decoder, memory_max: Option<u64>) -> Result<(), OverCap> {
    hold_beside(&llm.memory(), &Options { memory_max, ..Options::default() }, 0)
}

/// The same of a service, beside pictures that would take `pictures` bytes under no cap.  Where keys and values are in the
/// machine's memory they are what gives way, and their plan says so.
fn hold_beside(report: &MemoryReport, options: &Options, pictures: u64) -> Result<(), OverCap> {
    if report.place != MemoryPlace::Device {
        return Ok(());
    }
    let own = Sample::of(std::process::id()).unwrap_or_default();
    let held = own.rss_anon_bytes.saturating_add(own.swap_bytes + report.locked_bytes);
    let beside = Beside { held, pictures, preparing: options.preparing_bytes };
    beside.within(options.memory_max)
}

/// Measures what the engines left, of the machine's memory or of what the decoder says that its own has, and lets keys
/// and values take their part of it, beside pictures that would take `pictures` bytes under no cap, and for so many
/// contexts at least.
fn give_memory(
    llm: &mut dyn Decoder,
    options: &Options,
    pictures: u64,
    slots_min: u64,
) -> Result<KvPlan, DoesNotFit> {
    let machine = Machine::left_to_us(Path::new("/"));
    let own = Sample::of(std::process::id());
    let memory = Memory {
        place: MemoryPlace::Host,
        available: machine.mem_available_bytes.unwrap_or(u64::MAX),
        resident: own.map_or(0, |own| own.rss_bytes),
        taken: 0,
        cap: options.memory_max,
        pictures,
        preparing: options.preparing_bytes,
        kv: options.kv,
    };
    let memory = memory.of(&llm.memory(), pictures.min(options.picture_cache_bytes as u64));
    let (kv, limits) = (llm.kv_usage(), llm.facts().limits);
    let contexts = options.contexts_max.unwrap_or(limits.max_slots).min(limits.max_slots);
    let sizes = KvSizes {
        block_bytes: kv.block_bytes as u64,
        block_tokens: kv.block_tokens as u64,
        max_seq_len: limits.max_seq_len as u64,
        slots: contexts.max(slots_min as usize) as u64,
    };
    let plan = sizing::plan(&memory, &sizes)?;
    llm.set_kv_bytes_max(plan.bytes);
    Ok(plan)
}

/// When as many requests as there are will have been answered, by what they took so far.
fn retry_after(stats: &Stats, live: usize, running_max: usize) -> Duration {
    let taken = stats.requests.max(1) as f64;
    let engine_s = stats.chunk_seconds.sum + stats.step_seconds.sum;
    handle::retry_after(engine_s / taken * live as f64 / running_max as f64)
}

impl Drop for AnswerThreads {
    fn drop(&mut self) {
        // Threads that are gone need no word.
        let _ = self.to_vision.send(ToVision::Stop);
        (0..self.replicas.count()).for_each(|at| _ = self.replicas.tell(at, ToLlm::Stop));
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_backend::KvOptions;
    use smelt_backend::simulated::{Behaviour, SimulatedDecoder};

    use super::*;

    /// What a decoder is given whose memory is there and has room for so many blocks, under a cap of the process.
    fn given(place: MemoryPlace, blocks: u64, cap: Option<u64>) -> Result<usize, DoesNotFit> {
        let kv = KvOptions { max_slots: Some(4), max_seq_len: Some(160), ..KvOptions::default() };
        let behaviour = Behaviour { is_apart: false, place, ..Behaviour::default() };
        let block_bytes = SimulatedDecoder::open(kv, behaviour).kv_usage().block_bytes as u64;
        let behaviour = Behaviour { memory_bytes: Some(blocks * block_bytes), ..behaviour };
        let mut decoder = SimulatedDecoder::open(kv, behaviour);
        let options = Options { memory_max: cap, ..Options::default() };
        give_memory(&mut decoder, &options, 0, 1)?;
        Ok(decoder.kv_usage().blocks_total)
    }

    #[test]
    fn a_decoder_is_given_of_the_memory_that_it_has() {
        use MemoryPlace::{Device, Host, Unified};
        assert_eq!(given(Host, 20, None), Ok(40), "the machine has more than full slots take");
        assert_eq!((given(Device, 20, None), given(Unified, 20, None)), (Ok(18), Ok(18)));
        assert_eq!(given(Device, 1000, None), Ok(40), "no more than full slots take");
        assert_eq!(
            given(Device, 20, Some(1 << 30)),
            Ok(18),
            "the host's pages are none of a device"
        );
        assert!([Host, Unified, Device].iter().all(|place| given(*place, 20, Some(1)).is_err()));
        let error = given(Device, 2, None).unwrap_err().to_string();
        assert!(error.contains("MiB of the device's memory, but one block"), "{error}");
    }

    #[test]
    fn pictures_take_less_under_a_small_cap() {
        let small = Options { memory_max: Some(160 << 20), ..Options::default() }.under_cap();
        assert_eq!((small.pixel_bytes_max, small.picture_cache_bytes), (32 << 20, 8 << 20));
        assert_eq!(Options::default().under_cap(), Options::default());
    }

    #[test]
    fn who_is_refused_comes_again_when_there_may_be_room() {
        let mut stats = Stats::new();
        let after = |stats: &Stats, live| retry_after(stats, live, 4).as_secs();
        assert_eq!(after(&stats, 80), 1, "nothing is known yet");
        stats.requests = 10;
        stats.step_seconds.observe(5.0);
        assert_eq!((after(&stats, 1), after(&stats, 80), after(&stats, 8000)), (1, 10, 60));
    }
}
