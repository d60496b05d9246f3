//! The thread that owns the language model's engine, and does what the schedule says.
//!
//! It takes requests, drops those that need no answer, asks for the next step, does it, and tells what
//! came of it: one step at a time, so that nobody waits longer than for one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use smelt_backend::sampling::{Chosen, Draw, NotFinite};
use smelt_backend::{Answer, Decoder, ImageEmbeds, RunError, SlotInput, Want};

use super::event_stream::{Event, Failure, TokenInfo};
use super::replicas::{Gauge, Reopen, Replicas};
use super::scores::Scores;
use super::watch::Watch;
use super::{Asked, Client, Job, Kv, Over, Ready, Shared, ToLlm, capacity};
use crate::generation::{Finish, Generation, SpeakError, TokenOutput};
use crate::prefix::{Piece, PrefixHit};
use crate::schedule::{Owner, Schedule, Step, TaskId};

/// One answer.
struct Task {
    asked: Arc<Asked>,
    choice: usize,
    generation: Generation,
    /// Whether it was given a slot before.
    is_known: bool,
    /// Tokens that its slot held when it was first given one.
    cached_tokens: usize,
    /// What is known of the prompt's tokens, where that was asked of the request and this is its first answer.
    scores: Option<Scores>,
}

/// How long a step took, in microseconds.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How long is waited before each try to open an engine anew whose device was lost.
const REOPEN_WAITS: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(4)];

/// Losses without a step in between after which a device is given up.
const LOSSES_MAX: u32 = 3;

pub(super) struct LlmThread {
    pub(super) engine: Box<dyn Decoder>,
    pub(super) schedule: Schedule,
    inbox: Receiver<ToLlm>,
    shared: Arc<Shared>,
    replicas: Arc<Replicas>,
    watch: Watch,
    reopen: Option<Reopen>,
    running_max: usize,
    kv_bytes: u64,
    tasks: BTreeMap<TaskId, Task>,
    /// The system refused memory, whatever the engine's own count says.
    is_starved: bool,
    /// Losses since its last step.
    losses: u32,
}

impl LlmThread {
    pub(super) fn new(
        Ready { seat, mut llm, running_max, plan }: Ready,
        watch: Watch,
        inbox: Receiver<ToLlm>,
        shared: &Arc<Shared>,
        replicas: &Arc<Replicas>,
    ) -> Self {
        watch.begin(&mut *llm);
        Self {
            schedule: Schedule::new(capacity(&*llm, running_max)),
            engine: llm,
            inbox,
            shared: Arc::clone(shared),
            replicas: Arc::clone(replicas),
            watch,
            reopen: seat.reopen,
            running_max,
            kv_bytes: plan.bytes,
            tasks: BTreeMap::new(),
            is_starved: false,
            losses: 0,
        }
    }

    /// Answers until it is told to stop, or its device is lost for good.
    pub(super) fn run(mut self) {
        self.publish();
        while self.receive() {
            self.sweep();
            let step = self.schedule.next(self.blocks_free());
            self.perform(step);
            self.publish();
            if let Some(why) = self.engine.lost() {
                let Some(again) = self.recover(&why) else { return };
                self = again;
                continue;
            }
            let rest = self.engine.rest(self.schedule.counts().reading > 0);
            if !rest.is_zero() && !self.wait(rest) {
                break;
            }
        }
        for (_, task) in std::mem::take(&mut self.tasks) {
            task.asked.sender.send(Event::Failed(Failure::Stopped));
        }
    }

    /// The device was lost: what is under way fails, and the engine is opened anew.  Gives nothing where that is told to
    /// stop, or does not work; what waited is the others' then.
    fn recover(mut self, why: &str) -> Option<Self> {
        let name = self.replicas.lost(self.watch.at, why);
        let told = match &name[..] {
            "" => format!("the device was lost: {why}"),
            name => format!("{name} was lost: {why}"),
        };
        for id in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.fail(id, format!("the llm engine failed: {told}"));
        }
        let losses = self.losses + 1;
        let Self { engine, inbox, shared, replicas, watch, reopen, running_max, kv_bytes, .. } =
            self;
        // Its memory is the next one's.
        drop(engine);
        let mut reopening = Reopening { inbox: &inbox, waiting: Vec::new(), is_stopped: false };
        let opened = match reopen {
            Some(mut reopen) if losses < LOSSES_MAX => {
                reopening.open(&mut reopen).map(|engine| engine.map(|engine| (engine, reopen)))
            }
            _ => Err("it was lost again and again, or nobody can open it anew".to_owned()),
        };
        let Reopening { waiting, is_stopped, .. } = reopening;
        let jobs = |message: ToLlm| match message {
            ToLlm::Job(job) => Some(job),
            ToLlm::Do(_) | ToLlm::Stop => None,
        };
        match opened {
            Ok(Some((mut llm, reopen))) if !is_stopped => {
                llm.set_kv_bytes_max(kv_bytes);
                watch.begin(&mut *llm);
                let schedule = Schedule::new(capacity(&*llm, running_max));
                let (reopen, tasks, is_starved) = (Some(reopen), BTreeMap::new(), false);
                let mut again = Self {
                    engine: llm,
                    schedule,
                    inbox,
                    shared,
                    replicas,
                    watch,
                    reopen,
                    running_max,
                    kv_bytes,
                    tasks,
                    is_starved,
                    losses,
                };
                again.replicas.is_back(again.watch.at);
                again.publish();
                waiting.into_iter().for_each(|message| _ = again.hear(message));
                Some(again)
            }
            Ok(_) => {
                let own = waiting.into_iter().chain(inbox.try_iter()).filter_map(jobs);
                own.for_each(|job| job.asked.sender.send(Event::Failed(Failure::Stopped)));
                None
            }
            Err(problem) => {
                let own = || waiting.into_iter().chain(inbox.try_iter()).filter_map(jobs).collect();
                replicas.give_up(watch.at, &format!("{why}; {problem}"), own);
                None
            }
        }
    }

    /// Takes what has come; waits for something if there is nothing to do.  Returns whether to go on.
    fn receive(&mut self) -> bool {
        if self.tasks.is_empty() {
            self.watch.rests();
            let Ok(message) = self.inbox.recv() else { return false };
            if !self.hear(message) {
                return false;
            }
        }
        while let Ok(message) = self.inbox.try_recv() {
            if !self.hear(message) {
                return false;
            }
        }
        true
    }

    /// Waits for so long, or until something comes.  Returns whether to go on.
    fn wait(&mut self, time: Duration) -> bool {
        match self.inbox.recv_timeout(time) {
            Ok(message) => self.hear(message),
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Takes what has come.  Returns whether to go on.
    fn hear(&mut self, message: ToLlm) -> bool {
        match message {
            ToLlm::Job(job) => self.take(*job),
            ToLlm::Do(act) => act(self),
            ToLlm::Stop => return false,
        }
        true
    }

    /// A client as the schedule knows it.
    pub(super) fn owner(&self, client: &Client) -> Owner {
        let block_bytes = self.engine.kv_usage().block_bytes as u64;
        Owner {
            id: client.id,
            slots_max: client.slots_max,
            kept_blocks_max: client.kept_bytes_max.map(|bytes| (bytes / block_bytes) as usize),
            name: Some(client.slot),
        }
    }

    fn take(&mut self, job: Job) {
        let Job { client, first, priority, mut pieces, generations, asked } = job;
        // What was scored goes on in no other prompt.
        let name = asked.scored.is_none().then_some(client.slot);
        let owner = Owner { name, ..self.owner(&client) };
        let asked = Arc::new(asked);
        // What another one read was not scored; the answers of one share what the first of them reads.
        if let (Some(_), Some(piece)) = (asked.scored, pieces.first_mut()) {
            *piece = Piece::Alone([first, 0]);
        }
        for (choice, generation) in generations.into_iter().enumerate() {
            let id = first + choice as TaskId;
            let scores = asked.scored.filter(|_| choice == 0);
            let scores = scores.map(|top| Scores::new(&asked.tokens, top));
            self.schedule.arrive(id, owner, priority, pieces.clone());
            let asked = Arc::clone(&asked);
            let (is_known, cached_tokens) = (false, 0);
            let task = Task { asked, choice, generation, is_known, cached_tokens, scores };
            self.tasks.insert(id, task);
        }
    }

    /// Ends what nobody waits for.
    fn sweep(&mut self) {
        let now = Instant::now();
        let over = self.tasks.iter().filter_map(|(id, task)| Some((*id, task.asked.is_over(now)?)));
        for (id, over) in over.collect::<Vec<_>>() {
            match over {
                Over::Left => self.shared.stats().endings.cancelled += 1,
                Over::Late => {
                    self.shared.stats().endings.deadline += 1;
                    self.tasks[&id].asked.sender.send(Event::Failed(Failure::Deadline));
                }
            }
            self.end(id);
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Admit { task, slot, from } => self.admit(task, slot, from),
            Step::Read { task, slot, tokens, is_last } => self.read(task, slot, tokens, is_last),
            Step::Say(batch) => self.say(&batch),
            Step::Forget { slot } => self.release(slot),
            Step::Preempt { slot, .. } => {
                self.shared.stats().preemptions += 1;
                self.release(slot);
            }
            Step::Full { task } => {
                self.is_starved = false;
                self.finish(task, Finish::Full, String::new(), None);
            }
            Step::Rest => {}
        }
    }

    pub(super) fn blocks_free(&self) -> usize {
        if self.is_starved { 0 } else { self.engine.kv_usage().blocks_free() }
    }

    pub(super) fn release(&mut self, slot: usize) {
        self.engine.release(slot);
        self.is_starved = false;
    }

    fn admit(&mut self, id: TaskId, slot: usize, from: Option<PrefixHit>) {
        let cached_tokens = from.map_or(0, |found| found.len);
        match from {
            Some(found) if found.slot == slot => self.engine.truncate(slot, found.len),
            Some(found) => {
                if let Err(error) = self.engine.fork(found.slot, slot, found.len) {
                    return self.fail_of_engine(id, &error);
                }
            }
            None => self.engine.release(slot),
        }
        let Some(task) = self.tasks.get_mut(&id).filter(|task| !task.is_known) else { return };
        (task.is_known, task.cached_tokens) = (true, cached_tokens);
        let marks = task.asked.sender.marks();
        marks.once(|times| &mut times.admitted);
        let mut stats = self.shared.stats();
        stats.queue_seconds.observe_time(marks.times().taken.elapsed());
        stats.prompt_tokens += task.asked.tokens.len() as u64;
        stats.cached_tokens += cached_tokens as u64;
    }

    /// Runs a chunk of a prompt; the last one is followed by the first token.
    fn read(&mut self, id: TaskId, slot: usize, tokens: usize, is_last: bool) {
        if is_last && !self.draw(&[id]) {
            return;
        }
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let held = self.engine.held(slot);
        let start = Instant::now();
        let read = run(&mut *self.engine, task, slot, held..held + tokens, is_last);
        let took = start.elapsed();
        self.watch.did("chunk", (start, took), ("tokens", tokens), &*self.engine);
        match read {
            Ok(answer) => {
                self.losses = 0;
                self.shared.stats().chunk_seconds.observe_time(took);
                self.schedule.did_read(id, tokens, micros(took));
                if is_last {
                    self.told_read(id);
                    answer.chosen.into_iter().for_each(|chosen| self.choose(id, chosen));
                }
            }
            Err(error) => {
                // The part of the chunk in front of an answer's own tokens may have been read; the schedule counts
                // whole chunks.
                self.engine.truncate(slot, held);
                self.lack_or_fail(&[id], &error);
            }
        }
    }

    /// Has each answer say what its next token is chosen by.  Returns whether all can; those that cannot have failed, and
    /// the schedule is to be asked anew.
    fn draw(&mut self, ids: &[TaskId]) -> bool {
        let mut failed = Vec::new();
        for id in ids {
            if let Some(Err(error)) = self.tasks.get_mut(id).map(|task| task.generation.draw()) {
                failed.push((*id, error));
            }
        }
        let can = failed.is_empty();
        failed.into_iter().for_each(|(id, error)| self.fail_of_generation(id, &error));
        can
    }

    fn told_read(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.choice > 0 || !task.generation.tokens().is_empty() {
            return;
        }
        let Asked { tokens, sender, answers, .. } = &*task.asked;
        sender.marks().once(|times| &mut times.read);
        let (prompt_tokens, cached_tokens) = (tokens.len(), task.cached_tokens);
        sender.send(Event::Read { prompt_tokens, cached_tokens });
        let Some(scores) = task.scores.take() else { return };
        for choice in 0..*answers {
            sender.send(Event::Scored { choice, tokens: scores.tokens.clone() });
        }
    }

    /// One step of all answers.
    fn say(&mut self, batch: &[(TaskId, usize)]) {
        let begin = Instant::now();
        let ids: Vec<TaskId> = batch.iter().map(|(id, _)| *id).collect();
        if !self.draw(&ids) {
            return;
        }
        let drawn = begin.elapsed();
        let start = Instant::now();
        let step = self.step(batch);
        let took = start.elapsed();
        self.watch.did("step", (start, took), ("answers", batch.len()), &*self.engine);
        match step {
            Ok(answers) => {
                self.losses = 0;
                self.schedule.did_say(batch, micros(took));
                let start = Instant::now();
                for (id, answer) in ids.iter().zip(answers) {
                    answer.chosen.into_iter().for_each(|chosen| self.choose(*id, chosen));
                }
                let mut stats = self.shared.stats();
                stats.batch.observe(batch.len() as f64);
                stats.step_seconds.observe_time(took);
                stats.choose_seconds.observe_time(drawn + start.elapsed());
            }
            Err(error) => self.lack_or_fail(&ids, &error),
        }
    }

    /// Puts the last token of each answer behind what its slot holds, and chooses the next.
    fn step(&mut self, batch: &[(TaskId, usize)]) -> Result<Vec<Answer>, RunError> {
        let tasks = batch.iter().map(|(id, slot)| (*slot, &self.tasks[id].generation));
        let draws: Vec<(usize, [u32; 1], [Draw<'_>; 1])> = tasks
            .filter_map(|(slot, generation)| {
                Some((slot, [*generation.tokens().last()?], [generation.drawn()]))
            })
            .collect();
        let runs =
            draws.iter().map(|(slot, token, draw)| SlotInput::new(*slot, token).choosing(draw));
        self.engine.step(&runs.collect::<Vec<_>>())
    }

    /// Says the token that was chosen.
    fn choose(&mut self, id: TaskId, chosen: Result<Chosen, NotFinite>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let emitted = match task.generation.push(chosen) {
            Ok(emitted) => emitted,
            Err(error) => return self.fail_of_generation(id, &error),
        };
        let TokenOutput { token, text, logprobs, finish } = emitted;
        self.shared.stats().said_tokens += u64::from(token.is_some());
        let told = token.map(|token| TokenInfo { token, logprobs });
        if let Some(finish) = finish {
            return self.finish(id, finish, text, told);
        }
        if let Some(token) = token {
            self.schedule.chose(id, token);
        }
        tell(task, text, told);
    }

    /// The answer is complete.
    fn finish(&mut self, id: TaskId, finish: Finish, text: String, token: Option<TokenInfo>) {
        let Some(task) = self.tasks.get(&id) else { return };
        let (choice, tokens) = (task.choice, task.generation.tokens().len());
        if token.is_some() || !text.is_empty() {
            tell(task, text, token);
        }
        task.asked.sender.marks().ended();
        task.asked.sender.send(Event::Ended { choice, finish, tokens });
        let mut stats = self.shared.stats();
        match finish {
            Finish::Stop | Finish::Text(_) => stats.endings.stop += 1,
            Finish::Length | Finish::Full => stats.endings.length += 1,
        }
        drop(stats);
        self.end(id);
    }

    /// Room will be made if that is what the engine lacks; else its tasks have failed.
    fn lack_or_fail(&mut self, ids: &[TaskId], error: &RunError) {
        match error {
            RunError::KvFull { more, .. } => self.schedule.lack(*more),
            RunError::NoMemory { .. } => self.is_starved = true,
            _ => ids.iter().for_each(|id| self.fail_of_engine(*id, error)),
        }
    }

    /// The error says itself whose fault it is.
    fn fail_of_generation(&mut self, id: TaskId, error: &SpeakError) {
        let why = format!("the answer cannot go on: {error}");
        match error {
            // Who asked for a form that takes too long to follow did so; no engine is to blame.
            SpeakError::Form(_) => {
                self.shared.stats().endings.unheld += 1;
                self.break_off(id, Failure::Form(why));
            }
            _ => self.fail(id, why),
        }
    }

    fn fail_of_engine(&mut self, id: TaskId, error: &RunError) {
        // All that is under way on a device that is lost fails together, and hears its name.
        if self.engine.lost().is_some() {
            return;
        }
        self.fail(id, format!("the llm engine failed: {error}"));
    }

    fn fail(&mut self, id: TaskId, why: String) {
        if self.tasks.contains_key(&id) {
            self.shared.stats().endings.failed += 1;
        }
        self.break_off(id, Failure::Engine(why));
    }

    /// Ends an answer with why there is no more of it.
    fn break_off(&mut self, id: TaskId, failure: Failure) {
        if let Some(task) = self.tasks.get(&id) {
            task.asked.sender.send(Event::Failed(failure));
        }
        self.end(id);
    }

    fn end(&mut self, id: TaskId) {
        self.tasks.remove(&id);
        self.schedule.end(id);
    }

    fn publish(&self) {
        let counts = self.schedule.counts();
        let kv = self.engine.kv_usage();
        let kv = Kv {
            block_bytes: kv.block_bytes,
            block_tokens: kv.block_tokens,
            blocks_held: kv.blocks_held,
            blocks_total: kv.blocks_total,
        };
        let gauge = Gauge {
            waiting: counts.waiting,
            reading: counts.reading,
            saying: counts.saying,
            kept_slots: counts.kept,
            kv,
        };
        self.replicas.publish(self.watch.at, gauge);
    }
}

/// What comes while an engine is opened anew.
struct Reopening<'a> {
    inbox: &'a Receiver<ToLlm>,
    waiting: Vec<ToLlm>,
    is_stopped: bool,
}

impl Reopening<'_> {
    /// Opens the engine, if need be some time later; nothing where the thread is told to stop meanwhile.
    fn open(&mut self, reopen: &mut Reopen) -> Result<Option<Box<dyn Decoder>>, String> {
        let mut problem = String::new();
        for time in REOPEN_WAITS {
            self.hear(time);
            if self.is_stopped {
                return Ok(None);
            }
            match reopen() {
                Ok(engine) => return Ok(Some(engine)),
                Err(error) => problem = format!("it does not open: {error}"),
            }
        }
        Err(problem)
    }

    /// Keeps what comes, for so long.
    fn hear(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while !self.is_stopped {
            match self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(ToLlm::Stop) | Err(RecvTimeoutError::Disconnected) => self.is_stopped = true,
                Ok(message) => self.waiting.push(message),
                Err(RecvTimeoutError::Timeout) => return,
            }
        }
    }
}

fn tell(task: &Task, text: String, token: Option<TokenInfo>) {
    let tokens = Vec::from_iter(token);
    task.asked.sender.send(Event::Emitted { choice: task.choice, text, tokens });
}

/// Puts the task's tokens at `range` behind what `slot` holds; with the next one chosen, if asked.
fn run(
    engine: &mut dyn Decoder,
    task: &mut Task,
    slot: usize,
    range: Range<usize>,
    is_last: bool,
) -> Result<Answer, RunError> {
    let Asked { tokens, position_ids, image_token, images, .. } = &*task.asked;
    let read = range.start.min(tokens.len())..range.end.min(tokens.len());
    let emitted = task.generation.tokens();
    // What was said before a preemption holds no pictures, whatever its tokens are.
    let emitted = &emitted[range.start - read.start..range.end - read.end];
    let is_image = |token: &&u32| Some(**token) == *image_token;
    let before = tokens[..read.start].iter().filter(is_image).count();
    let count = tokens[read.clone()].iter().filter(is_image).count();
    let features = images.spans(before..before + count);
    let image_token = image_token.filter(|_| count > 0);
    let image = image_token.map(|token| ImageEmbeds { token, features: &features });
    let position_ids = position_ids.as_ref().map(|position_ids| &position_ids[read.clone()]);
    let scores = task.scores.as_ref().map(|scores| scores.wanted(tokens, &read));
    let draws = [task.generation.drawn()];
    let draws = if is_last { &draws[..] } else { &[] };
    let own = |draws| Want { draws, scores, ..Want::default() };
    let prompt = SlotInput { image, position_ids, ..SlotInput::new(slot, &tokens[read.clone()]) };
    let answer = match (prompt.tokens, emitted) {
        ([], []) => return Err(RunError::EmptyPrompt),
        ([], emitted) => one(engine, SlotInput::new(slot, emitted).choosing(draws))?,
        (_, []) => one(engine, SlotInput { want: own(draws), ..prompt })?,
        (_, emitted) => {
            let scored = one(engine, SlotInput { want: own(&[]), ..prompt })?;
            let chosen = one(engine, SlotInput::new(slot, emitted).choosing(draws))?;
            Answer { scores: scored.scores, ..chosen }
        }
    };
    if let Some(scores) = &mut task.scores {
        scores.take(read.start, answer.scores);
        return Ok(Answer { scores: Vec::new(), ..answer });
    }
    Ok(answer)
}

/// A step of one run.
fn one(engine: &mut dyn Decoder, run: SlotInput<'_>) -> Result<Answer, RunError> {
    Ok(engine.step(&[run])?.pop().unwrap_or_default())
}
