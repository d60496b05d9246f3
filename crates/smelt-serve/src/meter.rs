//! Counts what one key may use in a minute.
//!
//! A bucket holds what may be used at once and fills evenly, so a pause gives no more than a minute's worth.  Plain data: the
//! time comes from whoever asks.

use std::time::{Duration, Instant};

/// The time of which limits speak.
const MINUTE_S: f64 = 60.0;

/// What is left of a minute's worth.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// What is left and since when; full until something was used.
    left: Option<(f64, Instant)>,
}

impl Bucket {
    /// What is left of `most` a minute; what was used without asking may be more than there was.
    fn left(&self, most: u64, now: Instant) -> f64 {
        let most = most as f64;
        self.left.map_or(most, |(left, since)| {
            let passed_s = now.saturating_duration_since(since).as_secs_f64();
            (left + most * passed_s / MINUTE_S).min(most)
        })
    }

    /// Whether `amount` may be used, of `most` a minute.
    ///
    /// # Errors
    /// After which time it may.
    pub(crate) fn check(&self, amount: u64, most: u64, now: Instant) -> Result<(), Duration> {
        let lacks = amount as f64 - self.left(most, now);
        if lacks <= 0.0 {
            return Ok(());
        }
        Err(Duration::from_secs_f64(lacks * MINUTE_S / most.max(1) as f64))
    }

    /// Takes note that `amount` was used, of `most` a minute.
    pub(crate) fn spend(&mut self, amount: u64, most: u64, now: Instant) {
        self.left = Some((self.left(most, now) - amount as f64, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minutes_worth_may_be_used_at_once_and_comes_back_evenly() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        for _ in 0..6 {
            assert_eq!(bucket.check(1, 6, now), Ok(()));
            bucket.spend(1, 6, now);
        }
        assert_eq!(bucket.check(1, 6, now), Err(Duration::from_secs(10)));
        assert_eq!(bucket.check(1, 6, now + Duration::from_secs(10)), Ok(()));
        let later = now + Duration::from_secs(3600);
        assert_eq!(bucket.check(6, 6, later), Ok(()));
        assert!(bucket.check(7, 6, later).is_err(), "nothing is saved up");
    }

    #[test]
    fn what_was_used_beyond_is_paid_back() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        bucket.spend(300, 100, now);
        assert!(bucket.check(1, 100, now + Duration::from_secs(60)).is_err());
        assert_eq!(bucket.check(1, 100, now + Duration::from_secs(121)), Ok(()));
    }
}
