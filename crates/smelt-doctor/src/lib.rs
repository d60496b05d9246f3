//! Examines: a device's files to [`Facts`], facts to [`Finding`]s.
//!
//! Reading is thin and takes any root, so that a captured tree of files reproduces a board;
//! judging is pure, one function for each check, beside the facts it needs.  Nothing is changed and
//! no program is started: a finding says which command would cure it, and others run that.  Knows
//! nothing of pipelines and stores.

#![forbid(unsafe_code)]

mod accounting;
mod conditions;
mod confinement;
mod disk;
mod finding;
mod gpu;
mod heat;
mod measure;
mod memory;
mod packages;
mod power;
mod processes;
mod release;
mod tree;

use std::path::Path;

use accounting::Accounting;
pub use conditions::Conditions;
use disk::Disks;
pub use finding::{Finding, Fix, Severity};
pub use gpu::{Gpu, Gpus};
pub use measure::Measured;
use memory::Memory;
use packages::Packages;
use power::Power;
use processes::Processes;
use release::Board;
use smelt_watch::Machine;
use tree::Tree;

/// The version of TensorRT that is installed on the device whose file system is at `root`, as its
/// package says it.
pub fn tensorrt(root: &Path) -> Option<String> {
    Packages::read(&Tree::at(root)).tensorrt().map(|(version, _)| version)
}

/// The power mode of the Jetson whose file system is at `root`, by its name.
pub fn power_mode(root: &Path) -> Option<String> {
    Power::read(&Tree::at(root)).mode_name().map(str::to_owned)
}

/// What a person would say of a device first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The board's name, or that of its processor.
    pub name: Option<String>,
    /// Bytes of memory that its kernel hands out.
    pub memory_bytes: Option<u64>,
    /// Bytes of swap.
    pub swap_bytes: Option<u64>,
    /// Processors, as far as its files list them.
    pub cores: Option<usize>,
}

impl Outline {
    /// Of the device whose file system is at `root`: this one, or a captured tree.
    pub fn of(root: &Path) -> Self {
        let tree = Tree::at(root);
        let machine = Machine::parse(&tree.text("proc/meminfo").unwrap_or_default());
        Self {
            name: Board::read(&tree, machine.mem_total_bytes).name,
            memory_bytes: machine.mem_total_bytes,
            swap_bytes: machine.swap_total_bytes,
            cores: release::cores(&tree),
        }
    }
}

/// What is true of a device.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    board: Board,
    packages: Packages,
    memory: Memory,
    processes: Processes,
    power: Power,
    zones: Vec<heat::Zone>,
    accounting: Accounting,
    disks: Disks,
    measured: Measured,
}

impl Facts {
    /// Reads the device we run on; `store` is the folder of the store, whose disk is measured.
    /// `confined_by` is the way in which stages are confined here, or `none`, and `unheld` what it leaves to them, in words:
    /// whoever starts them knows.
    pub fn of_this_device(store: &Path, confined_by: &str, unheld: &[&str]) -> Self {
        // A store that is not there yet is made in the nearest folder that is; a link leads to
        // another disk.
        let folder = store.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let mut facts = Self::read(&Tree::at(Path::new("/")), &folder);
        let confined_by = Some(confined_by.to_owned());
        let unheld = unheld.iter().map(|what| (*what).to_owned()).collect();
        facts.measured = Measured { confined_by, unheld, ..Measured::measure(&folder) };
        facts
    }

    /// Reads a tree that was captured on a device, whose store is taken to be on its root's disk.
    pub fn of_captured(root: &Path) -> Self {
        let tree = Tree::at(root);
        let mut facts = Self::read(&tree, Path::new("/"));
        facts.measured = Measured::captured(&tree);
        facts
    }

    fn read(tree: &Tree, store: &Path) -> Self {
        let disks = Disks::read(tree, store);
        let memory = Memory::read(tree, &disks);
        Self {
            board: Board::read(tree, memory.machine.mem_total_bytes),
            packages: Packages::read(tree),
            memory,
            processes: Processes::read(tree),
            power: Power::read(tree),
            zones: heat::read(tree),
            accounting: Accounting::read(tree),
            disks,
            measured: Measured::default(),
        }
    }

    /// The same with what is known of GPUs, which their driver alone tells.
    #[must_use]
    pub fn with_gpus(mut self, gpus: Gpus) -> Self {
        self.measured.gpus = gpus;
        self
    }

    /// What was measured.
    pub fn measured(&self) -> &Measured {
        &self.measured
    }
}

/// Judges every fact, the gravest finding first.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let Facts { board, packages, memory, disks, measured, .. } = facts;
    let jetson = || [release::l4t(board)].into_iter().filter(|_| board.is_jetson);
    let mut findings: Vec<Finding> = [release::board(board)]
        .into_iter()
        .chain(jetson())
        .chain(packages::kernel(board, packages))
        .chain(packages::check(board, packages))
        .chain([memory::swap(board, memory, disks)])
        .chain(memory::zram(memory))
        .chain(memory::swap_medium(memory))
        .chain(memory::cma(board, memory))
        .chain(processes::headless(board, &facts.processes))
        .chain(processes::gpu_users(board, &facts.processes))
        .chain(gpu::check(&measured.gpus))
        .chain(power::mode(&facts.power))
        .chain(power::clocks(&facts.power))
        .chain(power::supply(&facts.power))
        .chain(heat::thermal(&facts.zones))
        .chain([accounting::cgroup(&facts.accounting)])
        .chain([accounting::pressure(board, &facts.accounting)])
        .chain(confinement::check(measured))
        .chain([disk::kind(board, disks)])
        .chain(disk::space(measured))
        .chain(disk::speed(measured))
        .chain(disk::honesty(disks, measured))
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn nothing_at_all_is_judged_without_a_word_of_jetsons() {
        let findings = judge(&Facts::of_captured(Path::new("/nowhere/at/all")));
        let ids: Vec<_> = findings.iter().map(|finding| finding.id).collect();
        assert_eq!(ids, ["swap", "cgroup", "pressure", "disk", "board"]);
    }

    #[test]
    fn every_file_may_be_missing() {
        let whole = [
            ("etc/nv_tegra_release", "# R36 (release), REVISION: 4.7, GCID: 1\n"),
            ("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=15W >\n"),
            ("var/lib/nvpmodel/status", "pmode:0000\n"),
            ("proc/meminfo", "MemTotal: 7800000 kB\nCmaTotal: 262144 kB\n"),
            ("proc/swaps", "Filename\n/dev/zram0 partition 3900000 0 5\n"),
            ("proc/self/mountinfo", "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n"),
        ];
        for left_out in 0..whole.len() {
            let mut files = whole.to_vec();
            files.remove(left_out);
            let (dir, _) = tree(&files);
            assert!(judge(&Facts::of_captured(dir.path())).len() >= 5);
        }
    }

    #[test]
    fn hostile_files_are_bounded_and_harmless() {
        let long = "x".repeat(1 << 20);
        let numbers = "9".repeat(4096) + "\n";
        for text in
            [long.as_str(), &numbers, "\0\0\0", "\u{1b}]0;title\u{7}\n\n : = \n", "-1\n", ""]
        {
            let (dir, _) = tree(&[
                ("etc/nv_tegra_release", text),
                ("etc/nvpmodel.conf", text),
                ("var/lib/nvpmodel/status", text),
                ("var/lib/dpkg/status", text),
                ("proc/meminfo", text),
                ("proc/vmstat", text),
                ("proc/swaps", text),
                ("proc/cmdline", text),
                ("proc/self/mountinfo", text),
                ("proc/device-tree/model", text),
                ("proc/1/comm", text),
                ("proc/4294967296/comm", text),
                ("sys/class/thermal/thermal_zone0/temp", text),
                ("measured.json", text),
            ]);
            for finding in judge(&Facts::of_captured(dir.path())) {
                let lines = finding.evidence.iter().chain([&finding.title]);
                assert!(lines.into_iter().all(|l| l.len() < 1000 && !l.contains(char::is_control)));
            }
        }
    }

    #[test]
    fn a_device_is_outlined_by_what_its_files_say() {
        let (dir, _) = tree(&[
            ("proc/meminfo", "MemTotal: 7800000 kB\nSwapTotal: 1000 kB\n"),
            ("proc/device-tree/model", "A Board\0"),
            ("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 62\n\nprocessor\t: 1\n"),
        ]);
        let expect = Outline {
            name: Some("A Board".to_owned()),
            memory_bytes: Some(7_800_000 << 10),
            swap_bytes: Some(1000 << 10),
            cores: Some(2),
        };
        assert_eq!(Outline::of(dir.path()), expect);
        let (dir, _) = tree(&[("sys/devices/system/cpu/present", "0-5\n")]);
        assert_eq!(Outline::of(dir.path()).cores, Some(6));
        let (dir, _) = tree(&[("sys/devices/system/cpu/present", "9-x\n")]);
        let nothing = Outline { name: None, memory_bytes: None, swap_bytes: None, cores: None };
        assert_eq!(Outline::of(dir.path()), nothing);
    }

    #[test]
    fn this_device_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let facts = Facts::of_this_device(&dir.path().join("not/yet"), "landlock", &[]);
        assert!(facts.board.memory_bytes.is_some_and(|bytes| bytes > 0));
        assert!(!facts.disks.mounts.is_empty() && facts.measured().free_bytes.is_some());
        assert!(judge(&facts).iter().any(|finding| finding.id == "disk-space"));
    }
}
