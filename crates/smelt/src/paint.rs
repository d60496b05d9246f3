//! Colours words for those who look at a terminal, and nobody else.
//!
//! By itself where the stream is a terminal that knows colours and `NO_COLOR` is not set
//! (<https://no-color.org>); `--color` overrules both.

use std::env;
use std::ffi::OsString;
use std::io::{IsTerminal as _, stderr, stdout};
use std::sync::OnceLock;

use clap::{ColorChoice, ValueEnum as _};

use crate::arguments::early;

/// When words are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

impl When {
    /// The same for the parser of the command line.
    pub(crate) fn for_clap(self) -> ColorChoice {
        match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
    }

    /// What the arguments say, before anybody has read them: faults of theirs are coloured, too.
    pub(crate) fn in_arguments(arguments: &[OsString]) -> Self {
        let word = early(arguments, "--color").and_then(|word| word.into_string().ok());
        word.and_then(|word| Self::from_str(&word, false).ok()).unwrap_or_default()
    }
}

/// What a word means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Good,
    Bad,
    Odd,
}

impl Paint {
    /// The number of the terminal's own colour, which its owner has chosen.
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Odd => "33",
        }
    }
}

/// Where words go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Whether standard output and standard error are coloured.
static COLOURED: OnceLock<[bool; 2]> = OnceLock::new();

/// Decides once for both streams.
pub(crate) fn decide(when: When) {
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let of = |is_terminal| colours(when, is_terminal, no_color, is_dumb);
    // The first word counts.
    let _ = COLOURED.set([of(stdout().is_terminal()), of(stderr().is_terminal())]);
}

fn colours(when: When, is_terminal: bool, no_color: bool, is_dumb: bool) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => is_terminal && !no_color && !is_dumb,
    }
}

/// Whether words of a stream are coloured.
pub(crate) fn is_coloured(stream: Stream) -> bool {
    COLOURED.get().copied().unwrap_or_default()[stream as usize]
}

/// `text`, coloured where the stream is.
pub(crate) fn paint(paint: Paint, text: &str, stream: Stream) -> String {
    match is_coloured(stream) {
        true => format!("\x1b[{}m{text}\x1b[0m", paint.code()),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let auto =
            |is_terminal, no_color, is_dumb| colours(When::Auto, is_terminal, no_color, is_dumb);
        assert!(auto(true, false, false));
        assert!(!auto(false, false, false) && !auto(true, true, false) && !auto(true, false, true));
        assert!(colours(When::Always, false, true, true));
        assert!(!colours(When::Never, true, false, false));
    }

    #[test]
    fn the_flag_is_found_before_anything_is_read() {
        let of = |words: &[&str]| {
            When::in_arguments(&words.iter().map(OsString::from).collect::<Vec<_>>())
        };
        assert_eq!(of(&["smelt", "run", "--color", "never"]), When::Never);
        assert_eq!(of(&["smelt", "--color=always", "run"]), When::Always);
        assert_eq!(of(&["smelt", "--color", "blue"]), When::Auto);
        assert_eq!(of(&["smelt", "run", "--color"]), When::Auto);
    }
}
