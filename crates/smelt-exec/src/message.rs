//! What attempts and signals tell the loop of a run.

use std::time::Duration;

use smelt_plan::{Failure, StageId};
use smelt_store::Output;

use crate::report::AttemptReport;

/// What the attempts, and the signals, tell the loop.
pub(crate) enum Message {
    /// An attempt ended.
    Ended(Box<Ended>),
    /// An attempt goes on.
    Running {
        stage: StageId,
        elapsed: Duration,
        rss_bytes: u64,
        held_bytes: u64,
        last_line: String,
    },
    /// SIGINT or SIGTERM.
    Signal,
}

/// How it went.
pub(crate) struct Ended {
    pub(crate) stage: StageId,
    pub(crate) report: AttemptReport,
    pub(crate) result: AttemptResult,
}

/// What an attempt led to.
pub(crate) enum AttemptResult {
    Sealed(Box<Output>),
    Failed(Failure),
    Interrupted,
}
