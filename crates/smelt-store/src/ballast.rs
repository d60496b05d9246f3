//! Keeps a little space back for the moment the disk is full.
//!
//! The ballast is a file without meaning.  When a log cannot take a record for lack of space, the
//! ballast is removed once and the record fits.  Having none is no error.

use crate::digest::Digest;
use crate::disk::{Disk, present, replace_file};
use crate::layout::Layout;

/// Room for a record of an output of 4,000 files; usual records are a thousandth of that.
const BALLAST_BYTES: usize = 1 << 20;
/// A disk emptier than this in the first place gets no ballast.
const FREE_BYTES_MIN: u64 = 64 * BALLAST_BYTES as u64;

/// Lays the ballast if there is none and space is plenty.
pub(crate) fn lay(disk: &dyn Disk, layout: &Layout) {
    let path = layout.ballast();
    let is_there = disk.lstat(&path).is_ok();
    let has_room =
        disk.volume(layout.root()).is_ok_and(|volume| volume.free_bytes >= FREE_BYTES_MIN);
    if !is_there && has_room {
        // Opening the store does not fail for this.
        let _ = replace_file(disk, &path, &incompressible());
    }
}

/// Frees the ballast; says whether there was one.
pub(crate) fn drop_it(disk: &dyn Disk, layout: &Layout) -> bool {
    let path = layout.ballast();
    let removed = present(disk.unlink(&path)).is_ok_and(|removed| removed.is_some());
    // Some file systems give the space back only once the removal is committed.
    removed && disk.sync_dir(layout.root()).is_ok()
}

/// Bytes that a compressing file system stores at full size.
fn incompressible() -> Vec<u8> {
    let block = |n: u64| *Digest::of(&n.to_le_bytes()).as_bytes();
    (0..BALLAST_BYTES as u64 / 32).flat_map(block).collect()
}
