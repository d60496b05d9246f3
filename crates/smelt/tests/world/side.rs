//! Who starts smelt: root or a user.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Nobody's.
const USER: u32 = 65534;
/// Debian's own, which any user may start.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Root,
    User,
}

impl Side {
    /// Whether this machine has it, and what tests start on it.
    pub(crate) fn is_here(self) -> bool {
        let is_here = (self == Self::User || is_root()) && Path::new(PYTHON).exists();
        if !is_here {
            println!("not run: no root, or no {PYTHON}");
        }
        is_here
    }

    pub(crate) fn start(self, command: &mut Command) {
        if self == Self::User && is_root() {
            command.uid(USER).gid(USER);
        }
    }

    pub(crate) fn give(self, path: &Path) {
        if self == Self::User && is_root() {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
    }
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
