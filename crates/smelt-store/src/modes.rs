//! Gives the owner of a store back what modes keep from him.
//!
//! Landlock does not know modes, so a stage that it holds may take them from files of its own user.  What is another user's
//! stays as it is, and the check that follows says so.

use std::path::Path;

use crate::actions::Entry;
use crate::disk::{Disk, FileKind, Stat, fault, present};
use crate::layout::Layout;
use crate::seal::sealed_mode;
use crate::store::{Store, StoreError};

/// What an owner does with directories, with files that are written again, and with those that are only read.
const DIR: u32 = 0o700;
const WRITTEN: u32 = 0o600;
const READ: u32 = 0o400;

/// Lets us see whether it is a store: whatever else it is stays as it is.
pub(crate) fn let_in(disk: &dyn Disk, layout: &Layout) -> usize {
    const LISTED: u32 = 0o500;
    let root = layout.root();
    let seen =
        |path: &Path, least| disk.lstat(path).is_ok_and(|stat| give(disk, path, &stat, least));
    usize::from(seen(root, LISTED)) + usize::from(seen(&layout.format(), READ))
}

/// Sets the modes of a store back from its root on; how many.
pub(crate) fn mend(disk: &dyn Disk, layout: &Layout) -> usize {
    mend_below(disk, layout, layout.root())
}

/// Whether it lacked anything, and has it now.
fn give(disk: &dyn Disk, path: &Path, stat: &Stat, least: u32) -> bool {
    stat.mode & least != least && disk.chmod(path, stat.mode | least).is_ok()
}

fn mend_below(disk: &dyn Disk, layout: &Layout, path: &Path) -> usize {
    let Ok(stat) = disk.lstat(path) else { return 0 };
    let least = match stat.kind {
        FileKind::Dir => DIR,
        FileKind::File if layout.is_written_again(path) => WRITTEN,
        FileKind::File => READ,
        FileKind::Link | FileKind::Other => return 0,
    };
    let own = usize::from(give(disk, path, &stat, least));
    if stat.kind != FileKind::Dir {
        return own;
    }
    let names = disk.list(path).unwrap_or_default();
    own + names.iter().map(|name| mend_below(disk, layout, &path.join(name))).sum::<usize>()
}

impl Store {
    /// Sets the modes of sealed files back to what was sealed; how many.
    pub(crate) fn mend_sealed(&self) -> Result<usize, StoreError> {
        let mut sealed = Vec::new();
        self.actions().each_output(&mut |entry| {
            if let Entry::Seal { tree, files, .. } = entry {
                sealed.push((tree, files));
            }
        })?;
        let mut mended = 0;
        for (tree, files) in sealed {
            let dir = self.layout().tree(&tree);
            for file in files.files() {
                let path = dir.join(&file.path);
                let found = present(self.disk().lstat(&path)).map_err(fault("look at", &path))?;
                let mode = sealed_mode(file.executable);
                let is_other =
                    |stat: &Stat| stat.kind == FileKind::File && stat.mode & 0o777 != mode;
                if found.as_ref().is_some_and(is_other) {
                    mended += usize::from(self.disk().chmod(&path, mode).is_ok());
                }
            }
        }
        Ok(mended)
    }
}
