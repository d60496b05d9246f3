//! Shared memory, semaphores and message queues that no path leads to: System V's, and POSIX message queues.
//!
//! A name space holds them.  Making one takes 0.1 ms, more than many a stage, so stages that one shim leads have the same one
//! after another, until one leaves something there.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Dir, Mode, OFlags, openat};
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
    /// The lists of [`SYSTEM_V`], each of the name space in which it was opened.
    lists: [File; 3],
    /// The folder of POSIX message queues.
    messages: Dir,
    /// It lies in a file system that is mounted nowhere, and gone with this.
    _mount: OwnedFd,
}

impl Queues {
    /// Gives this thread some of its own, of which it can tell whether they are empty.
    ///
    /// # Errors
    /// The kernel has no such name spaces, no message queues, or lists none (`fsopen`, Linux 5.2).
    pub(super) fn own() -> io::Result<Self> {
        unshare(CloneFlags::CLONE_NEWIPC)?;
        let [shared, semaphores, messages] = SYSTEM_V.map(File::open);
        let lists = [shared?, semaphores?, messages?];
        let context = fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        // What a mount gives is a place (`O_PATH`), which cannot be read.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let messages = Dir::new(openat(&mount, ".", flags, Mode::empty())?)?;
        let mut queues = Self { lists, messages, _mount: mount };
        if queues.are_empty() { Ok(queues) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Whether nobody left anything there.  What cannot be looked at may hold something.
    pub(super) fn are_empty(&mut self) -> bool {
        self.lists.iter().all(has_heading_alone) && self.has_no_messages().unwrap_or(false)
    }

    fn has_no_messages(&mut self) -> io::Result<bool> {
        self.messages.rewind();
        for entry in &mut self.messages {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a list has one line at most.
fn has_heading_alone(list: &File) -> bool {
    let mut text = [0; 1024];
    let is_line_end = |byte: &&u8| **byte == b'\n';
    list.read_at(&mut text, 0).is_ok_and(|count| {
        count < text.len() && text[..count].iter().filter(is_line_end).count() <= 1
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::super::capabilities;
    use super::*;

    /// Whether queues of its own are empty after a program ran that makes what `script` says.
    fn after(script: &str) -> bool {
        let run = || {
            let mut queues = Queues::own().unwrap();
            let status = Command::new("python3").args(["-c", script]).status().unwrap();
            assert!(status.success(), "{script}");
            queues.are_empty()
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn what_a_program_leaves_is_seen() {
        if !capabilities::may_mount() {
            return println!("not run: no right to a name space");
        }
        assert!(after("pass"));
        let libc = "import ctypes; c = ctypes.CDLL(None, use_errno=True); ";
        for call in [
            "assert c.shmget(7, 4096, 0o1600) >= 0",
            "assert c.semget(7, 1, 0o1600) >= 0",
            "assert c.msgget(7, 0o1600) >= 0",
            "assert c.mq_open(b'/q', 0o102, 0o600, None) >= 0",
        ] {
            assert!(!after(&format!("{libc}{call}")), "{call}");
        }
    }
}
