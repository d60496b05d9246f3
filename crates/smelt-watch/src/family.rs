//! Tells which ends of tasks belong to an attempt, whose processes come and go between samples.
//!
//! The kernel names a task and its parent.  A task is of the family when its parent is the leader,
//! which started it or adopted it as an orphan, or when it or its parent was seen in the tree or has
//! itself ended as one of the family.  A child that ends before its short-lived parent waits until
//! the parent's end tells whose it was.  Pure.

use std::collections::HashMap;

use crate::taskstats::Exit;

/// Whoever is of the family is known to be after one sample of the tree: it is either in it, or has
/// ended and told its parent.  Two more samples cover what ends while the tree is walked.  After
/// them a process id may be another's.
const SAMPLES_KEPT: u32 = 3;
/// Ends that wait for their parent's.  Most are of other programs; what a fork storm brings beyond
/// that is counted as lost.
const WAITING_MAX: usize = 4096;
/// Ids that are known; a sample covers no more processes either.
const KNOWN_MAX: usize = 3 * 4096;

/// The processes of one attempt, as far as they are known.
#[derive(Debug)]
pub struct AttemptProcesses {
    leader: u32,
    /// By the sample they were last known at.
    known: HashMap<u32, u32>,
    /// Those whose parent is not known, by that parent, with the sample that came before them.
    waiting: HashMap<u32, Vec<(u32, Exit)>>,
    waiting_count: usize,
    /// Samples of the tree so far.
    sample: u32,
    told: ExitTotals,
}

/// What the ends of a family's tasks have told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExitTotals {
    /// Tasks that have ended.
    pub exits: u64,
    /// Ends that may have been of the family, and were not heard or not kept.
    pub lost: u64,
    /// The most resident memory of one process, bytes.
    pub rss_process_peak_bytes: u64,
    /// The most virtual memory of one process, bytes.
    pub vms_process_peak_bytes: u64,
    /// Nanoseconds that its tasks waited for swap, each for itself.
    pub swap_in_wait_ns: u64,
    /// Nanoseconds that its tasks waited for pages that had only just been given up.
    pub thrashing_wait_ns: u64,
}

impl AttemptProcesses {
    /// The family below the process `leader`, which is not of it.
    pub fn new(leader: u32) -> Self {
        Self {
            leader,
            known: HashMap::new(),
            waiting: HashMap::new(),
            waiting_count: 0,
            sample: 0,
            told: ExitTotals::default(),
        }
    }

    /// Takes the end of some task of the machine.
    pub fn take(&mut self, exit: Exit) {
        if self.is_ours(&exit) {
            self.admit(exit);
        } else if self.waiting_count < WAITING_MAX {
            self.waiting_count += 1;
            self.waiting.entry(exit.parent).or_default().push((self.sample, exit));
        } else {
            self.told.lost += 1;
        }
    }

    /// Takes a sample of the tree: these are of the family.
    pub fn saw(&mut self, pids: &[u32]) {
        self.sample += 1;
        let sample = self.sample;
        let is_fresh = |seen: u32| seen + SAMPLES_KEPT > sample;
        self.known.retain(|_, seen| is_fresh(*seen));
        let room = KNOWN_MAX.saturating_sub(self.known.len());
        self.known.extend(pids.iter().take(room).map(|&pid| (pid, sample)));
        // What ended while the tree was walked, or whose parent is seen for the first time.
        let waiting = std::mem::take(&mut self.waiting).into_values().flatten();
        self.waiting_count = 0;
        for (since, exit) in waiting {
            if self.is_ours(&exit) {
                self.admit(exit);
            } else if is_fresh(since) {
                self.waiting_count += 1;
                self.waiting.entry(exit.parent).or_default().push((since, exit));
            }
        }
    }

    /// Some ends were not heard.
    pub fn lost(&mut self, count: u64) {
        self.told.lost += count;
    }

    /// All that was told.
    pub fn told(&self) -> ExitTotals {
        self.told
    }

    fn is_ours(&self, exit: &Exit) -> bool {
        exit.parent == self.leader
            || self.known.contains_key(&exit.parent)
            || self.known.contains_key(&exit.pid)
    }

    /// Counts a task of ours, whoever waited for it, and who waited for them.
    fn admit(&mut self, exit: Exit) {
        let mut ours = vec![exit];
        while let Some(exit) = ours.pop() {
            self.told.take(&exit);
            if self.known.len() < KNOWN_MAX {
                self.known.insert(exit.pid, self.sample);
            }
            let children = self.waiting.remove(&exit.pid).unwrap_or_default();
            self.waiting_count = self.waiting_count.saturating_sub(children.len());
            ours.extend(children.into_iter().map(|(_, child)| child));
        }
    }
}

impl ExitTotals {
    fn take(&mut self, exit: &Exit) {
        self.exits += 1;
        self.rss_process_peak_bytes = self.rss_process_peak_bytes.max(exit.rss_peak_bytes);
        self.vms_process_peak_bytes = self.vms_process_peak_bytes.max(exit.vms_peak_bytes);
        self.swap_in_wait_ns = self.swap_in_wait_ns.saturating_add(exit.swap_in_wait_ns);
        self.thrashing_wait_ns = self.thrashing_wait_ns.saturating_add(exit.thrashing_wait_ns);
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const LEADER: u32 = 10;

    /// Plays a script: `5<10` the end of 5 whose parent is 10, `[5 6]` a sample.  Each process took as
    /// many bytes as its id, so that the largest of the family shows.
    #[track_caller]
    fn check(script: &str, exits: u64, largest: u64) {
        let mut family = AttemptProcesses::new(LEADER);
        for word in script.replace("[ ", "[").split_inclusive([' ', ']']).map(str::trim) {
            if let Some((pid, parent)) = word.split_once('<') {
                let [pid, parent] = [pid, parent].map(|id| id.parse().unwrap());
                let rss_peak_bytes = u64::from(pid);
                family.take(Exit { pid, parent, rss_peak_bytes, ..Exit::default() });
            } else if let Some(pids) = word.strip_prefix('[') {
                let pids = pids.trim_end_matches(']').split(',').filter_map(|id| id.parse().ok());
                family.saw(&pids.collect::<Vec<_>>());
            }
        }
        let told = family.told();
        assert_eq!((told.exits, told.rss_process_peak_bytes), (exits, largest), "{script}");
    }

    #[test]
    fn children_of_the_leader_are_ours_and_the_leader_is_not() {
        check("20<10", 1, 20);
        check("10<1", 0, 0);
        check("20<11", 0, 0);
    }

    #[test]
    fn a_tree_that_no_sample_saw_is_found_by_its_parents() {
        check("22<21 21<20 20<10", 3, 22);
        check("20<10 22<21 21<20", 3, 22);
        check("23<22 99<98 22<21 20<10 21<20", 4, 23);
        check("40<41 41<40", 0, 0);
    }

    #[test]
    fn what_a_sample_saw_is_known_by_id_and_as_a_parent() {
        check("[20,30] 31<30 20<1", 2, 31);
        check("31<30 [30]", 1, 31);
        check("32<31 31<30 [30]", 2, 32);
    }

    #[test]
    fn an_orphan_is_the_leaders() {
        check("20<10 30<10", 2, 30);
    }

    #[test]
    fn a_thread_is_of_its_process_or_of_its_processs_parent() {
        check("[20] 25<10 26<20", 2, 26);
    }

    #[test]
    fn ids_are_forgotten_before_they_are_anothers() {
        check("[20] [] [] 20<1", 1, 20);
        check("[20] [] [] [] 20<1", 0, 0);
        check("31<30 [] [] [] [30]", 0, 0);
        check("31<30 [] [30]", 1, 31);
    }

    #[test]
    fn a_storm_is_bounded_and_told() {
        let mut family = AttemptProcesses::new(LEADER);
        for pid in 0..100_000 {
            family.take(Exit { pid: pid + 1000, parent: 500, ..Exit::default() });
        }
        assert_eq!(family.waiting_count, WAITING_MAX);
        assert_eq!(family.told().lost, 100_000 - WAITING_MAX as u64);
        family.saw(&[500]);
        assert_eq!(family.told().exits, WAITING_MAX as u64);
        assert!(family.known.len() <= KNOWN_MAX);
    }

    /// A random tree whose processes start, sample and end in any order: every one of ours is found,
    /// none of another's.
    #[test]
    fn random_worlds_are_told_apart() {
        for seed in 1..500 {
            world(seed);
        }
    }

    fn world(seed: u64) {
        let mut random = Random::new(seed);
        // The leader, and somebody else's process.
        let mut alive: Vec<(u32, u32, bool)> = vec![(LEADER, 1, true), (9, 1, false)];
        let (mut next, mut ours) = (1000, 0);
        let mut family = AttemptProcesses::new(LEADER);
        for _ in 0..400 {
            match random.below(10) {
                0..5 => {
                    let (parent, _, is_ours) = alive[random.below(alive.len())];
                    alive.push((next, parent, is_ours));
                    next += 1;
                }
                5..9 if alive.len() > 2 => {
                    let (pid, parent, is_ours) = alive.remove(2 + random.below(alive.len() - 2));
                    family.take(Exit { pid, parent, ..Exit::default() });
                    ours += u64::from(is_ours);
                    let adopter = if is_ours { LEADER } else { 1 };
                    let orphans = alive.iter_mut().filter(|(_, parent, _)| *parent == pid);
                    orphans.for_each(|(_, parent, _)| *parent = adopter);
                }
                9 => {
                    let tree: Vec<u32> = alive.iter().filter(|p| p.2).map(|p| p.0).collect();
                    family.saw(&tree[1..]);
                }
                _ => {}
            }
        }
        // A parent that lives is seen by the last sample.
        let tree: Vec<u32> = alive.iter().filter(|p| p.2).map(|p| p.0).collect();
        family.saw(&tree[1..]);
        assert_eq!(family.told().exits, ours, "seed {seed}");
    }
}
