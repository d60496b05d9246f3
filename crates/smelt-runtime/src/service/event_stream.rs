//! Carries the events of one request from the engine's thread to whoever asked.
//!
//! The engine never waits for a reader: what a slow one has not taken yet is merged, so that no more is
//! ever kept than the answer itself.  A dropped [`EventReceiver`] tells the engine that nobody listens; a
//! dropped [`EventSender`] tells the reader that nothing more comes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::marks::Marks;
use crate::generation::Finish;
use crate::sampling::Logprobs;

/// A token of an answer, or of a scored prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// The token.
    pub token: u32,
    /// How likely the model found it, if asked for.
    pub logprobs: Option<Logprobs>,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The vision engine begins with a part of the request's pictures, counted from 1.
    Looking {
        /// Which one.
        part: usize,
        /// Of how many.
        parts: usize,
    },
    /// The prompt of the first answer was read.
    Read {
        /// Tokens of the prompt, image tokens included.
        prompt_tokens: usize,
        /// How many of them a slot held already.
        cached_tokens: usize,
    },
    /// How likely the model found the prompt, where that was asked: after it was read, before the answer.
    Scored {
        /// Which of the answers, from 0.
        choice: usize,
        /// The prompt's tokens; nothing is before the first one, so nothing is known of it.
        tokens: Vec<TokenInfo>,
    },
    /// An answer goes on.
    Emitted {
        /// Which of the answers, from 0.
        choice: usize,
        /// Text that is certain now; it may be that of earlier tokens.
        text: String,
        /// Tokens that were chosen since the last such event.
        tokens: Vec<TokenInfo>,
    },
    /// An answer is complete.
    Ended {
        /// Which of the answers, from 0.
        choice: usize,
        /// Why it ended.
        finish: Finish,
        /// Its tokens.
        tokens: usize,
    },
    /// There will be no more of any answer.
    Failed(Failure),
}

/// Why a request that was taken has no complete answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its time was over.
    #[error("the request's deadline passed before the answer was complete")]
    Deadline,
    /// An engine failed on it.
    #[error("{0}")]
    Engine(String),
    /// It could not be held to its form any more.
    #[error("{0}")]
    Form(String),
    /// The service ended.
    #[error("the service was stopped")]
    Stopped,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    is_closed: bool,
    is_left: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    marks: Marks,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears the events of one request; dropping it cancels the request.
#[derive(Debug)]
pub struct EventReceiver(Arc<Shared>);

/// Tells the events of one request.
#[derive(Debug)]
pub(super) struct EventSender(Arc<Shared>);

/// Both ends.
pub(super) fn channel() -> (EventSender, EventReceiver) {
    let (state, changed) = Default::default();
    let shared = Arc::new(Shared { state, changed, marks: Marks::new() });
    (EventSender(Arc::clone(&shared)), EventReceiver(shared))
}

impl EventReceiver {
    /// When what happens to the request; to be read when the receiver is gone, too.
    pub fn marks(&self) -> Marks {
        self.0.marks.clone()
    }

    /// The next event; nothing when there will be none.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.0.state();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        let waker = context.waker();
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        Poll::Pending
    }

    /// Waits for the next event; nothing when there will be none.
    pub fn wait(&mut self) -> Option<Event> {
        let mut state = self.0.state();
        loop {
            match state.events.pop_front() {
                None if !state.is_closed => {
                    let changed = self.0.changed.wait(state);
                    state = changed.unwrap_or_else(PoisonError::into_inner);
                }
                event => return event,
            }
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.is_left, state.waker) = (true, None);
        state.events.clear();
    }
}

impl EventSender {
    /// Where to mark when what happens.
    pub(super) fn marks(&self) -> &Marks {
        &self.0.marks
    }

    /// Whether nobody listens any more.
    pub(super) fn is_left(&self) -> bool {
        self.0.state().is_left
    }

    /// Tells an event.
    pub(super) fn send(&self, event: Event) {
        let mut state = self.0.state();
        if state.is_left {
            return;
        }
        if let Some(event) = merge(&mut state.events, event) {
            state.events.push_back(event);
        }
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.0.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_closed = true;
        self.wake(state);
    }
}

/// Puts what was said behind what was said before and not heard yet; gives back what has no such place.
/// Of the parts that were looked at the last one is enough.
fn merge(events: &mut VecDeque<Event>, event: Event) -> Option<Event> {
    if let (Some(Event::Looking { .. }), Event::Looking { .. }) = (events.back(), &event) {
        events.pop_back();
        return Some(event);
    }
    let Event::Emitted { choice, text, tokens } = event else { return Some(event) };
    let earlier = events.iter_mut().find_map(|earlier| match earlier {
        Event::Emitted { choice: other, text, tokens } if *other == choice => Some((text, tokens)),
        _ => None,
    });
    match earlier {
        Some((all, all_tokens)) => {
            *all += &text;
            all_tokens.extend(tokens);
            None
        }
        None => Some(Event::Emitted { choice, text, tokens }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(choice: usize, text: &str) -> Event {
        let token = TokenInfo { token: text.len() as u32, logprobs: None };
        Event::Emitted { choice, text: text.to_owned(), tokens: vec![token] }
    }

    #[test]
    fn what_a_slow_reader_has_not_taken_is_merged() {
        let (sender, mut events) = channel();
        for event in [emitted(0, "a"), emitted(1, "x"), emitted(0, "bc"), emitted(1, "yz")] {
            sender.send(event);
        }
        let Some(Event::Emitted { choice: 0, text, tokens }) = events.wait() else { panic!() };
        assert_eq!((&text[..], tokens.len()), ("abc", 2));
        sender.send(emitted(0, "d"));
        let Some(Event::Emitted { choice: 1, text, .. }) = events.wait() else { panic!() };
        assert_eq!(text, "xyz");
        assert_eq!(events.wait(), Some(emitted(0, "d")));
        drop(sender);
        assert_eq!(events.wait(), None);
    }

    #[test]
    fn of_parts_that_nobody_heard_of_the_last_is_told() {
        let (sender, mut events) = channel();
        for part in 1..=3 {
            sender.send(Event::Looking { part, parts: 4 });
        }
        assert_eq!(events.wait(), Some(Event::Looking { part: 3, parts: 4 }));
        sender.send(Event::Looking { part: 4, parts: 4 });
        sender.send(emitted(0, "a"));
        assert_eq!(events.wait(), Some(Event::Looking { part: 4, parts: 4 }));
        assert_eq!(events.wait(), Some(emitted(0, "a")));
    }

    #[test]
    fn who_leaves_is_not_told_and_who_waits_is_woken() {
        let (sender, mut reader) = channel();
        let waiting = std::thread::spawn(move || reader.wait());
        sender.send(emitted(0, "a"));
        assert_eq!(waiting.join().unwrap(), Some(emitted(0, "a")));
        assert!(sender.is_left(), "the reader was dropped with its thread");
        sender.send(emitted(0, "b"));
    }

    #[test]
    fn a_poll_leaves_word_where_to_be_called() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let (sender, mut events) = channel();
        assert_eq!(events.poll_next(&mut context), Poll::Pending);
        sender.send(emitted(0, "a"));
        sender.send(emitted(0, "b"));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(events.poll_next(&mut context).is_ready());
        assert_eq!(events.poll_next(&mut context), Poll::Pending);
        drop(sender);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(events.poll_next(&mut context), Poll::Ready(None));
    }
}
