//! Checks what else runs: a desktop, and others that hold the GPU.

use std::collections::BTreeMap;

use smelt_watch::nvmap::NvmapClient;

use crate::finding::{Finding, Fix, Severity, size};
use crate::release::Board;
use crate::tree::Tree;

/// Programs that only a desktop starts.
const DESKTOP: [&str; 9] = [
    "Xorg",
    "Xwayland",
    "gdm3",
    "gnome-shell",
    "kwin_wayland",
    "lightdm",
    "plasmashell",
    "sddm",
    "weston",
];
/// Device files that only users of the GPU have open; of `/dev/nvidia…`, those with a number.
const GPU_DEVICES: [&str; 3] = ["/dev/nvgpu/", "/dev/nvhost-gpu", "/dev/nvhost-as-gpu"];
/// How much of the GPU's memory each process holds; for root alone.
const NVMAP: &str = "sys/kernel/debug/nvmap/iovmm/clients";
/// Where systemd finds what to start, the first that is there.
const TARGETS: [&str; 3] = [
    "etc/systemd/system/default.target",
    "usr/lib/systemd/system/default.target",
    "lib/systemd/system/default.target",
];
/// The kernel cuts names after 15 characters; a capture may not.
const NAME_CHARS_MAX: usize = 32;
/// Open files of one process that are looked at.
const FILES_MAX: usize = 4096;
/// Users of the GPU that are listed by name.
const LISTED_MAX: usize = 8;
/// Below this much memory a desktop matters.
const PLENTY_BYTES: u64 = 16 << 30;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pid: u32,
    name: String,
    /// Bytes of the GPU's memory, where that may be known.
    gpu_bytes: Option<u64>,
}

/// What runs and what is started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes {
    /// As `graphical.target`.
    target: Option<String>,
    desktop: Vec<String>,
    gpu_users: Vec<Process>,
    /// Processes whose open files we may not see.
    hidden: usize,
    has_gpu_driver: bool,
}

impl Processes {
    pub(crate) fn read(tree: &Tree) -> Self {
        let mut found = Self {
            target: TARGETS.iter().find_map(|path| target(tree, path)),
            has_gpu_driver: [
                "proc/driver/nvidia/version",
                "dev/nvgpu/igpu0",
                "sys/kernel/debug/nvmap",
            ]
            .iter()
            .any(|path| tree.exists(path)),
            ..Self::default()
        };
        let held = held(&tree.text(NVMAP).unwrap_or_default());
        let pids = tree.list("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
        for pid in pids.filter(|pid| !tree.is_live() || *pid != std::process::id()) {
            found.add(tree, pid, held.get(&pid).copied());
        }
        found
    }

    fn add(&mut self, tree: &Tree, pid: u32, gpu_bytes: Option<u64>) {
        let Some(name) = tree.line(&format!("proc/{pid}/comm")) else { return };
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        let is_desktop = DESKTOP.contains(&name.as_str());
        if is_desktop && !self.desktop.contains(&name) {
            self.desktop.push(name.clone());
        }
        let files = format!("proc/{pid}/fd");
        if tree.exists(&files) && !tree.may_list(&files) {
            self.hidden += 1;
        }
        if !is_desktop && (gpu_bytes.is_some() || uses_gpu(tree, &files)) {
            self.gpu_users.push(Process { pid, name, gpu_bytes });
        }
    }
}

/// The name of the target that a link leads to.
fn target(tree: &Tree, path: &str) -> Option<String> {
    let link = tree.link(path)?;
    Some(link.rsplit('/').next()?.to_owned())
}

fn uses_gpu(tree: &Tree, files: &str) -> bool {
    let names = tree.list(files).into_iter().take(FILES_MAX);
    names.filter_map(|name| tree.link(&format!("{files}/{name}"))).any(|file| {
        let numbered = file.strip_prefix("/dev/nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
        numbered || GPU_DEVICES.iter().any(|device| file.starts_with(device))
    })
}

/// Bytes of the GPU's memory by process.
fn held(text: &str) -> BTreeMap<u32, u64> {
    NvmapClient::parse(text).into_iter().map(|client| (client.pid, client.bytes)).collect()
}

/// `headless`: whether a desktop takes memory; `None` where memory is plenty.
pub(crate) fn headless(board: &Board, processes: &Processes) -> Option<Finding> {
    const ID: &str = "headless";
    if !board.is_jetson && board.memory_bytes.is_none_or(|bytes| bytes >= PLENTY_BYTES) {
        return None;
    }
    let target = processes.target.as_deref().unwrap_or("unknown");
    let seen = |finding: Finding| {
        let finding = finding.seen(format!("default.target: {target}"));
        match processes.desktop.as_slice() {
            [] => finding,
            names => finding.seen(format!("/proc/*/comm: {}", names.join(", "))),
        }
    };
    let why = "A desktop takes 0.8 GiB and more of the memory that CPU and GPU share, and its \
               programs hold buffers of the GPU.";
    let fix = || Fix::at_boot("sudo systemctl set-default multi-user.target");
    let starts = target == "graphical.target";
    Some(match (processes.desktop.is_empty(), starts) {
        (false, _) => seen(Finding::new(Severity::Warning, ID, "a desktop runs"))
            .because(why)
            .cured_by(if starts {
                fix()
            } else {
                Fix::now("sudo systemctl isolate multi-user.target").by_hand()
            }),
        (true, true) => seen(Finding::new(Severity::Note, ID, "the next boot starts a desktop"))
            .because(why)
            .cured_by(fix()),
        (true, false) => seen(Finding::new(Severity::Ok, ID, "no desktop runs")),
    })
}

/// `gpu-users`: who else holds the GPU; `None` where there is none to hold.
pub(crate) fn gpu_users(board: &Board, processes: &Processes) -> Option<Finding> {
    const ID: &str = "gpu-users";
    if !board.is_jetson && !processes.has_gpu_driver {
        return None;
    }
    let hidden = match processes.hidden {
        0 => String::new(),
        count => format!("; {count} processes can be looked into by root alone"),
    };
    let users = &processes.gpu_users;
    let [first, ..] = users.as_slice() else {
        return Some(Finding::new(
            Severity::Ok,
            ID,
            format!("nobody else is seen to use the GPU{hidden}"),
        ));
    };
    let total: u64 = users.iter().filter_map(|user| user.gpu_bytes).fold(0, u64::saturating_add);
    let count = users.len();
    let title = match (count, total) {
        (1, 0) => format!("{} uses the GPU{hidden}", first.name),
        (_, 0) => format!("{count} processes use the GPU{hidden}"),
        (_, total) => format!("others hold {} of the GPU's memory{hidden}", size(total)),
    };
    let finding = Finding::new(Severity::Warning, ID, title).because(
        "What they hold is missing to a build, cannot be swapped, and is given back only when they \
         end.",
    );
    let finding = users.iter().take(LISTED_MAX).fold(finding, |finding, user| {
        let bytes = user.gpu_bytes.map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
        finding.seen(format!("process {}: {}{bytes}", user.pid, user.name))
    });
    let pids: Vec<String> =
        users.iter().take(LISTED_MAX).map(|user| user.pid.to_string()).collect();
    Some(finding.cured_by(Fix::now(format!("sudo kill {}", pids.join(" "))).by_hand()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn jetson() -> Board {
        Board { is_jetson: true, ..Board::default() }
    }

    #[test]
    fn a_desktop_is_known_by_what_runs_and_what_starts() {
        use Severity::{Note, Ok, Warning};
        let check = |target: &str, desktop: &[&str], severity, can_apply: Option<bool>| {
            let processes = Processes {
                target: Some(target.to_owned()),
                desktop: desktop.iter().map(|&name| name.to_owned()).collect(),
                ..Processes::default()
            };
            let found = headless(&jetson(), &processes).unwrap();
            assert_eq!((found.severity, found.fix.map(|fix| fix.can_apply)), (severity, can_apply));
        };
        check("graphical.target", &["Xorg"], Warning, Some(true));
        // It would end the terminal that asks.
        check("multi-user.target", &["Xorg"], Warning, Some(false));
        check("graphical.target", &[], Note, Some(true));
        check("multi-user.target", &[], Ok, None);
        let server = Board { memory_bytes: Some(PLENTY_BYTES), ..Board::default() };
        assert_eq!(headless(&server, &Processes::default()), None);
        let small = Board { memory_bytes: Some(PLENTY_BYTES - 1), ..Board::default() };
        assert!(headless(&small, &Processes::default()).is_some());
    }

    #[test]
    fn users_of_the_gpu_have_its_devices_open() {
        let (_dir, tree) = tree(&[
            ("proc/10/comm", "python3\n"),
            ("proc/10/fd/3", "->/dev/nvgpu/igpu0/ctrl"),
            ("proc/11/comm", "Xorg\n"),
            ("proc/11/fd/3", "->/dev/nvgpu/igpu0/ctrl"),
            ("proc/12/comm", "bash\n"),
            ("proc/12/fd/0", "->/dev/null"),
            ("proc/13/comm", "old\n"),
            ("proc/13/fd/0", "->/dev/nvidia0"),
            ("proc/14/comm", "display\n"),
            ("proc/14/fd/0", "->/dev/nvidia-modeset"),
            ("proc/15/comm", "ollama\n"),
            (
                NVMAP,
                "CLIENT PROCESS PID SIZE\nuser ollama 15 2048K\nuser Xorg 11 9K\ntotal 2057K\n",
            ),
            ("etc/systemd/system/default.target", "->/lib/systemd/system/graphical.target"),
        ]);
        let found = Processes::read(&tree);
        let users: Vec<_> = found.gpu_users.iter().map(|user| (user.pid, user.gpu_bytes)).collect();
        assert_eq!(users, [(10, None), (13, None), (15, Some(2 << 20))]);
        assert_eq!(found.desktop, ["Xorg"]);
        assert_eq!(found.target.as_deref(), Some("graphical.target"));
        let finding = gpu_users(&jetson(), &found).unwrap();
        assert_eq!(finding.title, "others hold 2.0 MiB of the GPU's memory");
        assert_eq!(finding.fix.unwrap().command, "sudo kill 10 13 15");
    }

    #[test]
    fn without_a_gpu_nobody_is_asked() {
        assert_eq!(gpu_users(&Board::default(), &Processes::default()), None);
        let found = gpu_users(&jetson(), &Processes { hidden: 3, ..Processes::default() }).unwrap();
        assert_eq!(found.severity, Severity::Ok);
        assert!(found.title.ends_with("3 processes can be looked into by root alone"));
    }
}
