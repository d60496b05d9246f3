//! What a stage took when it was built.

use serde::{Deserialize, Serialize};
use smelt_plan::Digest;

use crate::AttemptReport;

/// What an attempt that ended well took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Took {
    /// Sealing included.
    pub wall_s: f64,
    /// 0 where it ended before it could be looked at.
    pub peak_rss_bytes: u64,
    /// Of its memory, in RAM and swapped out, what the kernel could not drop.
    #[serde(default)]
    pub held_bytes: u64,
    /// What the stage was then.
    #[serde(default)]
    pub recipe: Option<Digest>,
}

impl Took {
    /// What an attempt took; nothing of one that did not end well.
    #[must_use]
    pub fn of(attempt: &AttemptReport) -> Option<Self> {
        let peaks = &attempt.peaks;
        let took = Self {
            wall_s: attempt.wall_s,
            peak_rss_bytes: peaks.peak_rss_bytes,
            held_bytes: peaks.held_peak_bytes,
            recipe: None,
        };
        (attempt.outcome == "sealed").then_some(took)
    }
}
