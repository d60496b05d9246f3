//! Puts readings of a machine into words: lines for a screen, one line for a log, JSON for programs.
//!
//! Plain functions over data; what a machine does not say is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use smelt_watch::Survey;
use smelt_watch::activity::Rates;
use smelt_watch::nvmap::NvmapClient;
use smelt_watch::processes::Process;
use smelt_watch::swaps::Swap;
use smelt_watch::tegrastats::Tegrastats;

use crate::table::{Table, bytes, seconds};

/// Names of what a line tells of stand before this column.
const INDENT: usize = 10;
/// Holders of GPU memory that are named.
const HOLDERS_SHOWN: usize = 3;

/// A reading, and what happened since the one before.
pub(crate) struct View<'a> {
    /// When it was taken, seconds since 1970.
    pub(crate) at_s: u64,
    pub(crate) survey: &'a Survey,
    pub(crate) change: Option<&'a Change>,
    /// What is watched besides the machine.
    pub(crate) family: Option<&'a WatchedProcesses>,
    /// What stages are doing.
    pub(crate) stages: &'a [Stage],
    /// The most processes to list.
    pub(crate) top: usize,
}

/// How far a stage's attempt is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stage {
    /// `STAGE.ATTEMPT`.
    pub(crate) name: String,
    /// From 0 to 1, where it says so.
    pub(crate) done: Option<f64>,
    pub(crate) left: Option<Duration>,
    /// The same in words, and what it does.
    pub(crate) words: String,
}

impl Stage {
    fn as_json(&self) -> Value {
        let left_s = self.left.map(|left| left.as_secs());
        json!({ "name": self.name, "done": self.done, "left_s": left_s, "doing": self.words })
    }
}

/// What happened between two readings.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Change {
    rates: Rates,
    /// Percent of the time that a task at least, or all, waited for memory.
    some_percent: Option<f64>,
    full_percent: Option<f64>,
    /// The same of each attempt's group, some.
    attempts: BTreeMap<String, f64>,
}

impl Change {
    pub(crate) fn between(before: &Survey, now: &Survey, elapsed: Duration) -> Self {
        let share = |before: Option<u64>, now: Option<u64>| {
            let us = now?.saturating_sub(before?) as f64;
            Some((us / 1e4 / elapsed.as_secs_f64().max(1e-3)).min(100.0))
        };
        let of_group = |now: &smelt_watch::cgroup::RunningGroup| {
            let before = before.attempts.iter().find(|before| before.name == now.name)?;
            Some((now.name.clone(), share(before.pressure_some_us, now.pressure_some_us)?))
        };
        Self {
            rates: now.activity.since(&before.activity, elapsed),
            some_percent: share(before.pressure_some_us, now.pressure_some_us),
            full_percent: share(before.pressure_full_us, now.pressure_full_us),
            attempts: now.attempts.iter().filter_map(of_group).collect(),
        }
    }
}

/// Processes that are watched together, and what they took at most since then.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct WatchedProcesses {
    /// What they are called.
    name: String,
    processes: usize,
    rss_bytes: u64,
    rss_anon_bytes: u64,
    vms_bytes: u64,
    swap_bytes: u64,
    rss_peak_bytes: u64,
    rss_process_peak_bytes: u64,
    swap_peak_bytes: u64,
}

impl WatchedProcesses {
    pub(crate) fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Takes a reading of them.
    pub(crate) fn take(&mut self, members: &[&Process]) {
        let sum = |of: fn(&Process) -> u64| {
            members.iter().fold(0_u64, |sum, process| sum.saturating_add(of(process)))
        };
        self.processes = members.len();
        self.rss_bytes = sum(|process| process.rss_bytes);
        self.rss_anon_bytes = sum(|process| process.rss_anon_bytes);
        self.vms_bytes = sum(|process| process.vms_bytes);
        self.swap_bytes = sum(|process| process.swap_bytes);
        let of_one = members.iter().map(|process| process.rss_peak_bytes).max().unwrap_or(0);
        self.rss_process_peak_bytes = self.rss_process_peak_bytes.max(of_one);
        self.rss_peak_bytes = self.rss_peak_bytes.max(self.rss_bytes).max(of_one);
        self.swap_peak_bytes = self.swap_peak_bytes.max(self.swap_bytes);
    }

    fn as_json(&self) -> Value {
        json!({
            "name": self.name, "processes": self.processes, "rss_bytes": self.rss_bytes,
            "rss_anon_bytes": self.rss_anon_bytes, "vms_bytes": self.vms_bytes,
            "swap_bytes": self.swap_bytes, "peak_rss_bytes": self.rss_peak_bytes,
            "peak_rss_process_bytes": self.rss_process_peak_bytes,
            "swap_peak_bytes": self.swap_peak_bytes,
        })
    }

    /// What they took, when they have ended.
    pub(crate) fn end(&self, elapsed: Duration) -> String {
        format!(
            "{} has ended after {}: peak RSS {}, of one process {}, in swap {}",
            self.name,
            seconds(elapsed.as_secs_f64()),
            bytes(self.rss_peak_bytes),
            bytes(self.rss_process_peak_bytes),
            bytes(self.swap_peak_bytes),
        )
    }
}

impl View<'_> {
    /// As many lines as it takes.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut say = |name: &str, parts: Vec<String>| {
            if !parts.is_empty() {
                lines.push(format!("{name:INDENT$}{}", parts.join(" · ")));
            }
        };
        say("Time", vec![format!("{} UTC", clock(self.at_s))]);
        say("Memory", self.memory());
        say("Pages", self.pages());
        say("Swap", self.swap());
        say("Waits", self.waits());
        say("Faults", self.faults());
        say("CMA", self.cma());
        if let Some(board) = &self.survey.tegrastats {
            say("GPU", gpu(board));
            say("Board", board_parts(board));
        }
        say("NvMap", nvmap(&self.survey.nvmap));
        if let Some(family) = self.family {
            say("Watched", watched(family));
        }
        for stage in self.stages {
            say("Stage", vec![printable(&stage.name), stage.words.clone()]);
        }
        for table in [self.attempts(), self.processes()].into_iter().flatten() {
            lines.push(String::new());
            lines.extend(table.to_string().lines().map(str::to_owned));
        }
        lines
    }

    /// All that changes, in one line.
    pub(crate) fn line(&self) -> String {
        let mut parts = vec![clock(self.at_s)];
        let memory = &self.survey.memory;
        let mut say = |name: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{name} {value}")));
        };
        say("available", memory.available_bytes.map(bytes));
        say("swap", self.swap_used().map(bytes));
        say("swap in/out", self.swapped());
        say("stalled", self.stalled().map(|(some, _)| percent(some)));
        let faults = self.change.and_then(|change| change.rates.major_faults_per_s);
        say("major faults", faults.map(|rate| format!("{rate:.0}/s")));
        say("CMA free", memory.cma_free_bytes.map(bytes));
        let board = self.survey.tegrastats.as_ref();
        say("GPU", board.and_then(|board| board.gpu_percent).map(|load| format!("{load} %")));
        say("drawn", board.and_then(Tegrastats::drawn_mw).map(watts));
        say("hottest", board.and_then(Tegrastats::hottest_c).map(degrees));
        let family = self.family.map(|family| (family.name.as_str(), family.rss_bytes));
        let largest = self.survey.processes.first().map(|p| (p.name.as_str(), p.rss_bytes));
        if let Some((name, rss_bytes)) = family.or(largest) {
            say(name, Some(bytes(rss_bytes)));
        }
        for stage in self.stages {
            say(&printable(&stage.name), Some(stage.words.clone()));
        }
        parts.join("  ")
    }

    /// One object with all there is.
    pub(crate) fn as_json(&self) -> Value {
        let mut value = json!(self.survey);
        if let Some(processes) = value["processes"].as_array_mut() {
            processes.truncate(self.top);
        }
        value["at_s"] = json!(self.at_s);
        if let Some(change) = self.change {
            value["rates"] = json!(change.rates);
            value["stalled_some_percent"] = json!(change.some_percent);
            value["stalled_full_percent"] = json!(change.full_percent);
        }
        value["stages"] = self.stages.iter().map(Stage::as_json).collect();
        if let Some(family) = self.family {
            value["watched"] = family.as_json();
        }
        value
    }

    fn memory(&self) -> Vec<String> {
        let memory = &self.survey.memory;
        let available = memory.available_bytes.zip(memory.total_bytes);
        let text =
            |(available, total)| format!("{} of {} available", bytes(available), bytes(total));
        available.map(text).into_iter().collect()
    }

    fn pages(&self) -> Vec<String> {
        let memory = &self.survey.memory;
        let part = |(name, value): (&str, Option<u64>)| Some(format!("{name} {}", bytes(value?)));
        [
            ("anonymous", memory.anonymous_bytes),
            ("page cache", memory.page_cache_bytes),
            ("unwritten", memory.dirty_bytes),
        ]
        .into_iter()
        .filter_map(part)
        .collect()
    }

    /// Memory that is only compressed is not taken for a disk; there is one such device a core.
    fn swap(&self) -> Vec<String> {
        let part =
            |name: &str, used: u64, size: u64| format!("{name} {} of {}", bytes(used), bytes(size));
        let (zram, disks): (Vec<_>, Vec<_>) = self.survey.swaps.iter().partition(|s| s.is_zram);
        let sum =
            |of: fn(&Swap) -> u64| zram.iter().fold(0_u64, |sum, s| sum.saturating_add(of(s)));
        let mut parts = Vec::new();
        if !zram.is_empty() {
            parts.push(part("zram", sum(|swap| swap.used_bytes), sum(|swap| swap.size_bytes)));
        }
        parts.extend(disks.iter().map(|s| part(&printable(&s.name), s.used_bytes, s.size_bytes)));
        if parts.is_empty() {
            parts.push("none".to_owned());
        }
        parts.extend(self.swapped().map(|pages| format!("in/out {pages} pages/s")));
        parts
    }

    fn waits(&self) -> Vec<String> {
        let (activity, rates) = (&self.survey.activity, self.change.map(|change| &change.rates));
        let stalled = self.stalled();
        let stalled = stalled
            .map(|(some, full)| format!("stalled {}, fully {}", percent(some), percent(full)));
        let reclaim = rates.and_then(|rates| rates.alloc_stalls_per_s);
        let compaction = rates.and_then(|rates| rates.compact_stalls_per_s);
        [
            stalled,
            often("reclaim", reclaim, activity.alloc_stalls),
            often("compaction", compaction, activity.compact_stalls),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn faults(&self) -> Vec<String> {
        let activity = &self.survey.activity;
        let rate = self.change.and_then(|change| change.rates.major_faults_per_s);
        let kills = activity.oom_kills.map(|kills| format!("OOM kills {kills}"));
        [often("major", rate, activity.major_faults), kills].into_iter().flatten().collect()
    }

    fn cma(&self) -> Vec<String> {
        let memory = &self.survey.memory;
        let (Some(free), Some(total)) = (memory.cma_free_bytes, memory.cma_total_bytes) else {
            return Vec::new();
        };
        if total == 0 {
            return Vec::new();
        }
        let refused = self.survey.activity.cma_alloc_fails;
        let refused = refused.map(|times| format!("refused {times} times"));
        [format!("{} of {} free", bytes(free), bytes(total))].into_iter().chain(refused).collect()
    }

    /// Percent of the time since the last reading, else of ten seconds.
    fn stalled(&self) -> Option<(f64, f64)> {
        let since =
            self.change.and_then(|change| Some((change.some_percent?, change.full_percent?)));
        let averages = self.survey.pressure;
        since.or_else(|| averages.map(|stalls| (stalls.some_percent, stalls.full_percent)))
    }

    fn swap_used(&self) -> Option<u64> {
        let memory = &self.survey.memory;
        Some(memory.swap_total_bytes?.saturating_sub(memory.swap_free_bytes?))
    }

    fn swapped(&self) -> Option<String> {
        let rates = &self.change?.rates;
        Some(format!("{:.0}/{:.0}", rates.swap_in_pages_per_s?, rates.swap_out_pages_per_s?))
    }

    fn attempts(&self) -> Option<Table> {
        if self.survey.attempts.is_empty() {
            return None;
        }
        let mut table = Table::new(&[
            "Attempt",
            "Memory",
            "Peak",
            "Limit",
            "Page cache",
            "Stalled",
            "Processes",
        ]);
        for group in &self.survey.attempts {
            let parked = if group.is_parked { " (parked)" } else { "" };
            let stalled = self.change.and_then(|change| change.attempts.get(&group.name));
            table.row([
                format!("{}{parked}", group.name),
                or_dash(group.memory_bytes.map(bytes)),
                or_dash(group.memory_peak_bytes.map(bytes)),
                or_dash(group.memory_max_bytes.map(bytes)),
                or_dash(group.page_cache_bytes.map(bytes)),
                or_dash(stalled.map(|&share| percent(share))),
                group.processes.to_string(),
            ]);
        }
        Some(table)
    }

    fn processes(&self) -> Option<Table> {
        let shown = self.survey.processes.iter().take(self.top);
        if shown.len() == 0 {
            return None;
        }
        let mut table = Table::new(&["Process", "PID", "RSS", "Anonymous", "Peak", "Swap"]);
        for process in shown {
            table.row([
                process.name.clone(),
                process.pid.to_string(),
                bytes(process.rss_bytes),
                bytes(process.rss_anon_bytes),
                bytes(process.rss_peak_bytes),
                bytes(process.swap_bytes),
            ]);
        }
        Some(table)
    }
}

/// How often something happens, or how often it has.
fn often(name: &str, rate: Option<f64>, sum: Option<u64>) -> Option<String> {
    match rate {
        Some(rate) => Some(format!("{name} {rate:.0}/s")),
        None => Some(format!("{name} {}", sum?)),
    }
}

fn gpu(board: &Tegrastats) -> Vec<String> {
    let load = board.gpu_percent.map(|load| format!("{load} %"));
    let clock = board.gpu_mhz.map(|mhz| format!("{mhz} MHz"));
    let bus = board.bus_percent.map(|load| format!("memory bus {load} %"));
    let largest = board.largest_free;
    let largest = largest.map(|(size, count)| format!("largest free {count} x {}", bytes(size)));
    [load, clock, bus, largest].into_iter().flatten().collect()
}

fn board_parts(board: &Tegrastats) -> Vec<String> {
    let on = board.cpus_percent.iter().flatten();
    let (count, sum) = (on.clone().count(), on.sum::<u32>());
    let off = board.cpus_percent.len() - count;
    let cores = (count > 0).then(|| {
        let off = if off > 0 { format!(", {off} off") } else { String::new() };
        format!("{count} cores at {} %{off}", sum as usize / count)
    });
    let drawn = board.drawn_mw().map(watts);
    let hottest = board.hottest_c().map(degrees);
    [cores, drawn, hottest].into_iter().flatten().collect()
}

fn nvmap(clients: &[NvmapClient]) -> Vec<String> {
    if clients.is_empty() {
        return Vec::new();
    }
    let sum = clients.iter().fold(0_u64, |sum, client| sum.saturating_add(client.bytes));
    let held = |client: &NvmapClient| {
        format!("{} ({}) {}", printable(&client.name), client.pid, bytes(client.bytes))
    };
    let holders = clients.iter().take(HOLDERS_SHOWN).map(held);
    [bytes(sum)].into_iter().chain(holders).collect()
}

fn watched(family: &WatchedProcesses) -> Vec<String> {
    vec![
        family.name.clone(),
        format!("{} processes", family.processes),
        format!("RSS {} (peak {})", bytes(family.rss_bytes), bytes(family.rss_peak_bytes)),
        format!("anonymous {}", bytes(family.rss_anon_bytes)),
        format!("virtual {}", bytes(family.vms_bytes)),
        format!("swap {} (peak {})", bytes(family.swap_bytes), bytes(family.swap_peak_bytes)),
    ]
}

/// Names are chosen by whoever runs.
fn printable(name: &str) -> String {
    name.replace(char::is_control, "?")
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn percent(share: f64) -> String {
    format!("{share:.1} %")
}

fn watts(mw: u64) -> String {
    format!("{:.1} W", mw as f64 / 1e3)
}

fn degrees(celsius: f64) -> String {
    format!("{celsius:.1} °C")
}

/// `06:31:02`.
fn clock(at_s: u64) -> String {
    let [hours, minutes] = [at_s / 3600 % 24, at_s / 60 % 60];
    format!("{hours:02}:{minutes:02}:{:02}", at_s % 60)
}

#[cfg(test)]
mod tests {
    use smelt_watch::activity::Activity;
    use smelt_watch::cgroup::RunningGroup;
    use smelt_watch::pressure::Averages;

    use super::*;

    fn survey(stalled_us: u64, faults: u64) -> Survey {
        let attempt = RunningGroup {
            name: "r.llm-engine.2".to_owned(),
            processes: 3,
            memory_bytes: Some(3 << 30),
            memory_peak_bytes: None,
            memory_max_bytes: Some(4 << 30),
            page_cache_bytes: None,
            pressure_some_us: Some(stalled_us),
            oom_kills: Some(0),
            is_parked: true,
        };
        Survey {
            pressure_some_us: Some(stalled_us),
            pressure_full_us: Some(stalled_us / 2),
            pressure: Some(Averages { some_percent: 7.0, full_percent: 3.0 }),
            activity: Activity { major_faults: Some(faults), ..Activity::default() },
            tegrastats: Tegrastats::parse(
                "RAM 519/7607MB (lfb 61x4MB) CPU [10%@1728,20%@729,off] GR3D_FREQ 45%@[1018] \
                 tj@49.312C VDD_IN 5971mW/5900mW",
            ),
            nvmap: NvmapClient::parse("user trt\u{1b}exec 77 2048K\n"),
            attempts: vec![attempt],
            ..Survey::default()
        }
    }

    fn lines(view: &View<'_>) -> Vec<String> {
        view.lines().into_iter().filter(|line| !line.is_empty()).collect()
    }

    #[test]
    fn a_first_reading_tells_sums_and_averages() {
        let view = View {
            at_s: 86_400 + 3_661,
            survey: &survey(0, 9),
            change: None,
            family: None,
            stages: &[],
            top: 8,
        };
        let expect = [
            "Time      01:01:01 UTC",
            "Swap      none",
            "Waits     stalled 7.0 %, fully 3.0 %",
            "Faults    major 9",
            "GPU       45 % · 1018 MHz · largest free 61 x 4.0 MiB",
            "Board     2 cores at 15 %, 1 off · 6.0 W · 49.3 °C",
            "NvMap     2.0 MiB · trt?exec (77) 2.0 MiB",
            "Attempt                  Memory    Peak  Limit     Page cache  Stalled  Processes",
            "r.llm-engine.2 (parked)  3.00 GiB  -     4.00 GiB  -           -        3",
        ];
        assert_eq!(lines(&view), expect);
        assert!(view.as_json()["rates"].is_null());
    }

    #[test]
    fn later_ones_tell_what_happened_meanwhile() {
        let (before, now) = (survey(100_000, 9), survey(600_000, 49));
        let change = Change::between(&before, &now, Duration::from_secs(2));
        let stage = Stage {
            name: "llm-engine.2".to_owned(),
            done: Some(0.25),
            left: Some(Duration::from_secs(60)),
            words: "25 %, about 60 s left: packing".to_owned(),
        };
        let stages = &[stage];
        let view =
            View { at_s: 0, survey: &now, change: Some(&change), family: None, stages, top: 8 };
        let all = lines(&view).join("\n");
        assert!(all.contains("stalled 25.0 %, fully 12.5 %\nFaults    major 20/s"), "{all}");
        assert!(all.contains("25.0 %   3"), "{all}");
        assert!(all.contains("Stage     llm-engine.2 · 25 %, about 60 s left: packing"), "{all}");
        assert_eq!(view.as_json()["stages"][0]["left_s"], 60);
        let line = view.line();
        assert_eq!(
            line,
            "00:00:00  stalled 25.0 %  major faults 20/s  GPU 45 %  drawn 6.0 W  hottest 49.3 °C  llm-engine.2 25 %, about 60 s left: packing"
        );
        assert_eq!(view.as_json()["stalled_some_percent"], 25.0);
    }

    #[test]
    fn a_family_keeps_its_extremes() {
        let process = |rss_bytes, swap_bytes| Process {
            rss_bytes,
            swap_bytes,
            rss_peak_bytes: rss_bytes * 2,
            ..Process::default()
        };
        let (large, small) = (process(50 << 20, 0), process(3 << 20, 1 << 20));
        let mut family = WatchedProcesses::new("process 7".to_owned());
        family.take(&[&large, &small]);
        family.take(&[&small]);
        assert_eq!(
            family.end(Duration::from_secs(3)),
            "process 7 has ended after 3.0 s: peak RSS 100.0 MiB, of one process 100.0 MiB, in swap 1.0 MiB"
        );
        assert_eq!(family.as_json()["rss_bytes"], 3 << 20);
    }
}
