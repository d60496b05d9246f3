//! Names what a strict program may read without declaring it: the system's own directories.
//!
//! Homes, temporary files, other disks and `/var` are not among them, and of `/dev` the named devices alone.

use std::path::{Path, PathBuf};

use super::devices::DEV;

/// Programs, libraries and their settings, and what the kernel shows as files.
const FOLDERS: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/proc",
    "/sys",
];
/// Where `/etc/resolv.conf` leads to.
const RESOLVERS: [&str; 3] = ["/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf"];

/// What a program needs to load its libraries.
pub(super) fn libraries<'a>() -> impl Iterator<Item = &'a Path> {
    /// The libraries' list, and programs' settings and other files not.
    const CACHE: &str = "/etc/ld.so.cache";
    let code = FOLDERS.iter().filter(|folder| !["/etc", "/proc", "/sys"].contains(folder));
    code.chain([&CACHE]).map(Path::new)
}

/// What every program may read.
pub(super) fn folders(network: bool) -> impl Iterator<Item = PathBuf> {
    let resolvers = RESOLVERS.iter().filter(move |_| network);
    FOLDERS.iter().chain(resolvers).map(PathBuf::from)
}

/// Whether all beneath it is the system's, or it is minded elsewhere.
pub(super) fn holds(path: &Path) -> bool {
    FOLDERS.iter().any(|folder| path.starts_with(folder)) || path.starts_with(DEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_keep_is_none_of_it() {
        for path in ["/home/x", "/root", "/tmp/x", "/var/lib/x", "/mnt", "/usrlocal", "/nix"] {
            assert!(!holds(Path::new(path)), "{path}");
        }
        for path in ["/usr/local/lib/x.so", "/bin/sh", "/etc/ld.so.cache", "/nix/store/x"] {
            assert!(holds(Path::new(path)), "{path}");
        }
        assert!(folders(true).count() > folders(false).count());
    }
}
