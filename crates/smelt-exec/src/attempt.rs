//! Attends one attempt from its empty directory to its sealed output, in a thread of its own.
//!
//! Starts the shim, samples the tree, ends it when its budget or the user says so, classifies the
//! end, checks the outputs and seals them.  It decides nothing about other stages: it sends what
//! happened.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use smelt_plan::plan::Pin;
use smelt_plan::validity::FileFormat;
use smelt_plan::{Digest, Failure, FailureClass, Plan, StageId};
use smelt_store::{Output, RunId, SealError, Store};
use smelt_watch::kernel_log::What;
use smelt_watch::meter::{GROUP, period};
use smelt_watch::{
    Broken, Budget, Cgroups, Disks, Group, KernelEvent, Measured, Meter, Sample, Short,
};

use crate::classify::{
    End, OomKills, Outcome, Shortage, Stopped, classify, for_want_of_memory, missing, of_disk,
};
use crate::confine::{self, Space, Writes};
use crate::containers::{self, Engines, Followed};
use crate::controls::{Controls, LastSample};
use crate::count::Count;
use crate::form;
use crate::log;
use crate::message::{AttemptResult, Ended, Message};
use crate::order::{ProcessSpec, ShimOrder, ShimReport};
use crate::orphans;
use crate::prepare::Preparation;
use crate::readable::readable;
use crate::refused::{self, Refused};
use crate::report::{AttemptReport, LimitHeld};
use crate::room;
use crate::shims::{Shim, Shims};
use crate::signatures::{Finding, Signatures};

/// A stage may be over before the first period, so the first samples come quickly, but not so quickly
/// that looking costs more than a small stage itself.
const FIRST_SAMPLE: Duration = Duration::from_millis(20);
/// How often the user hears of a running stage.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);
/// As much of a line of the log as messages hold.
const LINE_CHARS_MAX: usize = 500;
/// Names a stage's log in its environment, so that whoever watches finds what it said last.
pub const LOG_VARIABLE: &str = "SMELT_LOG";
/// A report is one short line of JSON.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// A shim that leads this attempt; its input is with the controls.
struct Led {
    process: Child,
    output: ChildStdout,
    /// Where it was started: what lies in shared memory may be another now.
    space: Space,
}

/// One attempt about to begin.
pub(crate) struct Attempt<'a> {
    pub(crate) store: &'a Store,
    pub(crate) stage: StageId,
    pub(crate) key: Digest,
    pub(crate) n: u32,
    /// Since the run began.
    pub(crate) began: Duration,
    /// By the clock of files: what was made before is not its own.
    pub(crate) since: SystemTime,
    /// How long it waited for memory before that.
    pub(crate) waited: Duration,
    pub(crate) changed: Option<String>,
    pub(crate) budget: Budget,
    /// It minds the kills of its children itself.
    pub(crate) survives_kills: bool,
    /// What changes before it starts.
    pub(crate) preparation: Preparation,
    pub(crate) order: ProcessSpec,
    /// It is not to be started where the kernel cannot hold it to what it declares.
    pub(crate) must_hold: bool,
    /// The private directory the outputs are made in.
    pub(crate) out: PathBuf,
    /// It has kept what a later attempt would go on with.
    pub(crate) keeps: bool,
    /// What it must make again, byte for byte, where it is only checked; nothing is sealed then.
    pub(crate) compare: Option<Output>,
    /// Where the output is to be found instead, outside of the store.
    pub(crate) reference: Option<PathBuf>,
    pub(crate) log: PathBuf,
    /// `<run>/<stage>.<n>`: what marks its processes.
    pub(crate) mark: String,
    /// Inputs outside the store, which must not change under the attempt.
    pub(crate) pins: Vec<Pin>,
    /// Outputs that this one will name.
    pub(crate) refers: Vec<Digest>,
    /// What the sealed record says besides.
    pub(crate) record: Value,
    pub(crate) signatures: &'a Signatures,
    pub(crate) shims: &'a Shims,
    pub(crate) cgroups: Option<&'a Cgroups>,
    /// Where the names lie by which it calls container engines, if it could.
    pub(crate) engines: Option<PathBuf>,
    pub(crate) controls: Arc<Controls>,
    pub(crate) messages: SyncSender<Message>,
}

/// What is said while gigabytes are hashed and synced; the stage's own last word would stand there else.  Its work is
/// done, and no rate of it says how long a disk takes.
const SEALING: &str = "[1/1] checking and sealing what it made";

impl Attempt<'_> {
    /// Attends the attempt and sends how it ended.
    pub(crate) fn run(self) {
        let begin = Instant::now();
        let mut report = AttemptReport {
            n: self.n,
            changed: self.changed.clone(),
            began_s: seconds(self.began),
            waited_s: seconds(self.waited),
            log: self.log.clone(),
            ..AttemptReport::default()
        };
        let swap = self.prepare(&mut report);
        report.began_s += seconds(begin.elapsed());
        let begin = Instant::now();
        let outcome = match self.controls.is_ending() {
            true => Outcome::Interrupted,
            false => self.attend(begin, &mut report),
        };
        report.wall_s = begin.elapsed().as_secs_f64();
        self.put_back(swap, &mut report);
        if matches!(outcome, Outcome::Done) {
            self.say_at(begin.elapsed(), SEALING);
        }
        let sealing = Instant::now();
        let mut ended = self.conclude(outcome, report);
        ended.report.wall_s += sealing.elapsed().as_secs_f64();
        // The run outlives its attempts; were it gone, nobody would want to know.
        let _ = self.messages.send(Message::Ended(Box::new(ended)));
    }

    /// Seals what ended well, and says how it ended.
    pub(crate) fn conclude(&self, outcome: Outcome, mut report: AttemptReport) -> Ended {
        let result = match outcome {
            Outcome::Done => self.seal(&mut report),
            Outcome::Failed(failure) => AttemptResult::Failed(failure),
            Outcome::Interrupted => AttemptResult::Interrupted,
        };
        let result = self.with_advice(self.with_reason(result, &report), report.short.as_ref());
        match &result {
            AttemptResult::Sealed(_) => {
                if self.keeps {
                    // What stays goes with the next collection.
                    let _ = self.store.remove_kept(&self.key);
                }
                report.outcome = "sealed".to_owned();
            }
            AttemptResult::Interrupted => report.outcome = "interrupted".to_owned(),
            AttemptResult::Failed(failure) => {
                report.outcome = "failed".to_owned();
                report.class = Some(failure.class);
                report.message = Some(failure.message.clone());
            }
        }
        Ended { stage: self.stage, report, result }
    }

    /// The reason behind what its output shows.
    fn with_reason(&self, result: AttemptResult, report: &AttemptReport) -> AttemptResult {
        let AttemptResult::Failed(failure) = result else { return result };
        let limit = self.budget.rss_bytes_max.filter(|_| report.limit == Some(LimitHeld::Kernel));
        let oom_kills = report.counters.oom_kills.unwrap_or(0);
        AttemptResult::Failed(for_want_of_memory(failure, oom_kills, limit))
    }

    /// A disk that ran full: how much to free.  What was written makes room for the journal's records.
    fn with_advice(&self, result: AttemptResult, short: Option<&Short>) -> AttemptResult {
        match result {
            AttemptResult::Failed(mut failure) if failure.class == FailureClass::DiskFull => {
                if short.is_none_or(|short| are_on_one_disk(&short.place, self.store.root())) {
                    let free_bytes = self.store.free_bytes().unwrap_or(0);
                    let written_bytes = self.store.bytes_below(&self.out).unwrap_or(0);
                    failure.message += &room::advice(written_bytes, free_bytes);
                }
                let _ = fs::remove_dir_all(&self.out);
                AttemptResult::Failed(failure)
            }
            other => other,
        }
    }

    /// Has a shim lead it to its end, and says how that was.
    pub(crate) fn attend(&self, begin: Instant, report: &mut AttemptReport) -> Outcome {
        // The directory for temporary files lies beside this one.
        let mut disks = self.order.disks(&self.out);
        if let Some(short) = disks.look() {
            let message = format!("not started: {short}; free some of it");
            report.short = Some(short);
            return failed(FailureClass::DiskFull, message);
        }
        let (mut shim, mut meter) = match self.start() {
            Ok(started) => started,
            Err(error) => {
                let message = format!("cannot start the stage's shim: {error}");
                return failed(FailureClass::SpawnFailed, message);
            }
        };
        meter.method(self.cgroups).clone_into(&mut report.method);
        report.limit = match self.budget.rss_bytes_max {
            Some(_) if meter.holds_limit() => Some(LimitHeld::Kernel),
            Some(_) => Some(LimitHeld::Sampling),
            None => None,
        };
        let (said, short) = self.watch(&mut shim, begin, &mut meter, &mut disks);
        // Those whose notes are gone.
        report.leftovers += meter.end_containers() as u32;
        let refused = self.refused(shim.process.id(), said.as_ref());
        let kept = self.part(shim, said.as_ref(), report);
        let holds_limit = meter.holds_limit();
        if meter.has_containers() {
            report.limit = report.limit.map(|_| LimitHeld::Sampling);
        }
        report.parked_s = seconds(self.controls.parked());
        report.starved_s = seconds(meter.starved());
        let (mut measured, group) = meter.finish();
        self.settle(kept, group);
        if let Some(said) = &said {
            let ShimReport { rss_process_peak_bytes, carried_bytes, major_faults, .. } = *said;
            measured.take_usage(rss_process_peak_bytes, carried_bytes, major_faults);
        }
        let end = End {
            stopped: self.controls.why().or_else(|| self.late(said.as_ref())),
            limit_bytes: self.budget.rss_bytes_max.filter(|_| holds_limit),
            oom_kills: oom_kills(&measured),
            survives_kills: self.survives_kills,
            short: short.or_else(|| said.as_ref()?.short.clone()),
            disk_line: self.disk_line(said.as_ref()),
            shortage: shortage(&measured, begin.elapsed()),
            found: self.found(said.as_ref()),
            refused,
            last_line: log::last_line(&self.log),
            report: said,
        };
        let Measured { peaks, counters, curve, methods, kernel_events } = measured;
        (report.peaks, report.counters) = (peaks, counters);
        (report.curve, report.methods) = (curve, methods);
        report.kernel_events = kernel_events;
        report.peaks.disk_free_min_bytes = disks.least_free_bytes();
        report.short.clone_from(&end.short);
        if let Some(said) = &end.report {
            (report.exit, report.signal, report.cpu_s) = (said.exit, said.signal, said.cpu_s);
            report.leftovers += said.leftovers;
            report.writes = said.writes;
            report.confined_by = said.confined_by;
            report.network = said.network;
            report.log_error.clone_from(&said.log_error);
        }
        if let Some(found) = &end.found {
            report.signature = Some(found.id.clone());
            report.refused_bytes = found.size_bytes;
        }
        report.refused_bytes = report.refused_bytes.or(end.shortage.cma_refused_bytes);
        match classify(&end) {
            Outcome::Failed(failure) => Outcome::Failed(self.with_unseen(failure)),
            outcome => outcome,
        }
    }

    /// That its shim has ended it for its time, while we could not.
    fn late(&self, said: Option<&ShimReport>) -> Option<Stopped> {
        let duration_max =
            self.budget.duration_max.filter(|_| said.is_some_and(|said| said.late))?;
        Some(Stopped::Over(Broken::Time { duration_max }))
    }

    /// Names what a strict program may have lacked without a word.
    fn with_unseen(&self, failure: Failure) -> Failure {
        let ProcessSpec { argv, dir, strict: Some(strict), .. } = &self.order else {
            return failure;
        };
        if !matches!(failure.class, FailureClass::ToolRejected | FailureClass::OutputMissing) {
            return failure;
        }
        let unseen = refused::unseen(argv, dir, &self.order.places(dir), &confine::seen(strict));
        let Some(path) = unseen else { return failure };
        let (said, path) = (failure.message, path.display());
        let message = format!(
            "{said}; it is strict and its arguments name {path}, which it does not declare"
        );
        Failure { message, ..failure }
    }

    /// What the log of an attempt that did not end well says.
    fn found(&self, said: Option<&ShimReport>) -> Option<Finding> {
        if said.is_some_and(|said| said.exit == Some(0)) {
            return None;
        }
        self.signatures.find(log::head_and_tail(&self.log).lines())
    }

    /// Where the log of an attempt that said success says that a disk was full or failed.
    fn disk_line(&self, said: Option<&ShimReport>) -> Option<String> {
        if said?.exit != Some(0) {
            return None;
        }
        let log = log::head_and_tail(&self.log);
        let line = log.lines().find(|line| of_disk(line).is_some())?;
        Some(line.trim().chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect())
    }

    /// Takes a shim and gives it the order.  It is in the attempt's control group before it hears what
    /// to start, and out of that of the last one.
    fn start(&self) -> io::Result<(Led, Meter)> {
        let mut order = self.order.clone();
        order.env.push((orphans::MARK.to_owned(), self.mark.clone()));
        order.env.push((LOG_VARIABLE.to_owned(), self.log.display().to_string()));
        let shim = self.shims.take(order.space())?;
        let Shim { process, mut input, output, group, space } = shim;
        let scratch = self.scratch(process.id());
        if let Some(engines) = &self.engines {
            let (name, notes) = containers::variable(&scratch);
            order.env.push((name.to_owned(), notes.display().to_string()));
            let path = order.env.iter_mut().rfind(|(name, _)| name == "PATH");
            path.into_iter().for_each(|(_, path)| *path = format!("{}:{path}", engines.display()));
        }
        let mut line = serde_json::to_vec(&ShimOrder {
            order,
            log: self.log.clone(),
            scratch,
            store: self.store.root().to_owned(),
            must_hold: self.must_hold,
            time_max: self.budget.duration_max,
            engines: self.engines.is_some().then(|| Engines::of(&self.order.env)),
        })?;
        line.push(b'\n');
        let listener = self.shims.listener();
        let mut meter = Meter::begin(self.cgroups, listener, &self.mark, process.id());
        if let Some(bytes) = self.budget.rss_bytes_max {
            meter.keep_within(bytes);
        }
        if let Some(group) = group {
            group.remove();
        }
        // A shim that dies while we write is noticed by its missing report.
        let _ = input.write_all(&line);
        self.controls.attach(input, meter.freezer());
        Ok((Led { process, output, space }, meter))
    }

    /// A shim's directory for temporary files: beside that of the output, so that it has the same file
    /// system and the same end.  Names of attempts have a dot.
    fn scratch(&self, shim: u32) -> PathBuf {
        self.out.with_file_name(format!("tmp-{shim}"))
    }

    /// What it was refused, as far as its log says.
    fn refused(&self, shim: u32, said: Option<&ShimReport>) -> Option<Refused> {
        if said?.writes != Some(Writes::Confined) {
            return None;
        }
        let scratch = self.scratch(shim);
        let places = self.order.places(&scratch);
        let seen = self.order.strict.as_ref().map(confine::seen);
        refused::find(&self.log, &self.order.dir, &places, seen.as_deref())
    }

    /// Keeps the shim for the next stage, or ends it where anything was out of order.
    fn part(
        &self,
        shim: Led,
        said: Option<&ShimReport>,
        report: &mut AttemptReport,
    ) -> Option<Shim> {
        let Led { mut process, output, space } = shim;
        let input = self.controls.detach();
        if let (Some(input), Some(said), false) = (input, said, self.controls.is_ending())
            && said.is_small()
        {
            return Some(Shim { process, input, output, group: None, space });
        }
        // Its pipe is closed now, and one that still lives ends its tree.
        let _ = process.wait();
        self.shims.forget(process.id());
        if said.is_none() {
            report.leftovers += orphans::kill_marked(&self.mark) as u32;
            report.leftovers += self.shims.kill_adopted() as u32;
            let notes = containers::notes(&self.scratch(process.id()));
            report.leftovers +=
                containers::end(&notes, self.since, &Engines::of(&self.order.env)) as u32;
        }
        None
    }

    /// A shim that waits stays in its group, which goes when the shim has joined the next one.
    fn settle(&self, kept: Option<Shim>, group: Option<Group>) {
        match (kept, group) {
            (Some(shim), group) => self.shims.give_back(Shim { group, ..shim }),
            (None, Some(group)) => group.remove(),
            (None, None) => {}
        }
    }

    /// Samples until the shim has reported or is gone: its report, and a disk that was found short.
    fn watch(
        &self,
        shim: &mut Led,
        begin: Instant,
        meter: &mut Meter,
        disks: &mut Disks,
    ) -> (Option<ShimReport>, Option<Short>) {
        let mut wait = FIRST_SAMPLE;
        let mut told = begin;
        let mut short = None;
        let mut count = Count::from(begin);
        let mut followed = Followed::default();
        while !readable(&shim.output, wait) {
            if self.controls.is_out_of_patience() {
                // A shim that was stopped from outside hears nothing; SIGKILL it cannot ignore.
                let _ = shim.process.kill();
            }
            if self.controls.take_page_out() {
                // What cannot be swapped out stays, and is halted all the same.
                let _ = meter.page_out();
            }
            let sampled = Instant::now();
            let outputs = self.order.outputs.iter().map(|name| self.out.join(name));
            if count.is_above(outputs, sampled) {
                self.controls.kill_for(Stopped::TooManyFiles);
            }
            if short.is_none() {
                short = disks.look();
                // Whoever writes to it too ends as well: the kernel does not say whose write it cut.
                short.iter().for_each(|_| self.controls.kill_for(Stopped::DiskShort));
            }
            self.follow(shim.process.id(), &mut followed, meter);
            let sample = meter.sample(begin.elapsed());
            wait = (wait * 2).min(period(sampled.elapsed()));
            let Some(sample) = sample else { continue };
            self.judge(begin, &sample, meter);
            if told.elapsed() >= PROGRESS_PERIOD {
                told = Instant::now();
                self.controls.see(LastSample { sample, strain: meter.strain() });
                self.tell(begin.elapsed(), &sample);
            }
        }
        let mut said = String::new();
        let read = BufReader::new((&mut shim.output).take(REPORT_BYTES_MAX)).read_line(&mut said);
        (read.ok().and_then(|_| serde_json::from_str(&said).ok()), short)
    }

    /// Takes containers that it has started meanwhile for its own.
    fn follow(&self, shim: u32, followed: &mut Followed, meter: &mut Meter) {
        let (Some(_), Some(cgroups)) = (&self.engines, self.cgroups) else { return };
        let notes = containers::notes(&self.scratch(shim));
        for group in followed.look(&notes, cgroups, self.since) {
            self.controls.adopt(group.clone());
            meter.adopt(group);
        }
    }

    /// Ends the attempt where it has broken its budget.
    fn judge(&self, begin: Instant, sample: &Sample, meter: &Meter) {
        // Containers are in groups of their engines'.
        let holds_all = meter.holds_limit() && !meter.has_containers();
        let budget = Budget {
            // Where the kernel holds the limit, it has the better view: shared pages count once.
            rss_bytes_max: self.budget.rss_bytes_max.filter(|_| !holds_all),
            ..self.budget
        };
        let elapsed = begin.elapsed();
        let is_late = budget.duration_max.is_some_and(|max| elapsed > max);
        let excused = || self.controls.parked() + meter.starved();
        let excused = is_late.then(excused).unwrap_or_default();
        if let Some(broken) = budget.broken_by(elapsed, excused, sample) {
            self.controls.kill_for(Stopped::Over(broken));
        }
    }

    /// Progress is only for display: when the run is busy it is dropped.
    fn tell(&self, elapsed: Duration, sample: &Sample) {
        let _ = self.messages.try_send(Message::Running {
            stage: self.stage,
            elapsed,
            rss_bytes: sample.rss_bytes,
            held_bytes: sample.rss_anon_bytes.saturating_add(sample.swap_bytes),
            last_line: log::last_line(&self.log),
        });
    }

    /// What is done before it starts, in the place of what it says itself.
    pub(crate) fn say(&self, what: &str) {
        self.say_at(Duration::ZERO, what);
    }

    /// The same of what is done when its processes have ended.
    fn say_at(&self, elapsed: Duration, what: &str) {
        let _ = self.messages.try_send(Message::Running {
            stage: self.stage,
            elapsed,
            rss_bytes: 0,
            held_bytes: 0,
            last_line: what.to_owned(),
        });
    }

    /// Checks what the attempt left and makes it permanent.
    fn seal(&self, report: &mut AttemptReport) -> AttemptResult {
        if self.store.free_bytes().is_ok_and(room::is_full) {
            let message = "ended well, but nothing is left of the store's disk, and its last writes \
                           may have been cut short";
            return AttemptResult::Failed(failure(FailureClass::DiskFull, message.to_owned()));
        }
        if let Err(failure) = self.check_outputs().and_then(|()| self.check_inputs()) {
            return AttemptResult::Failed(failure);
        }
        // What came from the user while we check may still win; once sealing begins it is done.
        if self.controls.is_stopped_by_user() {
            return AttemptResult::Interrupted;
        }
        let sealed = self.leave_out(report).and_then(|()| match &self.compare {
            Some(sealed) => Ok(self.compared(sealed)),
            None => Ok(AttemptResult::Sealed(Box::new(self.keep(report.wall_s)?))),
        });
        match sealed {
            Ok(result) => result,
            Err(error) if error.is_stopped() => AttemptResult::Interrupted,
            Err(error) => {
                let class = match (error.is_disk_full(), error.is_disk_failing()) {
                    (true, _) => FailureClass::DiskFull,
                    (_, true) => FailureClass::DiskError,
                    _ => FailureClass::OutputInvalid,
                };
                AttemptResult::Failed(failure(class, format!("cannot seal the output: {error}")))
            }
        }
    }

    /// Removes what it left besides its outputs, if it declares any.
    fn leave_out(&self, report: &mut AttemptReport) -> Result<(), SealError> {
        if self.order.outputs.is_empty() || self.reference.is_some() {
            return Ok(());
        }
        let left = self.store.keep_only(&self.out, &self.order.outputs)?;
        report.left_out = (left.count > 0).then_some(left);
        Ok(())
    }

    /// Whether the attempt made what was sealed before.
    fn compared(&self, sealed: &Output) -> AttemptResult {
        let made = self.store.digest_tree(self.reference.as_ref().unwrap_or(&self.out));
        let difference = match &made {
            Ok(made) => sealed.manifest.difference(made),
            Err(error) if error.is_stopped() => return AttemptResult::Interrupted,
            Err(error) => Some(error.to_string()),
        };
        match difference {
            None => AttemptResult::Sealed(Box::new(sealed.clone())),
            Some(what) => AttemptResult::Failed(failure(
                FailureClass::NotReproducible,
                format!("built again, it is not what {} holds: {what}", sealed.path().display()),
            )),
        }
    }

    /// Moves the output into the store, or records what lies outside of it.
    fn keep(&self, wall_s: f64) -> Result<Output, SealError> {
        let mut record = self.record.clone();
        // So that whoever takes it from elsewhere knows what that saves.
        record["wall_s"] = seconds(Duration::from_secs_f64(wall_s)).into();
        match &self.reference {
            None => self.store.seal_referring(&self.key, &self.out, record, &self.refers),
            Some(path) => {
                let manifest = self.store.digest_tree(path)?;
                Ok(self.store.record_reference(&self.key, path, manifest, record)?)
            }
        }
    }

    /// Exit 0 is not success: every declared output must be there and hold something.
    fn check_outputs(&self) -> Result<(), Failure> {
        for name in &self.order.outputs {
            if self.may_be_empty(name) && self.out.join(name).is_file() {
                continue;
            }
            if !self.holds_something(&self.out.join(name))? {
                let message = format!(
                    "ended well, but its output \"{name}\" is missing or empty (one that may be empty \
                     says so: validate = {{ \"{name}\" = \"may-be-empty\" }})"
                );
                return Err(self.missing(message));
            }
        }
        let has_outputs = !self.order.outputs.is_empty() && self.reference.is_none();
        if !has_outputs && !self.holds_something(self.reference.as_ref().unwrap_or(&self.out))? {
            return Err(self.missing("ended well, but made nothing".to_owned()));
        }
        self.check_forms()
    }

    /// Whether the pipeline says that the output may hold nothing.
    fn may_be_empty(&self, name: &str) -> bool {
        let mut said = self.order.validate.iter();
        said.any(|(of, validity)| of == name && validity.form == FileFormat::MayBeEmpty)
    }

    /// A file that merely stopped growing is not complete.
    fn check_forms(&self) -> Result<(), Failure> {
        for (name, validity) in &self.order.validate {
            if let Some(why) = form::fault(&self.out.join(name), validity) {
                let message = format!("ended well, but its output \"{name}\" is not whole: {why}");
                return Err(failure(FailureClass::OutputInvalid, message));
            }
        }
        Ok(())
    }

    /// A tool that says success and leaves nothing may have said why on the way.
    fn missing(&self, message: String) -> Failure {
        let log = log::head_and_tail(&self.log);
        let (class, message) = missing(message, self.signatures.find(log.lines()).as_ref());
        self.with_unseen(failure(class, message))
    }

    /// Links are refused when sealing.  What cannot be looked at is not there, unless the disk fails.
    fn holds_something(&self, path: &Path) -> Result<bool, Failure> {
        match self.store.holds_something(path) {
            Err(error) if error.is_disk_failing() => Err(unreadable(&error)),
            answer => Ok(answer.unwrap_or(false)),
        }
    }

    /// An input that was edited meanwhile would put a wrong output under a right key.
    fn check_inputs(&self) -> Result<(), Failure> {
        for pin in &self.pins {
            let now = self.store.digest_tree(&pin.path).map(|manifest| manifest.digest());
            if let Err(error) = &now
                && error.is_disk_failing()
            {
                return Err(unreadable(error));
            }
            let is_stopped = now.as_ref().is_err_and(|error| error.is_stopped());
            if !is_stopped && now.ok() != Some(pin.digest) {
                let message = format!(
                    "{} was changed while the stage ran; run again to build from what it is now",
                    pin.path.display()
                );
                return Err(failure(FailureClass::OutputInvalid, message));
            }
        }
        Ok(())
    }
}

/// What a sealed record says: enough to tell how an output came to be.
pub(crate) fn record(
    plan: &Plan,
    stage: StageId,
    (run, command): (&RunId, &Value),
    n: u32,
    changed: Option<&str>,
) -> Value {
    let name = plan.stage(stage).name.as_str();
    let mut record = json!({
        "pipeline": plan.name, "stage": name, "run": run.as_str(), "attempt": n, "changed": changed,
    });
    if let Some(from) = plan.origin(stage) {
        record["from"] = from.into();
    }
    // Of what the user typed: which file, and what was set.
    let told = |name: &&str| !command[name].is_null();
    let told = ["dir", "pipeline", "sets"].into_iter().filter(|name| told(name));
    let told: serde_json::Map<String, Value> =
        told.map(|name| (name.to_owned(), command[name].clone())).collect();
    if !told.is_empty() {
        record["command"] = Value::Object(told);
    }
    record
}

/// To the millisecond, as the journal counts.
pub(crate) fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}

/// The kernel's count of kills, as exact as it was taken.
fn oom_kills(measured: &Measured) -> OomKills {
    let is_own = measured.methods.get("oom_kills").is_some_and(|means| means == GROUP);
    match measured.counters.oom_kills {
        Some(kills) if is_own => OomKills::Own(kills),
        Some(kills) => OomKills::Machine(kills),
        None => OomKills::Unknown,
    }
}

fn shortage(measured: &Measured, wall: Duration) -> Shortage {
    // Boards and servers that this runs on have pages of 4 KiB.
    const PAGE_BYTES: u64 = 4096;
    let Measured { counters, kernel_events, .. } = measured;
    let refused = |event: &KernelEvent| match event.what {
        What::CmaAllocFailed { pages, .. } => Some(pages.saturating_mul(PAGE_BYTES)),
        _ => None,
    };
    let refused: Vec<u64> = kernel_events.iter().filter_map(refused).collect();
    let is_nvmap = |event: &&KernelEvent| matches!(event.what, What::NvMapFailed { error: 12, .. });
    let stalled_us = counters.pressure_full_us.unwrap_or(0) as f64;
    Shortage {
        nvmap_fails: kernel_events.iter().filter(is_nvmap).count() as u64,
        // Kernels that do not count may still say.
        cma_alloc_fails: counters.cma_alloc_fails.unwrap_or(0).max(refused.len() as u64),
        cma_refused_bytes: refused.into_iter().max(),
        stalled: stalled_us / wall.as_micros().max(1) as f64,
        swapped_in_bytes: counters.swap_in_pages.unwrap_or(0) * PAGE_BYTES,
    }
}

fn are_on_one_disk(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
    device(one) == device(other)
}

fn failure(class: FailureClass, message: String) -> Failure {
    Failure { class, exit: None, message }
}

/// What an attempt read or made cannot be read any more.
fn unreadable(error: &impl std::fmt::Display) -> Failure {
    failure(FailureClass::DiskError, format!("ended well, but cannot be checked: {error}"))
}

fn failed(class: FailureClass, message: String) -> Outcome {
    Outcome::Failed(failure(class, message))
}
