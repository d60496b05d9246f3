//! Writes the log to standard error: an event a line, as text or as JSON.

use std::io;

use tracing::level_filters::LevelFilter;

/// Writes what happens from now on.  The first call of a process counts.
///
/// `least` is the least important that is written.
pub fn log_to_stderr(is_json: bool, least: LevelFilter) {
    let log = tracing_subscriber::fmt()
        .with_max_level(least)
        .with_writer(io::stderr)
        // The library has no colours built in, and complains where they are asked for.
        .with_ansi(false)
        .with_target(false);
    let set = match is_json {
        true => tracing::subscriber::set_global_default(log.json().flatten_event(true).finish()),
        false => tracing::subscriber::set_global_default(log.finish()),
    };
    // Whoever set another log before wants that one.
    drop(set);
}
