//! Says how far some work is: the share that is done and the time that is left.
//!
//! [`Doing`] takes lines as they come, of whoever works; [`Telling`] shows those of a command that does
//! the work itself, on a terminal in one live line, elsewhere every ten seconds; [`Pacing`] says which of them are
//! worth a line of a log.

use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

use smelt_watch::headway::{Headway, Pace, left_words, percent};

use smelt_exec::served;

use crate::console::{is_log, is_quiet, is_verbose, tell, tell_raw};
use crate::live::{Foot, Size};
use crate::table::{bytes, seconds};

/// How often somebody hears of a long stage who has no terminal.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// As long as less than this part is done, the last time tells more than this one.
const EARLY: f64 = 0.1;
/// How often a live line is drawn anew: lines come thousands a second.
const REDRAW: Duration = Duration::from_millis(100);

/// Some work, as its lines tell of it.
#[derive(Debug, Default)]
pub(crate) struct Doing {
    pace: Pace,
    /// What it took the last time, where it is known.
    expected: Option<Duration>,
    what: String,
    /// Of the last share that was told, how many units it is of how many.
    counts: Option<[u64; 2]>,
    /// Whether the last line said anything that the one before did not.
    is_news: bool,
}

impl Doing {
    /// Of work that took so long the last time.
    pub(crate) fn expected_to_take(expected: Option<Duration>) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Takes the last line that was said by `at`.
    pub(crate) fn hear(&mut self, at: Duration, line: &str) {
        let headway = Headway::parse(line);
        let before = self.pace.done();
        if let Some(headway) = headway {
            self.pace.take(at, headway.done);
            self.counts = headway.counts;
        }
        let what = headway.map_or(line, |headway| headway.what);
        self.is_news = self.what != what || self.pace.done() != before;
        what.clone_into(&mut self.what);
    }

    /// Whether the last line said anything that the one before did not.
    pub(crate) fn is_news(&self) -> bool {
        self.is_news
    }

    /// `42 %, about 3 min left: packing a.weight`, as much of it as is known at `at`.
    pub(crate) fn words(&self, at: Duration) -> String {
        let share = self.share(at);
        match (share.is_empty(), self.what.is_empty()) {
            (true, _) => self.what.clone(),
            (false, true) => share,
            (false, false) => format!("{share}: {}", self.what),
        }
    }

    /// Whether nothing was said yet.
    pub(crate) fn is_silent(&self) -> bool {
        self.what.is_empty() && self.pace.done().is_none()
    }

    /// What it does, without its share.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// `42 %, about 3 min left`; empty where nothing is known.
    fn share(&self, at: Duration) -> String {
        let known = [self.pace.done().map(percent), self.left(at).map(left_words)];
        known.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// How many units are done of how many, where they are told.
    pub(crate) fn counts(&self) -> Option<[u64; 2]> {
        self.counts
    }

    /// The part that is done in a second.
    pub(crate) fn speed(&self) -> Option<f64> {
        self.pace.speed()
    }

    /// The share that is done, from 0 to 1.
    pub(crate) fn done(&self) -> Option<f64> {
        self.pace.done()
    }

    /// The time that is left: as it goes on now, and before that can be told, as long as it took the last time.
    /// What should be over already is not known.
    pub(crate) fn left(&self, at: Duration) -> Option<Duration> {
        let learned = self.expected.and_then(|expected| expected.checked_sub(at));
        let learned = learned.filter(|left| !left.is_zero());
        match self.pace.done() {
            // The first part of some work is seldom like the rest.
            None | Some(..EARLY) => learned.or_else(|| self.pace.left(at)),
            Some(_) => self.pace.left(at),
        }
    }
}

/// Shows the work of a command while it works.
pub(crate) struct Telling {
    began: Instant,
    /// When something of it was last shown.
    told: Instant,
    doing: Doing,
    foot: Foot,
    is_live: bool,
}

impl Telling {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            told: Instant::now(),
            doing: Doing::default(),
            foot: Foot::default(),
            is_live: stderr().is_terminal() && !is_log() && !is_quiet(),
        }
    }

    /// Takes a line.  How far it is shows in place, and stays only for those who want every word;
    /// anything else stays.
    pub(crate) fn hear(&mut self, line: &str) {
        let at = self.began.elapsed();
        self.doing.hear(at, line);
        let is_headway = Headway::parse(line).is_some();
        if !is_headway {
            self.stay(line);
        } else if is_verbose() {
            self.stay(&self.doing.words(at));
        } else if self.is_live && self.told.elapsed() >= REDRAW {
            self.told = Instant::now();
            let line = self.line(at);
            tell_raw(&self.foot.draw(&[line], Size::of(&stderr())));
        } else if !self.is_live && self.told.elapsed() >= HEARTBEAT {
            self.stay(&self.line(at));
        }
    }

    /// What stands on a stage's line, too: the time, the memory that this process holds, and how far it is.
    fn line(&self, at: Duration) -> String {
        let took = seconds(at.as_secs_f64());
        format!("{took} {} {}", bytes(served::own_bytes()), self.doing.words(at))
    }

    fn stay(&mut self, line: &str) {
        self.clear();
        tell(line);
        self.told = Instant::now();
    }

    fn clear(&mut self) {
        let text = self.foot.clear();
        if !text.is_empty() {
            tell_raw(&text);
        }
    }
}

impl Drop for Telling {
    /// Leaves the terminal as it was.
    fn drop(&mut self) {
        self.clear();
    }
}

/// Says which lines of some work are worth a line of a log: what is new, and how far it is every ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    doing: Doing,
    /// When something was last worth it, and what was done then.
    told: Option<(Duration, String)>,
}

impl Pacing {
    /// Takes the line that was said at `at`; says whether it is worth it.
    pub(crate) fn hear(&mut self, at: Duration, line: &str) -> bool {
        self.doing.hear(at, line);
        let is_due = self
            .told
            .as_ref()
            .is_none_or(|(told, what)| what != self.doing.what() || at >= *told + HEARTBEAT);
        if is_due {
            self.told = Some((at, self.doing.what().to_owned()));
        }
        is_due
    }

    /// The work, as far as it was told.
    pub(crate) fn doing(&self) -> &Doing {
        &self.doing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_said() {
        let mut doing = Doing::default();
        let mut check = |at, line: &str, expect: &str| {
            let at = Duration::from_secs(at);
            doing.hear(at, line);
            assert_eq!(doing.words(at), expect);
        };
        check(0, "", "");
        check(1, "checking digests", "checking digests");
        check(2, "[0/8] a", "0 %: a");
        check(12, "[2/8] b", "25 %, about 30 s left: b");
        // A word between changes nothing of it.
        check(12, "4 tensors are rounded", "25 %, about 30 s left: 4 tensors are rounded");
        check(42, "[8/8]", "100 %");
    }

    #[test]
    fn what_it_took_before_is_said_until_it_tells_itself() {
        let mut doing = Doing::expected_to_take(Some(Duration::from_secs(60)));
        let mut check = |at, line: &str, expect: &str| {
            let at = Duration::from_secs(at);
            doing.hear(at, line);
            assert_eq!(doing.words(at), expect);
        };
        check(1, "opening", "about 60 s left: opening");
        check(20, "[1/100] a", "1 %, about 40 s left: a");
        check(40, "[41/100] b", "41 %, about 30 s left: b");
        let mut doing = Doing::expected_to_take(Some(Duration::from_secs(5)));
        doing.hear(Duration::from_secs(9), "still there");
        assert_eq!(doing.words(Duration::from_secs(9)), "still there");
    }

    #[test]
    fn a_log_has_a_line_for_what_is_new_and_every_ten_seconds() {
        let mut pacing = Pacing::default();
        let lines = [
            (0, "[0/10] opening", true),
            (1, "[1/10] comparing", true),
            (2, "[2/10] comparing", false),
            (10, "[5/10] comparing", false),
            (11, "[6/10] comparing", true),
            (12, "[8/10] running", true),
        ];
        for (at, line, expect) in lines {
            assert_eq!(pacing.hear(Duration::from_secs(at), line), expect, "{line}");
        }
        assert_eq!(pacing.doing().done(), Some(0.8));
    }
}
