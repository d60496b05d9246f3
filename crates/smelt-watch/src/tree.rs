//! Reads the memory of a process and all its descendants from `/proc`.
//!
//! A tree is found through `task/*/children`, where the kernel has it, else by a scan of parent
//! ids.  Processes come and go while we look: one that is gone is simply not counted.

use std::fs;

use crate::kernel_file;
use crate::machine::kib;

/// One reading of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Processes counted.
    pub processes: u32,
    /// Sum of resident memory over the tree.  Pages shared within the tree count more than once.
    pub rss_bytes: u64,
    /// Sum of the anonymous part of it.
    pub rss_anon_bytes: u64,
    /// Sum of virtual memory over the tree.
    pub vms_bytes: u64,
    /// Sum of swapped-out memory over the tree.
    pub swap_bytes: u64,
    /// The largest high-water mark (`VmHWM`) of one process.  The kernel keeps it, so a spike
    /// between two samples is in it as long as the process lives to the next sample.
    pub rss_process_peak_bytes: u64,
    /// The same of virtual memory (`VmPeak`).
    pub vms_process_peak_bytes: u64,
}

/// The processes below and including one.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    root: u32,
}

/// A tree of more processes is a fork storm; the sample then covers the first this many.
pub(crate) const PROCESSES_MAX: usize = 4096;

impl Tree {
    /// The tree whose topmost process is `root`.
    pub fn new(root: u32) -> Self {
        Self { root }
    }

    /// Reads everything below the root now; `None` when nothing is there.  The root only leads, so
    /// what it takes is not counted.
    pub fn sample(&self) -> Option<Sample> {
        Sample::of_all(&self.descendants())
    }

    /// Process ids directly below the root.
    pub fn children(&self) -> Vec<u32> {
        children(self.root)
    }

    /// Process ids below the root, parents before children.
    pub fn descendants(&self) -> Vec<u32> {
        let mut found: Vec<u32> = children(self.root);
        let mut at = 0;
        while at < found.len() && found.len() < PROCESSES_MAX {
            found.extend(children(found[at]));
            at += 1;
        }
        found
    }
}

impl Sample {
    /// What the process `pid` takes alone, and has taken at most; `None` when it is not there.
    pub fn of(pid: u32) -> Option<Self> {
        status(pid)
    }

    /// What these processes take together; `None` when none of them is there.
    pub fn of_all(pids: &[u32]) -> Option<Self> {
        let mut total = Self::default();
        for process in pids.iter().copied().filter_map(status) {
            total.add(&process);
        }
        (total.processes > 0).then_some(total)
    }

    pub(crate) fn add(&mut self, process: &Self) {
        self.processes += process.processes;
        self.rss_bytes += process.rss_bytes;
        self.rss_anon_bytes += process.rss_anon_bytes;
        self.vms_bytes += process.vms_bytes;
        self.swap_bytes += process.swap_bytes;
        self.rss_process_peak_bytes =
            self.rss_process_peak_bytes.max(process.rss_process_peak_bytes);
        self.vms_process_peak_bytes =
            self.vms_process_peak_bytes.max(process.vms_process_peak_bytes);
    }

    /// One process from the text of its `status` file; a zombie has no memory and counts as zero.
    fn parse(status: &str) -> Self {
        let field = |name| kib(status, name).unwrap_or(0);
        Self {
            processes: 1,
            rss_bytes: field("VmRSS:"),
            rss_anon_bytes: field("RssAnon:"),
            vms_bytes: field("VmSize:"),
            swap_bytes: field("VmSwap:"),
            rss_process_peak_bytes: field("VmHWM:"),
            vms_process_peak_bytes: field("VmPeak:"),
        }
    }
}

/// Whether the process has ended and only waits for its parent to ask how.
pub fn is_zombie(pid: u32) -> bool {
    let stat = kernel_file::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

/// Whether somebody has stopped the process, by a signal or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let stat = kernel_file::text(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

/// When the process began, in clock ticks since the boot; `None` when it is not there.
pub fn began_ticks(pid: u32) -> Option<u64> {
    began_of(&kernel_file::text(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of a `stat` line, the twentieth word after the name.
fn began_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn status(pid: u32) -> Option<Sample> {
    kernel_file::text(format!("/proc/{pid}/status")).ok().map(|text| Sample::parse(&text))
}

/// Children of every thread of `pid`.
fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut pids = Vec::new();
    for task in tasks.flatten() {
        match kernel_file::text(task.path().join("children")) {
            Ok(text) => {
                pids.extend(text.split_ascii_whitespace().filter_map(|p| p.parse::<u32>().ok()))
            }
            // Kernels without CONFIG_PROC_CHILDREN; the thread may also just be gone.
            Err(_) => return children_by_parent(pid),
        }
    }
    pids
}

fn children_by_parent(parent: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let is_child = |pid: &u32| {
        let stat = kernel_file::text(format!("/proc/{pid}/stat")).unwrap_or_default();
        parent_of(&stat) == Some(parent)
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_child)
        .collect()
}

/// The parent's id in a `stat` line: the second word after the last `)`, since names hold any byte.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_own_peak() {
        let own = Sample::of(std::process::id()).unwrap();
        assert!(own.processes == 1 && own.rss_process_peak_bytes >= own.rss_bytes / 2);
        assert_eq!(Sample::of(u32::MAX), None, "there is no such process");
    }
    use std::process::{Command, Stdio};

    #[test]
    fn a_status_file_is_taken_apart() {
        let text = "Name:\tx\nVmPeak:\t 400 kB\nVmSize:\t  300 kB\nVmHWM:\t 20 kB\nVmRSS:\t 10 kB\nRssAnon:\t 4 kB\nVmSwap:\t 1 kB\n";
        let sample = Sample::parse(text);
        assert_eq!(sample.rss_bytes, 10 << 10);
        assert_eq!(sample.rss_anon_bytes, 4 << 10);
        assert_eq!(sample.vms_bytes, 300 << 10);
        assert_eq!(sample.swap_bytes, 1 << 10);
        assert_eq!(sample.rss_process_peak_bytes, 20 << 10);
        assert_eq!(sample.vms_process_peak_bytes, 400 << 10);
    }

    #[test]
    fn a_zombie_counts_as_zero() {
        assert_eq!(Sample::parse("State:\tZ (zombie)\n").rss_bytes, 0);
    }

    #[test]
    fn names_with_brackets_do_not_confuse() {
        assert_eq!(parent_of("12 (a) b) c) S 7 1 2"), Some(7));
        assert_eq!(parent_of(""), None);
        let stat = "12 (a) b) S 7 1 2 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!((began_of(stat), began_of("")), (Some(4711), None));
    }

    #[test]
    fn a_real_tree_is_summed() {
        // cat waits for its input, so both processes stay until we close it.
        let mut child = Command::new("sh")
            .args(["-c", "cat; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let tree = Tree::new(child.id());
        let mut sample = None;
        for _ in 0..2_000 {
            sample = tree.sample().filter(|sample| sample.rss_bytes > 0);
            if sample.is_some() {
                break;
            }
            std::thread::yield_now();
        }
        let listed = tree.descendants();
        let scanned = children_by_parent(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        let sample = sample.expect("cat is seen below sh");
        assert_eq!(sample.processes, 1, "sh, the root, is not counted");
        assert!(sample.rss_bytes > 0 && sample.vms_bytes >= sample.rss_bytes);
        assert_eq!(listed, scanned);
        assert_eq!(tree.sample(), None, "a tree whose root is gone");
    }
}
