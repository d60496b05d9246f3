//! Performs what changes before an attempt: waits, builds another stage, drops caches, turns swap on.
//!
//! Which of these is decided in `smelt-plan`.  A rung that cannot be climbed is told of and costs
//! nothing else: the attempt goes on with what the others have changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use smelt_plan::{Change, FailureClass, SwapSpec};
use smelt_watch::{Budget, Machine};

use crate::attempt::Attempt;
use crate::caches;
use crate::classify::Outcome;
use crate::condition::Condition;
use crate::order::ProcessSpec;
use crate::report::{AttemptReport, RungReport};
use crate::settle::{self, Awaited, Settled, Settling};
use crate::swap::{self, TemporarySwap, wanted_bytes};
use crate::swap_tools::{Tools, ground};

/// What an attempt needs to know for what changes before it.
#[derive(Default)]
pub(crate) struct Preparation {
    /// In the order they are performed.
    pub(crate) changes: Vec<Change>,
    /// The program of the warm-up, where there is one.
    pub(crate) warm_up: Option<ProcessSpec>,
    /// What a settling waits for.
    pub(crate) awaited: Awaited,
    /// Where relative directories of the pipeline begin.
    pub(crate) folder: PathBuf,
    /// Whether the board has been rebooted since the attempt before.
    pub(crate) is_rebooted: bool,
    /// Whether there may be another attempt, which wants to know how the machine stood.
    pub(crate) has_ladder: bool,
}

/// What a settling waits for after these attempts at a stage.
pub(crate) fn awaited(attempts: &[AttemptReport]) -> Awaited {
    match attempts.last() {
        Some(last) if last.class == Some(FailureClass::CmaExhausted) => {
            let before = last.prepared.or(last.before);
            Awaited::Contiguous { before: before.and_then(|before| before.cma_free_bytes) }
        }
        _ => {
            let before = attempts.first().and_then(|first| first.before);
            Awaited::Available { before: before.and_then(|before| before.mem_available_bytes) }
        }
    }
}

/// The machine as the kernel shows it.
const ROOT: &str = "/";

impl Attempt<'_> {
    /// Performs the changes, and gives what is to be put back.
    pub(crate) fn prepare(&self, report: &mut AttemptReport) -> Option<TemporarySwap<Tools>> {
        report.before = self.condition();
        let mut on = None;
        for change in &self.preparation.changes {
            if self.controls.is_ending() {
                return on;
            }
            self.say(&format!("before it runs: {change}"));
            let begin = Instant::now();
            let done = self.perform(change, &mut on);
            report.rungs.push(RungReport {
                rung: change.rung(),
                done: done.is_ok(),
                what: done.unwrap_or_else(|why| why),
                wall_s: begin.elapsed().as_secs_f64(),
            });
        }
        if !report.rungs.is_empty() {
            report.prepared = Some(Condition::read(Path::new(ROOT)));
        }
        on
    }

    /// A line on what was done, or on why it was not.
    fn perform(
        &self,
        change: &Change,
        on: &mut Option<TemporarySwap<Tools>>,
    ) -> Result<String, String> {
        match change {
            Change::Reboot if self.preparation.is_rebooted => Ok("the board was rebooted".into()),
            Change::Reboot => Err("this is still the boot in which the last attempt failed".into()),
            Change::Settle(wait_max) => self.settle_memory(*wait_max),
            Change::WarmUp(_) => self.warm_up(),
            Change::DropCaches => caches::drop_and_compact(Path::new(ROOT)),
            Change::TemporarySwap(spec) => {
                let (swap, text) = self.swap(spec)?;
                *on = Some(swap);
                Ok(text)
            }
            Change::Escalate(text) => Ok(text.clone()),
        }
    }

    fn settle_memory(&self, wait_max: Duration) -> Result<String, String> {
        let begin = Instant::now();
        let awaited = self.preparation.awaited;
        let mut settling = Settling::new(awaited);
        loop {
            let available = awaited.now(&Machine::read(Path::new(ROOT)));
            let available = available.ok_or("this kernel does not say what is available")?;
            let is_over = begin.elapsed() >= wait_max || self.controls.is_ending();
            if settling.take(available) != Settled::NotYet || is_over {
                return Ok(settling.text(begin.elapsed()));
            }
            thread::sleep(settle::PERIOD);
        }
    }

    /// Builds the other stage as an attempt of its own: led by a shim, watched, stopped with us.
    fn warm_up(&self) -> Result<String, String> {
        let order = self.preparation.warm_up.clone().ok_or("nobody knows how to start it")?;
        let inner = Attempt {
            store: self.store,
            stage: self.stage,
            key: self.key,
            n: self.n,
            began: self.began,
            since: self.since,
            // It is a run, which has its own.
            engines: None,
            keeps: false,
            waited: Duration::ZERO,
            changed: None,
            budget: Budget { rss_bytes_max: None, duration_max: None },
            // It judges its own stages.
            survives_kills: true,
            preparation: Preparation::default(),
            order,
            must_hold: false,
            out: self.out.clone(),
            compare: None,
            reference: None,
            log: self.log.with_extension("warm-up.log"),
            mark: format!("{}.warm-up", self.mark),
            pins: Vec::new(),
            refers: Vec::new(),
            record: serde_json::Value::Null,
            signatures: self.signatures,
            shims: self.shims,
            cgroups: self.cgroups,
            controls: self.controls.clone(),
            messages: self.messages.clone(),
        };
        let mut report = AttemptReport::default();
        match inner.attend(Instant::now(), &mut report) {
            Outcome::Done => {
                let peak = report.peaks.peak_rss_bytes >> 20;
                Ok(format!("built; its processes held {peak} MiB at most"))
            }
            Outcome::Failed(failure) => {
                Err(format!("{}; its log is {}", failure.message, inner.log.display()))
            }
            Outcome::Interrupted => Err("stopped".to_owned()),
        }
    }

    fn swap(&self, spec: &SwapSpec) -> Result<(TemporarySwap<Tools>, String), String> {
        // The directory of our own process belongs to its effective user.
        if !std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
            return Err("a swap file is root's to turn on; run smelt as root".to_owned());
        }
        let machine = Machine::read(Path::new(ROOT));
        let bytes = wanted_bytes(spec, self.budget.rss_bytes_max, machine.mem_total_bytes);
        let bytes = bytes.ok_or("say how large: temporary-swap = \"4GiB\"")?;
        let notes = std::path::absolute(self.store.root().join(swap::DIR))
            .map_err(|error| error.to_string())?;
        let dir = match &spec.dir {
            Some(dir) => std::path::absolute(self.preparation.folder.join(dir))
                .map_err(|error| error.to_string())?,
            None => notes.clone(),
        };
        std::fs::create_dir_all(&notes)
            .map_err(|error| format!("cannot make {}: {error}", notes.display()))?;
        if let Some(why) = ground(&dir)?.refuses(&dir, bytes) {
            return Err(why);
        }
        let name = self.mark.replace('/', ".");
        let on = TemporarySwap::on(Tools, &notes, &dir, &name, bytes)?;
        Ok((on, format!("{} MiB of swap in {}", bytes >> 20, dir.display())))
    }

    /// Turns the swap off again, and looks how the machine stands.
    pub(crate) fn put_back(&self, on: Option<TemporarySwap<Tools>>, report: &mut AttemptReport) {
        if let Some(Err(why)) = on.map(TemporarySwap::off) {
            let rung =
                report.rungs.iter_mut().find(|rung| rung.rung == smelt_plan::Rung::TemporarySwap);
            if let Some(rung) = rung {
                rung.what += &format!("; it is still on, and the next start tries again: {why}");
            }
        }
        report.after = self.condition();
    }

    /// How the machine stands.  A stage without a ladder need not know, and may be over sooner than
    /// that is read.
    fn condition(&self) -> Option<Condition> {
        self.preparation.has_ladder.then(|| Condition::read(Path::new(ROOT)))
    }
}
