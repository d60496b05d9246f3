//! Splits work over threads by ranges that are fixed before the work begins.
//!
//! A count comes in, ranges go out, each done by one thread of a [`pool`](super::pool).  Which thread
//! does a range never changes what the range computes.  Knows nothing of the arithmetic.

use std::num::NonZero;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::pool::Pool;

/// More threads than this gain nothing on the machines this engine is for.
const THREADS_MAX: usize = 64;
/// Ranges a thread: a thread that the system takes away for a while leaves the others this much finer
/// a remainder, and each range is long enough to stream.
const RANGES_PER_THREAD: usize = 4;

/// The threads of one engine.
#[derive(Debug)]
pub(crate) struct Threads(Pool);

/// The threads that share one piece of work.
#[derive(Clone, Copy)]
pub(crate) struct Team<'a> {
    pool: &'a Pool,
    count: usize,
}

impl Threads {
    /// `count` threads, held to 1..=64.
    pub(crate) fn new(count: usize) -> Self {
        Self(Pool::new(count.clamp(1, THREADS_MAX)))
    }

    /// As many threads as the machine gives this process.
    pub(crate) fn available() -> Self {
        Self::new(thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// All threads when `work` (multiplications, roughly) is worth waking them, else one.
    pub(crate) fn for_work(&self, work: usize) -> Team<'_> {
        /// Handing work to a thread that still spins costs about 1 us, the time of this many
        /// multiplications.
        const WORK_MIN: usize = 1 << 14;
        let count = if work < WORK_MIN { 1 } else { self.0.threads() };
        Team { pool: &self.0, count }
    }
}

impl Team<'_> {
    /// Runs `task` over ranges that cover `0..total`; all but the last are multiples of `granule`
    /// long.
    pub(crate) fn ranges(self, total: usize, granule: usize, task: impl Fn(Range<usize>) + Sync) {
        let parts = if self.count == 1 { 1 } else { self.count * RANGES_PER_THREAD };
        let ranges = split(total, parts, granule);
        self.pool.run(ranges.len(), &|index| task(ranges[index].clone()));
    }

    /// Runs `task` over rows of `data`, each `row_len` long, with the index of the first row.
    pub(crate) fn rows<T: Send>(
        self,
        data: &mut [T],
        row_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        if row_len == 0 || data.is_empty() {
            return;
        }
        let mut rest = data;
        let mut parts = Vec::new();
        let count = if self.count == 1 { 1 } else { self.count * RANGES_PER_THREAD };
        for range in split(rest.len() / row_len, count, 1) {
            let (part, after) = rest.split_at_mut(range.len() * row_len);
            rest = after;
            // Each is locked once: the lock only hands the part to whichever thread does it.
            parts.push((range.start, Mutex::new(part)));
        }
        self.pool.run(parts.len(), &|index| {
            let (first, part) = &parts[index];
            task(*first, &mut part.lock().unwrap_or_else(PoisonError::into_inner));
        });
    }
}

/// At most `parts` ranges that cover `0..total`, none empty, borders at multiples of `granule`.
fn split(total: usize, parts: usize, granule: usize) -> Vec<Range<usize>> {
    let granules = total.div_ceil(granule.max(1));
    let each = granules.div_ceil(parts.max(1)).max(1) * granule.max(1);
    (0..total).step_by(each).map(|start| start..(start + each).min(total)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(total: usize, parts: usize, granule: usize, expect: &[(usize, usize)]) {
        let ranges: Vec<_> =
            split(total, parts, granule).iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(ranges, expect);
    }

    #[test]
    fn ranges_cover_everything_once() {
        check(0, 4, 1, &[]);
        check(5, 2, 1, &[(0, 3), (3, 5)]);
        check(3, 8, 1, &[(0, 1), (1, 2), (2, 3)]);
        check(70, 2, 32, &[(0, 64), (64, 70)]);
        check(10, 4, 32, &[(0, 10)]);
    }

    #[test]
    fn every_row_is_visited_by_its_own_index() {
        let mut data = vec![0usize; 700 * 3];
        let threads = Threads::new(4);
        threads.for_work(usize::MAX).rows(&mut data, 3, |first, part| {
            for (row, values) in part.chunks_exact_mut(3).enumerate() {
                values.fill(first + row);
            }
        });
        let expect: Vec<usize> = (0..700).flat_map(|row| [row; 3]).collect();
        assert_eq!(data, expect);
    }
}
