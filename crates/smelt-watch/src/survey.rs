//! Reads a whole machine once, for somebody who looks on.

use std::path::Path;

use serde::Serialize;

use crate::activity::Activity;
use crate::cgroup::{Cgroups, RunningGroup};
use crate::kernel_file;
use crate::machine::kib;
use crate::nvmap::NvmapClient;
use crate::pressure::{Averages, Pressure};
use crate::processes::Process;
use crate::swaps::Swap;
use crate::tegrastats::Tegrastats;

/// What the machine's memory is used for, bytes; `None` where this kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Memory {
    /// What the kernel hands out.
    pub total_bytes: Option<u64>,
    /// What a new process could have without swapping.
    pub available_bytes: Option<u64>,
    /// What belongs to processes and to no file.
    pub anonymous_bytes: Option<u64>,
    /// What holds files, and can be given up once it is written.
    pub page_cache_bytes: Option<u64>,
    /// What of that is not written yet.
    pub dirty_bytes: Option<u64>,
    /// All places to swap to together.
    pub swap_total_bytes: Option<u64>,
    /// What of them is free.
    pub swap_free_bytes: Option<u64>,
    /// The contiguous area.
    pub cma_total_bytes: Option<u64>,
    /// What of it nothing holds; what movable pages borrow can be had back.
    pub cma_free_bytes: Option<u64>,
}

impl Memory {
    /// Takes the text of `/proc/meminfo` apart.
    pub fn parse(meminfo: &str) -> Self {
        let bytes = |name| kib(meminfo, name);
        Self {
            total_bytes: bytes("MemTotal:"),
            available_bytes: bytes("MemAvailable:"),
            anonymous_bytes: bytes("AnonPages:"),
            page_cache_bytes: bytes("Cached:"),
            dirty_bytes: bytes("Dirty:"),
            swap_total_bytes: bytes("SwapTotal:"),
            swap_free_bytes: bytes("SwapFree:"),
            cma_total_bytes: bytes("CmaTotal:"),
            cma_free_bytes: bytes("CmaFree:"),
        }
    }
}

/// One reading of a machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Survey {
    /// What memory is used for.
    pub memory: Memory,
    /// Where to it is swapped.
    pub swaps: Vec<Swap>,
    /// Microseconds in which at least one task waited for memory.
    pub pressure_some_us: Option<u64>,
    /// Microseconds in which nobody could do anything else.
    pub pressure_full_us: Option<u64>,
    /// The shares of the last ten seconds.
    pub pressure: Option<Averages>,
    /// What memory management has done since the machine started.
    pub activity: Activity,
    /// Who holds GPU memory, the largest first.
    pub nvmap: Vec<NvmapClient>,
    /// What the board's own tool says.
    pub tegrastats: Option<Tegrastats>,
    /// Attempts of smelt that run.
    pub attempts: Vec<RunningGroup>,
    /// The processes, the largest first.
    pub processes: Vec<Process>,
}

impl Survey {
    /// Reads the machine whose file system is at `root`.
    pub fn read(root: &Path, cgroups: Option<&Cgroups>, tegrastats: Option<Tegrastats>) -> Self {
        let text = |path| kernel_file::text(root.join(path)).unwrap_or_default();
        let stalls = text("proc/pressure/memory");
        let pressure = Pressure::parse(&stalls);
        Self {
            memory: Memory::parse(&text("proc/meminfo")),
            swaps: Swap::read(root),
            pressure_some_us: pressure.map(|pressure| pressure.some_us),
            pressure_full_us: pressure.map(|pressure| pressure.full_us),
            pressure: Averages::parse(&stalls),
            activity: Activity::read(root),
            nvmap: NvmapClient::read(root),
            tegrastats,
            attempts: cgroups.map(Cgroups::running).unwrap_or_default(),
            processes: Process::read_all(root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_files_has_nothing_to_say() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Survey::read(root.path(), None, None), Survey::default());
    }

    #[test]
    fn this_machine_is_read() {
        let cgroups = Cgroups::find(Path::new("/"));
        let survey = Survey::read(Path::new("/"), cgroups.as_ref(), None);
        assert!(survey.memory.total_bytes > survey.memory.available_bytes);
        assert!(survey.activity.major_faults.is_some());
        assert!(!survey.processes.is_empty());
    }
}
