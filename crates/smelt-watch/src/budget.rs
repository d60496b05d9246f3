//! Says whether an attempt has broken its own budget.  Pure: time and samples are arguments.

use std::time::Duration;

use crate::tree::Sample;

/// Time that is not counted is at most this many times the time allowed: whoever is stalled for longer
/// does not get on.
const EXCUSED_TIMES_MAX: u32 = 3;

/// What an attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Memory of the whole tree, in bytes.
    pub rss_bytes_max: Option<u64>,
    /// Wall time.
    pub duration_max: Option<Duration>,
}

/// How an attempt broke its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Its processes together hold more than the budget.
    Memory {
        /// What they hold.
        rss_bytes: u64,
        /// What they may.
        rss_bytes_max: u64,
    },
    /// It has run longer than the budget.
    Time {
        /// How long it may.
        duration_max: Duration,
    },
}

impl Budget {
    /// Judges the newest sample and the time gone, `excused` of which is not counted: the attempt was
    /// halted, or nothing of it could run for want of memory.
    pub fn broken_by(
        &self,
        elapsed: Duration,
        excused: Duration,
        sample: &Sample,
    ) -> Option<Broken> {
        let rss_bytes = sample.rss_bytes;
        if let Some(rss_bytes_max) = self.rss_bytes_max.filter(|&max| rss_bytes > max) {
            return Some(Broken::Memory { rss_bytes, rss_bytes_max });
        }
        // A limit may be as long as its field can say.
        let is_over = |&max: &Duration| {
            elapsed.saturating_sub(excused.min(max.saturating_mul(EXCUSED_TIMES_MAX))) > max
        };
        let duration_max = self.duration_max.filter(is_over)?;
        Some(Broken::Time { duration_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        (rss_max, seconds_max): (Option<u64>, Option<u64>),
        (rss, seconds, excused): (u64, u64, u64),
        expect: Option<Broken>,
    ) {
        let [elapsed, excused] = [seconds, excused].map(Duration::from_secs);
        let budget =
            Budget { rss_bytes_max: rss_max, duration_max: seconds_max.map(Duration::from_secs) };
        let sample = Sample { rss_bytes: rss, ..Sample::default() };
        assert_eq!(budget.broken_by(elapsed, excused, &sample), expect);
    }

    #[test]
    fn budgets() {
        let memory = Some(Broken::Memory { rss_bytes: 101, rss_bytes_max: 100 });
        let time = Some(Broken::Time { duration_max: Duration::from_secs(5) });
        let both = (Some(100), Some(5));
        check((None, None), (u64::MAX, u64::MAX >> 1, 0), None);
        check(both, (100, 5, 0), None);
        check(both, (101, 0, 0), memory);
        check(both, (0, 6, 0), time);
        check(both, (101, 6, 0), memory);
    }

    #[test]
    fn time_that_is_excused_is_not_counted_within_reason() {
        let time = Some(Broken::Time { duration_max: Duration::from_secs(5) });
        check((None, Some(5)), (0, 14, 9), None);
        check((None, Some(5)), (0, 15, 9), time);
        check((None, Some(5)), (0, 20, 100), None);
        check((None, Some(5)), (0, 21, 100), time);
        check((None, Some(u64::MAX)), (0, 21, 100), None);
    }
}
