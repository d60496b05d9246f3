//! Writes the log to standard error: an event a line, as text or as JSON.

use std::io::{self, IsTerminal as _};

use tracing::level_filters::LevelFilter;

/// Writes what happens from now on.  The first call of a process counts.
pub fn log_to_stderr(is_json: bool) {
    let log = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    let set = match is_json {
        true => tracing::subscriber::set_global_default(log.json().flatten_event(true).finish()),
        false => tracing::subscriber::set_global_default(log.finish()),
    };
    // Whoever set another log before wants that one.
    drop(set);
}
