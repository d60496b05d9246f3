//! Reads pressure stall information: how long tasks have waited for memory.
//!
//! The format is that of `Documentation/accounting/psi.rst`; a cgroup's `memory.pressure` and the
//! machine's `/proc/pressure/memory` share it.

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

fn total(text: &str, which: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(which))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
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
    fn a_kernel_without_the_account_is_no_error() {
        for text in ["", "some avg10=0.00 total=x\n", "some avg10=0.00 total=1\n"] {
            assert_eq!(Pressure::parse(text), None, "{text}");
        }
    }
}
