//! Says how far some work is: the share that is done and the time that is left.
//!
//! [`Doing`] takes lines as they come, of whoever works; [`Telling`] shows those of a command that does
//! the work itself, on a terminal in one live line, elsewhere every ten seconds.

use std::io::{IsTerminal as _, stderr};
use std::time::{Duration, Instant};

use smelt_watch::headway::{Headway, Pace, left_words, percent};

use crate::console::{is_log, is_verbose, tell, tell_raw};
use crate::live::{Foot, Size};

/// How often somebody hears of a long stage who has no terminal.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often a live line is drawn anew: lines come thousands a second.
const REDRAW: Duration = Duration::from_millis(100);

/// Some work, as its lines tell of it.
#[derive(Debug, Default)]
pub(crate) struct Doing {
    pace: Pace,
    what: String,
    /// Whether the last line said anything that the one before did not.
    is_news: bool,
}

impl Doing {
    /// Takes the last line that was said by `at`.
    pub(crate) fn hear(&mut self, at: Duration, line: &str) {
        let headway = Headway::parse(line);
        let before = self.pace.done();
        if let Some(headway) = headway {
            self.pace.take(at, headway.done);
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

    /// `42 %, about 3 min left`; empty where nothing is known.
    fn share(&self, at: Duration) -> String {
        let Some(done) = self.pace.done() else { return String::new() };
        let left = self.pace.left(at).map(left_words);
        [Some(percent(done)), left].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The share that is done, from 0 to 1.
    pub(crate) fn done(&self) -> Option<f64> {
        self.pace.done()
    }

    /// The time that is left.
    pub(crate) fn left(&self, at: Duration) -> Option<Duration> {
        self.pace.left(at)
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
            is_live: stderr().is_terminal() && !is_log(),
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
            let words = self.doing.words(at);
            tell_raw(&self.foot.draw(&[words], Size::of(&stderr())));
        } else if !self.is_live && self.told.elapsed() >= HEARTBEAT {
            self.stay(&self.doing.words(at));
        }
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
}
