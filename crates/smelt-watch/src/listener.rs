//! Listens to what the machine tells by itself, from the first attempt of a run on: the ends of tasks,
//! the kernel's log, and on a Jetson its GPU, power and heat.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::Recent;
use crate::exits::Exits;
use crate::kernel_file;
use crate::kernel_log::KernelLog;
use crate::tegrastats::TegrastatsProcess;

/// Heat and power change slowly, and the tool that tells them takes time itself.
const BOARD_PERIOD: Duration = Duration::from_secs(1);

/// What of it this process may hear.
#[derive(Debug, Clone, Default)]
pub struct Listener {
    pub(crate) exits: Option<Exits>,
    pub(crate) log: Option<KernelLog>,
    /// Whether the kernel says that it counts how long tasks wait.
    pub(crate) has_waits: bool,
    /// What a Jetson's own tool says.
    pub(crate) board: Option<Arc<TegrastatsProcess>>,
    pub(crate) machine: Arc<Recent>,
}

impl Listener {
    /// Begins to listen on this machine.  What the kernel does not tell, or not us, is measured by
    /// samples.
    pub fn start() -> Self {
        let root = Path::new("/");
        Self {
            exits: Exits::listen(root).ok(),
            log: KernelLog::open(root).ok(),
            has_waits: has_waits(root),
            board: TegrastatsProcess::start(BOARD_PERIOD).ok().map(Arc::new),
            machine: Arc::default(),
        }
    }

    /// The process that it has started to listen to, which is no orphan.
    pub fn child(&self) -> Option<u32> {
        self.board.as_ref().map(|board| board.pid())
    }
}

/// Kernels before 5.14 have no such file; what they count shows.
fn has_waits(root: &Path) -> bool {
    let file = kernel_file::text(root.join("proc/sys/kernel/task_delayacct"));
    file.is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_says_whether_it_counts_waits() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_waits(root.path()));
        let dir = root.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&dir).unwrap();
        for (text, expect) in [("0\n", false), ("1\n", true)] {
            std::fs::write(dir.join("task_delayacct"), text).unwrap();
            assert_eq!(has_waits(root.path()), expect);
        }
    }
}
