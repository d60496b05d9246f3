//! Keeps a bounded series of samples: when it is full, every two points become one.
//!
//! Extremes survive: a point holds the most memory and the least `CmaFree` of all it stands for.
//! Pure; times are arguments.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Wider than a curve is drawn, and some kilobytes in a journal.
const POINTS_MAX: usize = 240;

/// A series over one attempt, column by column; all columns are of one length.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Curve {
    /// Milliseconds since the attempt began, at the end of what the point stands for.
    pub at_ms: Vec<u64>,
    /// Most resident memory of the tree, KiB.
    pub rss_kib: Vec<u64>,
    /// Most swapped-out memory of the tree, KiB.
    pub swap_kib: Vec<u64>,
    /// Microseconds in which some task waited for memory.
    pub stalled_us: Vec<u64>,
    /// Least `CmaFree` of the machine, KiB; zero where the kernel has no such area.
    pub cma_free_kib: Vec<u64>,
    /// Samples in a full point.
    #[serde(skip)]
    per_point: u32,
    /// Samples in the last point.
    #[serde(skip)]
    in_last: u32,
}

/// One sample as a curve takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// Since the attempt began.
    pub at: Duration,
    /// Resident memory of the tree, bytes.
    pub rss_bytes: u64,
    /// Swapped-out memory of the tree, bytes.
    pub swap_bytes: u64,
    /// Microseconds in which some task waited for memory since the sample before.
    pub stalled_us: u64,
    /// `CmaFree` of the machine, bytes; zero where there is none.
    pub cma_free_bytes: u64,
}

impl Curve {
    /// Takes one more sample.
    pub fn push(&mut self, point: &Point) {
        if self.in_last < self.per_point {
            self.in_last += 1;
            let last = self.len() - 1;
            self.at_ms[last] = millis(point.at);
            self.rss_kib[last] = self.rss_kib[last].max(point.rss_bytes >> 10);
            self.swap_kib[last] = self.swap_kib[last].max(point.swap_bytes >> 10);
            self.stalled_us[last] += point.stalled_us;
            self.cma_free_kib[last] = self.cma_free_kib[last].min(point.cma_free_bytes >> 10);
            return;
        }
        if self.len() >= POINTS_MAX {
            self.halve();
        }
        self.per_point = self.per_point.max(1);
        self.in_last = 1;
        self.at_ms.push(millis(point.at));
        self.rss_kib.push(point.rss_bytes >> 10);
        self.swap_kib.push(point.swap_bytes >> 10);
        self.stalled_us.push(point.stalled_us);
        self.cma_free_kib.push(point.cma_free_bytes >> 10);
    }

    /// How many points.
    pub fn len(&self) -> usize {
        self.at_ms.len()
    }

    /// Whether nothing was sampled.
    pub fn is_empty(&self) -> bool {
        self.at_ms.is_empty()
    }

    /// The share of the time up to each point, from the one before, that some task was stalled.
    pub fn stalled_share(&self) -> Vec<f64> {
        let before = std::iter::once(&0).chain(&self.at_ms);
        let spans = self.at_ms.iter().zip(before).map(|(at, before)| at.saturating_sub(*before));
        let share = |(us, ms): (&u64, u64)| (*us as f64 / 1e3 / ms.max(1) as f64).min(1.0);
        self.stalled_us.iter().zip(spans).map(share).collect()
    }

    /// Whether every column has as many entries, which a damaged record may deny.
    pub fn is_sound(&self) -> bool {
        let columns = [&self.rss_kib, &self.swap_kib, &self.stalled_us, &self.cma_free_kib];
        columns.iter().all(|column| column.len() == self.len())
    }

    fn halve(&mut self) {
        pairs(&mut self.at_ms, |_, b| b);
        pairs(&mut self.rss_kib, u64::max);
        pairs(&mut self.swap_kib, u64::max);
        pairs(&mut self.stalled_us, |a, b| a + b);
        pairs(&mut self.cma_free_kib, u64::min);
        self.per_point = self.per_point.saturating_mul(2);
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// Every two entries become one; an odd one stays.
fn pairs(column: &mut Vec<u64>, join: impl Fn(u64, u64) -> u64) {
    let joined = column.chunks(2).map(|pair| match *pair {
        [a, b] => join(a, b),
        _ => pair[0],
    });
    *column = joined.collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(samples: u64) -> Curve {
        let mut curve = Curve::default();
        for at in 1..=samples {
            curve.push(&Point {
                at: Duration::from_millis(at * 100),
                // One spike and one dip, at places that no stride divides.
                rss_bytes: if at == samples * 2 / 3 { 9 << 20 } else { 1 << 20 },
                swap_bytes: at << 10,
                stalled_us: 3,
                cma_free_bytes: if at == samples / 3 { 1 << 10 } else { 5 << 20 },
            });
        }
        curve
    }

    #[test]
    fn nothing_that_matters_is_lost() {
        for samples in [3, 10, 239, 240, 241, 479, 480, 481, 36_000, 100_003] {
            let curve = curve(samples);
            assert!(curve.is_sound() && curve.len() <= POINTS_MAX, "{samples}");
            assert!(curve.len() as u64 >= samples.min(POINTS_MAX as u64 / 2), "{samples}");
            assert_eq!(curve.at_ms.last(), Some(&(samples * 100)));
            assert!(curve.at_ms.is_sorted_by(|a, b| a < b), "{samples}");
            assert_eq!(curve.rss_kib.iter().max(), Some(&(9 << 10)));
            assert_eq!(curve.swap_kib.iter().max(), Some(&samples));
            assert_eq!(curve.cma_free_kib.iter().min(), Some(&1));
            assert_eq!(curve.stalled_us.iter().sum::<u64>(), 3 * samples);
        }
    }

    #[test]
    fn a_share_is_of_the_time_between_points() {
        let mut curve = Curve::default();
        for (at, stalled_us) in [(100, 0), (300, 50_000), (300, 7_000_000)] {
            curve.push(&Point { at: Duration::from_millis(at), stalled_us, ..Point::default() });
        }
        assert_eq!(curve.stalled_share(), [0.0, 0.25, 1.0]);
    }

    #[test]
    fn a_record_round_trips_and_a_damaged_one_is_noticed() {
        let curve = curve(500);
        let text = serde_json::to_string(&curve).unwrap();
        assert!(text.len() < 12 << 10, "{} bytes", text.len());
        let read: Curve = serde_json::from_str(&text).unwrap();
        assert_eq!((&read.at_ms, &read.rss_kib), (&curve.at_ms, &curve.rss_kib));
        assert!(read.is_sound());
        let damaged: Curve = serde_json::from_str(r#"{"at_ms":[1,2],"rss_kib":[1]}"#).unwrap();
        assert!(!damaged.is_sound());
    }
}
