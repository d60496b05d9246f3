//! Reads what the kernel's memory management has done since it started (`/proc/vmstat`), and turns
//! two readings into rates.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::kernel_file;

/// One reading; what this kernel does not count is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Activity {
    /// Page faults that had to read from a disk.
    pub major_faults: Option<u64>,
    /// Pages read back from swap.
    pub swap_in_pages: Option<u64>,
    /// Pages written to swap.
    pub swap_out_pages: Option<u64>,
    /// Times that somebody who wanted memory had to free some first.
    pub alloc_stalls: Option<u64>,
    /// Times that somebody had to wait for memory to be moved together.
    pub compact_stalls: Option<u64>,
    /// Times that moving did not help.
    pub compact_fails: Option<u64>,
    /// Contiguous allocations that were granted: the kernel counts calls, not pages.
    pub cma_allocs: Option<u64>,
    /// Contiguous allocations that were refused.
    pub cma_alloc_fails: Option<u64>,
    /// Processes that were killed since memory had run out.
    pub oom_kills: Option<u64>,
}

/// What happens per second; `None` where either reading says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    /// Page faults that had to read from a disk.
    pub major_faults_per_s: Option<f64>,
    /// Pages read back from swap.
    pub swap_in_pages_per_s: Option<f64>,
    /// Pages written to swap.
    pub swap_out_pages_per_s: Option<f64>,
    /// Waits for memory to be freed.
    pub alloc_stalls_per_s: Option<f64>,
    /// Waits for memory to be moved together.
    pub compact_stalls_per_s: Option<f64>,
}

impl Activity {
    /// Reads the machine whose file system is at `root`.
    pub fn read(root: &Path) -> Self {
        Self::parse(&kernel_file::text(root.join("proc/vmstat")).unwrap_or_default())
    }

    /// Takes the file's text apart.
    pub fn parse(vmstat: &str) -> Self {
        let mut found = Self::default();
        for line in vmstat.lines() {
            if let Some((name, value)) = line.split_once(' ') {
                found.take(name, value);
            }
        }
        found
    }

    fn take(&mut self, name: &str, value: &str) {
        let field = match name {
            "pgmajfault" => &mut self.major_faults,
            "pswpin" => &mut self.swap_in_pages,
            "pswpout" => &mut self.swap_out_pages,
            "compact_stall" => &mut self.compact_stalls,
            "compact_fail" => &mut self.compact_fails,
            "cma_alloc_success" => &mut self.cma_allocs,
            "cma_alloc_fail" => &mut self.cma_alloc_fails,
            "oom_kill" => &mut self.oom_kills,
            // One for each zone of memory.
            name if name.starts_with("allocstall") => &mut self.alloc_stalls,
            _ => return,
        };
        if let Ok(value) = value.trim().parse() {
            *field = Some(field.unwrap_or(0).saturating_add(value));
        }
    }

    /// What happened per second since `before`, a time ago.
    pub fn since(&self, before: &Self, elapsed: Duration) -> Rates {
        let rate = |now: Option<u64>, before: Option<u64>| {
            Some(now?.saturating_sub(before?) as f64 / elapsed.as_secs_f64().max(1e-3))
        };
        Rates {
            major_faults_per_s: rate(self.major_faults, before.major_faults),
            swap_in_pages_per_s: rate(self.swap_in_pages, before.swap_in_pages),
            swap_out_pages_per_s: rate(self.swap_out_pages, before.swap_out_pages),
            alloc_stalls_per_s: rate(self.alloc_stalls, before.alloc_stalls),
            compact_stalls_per_s: rate(self.compact_stalls, before.compact_stalls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_added_and_whole_names_are_meant() {
        let text = "pswpin 7\npswpin_zero 9\nallocstall_dma32 1\nallocstall_normal 2\n\
                    allocstall_movable 4\ncompact_stall 5\ncma_alloc_fail 3\noom_kill x\npswpout\n";
        let found = Activity::parse(text);
        let expect = Activity {
            swap_in_pages: Some(7),
            alloc_stalls: Some(7),
            compact_stalls: Some(5),
            cma_alloc_fails: Some(3),
            ..Activity::default()
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn rates_need_both_readings() {
        let reading = |pages, faults| Activity {
            swap_in_pages: Some(pages),
            major_faults: faults,
            ..Activity::default()
        };
        let rates = reading(30, Some(1)).since(&reading(10, None), Duration::from_millis(500));
        assert_eq!((rates.swap_in_pages_per_s, rates.major_faults_per_s), (Some(40.0), None));
        let still = reading(10, None).since(&reading(30, None), Duration::ZERO);
        assert_eq!(still.swap_in_pages_per_s, Some(0.0), "counters that went back are a new start");
    }
}
