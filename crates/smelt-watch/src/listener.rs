//! Listens to what the kernel tells by itself, from the first attempt of a run on: the ends of tasks
//! and its log.

use std::path::Path;

use crate::exits::Exits;
use crate::kernel_file;
use crate::kernel_log::KernelLog;

/// What of it this process may hear.
#[derive(Debug, Clone, Default)]
pub struct Listener {
    pub(crate) exits: Option<Exits>,
    pub(crate) log: Option<KernelLog>,
    /// Whether the kernel says that it counts how long tasks wait.
    pub(crate) has_waits: bool,
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
        }
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
