//! Waits until a machine has its memory back.  Whether it has is decided purely.

use std::time::Duration;

use smelt_watch::Machine;

/// How often is looked.
pub(crate) const PERIOD: Duration = Duration::from_millis(200);
/// As much of what there was before the first attempt counts as all of it: something always grows.
const RECOVERED_PERCENT: u64 = 95;
/// Memory that has not grown for so many looks (3 s) comes back no further by waiting.
const STILL_LOOKS: usize = 15;
/// Growth below this (1 MiB) is noise.
const NOISE_BYTES: u64 = 1 << 20;

/// What is waited for, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Memory, as much as there was before the first attempt, where that is known.
    Available { before: Option<u64> },
    /// Contiguous memory, more than there was before an attempt that was refused some: as much again
    /// would be too little again.
    Contiguous { before: Option<u64> },
}

impl Default for Awaited {
    fn default() -> Self {
        Self::Available { before: None }
    }
}

impl Awaited {
    /// What there is now.
    pub(crate) fn now(self, machine: &Machine) -> Option<u64> {
        match self {
            Self::Available { .. } => machine.mem_available_bytes,
            Self::Contiguous { .. } => machine.cma_free_bytes,
        }
    }
}

/// What there is at each look, in bytes.
pub(crate) struct Settling {
    awaited: Awaited,
    most_bytes: u64,
    first_bytes: u64,
    looks_since_growth: usize,
    looks: usize,
}

/// Whether to wait on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It comes back.
    NotYet,
    /// As much as before is available.
    Recovered,
    /// No more comes back.
    Still,
}

impl Settling {
    pub(crate) fn new(awaited: Awaited) -> Self {
        Self { awaited, most_bytes: 0, first_bytes: 0, looks_since_growth: 0, looks: 0 }
    }

    /// Takes a look.
    pub(crate) fn take(&mut self, available_bytes: u64) -> Settled {
        if self.looks == 0 {
            self.first_bytes = available_bytes;
        }
        self.looks += 1;
        if available_bytes > self.most_bytes + NOISE_BYTES {
            self.most_bytes = available_bytes;
            self.looks_since_growth = 0;
        } else {
            self.looks_since_growth += 1;
        }
        let is_still = self.looks_since_growth >= STILL_LOOKS;
        let enough = |before: u64| available_bytes >= before / 100 * RECOVERED_PERCENT;
        match self.awaited {
            Awaited::Available { before: Some(before) } if enough(before) => Settled::Recovered,
            Awaited::Contiguous { before: Some(before) }
                if self.most_bytes <= before + NOISE_BYTES =>
            {
                Settled::NotYet
            }
            _ if is_still => Settled::Still,
            _ => Settled::NotYet,
        }
    }

    /// How it went, for a person.
    pub(crate) fn text(&self, waited: Duration) -> String {
        let [first, most] = [self.first_bytes, self.most_bytes.max(self.first_bytes)];
        let what = match self.awaited {
            Awaited::Available { .. } => "available",
            Awaited::Contiguous { .. } => "of contiguous memory free",
        };
        let waited = waited.as_secs_f64();
        format!("waited {waited:.1} s: {} MiB {what}, then {} MiB", first >> 20, most >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many looks it is settled, and how.
    fn looks(target: Option<u64>, available: impl Fn(u64) -> u64) -> (u64, Settled) {
        settles(Awaited::Available { before: target.map(|mib| mib << 20) }, available)
    }

    fn settles(awaited: Awaited, available: impl Fn(u64) -> u64) -> (u64, Settled) {
        let mut settling = Settling::new(awaited);
        (1..1000)
            .map(|look| (look, settling.take(available(look) << 20)))
            .find(|(_, settled)| *settled != Settled::NotYet)
            .unwrap()
    }

    #[test]
    fn memory_is_waited_for_as_long_as_it_comes_back() {
        assert_eq!(looks(Some(1000), |_| 950), (1, Settled::Recovered));
        assert_eq!(looks(Some(1000), |look| 100 * look), (10, Settled::Recovered));
        assert_eq!(looks(Some(1000), |look| (100 * look).min(500)), (20, Settled::Still));
        assert_eq!(looks(None, |_| 300), (16, Settled::Still));
        let slow = looks(Some(100_000), |look| if look < 40 { look / 2 * 10 } else { 200 });
        assert_eq!(slow, (55, Settled::Still), "half a look's growth is growth");
    }

    #[test]
    fn contiguous_memory_is_waited_for_until_there_is_more_than_was_too_little() {
        let looks = |before: Option<u64>, free: fn(u64) -> u64| {
            settles(Awaited::Contiguous { before: before.map(|mib| mib << 20) }, free)
        };
        let freed_late = |look| if look < 40 { 97 } else { 255 };
        assert_eq!(looks(Some(97), freed_late), (55, Settled::Still));
        assert_eq!(looks(None, |_| 97), (16, Settled::Still));
        let mut never = Settling::new(Awaited::Contiguous { before: Some(97 << 20) });
        assert!((0..1000).all(|_| never.take(97 << 20) == Settled::NotYet));
    }

    #[test]
    fn the_text_says_what_came_back() {
        let mut settling = Settling::new(Awaited::default());
        let _ = [100, 700, 650].map(|mib: u64| settling.take(mib << 20));
        let text = settling.text(Duration::from_millis(600));
        assert_eq!(text, "waited 0.6 s: 100 MiB available, then 700 MiB");
    }
}
