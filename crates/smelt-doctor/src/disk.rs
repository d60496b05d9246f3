//! Checks the disk that the store is on: its kind, its room, its speed, and whether it keeps what it
//! has acknowledged.

use std::path::Path;

use crate::finding::{Finding, Fix, Severity, size};
use crate::measure::{Measured, available};
use crate::release::Board;
use crate::tree::Tree;

const GIB: u64 = 1 << 30;
/// Less than this does not hold one 2B model with its engines.
const ROOM_LEAST_BYTES: u64 = 8 * GIB;
/// A 2B checkpoint has 4.2 GB; its export, quantised form and engines take that again and more.
const ROOM_GOOD_BYTES: u64 = 24 * GIB;
/// Below this an engine of 2 GB takes half a minute to be written, and sealing reads it again.
const WRITE_GOOD_BYTES_PER_S: u64 = 60_000_000;
/// Flash takes some 100 µs and more to be written, and a sync of an append writes data, writes the
/// file system's journal, and flushes.
const SYNC_CREDIBLE_US: u64 = 100;
/// More mounts than a machine with containers has are a mistake, or hostile.
const MOUNTS_MAX: usize = 2048;

/// What a disk is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Nvme,
    /// Flash behind SATA or USB.
    Ssd,
    /// Soldered flash of the board.
    Emmc,
    /// An SD card.
    Card,
    Spinning,
    /// A virtual machine's.
    Virtual,
    Memory,
}

impl Medium {
    fn words(self) -> &'static str {
        match self {
            Self::Nvme => "an NVMe disk",
            Self::Ssd => "a solid-state disk",
            Self::Emmc => "the board's eMMC",
            Self::Card => "an SD card",
            Self::Spinning => "a spinning disk",
            Self::Virtual => "a virtual disk",
            Self::Memory => "memory",
        }
    }
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Mount {
    pub(crate) at: String,
    pub(crate) kind: String,
    /// Options of the mount and of the file system.
    pub(crate) options: String,
    /// The disk's name, as `nvme0n1`.
    pub(crate) disk: Option<String>,
    pub(crate) medium: Option<Medium>,
    /// `write back` says that the disk has a cache that a power cut empties.
    pub(crate) write_cache: Option<String>,
    /// Only known of the device we run on.
    pub(crate) free_bytes: Option<u64>,
}

/// What is mounted, and which of it holds the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disks {
    pub(crate) mounts: Vec<Mount>,
    pub(crate) store: Option<Mount>,
}

impl Disks {
    /// Reads the mounts; `store` is the folder of the store, absolute.
    pub(crate) fn read(tree: &Tree, store: &Path) -> Self {
        let text = tree.text("proc/self/mountinfo").unwrap_or_default();
        let mounts: Vec<Mount> =
            text.lines().take(MOUNTS_MAX).filter_map(|line| mount(tree, line)).collect();
        let store = holding(&mounts, store).cloned();
        Self { mounts, store }
    }

    /// What a device or file of `/proc/swaps` lies on.
    pub(crate) fn medium_of_swap(&self, tree: &Tree, name: &str) -> Option<Medium> {
        match name.strip_prefix("/dev/") {
            Some(device) => medium(tree, &disk_of(tree, &format!("sys/class/block/{device}"))?),
            None => holding(&self.mounts, Path::new(name))?.medium,
        }
    }

    /// Where a swap file goes.
    pub(crate) fn best_for_swap(&self) -> Option<&Mount> {
        let rank = |mount: &&Mount| match mount.medium {
            Some(Medium::Nvme) => 0,
            Some(Medium::Ssd) => 1,
            _ => 2,
        };
        let fits = |mount: &&Mount| {
            // Other file systems need more than fallocate, and names in a shell more than care.
            matches!(mount.kind.as_str(), "ext4" | "xfs")
                && mount.options.split(',').any(|option| option == "rw")
                && is_plain(&mount.at)
                && !mount.at.starts_with("/boot")
                && mount.medium.is_some()
        };
        self.mounts.iter().filter(fits).min_by_key(|mount| (rank(mount), mount.at.len()))
    }
}

/// Whether a shell takes a path as it is.
fn is_plain(path: &str) -> bool {
    path.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c))
}

/// The innermost mount that a path is in; of several at one place the last.
fn holding<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    around.max_by_key(|mount| mount.at.len())
}

/// Reads a line of mountinfo: `27 1 259:1 / /data rw,noatime … - ext4 /dev/nvme0n1p1 rw,errors=…`.
fn mount(tree: &Tree, line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (device, at, options) = (left.next()?, left.nth(1)?, left.next()?);
    let mut right = right.split(' ');
    let (kind, more) = (right.next()?, right.nth(1).unwrap_or_default());
    let disk = disk_of(tree, &format!("sys/dev/block/{device}"));
    let medium = match kind {
        "tmpfs" | "ramfs" => Some(Medium::Memory),
        _ => disk.as_deref().and_then(|disk| medium(tree, disk)),
    };
    let cache = |disk: &String| tree.line(&format!("sys/block/{disk}/queue/write_cache"));
    let free = || nix::sys::statvfs::statvfs(at).ok().map(|fs| available(&fs));
    Some(Mount {
        write_cache: disk.as_ref().and_then(cache),
        free_bytes: if tree.is_live() && disk.is_some() { free() } else { None },
        at: at.replace("\\040", " "),
        kind: kind.to_owned(),
        options: format!("{options},{more}"),
        disk,
        medium,
    })
}

/// The whole disk of a device's folder in sysfs, which is inside the disk's for a partition.
fn disk_of(tree: &Tree, folder: &str) -> Option<String> {
    let mut found = tree.resolve(folder)?;
    if !tree.exists(found.to_str()?) {
        return None;
    }
    if tree.exists(found.join("partition").to_str()?) {
        found.pop();
    }
    found.file_name()?.to_str().map(str::to_owned)
}

fn medium(tree: &Tree, disk: &str) -> Option<Medium> {
    let file = |name: &str| tree.line(&format!("sys/block/{disk}/{name}"));
    match disk {
        _ if disk.starts_with("nvme") => Some(Medium::Nvme),
        _ if disk.starts_with("mmcblk") => match file("device/type").as_deref() {
            Some("MMC") => Some(Medium::Emmc),
            _ => Some(Medium::Card),
        },
        _ if disk.starts_with("vd") || disk.starts_with("xvd") => Some(Medium::Virtual),
        _ => match file("queue/rotational").as_deref() {
            Some("1") => Some(Medium::Spinning),
            Some("0") => Some(Medium::Ssd),
            _ => None,
        },
    }
}

/// `disk`: what the store lies on.
pub(crate) fn kind(board: &Board, disks: &Disks) -> Finding {
    const ID: &str = "disk";
    let Some(store) = &disks.store else {
        return Finding::new(Severity::Note, ID, "what the store lies on is not known")
            .seen("/proc/self/mountinfo: no mount holds its folder");
    };
    let seen = |finding: Finding| {
        let disk = store.disk.as_deref().unwrap_or("no disk of this machine");
        finding.seen(format!("/proc/self/mountinfo: {} is {} on {disk}", store.at, store.kind))
    };
    let Some(medium) = store.medium else {
        return seen(Finding::new(Severity::Ok, ID, format!("the store is on {}", store.kind)));
    };
    let title = format!("the store is on {}", medium.words());
    let why = match medium {
        Medium::Card => {
            "A card reads and writes a tenth of what an NVMe disk does, its syncs take long, and \
             cheap ones lose what they acknowledged. Set SMELT_CACHE to a folder on an NVMe disk."
        }
        Medium::Memory => {
            "What is built is gone after the next boot, and takes the memory that builds need. Set \
             SMELT_CACHE to a folder on a disk."
        }
        Medium::Spinning if board.is_jetson => "Weights are read at the speed of the disk.",
        _ => return seen(Finding::new(Severity::Ok, ID, title)),
    };
    seen(Finding::new(Severity::Warning, ID, title)).because(why)
}

/// `disk-space`: whether a model fits; `None` where that was not measured.
pub(crate) fn space(measured: &Measured) -> Option<Finding> {
    const ID: &str = "disk-space";
    let free = measured.free_bytes?;
    let title = format!("{} free where the store is", size(free));
    let severity = match free {
        0..ROOM_LEAST_BYTES => Severity::Problem,
        ROOM_LEAST_BYTES..ROOM_GOOD_BYTES => Severity::Warning,
        _ => return Some(Finding::new(Severity::Ok, ID, title)),
    };
    Some(
        Finding::new(severity, ID, title)
            .seen(format!("statvfs of {}: {free} bytes", measured.folder))
            .because(
                "A 2B checkpoint has 4.2 GB, and its graphs, quantised weights and engines take \
                 that again and more; a full disk fails the stage that is running.",
            )
            .cured_by(Fix::now("smelt cache gc --max-age 30d").by_hand()),
    )
}

/// `disk-speed`: what a short write and read gave; `None` where that was not measured.
pub(crate) fn speed(measured: &Measured) -> Option<Finding> {
    const ID: &str = "disk-speed";
    let write = measured.write_bytes_per_s?;
    let per_s = |bytes: u64| format!("{} MB/s", bytes / 1_000_000);
    let read = measured.read_bytes_per_s.map_or_else(|| "unknown".to_owned(), per_s);
    let title = format!("the disk writes {} and reads {read}", per_s(write));
    if write >= WRITE_GOOD_BYTES_PER_S {
        return Some(Finding::new(Severity::Ok, ID, title));
    }
    let seconds = 2_000_000_000 / write.max(1);
    Some(
        Finding::new(Severity::Warning, ID, title)
            .seen(format!("a file of {} in {}", size(measured.written_bytes), measured.folder))
            .because(format!(
                "An engine of 2 GB takes {seconds} s to be written and synced. On a disk that \
                 others use as well it may be their doing: ask again when it is idle."
            )),
    )
}

/// `fsync`: whether what was acknowledged can be believed to survive a power cut; `None` where it
/// was not measured, or the store is in memory.
pub(crate) fn honesty(disks: &Disks, measured: &Measured) -> Option<Finding> {
    let store = disks.store.as_ref();
    if store.is_some_and(|store| store.medium == Some(Medium::Memory)) {
        return None;
    }
    let unflushed = store.filter(|store| {
        store.options.split(',').any(|option| matches!(option, "nobarrier" | "barrier=0"))
    });
    match unflushed {
        Some(store) => Some(not_flushed(store)),
        None => acknowledged(store, measured),
    }
}

fn not_flushed(store: &Mount) -> Finding {
    let at = &store.at;
    let fix = || Fix::now(format!("sudo mount -o remount,barrier=1 {at}")).by_hand();
    Finding::new(Severity::Problem, "fsync", "the file system does not flush the disk's cache")
        .seen(format!("/proc/self/mountinfo: {at} has {}", store.options))
        .because("After a power cut, results that were acknowledged may be gone or damaged.")
        .cured_by(is_plain(at).then(fix))
}

fn acknowledged(store: Option<&Mount>, measured: &Measured) -> Option<Finding> {
    const ID: &str = "fsync";
    let median = measured.sync_median_us?;
    let disk = store.and_then(|store| store.disk.as_deref()).unwrap_or("?");
    let cache = store.and_then(|store| store.write_cache.as_deref()).unwrap_or("unknown");
    let seen = |finding: Finding| {
        finding
            .seen(format!("fsync of 4 KiB appended: {median} µs, median of {}", measured.syncs))
            .seen(format!("/sys/block/{disk}/queue/write_cache: {cache}"))
    };
    if cache != "write back" || median >= SYNC_CREDIBLE_US {
        let title = format!("a sync takes {median} µs, write cache: {cache}");
        return Some(seen(Finding::new(Severity::Ok, ID, title)));
    }
    let title = "the disk acknowledges faster than flash is written";
    Some(seen(Finding::new(Severity::Warning, ID, title)).because(
        "It says that it has a cache which a power cut empties, and answers a flush of it sooner \
         than flash can be written. Some disks have a capacitor and say nothing of it; others, and \
         virtual machines told to ignore flushes, lose what they acknowledged. smelt finds damage \
         when it reads a result, and builds it again.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const CARD: [(&str, &str); 5] = [
        ("sys/dev/block/179:1", "->../../devices/mmc/block/mmcblk0/mmcblk0p1"),
        ("sys/devices/mmc/block/mmcblk0/mmcblk0p1/partition", "1\n"),
        ("sys/devices/mmc/block/mmcblk0/device/type", "SD\n"),
        ("sys/devices/mmc/block/mmcblk0/queue/write_cache", "write back\n"),
        ("sys/block/mmcblk0", "->../devices/mmc/block/mmcblk0"),
    ];
    const ROOT: &str = "27 1 179:1 / / rw,relatime shared:1 - ext4 /dev/mmcblk0p1 rw\n";

    #[test]
    fn a_mount_leads_to_its_disk() {
        let mounts = format!("{ROOT}30 27 0:25 / /tmp rw - tmpfs tmpfs rw\nnonsense\n - x\n");
        let files = [&CARD[..], &[("proc/self/mountinfo", &mounts)]].concat();
        let (_dir, tree) = tree(&files);
        let disks = Disks::read(&tree, Path::new("/home/x/cache"));
        let store = disks.store.as_ref().unwrap();
        assert_eq!((store.at.as_str(), store.disk.as_deref()), ("/", Some("mmcblk0")));
        assert_eq!((store.medium, store.free_bytes), (Some(Medium::Card), None));
        assert_eq!(store.write_cache.as_deref(), Some("write back"));
        assert_eq!(disks.medium_of_swap(&tree, "/swapfile"), Some(Medium::Card));
        assert_eq!(disks.medium_of_swap(&tree, "/dev/sdx1"), None);
        let in_memory = Disks::read(&tree, Path::new("/tmp/cache")).store.unwrap();
        assert_eq!(in_memory.medium, Some(Medium::Memory));
        assert_eq!(kind(&Board::default(), &disks).severity, Severity::Warning);
    }

    #[test]
    fn disks_are_told_apart() {
        let (_dir, tree) = tree(&[
            ("sys/block/sda/queue/rotational", "1\n"),
            ("sys/block/sdb/queue/rotational", "0\n"),
            ("sys/block/mmcblk1/device/type", "MMC\n"),
        ]);
        let cases = [
            ("nvme0n1", Some(Medium::Nvme)),
            ("sda", Some(Medium::Spinning)),
            ("sdb", Some(Medium::Ssd)),
            ("mmcblk1", Some(Medium::Emmc)),
            ("vda", Some(Medium::Virtual)),
            ("dm-0", None),
        ];
        for (disk, expect) in cases {
            assert_eq!(medium(&tree, disk), expect, "{disk}");
        }
    }

    #[test]
    fn swap_goes_to_the_best_disk_with_a_plain_name() {
        let mount = |at: &str, kind: &str, medium| Mount {
            at: at.to_owned(),
            kind: kind.to_owned(),
            options: "rw,noatime".to_owned(),
            medium,
            ..Mount::default()
        };
        let best = |disks: &Disks| disks.best_for_swap().map(|mount| mount.at.clone());
        let mut disks = Disks {
            mounts: vec![
                mount("/", "ext4", Some(Medium::Card)),
                mount("/a;reboot", "ext4", Some(Medium::Nvme)),
                mount("/b", "btrfs", Some(Medium::Nvme)),
            ],
            store: None,
        };
        assert_eq!(best(&disks).as_deref(), Some("/"));
        disks.mounts.push(mount("/data", "ext4", Some(Medium::Nvme)));
        assert_eq!(best(&disks).as_deref(), Some("/data"));
        disks.mounts[3].options = "ro".to_owned();
        assert_eq!(best(&disks).as_deref(), Some("/"));
        assert_eq!(best(&Disks::default()), None);
    }

    #[test]
    fn room_and_speed_have_bounds() {
        let of_room = |free| {
            let measured = Measured { free_bytes: Some(free), ..Measured::default() };
            space(&measured).unwrap().severity
        };
        assert_eq!(of_room(ROOM_LEAST_BYTES - 1), Severity::Problem);
        assert_eq!(of_room(ROOM_LEAST_BYTES), Severity::Warning);
        assert_eq!(of_room(ROOM_GOOD_BYTES), Severity::Ok);
        let of_speed = |write| {
            let measured = Measured { write_bytes_per_s: Some(write), ..Measured::default() };
            speed(&measured).unwrap().severity
        };
        assert_eq!(of_speed(WRITE_GOOD_BYTES_PER_S), Severity::Ok);
        assert_eq!(of_speed(WRITE_GOOD_BYTES_PER_S - 1), Severity::Warning);
        assert_eq!(of_speed(0), Severity::Warning);
        let nothing = Measured::default();
        assert_eq!((space(&nothing), speed(&nothing)), (None, None));
    }

    #[test]
    fn only_a_cache_that_is_flushed_too_fast_is_suspect() {
        let check = |cache: Option<&str>, options: &str, median, expect| {
            let store = Mount {
                write_cache: cache.map(str::to_owned),
                options: options.to_owned(),
                ..Mount::default()
            };
            let disks = Disks { mounts: Vec::new(), store: Some(store) };
            let measured = Measured { sync_median_us: median, ..Measured::default() };
            let found = honesty(&disks, &measured).map(|finding| finding.severity);
            assert_eq!(found, expect, "{cache:?} {options} {median:?}");
        };
        check(Some("write back"), "rw", Some(99), Some(Severity::Warning));
        check(Some("write back"), "rw", Some(100), Some(Severity::Ok));
        check(Some("write through"), "rw", Some(9), Some(Severity::Ok));
        check(None, "rw", Some(9), Some(Severity::Ok));
        check(Some("write back"), "rw", None, None);
        check(Some("write back"), "rw,nobarrier", None, Some(Severity::Problem));
        check(None, "rw,barrier=0", Some(5000), Some(Severity::Problem));
        let hostile = Mount { at: "/; reboot".to_owned(), ..Mount::default() };
        assert_eq!(not_flushed(&hostile).fix, None);
    }
}
