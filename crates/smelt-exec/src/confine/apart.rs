//! Sets root's programs apart from all other processes: in a user name space where everybody stands for himself.
//!
//! Root may become any user, and as the user of a process it may trace that, take its descriptors and go through its
//! `/proc/PID/root`, which leads out of every mount name space.  Towards a process of another user name space the kernel asks
//! for rights over that one, which nobody here has.  Owners of files and device nodes are what they were.  It takes someone who
//! stayed outside to map more users than oneself: the supervisor does it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::{Space, capabilities, has_landlock, is_wanted};
use crate::readable::readable;

/// What a shim says: that it waits to be mapped, or that the kernel gives it no user name space.
const WAITS: u8 = b'w';
const STAYS: u8 = b's';
/// What it is answered.
const MAPPED: u8 = b'm';
/// A shim has entered it milliseconds after its start; one that somebody has stopped holds up nobody for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a shim of this space is to be set apart: what it starts is held by mounts, and has none of root's rights over the
/// machine.  Landlock asks by itself whose a process is.
pub(crate) fn is_for(space: Space) -> bool {
    let has_usual_rights = matches!(space, Space::Own | Space::Strict | Space::Shared);
    has_usual_rights && is_wanted("mounts") && !has_landlock() && capabilities::may_mount()
}

/// Waits until a shim has its user name space, and maps all users and groups that we have onto themselves.
///
/// # Errors
/// Where the kernel does not let us, or the shim says nothing: that one is of no use any more.
pub(crate) fn map(shim: u32, input: &mut ChildStdin, output: &mut ChildStdout) -> io::Result<()> {
    let begin = Instant::now();
    // A signal ends the waiting early.
    while !readable(&*output, PATIENCE) {
        if begin.elapsed() >= PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let mut said = [0];
    // One that is gone is noticed by its missing report.
    if output.read(&mut said)? == 0 || said != [WAITS] {
        return Ok(());
    }
    for name in ["uid_map", "gid_map"] {
        let own = fs::read_to_string(format!("/proc/self/{name}"))?;
        fs::write(format!("/proc/{shim}/{name}"), onto_itself(&own))?;
    }
    input.write_all(&[MAPPED])
}

/// The map that gives whoever is below one with the map `own` the same users: `inside outside count` a line.
fn onto_itself(own: &str) -> String {
    let of = |line: &str| {
        let mut numbers = line.split_ascii_whitespace();
        let (first, count) = (numbers.next()?, numbers.nth(1)?);
        Some(format!("{first} {first} {count}\n"))
    };
    own.lines().filter_map(of).collect()
}

/// Takes this process, which has one thread, into a user name space, and waits until the supervisor has mapped it.  Says whether
/// it is there.
pub(super) fn enter() -> bool {
    // There the right to pin memory counts no more, and the limit does.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let is_apart = unshare(CloneFlags::CLONE_NEWUSER).is_ok();
    // Without a supervisor no order comes, either.
    let _ = say(if is_apart { WAITS } else { STAYS });
    if is_apart {
        let _ = hear();
    }
    is_apart
}

fn say(word: u8) -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(&[word])?;
    output.flush()
}

/// Past the buffer of the standard input, where an order that follows would be kept.
fn hear() -> io::Result<()> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    input.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_stands_for_himself() {
        let check = |own: &str, map: &str| assert_eq!(onto_itself(own), map);
        check("         0          0 4294967295\n", "0 0 4294967295\n");
        check("0 1000 1\n1 100000 65536\n", "0 0 1\n1 1 65536\n");
        check("cut\n", "");
    }
}
