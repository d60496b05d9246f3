//! Encloses a program that reads what strangers send: it has what it was given open, its libraries, and nothing else.
//!
//! It becomes this process, so whoever started this one leads it.  Limits are the kernel's.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;

use crate::confine;

/// Open files: what it was given, and its libraries while they are loaded.
const FILES_OPEN_MAX: u64 = 64;
/// Addresses for each byte that it may write: libraries and stacks are mapped, and mostly never touched.
const ADDRESSES_PER_BYTE: u64 = 4;

/// What it may take.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Bytes of its own that it may write to.
    pub memory_bytes_max: u64,
    /// Processor time, after which it is killed.
    pub cpu_time_max: Duration,
}

impl Cell {
    /// Becomes `program` within the cell; gives why it could not.  This process has one thread, and the program ends
    /// with the thread that started it.
    pub fn run(self, program: &Path, arguments: &[OsString]) -> io::Error {
        match self.enter(program) {
            Ok(()) => Command::new(program).args(arguments).exec(),
            Err(error) => error,
        }
    }

    fn enter(self, program: &Path) -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        let limits = [
            (Resource::RLIMIT_CPU, self.cpu_time_max.as_secs()),
            (Resource::RLIMIT_DATA, self.memory_bytes_max),
            (Resource::RLIMIT_AS, self.memory_bytes_max.saturating_mul(ADDRESSES_PER_BYTE)),
            (Resource::RLIMIT_FSIZE, 0),
            (Resource::RLIMIT_CORE, 0),
            (Resource::RLIMIT_NOFILE, FILES_OPEN_MAX),
        ];
        confine::enclose(program)?;
        limits.into_iter().try_for_each(|(which, most)| Ok(setrlimit(which, most, most)?))
    }
}
