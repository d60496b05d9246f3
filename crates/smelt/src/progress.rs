//! Tells the user what goes on, on standard error: a line per event, and on a terminal one live line for each stage
//! that runs, with one for the whole run below.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use smelt_exec::{AttemptReport, Progress};
use smelt_plan::StageId;
use smelt_plan::admission::{Forecast, Room};

use crate::console::{is_quiet, is_verbose, tell, tell_raw};
use crate::course::Course;
use crate::live::{Foot, Size};
use crate::paint::{Paint, Stream, paint};
use crate::table::{bytes, seconds};
use crate::telling::HEARTBEAT;

/// How often somebody without a terminal hears how far the whole run is.
const WHOLE_HEARTBEAT: Duration = Duration::from_secs(60);

pub(crate) struct Display {
    course: Course,
    is_terminal: bool,
    /// When the user last heard of a stage in a line that stays.
    told: BTreeMap<StageId, Instant>,
    /// When the user last heard of the whole run so.
    told_whole: Instant,
    /// Why the last attempt of a stage failed: told with the next one, or at the end of the run.
    failed: BTreeMap<StageId, String>,
    foot: Foot,
}

impl Display {
    /// Of a run that has not begun.
    pub(crate) fn new(course: Course) -> Self {
        Self {
            course,
            is_terminal: stderr().is_terminal() && !is_quiet(),
            told: BTreeMap::new(),
            told_whole: Instant::now(),
            failed: BTreeMap::new(),
            foot: Foot::default(),
        }
    }

    /// How far the run is.
    pub(crate) fn course(&self) -> &Course {
        &self.course
    }

    pub(crate) fn show(&mut self, progress: &Progress<'_>) {
        self.course.hear(progress);
        match progress {
            Progress::Hit(stage) => {
                self.line(&format!("{} {}", self.label(*stage), good("hit")));
            }
            Progress::Started { stage, attempt, changed, .. } => {
                self.started(*stage, *attempt, *changed);
            }
            Progress::Running { stage, .. } => self.running(*stage),
            Progress::Ended(stage, report) => self.ended(*stage, report),
            Progress::Held(stage) => self.line(&format!(
                "{} is being built by another run; waiting for it",
                self.label(*stage)
            )),
            Progress::Elsewhere(stage, line) => {
                self.line(&format!("{} is built elsewhere: {line}", self.label(*stage)));
            }
            Progress::Queued(stage, what) => {
                self.line(&format!("{} waits for {what}", self.label(*stage)));
            }
            Progress::TokensLocked(why) => {
                self.line(&format!("no tokens are lent, so that stages wait for them: {why}"));
            }
            Progress::LendsAlone(why) => self.line(&format!(
                "tokens are lent within this run alone, so that others may use the same: {why}"
            )),
            Progress::Crowded(stage, forecast, room, servers) => {
                self.crowded(*stage, *forecast, room, servers);
            }
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
        self.course.label(stage)
    }

    /// A terminal sees on the stage's live line that it runs.
    fn started(&mut self, stage: StageId, attempt: u32, changed: Option<&str>) {
        let label = self.label(stage);
        self.told.insert(stage, Instant::now());
        match attempt {
            1 if self.is_terminal => self.draw(),
            1 => self.line(&format!("{label} started")),
            _ => {
                let changed = changed.unwrap_or("nothing changed");
                let why = self.failed.remove(&stage);
                let why = why.map_or_else(String::new, |why| format!(", since {why}"));
                self.line(&format!("{label} attempt {attempt}, with {changed}{why}"));
            }
        }
    }

    fn crowded(&mut self, stage: StageId, forecast: Option<Forecast>, room: &Room, servers: &str) {
        let label = self.label(stage);
        let text = match forecast {
            Some(forecast) => format!(
                "{label} waits for memory: it needs {} ({}); of {}, {} are free{}{}",
                bytes(forecast.bytes),
                forecast.basis.name(),
                bytes(room.total_bytes),
                bytes(room.free_bytes()),
                if room.promised_bytes > 0 { " beside what already runs" } else { "" },
                if servers.is_empty() { String::new() } else { format!("; {servers}") }
            ),
            None => format!("{label} waits: what already runs leaves no memory"),
        };
        self.line(&text);
    }

    fn ended(&mut self, stage: StageId, report: &AttemptReport) {
        self.told.remove(&stage);
        let label = self.label(stage);
        let text = match &report.message {
            None => format!(
                "{label} {} in {}, peak RSS {}{}",
                good(&report.outcome),
                seconds(report.wall_s),
                bytes(report.peaks.peak_rss_bytes),
                left_out(report)
            ),
            Some(message) => {
                self.failed.insert(stage, message.clone());
                let class = report.class.map_or("failed", |class| class.name());
                let failed = paint(Paint::Bad, "failed", Stream::Err);
                format!("{label} {failed} ({class})")
            }
        };
        self.line(&text);
    }

    fn running(&mut self, stage: StageId) {
        let Some(line) = self.course.line(stage.index()) else { return };
        let is_due = self.told.get(&stage).is_some_and(|told| told.elapsed() >= HEARTBEAT);
        if is_verbose() && self.course.is_news(stage) {
            self.line(&line);
        } else if self.is_terminal {
            self.draw();
        } else if is_due {
            self.told.insert(stage, Instant::now());
            self.line(&line);
            self.whole();
        }
    }

    /// Says how far the whole run is, where a stage's line does not tell and it was not said a moment ago.
    fn whole(&mut self) {
        if self.told_whole.elapsed() < WHOLE_HEARTBEAT {
            return;
        }
        if let Some(whole) = self.course.whole() {
            self.told_whole = Instant::now();
            self.line(&whole);
        }
    }

    fn line(&mut self, text: &str) {
        self.finish();
        tell(text);
        self.draw();
    }

    /// Writes the live lines anew.
    fn draw(&mut self) {
        if !self.is_terminal {
            return;
        }
        let mut lines: Vec<String> =
            self.course.running().filter_map(|at| self.course.line(at)).collect();
        if lines.is_empty() {
            return;
        }
        lines.extend(self.course.whole());
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

fn good(text: &str) -> String {
    paint(Paint::Good, text, Stream::Err)
}
