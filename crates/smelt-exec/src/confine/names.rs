//! Lets programs name their threads.
//!
//! One thread names another by writing to `/proc/self/task/TID/comm`, as `pthread_setname_np` does, and NVIDIA's libraries do
//! not start where that is refused.  Neither a rule of Landlock nor a mount can be for these files alone: they and their
//! folders come with their threads.  So the kernel asks a thread of the shim about every file that is opened to be written and
//! may be there.  That thread opens these files for whoever asked, and of all others says that they be judged as ever.  It
//! gives nothing away: the kernel lets nobody write the names of another process's threads, whoever opened them.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use nix::errno::Errno;
use nix::libc::{self, seccomp_data, seccomp_notif, seccomp_notif_addfd, seccomp_notif_resp};
use seccompiler::sock_filter;

use super::filter::{self, OPENAT};

/// The first Linux where a file can be opened for whoever asks for it.
const SINCE: (u32, u32) = (5, 9);
/// Longer than the longest path of a thread's name, with its end.
const PATH_MAX: usize = 48;

/// Has the names of threads opened for this thread and all it starts, as long as this process is there.
///
/// # Errors
/// Where the kernel does not ask, or somebody else is asked already; all is refused then as without.
pub(super) fn allow() -> io::Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    if version(&release).is_none_or(|version| version < SINCE) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // It begins before the kernel asks about its own files.
    let (sender, listeners) = sync_channel(1);
    thread::Builder::new().name("smelt names".to_owned()).spawn(move || attend(&listeners))?;
    let listener = listen(&filter::asking())?;
    sender.send(listener).map_err(io::Error::other)
}

/// Of `6.1.0-13-amd64`, 6 and 1.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Puts a filter on this thread; what tells of its questions.
fn listen(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let len = u16::try_from(program.len()).expect("a filter is that short");
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the instructions have the kernel's layout and live longer than the call, which copies them.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let listener = Errno::result(listener)? as i32;
    // SAFETY: the call has made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// Answers until the kernel asks no more, which is when this process ends.
fn attend(listeners: &Receiver<OwnedFd>) {
    let Ok(listener) = listeners.recv() else { return };
    loop {
        let data = seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
        let mut asked = seccomp_notif { id: 0, pid: 0, flags: 0, data };
        // SAFETY: the request is for one of these, which is all zeros.
        match unsafe { request(&listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut asked) } {
            Ok(_) => {}
            // Who asked is gone already.
            Err(Errno::ENOENT | Errno::EINTR) => continue,
            Err(_) => return,
        }
        let given = opened(&asked).and_then(|name| give(&listener, asked.id, &name));
        let mut answer = match given {
            Ok(fd) => seccomp_notif_resp { id: asked.id, val: fd.into(), error: 0, flags: 0 },
            Err(_) => {
                let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
                seccomp_notif_resp { id: asked.id, val: 0, error: 0, flags }
            }
        };
        // SAFETY: the request is for one of these.  Who is gone meanwhile needs no answer.
        let _ = unsafe { request(&listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) };
    }
}

/// Gives whoever asked a descriptor of the file: its number there.
fn give(listener: &OwnedFd, id: u64, name: &File) -> io::Result<i32> {
    let srcfd = name.as_raw_fd().cast_unsigned();
    let newfd_flags = libc::O_CLOEXEC.cast_unsigned();
    let mut given = seccomp_notif_addfd { id, flags: 0, srcfd, newfd: 0, newfd_flags };
    // SAFETY: the request is for one of these.
    Ok(unsafe { request(listener, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut given) }?)
}

/// # Safety
/// The request is for a `T`, which the kernel reads and writes.
unsafe fn request<T>(listener: &OwnedFd, what: libc::Ioctl, data: &mut T) -> Result<i32, Errno> {
    // SAFETY: as the caller has it.
    Errno::result(unsafe { libc::ioctl(listener.as_raw_fd(), what, &raw mut *data) })
}

/// The name that somebody asked for, if it is that of a thread of his own.
fn opened(asked: &seccomp_notif) -> io::Result<File> {
    let seccomp_data { nr, args, .. } = &asked.data;
    let is_at = OPENAT.contains(&Some(nr.cast_unsigned()));
    let [path, flags] = if is_at { [args[1], args[2]] } else { [args[0], args[1]] };
    let process = Path::new("/proc").join(asked.pid.to_string());
    let mut bytes = [0; PATH_MAX];
    let len = File::open(process.join("mem"))?.read_at(&mut bytes, path)?;
    let path =
        bytes[..len].split(|&byte| byte == 0).next().and_then(|path| str::from_utf8(path).ok());
    // Most are files that a stage makes, of which nothing more is looked at.
    let group = || {
        let status = fs::read_to_string(process.join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
    };
    let found = path.and_then(|path| own_thread(path, group, asked.pid));
    let (group, thread) = found.ok_or(io::ErrorKind::NotFound)?;
    let reads = flags as i32 & libc::O_ACCMODE != libc::O_WRONLY;
    let name = format!("/proc/{group}/task/{thread}/comm");
    OpenOptions::new().read(reads).write(true).open(name)
}

/// The process `group` and the thread whose name a path is, if it is one of that process, for its thread `own`.
fn own_thread(path: &str, group: impl FnOnce() -> Option<u32>, own: u32) -> Option<(u32, u32)> {
    let path = path.strip_prefix("/proc/")?.strip_suffix("/comm")?;
    let group = group()?;
    let (process, rest) = path.split_once('/').unwrap_or((path, ""));
    let number = |text: &str| text.parse::<u32>().ok();
    let thread = match (process, rest) {
        ("thread-self", "") => own,
        _ if process != "self" && number(process) != Some(group) => return None,
        (_, "") => group,
        (_, rest) => number(rest.strip_prefix("task/")?)?,
    };
    Some((group, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_its_own_threads() {
        for (path, thread) in [
            ("/proc/self/comm", Some(7)),
            ("/proc/7/comm", Some(7)),
            ("/proc/thread-self/comm", Some(9)),
            ("/proc/self/task/8/comm", Some(8)),
            ("/proc/7/task/8/comm", Some(8)),
            ("/proc/8/comm", None),
            ("/proc/6/task/7/comm", None),
            ("/proc/self/task/8/../../../6/comm", None),
            ("/proc/self/task/+8/../comm", None),
            ("/proc/self/mem", None),
            ("/proc/self/oom_score_adj", None),
            ("/proc/sys/kernel/comm", None),
            ("/proc/self/task//comm", None),
            ("/proc/comm", None),
            ("/proc/self/comm/", None),
            ("proc/self/comm", None),
            ("", None),
        ] {
            let found = own_thread(path, || Some(7), 9);
            assert_eq!(found, thread.map(|thread| (7, thread)), "{path}");
        }
    }

    #[test]
    fn releases_have_versions() {
        for (release, known) in [
            ("6.18.44-fc-v669\n", Some((6, 18))),
            ("5.10.104-tegra", Some((5, 10))),
            ("5.9\n", Some((5, 9))),
            ("odd", None),
            ("5", None),
        ] {
            assert_eq!(version(release), known, "{release}");
        }
        assert!((5, 8) < SINCE && (6, 0) > SINCE && (5, 10) > SINCE);
    }
}
