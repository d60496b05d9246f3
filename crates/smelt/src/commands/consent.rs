//! Asks somebody at a terminal before a model is fetched that was only to be asked or served: it may take hours and a disk.
//!
//! Where nobody sits at a terminal nobody is asked, and it is fetched: a script has named the model, and a server that
//! waited for an answer would never start.

use std::io::{self, BufRead, IsTerminal as _};

use crate::console::{tell, tell_raw};
use crate::exit::{Exit, Failed};
use crate::table::bytes;

/// What is less is fetched without a word: minutes on a slow line, and no disk is filled by it.
const ASKED_FROM_BYTES: u64 = 500 << 20;

/// Whether somebody has agreed to what is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// Whoever typed the command has.
    Given,
    /// Who sits at the terminal is asked.
    Asked,
}

/// What is fetched and made of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Bytes that come from elsewhere.
    pub(super) fetched_bytes: u64,
    /// Bytes of disk that all of it takes, what is fetched among them.
    pub(super) disk_bytes: u64,
    /// Bytes of disk that are free.
    pub(super) free_bytes: Option<u64>,
}

impl Consent {
    /// What `--yes` means.
    pub(super) fn of(yes: bool) -> Self {
        if yes { Self::Given } else { Self::Asked }
    }

    /// Goes on if that is agreed to.
    ///
    /// # Errors
    /// Where somebody does not want it.
    pub(super) fn obtain(self, model: &str, cost: &Cost) -> Result<(), Failed> {
        if self == Self::Given || cost.fetched_bytes < ASKED_FROM_BYTES {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            tell(words(model, cost));
            return Ok(());
        }
        tell_raw(&format!("{}. Go on? [Y/n] ", words(model, cost)));
        match agrees(&mut io::stdin().lock()) {
            true => Ok(()),
            false => Err(Failed::new(
                Exit::Interrupted,
                format!("nothing was fetched; smelt build {model} fetches it without a question"),
            )),
        }
    }
}

/// What a model costs, in a line.
fn words(model: &str, cost: &Cost) -> String {
    let Cost { fetched_bytes, disk_bytes, free_bytes } = *cost;
    let free = free_bytes.map(|free| format!(", of {} that are free", bytes(free)));
    format!(
        "{model}: {} are fetched, and all that is made of it takes {} of disk{}",
        bytes(fetched_bytes),
        bytes(disk_bytes),
        free.unwrap_or_default()
    )
}

/// Whether the next line says yes, as an empty one does; who is gone says nothing.
fn agrees(input: &mut dyn BufRead) -> bool {
    let mut answer = String::new();
    let count = input.read_line(&mut answer).unwrap_or(0);
    count > 0 && matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_line_agrees_and_no_line_does_not() {
        for (typed, expect) in [
            ("\n", true),
            ("y\n", true),
            ("YES\n", true),
            ("n\n", false),
            ("", false),
            ("what?\n", false),
        ] {
            assert_eq!(agrees(&mut typed.as_bytes()), expect, "{typed:?}");
        }
    }

    #[test]
    fn what_it_costs_is_one_line() {
        let cost = Cost { fetched_bytes: 4 << 30, disk_bytes: 6 << 30, free_bytes: Some(9 << 30) };
        assert_eq!(
            words("m", &cost),
            "m: 4.00 GiB are fetched, and all that is made of it takes 6.00 GiB of disk, of 9.00 GiB that are free"
        );
        let unknown = words("m", &Cost { free_bytes: None, ..cost });
        assert!(unknown.ends_with("6.00 GiB of disk"), "{unknown}");
    }
}
