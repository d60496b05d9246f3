//! Keeps what goes to and comes from a server below so many bytes a second, so that a line has room for others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::remote::{Blob, Contents, Entry, Key, Range, Ranges, Remote, RemoteError, first_within};

/// Bytes are moved in parts of so many seconds' worth: shorter ones cost a round trip more often.
const PART_S: f64 = 0.5;
/// How soon somebody who wants no more is heard.
const LOOK_AT_STOP: Duration = Duration::from_millis(100);

/// A server to and from which no more than so many bytes a second are moved.
pub struct Paced<'a> {
    remote: &'a dyn Remote,
    /// Nothing where as many are moved as can be.
    pace: Option<Mutex<Pace>>,
    stop: &'a AtomicBool,
}

/// Whose turn the line is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    bytes_per_s: u64,
    /// When the next byte may be moved.
    next: Instant,
}

impl Pace {
    /// From now on.
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), next: Instant::now() }
    }

    /// Takes its turn for bytes that are moved now: how long the next ones wait.  Time in which nothing was moved is not
    /// made up for.
    fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let lasts = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.next = self.next.max(now) + lasts;
        self.next.saturating_duration_since(now)
    }

    /// The same where the bytes before are through within so long, and how long that is; else nothing is taken.
    pub(crate) fn take_within(
        &mut self,
        bytes: u64,
        now: Instant,
        most: Duration,
    ) -> Option<Duration> {
        let wait = self.next.saturating_duration_since(now);
        if wait > most {
            return None;
        }
        self.take(bytes, now);
        Some(wait)
    }
}

impl<'a> Paced<'a> {
    /// The same server at no more than `bytes_per_s`, where that is given, until `stop` is set.
    pub fn new(remote: &'a dyn Remote, bytes_per_s: Option<u64>, stop: &'a AtomicBool) -> Self {
        let pace = bytes_per_s.map(|rate| Mutex::new(Pace::new(rate)));
        Self { remote, pace, stop }
    }

    /// How many of them are moved at once: at least one.
    fn part<T>(&self, blobs: &[T], bytes: impl Fn(&T) -> u32) -> usize {
        let Some(pace) = &self.pace else { return blobs.len() };
        let most = locked(pace).bytes_per_s as f64 * PART_S;
        first_within(blobs, most as u64, bytes)
    }

    /// Reads what is named, some of it at a time.
    fn read_parts<T>(
        &self,
        mut names: &[T],
        bytes: impl Fn(&T) -> u32,
        read: impl Fn(&[T]) -> Contents,
    ) -> Contents {
        let mut all = Vec::with_capacity(names.len());
        while !names.is_empty() {
            let (part, rest) = names.split_at(self.part(names, &bytes));
            let contents = read(part)?;
            self.moved(contents.iter().flatten().map(|content| content.len() as u64).sum());
            all.extend(contents);
            names = rest;
        }
        Ok(all)
    }

    /// Waits as long as moving bytes should have taken.
    fn moved(&self, bytes: u64) {
        let Some(pace) = &self.pace else { return };
        let now = Instant::now();
        let until = now + locked(pace).take(bytes, now);
        while !self.stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK_AT_STOP));
        }
    }
}

fn locked(pace: &Mutex<Pace>) -> MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote for Paced<'_> {
    fn name(&self) -> &str {
        self.remote.name()
    }

    fn instance(&self) -> &str {
        self.remote.instance()
    }

    fn missing(&self, blobs: &[Blob]) -> Result<Vec<Blob>, RemoteError> {
        self.remote.missing(blobs)
    }

    fn read(&self, blobs: &[Blob]) -> Contents {
        self.read_parts(blobs, |blob| blob.bytes, |part| self.remote.read(part))
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.remote.ranges().map(|_| self as &dyn Ranges)
    }

    fn write(&self, mut blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        while !blobs.is_empty() {
            let (part, rest) = blobs.split_at(self.part(blobs, |(blob, _)| blob.bytes));
            self.remote.write(part)?;
            self.moved(part.iter().map(|(blob, _)| u64::from(blob.bytes)).sum());
            blobs = rest;
        }
        Ok(())
    }

    fn entry(&self, key: &Key) -> Result<Option<Entry>, RemoteError> {
        self.remote.entry(key)
    }

    fn publish(&self, key: &Key, entry: &Entry) -> Result<(), RemoteError> {
        self.remote.publish(key, entry)
    }
}

impl Ranges for Paced<'_> {
    fn read_ranges(&self, ranges: &[Range]) -> Contents {
        let Some(remote) = self.remote.ranges() else { return Ok(vec![None; ranges.len()]) };
        self.read_parts(ranges, |range| range.bytes, |part| remote.read_ranges(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_for_those_before_and_silence_earns_nothing() {
        let begin = Instant::now();
        let at = |s: f64| begin + Duration::from_secs_f64(s);
        let mut pace = Pace { bytes_per_s: 1000, next: begin };
        assert_eq!(pace.take(500, begin), Duration::from_millis(500));
        assert_eq!(pace.take(500, at(0.25)), Duration::from_millis(750));
        assert_eq!(pace.take(100, at(10.0)), Duration::from_millis(100));
        assert_eq!(pace.take(0, at(20.0)), Duration::ZERO);
        let mut within = |bytes, now| pace.take_within(bytes, now, Duration::from_secs(1));
        assert_eq!(within(1500, at(30.0)), Some(Duration::ZERO));
        assert_eq!(within(1, at(30.0)), None);
        assert_eq!(within(100, at(31.0)), Some(Duration::from_millis(500)));
        assert_eq!(within(100, at(31.0)), Some(Duration::from_millis(600)));
    }
}
