//! Watches the memory of the server's process, if it runs on this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

/// How often memory is read.
const EVERY: Duration = Duration::from_millis(50);

/// The most memory that a process was seen to hold, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident, mapped files included.
    pub rss_kib: u64,
    /// Resident and its own, which mapped weights are not.
    pub anonymous_kib: u64,
}

impl Memory {
    /// What a `/proc/PID/status` says.
    fn read(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
        };
        Self { rss_kib: field("VmRSS").unwrap_or(0), anonymous_kib: field("RssAnon").unwrap_or(0) }
    }
}

/// Watches a process until it is asked what it saw.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    most: Arc<[AtomicU64; 2]>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn begin(pid: u32) -> io::Result<Self> {
        let path = PathBuf::from(format!("/proc/{pid}/status"));
        fs::read_to_string(&path)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let most = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (end, seen) = (Arc::clone(&is_over), Arc::clone(&most));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let memory = Memory::read(&fs::read_to_string(&path).unwrap_or_default());
                seen[0].fetch_max(memory.rss_kib, Ordering::Relaxed);
                seen[1].fetch_max(memory.anonymous_kib, Ordering::Relaxed);
                thread::sleep(EVERY);
            }
        });
        Ok(Self { is_over, most, thread })
    }

    pub(crate) fn end(self) -> Memory {
        self.is_over.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        debug_assert!(joined.is_ok(), "reading a file does not panic");
        let most = |index: usize| self.most[index].load(Ordering::Relaxed);
        Memory { rss_kib: most(0), anonymous_kib: most(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_says() {
        let status = "Name:\tx\nVmRSS:\t    1200 kB\nRssAnon:\t     200 kB\n";
        assert_eq!(Memory::read(status), Memory { rss_kib: 1200, anonymous_kib: 200 });
        assert_eq!(Memory::read(""), Memory::default());
        let watch = Watch::begin(std::process::id()).unwrap();
        thread::sleep(EVERY * 2);
        let memory = watch.end();
        assert!(memory.rss_kib > memory.anonymous_kib && memory.anonymous_kib > 0);
        assert!(Watch::begin(u32::MAX).is_err());
    }
}
