//! Speaks to the user: answers on standard output, everything else on standard error.
//!
//! A reader that has gone away (a closed pager, `head`) is no failure of ours, so nothing here
//! panics as `println!` would; an answer that a full disk swallowed is one.  Of a server, standard error is
//! a log, and every line of it an event.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::{Exit, Failed};

/// Whether standard error is a log.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Makes standard error a log, as JSON or as text: what is told from now on is an event of it.
pub(crate) fn begin_log(is_json: bool) {
    smelt_serve::log_to_stderr(is_json);
    IS_LOG.store(true, Ordering::Release);
}

/// Whether standard error is a log.
pub(crate) fn is_log() -> bool {
    IS_LOG.load(Ordering::Acquire)
}

/// Writes to standard error; nobody can be told if that fails.
pub(crate) fn tell(text: impl fmt::Display) {
    if is_log() {
        tracing::info!("{text}");
    } else {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }
}

/// Tells of what is not as it should be, and goes on.
pub(crate) fn warn(text: impl fmt::Display) {
    if is_log() {
        tracing::warn!("{text}");
    } else {
        tell(format_args!("warning: {text}"));
    }
}

/// Tells why smelt ends without its answer.
pub(crate) fn fail(text: impl fmt::Display) {
    if is_log() {
        tracing::error!("{text}");
    } else {
        tell(format_args!("smelt: {text}"));
    }
}

/// Writes to standard error as it is, without a line's end.
pub(crate) fn tell_raw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Writes a part of the answer and shows it at once.
pub(crate) fn answer(text: impl fmt::Display) -> Result<(), Failed> {
    offer(text).map(drop)
}

/// Writes a part of an answer that goes on for ever; says whether somebody still reads.
pub(crate) fn offer(text: impl fmt::Display) -> Result<bool, Failed> {
    // In one piece: standard output is written line by line, and a table can have thousands.
    let text = text.to_string();
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failed::new(Exit::StageFailed, format!("cannot write the answer: {error}")))
        }
        written => Ok(written.is_ok()),
    }
}
