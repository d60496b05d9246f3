//! Divides the processors between a decoder and graphs that run beside it.
//!
//! One tile is work of a second, a question of a few words one of some ten milliseconds; done at once on the same
//! processors, both take twice as long and more.  So graphs pause between two of their tasks while a prompt is read, and
//! decoding rests while a graph runs.  Pauses have a budget, so that prompts that never end do not keep pictures waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest pause, behind a time without any: a picture's prompt and a few short ones.
const BUDGET_MAX: Duration = Duration::from_millis(500);

/// How much graphs work for a pause: twice as long.
const WORK_FOR_PAUSE: u32 = 2;

/// The longest that the decoder rests: no longer than one chunk of a prompt stalls.
const REST_MAX: Duration = Duration::from_millis(80);

/// How long graphs may still pause.
#[derive(Debug, PartialEq, Eq)]
struct Budget(Duration);

impl Budget {
    fn worked(&mut self, time: Duration) {
        self.0 = (self.0 + time / WORK_FOR_PAUSE).min(BUDGET_MAX);
    }

    fn paused(&mut self, time: Duration) {
        self.0 = self.0.saturating_sub(time);
    }
}

#[derive(Debug)]
struct State {
    is_reading: bool,
    budget: Budget,
    /// When graphs last went on.
    since: Instant,
}

/// What the engines on the same processors share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    ended: Condvar,
    /// A graph is at work.
    is_running: AtomicBool,
}

/// While it lives, a graph is at work.
pub(crate) struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}

/// While it lives, graphs pause.
pub(crate) struct Reading<'a>(&'a Shared);

impl Shared {
    pub(crate) fn new() -> Self {
        let (budget, since) = (Budget(BUDGET_MAX), Instant::now());
        let state = State { is_reading: false, budget, since };
        Self { state: Mutex::new(state), ended: Condvar::new(), is_running: AtomicBool::new(false) }
    }

    /// Makes graphs pause until the value is dropped.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.state().is_reading = true;
        Reading(self)
    }

    /// A graph runs until the value is dropped.
    pub(crate) fn graph_runs(&self) -> Running<'_> {
        self.is_running.store(true, Ordering::Release);
        Running(self)
    }

    /// How long the decoder rests behind a step that took so long: while both work the system gives each a half, so what
    /// a graph looks at has three quarters.  Who shows a picture waits for all of it, and a stream that is slower for a
    /// while goes on.  Where graphs pause for prompts, they are read first.
    pub(crate) fn rest(&self, step: Duration, reads_next: bool) -> Duration {
        let gives_way = self.is_running.load(Ordering::Acquire) && !(reads_next && self.is_left());
        if gives_way { step.min(REST_MAX) } else { Duration::ZERO }
    }

    /// Whether graphs would pause.
    fn is_left(&self) -> bool {
        !self.state().budget.0.is_zero()
    }

    /// Waits while a prompt is read, no longer than the budget allows.  The graph's thread calls it between two
    /// tasks.
    pub(crate) fn wait_for_prompts(&self) {
        let mut state = self.state();
        let work = state.since.elapsed();
        state.budget.worked(work);
        let begin = Instant::now();
        let longest = state.budget.0;
        let waited = self.ended.wait_timeout_while(state, longest, |state| state.is_reading);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.since = Instant::now();
        let paused = state.since - begin;
        state.budget.paused(paused);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.state().is_reading = false;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_third_of_the_time_are_pauses_at_most() {
        let mut budget = Budget(BUDGET_MAX);
        let (mut worked, mut paused) = (Duration::ZERO, Duration::ZERO);
        // Prompts are read all the time: each task of 5 ms is followed by the longest pause there may be.
        for _ in 0..10_000 {
            budget.worked(ms(5));
            worked += ms(5);
            paused += budget.0;
            let all = budget.0;
            budget.paused(all);
        }
        assert_eq!(paused, BUDGET_MAX + worked / 2 - ms(5) / 2);
    }

    #[test]
    fn no_more_is_saved_up_than_one_long_pause() {
        let mut budget = Budget(Duration::ZERO);
        budget.worked(ms(100));
        assert_eq!(budget, Budget(ms(50)));
        budget.worked(Duration::from_secs(60));
        assert_eq!(budget, Budget(BUDGET_MAX));
        budget.paused(Duration::from_secs(60));
        assert_eq!(budget, Budget(Duration::ZERO));
    }

    #[test]
    fn a_pause_ends_with_the_reading() {
        let pauses = Shared::new();
        // Nobody reads.
        pauses.wait_for_prompts();
        let reading = pauses.reading();
        std::thread::scope(|scope| {
            let pausing = scope.spawn(|| pauses.wait_for_prompts());
            drop(reading);
            pausing.join().unwrap();
        });
        assert!(pauses.is_left());
    }

    #[test]
    fn the_decoder_rests_while_a_graph_runs_and_no_prompt_may_stop_it() {
        let shared = Shared::new();
        assert_eq!(shared.rest(ms(20), false), Duration::ZERO);
        let running = shared.graph_runs();
        assert_eq!(shared.rest(ms(20), false), ms(20));
        assert_eq!(shared.rest(ms(200), false), REST_MAX);
        assert_eq!(shared.rest(ms(20), true), Duration::ZERO);
        shared.state().budget = Budget(Duration::ZERO);
        assert_eq!(shared.rest(ms(20), true), ms(20));
        drop(running);
        assert_eq!(shared.rest(ms(20), true), Duration::ZERO);
    }

    #[test]
    fn a_pause_ends_with_the_budget() {
        let pauses = Shared::new();
        pauses.state().budget = Budget(ms(1));
        let _reading = pauses.reading();
        pauses.wait_for_prompts();
        assert!(!pauses.is_left());
    }
}
