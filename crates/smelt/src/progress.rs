//! Tells the user what goes on, on standard error: a line per event, and on a terminal one live
//! line for the stage that runs.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use smelt_exec::{AttemptReport, Progress};
use smelt_plan::{Plan, StageId};

use crate::say::{tell, tell_raw};
use crate::table::{bytes, seconds};

/// Without a terminal a long stage says every so often that it lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(crate) struct Display<'a> {
    plan: &'a Plan,
    is_terminal: bool,
    /// Something is on the live line.
    live: bool,
    told: Instant,
}

impl<'a> Display<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        Self { plan, is_terminal: stderr().is_terminal(), live: false, told: Instant::now() }
    }

    pub(crate) fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Hit(stage) => self.line(&format!("{} hit", self.label(*stage))),
            Progress::Started { stage, attempt: 1, .. } => {
                self.line(&format!("{} started", self.label(*stage)));
            }
            Progress::Started { stage, attempt, changed } => self.line(&format!(
                "{} attempt {attempt}, with {}",
                self.label(*stage),
                changed.unwrap_or("nothing changed")
            )),
            Progress::Running { stage, elapsed, rss_bytes, last_line } => {
                self.running(*stage, *elapsed, *rss_bytes, last_line);
            }
            Progress::Ended(stage, report) => self.ended(*stage, report),
            Progress::Held(stage) => self.line(&format!(
                "{} is being built by another run; waiting for it",
                self.label(*stage)
            )),
            Progress::Damaged(stage, what) => self.line(&format!(
                "{} was damaged in the store and moved to quarantine: {what}",
                self.label(*stage)
            )),
            Progress::Changed(stage, what) => self.line(&format!(
                "{} is not what was recorded and is built again: {what}",
                self.label(*stage)
            )),
            Progress::Stopping => {
                self.line("stopping; press Ctrl-C again to kill what still runs");
            }
        }
    }

    /// Leaves the terminal as it was.
    pub(crate) fn finish(&mut self) {
        if self.live {
            tell_raw("\r\x1b[K");
            self.live = false;
        }
    }

    fn label(&self, stage: StageId) -> String {
        format!("[{}/{}] {}", stage.index() + 1, self.plan.len(), self.plan.stage(stage).name)
    }

    fn ended(&mut self, stage: StageId, report: &AttemptReport) {
        let label = self.label(stage);
        let text = match &report.message {
            None => format!(
                "{label} {} in {}, peak RSS {}",
                report.outcome,
                seconds(report.wall_s),
                bytes(report.peaks.peak_rss_bytes)
            ),
            Some(message) => {
                let class = report.class.map_or("failed", |class| class.name());
                format!("{label} failed ({class}): {message}")
            }
        };
        self.line(&text);
    }

    fn running(&mut self, stage: StageId, elapsed: Duration, rss_bytes: u64, last_line: &str) {
        // No terminal in use is narrower; a longer line would wrap and could not be rewritten.
        const WIDTH: usize = 79;
        let text = format!(
            "{} {} {} {}",
            self.label(stage),
            seconds(elapsed.as_secs_f64()),
            bytes(rss_bytes),
            last_line
        );
        if self.is_terminal {
            let text: String = text.chars().take(WIDTH).collect();
            tell_raw(&format!("\r\x1b[K{text}"));
            self.live = true;
        } else if self.told.elapsed() >= HEARTBEAT {
            self.line(&text);
        }
    }

    fn line(&mut self, text: &str) {
        self.finish();
        tell(text);
        self.told = Instant::now();
    }
}
