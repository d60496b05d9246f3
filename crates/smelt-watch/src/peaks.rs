//! Keeps the extremes of a series of samples.

use serde::{Deserialize, Serialize};

use crate::family::ExitTotals;
use crate::machine::Machine;
use crate::tegrastats::Tegrastats;
use crate::tree::Sample;

/// What an attempt took at most, and what it left at least.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Peaks {
    /// Samples taken; peaks of few samples are weak.
    pub samples: u64,
    /// Largest sum of resident memory over the tree.
    pub peak_rss_bytes: u64,
    /// Largest sum of anonymous resident memory over the tree.
    pub peak_rss_anon_bytes: u64,
    /// Largest resident memory of one process (the kernel's high-water mark).
    pub peak_rss_process_bytes: u64,
    /// Largest sum of virtual memory over the tree, or of one process by the kernel's mark.
    pub peak_vms_bytes: u64,
    /// Largest sum of swapped-out memory over the tree.
    pub swap_peak_bytes: u64,
    /// Largest sum of anonymous and swapped-out memory over the tree: what the kernel could not drop.
    pub held_peak_bytes: u64,
    /// Lowest `MemAvailable` of the machine meanwhile.
    pub mem_available_min_bytes: Option<u64>,
    /// Lowest `CmaFree` of the machine meanwhile.
    pub cma_free_min_bytes: Option<u64>,
    /// Least that one of the disks it may write to had free meanwhile.
    pub disk_free_min_bytes: Option<u64>,
    /// Most file pages charged to the attempt's control group.
    pub page_cache_peak_bytes: Option<u64>,
    /// Most load of the GPU in percent, where the board's own tool tells.
    pub gpu_max_percent: Option<u32>,
    /// Most that the board drew, in milliwatts.
    pub power_max_mw: Option<u64>,
    /// The hottest that it was, in whole degrees Celsius.
    pub temperature_max_c: Option<u32>,
    /// Most of all memory charged to that group by the kernel's own mark: page cache and kernel
    /// memory count.
    pub cgroup_peak_bytes: Option<u64>,
    /// Ends of its processes and threads that the kernel told of; `None` where it tells nothing.
    pub exits: Option<u64>,
    /// Times that ends were not heard, and ends that nobody could tell whose they were.
    pub exits_lost: Option<u64>,
}

impl Peaks {
    /// Takes one more sample.
    pub fn take(&mut self, tree: &Sample, machine: &Machine) {
        self.samples += 1;
        self.peak_rss_anon_bytes = self.peak_rss_anon_bytes.max(tree.rss_anon_bytes);
        self.peak_rss_bytes = self.peak_rss_bytes.max(tree.rss_bytes);
        let held_bytes = tree.rss_anon_bytes.saturating_add(tree.swap_bytes);
        self.held_peak_bytes = self.held_peak_bytes.max(held_bytes);
        self.take_process_peak(tree.rss_process_peak_bytes);
        self.peak_vms_bytes =
            self.peak_vms_bytes.max(tree.vms_bytes).max(tree.vms_process_peak_bytes);
        self.swap_peak_bytes = self.swap_peak_bytes.max(tree.swap_bytes);
        lower(&mut self.mem_available_min_bytes, machine.mem_available_bytes);
        lower(&mut self.cma_free_min_bytes, machine.cma_free_bytes);
    }

    /// Takes what the board's own tool says now.
    pub fn take_board(&mut self, said: &Tegrastats) {
        self.gpu_max_percent = self.gpu_max_percent.max(said.gpu_percent);
        self.power_max_mw = self.power_max_mw.max(said.drawn_mw());
        let degrees = said.hottest_c().map(|degrees| degrees.round().max(0.0) as u32);
        self.temperature_max_c = self.temperature_max_c.max(degrees);
    }

    /// Takes what the attempt's control group holds now.
    pub fn take_page_cache(&mut self, bytes: Option<u64>) {
        self.page_cache_peak_bytes = self.page_cache_peak_bytes.max(bytes);
    }

    /// Takes what the ends of its tasks have told.
    pub fn take_told(&mut self, told: &ExitTotals) {
        self.exits = Some(told.exits);
        self.exits_lost = Some(told.lost);
        self.take_process_peak(told.rss_process_peak_bytes);
        self.peak_vms_bytes = self.peak_vms_bytes.max(told.vms_process_peak_bytes);
    }

    /// Takes the kernel's word on the largest process.  A spike of one process between two samples is
    /// a spike of the tree as well.
    pub fn take_process_peak(&mut self, rss_bytes: u64) {
        // Spikes are memory that somebody allocated.
        self.held_peak_bytes += rss_bytes.saturating_sub(self.peak_rss_bytes);
        self.peak_rss_process_bytes = self.peak_rss_process_bytes.max(rss_bytes);
        self.peak_rss_bytes = self.peak_rss_bytes.max(rss_bytes);
    }
}

fn lower(least: &mut Option<u64>, now: Option<u64>) {
    *least = match (*least, now) {
        (Some(least), Some(now)) => Some(least.min(now)),
        (least, now) => least.or(now),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_as_hot_as_it_was() {
        let mut peaks = Peaks::default();
        for line in ["GR3D_FREQ 9%@306 tj@61.6C", "GR3D_FREQ 88%@306 VDD_IN 7100mW/7000mW"] {
            peaks.take_board(&Tegrastats::parse(line).unwrap());
        }
        let found = (peaks.gpu_max_percent, peaks.power_max_mw, peaks.temperature_max_c);
        assert_eq!(found, (Some(88), Some(7100), Some(62)));
    }

    #[test]
    fn extremes_of_different_samples_are_kept() {
        let mut peaks = Peaks::default();
        let tree = |rss_bytes, vms_bytes, hwm| Sample {
            rss_bytes,
            vms_bytes,
            rss_process_peak_bytes: hwm,
            ..Sample::default()
        };
        let machine = |free| Machine { mem_available_bytes: free, ..Machine::default() };
        peaks.take(&tree(10, 100, 10), &machine(Some(5)));
        peaks.take(&tree(30, 90, 20), &machine(None));
        peaks.take(&tree(5, 80, 44), &machine(Some(9)));
        assert_eq!(peaks.samples, 3);
        assert_eq!(peaks.peak_rss_bytes, 44, "a spike between samples counts");
        assert_eq!(peaks.held_peak_bytes, 14, "and is held");
        assert_eq!(peaks.peak_vms_bytes, 100);
        assert_eq!(peaks.mem_available_min_bytes, Some(5));
        assert_eq!(peaks.cma_free_min_bytes, None);
    }
}
