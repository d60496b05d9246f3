//! Measures one attempt from its start to its end: samples of its tree, the machine and its
//! control group become peaks, counters and a curve.
//!
//! What a figure was measured with depends on the kernel, so each says so.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cgroup::{Cgroups, Group};
use crate::counters::{Counters, Recent};
use crate::curve::{Curve, Point};
use crate::exits::Followed;
use crate::family::ExitTotals;
use crate::freezer::Freezer;
use crate::kernel_log::{KernelEvent, KernelLog, Mark};
use crate::listener::Listener;
use crate::machine::Machine;
use crate::peaks::Peaks;
use crate::pressure::Pressure;
use crate::roster::Roster;
use crate::tegrastats::TegrastatsProcess;
use crate::tree::{PROCESSES_MAX, Sample, Tree};

/// Ten samples a second see what a person would want to see.
const PERIOD_MIN: Duration = Duration::from_millis(100);
/// A limit that is held by sampling must be held within this.
const PERIOD_MAX: Duration = Duration::from_millis(500);
/// A sample may take this part of the time until the next: 1 % of one core.
const PERIOD_PER_COST: u32 = 100;

/// How long to wait for the next sample when the last took `cost`.
pub fn period(cost: Duration) -> Duration {
    (cost * PERIOD_PER_COST).clamp(PERIOD_MIN, PERIOD_MAX)
}

/// An attempt is at its limit from this percentage on: the kernel charges pages in batches.
const AT_LIMIT: u64 = 95;

/// How hard an attempt has it; unknown where it has no group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strain {
    /// Microseconds that some of its tasks have waited for memory.
    pub stalled_us: Option<u64>,
    /// Processor time of all its processes.
    pub cpu: Option<Duration>,
    /// It has all that its own limit lets it have.
    pub is_at_limit: bool,
}

/// Measures one attempt.
#[derive(Debug)]
pub struct Meter {
    root: PathBuf,
    leader: u32,
    tree: Tree,
    roster: Roster,
    group: Option<Group>,
    /// Containers that it has started.
    containers: Vec<Adopted>,
    /// The most that was charged to all of them at once, in bytes.
    containers_peak_bytes: u64,
    /// What the kernel keeps the group within.
    limit_bytes: Option<u64>,
    /// The ends of its tasks, where the kernel tells of them.
    followed: Option<Followed>,
    has_waits: bool,
    board: Option<Arc<TegrastatsProcess>>,
    /// The kernel's log, where we may read it, and where in it the attempt began.
    log: Option<(KernelLog, Mark)>,
    machine: Arc<Recent>,
    before: Counters,
    /// Stalls up to the last sample.
    stalled_us: u64,
    peaks: Peaks,
    curve: Curve,
}

/// A container's group, which is its engine's and goes when that has ended; what was last read of it.
#[derive(Debug)]
struct Adopted {
    group: Group,
    peak_bytes: u64,
    oom_kills: u64,
}

impl Adopted {
    fn look(&mut self) {
        let (_, counters) = self.group.account();
        self.oom_kills = self.oom_kills.max(counters.oom_kills.unwrap_or(0));
        self.peak_bytes = self.peak_bytes.max(self.group.peak_bytes().unwrap_or(0));
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measured {
    /// Extremes.
    pub peaks: Peaks,
    /// What happened.
    pub counters: Counters,
    /// The course of it.
    pub curve: Curve,
    /// By which means each figure was measured.
    pub methods: BTreeMap<String, String>,
    /// What the kernel wrote into its log meanwhile that may have ended it; of the whole machine.
    pub kernel_events: Vec<KernelEvent>,
}

impl Meter {
    /// Begins with the tree below the process `leader`, in a group called `name` where that can be
    /// had; the leader must not have children yet.
    pub fn begin(cgroups: Option<&Cgroups>, listener: &Listener, name: &str, leader: u32) -> Self {
        let root = PathBuf::from("/");
        let group = cgroups.and_then(|cgroups| join(cgroups, name, leader));
        let own = group.as_ref().and_then(Group::pressure);
        let of_machine = own.is_none().then(|| Counters::read_pressure(&root)).flatten();
        let before = listener.machine.begin(&root).with_pressure(of_machine);
        let tree = Tree::new(leader);
        Self {
            root,
            leader,
            tree,
            roster: Roster::new(),
            group,
            containers: Vec::new(),
            containers_peak_bytes: 0,
            limit_bytes: None,
            followed: listener.exits.as_ref().map(|exits| exits.follow(leader)),
            has_waits: listener.has_waits,
            board: listener.board.clone(),
            log: listener.log.clone().map(|log| {
                let mark = log.mark();
                (log, mark)
            }),
            machine: Arc::clone(&listener.machine),
            before,
            stalled_us: own.or(of_machine).map_or(0, |pressure| pressure.some_us),
            peaks: Peaks::default(),
            curve: Curve::default(),
        }
    }

    /// How memory is measured: `cgroup-v1` or `cgroup-v2` besides `/proc`, or `proc` alone.
    pub fn method(&self, cgroups: Option<&Cgroups>) -> &'static str {
        match (&self.group, cgroups) {
            (Some(_), Some(cgroups)) => cgroups.name(),
            _ => PROC,
        }
    }

    /// Has the kernel keep the attempt within a limit where it can ([`Meter::holds_limit`]).
    pub fn keep_within(&mut self, bytes: u64) {
        let is_kept = self.group.as_ref().is_some_and(|group| group.limit(bytes).is_ok());
        self.limit_bytes = is_kept.then_some(bytes);
    }

    /// Whether the kernel keeps the attempt within its limit.
    pub fn holds_limit(&self) -> bool {
        self.limit_bytes.is_some()
    }

    /// Counts a container's processes as its own from now on.
    pub fn adopt(&mut self, container: Group) {
        self.containers.push(Adopted { group: container, peak_bytes: 0, oom_kills: 0 });
    }

    /// Kills the containers that still run; how many they were.
    pub fn end_containers(&self) -> usize {
        let runs = |one: &&Adopted| !one.group.pids_below().is_empty();
        let running: Vec<&Adopted> = self.containers.iter().filter(runs).collect();
        for one in &running {
            let _ = one.group.kill();
        }
        running.len()
    }

    /// Whether processes are its own that are not in its group.
    pub fn has_containers(&self) -> bool {
        !self.containers.is_empty()
    }

    /// How to halt the attempt; `None` where its leader must.
    pub fn freezer(&self) -> Option<Freezer> {
        self.group.as_ref()?.freezer(self.leader)
    }

    /// Writes what the attempt holds to swap; nothing without a group.
    pub fn page_out(&self) -> io::Result<()> {
        self.group.as_ref().map_or(Ok(()), Group::page_out)
    }

    /// How long nothing of the attempt could run for want of memory.
    pub fn starved(&self) -> Duration {
        let pressure = self.group.as_ref().and_then(Group::pressure);
        Duration::from_micros(pressure.map_or(0, |pressure| pressure.full_us))
    }

    /// How hard the attempt has it.
    pub fn strain(&self) -> Strain {
        let Some(group) = &self.group else { return Strain::default() };
        let is_at_limit =
            |max: u64| group.charged_bytes().is_some_and(|bytes| bytes >= max / 100 * AT_LIMIT);
        Strain {
            stalled_us: group.pressure().map(|pressure| pressure.some_us),
            cpu: group.cpu(),
            is_at_limit: self.limit_bytes.is_some_and(is_at_limit),
        }
    }

    /// Takes a sample `at` a time since the attempt began; `None` when nothing runs.
    pub fn sample(&mut self, at: Duration) -> Option<Sample> {
        let pids = self.pids();
        if let Some(followed) = &self.followed {
            followed.saw(&pids);
        }
        let sample = self.roster.sample(&pids, self.followed.is_some())?;
        let machine = Machine::read(&self.root);
        self.peaks.take(&sample, &machine);
        self.look_at_containers();
        self.peaks
            .take_page_cache(self.group.as_ref().and_then(|group| group.held().page_cache_bytes));
        if let Some(said) = self.board.as_ref().and_then(|board| board.latest()) {
            self.peaks.take_board(&said);
        }
        let stalled_us =
            pressure(self.group.as_ref(), &self.root).map_or(0, |pressure| pressure.some_us);
        self.curve.push(&Point {
            at,
            rss_bytes: sample.rss_bytes,
            swap_bytes: sample.swap_bytes,
            stalled_us: stalled_us.saturating_sub(self.stalled_us),
            cma_free_bytes: machine.cma_free_bytes.unwrap_or(0),
        });
        self.stalled_us = stalled_us;
        Some(sample)
    }

    /// Containers end one by one, so what they hold together is what they hold now, or what one has held.
    fn look_at_containers(&mut self) {
        self.containers.iter_mut().for_each(Adopted::look);
        let now = self.containers.iter().filter_map(|one| one.group.charged_bytes()).sum();
        let one = self.containers.iter().map(|one| one.peak_bytes).max().unwrap_or(0);
        self.containers_peak_bytes = self.containers_peak_bytes.max(now).max(one);
    }

    /// The processes that the leader leads.
    fn pids(&self) -> Vec<u32> {
        let of_group = self.group.as_ref().and_then(Group::pids);
        let followers = |pids: Vec<u32>| {
            let is_follower = |pid: &u32| *pid != self.leader;
            pids.into_iter().filter(is_follower).take(PROCESSES_MAX).collect()
        };
        let mut pids = of_group.map_or_else(|| self.tree.descendants(), followers);
        let of_containers = self.containers.iter().flat_map(|one| one.group.pids_below());
        // A monitor's children may be below the leader, too.
        let more: Vec<u32> = of_containers.filter(|pid| !pids.contains(pid)).collect();
        pids.extend(more);
        pids.truncate(PROCESSES_MAX);
        pids
    }

    /// Ends when nothing of the attempt runs any more, and gives its group, which whoever still is in it
    /// must leave before it can be removed.
    pub fn finish(mut self) -> (Measured, Option<Group>) {
        let mut group = Counters::default();
        let mut name = PROC;
        self.look_at_containers();
        if let Some(own) = &self.group {
            let (held, counters) = own.account();
            self.peaks.take_page_cache(held.page_cache_bytes);
            let more = self.containers_peak_bytes;
            self.peaks.cgroup_peak_bytes = own.peak_bytes().map(|bytes| bytes.saturating_add(more));
            group = counters;
            let kills: u64 = self.containers.iter().map(|one| one.oom_kills).sum();
            group.oom_kills = group.oom_kills.map(|own| own + kills);
            name = GROUP;
        }
        let machine = self.machine.end(&self.root);
        let machine = match group.pressure_some_us {
            Some(_) => machine,
            None => machine.with_pressure(Counters::read_pressure(&self.root)),
        };
        let machine = machine.since(&self.before);
        let methods = methods(name, &group, &machine, &self.peaks);
        let counters = group.or(&machine);
        let (peaks, curve) = (self.peaks, self.curve);
        let kernel_events = self.log.map_or_else(Vec::new, |(log, mark)| log.since(mark));
        let mut measured = Measured { peaks, counters, curve, methods, kernel_events };
        if let Some(followed) = self.followed.take() {
            measured.take_told(&followed.told(), self.has_waits);
        }
        (measured, self.group)
    }
}

const PROC: &str = "proc";
const BOARD: &str = "tegrastats";
/// The means of a figure that the kernel counted for the attempt's own control group.
pub const GROUP: &str = "cgroup";
const RUSAGE: &str = "rusage";
const MACHINE: &str = "machine";
const TASKSTATS: &str = "taskstats";

impl Measured {
    /// Takes what the ends of its tasks have told.  A figure that they gave names them, if every end
    /// was heard; one that is a sum over the tree is sampled and may be larger.
    fn take_told(&mut self, told: &ExitTotals, has_waits: bool) {
        self.peaks.take_told(told);
        if told.exits == 0 || told.lost > 0 {
            return;
        }
        let mut say = |figure: &str| self.methods.insert(figure.to_owned(), TASKSTATS.to_owned());
        say("peak_rss_process_bytes");
        if self.peaks.peak_rss_bytes == told.rss_process_peak_bytes {
            say("peak_rss_bytes");
        }
        if self.peaks.peak_vms_bytes == told.vms_process_peak_bytes {
            say("peak_vms_bytes");
        }
        for (figure, wait_ns, counter) in [
            ("swap_in_wait_us", told.swap_in_wait_ns, &mut self.counters.swap_in_wait_us),
            ("thrashing_wait_us", told.thrashing_wait_ns, &mut self.counters.thrashing_wait_us),
        ] {
            if has_waits || wait_ns > 0 {
                say(figure);
                *counter = Some(wait_ns / 1000);
            }
        }
    }

    /// Takes the kernel's account of the processes that have ended, which knows one process's most
    /// memory, and the faults that no group has counted.  Where their ends have told, only a program
    /// that replaced itself by a smaller one is known better here.
    ///
    /// A process's account of its ended children begins with what it held itself and what earlier ones took: up to
    /// `carried_bytes` it tells nothing of the last ones.
    pub fn take_usage(
        &mut self,
        rss_process_peak_bytes: u64,
        carried_bytes: u64,
        major_faults: u64,
    ) {
        let means = self.methods.get("peak_rss_process_bytes");
        if means.is_none_or(|means| means != TASKSTATS) || rss_process_peak_bytes > carried_bytes {
            self.peaks.take_process_peak(rss_process_peak_bytes);
        }
        let means = self.methods.entry("major_faults".to_owned()).or_default();
        if means != GROUP {
            RUSAGE.clone_into(means);
            self.counters.major_faults = Some(major_faults);
        }
    }
}

/// The figures that are sampled from `/proc`, and those that are the whole machine's.
const SAMPLED: [&str; 5] = [
    "peak_rss_bytes",
    "peak_rss_process_bytes",
    "peak_vms_bytes",
    "swap_peak_bytes",
    "held_peak_bytes",
];
const LOWS: [&str; 2] = ["mem_available_min_bytes", "cma_free_min_bytes"];

/// The means of every figure that there is.
fn methods(
    own: &str,
    group: &Counters,
    machine: &Counters,
    peaks: &Peaks,
) -> BTreeMap<String, String> {
    let mut methods: BTreeMap<String, String> = BTreeMap::new();
    let mut say = |figure: &str, means: &str| methods.insert(figure.to_owned(), means.to_owned());
    SAMPLED.iter().for_each(|figure| drop(say(figure, PROC)));
    for (figure, is_there) in LOWS
        .into_iter()
        .zip([peaks.mem_available_min_bytes.is_some(), peaks.cma_free_min_bytes.is_some()])
    {
        if is_there {
            say(figure, MACHINE);
        }
    }
    for (figure, is_there) in [
        ("gpu_max_percent", peaks.gpu_max_percent.is_some()),
        ("power_max_mw", peaks.power_max_mw.is_some()),
        ("temperature_max_c", peaks.temperature_max_c.is_some()),
    ] {
        if is_there {
            say(figure, BOARD);
        }
    }
    for (figure, value) in [
        ("page_cache_peak_bytes", peaks.page_cache_peak_bytes),
        ("cgroup_peak_bytes", peaks.cgroup_peak_bytes),
    ] {
        if value.is_some() {
            say(figure, own);
        }
    }
    for ((figure, of_group), (_, of_machine)) in group.named().into_iter().zip(machine.named()) {
        match (of_group, of_machine) {
            (Some(_), _) => drop(say(figure, own)),
            (None, Some(_)) => drop(say(figure, MACHINE)),
            (None, None) => {}
        }
    }
    methods
}

/// A group with the leader in it; a machine that refuses is measured by `/proc`.
fn join(cgroups: &Cgroups, name: &str, leader: u32) -> Option<Group> {
    let group = cgroups.create(name).ok()?;
    if group.add(leader).is_err() {
        group.remove();
        return None;
    }
    Some(group)
}

/// The stalls of the group, else of the machine.
fn pressure(group: Option<&Group>, root: &Path) -> Option<Pressure> {
    group.and_then(Group::pressure).or_else(|| Counters::read_pressure(root))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn sampling_costs_no_more_than_it_may() {
        let check = |cost_us, expect_ms| {
            assert_eq!(period(Duration::from_micros(cost_us)), Duration::from_millis(expect_ms));
        };
        check(0, 100);
        check(900, 100);
        check(2_000, 200);
        check(90_000, 500);
    }

    #[test]
    fn what_the_ends_of_tasks_told_names_them() {
        const CARRIED: u64 = 70;
        let check = |told: ExitTotals, own: u64, means: [&str; 3], exact: u64| {
            let mut measured = Measured {
                peaks: Peaks { peak_rss_bytes: 70, peak_vms_bytes: 700, ..Peaks::default() },
                methods: methods(
                    PROC,
                    &Counters::default(),
                    &Counters::default(),
                    &Peaks::default(),
                ),
                ..Measured::default()
            };
            measured.take_told(&told, true);
            measured.take_usage(own, CARRIED, 0);
            let figures = ["peak_rss_process_bytes", "peak_rss_bytes", "peak_vms_bytes"];
            assert_eq!(figures.map(|figure| measured.methods[figure].as_str()), means);
            assert_eq!(measured.peaks.peak_rss_process_bytes, exact);
            measured
        };
        let told = ExitTotals {
            exits: 1,
            rss_process_peak_bytes: 60,
            vms_process_peak_bytes: 600,
            swap_in_wait_ns: 5_999,
            ..ExitTotals::default()
        };
        let counters = check(told, 65, ["taskstats", "proc", "proc"], 60).counters;
        assert_eq!((counters.swap_in_wait_us, counters.thrashing_wait_us), (Some(5), Some(0)));
        let replaced = CARRIED + 1;
        check(told, replaced, ["taskstats", "proc", "proc"], replaced);
        let spike = ExitTotals { rss_process_peak_bytes: 90, vms_process_peak_bytes: 900, ..told };
        check(spike, 0, ["taskstats"; 3], 90);
        let lossy = ExitTotals { lost: 1, ..spike };
        check(lossy, 95, ["proc"; 3], 95);
        check(ExitTotals::default(), 65, ["proc"; 3], 65);
    }

    #[test]
    fn every_figure_names_its_means() {
        let peaks = Peaks { page_cache_peak_bytes: Some(1), ..Peaks::default() };
        let group = Counters { oom_kills: Some(0), ..Counters::default() };
        let machine =
            Counters { oom_kills: Some(3), swap_in_pages: Some(1), ..Counters::default() };
        let methods = methods(GROUP, &group, &machine, &peaks);
        let of = |figure: &str| methods.get(figure).map(String::as_str);
        assert_eq!(of("peak_rss_bytes"), Some("proc"));
        assert_eq!(of("oom_kills"), Some("cgroup"), "the group's own count is the better one");
        assert_eq!(of("swap_in_pages"), Some("machine"));
        assert_eq!(of("page_cache_peak_bytes"), Some("cgroup"));
        assert_eq!(of("cma_alloc_fails"), None, "nobody counts them");
    }

    #[test]
    fn faults_of_the_whole_machine_are_not_an_attempts() {
        let machine = Counters { major_faults: Some(900), ..Counters::default() };
        let check = |group: Counters, faults, means: &str| {
            let methods = methods(GROUP, &group, &machine, &Peaks::default());
            let counters = group.or(&machine);
            let mut measured = Measured { counters, methods, ..Measured::default() };
            measured.take_usage(1, 0, 3);
            assert_eq!(measured.counters.major_faults, Some(faults));
            assert_eq!(measured.methods["major_faults"], means);
        };
        check(Counters::default(), 3, "rusage");
        check(Counters { major_faults: Some(5), ..Counters::default() }, 5, "cgroup");
    }

    #[test]
    fn a_real_tree_is_measured() {
        let mut leader = Command::new("sh")
            .args([
                "-c",
                "read go; sh -c 'x=$(head -c 20000000 /dev/zero | tr \"\\\\0\" x); read end'; true",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let cgroups = Cgroups::find(Path::new("/"));
        let name = format!("meter/{}", std::process::id());
        let listener = Listener::start();
        let mut meter = Meter::begin(cgroups.as_ref(), &listener, &name, leader.id());
        meter.keep_within(1 << 30);
        assert!(["proc", "cgroup-v1", "cgroup-v2"].contains(&meter.method(cgroups.as_ref())));
        let mut input = leader.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        let mut at = Duration::ZERO;
        assert_eq!(meter.holds_limit(), meter.group.is_some());
        while meter.peaks.peak_rss_bytes < 20_000_000 {
            at += Duration::from_millis(1);
            meter.sample(at);
            assert!(at < Duration::from_secs(100), "the shell's string never became large");
        }
        input.write_all(b"end\n").unwrap();
        leader.wait().unwrap();
        let (measured, group) = meter.finish();
        group.into_iter().for_each(Group::remove);
        assert!(measured.curve.rss_kib.iter().max().is_some_and(|&kib| kib > 19_000));
        assert!(measured.peaks.peak_vms_bytes > measured.peaks.peak_rss_process_bytes);
        assert_eq!(listener.exits.is_some(), measured.peaks.exits.is_some_and(|exits| exits >= 3));
        assert_eq!(measured.counters.oom_kills.unwrap_or(0), 0);
    }
}
