//! Reads what the kernel says of a task that ends: its marks of most memory, and how long it waited.
//!
//! The format is that of `include/uapi/linux/taskstats.h`.  Versions only ever append, but for one:
//! 15 (Linux 6.14 and 6.15) put new fields between the old ones.  So a layout is taken for right
//! where the task's id stands in it as it stands beside it.

use crate::genetlink::{attribute, attributes, u32_at, u64_at};

/// The family's name.
pub(crate) const FAMILY: &[u8] = b"TASKSTATS\0";
/// The command that asks, and its attribute that asks to hear of the ends on some processors.
pub(crate) const COMMAND_GET: u8 = 1;
pub(crate) const ATTRIBUTE_REGISTER: u16 = 3;

const TYPE_PID: u16 = 1;
const TYPE_STATS: u16 = 3;
/// Of one task; the account of a whole process, which follows its last, lacks the marks.
const TYPE_TASK: u16 = 4;

/// The end of a task: of a process, or of one of its threads, which tells the same of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Its id.
    pub pid: u32,
    /// The process that started its process, or that adopted it.
    pub parent: u32,
    /// The most resident memory of its process since it began its program, bytes.
    pub rss_peak_bytes: u64,
    /// The same of virtual memory.
    pub vms_peak_bytes: u64,
    /// How long it waited for pages to be read back from swap; zero where nobody counts.
    pub swap_in_wait_ns: u64,
    /// How long it waited for pages that had only just been given up; zero where nobody counts.
    pub thrashing_wait_ns: u64,
}

/// Where fields begin.
struct Layout {
    pid: usize,
    parent: usize,
    rss_peak_kib: usize,
    vms_peak_kib: usize,
    swap_in_wait_ns: usize,
    /// Since version 9.
    thrashing_wait_ns: usize,
}

const USUAL: Layout = Layout {
    pid: 128,
    parent: 132,
    rss_peak_kib: 200,
    vms_peak_kib: 208,
    swap_in_wait_ns: 56,
    thrashing_wait_ns: 336,
};

const VERSION_15: Layout = Layout {
    pid: 176,
    parent: 180,
    rss_peak_kib: 248,
    vms_peak_kib: 256,
    swap_in_wait_ns: 88,
    thrashing_wait_ns: 400,
};

/// The ends of tasks that a message of the family tells of.
pub(crate) fn exits(bytes: &[u8]) -> impl Iterator<Item = Exit> {
    let tasks = attributes(bytes).filter(|(kind, _)| *kind == TYPE_TASK);
    tasks.filter_map(|(_, task)| {
        let pid = u32_at(attribute(task, TYPE_PID)?, 0)?;
        exit(pid, attribute(task, TYPE_STATS)?)
    })
}

fn exit(pid: u32, stats: &[u8]) -> Option<Exit> {
    let fits = |layout: &&Layout| u32_at(stats, layout.pid) == Some(pid);
    let layout = [&USUAL, &VERSION_15].into_iter().find(fits)?;
    let bytes = |at| u64_at(stats, at).map(|kib| kib.saturating_mul(1024));
    Some(Exit {
        pid,
        parent: u32_at(stats, layout.parent)?,
        rss_peak_bytes: bytes(layout.rss_peak_kib)?,
        vms_peak_bytes: bytes(layout.vms_peak_kib)?,
        swap_in_wait_ns: u64_at(stats, layout.swap_in_wait_ns)?,
        thrashing_wait_ns: u64_at(stats, layout.thrashing_wait_ns).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const EXIT: Exit = Exit {
        pid: 4321,
        parent: 77,
        rss_peak_bytes: 320 << 10,
        vms_peak_bytes: 900 << 10,
        swap_in_wait_ns: 5,
        thrashing_wait_ns: 6,
    };

    fn stats(layout: &Layout, bytes: usize) -> Vec<u8> {
        let mut stats = vec![0; bytes.max(500)];
        let mut put = |at: usize, value: &[u8]| stats[at..at + value.len()].copy_from_slice(value);
        put(layout.pid, &EXIT.pid.to_ne_bytes());
        put(layout.parent, &EXIT.parent.to_ne_bytes());
        put(layout.rss_peak_kib, &(EXIT.rss_peak_bytes >> 10).to_ne_bytes());
        put(layout.vms_peak_kib, &(EXIT.vms_peak_bytes >> 10).to_ne_bytes());
        put(layout.swap_in_wait_ns, &EXIT.swap_in_wait_ns.to_ne_bytes());
        put(layout.thrashing_wait_ns, &EXIT.thrashing_wait_ns.to_ne_bytes());
        stats.truncate(bytes);
        stats
    }

    fn nest(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = value.len() + 4;
        let mut bytes = [(length as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(length.next_multiple_of(4), 0);
        bytes
    }

    /// As the kernel sends it: the task, then its whole process.
    fn message(stats: &[u8]) -> Vec<u8> {
        let of = |kind, id: u32| {
            let inner = [nest(id as u16 % 2 + 1, &id.to_ne_bytes()), nest(TYPE_STATS, stats)];
            nest(kind, &inner.concat())
        };
        let id = |kind, id: u32| {
            nest(kind, &[nest(TYPE_PID, &id.to_ne_bytes()), nest(TYPE_STATS, stats)].concat())
        };
        [id(TYPE_TASK, EXIT.pid), of(5, EXIT.pid)].concat()
    }

    #[test]
    fn every_versions_layout_is_read() {
        // Version 1 of the marks, 10 (Linux 5.15), 14, 16.
        for bytes in [344, 352, 432, 560] {
            let found: Vec<_> = exits(&message(&stats(&USUAL, bytes))).collect();
            assert_eq!(found, [EXIT], "{bytes} bytes");
        }
        assert_eq!(exits(&message(&stats(&VERSION_15, 560))).collect::<Vec<_>>(), [EXIT]);
        let old = exits(&message(&stats(&USUAL, 328))).next().unwrap();
        assert_eq!(old, Exit { thrashing_wait_ns: 0, ..EXIT }, "before version 9");
    }

    #[test]
    fn a_layout_that_nobody_knows_tells_nothing() {
        let mut moved = stats(&USUAL, 560);
        moved.rotate_right(8);
        assert_eq!(exits(&message(&moved)).count(), 0);
        assert_eq!(exits(&message(&stats(&USUAL, 200))).count(), 0, "marks are not there");
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = message(&stats(&USUAL, 560));
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                let at = random.below(24.min(bytes.len()));
                bytes[at] = random.next_u64() as u8;
            }
            bytes.truncate(random.below(whole.len() + 1));
            exits(&bytes).for_each(drop);
        }
    }
}
