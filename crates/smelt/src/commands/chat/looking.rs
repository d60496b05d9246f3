//! Says on a terminal which tile of a picture is looked at, in one line that goes away.
//!
//! Towers take seconds for a tile on small devices, and a photograph has a dozen.

use std::io::{self, IsTerminal as _};

use crate::console::{is_quiet, tell_raw};

/// Goes to the line's beginning and empties it.
pub(super) const EMPTY: &str = "\r\x1b[K";

/// The line, if it is there; nothing is said where standard error is no terminal, or to whom wants to hear
/// nothing.
pub(super) struct Looking {
    is_heard: bool,
    is_shown: bool,
}

impl Looking {
    pub(super) fn new() -> Self {
        Self { is_heard: io::stderr().is_terminal() && !is_quiet(), is_shown: false }
    }

    /// The next tile is looked at.
    pub(super) fn at(&mut self, part: usize, parts: usize) {
        if self.is_heard {
            self.is_shown = true;
            tell_raw(&format!("{EMPTY}looking at tile {part} of {parts}"));
        }
    }

    /// Something else is to be said.
    pub(super) fn clear(&mut self) {
        if std::mem::replace(&mut self.is_shown, false) {
            tell_raw(EMPTY);
        }
    }
}
