//! Says how an attempt ended.  Pure: what the shim, the watch and the kernel said goes in.

use std::path::{Path, PathBuf};

use smelt_plan::{Failure, FailureClass};
use smelt_watch::Broken;

use crate::order::ShimReport;

/// Everything known about the end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// What the shim said; `None` when the shim itself died.
    pub report: Option<ShimReport>,
    /// Why we ended it, where we did.
    pub stopped: Option<Stopped>,
    /// Out-of-memory kills on this machine while it ran.
    pub oom_kills: u64,
    /// What the kernel kept it within, where it did.
    pub limit_bytes: Option<u64>,
    /// A path that it was not allowed to write, where its log complains of one.
    pub refused: Option<PathBuf>,
    /// The last line of its log.
    pub last_line: String,
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

/// Judges an end.  Exit codes lie, so the kernel's count and our own stop are asked first.
pub fn classify(end: &End) -> Outcome {
    let exit = end.report.as_ref().and_then(|report| report.exit);
    let failed = |class, message: String| Outcome::Failed(Failure { class, exit, message });
    match end.stopped {
        Some(Stopped::ByUser) => return Outcome::Interrupted,
        Some(Stopped::Over(broken)) => {
            let (class, message) = over(broken);
            return failed(class, message);
        }
        Some(Stopped::Exhausted) => return failed(FailureClass::Thrash, EXHAUSTED.to_owned()),
        Some(Stopped::CmaStuck) => {
            return failed(FailureClass::CmaExhausted, CMA_STUCK.to_owned());
        }
        None => {}
    }
    let Some(report) = &end.report else {
        if end.oom_kills > 0 {
            let message = format!("its shim was killed; {}", out_of_memory(end.limit_bytes));
            return failed(FailureClass::OomKilled, message);
        }
        return failed(FailureClass::KilledExternally, "its shim was killed from outside".into());
    };
    if let Some(error) = &report.spawn_error {
        return failed(FailureClass::SpawnFailed, error.clone());
    }
    if report.exit == Some(0) && report.signal.is_none() {
        return match &end.refused {
            Some(path) => {
                failed(FailureClass::UndeclaredWrite, format!("{} (exit 0)", tried(path)))
            }
            None => Outcome::Done,
        };
    }
    let class = class_of(report, end);
    let message = message(report, end);
    match &end.refused {
        Some(path) if class == FailureClass::UndeclaredWrite => {
            failed(class, format!("{}; it said: {message}", tried(path)))
        }
        _ => failed(class, message),
    }
}

const EXHAUSTED: &str = "ended, since memory and swap of this machine were both used up (the kernel would have killed next)";
const CMA_STUCK: &str =
    "ended, since it got no contiguous memory (CMA) for two minutes and did nothing else meanwhile";

/// In MiB, the unit people set limits in.
fn over(broken: Broken) -> (FailureClass, String) {
    match broken {
        Broken::Memory { rss_bytes, rss_bytes_max } => {
            let [held, max] = [rss_bytes, rss_bytes_max].map(|bytes| bytes.div_ceil(1 << 20));
            let message = format!("held {held} MiB, more than the {max} MiB of limits.memory");
            (FailureClass::MemoryLimit, message)
        }
        Broken::Time { duration_max } => {
            let message =
                format!("ran longer than the {} s of limits.timeout", duration_max.as_secs());
            (FailureClass::TimedOut, message)
        }
    }
}

fn class_of(report: &ShimReport, end: &End) -> FailureClass {
    if end.oom_kills > 0 {
        return FailureClass::OomKilled;
    }
    // The log may be what the disk could not take.
    let log_error = report.log_error.as_deref().unwrap_or_default();
    if [&end.last_line, log_error].iter().any(|text| text.contains("No space left on device")) {
        return FailureClass::DiskFull;
    }
    let said = said(&end.last_line);
    if said.starts_with(INVALID_PREFIX) {
        return FailureClass::OutputInvalid;
    }
    let may_be_write = report.signal.is_none() && report.exit != Some(NO_PROGRAM);
    if may_be_write && end.refused.is_some() {
        return FailureClass::UndeclaredWrite;
    }
    match report.signal {
        Some(SIGKILL | 15 | 2 | 1) => FailureClass::KilledExternally,
        _ => FailureClass::ToolRejected,
    }
}

/// What a stage of smelt's own says first where what it looked at is not what it must be.
pub const INVALID_PREFIX: &str = "output invalid: ";

/// A tool that goes on all the same has not failed yet, but whatever it needs to write should be known.
fn tried(path: &Path) -> String {
    format!(
        "it tried to write {}, outside of its own directory; declare that in \"writes\", or keep it from doing so",
        path.display()
    )
}

/// The last line without smelt's name.
fn said(last_line: &str) -> &str {
    last_line.strip_prefix("smelt: ").unwrap_or(last_line)
}

fn message(report: &ShimReport, end: &End) -> String {
    let how = match (report.signal, report.exit) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("exit {code}"),
        (None, None) => "ended".to_owned(),
    };
    let how = match end.oom_kills {
        0 => how,
        _ => format!("{how}; {}", out_of_memory(end.limit_bytes)),
    };
    match said(&end.last_line) {
        "" => how,
        said => format!("{said} ({how})"),
    }
}

/// An output that is not there, or not what it must be, after one of its processes was killed: the kill
/// is the reason.
pub(crate) fn for_want_of_memory(failure: Failure, oom_kills: u64, limit: Option<u64>) -> Failure {
    let is_about_output =
        matches!(failure.class, FailureClass::OutputMissing | FailureClass::OutputInvalid);
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
            major_faults: 0,
            leftovers: 0,
            writes: None,
            spawn_error: None,
            log_error: None,
        };
        End {
            report: Some(report),
            stopped: None,
            oom_kills: 0,
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
        let refused = |end| End { refused: Some("/etc/x".into()), ..end };
        check(&refused(end(Some(0), None, "done")), UndeclaredWrite, "write /etc/x, outside");
        check(&refused(end(Some(2), None, "sh: no")), UndeclaredWrite, "it said: sh: no (exit 2)");
        check(&refused(end(None, Some(9), "")), KilledExternally, "signal 9");
        check(&refused(end(Some(126), None, "sh: x")), ToolRejected, "sh: x");
        check(&refused(end(Some(1), None, "No space left on device")), DiskFull, "No space");
    }

    #[test]
    fn the_kernels_count_beats_the_exit_code() {
        let lied = End { oom_kills: 1, ..end(Some(1), None, "") };
        check(&lied, OomKilled, "ran out of memory");
        let within = End { limit_bytes: Some(512 << 20), ..lied.clone() };
        check(&within, OomKilled, "within the 512 MiB of limits.memory");
        check(&End { report: None, ..lied }, OomKilled, "shim");
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
        check(DiskFull, 1, DiskFull);
    }

    #[test]
    fn the_guards_word_is_the_class() {
        let stopped = |why| End { stopped: Some(why), ..end(None, Some(9), "") };
        check(&stopped(Stopped::Exhausted), Thrash, "memory and swap");
        check(&stopped(Stopped::CmaStuck), CmaExhausted, "contiguous");
    }

    #[test]
    fn our_own_stop_beats_everything() {
        let over = |why| End { stopped: Some(Stopped::Over(why)), ..end(None, Some(9), "x") };
        let memory = Broken::Memory { rss_bytes: 101 << 20, rss_bytes_max: 100 << 20 };
        check(&over(memory), MemoryLimit, "held 101 MiB, more than the 100 MiB");
        let time = Broken::Time { duration_max: std::time::Duration::from_secs(60) };
        check(&over(time), TimedOut, "the 60 s of limits.timeout");
        let user = End { stopped: Some(Stopped::ByUser), ..end(Some(0), None, "") };
        assert_eq!(classify(&user), Outcome::Interrupted);
    }

    #[test]
    fn a_lost_shim_is_a_kill_from_outside() {
        let lost = End { report: None, ..end(None, None, "") };
        check(&lost, KilledExternally, "shim");
    }
}
