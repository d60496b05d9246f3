//! Says under which conditions something is measured on a device, so that figures of another day can be compared.

use std::path::Path;

use serde::Serialize;

use crate::power::Power;
use crate::release::Board;
use crate::tree::Tree;

/// Where the kernel says how fast the first processor may run, in kHz.
const CPU_CLOCK: &str = "sys/devices/system/cpu/cpu0/cpufreq";

/// What decides how fast a device is; what it does not say is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// The board's name, or that of its processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// The release of Jetson Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The kernel that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Processors.
    pub cores: usize,
    /// The power mode of a Jetson, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_mode: Option<String>,
    /// What chooses the processors' clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// The bounds of the processors' clock, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_mhz: Option<[u64; 2]>,
    /// The bounds of the GPU's clock, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_mhz: Option<[u64; 2]>,
}

impl Conditions {
    /// Of the device whose file system is at `root`.
    pub fn read(root: &Path) -> Self {
        let tree = &Tree::at(root);
        let power = Power::read(tree);
        let Board { name, release_line, kernel, .. } = Board::read(tree, None);
        let khz = |name| tree.number::<u64>(&format!("{CPU_CLOCK}/{name}"));
        let bounds = khz("scaling_min_freq").zip(khz("scaling_max_freq"));
        Self {
            board: name,
            release: release_line,
            kernel,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            power_mode: power.mode_name().map(str::to_owned),
            governor: tree.line(&format!("{CPU_CLOCK}/scaling_governor")),
            cpu_mhz: bounds.map(|(least, most)| [least / 1000, most / 1000]),
            gpu_mhz: power.gpu_mhz(),
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let Self { board, kernel, cores, power_mode, governor, cpu_mhz, gpu_mhz, .. } = self;
        let clock = |what: &str, [least, most]: [u64; 2]| format!("{what} {least} to {most} MHz");
        let told = [
            board.clone(),
            Some(format!("{cores} cores")),
            kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
            power_mode.as_ref().map(|mode| format!("power mode {mode}")),
            governor.as_ref().map(|governor| format!("governor {governor}")),
            cpu_mhz.map(|bounds| clock("processor", bounds)),
            gpu_mhz.map(|bounds| clock("GPU", bounds)),
        ];
        told.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_board_says_its_mode_and_clocks_and_another_machine_what_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Conditions::read(dir.path()).line(), format!("{} cores", cores()));
        for (path, text) in [
            ("proc/device-tree/model", "NVIDIA Jetson Orin Nano\0"),
            ("etc/nvpmodel.conf", "< POWER_MODEL ID=1 NAME=25W >\n"),
            ("var/lib/nvpmodel/status", "pmode:0001\n"),
            ("sys/class/devfreq/17000000.gpu/min_freq", "306000000\n"),
            ("sys/class/devfreq/17000000.gpu/max_freq", "918000000\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq", "729600\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "1344000\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let line = Conditions::read(dir.path()).line();
        assert!(line.starts_with("NVIDIA Jetson Orin Nano, "), "{line}");
        let clocks =
            "power mode 25W, governor schedutil, processor 729 to 1344 MHz, GPU 306 to 918 MHz";
        assert!(line.ends_with(clocks), "{line}");
    }

    fn cores() -> usize {
        std::thread::available_parallelism().unwrap().get()
    }
}
