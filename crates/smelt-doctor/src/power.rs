//! Checks how fast a Jetson may run: its power mode, its clocks, and whether its supply holds.
//!
//! `/etc/nvpmodel.conf` names the modes (`< POWER_MODEL ID=2 NAME=MAXN_SUPER >`) and which of them
//! a board starts with (`< PM_CONFIG DEFAULT=1 >`); `/var/lib/nvpmodel/status` says which was chosen
//! (`pmode:0002`).

use crate::finding::{Finding, Fix, Severity};
use crate::tree::Tree;

/// Mode files name four to ten modes.
const MODES_MAX: usize = 64;
/// Folders of the GPU's clock by release: Jetson Linux 36 and later, 35.
const GPU_CLOCKS: [&str; 2] =
    ["sys/class/devfreq/17000000.gpu", "sys/class/devfreq/17000000.ga10b"];
/// The supply's alarms, in the folder of the monitor `soctherm_oc`: under-voltage, and average and
/// instantaneous over-current.
const ALARMS: [(&str, &str); 3] = [
    ("oc1_event_cnt", "under-voltage"),
    ("oc2_event_cnt", "average"),
    ("oc3_event_cnt", "instant"),
];

/// A mode that may be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mode {
    id: u32,
    name: String,
}

/// Modes, clocks and alarms.
#[derive(Debug, Clone, Default)]
pub(crate) struct Power {
    modes: Vec<Mode>,
    /// The mode's number, and the file that says so.
    chosen: Option<(u32, &'static str)>,
    gpu: Option<Clock>,
    /// Counts since the boot, in the order of `ALARMS`.
    alarms: Option<[u64; 3]>,
}

/// The bounds of a clock, in Hz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    least: u64,
    most: u64,
}

impl Power {
    pub(crate) fn read(tree: &Tree) -> Self {
        let conf = tree.text("etc/nvpmodel.conf").unwrap_or_default();
        let status = tree.text("var/lib/nvpmodel/status").unwrap_or_default();
        let chosen = chosen(&status).map(|id| (id, "/var/lib/nvpmodel/status"));
        let default = || Some((default(&conf)?, "the default of /etc/nvpmodel.conf"));
        Self {
            modes: modes(&conf),
            chosen: chosen.or_else(default),
            gpu: GPU_CLOCKS.iter().find_map(|folder| clock(tree, folder)),
            alarms: alarms(tree),
        }
    }
}

impl Power {
    /// The name of the chosen mode.
    pub(crate) fn mode_name(&self) -> Option<&str> {
        let (id, _) = self.chosen?;
        self.modes.iter().find(|mode| mode.id == id).map(|mode| &mode.name[..])
    }

    /// The bounds of the GPU's clock, in MHz.
    pub(crate) fn gpu_mhz(&self) -> Option<[u64; 2]> {
        self.gpu.map(|clock| [clock.least, clock.most].map(|hertz| hertz / 1_000_000))
    }
}

fn modes(conf: &str) -> Vec<Mode> {
    let mode = |line: &str| {
        let rest = line.strip_prefix("< POWER_MODEL ")?;
        let word = |key: &str| rest.split_whitespace().find_map(|word| word.strip_prefix(key));
        Some(Mode { id: word("ID=")?.parse().ok()?, name: word("NAME=")?.to_owned() })
    };
    conf.lines().filter_map(mode).take(MODES_MAX).collect()
}

fn default(conf: &str) -> Option<u32> {
    let rest = conf.lines().find_map(|line| line.strip_prefix("< PM_CONFIG DEFAULT="))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn chosen(status: &str) -> Option<u32> {
    status.split_whitespace().find_map(|word| word.strip_prefix("pmode:"))?.parse().ok()
}

fn clock(tree: &Tree, folder: &str) -> Option<Clock> {
    let hertz = |name| tree.number(&format!("{folder}/{name}"));
    Some(Clock { least: hertz("min_freq")?, most: hertz("max_freq")? })
}

fn alarms(tree: &Tree) -> Option<[u64; 3]> {
    let folders =
        tree.list("sys/class/hwmon").into_iter().map(|name| format!("sys/class/hwmon/{name}"));
    let is_it =
        |folder: &String| tree.line(&format!("{folder}/name")).as_deref() == Some("soctherm_oc");
    let folder = folders.into_iter().find(is_it)?;
    Some(ALARMS.map(|(name, _)| tree.number(&format!("{folder}/{name}")).unwrap_or(0)))
}

/// How much a mode allows, by its name: without a cap, else by its watts.
fn rank(mode: &Mode) -> u32 {
    let name = mode.name.as_str();
    match name {
        "MAXN_SUPER" => u32::MAX,
        "MAXN" => u32::MAX - 1,
        _ => {
            let watts = name.split('_').find_map(|part| part.strip_suffix('W')?.parse().ok());
            watts.unwrap_or(0)
        }
    }
}

/// `power-mode`: whether the board may run as fast as it can; `None` where modes are not known.
pub(crate) fn mode(power: &Power) -> Option<Finding> {
    const ID: &str = "power-mode";
    let (id, source) = power.chosen?;
    let current = power.modes.iter().find(|mode| mode.id == id)?;
    let best = power.modes.iter().max_by_key(|mode| rank(mode))?;
    let seen = |finding: Finding| {
        let names: Vec<String> =
            power.modes.iter().map(|mode| format!("{}={}", mode.id, mode.name)).collect();
        finding
            .seen(format!("{source}: mode {id}"))
            .seen(format!("/etc/nvpmodel.conf: {}", names.join(", ")))
    };
    if rank(current) >= rank(best) {
        return Some(seen(Finding::new(Severity::Ok, ID, format!("power mode {}", current.name))));
    }
    let title = format!("power mode {}, and the board has {}", current.name, best.name);
    Some(
        seen(Finding::new(Severity::Warning, ID, title))
            .because(
                "Builds and answers take up to twice as long in a capped mode. The faster one needs \
                 a supply and a fan that hold: if the board resets under load, go back.",
            )
            .cured_by(Fix::now(format!("sudo nvpmodel -m {}", best.id))),
    )
}

/// `clocks`: whether times can be compared.
pub(crate) fn clocks(power: &Power) -> Option<Finding> {
    const ID: &str = "clocks";
    let clock = power.gpu?;
    let [least, most] = power.gpu_mhz()?;
    let seen = format!("GPU, min_freq to max_freq: {least} to {most} MHz");
    if clock.least >= clock.most {
        let title = format!("the GPU's clock is held at {most} MHz");
        return Some(Finding::new(Severity::Ok, ID, title).seen(seen));
    }
    Some(
        Finding::new(Severity::Note, ID, "clocks follow the load")
            .seen(seen)
            .because(
                "Short kernels are over before clocks have risen, so what tuners and benchmarks \
                 measure varies from run to run. This lasts until the next boot.",
            )
            .cured_by(Fix::now("sudo jetson_clocks")),
    )
}

/// `supply`: whether the board slowed down for want of current.
pub(crate) fn supply(power: &Power) -> Option<Finding> {
    const ID: &str = "supply";
    let counts = power.alarms?;
    let [low, average, instant] = counts;
    let words: Vec<String> =
        ALARMS.iter().zip(counts).map(|((_, name), count)| format!("{name} {count}")).collect();
    let seen = format!("soctherm_oc, events since the boot: {}", words.join(", "));
    let (severity, title, why) = match (low, average, instant) {
        (0, 0, 0) => (Severity::Ok, "the supply holds", ""),
        // The comparator of peaks fires in passing; NVIDIA calls that expected without a cap.
        (0, 0, _) => (
            Severity::Note,
            "the clocks were throttled for peaks of current",
            "In modes without a cap that is expected under load; a capped mode avoids it.",
        ),
        _ => (
            Severity::Warning,
            "the supply is too weak for the power mode",
            "Boards whose voltage sags reset in the middle of a build. Use the supply that came \
             with the board, a shorter cable, or a lower power mode.",
        ),
    };
    Some(Finding::new(severity, ID, title).seen(seen).because(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const CONF: &str = "# < POWER_MODEL ID=9 NAME=COMMENT >\n< POWER_MODEL ID=0 NAME=15W >\n\
        CPU_ONLINE CORE_0 1\n< POWER_MODEL ID=1 NAME=25W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n\
        < POWER_MODEL ID=3 NAME=7W >\n< PM_CONFIG DEFAULT=1 >\n";

    fn power(conf: &str, status: &str) -> Power {
        let files = [("etc/nvpmodel.conf", conf), ("var/lib/nvpmodel/status", status)];
        Power::read(&tree(&files).1)
    }

    #[track_caller]
    fn check(conf: &str, status: &str, expect: Option<(Severity, Option<&str>)>) {
        let found = mode(&power(conf, status));
        let found = found.map(|found| (found.severity, found.fix.map(|fix| fix.command)));
        assert_eq!(found, expect.map(|(severity, fix)| (severity, fix.map(str::to_owned))));
    }

    #[test]
    fn the_fastest_mode_is_not_that_of_the_highest_number() {
        let slow = Some((Severity::Warning, Some("sudo nvpmodel -m 2")));
        check(CONF, "pmode:0000", slow);
        check(CONF, "pmode:0003 fmode:quiet\n", slow);
        check(CONF, "pmode:0002 fmode:quiet\n", Some((Severity::Ok, None)));
        // Nothing was chosen yet.
        check(CONF, "", slow);
        let agx = "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=MODE_15W >\n\
                   < POWER_MODEL ID=3 NAME=MODE_50W >\n";
        check(agx, "pmode:0003", Some((Severity::Warning, Some("sudo nvpmodel -m 0"))));
        check(agx, "pmode:0000", Some((Severity::Ok, None)));
        let plain = "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=1 NAME=7W >\n";
        check(plain, "pmode:0000", Some((Severity::Ok, None)));
        check(plain, "pmode:0009", None);
        check("", "pmode:0000", None);
    }

    #[test]
    fn clocks_that_are_held_have_one_bound() {
        let check = |least: &str, most: &str| {
            let folder = GPU_CLOCKS[0];
            let files =
                [(&*format!("{folder}/min_freq"), least), (&*format!("{folder}/max_freq"), most)];
            clocks(&Power::read(&tree(&files).1)).map(|finding| finding.severity)
        };
        assert_eq!(check("306000000\n", "1020000000\n"), Some(Severity::Note));
        assert_eq!(check("1020000000\n", "1020000000\n"), Some(Severity::Ok));
        assert_eq!(check("x\n", "1020000000\n"), None);
    }

    #[test]
    fn peaks_are_noted_and_a_weak_supply_warned_of() {
        let check =
            |alarms| supply(&Power { alarms, ..Power::default() }).map(|finding| finding.severity);
        assert_eq!(check(Some([0, 0, 0])), Some(Severity::Ok));
        assert_eq!(check(Some([0, 0, 7])), Some(Severity::Note));
        assert_eq!(check(Some([0, 1, 7])), Some(Severity::Warning));
        assert_eq!(check(Some([1, 0, 0])), Some(Severity::Warning));
        assert_eq!(check(None), None);
        let files = [
            ("sys/class/hwmon/hwmon0/name", "ina3221\n"),
            ("sys/class/hwmon/hwmon2/name", "soctherm_oc\n"),
            ("sys/class/hwmon/hwmon2/oc3_event_cnt", "15\n"),
        ];
        assert_eq!(Power::read(&tree(&files).1).alarms, Some([0, 0, 15]));
    }
}
