//! Checks what a build can fall back on when memory ends: swap, and the contiguous area.

use smelt_watch::machine::Machine;

use crate::disk::{Disks, Medium};
use crate::finding::{Finding, Fix, Severity, size};
use crate::release::Board;
use crate::tree::Tree;

const GIB: u64 = 1 << 30;
/// With this much memory no model that smelt builds needs swap.
const PLENTY_BYTES: u64 = 32 * GIB;
/// Boards of 8 GB and less cannot build the models they can run without swap on a disk.
const SMALL_BYTES: u64 = 12 * GIB;
/// As much again as boards of 8 GB have: exporters and engine builders hold nearly all of that.
const SWAP_LEAST_BYTES: u64 = 8 * GIB;
/// Above zram's, which is 5 on Jetsons: a full zram is memory lost to what runs.
const SWAP_PRIORITY: u32 = 10;
/// A swap file must leave this much of its disk.
const DISK_LEAVE_BYTES: u64 = 4 * GIB;
/// What Jetsons have without `cma=` on the kernel's command line.
const CMA_DEFAULT_BYTES: u64 = 256 << 20;
/// The most that could be reserved on an Orin Nano, where low memory is two windows of 992 MiB.
const CMA_MOST: &str = "cma=950M";

/// Memory, swap and the contiguous area.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    pub(crate) machine: Machine,
    pub(crate) swaps: Vec<Swap>,
    /// What the kernel's command line asks for, as `cma=950M`.
    pub(crate) cma_asked: Option<String>,
    /// Contiguous allocations that were refused since the boot.
    pub(crate) cma_refused: Option<u64>,
}

/// A device or file that is swapped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Swap {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) priority: i64,
    pub(crate) medium: Option<Medium>,
}

impl Swap {
    fn is_zram(&self) -> bool {
        self.name.starts_with("/dev/zram")
    }
}

impl Memory {
    pub(crate) fn read(tree: &Tree, disks: &Disks) -> Self {
        let text = |path| tree.text(path).unwrap_or_default();
        let mut swaps = swaps(&text("proc/swaps"));
        for swap in &mut swaps {
            swap.medium = disks.medium_of_swap(tree, &swap.name);
        }
        let counters = smelt_watch::Counters::parse(&text("proc/vmstat"), "");
        Self {
            machine: Machine::parse(&text("proc/meminfo")),
            swaps,
            cma_asked: asked(&text("proc/cmdline")),
            cma_refused: counters.cma_alloc_fails,
        }
    }

    /// Bytes of swap in memory itself, and on disks.
    fn swap_bytes(&self) -> [u64; 2] {
        [true, false].map(|zram| {
            let of_kind = self.swaps.iter().filter(|swap| swap.is_zram() == zram);
            of_kind.fold(0_u64, |sum, swap| sum.saturating_add(swap.size_bytes))
        })
    }
}

fn swaps(text: &str) -> Vec<Swap> {
    let swap = |swap: smelt_watch::swaps::Swap| Swap {
        name: swap.name,
        size_bytes: swap.size_bytes,
        priority: swap.priority,
        medium: None,
    };
    smelt_watch::swaps::Swap::parse(text).into_iter().map(swap).collect()
}

/// The last `cma=` counts, as for the kernel.
fn asked(cmdline: &str) -> Option<String> {
    cmdline.split_ascii_whitespace().rfind(|word| word.starts_with("cma=")).map(str::to_owned)
}

/// `swap`: whether there is enough, on a disk.
pub(crate) fn swap(board: &Board, memory: &Memory, disks: &Disks) -> Finding {
    const ID: &str = "swap";
    let total = memory.machine.mem_total_bytes.unwrap_or(0);
    let [zram, disk] = memory.swap_bytes();
    let is_small = board.is_jetson && (1..SMALL_BYTES).contains(&total);
    let missing = if is_small { Severity::Problem } else { Severity::Warning };
    let add = || add_swap(disks);
    let finding = match (disk, zram) {
        _ if total >= PLENTY_BYTES => {
            Finding::new(Severity::Ok, ID, format!("{} of memory need no swap", size(total)))
        }
        (0, 0) => Finding::new(missing, ID, "there is no swap")
            .because(
                "A build whose peak is above what is free is killed at once, without the pressure \
                 by which smelt could park or stop it before.",
            )
            .cured_by(add()),
        (0, zram) => Finding::new(missing, ID, format!("swap is {} of zram alone", size(zram)))
            .because(
                "zram keeps swapped pages, compressed, in the memory that is running out, and the \
                 GPU's pages cannot be swapped at all. Exporters and engine builders were seen to \
                 hold 5 to 6.6 GiB of a board's 7.4, beside all else: that needs swap on a disk.",
            )
            .cured_by(add()),
        (disk, _) if disk < total.min(SWAP_LEAST_BYTES) => Finding::new(
            Severity::Warning,
            ID,
            format!("{} of swap on a disk is little for {} of memory", size(disk), size(total)),
        )
        .because("Exporters and engine builders were seen to hold 5 to 6.6 GiB of a board's 7.4.")
        .cured_by(add()),
        (disk, _) => Finding::new(Severity::Ok, ID, format!("{} of swap on a disk", size(disk))),
    };
    let finding = match zram {
        0 => finding,
        bytes => finding.seen(format!("/proc/swaps: zram of {}", size(bytes))),
    };
    memory.swaps.iter().filter(|swap| !swap.is_zram()).fold(finding, |finding, swap| {
        let (name, bytes, priority) = (&swap.name, size(swap.size_bytes), swap.priority);
        finding.seen(format!("/proc/swaps: {name} of {bytes}, priority {priority}"))
    })
}

/// `zram`: whether it goes before swap on a disk; `None` where there are not both.
pub(crate) fn zram(memory: &Memory) -> Option<Finding> {
    const ID: &str = "zram";
    let [zram, disk] = memory.swap_bytes();
    if zram == 0 || disk == 0 {
        return None;
    }
    let priority = |zram: bool| {
        let of_kind = memory.swaps.iter().filter(|swap| swap.is_zram() == zram);
        of_kind.map(|swap| swap.priority).max()
    };
    let seen = format!("/proc/swaps: {} of zram beside {} on disks", size(zram), size(disk));
    if priority(true) < priority(false) {
        return Some(Finding::new(Severity::Ok, ID, "zram is used after the disk").seen(seen));
    }
    Some(
        Finding::new(Severity::Warning, ID, "zram is filled before swap on a disk is used")
            .seen(seen)
            .because(
                "What is swapped first stays in memory, compressed: under a build that takes \
                 memory from what is left.",
            )
            .cured_by(Fix::at_boot("sudo systemctl disable nvzramconfig.service")),
    )
}

/// `swap-medium`: swap on a card wears it out and is slow; `None` where it is not.
pub(crate) fn swap_medium(memory: &Memory) -> Option<Finding> {
    let on_card = memory.swaps.iter().find(|swap| swap.medium == Some(Medium::Card))?;
    Some(
        Finding::new(Severity::Warning, "swap-medium", "swap lies on an SD card")
            .seen(format!("/proc/swaps: {}", on_card.name))
            .because(
                "A card writes some 10 to 80 MB/s and few thousand times each place: builds stall \
                 for minutes, and the card wears out. An NVMe disk is ten times as fast.",
            ),
    )
}

/// A swap file on the best disk there is; `None` where no disk can hold one.
fn add_swap(disks: &Disks) -> Option<Fix> {
    let mount = disks.best_for_swap()?;
    let file = format!("{}/smelt.swap", mount.at.trim_end_matches('/'));
    let gib = SWAP_LEAST_BYTES / GIB;
    let fix = Fix::now(format!(
        "sudo fallocate -l {gib}G {file} && sudo chmod 600 {file} && sudo mkswap {file} && \
         sudo swapon -p {SWAP_PRIORITY} {file} && \
         echo '{file} none swap sw,pri={SWAP_PRIORITY} 0 0' | sudo tee -a /etc/fstab"
    ));
    let has_room = mount.free_bytes.is_some_and(|free| free >= SWAP_LEAST_BYTES + DISK_LEAVE_BYTES);
    // A card that swaps wears out: whoever has no other disk decides.
    let is_good = has_room && mount.medium != Some(Medium::Card);
    Some(if is_good { fix } else { fix.by_hand() })
}

/// `cma`: the contiguous area.  Low `CmaFree` says nothing, since movable pages borrow it; what
/// counts is what was refused.
pub(crate) fn cma(board: &Board, memory: &Memory) -> Option<Finding> {
    const ID: &str = "cma";
    let total = memory.machine.cma_total_bytes.filter(|_| board.is_jetson)?;
    let free = memory.machine.cma_free_bytes.unwrap_or(0);
    let refused = memory.cma_refused.unwrap_or(0);
    let counted = memory.cma_refused.map_or("not counted".to_owned(), |count| count.to_string());
    let asked = memory.cma_asked.as_deref();
    let finding = match asked {
        Some(asked) if total < CMA_DEFAULT_BYTES => {
            Finding::new(Severity::Problem, ID, format!("the kernel could not reserve {asked}"))
                .because(format!(
                    "An Orin Nano's low memory is two windows of 992 MiB, and more than fits one \
                     of them leaves the area empty; {CMA_MOST} is the most that was seen to work."
                ))
                .cured_by(ask_for_cma(true))
        }
        _ if refused > 0 => Finding::new(
            Severity::Warning,
            ID,
            format!("{refused} contiguous allocations were refused since the boot"),
        )
        .because("A driver asked for contiguous memory and did not get it; a larger area helps.")
        .cured_by(ask_for_cma(asked.is_some())),
        None => Finding::new(
            Severity::Note,
            ID,
            format!("the contiguous area has the usual {}", size(total)),
        )
        .because(format!(
            "Nothing was refused since the boot. A published TensorRT build that had \
             failed succeeded with {CMA_MOST} and a split head; whether it needed both is not \
             known, so compare before and after."
        ))
        .cured_by(ask_for_cma(false)),
        Some(asked) => {
            Finding::new(Severity::Ok, ID, format!("{} contiguous by {asked}", size(total)))
        }
    };
    Some(
        finding
            .seen(format!("/proc/meminfo: CmaTotal {}, CmaFree {}", size(total), size(free)))
            .seen(format!("/proc/vmstat: cma_alloc_fail {counted}")),
    )
}

/// A wrong line there leaves a board that does not boot, so a person does it.
fn ask_for_cma(is_asked: bool) -> Fix {
    let conf = "/boot/extlinux/extlinux.conf";
    let edit = if is_asked {
        format!("s/cma=[^ ]*/{CMA_MOST}/")
    } else {
        format!("/^ *APPEND /s/$/ {CMA_MOST}/")
    };
    Fix::at_boot(format!("sudo sed -i.bak '{edit}' {conf}")).by_hand()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Mount;

    const MIB: u64 = 1 << 20;

    fn jetson() -> Board {
        Board { is_jetson: true, ..Board::default() }
    }

    /// `total` GiB of memory, and swap of so many GiB with priorities.
    fn memory(total: u64, swaps: &[(&str, u64, i64)]) -> Memory {
        let swap = |&(name, gib, priority): &(&str, u64, i64)| Swap {
            name: name.to_owned(),
            size_bytes: gib * GIB,
            priority,
            medium: None,
        };
        let machine = Machine { mem_total_bytes: Some(total * GIB), ..Machine::default() };
        Memory { machine, swaps: swaps.iter().map(swap).collect(), ..Memory::default() }
    }

    #[test]
    fn swap_must_be_on_a_disk_and_large() {
        use Severity::{Ok, Problem, Warning};
        let zram = ("/dev/zram0", 4, 5);
        let check = |total, swaps: &[(&str, u64, i64)], severity| {
            let found = swap(&jetson(), &memory(total, swaps), &Disks::default());
            assert_eq!(found.severity, severity, "{total} {swaps:?}");
            assert_eq!(found.evidence.len(), swaps.len(), "{swaps:?}");
        };
        check(8, &[], Problem);
        check(8, &[zram], Problem);
        check(8, &[zram, ("/swap", 7, -2)], Warning);
        check(8, &[("/swap", 8, -2)], Ok);
        check(4, &[("/swap", 4, -2)], Ok);
        check(11, &[zram], Problem);
        check(12, &[zram], Warning);
        check(31, &[], Warning);
        // Nobody said how much memory there is.
        check(0, &[], Warning);
        check(32, &[], Ok);
        let server = swap(&Board::default(), &memory(8, &[]), &Disks::default());
        assert_eq!((server.severity, server.fix), (Warning, None));
    }

    #[test]
    fn a_swap_file_is_offered_where_it_does_no_harm() {
        let check = |medium, free_gib: Option<u64>, can_apply| {
            let mount = Mount {
                at: "/data".to_owned(),
                kind: "ext4".to_owned(),
                options: "rw".to_owned(),
                medium: Some(medium),
                free_bytes: free_gib.map(|gib| gib * GIB),
                ..Mount::default()
            };
            let fix = add_swap(&Disks { mounts: vec![mount], store: None }).unwrap();
            assert_eq!(fix.can_apply, can_apply);
            assert!(fix.command.contains(" /data/smelt.swap "));
        };
        check(Medium::Nvme, Some(12), true);
        check(Medium::Nvme, Some(11), false);
        check(Medium::Nvme, None, false);
        check(Medium::Card, Some(99), false);
        assert_eq!(add_swap(&Disks::default()), None);
    }

    #[test]
    fn zram_matters_where_it_goes_first() {
        let severity = |swaps: &[_]| zram(&memory(8, swaps)).map(|found| found.severity);
        assert_eq!(severity(&[("/dev/zram0", 4, 5), ("/swap", 8, -2)]), Some(Severity::Warning));
        assert_eq!(severity(&[("/dev/zram0", 4, 5), ("/swap", 8, 10)]), Some(Severity::Ok));
        assert_eq!(severity(&[("/dev/zram0", 4, 5)]), None);
        assert_eq!(severity(&[("/swap", 8, -2)]), None);
    }

    #[test]
    fn swap_on_a_card_is_told() {
        let mut memory = memory(8, &[("/swap", 8, -2)]);
        assert_eq!(swap_medium(&memory), None);
        memory.swaps[0].medium = Some(Medium::Card);
        assert_eq!(swap_medium(&memory).unwrap().severity, Severity::Warning);
    }

    #[test]
    fn only_refusals_accuse_the_contiguous_area() {
        use Severity::{Note, Ok, Problem, Warning};
        let check = |total: u64, free: u64, refused, asked: Option<&str>, severity| {
            let machine = Machine {
                cma_total_bytes: Some(total * MIB),
                cma_free_bytes: Some(free * MIB),
                ..Machine::default()
            };
            let asked = asked.map(str::to_owned);
            let memory =
                Memory { machine, cma_refused: refused, cma_asked: asked, ..Memory::default() };
            assert_eq!(cma(&jetson(), &memory).unwrap().severity, severity);
            assert_eq!(cma(&Board::default(), &memory), None);
        };
        check(256, 0, Some(0), None, Note);
        check(256, 250, None, None, Note);
        check(256, 250, Some(1), None, Warning);
        check(960, 0, Some(0), Some("cma=950M"), Ok);
        check(960, 0, Some(1), Some("cma=950M"), Warning);
        check(16, 16, Some(0), Some("cma=2G"), Problem);
        check(0, 0, Some(0), Some("cma=2G"), Problem);
        assert_eq!(cma(&jetson(), &Memory::default()), None);
    }

    #[test]
    fn files_of_the_kernel_are_taken_apart() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/zram0                              partition\t649164\t\t0\t\t5\n\
                    /swap\\040file file 8388604 0 -2\nshort\n/x y z\n";
        let found = swaps(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].size_bytes, found[0].priority), (649_164 * 1024, 5));
        assert!(found[0].is_zram() && !found[1].is_zram());
        assert_eq!(asked("root=/dev/x cma=1G rw cma=950M").as_deref(), Some("cma=950M"));
        assert_eq!(asked("hugetlb_cma=1G"), None);
    }
}
