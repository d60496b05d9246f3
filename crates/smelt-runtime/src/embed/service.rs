//! Has the texts of many requests read by one encoder, or by the same one on several devices: each has a thread, and all take
//! texts from one line.
//!
//! Requests take turns, a text each, so that one short text does not wait for a long list.  A request
//! whose [`RequestGuard`] is dropped goes no further.  An encoder that cannot even read the shortest text any more, as on a card
//! that is lost, ends while others read, and they read what it failed on.  Knows nothing of HTTP.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{EmbedError, SentenceEncoder};
use crate::handle::{Gate, Handle, Threads, retry_after};
use crate::service::{Failure, Histogram, ReplicaState, ReplicaStatus, SECONDS};

/// What reads a text at a time: an encoder that embeds texts, or scores pairs.
pub trait Reader: fmt::Debug + Send + Sync + 'static {
    /// What is read, as tokens.
    type Text: Send;
    /// What is said of it.
    type Answer: Send + Sync;

    /// The model's name.
    fn model(&self) -> &str;

    /// Most tokens of a text.
    fn tokens_max(&self) -> usize;

    /// A text of so many tokens, whichever.
    fn blank(tokens: usize) -> Self::Text;

    /// Reads a text of these tokens, special ones included.
    ///
    /// # Errors
    /// [`EmbedError`] when the encoder fails on it.
    fn read(&self, text: &Self::Text) -> Result<Self::Answer, EmbedError>;

    /// Tokens that were read.
    fn tokens(answer: &Self::Answer) -> usize;
}

/// Is told once what became of a request: an answer for each text, in order.
pub type Reply<A> = Box<dyn FnOnce(Result<Vec<A>, Failure>) + Send>;

/// Keeps a request going; dropping it cancels what is not done.
#[derive(Debug)]
pub struct RequestGuard(
    #[expect(dead_code, reason = "it is looked at through weak references")] Arc<()>,
);

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
}

/// Why a service cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The encoder failed on what it was given to warm up.
    #[error("the encoder does not run: {0}")]
    Warm(#[from] EmbedError),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What a service has done since it was started, and does now.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Requests that were taken.
    pub requests: u64,
    /// Requests that were refused since there were too many.
    pub refused: u64,
    /// Requests that nobody waited for any more.
    pub cancelled: u64,
    /// Requests on which the encoder failed.
    pub failed: u64,
    /// Texts that were read.
    pub texts: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Texts that wait.
    pub waiting: usize,
    /// Of a text.
    pub text_seconds: Histogram,
}

impl Stats {
    fn new() -> Self {
        let [requests, refused, cancelled, failed, texts, tokens] = [0; 6];
        let text_seconds = Histogram::new(SECONDS);
        Self { requests, refused, cancelled, failed, texts, tokens, waiting: 0, text_seconds }
    }

    /// When the texts that wait will have been read, by what texts took so far.
    fn retry_after(&self) -> Duration {
        retry_after(self.text_seconds.sum / self.texts.max(1) as f64 * self.waiting as f64)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What handles and threads share.
struct Shared<E: Reader> {
    stats: Mutex<Stats>,
    gate: Gate,
    line: Mutex<Line<E>>,
    /// Something was put into the line, or it has ended.
    changed: Condvar,
    /// How the device of each encoder stands.
    devices: Mutex<Vec<ReplicaState>>,
}

/// Requests in the order of their turns.
struct Line<E: Reader> {
    jobs: VecDeque<Arc<Job<E>>>,
    /// Nobody can ask any more.
    has_ended: bool,
    /// Encoders that read, or would if there were something.
    readers: usize,
}

/// A thread that reads, and its place; one that panics is counted no more.
struct Reading<'a, E: Reader>(&'a Shared<E>, usize);

impl<E: Reader> Drop for Reading<'_, E> {
    fn drop(&mut self) {
        let Self(shared, at) = *self;
        if std::thread::panicking() {
            let mut line = locked(&shared.line);
            line.readers -= 1;
            shared.lost(at, "its thread failed", false);
        }
    }
}

/// A request on its way.
struct Job<E: Reader> {
    guard: Weak<()>,
    state: Mutex<JobState<E>>,
}

struct JobState<E: Reader> {
    /// Those that nobody has begun, with their numbers.
    texts: VecDeque<(usize, E::Text)>,
    /// What was said of each, by its number.
    done: Vec<Option<E::Answer>>,
    /// Texts of which nothing was said yet.
    left: usize,
    /// Gone when it was told.
    reply: Option<(Reply<E::Answer>, Permit<E>)>,
}

/// Counted as long as its request lives.
struct Permit<E: Reader>(Arc<Shared<E>>);

impl<E: Reader> Drop for Permit<E> {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

/// The threads that read, and what they share with their handles.
pub struct EmbedThreads<E: Reader> {
    /// The first of them, by which requests are prepared.
    encoder: Arc<E>,
    /// What was said of the shortest text.
    least: E::Answer,
    queue_max: usize,
    shared: Arc<Shared<E>>,
    threads: Vec<JoinHandle<()>>,
}

/// A handle to the threads that read.
pub type EmbedService<E = SentenceEncoder> = Handle<EmbedThreads<E>>;

impl<E: Reader> Threads for EmbedThreads<E> {
    fn model(&self) -> &str {
        self.encoder.model()
    }

    fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    fn are_alive(&self) -> bool {
        self.threads.iter().any(|thread| !thread.is_finished())
    }
}

impl EmbedService {
    /// Numbers of an embedding.
    pub fn width(&self) -> usize {
        self.0.least.row.len()
    }
}

impl<E: Reader> EmbedService<E> {
    /// Runs the shortest and the longest text once by each encoder, so that the first request finds weights and buffers in
    /// place, and starts a thread for each; `others` are the same encoder on other devices.  Each comes with what its device is
    /// called, or no word where that is the processors.  `queue_max` requests may wait beside the one whose turn it is.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        first: (String, E),
        others: Vec<(String, E)>,
        queue_max: usize,
    ) -> Result<Self, StartError> {
        let seats = [first].into_iter().chain(others);
        let (names, all): (Vec<String>, Vec<Arc<E>>) =
            seats.map(|(name, encoder)| (name, Arc::new(encoder))).unzip();
        let encoder = Arc::clone(&all[0]);
        let mut least = None;
        for encoder in all.iter().rev() {
            encoder.read(&E::blank(encoder.tokens_max()))?;
            least = Some(encoder.read(&E::blank(1))?);
        }
        let least = least.expect("there is one encoder at least");
        let line = Line { jobs: VecDeque::new(), has_ended: false, readers: all.len() };
        let (stats, gate) = (Mutex::new(Stats::new()), Gate::default());
        let changed = Condvar::new();
        let state = |name| ReplicaState { name, ..ReplicaState::default() };
        let devices = Mutex::new(names.into_iter().map(state).collect());
        let shared = Arc::new(Shared { stats, gate, line: Mutex::new(line), changed, devices });
        let mut service = EmbedThreads { encoder, least, queue_max, shared, threads: Vec::new() };
        for (at, encoder) in all.into_iter().enumerate() {
            let shared = Arc::clone(&service.shared);
            let thread = std::thread::Builder::new().name("embed".to_owned());
            // Those that were started end with what holds them.
            service.threads.push(thread.spawn(move || shared.read_all(at, &*encoder))?);
        }
        Ok(Self(Arc::new(service)))
    }

    /// What requests are prepared with; its engine is a thread's.
    pub fn encoder(&self) -> &E {
        &self.0.encoder
    }

    /// What was done so far, and what is being done.
    pub fn stats(&self) -> Stats {
        locked(&self.0.shared.stats).clone()
    }

    /// How the device of each encoder stands.
    pub fn replicas(&self) -> Vec<ReplicaState> {
        locked(&self.0.shared.devices).clone()
    }

    /// Takes the tokens of texts, each at most as long as the deployment says.  Never waits; `reply` is
    /// told from a thread, and never if all are gone; of no texts at all it is told at once.
    ///
    /// # Errors
    /// [`Refused`] if there are too many.
    pub fn submit(
        &self,
        texts: Vec<E::Text>,
        reply: Reply<E::Answer>,
    ) -> Result<RequestGuard, Refused> {
        let shared = &self.0.shared;
        if shared.gate.is_closed() {
            return Err(Refused::Draining);
        }
        let live = shared.gate.enter();
        let permit = Permit(Arc::clone(shared));
        let mut stats = locked(&shared.stats);
        if live > self.0.queue_max {
            stats.refused += 1;
            return Err(Refused::Busy { live, retry_after: stats.retry_after() });
        }
        stats.requests += 1;
        stats.waiting += texts.len();
        drop(stats);
        let guard = Arc::new(());
        if texts.is_empty() {
            drop(permit);
            reply(Ok(Vec::new()));
            return Ok(RequestGuard(guard));
        }
        let left = texts.len();
        let state = JobState {
            texts: texts.into_iter().enumerate().collect(),
            done: (0..left).map(|_| None).collect(),
            left,
            reply: Some((reply, permit)),
        };
        let job = Arc::new(Job { guard: Arc::downgrade(&guard), state: Mutex::new(state) });
        locked(&shared.line).jobs.push_back(job);
        shared.changed.notify_one();
        Ok(RequestGuard(guard))
    }
}

impl<E: Reader> Drop for EmbedThreads<E> {
    fn drop(&mut self) {
        locked(&self.shared.line).has_ended = true;
        self.shared.changed.notify_all();
        // One that has panicked is told of by its panic.
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// A text whose turn it is.
struct Turn<E: Reader> {
    job: Arc<Job<E>>,
    number: usize,
    text: E::Text,
}

impl<E: Reader> Shared<E> {
    /// Reads until nobody can ask any more, or it is lost and others read.
    fn read_all(&self, at: usize, encoder: &E) {
        let _reading = Reading(self, at);
        while let Some(turn) = self.next() {
            self.device(at, |state| state.owes = 1);
            let begun = Instant::now();
            match encoder.read(&turn.text) {
                Ok(answer) => {
                    self.device(at, |state| {
                        (state.status, state.owes) = (ReplicaStatus::Ready, 0);
                    });
                    self.read(&turn, answer, begun.elapsed());
                }
                Err(error) => {
                    // One that reads the shortest text is well: the text was at fault, or the moment.
                    let is_lost = encoder.read(&E::blank(1)).is_err();
                    self.device(at, |state| state.owes = 0);
                    if !self.failed((at, turn), &error, is_lost) {
                        return;
                    }
                }
            }
        }
    }

    /// Takes note of how a device stands.
    fn device(&self, at: usize, change: impl FnOnce(&mut ReplicaState)) {
        change(&mut locked(&self.devices)[at]);
    }

    /// A device is lost; whether others read what it failed on.  One that was lost before is no other loss.
    fn lost(&self, at: usize, why: &str, went_on: bool) {
        self.device(at, |state| {
            state.losses += u64::from(state.status == ReplicaStatus::Ready);
            (state.status, state.why) = (ReplicaStatus::Lost, Some(why.to_owned()));
            state.went_on = went_on;
        });
    }

    /// The text whose turn is next; waits for one.  Nothing when nobody can ask any more.
    fn next(&self) -> Option<Turn<E>> {
        let mut line = locked(&self.line);
        loop {
            while let Some(job) = line.jobs.pop_front() {
                let mut state = locked(&job.state);
                if job.guard.strong_count() == 0 {
                    self.cancel(&mut state);
                } else if let Some((number, text)) = state.texts.pop_front() {
                    let has_more = !state.texts.is_empty();
                    drop(state);
                    if has_more {
                        line.jobs.push_back(Arc::clone(&job));
                        self.changed.notify_one();
                    }
                    return Some(Turn { job, number, text });
                }
            }
            if line.has_ended {
                line.readers -= 1;
                return None;
            }
            line = self.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody waits for it any more.
    fn cancel(&self, state: &mut JobState<E>) {
        let mut stats = locked(&self.stats);
        stats.waiting -= state.texts.len();
        stats.cancelled += u64::from(state.reply.is_some());
        drop(stats);
        state.texts.clear();
        state.reply = None;
    }

    /// Notes what was said of a text, and tells all when it was the last.
    fn read(&self, turn: &Turn<E>, answer: E::Answer, took: Duration) {
        let mut stats = locked(&self.stats);
        stats.texts += 1;
        stats.waiting -= 1;
        stats.tokens += E::tokens(&answer) as u64;
        stats.text_seconds.observe_time(took);
        drop(stats);
        let mut state = locked(&turn.job.state);
        // Those of a request that has failed are gone.
        if let Some(place) = state.done.get_mut(turn.number) {
            *place = Some(answer);
        }
        state.left -= 1;
        if state.left == 0 {
            tell(state, Ok);
        }
    }

    /// Has others read a text on which an encoder has failed that is lost; each time costs one of them, so the last failure is the
    /// request's.  So is that of an encoder which is well.  Returns whether the one that failed goes on.
    fn failed(&self, (at, turn): (usize, Turn<E>), error: &EmbedError, is_lost: bool) -> bool {
        let Turn { job, number, text } = turn;
        let mut line = locked(&self.line);
        let goes_on = is_lost && line.readers > 1;
        if is_lost {
            self.lost(at, &error.to_string(), goes_on);
        }
        if goes_on {
            line.readers -= 1;
            locked(&job.state).texts.push_front((number, text));
            line.jobs.push_front(job);
            self.changed.notify_one();
            return false;
        }
        drop(line);
        let mut state = locked(&job.state);
        let mut stats = locked(&self.stats);
        stats.waiting -= state.texts.len() + 1;
        stats.failed += u64::from(state.reply.is_some());
        drop(stats);
        state.texts.clear();
        let why = format!("the encoder failed: {error}");
        tell(state, |_| Err(Failure::Engine(why)));
        true
    }
}

/// Tells whoever asked, once.
fn tell<E: Reader>(
    mut state: MutexGuard<'_, JobState<E>>,
    outcome: impl FnOnce(Vec<E::Answer>) -> Result<Vec<E::Answer>, Failure>,
) {
    let Some((reply, permit)) = state.reply.take() else { return };
    let done = std::mem::take(&mut state.done).into_iter().flatten().collect();
    drop(state);
    // Who hears the answer finds the place free.
    drop(permit);
    reply(outcome(done));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use smelt_backend::GraphError;

    use super::*;

    /// Says what it is told: a text is a number.  It waits while the gate is closed, and fails when it is told to; one that is lost
    /// is so from its first text on.
    #[derive(Debug, Default)]
    struct Echo {
        name: u32,
        is_lost: bool,
        has_begun: AtomicBool,
        /// It is lost no longer.
        comes_back: Arc<AtomicBool>,
        gate: Arc<Mutex<()>>,
    }

    impl Reader for Echo {
        type Text = u32;
        type Answer = (u32, u32);

        fn model(&self) -> &str {
            "echo"
        }

        fn tokens_max(&self) -> usize {
            0
        }

        fn blank(_: usize) -> u32 {
            0
        }

        fn read(&self, text: &u32) -> Result<(u32, u32), EmbedError> {
            if *text > 0 {
                drop(locked(&self.gate));
                self.has_begun.store(true, Ordering::Relaxed);
            }
            let failed = |why: &str| Err(EmbedError::Run(GraphError::Graph(why.to_owned())));
            let is_back = self.comes_back.load(Ordering::Relaxed);
            let is_lost = self.is_lost && self.has_begun.load(Ordering::Relaxed) && !is_back;
            match text {
                _ if is_lost => failed("the card is lost"),
                13 => failed("no memory at the moment"),
                text => Ok((self.name, *text)),
            }
        }

        fn tokens(_: &(u32, u32)) -> usize {
            1
        }
    }

    type Told = mpsc::Receiver<(u32, Result<Vec<(u32, u32)>, Failure>)>;

    /// Asks these texts by requests of these names, all before the first is read; what is told, in the order in which it is.
    fn ask(
        encoders: Vec<Echo>,
        requests: &[(u32, &[u32])],
    ) -> (EmbedService<Echo>, Told, Vec<RequestGuard>) {
        held(encoders, requests, |_| ())
    }

    /// The same, where no text is read before something else was done.
    fn held(
        encoders: Vec<Echo>,
        requests: &[(u32, &[u32])],
        before: impl FnOnce(&EmbedService<Echo>),
    ) -> (EmbedService<Echo>, Told, Vec<RequestGuard>) {
        let gate = Arc::clone(&encoders[0].gate);
        let closed = locked(&gate);
        let mut encoders = encoders.into_iter();
        let first = encoders.next().unwrap();
        let seat = |echo: Echo| (format!("cuda:{}", echo.name), echo);
        let others = encoders.map(seat).collect();
        let service = EmbedService::start(seat(first), others, 10).unwrap();
        let (sender, told) = mpsc::channel();
        let submit = |(name, texts): &(u32, &[u32])| {
            let (sender, name) = (sender.clone(), *name);
            let reply = Box::new(move |answer| _ = sender.send((name, answer)));
            service.submit(texts.to_vec(), reply).unwrap()
        };
        let guards = requests.iter().map(submit).collect();
        before(&service);
        drop(closed);
        (service, told, guards)
    }

    /// Encoders of these names that share a gate; of these some are lost.
    fn encoders(names: &[u32], lost: &[u32]) -> Vec<Echo> {
        let gate = Arc::default();
        let echo = |name: &u32| Echo {
            name: *name,
            is_lost: lost.contains(name),
            gate: Arc::clone(&gate),
            ..Echo::default()
        };
        names.iter().map(echo).collect()
    }

    #[test]
    fn requests_take_turns_and_answers_keep_their_order() {
        let (_service, told, _guards) =
            ask(encoders(&[1], &[]), &[(1, &[1, 2, 3]), (2, &[4]), (3, &[])]);
        let told: Vec<_> =
            told.iter().take(3).map(|(name, answer)| (name, answer.unwrap())).collect();
        let expected = [(3, vec![]), (2, vec![(1, 4)]), (1, vec![(1, 1), (1, 2), (1, 3)])];
        assert!(expected.iter().all(|one| told.contains(one)), "{told:?}");
        assert_eq!(told[2].0, 1, "the long one is last");
    }

    #[test]
    fn several_encoders_read_the_texts_of_one_request() {
        let texts: Vec<u32> = (20..60).collect();
        for names in [&[1][..], &[1, 2], &[1, 2, 3, 4]] {
            let (service, told, _guards) = ask(encoders(names, &[]), &[(1, &texts)]);
            let answer = told.recv().unwrap().1.unwrap();
            assert!(answer.iter().map(|it| it.1).eq(texts.clone()), "{names:?}");
            let stats = service.stats();
            assert_eq!((stats.texts, stats.waiting, stats.requests), (40, 0, 1));
            assert_eq!(service.live(), 0);
        }
    }

    /// A card that is lost takes no request with it while another one reads.
    #[test]
    fn texts_of_an_encoder_that_is_lost_are_read_by_others() {
        let texts: Vec<u32> = (20..60).collect();
        let (service, told, _guards) =
            ask(encoders(&[1, 2, 3], &[1, 3]), &[(1, &texts), (2, &[5])]);
        for (_, answer) in told.iter().take(2) {
            assert!(answer.unwrap().iter().all(|it| it.0 == 2));
        }
        assert_eq!((service.stats().failed, service.is_alive()), (0, true));
        assert_eq!(stands(&service)[1], ("cuda:2".to_owned(), ReplicaStatus::Ready, 0, false));
        // The last one that is lost fails what it is asked, and goes on.
        let (service, told, _guards) = ask(encoders(&[1, 2], &[1, 2]), &[(1, &texts), (2, &[5])]);
        for (_, answer) in told.iter().take(2) {
            assert!(matches!(answer, Err(Failure::Engine(why)) if why.contains("lost")));
        }
        let stats = service.stats();
        assert_eq!((stats.failed, stats.waiting, service.live()), (2, 0, 0));
        assert!(service.is_alive());
    }

    /// What is told of each device: its name, how it stands, how often it was lost, and whether others went on.
    fn stands(service: &EmbedService<Echo>) -> Vec<(String, ReplicaStatus, u64, bool)> {
        let told = |state: ReplicaState| (state.name, state.status, state.losses, state.went_on);
        service.replicas().into_iter().map(told).collect()
    }

    #[test]
    fn a_card_that_is_lost_is_told_of() {
        let texts: Vec<u32> = (20..60).collect();
        let (service, told, _guards) = ask(encoders(&[0, 1], &[]), &[(1, &texts)]);
        told.recv().unwrap().1.unwrap();
        let well = |name: &str| (name.to_owned(), ReplicaStatus::Ready, 0, false);
        assert_eq!(stands(&service), [well("cuda:0"), well("cuda:1")]);
        // The gate is closed until both have a text in hand.
        let both = encoders(&[0, 1], &[1]);
        let (service, told, _guards) = held(both, &[(1, &texts)], |service| {
            while service.replicas().iter().any(|state| state.owes == 0) {
                std::thread::yield_now();
            }
        });
        assert!(told.recv().unwrap().1.is_ok());
        let lost = ("cuda:1".to_owned(), ReplicaStatus::Lost, 1, true);
        assert_eq!(stands(&service), [well("cuda:0"), lost]);
        let state = service.replicas().remove(1);
        assert!(state.why.is_some_and(|why| why.contains("the card is lost")));
        assert_eq!(state.owes, 0);
    }

    #[test]
    fn the_last_card_is_lost_once_and_may_come_back() {
        let mut one = encoders(&[0], &[0]).remove(0);
        let health = Arc::new(AtomicBool::new(false));
        one.comes_back = Arc::clone(&health);
        let (service, told, _guards) = ask(vec![one], &[(1, &[5]), (2, &[6])]);
        assert!(told.iter().take(2).all(|(_, answer)| answer.is_err()));
        assert_eq!(stands(&service), [("cuda:0".to_owned(), ReplicaStatus::Lost, 1, false)]);
        health.store(true, Ordering::Relaxed);
        let (sender, told) = mpsc::channel();
        let _guard = service.submit(vec![7], Box::new(move |answer| _ = sender.send(answer)));
        assert!(told.recv().unwrap().is_ok());
        assert_eq!(stands(&service), [("cuda:0".to_owned(), ReplicaStatus::Ready, 1, false)]);
    }

    #[test]
    fn a_text_that_nobody_can_read_fails_its_request_alone() {
        let (service, told, _guards) =
            ask(encoders(&[1, 2], &[]), &[(1, &[1, 13, 2]), (2, &[5, 6])]);
        let mut told: Vec<_> = told.iter().take(2).collect();
        told.sort_by_key(|(name, _)| *name);
        assert!(matches!(&told[0].1, Err(Failure::Engine(why)) if why.contains("moment")));
        assert_eq!(told[1].1.as_ref().unwrap().len(), 2);
        // Both encoders are well, and read on.
        assert_eq!(locked(&service.0.shared.line).readers, 2);
    }

    #[test]
    fn who_waits_no_more_is_left_out() {
        let mut encoders = encoders(&[1], &[]);
        let gate = Arc::clone(&encoders[0].gate);
        let closed = locked(&gate);
        let only = (String::new(), encoders.remove(0));
        let service = EmbedService::start(only, Vec::new(), 10).unwrap();
        let (sender, told) = mpsc::channel();
        let submit = |name: u32, texts: &[u32]| {
            let sender = sender.clone();
            service.submit(texts.to_vec(), Box::new(move |_| _ = sender.send(name))).unwrap()
        };
        let _first = submit(1, &[1]);
        drop(submit(2, &[2, 3]));
        let _third = submit(3, &[4]);
        drop(closed);
        assert_eq!(told.iter().take(2).collect::<Vec<_>>(), [1, 3]);
        let stats = service.stats();
        assert_eq!((stats.cancelled, stats.waiting, stats.texts, service.live()), (1, 0, 2, 0));
    }

    #[test]
    fn who_is_refused_comes_again_when_what_waits_is_done() {
        let mut stats = Stats::new();
        assert_eq!(stats.retry_after(), Duration::from_secs(1));
        (stats.texts, stats.waiting, stats.text_seconds.sum) = (10, 300, 0.5);
        assert_eq!(stats.retry_after(), Duration::from_secs(15));
        stats.waiting = 1_000_000;
        assert_eq!(stats.retry_after(), Duration::from_secs(60));
    }
}
