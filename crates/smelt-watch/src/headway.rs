//! Reads from a program's lines how much of its work is done, and guesses how long the rest takes.
//!
//! A line says so by how it begins: `[12/345] what it does`, as ninja does, in whatever unit, or
//! `[ 42%] what it does`, as CMake does.  smelt's own stages speak the first form; any program may.
//! Plain functions over lines and times; it has no clock.

use std::time::Duration;

/// Points that are remembered; more say nothing that a rate needs.
const POINTS_MAX: usize = 64;
/// What has to have passed, in time and as a part of the work, before a rate means anything.
const SEEN_MIN: Duration = Duration::from_secs(3);
const DONE_MIN: f64 = 0.005;

/// What a line says of its program's work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Headway<'a> {
    /// The part that is done, from 0 to 1.
    pub done: f64,
    /// How many units are done of how many, where it counts some.
    pub counts: Option<[u64; 2]>,
    /// What it does now.
    pub what: &'a str,
}

impl<'a> Headway<'a> {
    /// What `line` says, if it speaks one of the two forms.
    pub fn parse(line: &'a str) -> Option<Self> {
        let (share, what) = line.trim_start().strip_prefix('[')?.split_once(']')?;
        let share = share.trim();
        let (done, counts) = match share.strip_suffix('%') {
            Some(percent) => (number(percent.trim_end())? / 100.0, None),
            None => {
                let (done, all) = share.split_once('/')?;
                let (done, all) = (whole(done)?, whole(all)?);
                if all == 0 {
                    return None;
                }
                (done as f64 / all as f64, Some([done, all]))
            }
        };
        (0.0..=1.0).contains(&done).then(|| Self { done, counts, what: what.trim() })
    }

    /// `42 %`.  Only the end is 100 %.
    pub fn percent(&self) -> String {
        percent(self.done)
    }
}

/// `42 %`; only what is done is 100 %.
pub fn percent(done: f64) -> String {
    format!("{} %", (done * 100.0).floor())
}

/// Digits alone, where a standard parser takes signs.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_plain.then(|| text.parse().ok())?
}

/// How fast some work goes on.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// When so much was done, in order.
    points: Vec<(Duration, f64)>,
}

impl Pace {
    /// At `at`, the part `done` was done.  What goes back has begun anew.
    pub fn take(&mut self, at: Duration, done: f64) {
        match self.points.last() {
            Some((_, last)) if *last == done => return,
            Some((_, last)) if *last > done => self.points.clear(),
            _ => {}
        }
        if self.points.len() == POINTS_MAX {
            let mut index = 0;
            // The first one stays.
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        self.points.push((at, done));
    }

    /// How much is done, as far as is known.
    pub fn done(&self) -> Option<f64> {
        self.points.last().map(|(_, done)| *done)
    }

    /// The part that is done in a second, as in the later half of what was seen; `None` while too little was seen
    /// to say.
    pub fn speed(&self) -> Option<f64> {
        let (first, (last_at, last)) = (self.points.first()?, *self.points.last()?);
        let middle = first.0 + last_at.saturating_sub(first.0) / 2;
        let (at, done) = *self.points.iter().rfind(|(at, _)| *at <= middle)?;
        let is_enough = last_at.saturating_sub(first.0) >= SEEN_MIN && last - first.1 >= DONE_MIN;
        let speed = (last - done) / last_at.saturating_sub(at).as_secs_f64();
        (is_enough && speed.is_finite()).then_some(speed)
    }

    /// How long the rest takes, seen at `now`, if it goes on at that speed; `None` while too little was seen to say,
    /// and when it should be over already.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let (last_at, last) = *self.points.last()?;
        let rest = Duration::try_from_secs_f64((1.0 - last) / self.speed()?).ok()?;
        rest.checked_sub(now.saturating_sub(last_at)).filter(|rest| !rest.is_zero())
    }
}

/// `about 3 min left`: as exact as such a guess is.
pub fn left_words(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..=5 => "a few seconds left".to_owned(),
        6..=94 => format!("about {} s left", seconds.div_ceil(5) * 5),
        95..=5369 => format!("about {} min left", (seconds + 30) / 60),
        _ => format!("about {:.1} h left", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_forms_say_how_much_is_done() {
        let check = |line: &str, expect: Option<(f64, &str)>| {
            let found = Headway::parse(line).map(|said| (said.done, said.what));
            assert_eq!(found, expect, "{line:?}");
        };
        check("[1/4] packing a.weight", Some((0.25, "packing a.weight")));
        check("[ 50%] Building CXX object a.o", Some((0.5, "Building CXX object a.o")));
        check("  [12.5 %] x", Some((0.125, "x")));
        check("[3/3]", Some((1.0, "")));
        assert_eq!(Headway::parse("[1/4] a").unwrap().counts, Some([1, 4]));
        assert_eq!(Headway::parse("[25%] a").unwrap().counts, None);
        for other in [
            "",
            "packing",
            "[x/3] a",
            "[3/x] a",
            "[4/3] a",
            "[0/0] a",
            "[101%] a",
            "[-1/3] a",
            "[+1/3] a",
            "[/] a",
            "[%] a",
            "[inf%] a",
            "[NaN%]",
            "[1/3 a",
            "[I] [TRT] loaded",
            "[1/2/3] a",
            "[99999999999999999999/3] a",
        ] {
            check(other, None);
        }
        assert_eq!(percent(0.999), "99 %");
        assert_eq!(percent(1.0), "100 %");
    }

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn left(points: &[(f64, f64)], now: f64) -> Option<f64> {
        let mut pace = Pace::default();
        points.iter().for_each(|(seconds, done)| pace.take(at(*seconds), *done));
        pace.left(at(now)).map(|left| (left.as_secs_f64() * 10.0).round() / 10.0)
    }

    #[test]
    fn what_is_left_follows_from_the_later_half() {
        // Steady.
        assert_eq!(left(&[(0.0, 0.0), (5.0, 0.25), (10.0, 0.5)], 10.0), Some(10.0));
        // Time that passed since the last word is not left.
        assert_eq!(left(&[(0.0, 0.0), (5.0, 0.25), (10.0, 0.5)], 14.0), Some(6.0));
        assert_eq!(left(&[(0.0, 0.0), (5.0, 0.25), (10.0, 0.5)], 21.0), None);
        // Now twice as fast as at first.
        assert_eq!(left(&[(0.0, 0.0), (10.0, 0.2), (20.0, 0.6)], 20.0), Some(10.0));
        // It began late: what came before the first word was other work.
        assert_eq!(left(&[(100.0, 0.0), (110.0, 0.5)], 110.0), Some(10.0));
        assert_eq!(left(&[(0.0, 0.0), (10.0, 1.0)], 10.0), None);
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(left(&[], 9.0), None);
        assert_eq!(left(&[(0.0, 0.4)], 9.0), None);
        assert_eq!(left(&[(0.0, 0.0), (2.0, 0.5)], 2.0), None);
        assert_eq!(left(&[(0.0, 0.0), (60.0, 0.001)], 60.0), None);
        // It went back, so it began anew.
        assert_eq!(left(&[(0.0, 0.0), (10.0, 0.5), (11.0, 0.1)], 11.0), None);
    }

    #[test]
    fn a_speed_is_that_of_the_later_half() {
        let speed = |points: &[(f64, f64)]| {
            let mut pace = Pace::default();
            points.iter().for_each(|(seconds, done)| pace.take(at(*seconds), *done));
            pace.speed().map(|speed| (speed * 1000.0).round() / 1000.0)
        };
        assert_eq!(speed(&[(0.0, 0.0), (10.0, 0.2), (20.0, 0.6)]), Some(0.04));
        assert_eq!(speed(&[(0.0, 0.0), (2.0, 0.5)]), None);
        assert_eq!(speed(&[]), None);
    }

    #[test]
    fn many_points_are_thinned_out() {
        let mut pace = Pace::default();
        for point in 0..=100_000 {
            pace.take(at(f64::from(point)), f64::from(point) / 200_000.0);
        }
        assert!(pace.points.len() <= POINTS_MAX);
        assert_eq!(pace.done(), Some(0.5));
        let left = pace.left(at(100_000.0)).unwrap().as_secs_f64();
        assert!((left - 100_000.0).abs() < 1.0, "{left}");
    }

    #[test]
    fn words_are_as_exact_as_the_guess() {
        let check = |seconds, expect: &str| assert_eq!(left_words(at(seconds)), expect);
        check(2.0, "a few seconds left");
        check(41.0, "about 45 s left");
        check(179.0, "about 3 min left");
        check(5400.0, "about 1.5 h left");
    }
}
