//! Reads an attempt's processes ten times a second for a third of what reading all of each would
//! cost.
//!
//! `status` has everything and takes the kernel longest; `statm`, kept open, has what changes most.
//! Where the kernel tells every process's marks at its end, `status` is read in turns.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::unistd::{SysconfVar, sysconf};

use crate::tree::Sample;

/// Samples until a process's `status` is read again: half a second.
const TURNS: usize = 5;
/// Files that are kept open, of all attempts together; a process may usually have 1024, and a run
/// needs some for itself.
const KEPT_MAX: usize = 256;
/// Seven numbers.
const STATM_BYTES_MAX: usize = 256;

/// How many are open now.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The processes of the last sample.
#[derive(Debug)]
pub(crate) struct Roster {
    known: HashMap<u32, Known>,
    turn: usize,
    page_bytes: u64,
}

#[derive(Debug)]
struct Known {
    statm: Option<Kept>,
    /// As it was read last.
    last: Sample,
    /// The turn of that.
    seen: usize,
}

/// A file that counts among those kept open.
#[derive(Debug)]
struct Kept(File);

impl Roster {
    pub(crate) fn new() -> Self {
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page_bytes = page.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096);
        Self { known: HashMap::new(), turn: 0, page_bytes }
    }

    /// What these processes take together; `None` when none of them is there.  Unless their marks
    /// are told when they end, all of each is read.
    pub(crate) fn sample(&mut self, pids: &[u32], is_told: bool) -> Option<Sample> {
        self.turn += 1;
        let mut total = Sample::default();
        for (at, &pid) in pids.iter().enumerate() {
            let is_due = !is_told || (self.turn + at).is_multiple_of(TURNS);
            if let Some(process) = self.process(pid, is_due) {
                total.add(&process);
            }
        }
        let turn = self.turn;
        self.known.retain(|_, known| known.seen == turn);
        (total.processes > 0).then_some(total)
    }

    fn process(&mut self, pid: u32, is_due: bool) -> Option<Sample> {
        let turn = self.turn;
        if !is_due && let Some(known) = self.known.get_mut(&pid) {
            known.seen = turn;
            return known.brief(pid, self.page_bytes);
        }
        let last = Sample::of(pid)?;
        let known = self.known.entry(pid).or_insert(Known { statm: None, last, seen: turn });
        (known.last, known.seen) = (last, turn);
        Some(last)
    }
}

impl Known {
    /// Reads what changes most.  Most processes live shorter than two samples, so the file is opened
    /// at the second.
    fn brief(&mut self, pid: u32, page_bytes: u64) -> Option<Sample> {
        if self.statm.is_none() {
            self.statm = Kept::open(&format!("/proc/{pid}/statm"));
        }
        let Some(Kept(file)) = &self.statm else {
            self.last = Sample::of(pid)?;
            return Some(self.last);
        };
        let mut bytes = [0; STATM_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        self.last = with_statm(self.last, text, page_bytes)?;
        Some(self.last)
    }
}

/// Sizes are in pages: `VIRTUAL RESIDENT SHARED …`; what is shared is of files or of shared memory.
fn with_statm(last: Sample, text: &str, page_bytes: u64) -> Option<Sample> {
    let mut bytes = text
        .split_ascii_whitespace()
        .map_while(|pages| pages.parse::<u64>().ok()?.checked_mul(page_bytes));
    let (vms_bytes, rss_bytes, shared) = (bytes.next()?, bytes.next()?, bytes.next()?);
    Some(Sample {
        vms_bytes,
        rss_bytes,
        rss_anon_bytes: rss_bytes.saturating_sub(shared),
        rss_process_peak_bytes: last.rss_process_peak_bytes.max(rss_bytes),
        vms_process_peak_bytes: last.vms_process_peak_bytes.max(vms_bytes),
        ..last
    })
}

impl Kept {
    fn open(path: &str) -> Option<Self> {
        if KEPT.fetch_add(1, Ordering::Relaxed) < KEPT_MAX
            && let Ok(file) = File::open(path)
        {
            return Some(Self(file));
        }
        KEPT.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_brief_reading_keeps_what_it_does_not_know() {
        let last = Sample {
            processes: 1,
            swap_bytes: 7,
            rss_process_peak_bytes: 9 * 4096,
            vms_process_peak_bytes: 10,
            ..Sample::default()
        };
        let expect = Sample {
            vms_bytes: 20 * 4096,
            rss_bytes: 8 * 4096,
            rss_anon_bytes: 5 * 4096,
            vms_process_peak_bytes: 20 * 4096,
            ..last
        };
        assert_eq!(with_statm(last, "20 8 3 1 0 5 0\n", 4096), Some(expect));
        assert_eq!(with_statm(last, "20 8", 4096), None);
        assert_eq!(with_statm(last, "20 8 x", 4096), None);
        assert_eq!(with_statm(last, "18446744073709551615 1 1", 4096), None);
    }

    #[test]
    fn brief_and_whole_readings_agree() {
        let spawn = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut children = [spawn(), spawn(), spawn()];
        let pids = children.each_ref().map(|child| child.id());
        // A child is a copy of this process until it is cat.
        let is_cat = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "cat\n";
        // And it has its name before it has read a page of its program.
        let has_files = |sample: Sample| sample.rss_anon_bytes < sample.rss_bytes;
        while !pids.iter().all(|&pid| is_cat(pid)) || !Sample::of_all(&pids).is_some_and(has_files)
        {
            std::thread::yield_now();
        }
        let mut roster = Roster::new();
        for _ in 0..2 * TURNS {
            let sample = roster.sample(&pids, true).unwrap();
            assert_eq!(sample.processes, 3);
            assert!(sample.rss_bytes > 0 && sample.vms_bytes > sample.rss_bytes);
            assert!(sample.rss_anon_bytes < sample.rss_bytes);
            assert!(sample.rss_process_peak_bytes >= sample.rss_bytes / 3);
        }
        assert!(roster.known.values().all(|known| known.statm.is_some()));
        for child in &mut children[..2] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let sample = roster.sample(&pids, true).unwrap();
        assert_eq!(sample.processes, 1, "those that have ended are not counted");
        assert!(roster.sample(&pids[2..], false).is_some());
        assert_eq!(roster.known.len(), 1);
        children[2].kill().unwrap();
        children[2].wait().unwrap();
        assert_eq!(roster.sample(&pids, true), None);
    }
}
