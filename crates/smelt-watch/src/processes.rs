//! Reads the processes of a machine one by one: what each takes, and which belong to whom.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::kernel_file;
use crate::machine::kib;

/// A machine with more is not one that anybody looks at line by line.
const PROCESSES_MAX: usize = 32 << 10;
/// An environment is as large as its user makes it; ours stands early.
const NAME_CHARS_MAX: usize = 32;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Who started or adopted it.
    pub parent: u32,
    /// Its name, which it can choose.
    pub name: String,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// The anonymous part of it.
    pub rss_anon_bytes: u64,
    /// The most there has been since its program began.
    pub rss_peak_bytes: u64,
    /// Virtual memory, bytes.
    pub vms_bytes: u64,
    /// What of it is in swap, bytes.
    pub swap_bytes: u64,
}

impl Process {
    /// Reads all processes of the machine whose file system is at `root`, the largest first; the
    /// kernel's own threads have no memory and are left out.
    pub fn read_all(root: &Path) -> Vec<Self> {
        let mut all: Vec<_> = pids(root).filter_map(|pid| Self::read(root, pid)).collect();
        all.sort_by_key(|process| std::cmp::Reverse((process.rss_bytes, process.pid)));
        all
    }

    fn read(root: &Path, pid: u32) -> Option<Self> {
        let text = kernel_file::text(root.join(format!("proc/{pid}/status"))).ok()?;
        Self::parse(pid, &text)
    }

    /// Takes a `status` file's text apart.
    fn parse(pid: u32, status: &str) -> Option<Self> {
        let field = |name| kib(status, name).unwrap_or(0);
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let name: String = line("Name:")?.trim().chars().take(NAME_CHARS_MAX).collect();
        let process = Self {
            pid,
            parent: line("PPid:").and_then(|id| id.trim().parse().ok()).unwrap_or(0),
            name: name.replace(char::is_control, "?"),
            rss_bytes: kib(status, "VmRSS:")?,
            rss_anon_bytes: field("RssAnon:"),
            rss_peak_bytes: field("VmHWM:"),
            vms_bytes: field("VmSize:"),
            swap_bytes: field("VmSwap:"),
        };
        Some(process)
    }
}

/// The processes of `all` that are below the process `root`, with it.
pub fn family(all: &[Process], root: u32) -> Vec<&Process> {
    let mut found: Vec<&Process> = all.iter().filter(|process| process.pid == root).collect();
    let mut at = 0;
    while at < found.len() {
        let parent = found[at].pid;
        let is_child = |process: &&Process| process.parent == parent && process.pid != root;
        found.extend(all.iter().filter(is_child));
        at += 1;
    }
    found
}

/// The ids and values of those whose environment has a variable of that name and that we may read.
pub fn marked(root: &Path, name: &str) -> Vec<(u32, String)> {
    let start = format!("{name}=").into_bytes();
    let value = |pid: u32| {
        let text = kernel_file::text(root.join(format!("proc/{pid}/environ"))).ok()?;
        let found = text.as_bytes().split(|&byte| byte == 0).find_map(|v| v.strip_prefix(&*start));
        found.map(|value| (pid, String::from_utf8_lossy(value).into_owned()))
    };
    pids(root).filter_map(value).collect()
}

fn pids(root: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(PROCESSES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32) -> Process {
        Process { pid, parent, ..Process::default() }
    }

    #[test]
    fn a_status_file_is_taken_apart() {
        let text =
            "Name:\ta b\nPPid:\t7\nVmSize:\t 9 kB\nVmHWM:\t 5 kB\nVmRSS:\t 4 kB\nVmSwap:\t 3 kB\n";
        let expect = Process {
            pid: 2,
            parent: 7,
            name: "a b".to_owned(),
            rss_bytes: 4 << 10,
            rss_peak_bytes: 5 << 10,
            vms_bytes: 9 << 10,
            swap_bytes: 3 << 10,
            ..Process::default()
        };
        assert_eq!(Process::parse(2, text), Some(expect));
        assert_eq!(Process::parse(2, "Name:\tkthreadd\nPPid:\t0\n"), None);
        assert_eq!(Process::parse(2, ""), None);
    }

    #[test]
    fn a_family_is_found_in_any_order() {
        let all = [process(4, 3), process(2, 1), process(3, 2), process(9, 1)];
        let pids = |root| family(&all, root).iter().map(|p| p.pid).collect::<Vec<_>>();
        assert_eq!(pids(2), [2, 3, 4]);
        assert_eq!(pids(9), [9]);
        assert_eq!(pids(5), [0; 0]);
        let circle = [process(1, 1), process(2, 2)];
        assert_eq!(family(&circle, 1).len(), 1);
    }

    #[test]
    fn this_process_is_among_all() {
        let all = Process::read_all(Path::new("/"));
        let own = all.iter().find(|process| process.pid == std::process::id()).unwrap();
        assert!(own.rss_bytes > 0 && own.vms_bytes >= own.rss_bytes);
        assert!(all.is_sorted_by_key(|process| std::cmp::Reverse(process.rss_bytes)));
    }

    #[test]
    fn marks_are_found_by_their_whole_name() {
        let root = tempfile::tempdir().unwrap();
        let put = |pid: &str, text: &str| {
            let dir = root.path().join("proc").join(pid);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("environ"), text).unwrap();
        };
        put("5", "HOME=/\0MARK=run/a.1\0X=1\0");
        put("6", "REMARK=run/a.1\0MARKS=2\0");
        put("self", "MARK=run/b.1\0");
        assert_eq!(marked(root.path(), "MARK"), [(5, "run/a.1".to_owned())]);
    }
}
