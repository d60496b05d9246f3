//! Speaks to the user: answers on standard output, everything else on standard error.
//!
//! A reader that has gone away (a closed pager, `head`) is no failure of ours, so nothing here
//! panics as `println!` would; an answer that a full disk swallowed is one.  Of a server, standard error is
//! a log, and every line of it an event.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tracing::level_filters::LevelFilter;

use crate::exit::{Exit, Failed};
use crate::paint::{Paint, Stream, is_coloured, paint};

/// Whether standard error is a log.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// How much is told, a [`Volume`].
static VOLUME: AtomicU8 = AtomicU8::new(Volume::Usual as u8);

/// How much is told besides the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Volume {
    /// What is wrong.
    Quiet,
    /// What a person wants to know.
    Usual,
    /// Every word.
    Verbose,
}

/// Tells so much from now on.
pub(crate) fn set_volume(volume: Volume) {
    VOLUME.store(volume as u8, Ordering::Release);
}

/// Whether every word is wanted.
pub(crate) fn is_verbose() -> bool {
    VOLUME.load(Ordering::Acquire) == Volume::Verbose as u8
}

/// Whether only what is wrong is wanted.
pub(crate) fn is_quiet() -> bool {
    VOLUME.load(Ordering::Acquire) == Volume::Quiet as u8
}

/// Makes standard error a log, as JSON or as text: what is told from now on is an event of it.
pub(crate) fn begin_log(is_json: bool) {
    let least = match VOLUME.load(Ordering::Acquire) {
        volume if volume == Volume::Quiet as u8 => LevelFilter::WARN,
        volume if volume == Volume::Verbose as u8 => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    };
    smelt_serve::log_to_stderr(is_json, is_coloured(Stream::Err), least);
    IS_LOG.store(true, Ordering::Release);
}

/// Whether standard error is a log.
pub(crate) fn is_log() -> bool {
    IS_LOG.load(Ordering::Acquire)
}

/// Tells what goes on, unless nobody wants to know.
pub(crate) fn tell(text: impl fmt::Display) {
    if is_log() {
        tracing::info!("{text}");
    } else if !is_quiet() {
        write_line(text);
    }
}

/// Tells what only they want to know who want every word.
pub(crate) fn tell_all(text: impl fmt::Display) {
    if is_log() {
        tracing::debug!("{text}");
    } else if is_verbose() {
        write_line(text);
    }
}

/// Writes to standard error; nobody can be told if that fails.
fn write_line(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Tells of what is not as it should be, and goes on.
pub(crate) fn warn(text: impl fmt::Display) {
    if is_log() {
        tracing::warn!("{text}");
    } else {
        write_line(format_args!("{} {text}", paint(Paint::Odd, "warning:", Stream::Err)));
    }
}

/// Tells why smelt ends without its answer.
pub(crate) fn fail(text: impl fmt::Display) {
    if is_log() {
        tracing::error!("{text}");
    } else {
        write_line(format_args!("{} {text}", paint(Paint::Bad, "smelt:", Stream::Err)));
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
