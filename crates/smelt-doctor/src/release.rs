//! Checks which board this is and which release of its system runs.
//!
//! `/etc/nv_tegra_release` begins `# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: …`, which
//! is Jetson Linux (L4T) 36.4.7.

use crate::finding::{Finding, Fix, Severity, size};
use crate::tree::Tree;

/// Releases whose fix for CVE-2025-33182 and CVE-2025-33177 limits what the GPU may allocate, by
/// NVIDIA's word (developer forum, thread 347862), and what came after them without that.
const LIMITED: [([u32; 3], &str); 3] =
    [([36, 4, 7], "36.5 (JetPack 6.2.2)"), ([35, 6, 3], "35.6.4"), ([38, 2, 2], "a later 38")];
/// The file that says where packages of Jetson Linux 36 come from.
const SOURCES: &str = "/etc/apt/sources.list.d/nvidia-l4t-apt-source.list";

/// What the board is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board {
    /// The board's name, or that of its processor.
    pub(crate) name: Option<String>,
    pub(crate) is_jetson: bool,
    pub(crate) memory_bytes: Option<u64>,
    /// The first line of `nv_tegra_release`.
    pub(crate) release_line: Option<String>,
    /// The kernel that runs, as `5.15.148-tegra`.
    pub(crate) kernel: Option<String>,
}

impl Board {
    pub(crate) fn read(tree: &Tree, memory_bytes: Option<u64>) -> Self {
        let release_line = tree.line("etc/nv_tegra_release");
        let compatible = tree.text("proc/device-tree/compatible").unwrap_or_default();
        Self {
            name: tree.line("proc/device-tree/model").or_else(|| processor(tree)),
            // A container on a Jetson has the device tree and not the file.
            is_jetson: release_line.is_some() || compatible.contains("nvidia,tegra"),
            memory_bytes,
            release_line,
            kernel: tree.line("proc/sys/kernel/osrelease"),
        }
    }

    /// The release as `[36, 4, 7]`.
    pub(crate) fn release(&self) -> Option<[u32; 3]> {
        parse_release(self.release_line.as_deref()?)
    }

    /// What a person would call it.
    pub(crate) fn words(&self) -> String {
        let name = self.name.as_deref().unwrap_or("an unknown machine");
        match self.memory_bytes {
            Some(bytes) => format!("{name}, {} of memory", size(bytes)),
            None => name.to_owned(),
        }
    }
}

fn processor(tree: &Tree) -> Option<String> {
    let text = tree.text("proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// How many processors the kernel lists: `0-5` of those that may come, or a paragraph each.
pub(crate) fn cores(tree: &Tree) -> Option<usize> {
    let listed = || {
        let text = tree.text("proc/cpuinfo")?;
        let count = text.lines().filter(|line| line.starts_with("processor")).count();
        (count > 0).then_some(count)
    };
    let present = || {
        let range = tree.line("sys/devices/system/cpu/present")?;
        let last: usize = range.rsplit('-').next()?.parse().ok()?;
        last.checked_add(1)
    };
    listed().or_else(present)
}

fn parse_release(line: &str) -> Option<[u32; 3]> {
    let (major, rest) = line.strip_prefix("# R")?.split_once(' ')?;
    let revision = rest.split_once("REVISION:")?.1.split(',').next()?.trim();
    let (minor, patch) = revision.split_once('.').unwrap_or((revision, "0"));
    Some([major.parse().ok()?, minor.parse().ok()?, patch.parse().ok()?])
}

/// `board`: what this is.
pub(crate) fn board(board: &Board) -> Finding {
    let kind = if board.is_jetson { "a Jetson" } else { "not a Jetson" };
    Finding::new(Severity::Ok, "board", format!("{kind}: {}", board.words()))
}

/// `l4t-release`: whether the system is one that is known to refuse memory.
pub(crate) fn l4t(board: &Board) -> Finding {
    const ID: &str = "l4t-release";
    let Some(release @ [major, minor, patch]) = board.release() else {
        return Finding::new(Severity::Note, ID, "the release of Jetson Linux is not known")
            .seen("/etc/nv_tegra_release is missing or has no release on its first line")
            .because("In a container that is usual; on the board itself the packages of Jetson Linux are damaged.");
    };
    let name = format!("{major}.{minor}.{patch}");
    let line = board.release_line.as_deref().unwrap_or_default();
    let evidence = format!("/etc/nv_tegra_release: {line}");
    let Some((_, cured)) = LIMITED.iter().find(|(limited, _)| *limited == release) else {
        return Finding::new(Severity::Ok, ID, format!("Jetson Linux {name}")).seen(evidence);
    };
    let fix = (major == 36).then(upgrade);
    Finding::new(Severity::Problem, ID, format!("Jetson Linux {name} refuses memory that is free"))
        .seen(evidence)
        .because(format!(
            "Its fix for CVE-2025-33182 keeps the GPU's allocations out of the path that would \
             make room for them, so engine builds and models end with NvMap \"error 12\" beside \
             free memory. {cured} is without that limit."
        ))
        .cured_by(fix)
}

/// An upgrade replaces boot loader and kernel: nobody wants it as a side effect.
fn upgrade() -> Fix {
    Fix::at_boot(format!(
        "sudo sed -i 's/r36\\.4/r36.5/' {SOURCES} && sudo apt update && sudo apt dist-upgrade"
    ))
    .by_hand()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn of(line: &str) -> Board {
        Board { is_jetson: true, release_line: Some(line.to_owned()), ..Board::default() }
    }

    #[track_caller]
    fn check(line: &str, release: Option<[u32; 3]>, severity: Severity) {
        let board = of(line);
        assert_eq!(board.release(), release);
        assert_eq!(l4t(&board).severity, severity, "{line}");
    }

    #[test]
    fn releases_with_the_limit_are_problems() {
        use Severity::{Note, Ok, Problem};
        check("# R36 (release), REVISION: 4.7, GCID: 1", Some([36, 4, 7]), Problem);
        check("# R35 (release), REVISION: 6.3, GCID: 1", Some([35, 6, 3]), Problem);
        check("# R36 (release), REVISION: 4.4, GCID: 1", Some([36, 4, 4]), Ok);
        check("# R36 (release), REVISION: 5.0, GCID: 1", Some([36, 5, 0]), Ok);
        check("# R39 (release), REVISION: 2.1", Some([39, 2, 1]), Ok);
        check("# R36 (release), REVISION: x", None, Note);
        check("", None, Note);
    }

    #[test]
    fn only_release_36_has_an_upgrade_by_package() {
        let fix = l4t(&of("# R36 (release), REVISION: 4.7,")).fix.unwrap();
        assert!(fix.needs_reboot && !fix.can_apply && fix.command.contains("r36.5"));
        assert_eq!(l4t(&of("# R38 (release), REVISION: 2.2,")).fix, None);
    }

    #[test]
    fn a_container_on_a_jetson_is_known_by_its_device_tree() {
        let files = [
            ("proc/device-tree/compatible", "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0"),
            ("proc/device-tree/model", "NVIDIA Jetson Orin Nano\0"),
        ];
        let board = Board::read(&tree(&files).1, Some(8 << 30));
        assert!(board.is_jetson);
        assert_eq!(board.words(), "NVIDIA Jetson Orin Nano, 8.0 GiB of memory");
        let server = [("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7B13\n")];
        let board = Board::read(&tree(&server).1, None);
        assert_eq!((board.is_jetson, board.words().as_str()), (false, "AMD EPYC 7B13"));
    }
}
