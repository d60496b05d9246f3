//! Counts the files of a running stage's outputs now and then, so that one that makes more than can be
//! kept hears of it before hours of work and not after.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use smelt_store::FILES_MAX;

/// Most stages are over before anything is counted.
const PERIOD_MIN: Duration = Duration::from_secs(2);
/// Counting may take this part of the time until the next: 1 % of one core.
const PERIOD_PER_COST: u32 = 100;

/// When to count next.
pub(crate) struct Count {
    next: Instant,
}

impl Count {
    pub(crate) fn from(begin: Instant) -> Self {
        Self { next: begin + PERIOD_MIN }
    }

    /// Whether an attempt's outputs, which are or will be there, hold more files than can be kept, as far as it is time
    /// to look.
    pub(crate) fn is_above(&mut self, paths: impl Iterator<Item = PathBuf>, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let count = files_below(paths.collect(), FILES_MAX);
        self.next = Instant::now() + (now.elapsed() * PERIOD_PER_COST).max(PERIOD_MIN);
        count > FILES_MAX
    }
}

/// How many files there are at and below the paths, and one more than `max` where there are more.
fn files_below(mut waiting: Vec<PathBuf>, max: usize) -> usize {
    let is_dir = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let mut count =
        waiting.extract_if(.., |path| !is_dir(path)).filter(|path| path.exists()).count();
    while let Some(dir) = waiting.pop() {
        // What comes and goes meanwhile is for the next time.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                _ => count += 1,
            }
        }
        if count > max {
            return max + 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_up_to_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for name in ["x", "a/1", "a/2", "a/b/3"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let below = |names: &[&str], max| {
            files_below(names.iter().map(|name| dir.path().join(name)).collect(), max)
        };
        assert_eq!(below(&["x", "a", "nothing"], 9), 4);
        assert_eq!(below(&["a/b"], 9), 1);
        assert_eq!(below(&["a"], 1), 2);
    }
}
