//! When what happens to a request happens.
//!
//! The threads that do it mark it, whoever asked reads it at any time.  Knows nothing of who wants to know.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// When what happened; what has not happened yet has no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// It was taken.
    pub taken: Instant,
    /// The vision engine began with the first part of its pictures.
    pub looked: Option<Instant>,
    /// All of its pictures were seen.
    pub seen: Option<Instant>,
    /// Its first answer was given a slot.
    pub admitted: Option<Instant>,
    /// The prompt of its first answer was read.
    pub read: Option<Instant>,
    /// The last of its answers that ended did.
    pub ended: Option<Instant>,
}

/// The times of one request.  Clones are the same.
#[derive(Clone, Debug)]
pub struct Marks(Arc<Mutex<Times>>);

impl Marks {
    /// Taken now.
    pub(super) fn new() -> Self {
        let taken = Instant::now();
        let [looked, seen, admitted, read, ended] = [None; 5];
        Self(Arc::new(Mutex::new(Times { taken, looked, seen, admitted, read, ended })))
    }

    /// What is known so far.
    pub fn times(&self) -> Times {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps that something happens now: `which` finds its place; what was marked before stays.
    pub(super) fn once(&self, which: impl FnOnce(&mut Times) -> &mut Option<Instant>) {
        self.with(|times| _ = which(times).get_or_insert_with(Instant::now));
    }

    /// An answer ends now.
    pub(super) fn ended(&self) {
        self.with(|times| times.ended = Some(Instant::now()));
    }

    fn with(&self, change: impl FnOnce(&mut Times)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_time_stays_and_the_last_end_counts() {
        let marks = Marks::new();
        marks.once(|times| &mut times.admitted);
        marks.ended();
        let first = marks.times();
        marks.once(|times| &mut times.admitted);
        marks.ended();
        let then = marks.times();
        assert_eq!((then.admitted, then.read), (first.admitted, None));
        assert!(first.taken <= first.admitted.unwrap() && then.ended > first.ended);
    }
}
