//! Says how much memory the control groups above us leave: in a container the machine's own figures
//! promise what nobody there will get.
//!
//! A level leaves its limit less what is charged to it, file pages not counted, since the kernel drops
//! those before it refuses; the tightest level decides.  Formats:
//! `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use std::path::Path;

use crate::kernel_file;
use crate::machine::{Machine, number};

/// Version 1 says "no limit" with the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// How memory is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A group of version 1.
    V1,
    /// A group of version 2.
    V2,
}

/// The tightest of some levels; `None` where none of them limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceiling {
    /// What may be charged at most, in bytes.
    pub limit_bytes: Option<u64>,
    /// What is left of it.
    pub available_bytes: Option<u64>,
    /// What may still be swapped out.
    pub swap_free_bytes: Option<u64>,
}

impl Ceiling {
    /// Reads every level from the group at `dir` up to the hierarchy's own directory `top`.
    pub(crate) fn read(version: Version, dir: &Path, top: &Path) -> Self {
        let levels = dir.ancestors().take_while(|dir| dir.starts_with(top));
        levels.map(|dir| level(version, dir)).fold(Self::default(), Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self {
            limit_bytes: least(self.limit_bytes, other.limit_bytes),
            available_bytes: least(self.available_bytes, other.available_bytes),
            swap_free_bytes: least(self.swap_free_bytes, other.swap_free_bytes),
        }
    }

    /// The machine as it is seen from below.
    pub fn over(&self, machine: Machine) -> Machine {
        Machine {
            mem_total_bytes: least(machine.mem_total_bytes, self.limit_bytes),
            mem_available_bytes: least(machine.mem_available_bytes, self.available_bytes),
            swap_free_bytes: least(machine.swap_free_bytes, self.swap_free_bytes),
            ..machine
        }
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn level(version: Version, dir: &Path) -> Ceiling {
    let text = |name: &str| kernel_file::text(dir.join(name)).unwrap_or_default();
    let bytes = |name: &str| text(name).trim().parse::<u64>().ok();
    let limit = |name: &str| bytes(name).filter(|&bytes| bytes < NO_LIMIT);
    match version {
        Version::V1 => {
            let memory = limit("memory.limit_in_bytes");
            let used = bytes("memory.usage_in_bytes");
            // Memory and swap are limited together.
            let both = limit("memory.memsw.limit_in_bytes");
            let used_both = bytes("memory.memsw.usage_in_bytes");
            let swapped = used_both.zip(used).map(|(both, used)| both.saturating_sub(used));
            let swap = both.map(|both| both.saturating_sub(memory.unwrap_or(0)));
            ceiling(memory, used, &text("memory.stat"), "total_", left(swap, swapped))
        }
        Version::V2 => ceiling(
            limit("memory.max"),
            bytes("memory.current"),
            &text("memory.stat"),
            "",
            left(limit("memory.swap.max"), bytes("memory.swap.current")),
        ),
    }
}

fn ceiling(
    limit: Option<u64>,
    used: Option<u64>,
    stat: &str,
    prefix: &str,
    swap_free_bytes: Option<u64>,
) -> Ceiling {
    let file = |name: &str| number(stat, &format!("{prefix}{name}")).unwrap_or(0);
    let dropped = file("inactive_file").saturating_add(file("active_file"));
    let kept = used.map(|used| used.saturating_sub(dropped));
    Ceiling { limit_bytes: limit, available_bytes: left(limit, kept), swap_free_bytes }
}

fn left(limit: Option<u64>, used: Option<u64>) -> Option<u64> {
    Some(limit?.saturating_sub(used.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_tightest_level_decides() {
        let v2 = group(&[
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "900\n"),
            ("a/memory.stat", "anon 500\ninactive_file 300\nactive_file 50\n"),
            ("a/memory.swap.max", "max\n"),
            ("a/b/memory.max", "700\n"),
            ("a/b/memory.current", "100\n"),
            ("a/b/memory.swap.max", "400\n"),
            ("a/b/memory.swap.current", "150\n"),
        ]);
        let ceiling = Ceiling::read(Version::V2, &v2.path().join("a/b"), v2.path());
        let expect = Ceiling {
            limit_bytes: Some(700),
            // The level above has 900 charged, of which 350 can be dropped.
            available_bytes: Some(450),
            swap_free_bytes: Some(250),
        };
        assert_eq!(ceiling, expect);
    }

    #[test]
    fn version_1_limits_memory_and_swap_together() {
        let v1 = group(&[
            ("a/memory.limit_in_bytes", "1000\n"),
            ("a/memory.usage_in_bytes", "600\n"),
            ("a/memory.stat", "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 0\n"),
            ("a/memory.memsw.limit_in_bytes", "1500\n"),
            ("a/memory.memsw.usage_in_bytes", "700\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "123456\n"),
            ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let ceiling = Ceiling::read(Version::V1, &v1.path().join("a"), v1.path());
        let expect = Ceiling {
            limit_bytes: Some(1000),
            available_bytes: Some(500),
            swap_free_bytes: Some(400),
        };
        assert_eq!(ceiling, expect);
    }

    #[test]
    fn without_limits_the_machine_stays_as_it_is() {
        let none = group(&[("memory.max", "max\n"), ("memory.current", "5\n")]);
        let ceiling = Ceiling::read(Version::V2, none.path(), none.path());
        assert_eq!(ceiling, Ceiling::default());
        let machine = Machine { mem_available_bytes: Some(7), ..Machine::default() };
        assert_eq!(ceiling.over(machine), machine);
        let tight = Ceiling { available_bytes: Some(3), ..ceiling };
        assert_eq!(tight.over(machine).mem_available_bytes, Some(3));
    }
}
