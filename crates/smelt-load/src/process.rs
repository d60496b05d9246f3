//! Watches the memory of the server's process, if it runs on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use smelt_watch::Sample;

/// How often memory is read.
const EVERY: Duration = Duration::from_millis(50);

/// The most memory that a process was seen to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident, mapped files included.
    pub rss_bytes: u64,
    /// Resident and its own, which mapped weights are not.
    pub anonymous_bytes: u64,
}

/// Watches a process until it is asked what it saw.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    most: Arc<[AtomicU64; 2]>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Begins, if there is such a process.
    pub(crate) fn begin(pid: u32) -> Option<Self> {
        Sample::of(pid)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let most = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (end, seen) = (Arc::clone(&is_over), Arc::clone(&most));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let sample = Sample::of(pid).unwrap_or_default();
                seen[0].fetch_max(sample.rss_bytes, Ordering::Relaxed);
                seen[1].fetch_max(sample.rss_anon_bytes, Ordering::Relaxed);
                thread::sleep(EVERY);
            }
        });
        Some(Self { is_over, most, thread })
    }

    pub(crate) fn end(self) -> Memory {
        self.is_over.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        debug_assert!(joined.is_ok(), "reading a file does not panic");
        let most = |index: usize| self.most[index].load(Ordering::Relaxed);
        Memory { rss_bytes: most(0), anonymous_bytes: most(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_there_is_watched() {
        let watch = Watch::begin(std::process::id()).unwrap();
        thread::sleep(EVERY * 2);
        let memory = watch.end();
        assert!(memory.rss_bytes > memory.anonymous_bytes && memory.anonymous_bytes > 0);
        assert!(Watch::begin(u32::MAX).is_none());
    }
}
