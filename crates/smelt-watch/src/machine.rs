//! Reads what the whole machine has left: `/proc/meminfo` and `/proc/vmstat`.

use std::fs;

/// One reading; `None` where this kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Machine {
    /// Bytes a new process could have without swapping.
    pub mem_available_bytes: Option<u64>,
    /// Bytes of swap not in use.
    pub swap_free_bytes: Option<u64>,
    /// Bytes of the contiguous memory area that nothing, not even movable pages, holds.
    pub cma_free_bytes: Option<u64>,
    /// Processes the out-of-memory killer has ended since boot, machine wide.
    pub oom_kills: Option<u64>,
}

impl Machine {
    /// Reads the machine now.
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&text("/proc/meminfo"), &text("/proc/vmstat"))
    }

    /// Takes the two files' texts apart.
    pub fn parse(meminfo: &str, vmstat: &str) -> Self {
        Self {
            mem_available_bytes: kib(meminfo, "MemAvailable:"),
            swap_free_bytes: kib(meminfo, "SwapFree:"),
            cma_free_bytes: kib(meminfo, "CmaFree:"),
            oom_kills: number(vmstat, "oom_kill"),
        }
    }
}

/// Processes the out-of-memory killer has ended since boot, machine wide; 0 where the kernel does
/// not say.
pub fn oom_kills() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    number(&text, "oom_kill").unwrap_or(0)
}

/// The value of a `Name:   123 kB` line, in bytes.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    number(text, name)?.checked_mul(1024)
}

/// The first number of the line whose first word is `name`.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let meminfo = "MemTotal:  10 kB\nMemAvailable:    5 kB\nSwapFree: 0 kB\nCmaFree: 36 kB\n";
        let machine = Machine::parse(meminfo, "oom_kill_disable 9\noom_kill 3\n");
        assert_eq!(machine.mem_available_bytes, Some(5 * 1024));
        assert_eq!(machine.swap_free_bytes, Some(0));
        assert_eq!(machine.cma_free_bytes, Some(36 * 1024));
        assert_eq!(machine.oom_kills, Some(3));
    }

    #[test]
    fn a_kernel_that_does_not_say_is_no_error() {
        assert_eq!(Machine::parse("", "garbage\n"), Machine::default());
    }

    #[test]
    fn this_machine_says_what_is_available() {
        assert!(Machine::read().mem_available_bytes.is_some_and(|bytes| bytes > 0));
    }
}
