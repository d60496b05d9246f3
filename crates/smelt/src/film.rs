//! Becomes `ffmpeg` within a cell, for a server or a conversation that is shown films.
//!
//! It ends as the server's own contract says where that cannot be: nobody else starts it.

use std::env;
use std::ffi::OsString;

use smelt_exec::Cell;
use smelt_serve::films::{ABSENT, CPU_TIME_MAX, MEMORY_BYTES_MAX, UNFIT};

use crate::exit::{Exit, Failed};

/// How it is started: itself, as it is now, whatever is installed meanwhile.
pub(crate) const COMMAND: [&str; 4] = ["/proc/self/exe", "stage", "film", "--"];

const PROGRAM: &str = "ffmpeg";

/// Gives nothing back: it is `ffmpeg` from here on, or ends.
pub(crate) fn run(arguments: &[OsString]) -> Result<Exit, Failed> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let found =
        env::split_paths(&folders).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file());
    let Some(program) = found.and_then(|path| path.canonicalize().ok()) else {
        std::process::exit(ABSENT)
    };
    let cell = Cell { memory_bytes_max: MEMORY_BYTES_MAX, cpu_time_max: CPU_TIME_MAX };
    crate::console::fail(Failed::new(Exit::StageFailed, cell.run(&program, arguments)));
    std::process::exit(UNFIT)
}
