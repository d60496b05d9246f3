//! Shared memory, semaphores and message queues that no path leads to: System V's, and POSIX message queues.
//!
//! A name space holds them.  Making one takes 0.1 ms, more than many a stage, so stages that one shim leads have the same one
//! after another, until one leaves something there.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::Dir;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// What System V has, one line each below a heading.
const SYSTEM_V: [&str; 3] = ["/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"];

/// Gives this thread some of its own; they are gone with the last that sees them.  A kernel without such name spaces mostly has
/// nothing to put there.
pub(super) fn part() {
    let _ = unshare(CloneFlags::CLONE_NEWIPC);
}

/// Those of this thread and of the threads that it starts from now on.
#[derive(Debug)]
pub(super) struct Queues {
    /// The folder of POSIX message queues, mounted nowhere.
    messages: OwnedFd,
}

impl Queues {
    /// Gives this thread some of its own, of which it can tell whether they are empty.
    ///
    /// # Errors
    /// The kernel has no such name spaces, no message queues, or lists none (`fsopen`, Linux 5.2).
    pub(super) fn own() -> io::Result<Self> {
        unshare(CloneFlags::CLONE_NEWIPC)?;
        let messages = fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&messages)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let messages = fsmount(&messages, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let queues = Self { messages };
        if queues.are_empty() { Ok(queues) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Whether nobody left anything there.  What cannot be looked at may hold something.
    pub(super) fn are_empty(&self) -> bool {
        let is_empty = |list: &str| fs::read(list).is_ok_and(|text| lines(&text) <= 1);
        SYSTEM_V.into_iter().all(is_empty) && self.has_no_messages().unwrap_or(false)
    }

    fn has_no_messages(&self) -> io::Result<bool> {
        for entry in Dir::read_from(&self.messages)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn lines(text: &[u8]) -> usize {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Whether queues of its own are empty after a program ran that makes what `script` says; nothing where we may not.
    fn after(script: &str) -> Option<bool> {
        let run = || {
            let queues = Queues::own().ok()?;
            let status = Command::new("/usr/bin/python3").args(["-c", script]).status().ok()?;
            status.success().then(|| queues.are_empty())
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn what_a_program_leaves_is_seen() {
        let Some(is_empty) = after("pass") else {
            return println!("not run: no right to a name space, or no python");
        };
        assert!(is_empty);
        let libc = "import ctypes; c = ctypes.CDLL(None, use_errno=True); ";
        for call in [
            "assert c.shmget(7, 4096, 0o1600) >= 0",
            "assert c.semget(7, 1, 0o1600) >= 0",
            "assert c.msgget(7, 0o1600) >= 0",
            "assert c.mq_open(b'/q', 0o102, 0o600, None) >= 0",
        ] {
            assert_eq!(after(&format!("{libc}{call}")), Some(false), "{call}");
        }
    }
}
