//! Judges how another program's server is, and what to do with it.
//!
//! It has no clock and starts nothing: it is told what was seen when, and answers what is to be done.

use std::time::Duration;

/// How long a server that is asked nothing may be silent.
const IDLE_SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long one may be silent that has requests: some answer nothing else meanwhile.
const BUSY_SILENCE_MAX: Duration = Duration::from_secs(120);
/// The first wait before it is started again, which doubles each time until the longest.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
/// Who was well for so long has failed for another reason than at its start.
const WELL_FOR: Duration = Duration::from_secs(60);

/// What a server may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Until it is well for the first time.
    pub(super) start_max: Duration,
    /// All of its processes together.
    pub(super) memory_bytes_max: Option<u64>,
}

/// What was seen of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// When, on any clock that does not go back.
    pub(super) at: Duration,
    /// How its program ended, in words.
    pub(super) ended: Option<String>,
    /// Whether it said that it is well; else why not.
    pub(super) health: Option<Result<(), String>>,
    /// When the last byte of an answer came.
    pub(super) heard_at: Duration,
    /// Requests that it has.
    pub(super) live: usize,
    pub(super) memory_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Wait,
    /// It may be asked from now on.
    Ready,
    /// It is to be ended, for this reason, or has ended.
    Down(String),
    /// It is to be started.
    Start,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Starting { since: Duration },
    Ready { since: Duration, well_at: Duration },
    Resting { until: Duration },
}

/// A server's life.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    bounds: Bounds,
    phase: Phase,
    /// How often it failed in a row.
    failures: u32,
}

impl Keeper {
    /// Of one that was started at `at`.
    pub(super) fn new(bounds: Bounds, at: Duration) -> Self {
        Self { bounds, phase: Phase::Starting { since: at }, failures: 0 }
    }

    /// How long it rests from `at` on.
    pub(super) fn rest(&self, at: Duration) -> Duration {
        match self.phase {
            Phase::Resting { until } => until.saturating_sub(at),
            Phase::Starting { .. } | Phase::Ready { .. } => Duration::ZERO,
        }
    }

    /// Takes what was seen.
    pub(super) fn judge(&mut self, look: &Look) -> Verdict {
        if let Phase::Resting { until } = self.phase {
            if look.at < until {
                return Verdict::Wait;
            }
            self.phase = Phase::Starting { since: look.at };
            return Verdict::Start;
        }
        match self.fault(look) {
            Some(why) => {
                self.rest_from(look.at);
                Verdict::Down(why)
            }
            None => self.goes_on(look),
        }
    }

    /// What is wrong with it, if anything.
    fn fault(&self, look: &Look) -> Option<String> {
        if let Some(how) = &look.ended {
            return Some(how.clone());
        }
        if let Some(most) = self.bounds.memory_bytes_max.filter(|most| look.memory_bytes > *most) {
            let mib = |bytes: u64| bytes >> 20;
            let (held, most) = (mib(look.memory_bytes), mib(most));
            return Some(format!("it held {held} MiB, more than its {most} MiB, and was ended"));
        }
        match self.phase {
            Phase::Starting { since } if look.at.saturating_sub(since) > self.bounds.start_max => {
                let (seconds, why) = (self.bounds.start_max.as_secs(), unwell(look));
                Some(format!("it was not well {seconds} s after its start: {why}"))
            }
            // Whoever looks was away for as long, where it is well now.
            Phase::Ready { well_at, .. } if look.health != Some(Ok(())) => {
                let most = if look.live == 0 { IDLE_SILENCE_MAX } else { BUSY_SILENCE_MAX };
                let silent = look.at.saturating_sub(well_at.max(look.heard_at));
                let why =
                    || format!("it hung: silent for {} s: {}", silent.as_secs(), unwell(look));
                (silent > most).then(why)
            }
            Phase::Starting { .. } | Phase::Ready { .. } | Phase::Resting { .. } => None,
        }
    }

    fn goes_on(&mut self, look: &Look) -> Verdict {
        let is_well = matches!(look.health, Some(Ok(())));
        match &mut self.phase {
            Phase::Starting { .. } if is_well => {
                self.phase = Phase::Ready { since: look.at, well_at: look.at };
                return Verdict::Ready;
            }
            Phase::Ready { well_at, .. } if is_well => *well_at = look.at,
            Phase::Starting { .. } | Phase::Ready { .. } | Phase::Resting { .. } => {}
        }
        Verdict::Wait
    }

    fn rest_from(&mut self, at: Duration) {
        let was_well = match self.phase {
            Phase::Ready { since, .. } => at.saturating_sub(since) >= WELL_FOR,
            Phase::Starting { .. } | Phase::Resting { .. } => false,
        };
        self.failures = if was_well { 1 } else { self.failures.saturating_add(1) };
        let doubled = REST_MIN.saturating_mul(1 << (self.failures - 1).min(16));
        self.phase = Phase::Resting { until: at + doubled.min(REST_MAX) };
    }
}

/// Why it is not well, in words.
fn unwell(look: &Look) -> &str {
    match &look.health {
        Some(Err(why)) => why,
        Some(Ok(())) | None => "it does not answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { start_max: Duration::from_secs(30), memory_bytes_max: Some(100 << 20) };

    fn at(seconds: u64) -> Look {
        Look { at: Duration::from_secs(seconds), ..Look::default() }
    }

    fn well(seconds: u64) -> Look {
        Look { health: Some(Ok(())), ..at(seconds) }
    }

    fn silent(seconds: u64) -> Look {
        Look { health: Some(Err("connection refused".to_owned())), ..at(seconds) }
    }

    fn ready() -> Keeper {
        let mut keeper = Keeper::new(BOUNDS, Duration::ZERO);
        assert_eq!(keeper.judge(&silent(1)), Verdict::Wait);
        assert_eq!(keeper.judge(&well(2)), Verdict::Ready);
        keeper
    }

    #[test]
    fn one_that_is_never_well_is_ended_with_what_it_said() {
        let mut keeper = Keeper::new(BOUNDS, Duration::ZERO);
        assert_eq!(keeper.judge(&silent(30)), Verdict::Wait);
        let why = "it was not well 30 s after its start: connection refused";
        assert_eq!(keeper.judge(&silent(31)), Verdict::Down(why.to_owned()));
        assert_eq!(keeper.rest(Duration::from_secs(31)), REST_MIN);
    }

    #[test]
    fn one_that_ends_is_started_again_after_longer_and_longer_rests() {
        let mut keeper = Keeper::new(BOUNDS, Duration::ZERO);
        let mut now = 0;
        for rest in [1, 2, 4, 8, 16, 32, 60, 60] {
            let ended = Look { ended: Some("exit code 1".to_owned()), ..at(now) };
            assert_eq!(keeper.judge(&ended), Verdict::Down("exit code 1".to_owned()));
            assert_eq!(keeper.rest(Duration::from_secs(now)), Duration::from_secs(rest));
            assert_eq!(keeper.judge(&at(now + rest - 1)), Verdict::Wait);
            now += rest;
            assert_eq!(keeper.judge(&at(now)), Verdict::Start);
        }
        // One that was well for a while begins anew.
        assert_eq!(keeper.judge(&well(now)), Verdict::Ready);
        assert_eq!(keeper.judge(&well(now + 60)), Verdict::Wait);
        let ended = Look { ended: Some("signal 9".to_owned()), ..at(now + 60) };
        assert_eq!(keeper.judge(&ended), Verdict::Down("signal 9".to_owned()));
        assert_eq!(keeper.rest(Duration::from_secs(now + 60)), REST_MIN);
    }

    #[test]
    fn silence_counts_from_when_it_was_last_well() {
        let mut keeper = ready();
        assert_eq!(keeper.judge(&well(100)), Verdict::Wait);
        assert_eq!(keeper.judge(&silent(101)), Verdict::Wait);
    }

    #[test]
    fn one_that_hangs_is_told_from_one_that_works() {
        let mut keeper = ready();
        assert_eq!(keeper.judge(&silent(22)), Verdict::Wait);
        let busy = |seconds| Look { live: 1, ..silent(seconds) };
        assert_eq!(keeper.judge(&busy(23)), Verdict::Wait, "it has a request");
        let heard = Look { heard_at: Duration::from_secs(100), ..busy(200) };
        assert_eq!(keeper.judge(&heard), Verdict::Wait, "a byte came");
        let why = "it hung: silent for 121 s: connection refused";
        assert_eq!(keeper.judge(&busy(123)), Verdict::Down(why.to_owned()));
        let why = "it hung: silent for 21 s: connection refused";
        assert_eq!(ready().judge(&silent(23)), Verdict::Down(why.to_owned()));
    }

    #[test]
    fn one_that_takes_too_much_is_ended() {
        let full = Look { memory_bytes: 101 << 20, ..well(3) };
        let why = "it held 101 MiB, more than its 100 MiB, and was ended";
        assert_eq!(ready().judge(&full), Verdict::Down(why.to_owned()));
        let within = Look { memory_bytes: 100 << 20, ..well(3) };
        assert_eq!(ready().judge(&within), Verdict::Wait);
    }
}
