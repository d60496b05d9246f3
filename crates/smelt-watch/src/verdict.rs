//! Judges a running attempt by its budget.  Pure: time and samples are arguments.

use std::time::Duration;

use crate::tree::Sample;

/// What an attempt may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Resident bytes of the whole tree.
    pub rss_bytes_max: Option<u64>,
    /// Wall time.
    pub duration_max: Option<Duration>,
}

/// What to do with an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Let it run.
    Fine,
    /// End it.
    Stop(Why),
}

/// Why an attempt must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its processes together hold more than the budget.
    MemoryOverBudget {
        /// What they hold.
        rss_bytes: u64,
        /// What they may.
        rss_bytes_max: u64,
    },
    /// It has run longer than the budget.
    TimeOver {
        /// How long it may.
        duration_max: Duration,
    },
}

/// Judges the newest sample and the time gone.
pub fn judge(budget: &Budget, elapsed: Duration, sample: &Sample) -> Verdict {
    let rss_bytes = sample.rss_bytes;
    if let Some(rss_bytes_max) = budget.rss_bytes_max.filter(|&max| rss_bytes > max) {
        return Verdict::Stop(Why::MemoryOverBudget { rss_bytes, rss_bytes_max });
    }
    if let Some(duration_max) = budget.duration_max.filter(|&max| elapsed > max) {
        return Verdict::Stop(Why::TimeOver { duration_max });
    }
    Verdict::Fine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        rss_max: Option<u64>,
        seconds_max: Option<u64>,
        rss: u64,
        seconds: u64,
        expect: Verdict,
    ) {
        let budget =
            Budget { rss_bytes_max: rss_max, duration_max: seconds_max.map(Duration::from_secs) };
        let sample = Sample { rss_bytes: rss, ..Sample::default() };
        assert_eq!(judge(&budget, Duration::from_secs(seconds), &sample), expect);
    }

    #[test]
    fn budgets() {
        let memory = Why::MemoryOverBudget { rss_bytes: 101, rss_bytes_max: 100 };
        let time = Why::TimeOver { duration_max: Duration::from_secs(5) };
        check(None, None, u64::MAX, u64::MAX >> 1, Verdict::Fine);
        check(Some(100), Some(5), 100, 5, Verdict::Fine);
        check(Some(100), Some(5), 101, 0, Verdict::Stop(memory));
        check(Some(100), Some(5), 0, 6, Verdict::Stop(time));
        check(Some(100), Some(5), 101, 6, Verdict::Stop(memory));
    }
}
