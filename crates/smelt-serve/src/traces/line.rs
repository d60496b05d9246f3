//! Where spans wait to be sent: so many and no more.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::otlp::Span;

/// Most spans that wait: those of some hundred requests, 2 MB.  OpenTelemetry's usual number.
const SPANS_MAX: usize = 2048;

/// Most spans that are sent at once; OpenTelemetry's usual number.
const BATCH_MAX: usize = 512;

/// How long spans wait for others to go with.
const GATHER_TIME: Duration = Duration::from_secs(1);

/// The line.
#[derive(Debug, Default)]
pub(super) struct Line {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    spans: VecDeque<Span>,
    /// When nothing is sent any more, where the server ends.
    until: Option<Instant>,
    /// Whether it was told that spans found no place, since any were taken last.
    is_loss_told: bool,
}

impl Line {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the spans of one request wait, all or none.  Says how many found no place; never waits.
    pub(super) fn push(&self, spans: Vec<Span>) -> usize {
        let mut inner = self.inner();
        if inner.spans.len() + spans.len() > SPANS_MAX {
            return spans.len();
        }
        let is_first = inner.spans.is_empty();
        inner.spans.extend(spans);
        let is_enough = inner.spans.len() >= BATCH_MAX;
        drop(inner);
        // Who gathers is woken for the first and for the last.
        if is_first || is_enough {
            self.changed.notify_one();
        }
        0
    }

    /// Whether nobody has told yet that spans find no place; asked by who will.
    pub(super) fn is_first_loss(&self) -> bool {
        !std::mem::replace(&mut self.inner().is_loss_told, true)
    }

    /// Waits for spans, and a little for more.  Nothing when the server has ended and all were taken, or its time is over.
    pub(super) fn take(&self) -> Option<Vec<Span>> {
        let is_waiting = |inner: &mut Inner| inner.spans.is_empty() && inner.until.is_none();
        let waited = self.changed.wait_while(self.inner(), is_waiting);
        let inner = waited.unwrap_or_else(PoisonError::into_inner);
        let is_few = |inner: &mut Inner| inner.spans.len() < BATCH_MAX && inner.until.is_none();
        let gathered = self.changed.wait_timeout_while(inner, GATHER_TIME, is_few);
        let (mut inner, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        let is_late = inner.until.is_some_and(|until| until <= Instant::now());
        if inner.spans.is_empty() || is_late {
            return None;
        }
        let count = inner.spans.len().min(BATCH_MAX);
        inner.is_loss_told = false;
        Some(inner.spans.drain(..count).collect())
    }

    /// The time that is left, where the server ends.
    pub(super) fn left(&self) -> Option<Duration> {
        let until = self.inner().until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Rests for `time`, or until the server ends.
    pub(super) fn rest(&self, time: Duration) {
        let goes_on = |inner: &mut Inner| inner.until.is_none();
        drop(self.changed.wait_timeout_while(self.inner(), time, goes_on));
    }

    /// The server ends: what waits may still be sent for so long.
    pub(super) fn end(&self, time: Duration) {
        self.inner().until = Some(Instant::now() + time);
        self.changed.notify_all();
    }

    /// Takes all that waits, which nobody will send.
    pub(super) fn leave(&self) -> usize {
        std::mem::take(&mut self.inner().spans).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(count: usize) -> Vec<Span> {
        vec![Span::default(); count]
    }

    #[test]
    fn the_line_has_an_end_and_a_request_is_whole() {
        let line = Line::default();
        assert_eq!(line.push(spans(SPANS_MAX - 3)), 0);
        assert_eq!(line.push(spans(4)), 4);
        assert_eq!(line.push(spans(3)), 0);
        assert_eq!(line.push(spans(1)), 1);
        assert_eq!([line.is_first_loss(), line.is_first_loss()], [true, false]);
        let batches: Vec<usize> = (0..4).map(|_| line.take().unwrap().len()).collect();
        assert_eq!(batches, [BATCH_MAX; 4]);
        assert!(line.is_first_loss(), "it is told again when it has gone on between");
    }

    #[test]
    fn who_ends_is_given_what_is_left_at_once() {
        let line = Line::default();
        line.push(spans(2));
        line.end(Duration::from_secs(60));
        let begun = Instant::now();
        assert_eq!(line.take().map(|spans| spans.len()), Some(2));
        line.rest(Duration::from_secs(60));
        assert_eq!(line.take(), None);
        assert!(begun.elapsed() < GATHER_TIME);
    }

    #[test]
    fn nothing_is_given_when_time_is_over() {
        let line = Line::default();
        line.push(spans(2));
        line.end(Duration::ZERO);
        assert_eq!((line.take(), line.leave()), (None, 2));
    }
}
