//! Lets prompts be read before pictures are looked at any further: the vision engine pauses between two of
//! its tasks while the language model reads.
//!
//! One tile is work of a second, a question of a few words one of some ten milliseconds; done at once on the same
//! processors, both take twice as long and more.  Pauses have a budget, so that prompts that never end
//! do not keep pictures waiting.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest pause, behind a time without any: a picture's prompt and a few short ones.
const BUDGET_MAX: Duration = Duration::from_millis(500);

/// How much the vision engine works for a pause: twice as long.
const WORK_FOR_PAUSE: u32 = 2;

/// How long the vision engine may still pause.
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
    /// When the vision engine last went on.
    since: Instant,
}

/// What both engines' threads share.
#[derive(Debug)]
pub(super) struct Pauses {
    state: Mutex<State>,
    ended: Condvar,
}

/// While it lives, the vision engine pauses.
pub(super) struct Reading<'a>(&'a Pauses);

impl Pauses {
    pub(super) fn new() -> Self {
        let (budget, since) = (Budget(BUDGET_MAX), Instant::now());
        let state = State { is_reading: false, budget, since };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }

    /// Makes the vision engine pause until the value is dropped.
    pub(super) fn reading(&self) -> Reading<'_> {
        self.state().is_reading = true;
        Reading(self)
    }

    /// Whether the vision engine would pause.
    pub(super) fn is_left(&self) -> bool {
        !self.state().budget.0.is_zero()
    }

    /// Waits while a prompt is read, no longer than the budget allows.  The vision engine's thread calls it
    /// between two tasks.
    pub(super) fn wait(&self) {
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
        let pauses = Pauses::new();
        // Nobody reads.
        pauses.wait();
        let reading = pauses.reading();
        std::thread::scope(|scope| {
            let pausing = scope.spawn(|| pauses.wait());
            drop(reading);
            pausing.join().unwrap();
        });
        assert!(pauses.is_left());
    }

    #[test]
    fn a_pause_ends_with_the_budget() {
        let pauses = Pauses::new();
        pauses.state().budget = Budget(ms(1));
        let _reading = pauses.reading();
        pauses.wait();
        assert!(!pauses.is_left());
    }
}
