//! Reads what `trtexec` prints, and says whether there is a plan that counts.
//!
//! Its exit code alone does not tell: 0 comes with nothing written where its file system is full, and 1 behind a good plan that
//! could not be measured.  So all that it says of itself must agree with the file.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Errors that are kept; the first says why most often.
const ERRORS_MAX: usize = 8;
/// Bytes of a plan that its size in MiB, of six digits, leaves open, as a share of the size.
const SIZE_TOLERANCE: f64 = 1e-5;
const MIB: f64 = (1 << 20) as f64;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ProgramEnd {
    /// It has not.
    #[default]
    None,
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl ProgramEnd {
    pub(super) fn of(status: ExitStatus) -> Self {
        let signal = || status.signal().map_or(Self::None, Self::Signal);
        status.code().map_or_else(signal, Self::Code)
    }
}

/// What the program said and how it ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrtexecReport {
    /// How it ended.
    pub ending: ProgramEnd,
    /// Whether another process still held its output then.
    pub leaves_others: bool,
    /// Whether it says that it passed.
    pub has_passed: bool,
    /// Its first errors, without the time in front of them.
    pub errors: Vec<String>,
    /// The version that it says it is of, as `10.3.0`.
    pub version: Option<String>,
    /// The compute capability of the GPU that it chose, as 87 for 8.7.
    pub capability: Option<u32>,
    /// The plan's size in MiB, of six digits.
    pub plan_mib: Option<f64>,
    /// Layers that run on the deep-learning accelerator, and on the GPU, as far as it lists them.
    pub layers: [usize; 2],
}

/// Why what it left counts for nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It was killed.
    Killed(i32),
    /// It ended with this code, and said why.
    Failed(i32, String),
    /// It ended with 0 and did not say that it passed.
    Silent,
    /// Processes of its own went on.
    LeavesOthers,
    /// There is no plan.
    NoPlan,
    /// It did not say which GPU it built for, or how large the plan is, as its version does.
    Untold(&'static str),
    /// The plan has these bytes, and by what it said others.
    Size(u64, f64),
    /// The GPU has this capability, and another was asked for.
    OtherGpu(u32, u32),
    /// No layer runs on the accelerator.
    FellBack(usize),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(signal) => write!(f, "trtexec was killed by signal {signal}"),
            Self::Failed(code, why) => write!(f, "trtexec failed ({code}): {why}"),
            Self::Silent => f.write_str("trtexec ended with 0 and did not say that it passed"),
            Self::LeavesOthers => f.write_str("trtexec ended, and processes that it started go on"),
            Self::NoPlan => f.write_str("trtexec says that it passed and left no plan"),
            Self::Untold(what) => write!(f, "trtexec passed and did not say {what}"),
            Self::Size(found, said) => {
                write!(f, "the plan has {found} bytes, and trtexec said {said} MiB")
            }
            Self::OtherGpu(here, asked) => {
                let [here, asked] = [here, asked].map(|sm| format!("{}.{}", sm / 10, sm % 10));
                write!(
                    f,
                    "the GPU has compute capability {here}, and the engine is to be for {asked}; trtexec builds for the GPU that it runs on"
                )
            }
            Self::FellBack(layers) => {
                write!(f, "no layer runs on the accelerator: all {layers} fell back to the GPU")
            }
        }
    }
}

impl std::error::Error for Fault {}

impl TrtexecReport {
    /// Takes a line.
    pub(super) fn take(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("&&&& ") {
            self.take_mark(rest);
            return;
        }
        let Some((severity, text)) = message(line) else { return };
        if severity == "E" && self.errors.len() < ERRORS_MAX {
            self.errors.push(text.to_owned());
        }
        if let Some(capability) = text.strip_prefix("Compute Capability: ") {
            self.capability = number_of(capability.trim());
        }
        if let Some(size) = text.strip_prefix("Created engine with size: ") {
            self.plan_mib = size.strip_suffix(" MiB").and_then(|size| size.trim().parse().ok());
        }
        let kinds = ["[DlaLayer] ", "[GpuLayer] "];
        for (count, kind) in self.layers.iter_mut().zip(kinds) {
            *count += usize::from(text.starts_with(kind));
        }
    }

    /// `RUNNING TensorRT.trtexec [TensorRT v100300] # …`, and `PASSED` or `FAILED` in its place.
    fn take_mark(&mut self, rest: &str) {
        self.has_passed = rest.starts_with("PASSED TensorRT.trtexec");
        let digits = rest.split("[TensorRT v").nth(1).and_then(|rest| rest.split(']').next());
        self.version = digits.and_then(version).or_else(|| self.version.take());
    }

    /// Why the plan counts for nothing, if so: one of so many bytes, or none, that was to be for a GPU of this capability
    /// and perhaps for the accelerator.
    pub fn fault(
        &self,
        plan_bytes: Option<u64>,
        capability: u32,
        is_for_dla: bool,
    ) -> Option<Fault> {
        match self.ending {
            ProgramEnd::Code(0) => {}
            ProgramEnd::Code(code) => return Some(Fault::Failed(code, self.reason())),
            ProgramEnd::Signal(signal) => return Some(Fault::Killed(signal)),
            ProgramEnd::None => return Some(Fault::LeavesOthers),
        }
        let of_gpu = self.capability.filter(|&here| here != capability);
        let [on_dla, on_gpu] = self.layers;
        let is_whole = |bytes: u64| {
            self.plan_mib.is_none_or(|mib| {
                (bytes as f64 - mib * MIB).abs() <= mib * MIB * SIZE_TOLERANCE + 1.0
            })
        };
        if !self.has_passed {
            return Some(Fault::Silent);
        }
        if self.leaves_others {
            return Some(Fault::LeavesOthers);
        }
        if let Some(here) = of_gpu {
            return Some(Fault::OtherGpu(here, capability));
        }
        if self.is_since_ten() && self.capability.is_none() {
            return Some(Fault::Untold("which GPU it built for"));
        }
        match plan_bytes.unwrap_or(0) {
            0 => Some(Fault::NoPlan),
            _ if self.is_since_ten() && self.plan_mib.is_none() => {
                Some(Fault::Untold("how large the plan is"))
            }
            bytes if !is_whole(bytes) => {
                Some(Fault::Size(bytes, self.plan_mib.unwrap_or_default()))
            }
            _ if is_for_dla && on_dla == 0 => Some(Fault::FellBack(on_gpu)),
            _ => None,
        }
    }

    /// Whether its version is 10 or later, which say all that is asked here.
    fn is_since_ten(&self) -> bool {
        self.major().is_some_and(|major| major >= 10)
    }

    /// The version's first number.
    pub fn major(&self) -> Option<u32> {
        self.version.as_deref()?.split('.').next()?.parse().ok()
    }

    fn reason(&self) -> String {
        let first = self.errors.first().cloned();
        first.unwrap_or_else(|| "it does not say why; the log has its last lines".to_owned())
    }
}

/// The severity and the text of `[11/27/2026-10:00:00] [E] Error[10]: …`, whose text may begin with `[TRT] `.
fn message(line: &str) -> Option<(&str, &str)> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] [")?;
    let (severity, text) = rest.split_once("] ")?;
    let is_time = time.bytes().all(|byte| byte.is_ascii_digit() || b"/:-".contains(&byte));
    let text = text.strip_prefix("[TRT] ").unwrap_or(text);
    (is_time && severity.len() == 1).then_some((severity, text.trim_start()))
}

/// 87 of `8.7`.
fn number_of(capability: &str) -> Option<u32> {
    let (major, minor) = capability.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
}

/// `10.3.0` of `100300`, and `8.6.1` of `8601`: from 10 on, minor versions have two digits more.
fn version(digits: &str) -> Option<String> {
    let number: u32 = digits.parse().ok()?;
    let [major, minor, patch] = match number {
        100_000.. => [number / 10_000, number / 100 % 100, number % 100],
        _ => [number / 1000, number / 100 % 10, number % 100],
    };
    Some(format!("{major}.{minor}.{patch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as TensorRT 10.3's program prints them, shortened.
    const GOOD: &str = "&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=m.onnx
[11/27/2026-10:00:00] [I] === Device Information ===
[11/27/2026-10:00:00] [I] Selected Device: Orin
[11/27/2026-10:00:00] [I] Compute Capability: 8.7
[11/27/2026-10:00:05] [W] [TRT] Tactic Device request: 594MB Available: 300MB.
[11/27/2026-10:00:07] [I] [TRT] [DlaLayer] {ForeignNode[conv1...relu9]}
[11/27/2026-10:00:07] [I] [TRT] [GpuLayer] SHUFFLE: reshape
[11/27/2026-10:00:09] [I] Engine built in 9.1 sec.
[11/27/2026-10:00:09] [I] Created engine with size: 1.5 MiB
&&&& PASSED TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=m.onnx";
    const BYTES: u64 = 3 << 19;

    fn report(lines: &str, ending: ProgramEnd) -> TrtexecReport {
        let mut report = TrtexecReport { ending, ..TrtexecReport::default() };
        lines.lines().for_each(|line| report.take(line));
        report
    }

    #[test]
    fn what_it_says_of_itself_is_read() {
        let report = report(GOOD, ProgramEnd::Code(0));
        assert_eq!(report.version.as_deref(), Some("10.3.0"));
        assert_eq!((report.capability, report.plan_mib), (Some(87), Some(1.5)));
        assert_eq!((report.layers, report.errors.len()), ([1, 1], 0));
        assert_eq!(report.fault(Some(BYTES), 87, true), None);
    }

    #[test]
    fn each_thing_that_does_not_agree_is_a_fault() {
        let good = || report(GOOD, ProgramEnd::Code(0));
        let check = |report: &TrtexecReport, bytes: Option<u64>, expect: Fault| {
            assert_eq!(report.fault(bytes, 87, true), Some(expect));
        };
        check(
            &TrtexecReport { ending: ProgramEnd::Signal(9), ..good() },
            Some(BYTES),
            Fault::Killed(9),
        );
        let silent = "it does not say why; the log has its last lines".to_owned();
        check(
            &TrtexecReport { ending: ProgramEnd::Code(1), ..good() },
            Some(BYTES),
            Fault::Failed(1, silent),
        );
        check(&TrtexecReport { has_passed: false, ..good() }, Some(BYTES), Fault::Silent);
        check(&TrtexecReport { leaves_others: true, ..good() }, Some(BYTES), Fault::LeavesOthers);
        check(&good(), None, Fault::NoPlan);
        check(&good(), Some(0), Fault::NoPlan);
        check(&good(), Some(BYTES - 4096), Fault::Size(BYTES - 4096, 1.5));
        check(
            &TrtexecReport { capability: Some(86), ..good() },
            Some(BYTES),
            Fault::OtherGpu(86, 87),
        );
        check(&TrtexecReport { layers: [0, 9], ..good() }, Some(BYTES), Fault::FellBack(9));
        assert_eq!(TrtexecReport { layers: [0, 9], ..good() }.fault(Some(BYTES), 87, false), None);
        let untold = |report: TrtexecReport| report.fault(Some(BYTES), 87, false);
        let lacks = |what| Some(Fault::Untold(what));
        let no_size = || TrtexecReport { plan_mib: None, ..good() };
        assert_eq!(untold(no_size()), lacks("how large the plan is"));
        let no_gpu = TrtexecReport { capability: None, ..good() };
        assert_eq!(untold(no_gpu), lacks("which GPU it built for"));
        // Versions before 10 did not say how large a plan is.
        let old = TrtexecReport { version: Some("8.6.1".to_owned()), ..no_size() };
        assert_eq!(untold(old), None);
    }

    #[test]
    fn a_failure_is_told_by_its_first_error() {
        let lines = "&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec
[11/27/2026-10:00:00] [E] [TRT] ModelImporter.cpp:949: --- Begin node ---
[11/27/2026-10:00:00] [E] Failed to parse onnx file
&&&& FAILED TensorRT.trtexec [TensorRT v100300] # trtexec";
        let fault = report(lines, ProgramEnd::Code(1)).fault(None, 87, false).unwrap();
        let words = "trtexec failed (1): ModelImporter.cpp:949: --- Begin node ---";
        assert_eq!(fault.to_string(), words);
    }

    #[test]
    fn versions_have_their_own_digits() {
        for (digits, expect) in
            [("100300", "10.3.0"), ("101303", "10.13.3"), ("8601", "8.6.1"), ("110400", "11.4.0")]
        {
            assert_eq!(version(digits).as_deref(), Some(expect));
        }
        assert_eq!(version("b30"), None);
    }

    #[test]
    fn lines_of_others_are_none_of_its_own() {
        for line in ["", "[", "[I] x", "[time] [E] x", "[11/27/2026-10:00:00] [EE] x", "E x"] {
            assert_eq!(message(line), None, "{line}");
        }
    }
}
