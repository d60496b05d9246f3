//! Names the devices that any stage may write: those that hold nothing, terminals and accelerators.
//!
//! `/dev` as a whole will not do: the disk that the store lies on is there, too.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

pub(super) const DEV: &str = "/dev";
/// What holds nothing, and terminals.
const PLAIN: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];
/// Accelerators, by the beginnings of their names or of their folders' names.
const ACCELERATORS: [&str; 23] = [
    "nvidia",
    "nvhost",
    "nvmap",
    "nvgpu",
    "nvsciipc",
    "tegra", // NVIDIA
    "dri",
    "accel",
    "dma_heap",
    "ion",
    "kfd", // any vendor's
    "mali",
    "galcore",
    "kgsl",
    "fastrpc",
    "adsprpc", // Arm, VeriSilicon, Qualcomm
    "rknpu",
    "rga",
    "mpp_service", // Rockchip
    "hailo",
    "apex_",
    "davinci",
    "dxg", // cards
];

/// A change right after another may have the same time.
const SETTLED: Duration = Duration::from_secs(1);

/// The last list, and when `/dev` had changed before it.
static LAST: Mutex<Option<(SystemTime, Vec<PathBuf>)>> = Mutex::new(None);

/// The devices of this machine that any stage may write: character devices, and folders of them.
///
/// Looked for anew where `/dev` has changed: it has hundreds of names, and a small stage starts sooner than
/// they are read.
pub(super) fn named() -> Vec<PathBuf> {
    let changed = fs::metadata(DEV).and_then(|meta| meta.modified()).ok();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(changed), Some((at, named))) = (changed, last.as_ref())
        && changed == *at
    {
        return named.clone();
    }
    let named = list();
    let settled = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > SETTLED);
    *last = changed.filter(settled).map(|at| (at, named.clone()));
    named
}

fn list() -> Vec<PathBuf> {
    let Ok(all) = fs::read_dir(DEV) else { return Vec::new() };
    let all = all.flatten().filter(|entry| is_named(&entry.file_name().to_string_lossy()));
    let is_fit = |path: &PathBuf| {
        fs::symlink_metadata(path)
            .is_ok_and(|meta| meta.is_dir() || meta.file_type().is_char_device())
    };
    let mut named: Vec<_> = all.map(|entry| Path::new(DEV).join(entry.file_name())).collect();
    named.retain(is_fit);
    named
}

fn is_named(name: &str) -> bool {
    PLAIN.contains(&name) || ACCELERATORS.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_keep_something_in_is_not_named() {
        for name in ["null", "pts", "nvidia0", "nvidia-uvm", "nvhost-gpu", "nvmap", "dri", "rknpu"]
        {
            assert!(is_named(name), "{name}");
        }
        for name in ["vda", "nvme0n1", "mmcblk0", "sda", "mem", "kmsg", "loop0", "mapper", "zeros"]
        {
            assert!(!is_named(name), "{name}");
        }
        assert!(named().contains(&PathBuf::from("/dev/null")));
    }
}
