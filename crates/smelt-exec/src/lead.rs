//! Leads one program for as long as whoever started it lives: a server's child that must not outlive it.
//!
//! `smelt stage lead` has a pipe as its standard input, on which nothing is said.  Its end, which the kernel closes however
//! the other side died, ends the program's whole tree: asked first, then killed.  What the program writes goes where this
//! process writes.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::prctl;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;

use crate::containers::Following;
use crate::shim::{end_tree, leave_terminal, reap_until, stop_tree};

/// What shells say of a program that a signal ended: this and the signal's number.
const SIGNALLED: i32 = 128;
/// What shells say of a program that cannot be started.
const NOT_STARTED: u8 = 127;

/// Runs `program` to its end, and gives its exit code as shells do.
pub fn main(program: &OsString, arguments: &[OsString]) -> u8 {
    match lead(program, arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cannot start {}: {error}", program.display());
            NOT_STARTED
        }
    }
}

fn lead(program: &OsString, arguments: &[OsString]) -> io::Result<u8> {
    leave_terminal()?;
    prctl::set_child_subreaper(true)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("smelt-lead-{}-{}", std::process::id(), since.as_nanos());
    // A run of smelt's own follows what its stages start, and finds programs by whatever is first in `PATH`.
    let is_ours = std::env::current_exe().is_ok_and(|own| own == Path::new(program));
    let following = if is_ours { None } else { Following::begin(std::env::temp_dir().join(name)) };
    let child = Command::new(program)
        .args(arguments)
        .envs(following.iter().flat_map(Following::variables))
        // A script that ends its group must not end its leader.
        .process_group(0)
        .stdin(Stdio::null())
        .spawn()?;
    thread::spawn(|| {
        // Nothing is said; whatever comes is passed over until the end.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        stop_tree();
    });
    let status = reap_until(Pid::from_raw(child.id().cast_signed()));
    end_tree();
    // Containers that it has started end here.
    drop(following);
    Ok(code(status))
}

/// The exit code of a program that ended so.
fn code(status: Option<WaitStatus>) -> u8 {
    let code = match status {
        Some(WaitStatus::Exited(_, code)) => code,
        Some(WaitStatus::Signaled(_, signal, _)) => SIGNALLED + signal as i32,
        _ => i32::from(u8::MAX),
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn exit_codes_are_those_of_shells() {
        let pid = Pid::from_raw(1);
        assert_eq!(code(Some(WaitStatus::Exited(pid, 3))), 3);
        assert_eq!(code(Some(WaitStatus::Signaled(pid, Signal::SIGKILL, false))), 137);
        assert_eq!(code(None), 255);
    }
}
