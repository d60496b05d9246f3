//! Divides an engine's time between reading prompts and saying answers.
//!
//! Each has a clock of the time it was given; who is behind goes next, so that in any stretch in
//! which both have work, both are given the same time but for one step.  Who had no work comes back
//! at the other's time: nothing is saved up.

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Running a part of a prompt.
    Reading,
    /// One step of all answers.
    Saying,
}

/// How much time each kind of work was given.
#[derive(Clone, Debug, Default)]
pub struct Share {
    given_us: [u64; 2],
    had_work: [bool; 2],
}

impl Share {
    /// What to do next, of what there is to do.
    pub fn next(&mut self, is_reading: bool, is_saying: bool) -> Option<Work> {
        let has_work = [is_reading, is_saying];
        for (one, other) in [(0, 1), (1, 0)] {
            if has_work[one] && !self.had_work[one] {
                self.given_us[one] = self.given_us[one].max(self.given_us[other]);
            }
        }
        self.had_work = has_work;
        match has_work {
            [false, false] => None,
            [true, false] => Some(Work::Reading),
            [false, true] => Some(Work::Saying),
            [true, true] if self.given_us[0] <= self.given_us[1] => Some(Work::Reading),
            [true, true] => Some(Work::Saying),
        }
    }

    /// Takes note of a step's time.
    pub fn spend(&mut self, work: Work, time_us: u64) {
        self.given_us[work as usize] += time_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays steps of these times, all of both having work, and gives the time of each.
    fn play(reading_us: u64, saying_us: u64, steps: usize) -> [u64; 2] {
        let (mut share, mut given) = (Share::default(), [0, 0]);
        for _ in 0..steps {
            let work = share.next(true, true).unwrap();
            let time_us = [reading_us, saying_us][work as usize];
            share.spend(work, time_us);
            given[work as usize] += time_us;
        }
        given
    }

    #[test]
    fn both_are_given_the_same_time() {
        for (reading_us, saying_us) in [(1, 1), (100, 7), (3, 90)] {
            let [reading, saying] = play(reading_us, saying_us, 1000);
            assert!(reading.abs_diff(saying) <= reading_us.max(saying_us));
        }
    }

    #[test]
    fn nothing_is_saved_up() {
        let mut share = Share::default();
        for _ in 0..50 {
            assert_eq!(share.next(false, true), Some(Work::Saying));
            share.spend(Work::Saying, 10);
        }
        assert_eq!(share.next(true, true), Some(Work::Reading));
        share.spend(Work::Reading, 10);
        assert_eq!(share.next(true, true), Some(Work::Saying));
        assert_eq!(share.next(false, false), None);
    }
}
