//! Has the texts of many requests read: one text after another, in a thread that owns the encoder.
//!
//! Requests take turns, a text each, so that one short text does not wait for a long list.  A request
//! whose [`RequestGuard`] is dropped goes no further.  Knows nothing of HTTP.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{EmbedError, SentenceEncoder};
use crate::handle::{Gate, Handle, Threads, retry_after};
use crate::service::{Failure, Histogram, SECONDS};

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

/// What handles and the thread share.
struct Shared {
    stats: Mutex<Stats>,
    gate: Gate,
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request on its way.
struct Job<E: Reader> {
    texts: VecDeque<E::Text>,
    done: Vec<E::Answer>,
    guard: Weak<()>,
    reply: Reply<E::Answer>,
    permit: Permit,
}

/// Counted as long as its request lives.
struct Permit(Arc<Shared>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

/// The thread that reads, and what it shares with its handles.
pub struct EmbedThreads<E: Reader> {
    encoder: Arc<E>,
    /// What was said of the shortest text.
    least: E::Answer,
    queue_max: usize,
    shared: Arc<Shared>,
    /// Gone when the last handle is: the thread ends then.
    jobs: Option<Sender<Job<E>>>,
    thread: Option<JoinHandle<()>>,
}

/// A handle to the thread that reads.
pub type EmbedService<E = SentenceEncoder> = Handle<EmbedThreads<E>>;

impl<E: Reader> Threads for EmbedThreads<E> {
    fn model(&self) -> &str {
        self.encoder.model()
    }

    fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    fn are_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl EmbedService {
    /// Numbers of an embedding.
    pub fn width(&self) -> usize {
        self.0.least.row.len()
    }
}

impl<E: Reader> EmbedService<E> {
    /// Runs the shortest and the longest text once, so that the first request finds weights and buffers in
    /// place, and starts the thread.  `queue_max` requests may wait beside the one whose turn it is.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(encoder: E, queue_max: usize) -> Result<Self, StartError> {
        let encoder = Arc::new(encoder);
        encoder.read(&E::blank(encoder.tokens_max()))?;
        let least = encoder.read(&E::blank(1))?;
        let shared = Arc::new(Shared { stats: Mutex::new(Stats::new()), gate: Gate::default() });
        let (jobs, inbox) = mpsc::channel();
        let thread = EmbedThread { encoder: Arc::clone(&encoder), inbox, line: VecDeque::new() };
        let thread = std::thread::Builder::new().name("embed".to_owned()).spawn(|| thread.run())?;
        let (jobs, thread) = (Some(jobs), Some(thread));
        Ok(Self(Arc::new(EmbedThreads { encoder, least, queue_max, shared, jobs, thread })))
    }

    /// What requests are prepared with; its engine is the thread's.
    pub fn encoder(&self) -> &E {
        &self.0.encoder
    }

    /// What was done so far, and what is being done.
    pub fn stats(&self) -> Stats {
        self.0.shared.stats().clone()
    }

    /// Takes the tokens of texts, each at most as long as the deployment says.  Never waits; `reply` is
    /// told from the thread, and never if that is gone.
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
        let mut stats = shared.stats();
        if live > self.0.queue_max {
            stats.refused += 1;
            return Err(Refused::Busy { live, retry_after: stats.retry_after() });
        }
        stats.requests += 1;
        stats.waiting += texts.len();
        drop(stats);
        let guard = Arc::new(());
        let (texts, done, weak) = (texts.into(), Vec::new(), Arc::downgrade(&guard));
        let job = Job { texts, done, guard: weak, reply, permit };
        // A thread that is gone drops the request, and nobody is told anything.
        self.0.jobs.as_ref().map(|jobs| jobs.send(job));
        Ok(RequestGuard(guard))
    }
}

impl<E: Reader> Drop for EmbedThreads<E> {
    fn drop(&mut self) {
        self.jobs = None;
        // One that has panicked is told of by its panic.
        self.thread.take().map(JoinHandle::join);
    }
}

struct EmbedThread<E: Reader> {
    encoder: Arc<E>,
    inbox: Receiver<Job<E>>,
    /// Requests in the order of their turns.
    line: VecDeque<Job<E>>,
}

impl<E: Reader> EmbedThread<E> {
    /// Reads until nobody can ask any more.
    fn run(mut self) {
        while self.receive() {
            if let Some(job) = self.line.pop_front() {
                self.line.extend(one_more(&*self.encoder, job));
            }
        }
    }

    /// Takes what has come; waits for something if there is nothing to do.  Returns whether to go on.
    fn receive(&mut self) -> bool {
        if self.line.is_empty() {
            match self.inbox.recv() {
                Ok(job) => self.line.push_back(job),
                Err(_) => return false,
            }
        }
        loop {
            match self.inbox.try_recv() {
                Ok(job) => self.line.push_back(job),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }
}

/// Reads the next text of a request; gives it back unless it has ended.
fn one_more<E: Reader>(encoder: &E, mut job: Job<E>) -> Option<Job<E>> {
    let shared = Arc::clone(&job.permit.0);
    if job.guard.strong_count() == 0 {
        let mut stats = shared.stats();
        stats.waiting -= job.texts.len();
        stats.cancelled += 1;
        return None;
    }
    let begun = Instant::now();
    let read = job.texts.pop_front().map(|text| encoder.read(&text)).transpose();
    let mut stats = shared.stats();
    match read {
        Ok(answer) => {
            if let Some(answer) = answer {
                stats.texts += 1;
                stats.waiting -= 1;
                stats.tokens += E::tokens(&answer) as u64;
                stats.text_seconds.observe_time(begun.elapsed());
                job.done.push(answer);
            }
            drop(stats);
            if !job.texts.is_empty() {
                return Some(job);
            }
            let Job { done, reply, permit, .. } = job;
            // Who hears the answer finds the place free.
            drop(permit);
            reply(Ok(done));
        }
        Err(error) => {
            stats.waiting -= job.texts.len() + 1;
            stats.failed += 1;
            drop(stats);
            (job.reply)(Err(Failure::Engine(format!("the encoder failed: {error}"))));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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
