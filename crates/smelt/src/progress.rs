//! Tells the user what goes on, on standard error: a line per event, and on a terminal one live
//! line for each stage that runs.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use smelt_exec::{AttemptReport, Progress};
use smelt_plan::admission::{Forecast, Room};
use smelt_plan::{Plan, StageId};

use crate::live::{Foot, Size};
use crate::say::{tell, tell_raw};
use crate::table::{bytes, seconds};

/// Without a terminal a long stage says every so often that it lives.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(crate) struct Display<'a> {
    plan: &'a Plan,
    is_terminal: bool,
    /// What runs, and its live line.
    running: BTreeMap<StageId, String>,
    foot: Foot,
    told: Instant,
}

impl<'a> Display<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            is_terminal: stderr().is_terminal(),
            running: BTreeMap::new(),
            foot: Foot::default(),
            told: Instant::now(),
        }
    }

    pub(crate) fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Hit(stage) => self.line(&format!("{} hit", self.label(*stage))),
            Progress::Started { stage, attempt, changed } => {
                self.started(*stage, *attempt, *changed);
            }
            Progress::Running { stage, elapsed, rss_bytes, last_line } => {
                self.running(*stage, *elapsed, *rss_bytes, last_line);
            }
            Progress::Ended(stage, report) => self.ended(*stage, report),
            Progress::Held(stage) => self.line(&format!(
                "{} is being built by another run; waiting for it",
                self.label(*stage)
            )),
            Progress::Crowded(stage, forecast, room) => self.crowded(*stage, *forecast, room),
            Progress::Parked(stage) => self.line(&format!(
                "{} is halted, so that what else runs comes to an end: together they only swap",
                self.label(*stage)
            )),
            Progress::Resumed(stage) => self.line(&format!("{} goes on", self.label(*stage))),
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
        let text = self.foot.clear();
        if !text.is_empty() {
            tell_raw(&text);
        }
    }

    fn label(&self, stage: StageId) -> String {
        format!("[{}/{}] {}", stage.index() + 1, self.plan.len(), self.plan.stage(stage).name)
    }

    /// A terminal sees on the stage's live line that it runs.
    fn started(&mut self, stage: StageId, attempt: u32, changed: Option<&str>) {
        let label = self.label(stage);
        if self.is_terminal {
            self.running.insert(stage, format!("{label} starts"));
        }
        match attempt {
            1 if self.is_terminal => self.draw(),
            1 => self.line(&format!("{label} started")),
            _ => {
                let changed = changed.unwrap_or("nothing changed");
                self.line(&format!("{label} attempt {attempt}, with {changed}"));
            }
        }
    }

    fn crowded(&mut self, stage: StageId, forecast: Option<Forecast>, room: &Room) {
        let label = self.label(stage);
        let text = match forecast {
            Some(forecast) => format!(
                "{label} waits for memory: it needs {} ({}); of {}, {} are free{}",
                bytes(forecast.bytes),
                forecast.basis.name(),
                bytes(room.total_bytes),
                bytes(room.available_bytes.saturating_sub(room.promised_bytes)),
                if room.promised_bytes > 0 { " beside what already runs" } else { "" }
            ),
            None => format!("{label} waits: what already runs leaves no memory"),
        };
        self.line(&text);
    }

    fn ended(&mut self, stage: StageId, report: &AttemptReport) {
        self.running.remove(&stage);
        let label = self.label(stage);
        let text = match &report.message {
            None => format!(
                "{label} {} in {}, peak RSS {}{}",
                report.outcome,
                seconds(report.wall_s),
                bytes(report.peaks.peak_rss_bytes),
                left_out(report)
            ),
            Some(message) => {
                let class = report.class.map_or("failed", |class| class.name());
                format!("{label} failed ({class}): {message}")
            }
        };
        self.line(&text);
    }

    fn running(&mut self, stage: StageId, elapsed: Duration, rss_bytes: u64, last_line: &str) {
        let text = format!(
            "{} {} {} {}",
            self.label(stage),
            seconds(elapsed.as_secs_f64()),
            bytes(rss_bytes),
            last_line
        );
        if self.is_terminal {
            self.running.insert(stage, text);
            self.draw();
        } else if self.told.elapsed() >= HEARTBEAT {
            self.line(&text);
        }
    }

    fn line(&mut self, text: &str) {
        self.finish();
        tell(text);
        self.told = Instant::now();
        self.draw();
    }

    /// Writes the live lines anew.
    fn draw(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let lines: Vec<String> = self.running.values().cloned().collect();
        tell_raw(&self.foot.draw(&lines, Size::of(&stderr())));
    }
}

/// What it left that is none of its outputs, in few words.
fn left_out(report: &AttemptReport) -> String {
    const SHOWN_MAX: usize = 3;
    let Some(left) = &report.left_out else { return String::new() };
    let names =
        left.names.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if left.count > SHOWN_MAX as u64 { ", …" } else { "" };
    format!("; not in \"outputs\" and left out: {names}{more} ({})", left.count)
}
