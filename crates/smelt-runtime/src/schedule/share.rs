//! Divides an engine's time between reading prompts and saying answers.
//!
//! Each has a clock of the time it was given; who is behind goes next, so that in any stretch in
//! which both have work, both are given the same time but for some steps.  Who had no work comes back
//! at the other's time: nothing is saved up.  A chunk that ends a prompt may go ahead of its time: few words that come
//! behind a chunk of a long prompt are answered before the answers under way have caught up with that.

/// How long answers, and whoever comes, may wait for a chunk of a prompt.
pub(super) const STALL_US: u64 = 80_000;

/// How much more time than saying reading may be given by chunks that end a prompt: that of a chunk, and half as much.
const AHEAD_US_MAX: u64 = STALL_US + STALL_US / 2;

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Running a part of a prompt.
    Reading,
    /// One step of all answers.
    Saying,
}

/// The chunk of a prompt that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptChunk {
    /// How long it will take, if that is known and the prompt ends with it.
    pub ends_in_us: Option<u64>,
}

/// How much time each kind of work was given.
#[derive(Clone, Debug, Default)]
pub struct Share {
    given_us: [u64; 2],
    had_work: [bool; 2],
    /// What the last chunk took, and what saying was given since.
    chunk_us: u64,
    said_us: u64,
}

impl Share {
    /// What to do next, of what there is to do.
    pub fn next(&mut self, chunk: Option<PromptChunk>, is_saying: bool) -> Option<Work> {
        let has_work = [chunk.is_some(), is_saying];
        for (one, other) in [(0, 1), (1, 0)] {
            if has_work[one] && !self.had_work[one] {
                self.given_us[one] = self.given_us[one].max(self.given_us[other]);
            }
        }
        self.had_work = has_work;
        match chunk {
            Some(chunk) if !is_saying || self.may_read(chunk) => Some(Work::Reading),
            _ => is_saying.then_some(Work::Saying),
        }
    }

    /// Whether the chunk goes before the next step of answers.  Where chunks went ahead of their time, prompts still wait
    /// no longer for answers than answers did for the last chunk.
    fn may_read(&self, chunk: PromptChunk) -> bool {
        let [reading_us, saying_us] = self.given_us;
        let ahead_us = reading_us.saturating_sub(saying_us);
        let may_go_ahead = chunk.ends_in_us.is_some_and(|us| ahead_us + us <= AHEAD_US_MAX);
        ahead_us == 0 || may_go_ahead || self.said_us >= self.chunk_us.max(STALL_US)
    }

    /// Takes note of a step's time.
    pub fn spend(&mut self, work: Work, time_us: u64) {
        self.given_us[work as usize] += time_us;
        match work {
            Work::Reading => (self.chunk_us, self.said_us) = (time_us, 0),
            Work::Saying => self.said_us += time_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Option<PromptChunk> = Some(PromptChunk { ends_in_us: None });

    /// Plays steps of these times, all of both having work, and gives the time of each.
    fn play(chunk: PromptChunk, reading_us: u64, saying_us: u64, steps: usize) -> [u64; 2] {
        let (mut share, mut given) = (Share::default(), [0, 0]);
        for _ in 0..steps {
            let work = share.next(Some(chunk), true).unwrap();
            let time_us = [reading_us, saying_us][work as usize];
            share.spend(work, time_us);
            given[work as usize] += time_us;
        }
        given
    }

    #[test]
    fn both_are_given_the_same_time() {
        for (reading_us, saying_us) in [(1, 1), (100, 7), (3, 90), (90_000, 20_000)] {
            let [reading, saying] = play(LONG.unwrap(), reading_us, saying_us, 1000);
            assert!(reading.abs_diff(saying) <= reading_us.max(saying_us));
            // Prompts that are short without end are no more than a few ahead.
            let short = PromptChunk { ends_in_us: Some(reading_us) };
            let [reading, saying] = play(short, reading_us, saying_us, 1000);
            assert!(reading.saturating_sub(saying) <= AHEAD_US_MAX.max(reading_us));
            assert!(saying.saturating_sub(reading) <= saying_us);
        }
    }

    #[test]
    fn what_is_short_goes_before_answers_have_caught_up() {
        let mut share = Share::default();
        assert_eq!(share.next(LONG, true), Some(Work::Reading));
        share.spend(Work::Reading, STALL_US);
        assert_eq!(share.clone().next(LONG, true), Some(Work::Saying));
        for (us, expect) in [(STALL_US / 2, Work::Reading), (STALL_US / 2 + 1, Work::Saying)] {
            let chunk = Some(PromptChunk { ends_in_us: Some(us) });
            assert_eq!(share.clone().next(chunk, true), Some(expect), "{us}");
        }
        // The long one waits no longer for it than for as much as a chunk took.
        share.spend(Work::Reading, STALL_US / 2);
        share.spend(Work::Saying, STALL_US - 1);
        assert_eq!(share.clone().next(LONG, true), Some(Work::Saying));
        share.spend(Work::Saying, 1);
        assert_eq!(share.next(LONG, true), Some(Work::Reading));
    }

    #[test]
    fn nothing_is_saved_up() {
        let mut share = Share::default();
        for _ in 0..50 {
            assert_eq!(share.next(None, true), Some(Work::Saying));
            share.spend(Work::Saying, 10);
        }
        assert_eq!(share.next(LONG, true), Some(Work::Reading));
        share.spend(Work::Reading, 10);
        assert_eq!(share.next(LONG, true), Some(Work::Saying));
        assert_eq!(share.next(None, false), None);
    }
}
