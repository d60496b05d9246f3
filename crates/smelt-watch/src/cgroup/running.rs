//! Reads the groups of attempts that run now, of whichever run and store.

use std::fs;

use serde::Serialize;

use crate::kernel_file;

use super::{Cgroups, Group, PREFIX, Version, read};

/// Attempts at a time on one machine; each is a model in memory.
const GROUPS_MAX: usize = 256;
/// What version 1 says where there is no limit is near this.
const NO_LIMIT: u64 = 1 << 60;

/// A group with processes in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunningGroup {
    /// The run, the stage and the attempt, as `RUN.STAGE.N`.
    pub name: String,
    /// Processes in it; the shim that leads them is one.
    pub processes: usize,
    /// What is charged to it, bytes; page cache counts.
    pub memory_bytes: Option<u64>,
    /// The most there has been.
    pub memory_peak_bytes: Option<u64>,
    /// The most there may be, where it has a limit.
    pub memory_max_bytes: Option<u64>,
    /// File pages charged to it, bytes.
    pub page_cache_bytes: Option<u64>,
    /// Microseconds in which one of its tasks at least waited for memory.
    pub pressure_some_us: Option<u64>,
    /// Processes of it that were killed since memory had run out.
    pub oom_kills: Option<u64>,
    /// Whether it is frozen.
    pub is_parked: bool,
}

impl Cgroups {
    /// The groups of attempts that run; those that only a shim waits in are left out.
    pub fn running(&self) -> Vec<RunningGroup> {
        let entries = fs::read_dir(&self.memory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ours = names.filter(|name| name.starts_with(PREFIX)).take(GROUPS_MAX);
        let mut found: Vec<_> = ours.filter_map(|name| self.reading(&name)).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    fn reading(&self, name: &str) -> Option<RunningGroup> {
        let memory = self.memory.join(name);
        let unified = self.unified.as_ref().map(|base| base.join(name));
        let group = Group { version: self.version, memory, unified };
        let processes = group.pids()?.len();
        if processes < 2 {
            return None;
        }
        let max = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        let max = read(&group.memory, max).trim().parse::<u64>().ok();
        let (held, counters) = group.account();
        Some(RunningGroup {
            name: name.strip_prefix(PREFIX)?.to_owned(),
            processes,
            memory_bytes: group.charged_bytes(),
            memory_peak_bytes: group.peak_bytes(),
            memory_max_bytes: max.filter(|&max| max < NO_LIMIT),
            page_cache_bytes: held.page_cache_bytes,
            pressure_some_us: group.pressure().map(|pressure| pressure.some_us),
            oom_kills: counters.oom_kills,
            is_parked: group.is_frozen(),
        })
    }
}

impl Group {
    /// The ids of its processes, which is a tenth of the cost of walking the tree; `None` where the
    /// kernel does not say.
    pub fn pids(&self) -> Option<Vec<u32>> {
        let text = kernel_file::text(self.memory.join("cgroup.procs")).ok()?;
        Some(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn is_frozen(&self) -> bool {
        let dir = self.unified.as_ref().unwrap_or(&self.memory);
        read(dir, "cgroup.events").lines().any(|line| line == "frozen 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_where_something_runs_are_told() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("m/smelt-r.a.1/cgroup.procs", "5\n6\n");
        put("m/smelt-r.a.1/memory.usage_in_bytes", "4096\n");
        put("m/smelt-r.a.1/memory.limit_in_bytes", "9223372036854771712\n");
        put("u/smelt-r.a.1/cgroup.events", "populated 1\nfrozen 1\n");
        put("m/smelt-r.b.1/cgroup.procs", "7\n");
        put("m/other/cgroup.procs", "8\n9\n");
        let unified = Some(root.path().join("u"));
        let memory = root.path().join("m");
        let top = memory.clone();
        let cgroups = Cgroups { version: Version::V1, memory, top, unified };
        let running = cgroups.running();
        assert_eq!(running.len(), 1);
        assert_eq!((running[0].name.as_str(), running[0].processes), ("r.a.1", 2));
        assert_eq!((running[0].memory_bytes, running[0].memory_max_bytes), (Some(4096), None));
        assert!(running[0].is_parked);
    }
}
