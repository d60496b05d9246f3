//! Reads what the whole machine has left: `/proc/meminfo`.

use std::path::Path;

use crate::{Cgroups, kernel_file};

/// One reading; `None` where this kernel does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Machine {
    /// Bytes of memory that the kernel hands out.
    pub mem_total_bytes: Option<u64>,
    /// Bytes a new process could have without swapping.
    pub mem_available_bytes: Option<u64>,
    /// Bytes of swap there are.
    pub swap_total_bytes: Option<u64>,
    /// Bytes of swap not in use.
    pub swap_free_bytes: Option<u64>,
    /// Bytes of the contiguous memory area.
    pub cma_total_bytes: Option<u64>,
    /// Bytes of the contiguous memory area that nothing, not even movable pages, holds.
    pub cma_free_bytes: Option<u64>,
}

impl Machine {
    /// Reads the machine whose file system is at `root`: `/`, or a captured tree.
    pub fn read(root: &Path) -> Self {
        Self::parse(&kernel_file::text(root.join("proc/meminfo")).unwrap_or_default())
    }

    /// Reads what is left of it to this process, as the control groups above let it be seen.
    pub fn left_to_us(root: &Path) -> Self {
        let ceiling = Cgroups::find(root).map(|cgroups| cgroups.ceiling()).unwrap_or_default();
        ceiling.over(Self::read(root))
    }

    /// Takes the file's text apart.
    pub fn parse(meminfo: &str) -> Self {
        Self {
            mem_total_bytes: kib(meminfo, "MemTotal:"),
            mem_available_bytes: kib(meminfo, "MemAvailable:"),
            swap_total_bytes: kib(meminfo, "SwapTotal:"),
            swap_free_bytes: kib(meminfo, "SwapFree:"),
            cma_total_bytes: kib(meminfo, "CmaTotal:"),
            cma_free_bytes: kib(meminfo, "CmaFree:"),
        }
    }
}

/// The value of a `Name:   123 kB` line, in bytes.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    number(text, name)?.checked_mul(1024)
}

/// The first number of the line whose first word is `name`.
pub(crate) fn number(text: &str, name: &str) -> Option<u64> {
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
        let machine = Machine::parse(meminfo);
        assert_eq!(machine.mem_available_bytes, Some(5 * 1024));
        assert_eq!(machine.swap_free_bytes, Some(0));
        assert_eq!(machine.cma_free_bytes, Some(36 * 1024));
    }

    #[test]
    fn a_kernel_that_does_not_say_is_no_error() {
        assert_eq!(Machine::parse("garbage\n"), Machine::default());
    }

    #[test]
    fn this_machine_says_what_is_available() {
        assert!(Machine::read(Path::new("/")).mem_available_bytes.is_some_and(|bytes| bytes > 0));
    }
}
