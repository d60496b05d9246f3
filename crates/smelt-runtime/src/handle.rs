//! The handle of a service: threads that answer, and end when the last handle is gone.
//!
//! Counts the requests that are under way.  Knows nothing of what is asked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The longest time after which a refused client is asked to come again.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// What a handle holds: threads, and what they share with it.
pub trait Threads {
    /// The model's name.
    fn model(&self) -> &str;

    /// Where requests come in.
    fn gate(&self) -> &Gate;

    /// Whether all are there; they end when the service does, or by a fault of ours.
    fn are_alive(&self) -> bool;
}

/// A handle to threads that answer.
pub struct Handle<T>(pub(crate) Arc<T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Threads> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("model", &self.0.model()).finish_non_exhaustive()
    }
}

impl<T: Threads> Handle<T> {
    /// Where its requests come in.
    pub fn gate(&self) -> &Gate {
        self.0.gate()
    }

    /// Requests that were taken and have not ended.
    pub fn live(&self) -> usize {
        self.gate().live()
    }

    /// Whether this is the only handle.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether the threads are there; they end when the service does, or by a fault of ours.
    pub fn is_alive(&self) -> bool {
        self.0.are_alive()
    }

    /// Takes nothing new from now on; what was taken is answered.
    pub fn drain(&self) {
        self.gate().close();
    }
}

/// Where requests come in: counts those that are under way, and lets no more in once it is closed.
#[derive(Debug, Default)]
pub struct Gate {
    live: AtomicUsize,
    is_closed: AtomicBool,
}

impl Gate {
    /// Requests that were taken and have not ended.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Lets nothing new in from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Counts a request, and says how many there were without it.
    pub(crate) fn enter(&self) -> usize {
        self.live.fetch_add(1, Ordering::AcqRel)
    }

    /// Counts a request no more.
    pub(crate) fn leave(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// When a refused client may come again, if there will be room in so many seconds.
pub(crate) fn retry_after(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.ceil().clamp(1.0, RETRY_AFTER_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody(Gate);

    impl Threads for Nobody {
        fn model(&self) -> &str {
            "nobody"
        }

        fn gate(&self) -> &Gate {
            &self.0
        }

        fn are_alive(&self) -> bool {
            true
        }
    }

    #[test]
    fn handles_share_what_they_count() {
        let one = Handle(Arc::new(Nobody(Gate::default())));
        assert!(one.is_last());
        let other = one.clone();
        assert!(!one.is_last() && other.is_alive());
        assert_eq!((one.gate().enter(), one.gate().enter(), other.live()), (0, 1, 2));
        one.gate().leave();
        assert_eq!(other.live(), 1);
        assert!(!one.gate().is_closed());
        other.drain();
        assert!(one.gate().is_closed());
        drop(other);
        assert!(one.is_last());
        assert_eq!(format!("{one:?}"), "Service { model: \"nobody\", .. }");
    }

    #[test]
    fn who_is_refused_comes_again_in_a_minute_at_most() {
        let seconds = [-1.0, 0.0, 1.2, 59.5, 1e9].map(|seconds| retry_after(seconds).as_secs());
        assert_eq!(seconds, [1, 1, 2, 60, 60]);
    }
}
