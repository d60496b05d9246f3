//! The thread that owns the language model's engine, and does what the schedule says.
//!
//! It takes requests, drops those that need no answer, asks for the next step, does it, and tells what
//! came of it: one step at a time, so that nobody waits longer than for one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use smelt_engine::llm::prefix::{Found, Piece};
use smelt_engine::llm::{ImageEmbeds, LlmEngine, Prompt, RunError};

use super::scores::Scores;
use super::ticket::{Event, Failure, TokenSaid};
use super::{Asked, Client, Job, Kv, Over, Shared, ToLlm};
use crate::schedule::{Capacity, Owner, Schedule, Step, TaskId};
use crate::speaker::{Finish, Said, Speaker};

/// The longest that the other engine is given way: no longer than one chunk of a prompt stalls.
const WAY_MAX: Duration = Duration::from_millis(80);

/// One answer.
struct Task {
    asked: Arc<Asked>,
    choice: usize,
    speaker: Speaker,
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

/// How long the other engine has the processors for itself behind a step that took so long.  While both
/// work the system gives each a half, so what is looked at has three quarters: who shows a picture waits for
/// all of it, and a stream that is slower for a while goes on.
fn way(step: Duration) -> Duration {
    step.min(WAY_MAX)
}

pub(super) struct LlmThread {
    pub(super) engine: LlmEngine,
    pub(super) schedule: Schedule,
    inbox: Receiver<ToLlm>,
    shared: Arc<Shared>,
    tasks: BTreeMap<TaskId, Task>,
    /// Of the last step, kept for their memory.
    logits: Vec<f32>,
    /// The system refused memory, whatever the engine's own count says.
    is_starved: bool,
}

impl LlmThread {
    pub(super) fn new(
        engine: LlmEngine,
        capacity: Capacity,
        inbox: Receiver<ToLlm>,
        shared: Arc<Shared>,
    ) -> Self {
        let schedule = Schedule::new(capacity);
        let (tasks, logits) = Default::default();
        Self { engine, schedule, inbox, shared, tasks, logits, is_starved: false }
    }

    /// Answers until it is told to stop.
    pub(super) fn run(mut self) {
        self.publish();
        while self.receive() {
            self.sweep();
            let step = self.schedule.next(self.blocks_free());
            let start = Instant::now();
            self.perform(step);
            self.publish();
            if self.gives_way() && !self.wait(way(start.elapsed())) {
                break;
            }
        }
        for (_, task) in std::mem::take(&mut self.tasks) {
            task.asked.teller.tell(Event::Failed(Failure::Stopped));
        }
    }

    /// Takes what has come; waits for something if there is nothing to do.  Returns whether to go on.
    fn receive(&mut self) -> bool {
        if self.tasks.is_empty() {
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

    /// Whether the vision engine, which is at work, is to have the processors for a while.  Where it pauses for
    /// prompts, they are read first.
    fn gives_way(&self) -> bool {
        let reads_first = || self.schedule.counts().reading > 0 && self.shared.pauses.is_left();
        self.shared.is_looking.load(Ordering::Acquire) && !reads_first()
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
        let Job { client, first, priority, mut pieces, speakers, asked } = job;
        // What was scored goes on in no other prompt.
        let name = asked.scored.is_none().then_some(client.slot);
        let owner = Owner { name, ..self.owner(&client) };
        let asked = Arc::new(asked);
        // What another one read was not scored; the answers of one share what the first of them reads.
        if let (Some(_), Some(piece)) = (asked.scored, pieces.first_mut()) {
            *piece = Piece::Alone([first, 0]);
        }
        for (choice, speaker) in speakers.into_iter().enumerate() {
            let id = first + choice as TaskId;
            let scores = asked.scored.filter(|_| choice == 0);
            let scores = scores.map(|top| Scores::new(&asked.tokens, top));
            self.schedule.arrive(id, owner, priority, pieces.clone());
            let asked = Arc::clone(&asked);
            let (is_known, cached_tokens) = (false, 0);
            let task = Task { asked, choice, speaker, is_known, cached_tokens, scores };
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
                    self.tasks[&id].asked.teller.tell(Event::Failed(Failure::Deadline));
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

    fn admit(&mut self, id: TaskId, slot: usize, from: Option<Found>) {
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
        let marks = task.asked.teller.marks();
        marks.once(|times| &mut times.admitted);
        let mut stats = self.shared.stats();
        stats.queue_seconds.observe_time(marks.times().taken.elapsed());
        stats.prompt_tokens += task.asked.tokens.len() as u64;
        stats.cached_tokens += cached_tokens as u64;
    }

    /// Runs a chunk of a prompt; the last one is followed by the first token.
    fn read(&mut self, id: TaskId, slot: usize, tokens: usize, is_last: bool) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let held = self.engine.held(slot);
        let start = Instant::now();
        let pause = self.shared.pauses.reading();
        let read = run(&mut self.engine, task, slot, held..held + tokens, is_last);
        drop(pause);
        let took = start.elapsed();
        match read {
            Ok(logits) => {
                self.shared.stats().chunk_seconds.observe_time(took);
                self.schedule.did_read(id, tokens, micros(took));
                if is_last {
                    self.told_read(id);
                    self.choose(id, &logits);
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

    fn told_read(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.choice > 0 || !task.speaker.tokens().is_empty() {
            return;
        }
        let Asked { tokens, teller, answers, .. } = &*task.asked;
        teller.marks().once(|times| &mut times.read);
        let (prompt_tokens, cached_tokens) = (tokens.len(), task.cached_tokens);
        teller.tell(Event::Read { prompt_tokens, cached_tokens });
        let Some(scores) = task.scores.take() else { return };
        for choice in 0..*answers {
            teller.tell(Event::Scored { choice, tokens: scores.tokens.clone() });
        }
    }

    /// One step of all answers.
    fn say(&mut self, batch: &[(TaskId, usize)]) {
        let last =
            |(id, slot): &(TaskId, usize)| Some((*slot, *self.tasks[id].speaker.tokens().last()?));
        let tokens: Vec<(usize, u32)> = batch.iter().filter_map(last).collect();
        let start = Instant::now();
        let mut logits = std::mem::take(&mut self.logits);
        let step = self.engine.decode_into(&tokens, &mut logits);
        let took = start.elapsed();
        match step {
            Ok(()) => {
                self.schedule.did_say(batch, micros(took));
                let start = Instant::now();
                let rows = logits.chunks_exact(self.engine.vocab());
                for ((id, _), logits) in batch.iter().zip(rows) {
                    self.choose(*id, logits);
                }
                let mut stats = self.shared.stats();
                stats.batch.observe(batch.len() as f64);
                stats.step_seconds.observe_time(took);
                stats.choose_seconds.observe_time(start.elapsed());
            }
            Err(error) => {
                let ids: Vec<TaskId> = batch.iter().map(|(id, _)| *id).collect();
                self.lack_or_fail(&ids, &error);
            }
        }
        self.logits = logits;
    }

    /// Says what follows from `logits`.
    fn choose(&mut self, id: TaskId, logits: &[f32]) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let said = match task.speaker.say(logits) {
            Ok(said) => said,
            // It says itself whose fault it is.
            Err(error) => return self.fail(id, format!("the answer cannot go on: {error}")),
        };
        let Said { token, text, logprobs, finish } = said;
        self.shared.stats().said_tokens += u64::from(token.is_some());
        let told = token.map(|token| TokenSaid { token, logprobs });
        if let Some(finish) = finish {
            return self.finish(id, finish, text, told);
        }
        if let Some(token) = token {
            self.schedule.chose(id, token);
        }
        tell(task, text, told);
    }

    /// The answer is complete.
    fn finish(&mut self, id: TaskId, finish: Finish, text: String, token: Option<TokenSaid>) {
        let Some(task) = self.tasks.get(&id) else { return };
        let (choice, tokens) = (task.choice, task.speaker.tokens().len());
        if token.is_some() || !text.is_empty() {
            tell(task, text, token);
        }
        task.asked.teller.marks().ended();
        task.asked.teller.tell(Event::Ended { choice, finish, tokens });
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

    fn fail_of_engine(&mut self, id: TaskId, error: &RunError) {
        self.fail(id, format!("the llm engine failed: {error}"));
    }

    fn fail(&mut self, id: TaskId, why: String) {
        if let Some(task) = self.tasks.get(&id) {
            self.shared.stats().endings.failed += 1;
            task.asked.teller.tell(Event::Failed(Failure::Engine(why)));
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
        let mut stats = self.shared.stats();
        stats.waiting = counts.waiting;
        stats.reading = counts.reading;
        stats.saying = counts.saying;
        stats.kept_slots = counts.kept;
        stats.kv = Kv {
            block_bytes: kv.block_bytes,
            block_tokens: kv.block_tokens,
            blocks_held: kv.blocks_held,
            blocks_total: kv.blocks_total,
        };
    }
}

fn tell(task: &Task, text: String, token: Option<TokenSaid>) {
    let tokens = Vec::from_iter(token);
    task.asked.teller.tell(Event::Said { choice: task.choice, text, tokens });
}

/// Puts the task's tokens at `range` behind what `slot` holds; gives what follows the last one, if asked.
fn run(
    engine: &mut LlmEngine,
    task: &mut Task,
    slot: usize,
    range: Range<usize>,
    is_last: bool,
) -> Result<Vec<f32>, RunError> {
    let Asked { tokens, places, image_token, images, .. } = &*task.asked;
    let read = range.start.min(tokens.len())..range.end.min(tokens.len());
    let said = task.speaker.tokens();
    // What was said before a preemption holds no pictures, whatever its tokens are.
    let said = &said[range.start - read.start..range.end - read.end];
    let is_image = |token: &&u32| Some(**token) == *image_token;
    let before = tokens[..read.start].iter().filter(is_image).count();
    let count = tokens[read.clone()].iter().filter(is_image).count();
    let embedded = images.slice(before..before + count);
    let image_token = image_token.filter(|_| count > 0);
    let image = image_token.map(|token| ImageEmbeds { token, embeds: &embedded.embeds });
    let places = places.as_ref().map(|places| &places[read.clone()]);
    let deepstack = &embedded.deepstack;
    let prompt = Prompt { deepstack, places, ..Prompt::plain(&tokens[read], image) };
    let mut parts = vec![prompt, Prompt::plain(said, None)];
    parts.retain(|part| !part.tokens.is_empty());
    if let Some(scores) = &mut task.scores {
        return scored(engine, slot, &parts, scores);
    }
    let last = parts.pop();
    for part in &parts {
        engine.read(slot, part)?;
    }
    match last {
        Some(last) if is_last => engine.prefill(slot, &last),
        Some(last) => engine.read(slot, &last).map(|()| Vec::new()),
        None => Err(RunError::EmptyPrompt),
    }
}

/// Puts `parts` behind what `slot` holds, and keeps how likely the prompt's tokens were; gives what
/// follows the last one.
fn scored(
    engine: &mut LlmEngine,
    slot: usize,
    parts: &[Prompt<'_>],
    scores: &mut Scores,
) -> Result<Vec<f32>, RunError> {
    let mut last = Vec::new();
    for part in parts {
        let mut at = engine.held(slot);
        engine.read_shown(slot, part, |logits| {
            at += 1;
            scores.put(at, logits);
            last.clear();
            last.extend_from_slice(logits);
        })?;
    }
    Ok(last)
}
