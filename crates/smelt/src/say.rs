//! Speaks to the user: answers on standard output, everything else on standard error.
//!
//! A reader that has gone away (a closed pager, `head`) is no failure of ours, so nothing here
//! panics as `println!` would; an answer that a full disk swallowed is one.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::exit::{Exit, Failed};

/// Writes to standard error; nobody can be told if that fails.
pub(crate) fn tell(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
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
