//! Reads pressure stall information: how long tasks have waited for memory.
//!
//! The format is that of `Documentation/accounting/psi.rst`; a cgroup's `memory.pressure` and the
//! machine's `/proc/pressure/memory` share it.

use serde::Serialize;

/// Time stalled since the machine, or the group, began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    /// Microseconds in which at least one task waited for memory.
    pub some_us: u64,
    /// Microseconds in which nobody could do anything else.
    pub full_us: u64,
}

impl Pressure {
    /// Takes the text apart; `None` where the kernel keeps no such account.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self { some_us: total(text, "some")?, full_us: total(text, "full")? })
    }
}

/// The shares of the last ten seconds that were stalled, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Averages {
    /// Of at least one task.
    pub some_percent: f64,
    /// Of all.
    pub full_percent: f64,
}

impl Averages {
    /// Takes the text apart; `None` where the kernel keeps no such account.
    pub fn parse(text: &str) -> Option<Self> {
        let percent = |which| value(text, which, "avg10=")?.parse().ok();
        Some(Self { some_percent: percent("some")?, full_percent: percent("full")? })
    }
}

fn total(text: &str, which: &str) -> Option<u64> {
    value(text, which, "total=")?.parse().ok()
}

/// The text behind `name` in the line that begins with `which`.
fn value<'a>(text: &'a str, which: &str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(which))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found() {
        let text = "some avg10=0.00 avg60=1.20 avg300=0.00 total=90382917\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=18887691\n";
        assert_eq!(
            Pressure::parse(text),
            Some(Pressure { some_us: 90_382_917, full_us: 18_887_691 })
        );
    }

    #[test]
    fn averages_are_found() {
        let text = "some avg10=12.50 avg60=1.20 total=9\nfull avg10=0.25 avg60=0.00 total=1\n";
        let expect = Averages { some_percent: 12.5, full_percent: 0.25 };
        assert_eq!(Averages::parse(text), Some(expect));
        assert_eq!(Averages::parse("some avg10=1\n"), None);
    }

    #[test]
    fn a_kernel_without_the_account_is_no_error() {
        for text in ["", "some avg10=0.00 total=x\n", "some avg10=0.00 total=1\n"] {
            assert_eq!(Pressure::parse(text), None, "{text}");
        }
    }
}
