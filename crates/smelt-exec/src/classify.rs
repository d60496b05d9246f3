//! Says how an attempt ended.  Pure: what the shim, the watch and the kernel said goes in.

use smelt_plan::{Failure, FailureClass};
use smelt_store::FILES_MAX;
use smelt_watch::{Broken, Short};

use crate::order::ShimReport;
use crate::refused::Refused;
use crate::signatures::Finding;

/// Everything known about the end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// What the shim said; `None` when the shim itself died.
    pub report: Option<ShimReport>,
    /// Why we ended it, where we did.
    pub stopped: Option<Stopped>,
    /// Processes that the kernel killed for memory while it ran.
    pub oom_kills: OomKills,
    /// It minds the kills of its children itself: `survives-kills`.
    pub survives_kills: bool,
    /// How it stood with memory otherwise.
    pub shortage: Shortage,
    /// A disk that it may write to and that was found short, meanwhile or when it had ended.
    pub short: Option<Short>,
    /// A line of its log that says so, where it ended with success.
    pub disk_line: Option<String>,
    /// What its log says, by the signatures of known failures.
    pub found: Option<Finding>,
    /// What the kernel kept it within, where it did.
    pub limit_bytes: Option<u64>,
    /// What it was not allowed, where its log complains of it.
    pub refused: Option<Refused>,
    /// The last line of its log.
    pub last_line: String,
}

/// The kernel's count of kills for memory, and of whom it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomKills {
    /// Of the attempt's own control group: exact.
    Own(u64),
    /// Of the whole machine: somebody else's may be among them.
    Machine(u64),
    /// This kernel does not say.
    Unknown,
}

impl OomKills {
    /// Whether a failed attempt is to be put down to them.
    fn explain_failure(self) -> bool {
        matches!(self, Self::Own(1..) | Self::Machine(1..))
    }
}

/// How an attempt stood with memory, besides kills.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shortage {
    /// Contiguous allocations that the kernel refused on this machine meanwhile.
    pub cma_alloc_fails: u64,
    /// Requests of the GPU's driver that were refused memory, as the kernel's log tells.
    pub nvmap_fails: u64,
    /// The largest contiguous one in bytes, where the kernel's log tells.
    pub cma_refused_bytes: Option<u64>,
    /// Which part of its time all its tasks waited for memory, 0 to 1.
    pub stalled: f64,
    /// Bytes read back from swap.
    pub swapped_in_bytes: u64,
}

/// A stage that spent this part of its time waiting for memory, and read this much back from swap,
/// has thrashed: healthy swapping stalls less, and short stalls read little.
const THRASH_STALLED_MIN: f64 = 0.25;
const THRASH_SWAPPED_IN_MIN: u64 = 64 << 20;

impl Shortage {
    /// Whether it waited for memory and not for itself.
    fn is_thrash(&self) -> bool {
        self.stalled >= THRASH_STALLED_MIN && self.swapped_in_bytes >= THRASH_SWAPPED_IN_MIN
    }
}

/// Why we ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The user asked.
    ByUser,
    /// It broke its budget.
    Over(Broken),
    /// Memory and swap of the whole machine were used up.
    Exhausted,
    /// It went on asking for contiguous memory that was not there.
    CmaStuck,
    /// A disk that it may write to came under its reserve.
    DiskShort,
    /// Its outputs hold more files than can be kept.
    TooManyFiles,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Its program ended well; the outputs are still to be checked.
    Done,
    /// It failed.
    Failed(Failure),
    /// We ended it because the user asked.
    Interrupted,
}

/// What shells say where they may not execute a file; they complain in the same words of it.
const NO_PROGRAM: i32 = 126;
/// SIGKILL, which the kernel's out-of-memory killer uses.
const SIGKILL: i32 = 9;
/// What a shell says whose child was ended by a signal: 128 and the signal's number.
const SHELL_SIGKILL: i32 = 128 + SIGKILL;
const SHELL_SIGTERM: i32 = 128 + 15;

/// Judges an end.  Exit codes lie, so the kernel's count and our own stop are asked first.
pub fn classify(end: &End) -> Outcome {
    let exit = end.report.as_ref().and_then(|report| report.exit);
    let failed = |class, message: String| Outcome::Failed(Failure { class, exit, message });
    match end.stopped {
        Some(Stopped::ByUser) => return Outcome::Interrupted,
        Some(Stopped::Over(broken)) => {
            let (class, message) = over(broken, &end.shortage);
            return failed(class, message);
        }
        Some(Stopped::Exhausted) => return failed(FailureClass::Thrash, EXHAUSTED.to_owned()),
        Some(Stopped::CmaStuck) => {
            return failed(FailureClass::CmaExhausted, CMA_STUCK.to_owned());
        }
        Some(Stopped::DiskShort) => {
            let what = end.short.as_ref().map_or_else(String::new, Short::to_string);
            return failed(FailureClass::DiskFull, format!("ended, since {what}; {UNDER_RESERVE}"));
        }
        Some(Stopped::TooManyFiles) => {
            let message = format!(
                "ended, since its outputs hold more than {FILES_MAX} files (SMELT_FILES_MAX); pack them into fewer"
            );
            return failed(FailureClass::OutputInvalid, message);
        }
        None => {}
    }
    let Some(report) = &end.report else {
        let (class, message) = lost_shim(end);
        return failed(class, message);
    };
    if let Some(error) = &report.spawn_error {
        let class = of_disk(error).unwrap_or(FailureClass::SpawnFailed);
        return failed(class, error.clone());
    }
    if report.exit == Some(0) && report.signal.is_none() {
        if let Some((class, message)) = distrusted(report, end) {
            return failed(class, message);
        }
        return match &end.refused {
            Some(refused) => {
                failed(class_of_refused(refused), format!("{} (exit 0)", tried(refused)))
            }
            None => Outcome::Done,
        };
    }
    let class = class_of(report, end);
    let message = message(report, end, class);
    match &end.refused {
        Some(refused) if class == class_of_refused(refused) => {
            failed(class, format!("{}; it said: {message}", tried(refused)))
        }
        _ => failed(class, message),
    }
}

/// What a disk that is full is called, by the system and by whoever repeats it.
const FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// What a disk that fails is called, by the system and by Go.
const FAILING: &str = "nput/output error";

/// Whether this says that a disk is full.
fn says_full(text: &str) -> bool {
    FULL.iter().any(|words| text.contains(words))
}

/// What this says of a disk, if anything.
pub(crate) fn of_disk(text: &str) -> Option<FailureClass> {
    match says_full(text) {
        true => Some(FailureClass::DiskFull),
        false => text.contains(FAILING).then_some(FailureClass::DiskError),
    }
}

const UNDER_RESERVE: &str = "a disk with less than its reserve (4 MiB, or a sixteenth of a smaller one) counts as full, \
     since nobody tells whose write was cut short";

/// Why what it made is not to be kept although it said success: programs ignore that a child was
/// killed, and that a write was cut short.
fn distrusted(report: &ShimReport, end: &End) -> Option<(FailureClass, String)> {
    if !end.survives_kills && end.oom_kills.explain_failure() {
        let whose = match end.oom_kills {
            OomKills::Own(_) => "of its processes one was killed",
            _ => {
                "a process of this machine was killed, and without a control group nobody knows whose"
            }
        };
        let message = format!(
            "it said success (exit 0), but {whose}: {}; if it minds that itself, say survives-kills = true",
            out_of_memory(end.limit_bytes)
        );
        return Some((FailureClass::OomKilled, message));
    }
    let (class, what) = bad_disk(report, end)?;
    Some((class, format!("it said success (exit 0), but {what}")))
}

/// How it met a disk that is full or fails, if it did.
fn bad_disk(report: &ShimReport, end: &End) -> Option<(FailureClass, String)> {
    if let Some(short) = &end.short {
        return Some((FailureClass::DiskFull, format!("{short}; {UNDER_RESERVE}")));
    }
    let of = |text: &String, what: &str| Some((of_disk(text)?, format!("{what}: {text}")));
    let unkept = report.log_error.as_ref();
    let unkept = unkept.and_then(|error| of(error, "its log could not be kept"));
    unkept.or_else(|| of(end.disk_line.as_ref()?, "its log says"))
}

/// Of a stage that said success and left no output: what its log says of that, if anything.
pub(crate) fn missing(message: String, found: Option<&Finding>) -> (FailureClass, String) {
    match found {
        Some(found) => (found.class, explained(found, &message)),
        None => (FailureClass::OutputMissing, message),
    }
}

fn lost_shim(end: &End) -> (FailureClass, String) {
    if end.oom_kills.explain_failure() {
        let message = format!("its shim was killed; {}", out_of_memory(end.limit_bytes));
        return (FailureClass::OomKilled, message);
    }
    (FailureClass::KilledExternally, "its shim was killed from outside".to_owned())
}

const EXHAUSTED: &str = "ended, since memory and swap of this machine were both used up (the kernel would have killed next)";
const CMA_STUCK: &str =
    "ended, since it got no contiguous memory (CMA) for two minutes and did nothing else meanwhile";

/// In MiB, the unit people set limits in.
fn over(broken: Broken, shortage: &Shortage) -> (FailureClass, String) {
    match broken {
        Broken::Memory { rss_bytes, rss_bytes_max } => {
            let [held, max] = [rss_bytes, rss_bytes_max].map(|bytes| bytes.div_ceil(1 << 20));
            let message = format!("held {held} MiB, more than the {max} MiB of limits.memory");
            (FailureClass::MemoryLimit, message)
        }
        Broken::Time { duration_max } => {
            let message =
                format!("ran longer than the {} s of limits.timeout", duration_max.as_secs());
            if !shortage.is_thrash() {
                return (FailureClass::TimedOut, message);
            }
            let message = format!(
                "{message}, waiting for memory {:.0} % of the time and reading {} MiB back from swap",
                shortage.stalled * 100.0,
                shortage.swapped_in_bytes >> 20
            );
            (FailureClass::Thrash, message)
        }
    }
}

fn class_of(report: &ShimReport, end: &End) -> FailureClass {
    if end.oom_kills.explain_failure() {
        return FailureClass::OomKilled;
    }
    // The log may be what the disk could not take.
    let log_error = report.log_error.as_deref().unwrap_or_default();
    if end.short.is_some() || says_full(&end.last_line) || says_full(log_error) {
        return FailureClass::DiskFull;
    }
    let said = said(&end.last_line);
    if said.starts_with(INVALID_PREFIX) {
        return FailureClass::OutputInvalid;
    }
    // A program that a strict one does not see cannot be started, either.
    let may_be =
        |refused: &&Refused| report.exit != Some(NO_PROGRAM) || matches!(refused, Refused::Read(_));
    let refused = end.refused.as_ref().filter(|_| report.signal.is_none());
    if let Some(refused) = refused.filter(may_be) {
        return class_of_refused(refused);
    }
    let found = end.found.as_ref().map(|found| found.class);
    let of_device = matches!(found, None | Some(FailureClass::DeviceMemory));
    if end.shortage.cma_alloc_fails > 0 && of_device && !is_from_outside(report) {
        return FailureClass::CmaExhausted;
    }
    match found {
        Some(class) => class,
        None if end.shortage.nvmap_fails > 0 && !is_from_outside(report) => {
            FailureClass::DeviceMemory
        }
        None if is_from_outside(report) => FailureClass::KilledExternally,
        None => FailureClass::ToolRejected,
    }
}

/// Whether it ended by a signal that people and supervisors send, or its shell says so of a child.
fn is_from_outside(report: &ShimReport) -> bool {
    matches!(report.signal, Some(SIGKILL | 15 | 2 | 1))
        || matches!(report.exit, Some(SHELL_SIGKILL | SHELL_SIGTERM))
}

/// What a stage of smelt's own says first where what it looked at is not what it must be.
pub const INVALID_PREFIX: &str = "output invalid: ";

/// A tool that goes on all the same has not failed yet, but whatever it needs to write should be known.
fn tried(refused: &Refused) -> String {
    match refused {
        Refused::Write(path) => format!(
            "it tried to write {}, outside of its own directory; declare that in \"writes\", or keep it from doing so",
            path.display()
        ),
        Refused::Read(path) => format!(
            "it is strict and wanted {}, which it does not declare; name that in \"inputs\" (path:...) or in \"tool\"",
            path.display()
        ),
    }
}

fn class_of_refused(refused: &Refused) -> FailureClass {
    match refused {
        Refused::Write(_) => FailureClass::UndeclaredWrite,
        Refused::Read(_) => FailureClass::UndeclaredRead,
    }
}

/// The last line without smelt's name.
fn said(last_line: &str) -> &str {
    last_line.strip_prefix("smelt: ").unwrap_or(last_line)
}

fn message(report: &ShimReport, end: &End, class: FailureClass) -> String {
    let how = match (report.signal, report.exit) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("exit {code}"),
        (None, None) => "ended".to_owned(),
    };
    let how = match class {
        FailureClass::OomKilled => format!("{how}; {}", out_of_memory(end.limit_bytes)),
        FailureClass::CmaExhausted => {
            let Shortage { cma_alloc_fails: fails, cma_refused_bytes: bytes, .. } = end.shortage;
            let size = bytes.map_or(String::new(), |bytes| format!(" (up to {})", amount(bytes)));
            format!("{how}; the kernel refused contiguous memory {fails} times meanwhile{size}")
        }
        FailureClass::DeviceMemory if end.found.is_none() => {
            format!("{how}; the kernel's log says that the GPU's driver was refused memory")
        }
        FailureClass::KilledExternally if end.oom_kills != OomKills::Unknown => {
            format!("{how}; not by the kernel for want of memory, as its count says")
        }
        FailureClass::DiskFull if !says_full(&end.last_line) => match &end.short {
            Some(short) => format!("{how}; {short}"),
            None => how,
        },
        _ => how,
    };
    if let Some(found) = end.found.as_ref().filter(|found| class == found.class) {
        return explained(found, &how);
    }
    match said(&end.last_line) {
        "" => how,
        said => format!("{said} ({how})"),
    }
}

/// The line that decided, what it means, the size that was asked for, and what to try.
fn explained(found: &Finding, how: &str) -> String {
    let Finding { line, means, remedy, .. } = found;
    let size = found.size_bytes.map_or(String::new(), |bytes| format!(" ({})", amount(bytes)));
    format!("{line} ({how}): {means}{size}; to try: {remedy}")
}

/// In MiB, and in bytes where that is less than one.
fn amount(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mebibytes => format!("{mebibytes} MiB, {bytes} bytes"),
    }
}

/// An output that is not there, or not what it must be, after one of its processes was killed: the kill
/// is the reason.
pub(crate) fn for_want_of_memory(failure: Failure, oom_kills: u64, limit: Option<u64>) -> Failure {
    // A shell that said success may have written that a child was killed.
    let is_about_output = matches!(
        failure.class,
        FailureClass::OutputMissing | FailureClass::OutputInvalid | FailureClass::KilledExternally
    );
    if oom_kills == 0 || !is_about_output {
        return failure;
    }
    let message = format!("{}; {}", failure.message, out_of_memory(limit));
    Failure { class: FailureClass::OomKilled, message, ..failure }
}

fn out_of_memory(limit_bytes: Option<u64>) -> String {
    match limit_bytes {
        None => "the kernel ran out of memory".to_owned(),
        Some(bytes) => format!(
            "the kernel had no memory for it within the {} MiB of limits.memory, nor swap",
            bytes.div_ceil(1 << 20)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smelt_plan::FailureClass::*;

    fn end(exit: Option<i32>, signal: Option<i32>, last_line: &str) -> End {
        let report = ShimReport {
            exit,
            signal,
            cpu_s: 0.0,
            rss_process_peak_bytes: 0,
            carried_bytes: 0,
            major_faults: 0,
            leftovers: 0,
            writes: None,
            confined_by: None,
            network: None,
            short: None,
            late: false,
            spawn_error: None,
            log_error: None,
        };
        End {
            report: Some(report),
            stopped: None,
            oom_kills: OomKills::Own(0),
            survives_kills: false,
            shortage: Shortage::default(),
            short: None,
            disk_line: None,
            found: None,
            limit_bytes: None,
            refused: None,
            last_line: last_line.to_owned(),
        }
    }

    #[track_caller]
    fn check(end: &End, class: FailureClass, words: &str) {
        let Outcome::Failed(failure) = classify(end) else { panic!("{end:?} did not fail") };
        assert_eq!(failure.class, class);
        assert!(failure.message.contains(words), "{}", failure.message);
    }

    #[test]
    fn ends() {
        assert_eq!(classify(&end(Some(0), None, "whatever")), Outcome::Done);
        check(&end(Some(1), None, "smelt: bad tensor"), ToolRejected, "bad tensor (exit 1)");
        check(&end(Some(1), None, ""), ToolRejected, "exit 1");
        check(&end(Some(1), None, "smelt: output invalid: no"), OutputInvalid, "invalid: no");
        check(&end(None, Some(9), ""), KilledExternally, "signal 9");
        check(&end(None, Some(11), ""), ToolRejected, "signal 11");
        check(&end(Some(1), None, "cp: x: No space left on device"), DiskFull, "cp: x");
        let mut unborn = end(None, None, "");
        unborn.report.as_mut().unwrap().spawn_error = Some("cannot start nosuch: no".to_owned());
        check(&unborn, SpawnFailed, "cannot start");
    }

    #[test]
    fn a_refused_write_fails_whatever_the_exit_says() {
        let refused = |end| End { refused: Some(Refused::Write("/etc/x".into())), ..end };
        check(&refused(end(Some(0), None, "done")), UndeclaredWrite, "write /etc/x, outside");
        check(&refused(end(Some(2), None, "sh: no")), UndeclaredWrite, "it said: sh: no (exit 2)");
        check(&refused(end(None, Some(9), "")), KilledExternally, "signal 9");
        check(&refused(end(Some(126), None, "sh: x")), ToolRejected, "sh: x");
        check(&refused(end(Some(1), None, "No space left on device")), DiskFull, "No space");
    }

    #[test]
    fn what_was_refused_is_told_only_where_it_is_the_reason() {
        let refused = |end| End { refused: Some(Refused::Write("/etc/x".into())), ..end };
        for other in [end(None, Some(9), "x"), end(Some(1), None, "No space left on device")] {
            let Outcome::Failed(failure) = classify(&refused(other)) else { panic!("it failed") };
            assert!(!failure.message.contains("/etc/x"), "{}", failure.message);
        }
    }

    #[test]
    fn a_disk_is_told_of_once() {
        let short = Some(Short { place: "/d".into(), free_bytes: 9 << 10, free_files: None });
        let full = End { short, ..end(Some(1), None, "cp: No space left on device") };
        let Outcome::Failed(failure) = classify(&full) else { panic!("it failed") };
        assert_eq!(
            (failure.class, &failure.message[..]),
            (DiskFull, "cp: No space left on device (exit 1)")
        );
    }

    #[test]
    fn what_a_strict_program_lacks_is_named() {
        let refused = |end| End { refused: Some(Refused::Read("/home/x".into())), ..end };
        check(&refused(end(Some(0), None, "done")), UndeclaredRead, "wanted /home/x, which");
        check(&refused(end(Some(1), None, "no")), UndeclaredRead, "it said: no (exit 1)");
        check(&refused(end(Some(127), None, "sh: x")), UndeclaredRead, "it said: sh: x");
        check(&refused(end(None, Some(9), "")), KilledExternally, "signal 9");
    }

    #[test]
    fn the_kernels_count_beats_the_exit_code() {
        let killed = |oom_kills, end| End { oom_kills, ..end };
        let (own, machine) = (OomKills::Own(1), OomKills::Machine(1));
        check(&killed(own, end(Some(1), None, "")), OomKilled, "ran out of memory");
        check(&killed(machine, end(Some(1), None, "x")), OomKilled, "x (exit 1; the kernel ran");
        check(&End { report: None, ..killed(own, end(None, None, "")) }, OomKilled, "its shim");
        let within = End { limit_bytes: Some(512 << 20), ..killed(own, end(Some(1), None, "")) };
        check(&within, OomKilled, "within the 512 MiB of limits.memory");
    }

    #[test]
    fn success_after_a_kill_is_none() {
        let killed = |oom_kills| End { oom_kills, ..end(Some(0), None, "done") };
        check(&killed(OomKills::Own(1)), OomKilled, "of its processes one was killed: the kernel");
        check(&killed(OomKills::Machine(2)), OomKilled, "a process of this machine was killed");
        let within = End { limit_bytes: Some(512 << 20), ..killed(OomKills::Own(1)) };
        check(&within, OomKilled, "within the 512 MiB of limits.memory");
        for kills in [OomKills::Own(3), OomKills::Machine(3)] {
            let survivor = End { survives_kills: true, ..killed(kills) };
            assert_eq!(classify(&survivor), Outcome::Done);
            let failed = End { oom_kills: kills, ..end(Some(1), None, "no") };
            check(&End { survives_kills: true, ..failed }, OomKilled, "no (exit 1; the kernel");
        }
        assert_eq!(classify(&killed(OomKills::Unknown)), Outcome::Done);
    }

    #[test]
    fn success_on_a_full_disk_is_none() {
        let short = || Some(Short { place: "/d".into(), free_bytes: 9 << 10, free_files: None });
        let done = || end(Some(0), None, "done");
        check(&End { short: short(), ..done() }, DiskFull, "the disk of /d had 9 KiB free");
        check(&End { short: short(), ..end(Some(3), None, "x") }, DiskFull, "x (exit 3; the disk");
        let ended = End { short: short(), stopped: Some(Stopped::DiskShort), ..done() };
        check(&ended, DiskFull, "ended, since the disk of /d had 9 KiB free");
        let line = Some("cp: No space left on device".to_owned());
        check(&End { disk_line: line, ..done() }, DiskFull, "its log says: cp: No space");
        let line = Some("dd: error reading 'i': Input/output error".to_owned());
        check(&End { disk_line: line, ..done() }, DiskError, "its log says: dd: error reading");
        let mut unkept = done();
        unkept.report.as_mut().unwrap().log_error = Some("Disk quota exceeded (122)".to_owned());
        check(&unkept, DiskFull, "its log could not be kept");
        let mut unborn = end(None, None, "");
        let error = "cannot make /w/tmp: No space left on device (os error 28)";
        unborn.report.as_mut().unwrap().spawn_error = Some(error.to_owned());
        check(&unborn, DiskFull, "cannot make /w/tmp");
    }

    #[test]
    fn a_kill_is_the_reason_for_a_missing_output() {
        let missing = |class| Failure { class, exit: Some(0), message: "missing".to_owned() };
        let check = |class, kills, expect| {
            assert_eq!(for_want_of_memory(missing(class), kills, None).class, expect);
        };
        check(OutputMissing, 0, OutputMissing);
        check(OutputMissing, 1, OomKilled);
        check(OutputInvalid, 2, OomKilled);
        check(KilledExternally, 1, OomKilled);
        check(DiskFull, 1, DiskFull);
        let told = for_want_of_memory(missing(OutputMissing), 1, None).message;
        assert_eq!(told, "missing; the kernel ran out of memory");
    }

    #[test]
    fn the_guards_word_is_the_class() {
        let stopped = |why| End { stopped: Some(why), ..end(None, Some(9), "") };
        check(&stopped(Stopped::Exhausted), Thrash, "memory and swap");
        check(&stopped(Stopped::CmaStuck), CmaExhausted, "contiguous");
        check(&stopped(Stopped::TooManyFiles), OutputInvalid, "more than 32768 files");
    }

    #[test]
    fn a_kill_from_outside_is_told_apart() {
        check(&end(Some(137), None, "Killed"), KilledExternally, "not by the kernel");
        check(&end(Some(143), None, "Terminated"), KilledExternally, "exit 143");
        check(&end(None, Some(9), "x"), KilledExternally, "x (ended by signal 9; not by");
        let unknown = End { oom_kills: OomKills::Unknown, ..end(None, Some(9), "x") };
        check(&unknown, KilledExternally, "x (ended by signal 9)");
    }

    fn saying(log: &str, end: End) -> End {
        let signatures = crate::signatures::Signatures::built_in();
        let last_line = log.lines().last().unwrap_or_default().to_owned();
        End { found: signatures.find(log.lines()), last_line, ..end }
    }

    #[test]
    fn what_the_log_says_is_told_with_the_size_and_the_remedy() {
        let log = "CUDA error 2 for 622329856-byte allocation\nBuilding engine failed";
        let said = saying(log, end(Some(1), None, ""));
        check(
            &said,
            DeviceMemory,
            "CUDA error 2 for 622329856-byte allocation (exit 1): CUDA could",
        );
        check(&said, DeviceMemory, "(593 MiB, 622329856 bytes); to try: ");
        let log = "NvMapMemAllocInternalTagged: 1075072515 error 12";
        let Outcome::Failed(failure) = classify(&saying(log, end(Some(1), None, ""))) else {
            panic!("exit 1 is a failure")
        };
        assert!(!failure.message.contains("MiB"), "{}", failure.message);
        let warned = saying("Tactic Device request: 9MB Available: 1MB.", end(Some(0), None, ""));
        assert_eq!(classify(&warned), Outcome::Done, "a warning is no failure");
    }

    #[test]
    fn an_output_that_is_missing_may_be_explained_by_the_log() {
        let signatures = crate::signatures::Signatures::built_in();
        let found = |log: &'static str| signatures.find(log.lines());
        let log = "Could not find any implementation for node x.\nPASSED";
        let (class, message) = missing("no \"o\"".to_owned(), found(log).as_ref());
        assert_eq!(class, NoTactic);
        assert!(message.starts_with("Could not find any implementation for node x. (no \"o\"): "));
        assert_eq!(missing("m".to_owned(), found("PASSED").as_ref()).0, OutputMissing);
    }

    #[test]
    fn refused_contiguous_memory_explains_what_nothing_else_does() {
        let shortage = Shortage { cma_alloc_fails: 3, ..Shortage::default() };
        let refused = |end| End { shortage, ..end };
        check(&refused(end(Some(1), None, "no")), CmaExhausted, "no (exit 1; the kernel refused");
        let sized = Shortage { cma_refused_bytes: Some(8 << 20), ..shortage };
        let sized = End { shortage: sized, ..end(Some(1), None, "no") };
        check(&sized, CmaExhausted, "3 times meanwhile (up to 8 MiB, 8388608 bytes)");
        let log = "NvMapMemAllocInternalTagged: 1075072515 error 12";
        check(&refused(saying(log, end(Some(1), None, ""))), CmaExhausted, "contiguous memory 3");
        let of_gpu = Shortage { nvmap_fails: 1, ..Shortage::default() };
        let of_gpu = End { shortage: of_gpu, ..end(Some(1), None, "no") };
        check(&of_gpu, DeviceMemory, "no (exit 1; the kernel's log says");
        let log = "Parsing model failed";
        check(&refused(saying(log, end(Some(1), None, ""))), ToolRejected, "Parsing model failed");
        assert_eq!(classify(&refused(end(Some(0), None, ""))), Outcome::Done);
        check(&refused(end(None, Some(9), "")), KilledExternally, "signal 9");
    }

    #[test]
    fn our_own_stop_beats_everything() {
        let over = |why| End { stopped: Some(Stopped::Over(why)), ..end(None, Some(9), "x") };
        let memory = Broken::Memory { rss_bytes: 101 << 20, rss_bytes_max: 100 << 20 };
        check(&over(memory), MemoryLimit, "held 101 MiB, more than the 100 MiB");
        let time = Broken::Time { duration_max: std::time::Duration::from_secs(60) };
        check(&over(time), TimedOut, "the 60 s of limits.timeout");
        let thrash = Shortage { stalled: 0.4, swapped_in_bytes: 700 << 20, ..Shortage::default() };
        let waited = End { shortage: thrash, ..over(time) };
        check(&waited, Thrash, "waiting for memory 40 % of the time and reading 700 MiB back");
        for healthy in
            [Shortage { stalled: 0.2, ..thrash }, Shortage { swapped_in_bytes: 1 << 20, ..thrash }]
        {
            check(&End { shortage: healthy, ..over(time) }, TimedOut, "the 60 s of limits.timeout");
        }
        let user = End { stopped: Some(Stopped::ByUser), ..end(Some(0), None, "") };
        assert_eq!(classify(&user), Outcome::Interrupted);
    }

    #[test]
    fn a_lost_shim_is_a_kill_from_outside() {
        let lost = End { report: None, ..end(None, None, "") };
        check(&lost, KilledExternally, "shim");
    }
}
