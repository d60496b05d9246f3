//! Reads how a machine stands with memory at one moment: before an attempt, as it starts, after it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_watch::Machine;

/// One reading; `None` where this kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Bytes a new process could have without swapping.
    pub mem_available_bytes: Option<u64>,
    /// Bytes of swap not in use.
    pub swap_free_bytes: Option<u64>,
    /// Bytes of the contiguous area that nothing holds.
    pub cma_free_bytes: Option<u64>,
    /// Bytes of files that the kernel keeps in memory.
    pub page_cache_bytes: Option<u64>,
}

impl Condition {
    /// Reads the machine whose file system is at `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let machine = Machine::parse(&meminfo);
        Self {
            mem_available_bytes: machine.mem_available_bytes,
            swap_free_bytes: machine.swap_free_bytes,
            cma_free_bytes: machine.cma_free_bytes,
            page_cache_bytes: cached(&meminfo),
        }
    }
}

fn cached(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Cached:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_what_meminfo_says() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let text = "MemAvailable: 100 kB\nCached:   7 kB\nSwapCached: 3 kB\nSwapFree: 0 kB\n";
        fs::write(root.path().join("proc/meminfo"), text).unwrap();
        let condition = Condition {
            mem_available_bytes: Some(100 << 10),
            swap_free_bytes: Some(0),
            cma_free_bytes: None,
            page_cache_bytes: Some(7 << 10),
        };
        assert_eq!(Condition::read(root.path()), condition);
        assert_eq!(Condition::read(&root.path().join("nothing")), Condition::default());
    }
}
