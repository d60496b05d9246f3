//! A piece of work that is built by a run of its own: its folder, the run, and what came of that.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::Value;
use smelt_fleet::execution::Took;
use smelt_fleet::work::WorkRequest;

use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::WorkerFlags;
use crate::fleet::workers::Told;

/// Of a run's log, for whoever asked.
pub(super) const LINES_MAX: usize = 20;
const LINE_BYTES_MAX: u64 = 4096;
/// How a run is led.
const LEADER: [&str; 3] = ["stage", "lead", "--"];
/// A report has some KiB for each stage.
const REPORT_BYTES_MAX: u64 = 16 << 20;

const PIPELINE: &str = "pipeline.toml";
const GIVEN: &str = "given.json";

/// A folder for a piece of work, which ends with it.
pub(super) struct Place {
    folder: PathBuf,
}

impl Place {
    pub(super) fn new(request: &WorkRequest, text: &[u8]) -> io::Result<Self> {
        let name = format!("smelt-work-{}", std::process::id());
        let place = Self { folder: std::env::temp_dir().join(name) };
        // What a worker of that number has left is nobody's.
        let _ = fs::remove_dir_all(&place.folder);
        fs::DirBuilder::new().mode(0o700).create(&place.folder)?;
        fs::write(place.file(PIPELINE), text)?;
        let given = serde_json::to_vec(&request.inputs).expect("digests are JSON");
        fs::write(place.file(GIVEN), given)?;
        Ok(place)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The pipeline's file.
    pub(super) fn pipeline(&self) -> PathBuf {
        self.file(PIPELINE)
    }

    /// The flags of the run that builds it.
    pub(super) fn flags(&self, request: &WorkRequest, flags: &WorkerFlags) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec!["run".into(), self.pipeline().into()];
        all.extend(["--only".into(), request.stage.clone().into()]);
        all.extend(["--given".into(), self.file(GIVEN).into(), "--json".into()]);
        all.extend(request.sets.iter().flat_map(|set| ["--set".into(), OsString::from(set)]));
        if let Some(bytes) = flags.keep_free {
            all.extend(["--keep-free".into(), bytes.to_string().into()]);
        }
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // In the worst case the next start of the machine removes it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What came of a piece of work.
pub(super) struct Outcome {
    /// 0 where it went well.
    pub(super) exit: i32,
    pub(super) told: Told,
    /// The last lines of its log.
    pub(super) log: String,
    pub(super) took: Option<Took>,
}

impl Outcome {
    /// Of what is not begun.
    pub(super) fn refused(failed: &Failed) -> Self {
        warn(format_args!("work is not done: {failed}"));
        let told = Told { key: None, class: None, message: Some(failed.to_string()) };
        Self { exit: failed.exit as i32, told, log: String::new(), took: None }
    }
}

/// Why work is not begun.
pub(super) fn cannot(error: &io::Error) -> Failed {
    Failed::new(Exit::StageFailed, format!("the work cannot be begun: {error}"))
}

/// What becomes of the lines of a run besides that the last of them are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// They are told here, too.
    Told,
    Kept,
}

/// A run that ends with this process, however that dies: whoever leads it ends it when its pipe does.
struct Led {
    leader: Child,
    pipe: Option<ChildStdin>,
}

impl Led {
    fn start(arguments: &[OsString]) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        command.args(LEADER).arg(own).args(arguments).stdin(Stdio::piped());
        let mut leader = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pipe = leader.stdin.take();
        Ok(Self { leader, pipe })
    }
}

impl Drop for Led {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.leader.wait();
    }
}

/// A run under way.
pub(super) struct Running {
    child: Led,
    report: thread::JoinHandle<Vec<u8>>,
    passing: thread::JoinHandle<()>,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Running {
    pub(super) fn start(arguments: &[OsString], lines_are: Lines) -> io::Result<Self> {
        let mut child = Led::start(arguments)?;
        let stdout = child.leader.stdout.take().expect("it is piped");
        let stderr = child.leader.stderr.take().expect("it is piped");
        let report = thread::spawn(move || {
            let mut report = Vec::new();
            // A report that is cut off is none.
            let _ = stdout.take(REPORT_BYTES_MAX).read_to_end(&mut report);
            report
        });
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let last = lines.clone();
        let passing = thread::spawn(move || pass_on(BufReader::new(stderr), lines_are, &last));
        Ok(Self { child, report, passing, lines })
    }

    /// The last of its log.
    pub(super) fn line(&self) -> String {
        locked(&self.lines).back().cloned().unwrap_or_default()
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.leader.try_wait()
    }

    pub(super) fn outcome(self, request: &WorkRequest, code: Option<i32>) -> Outcome {
        let report = self.report.join().unwrap_or_default();
        let _ = self.passing.join();
        let report: Value = serde_json::from_slice(&report).unwrap_or_default();
        let stages = report["stages"].as_array().into_iter().flatten();
        let stage = stages.clone().find(|stage| stage["name"] == request.stage.as_str());
        let failed = stages.clone().find(|stage| !stage["message"].is_null());
        let exit = code.unwrap_or(Exit::StageFailed as i32);
        let told = Told {
            key: stage.filter(|_| exit == 0).and_then(|it| it["key"].as_str()?.parse().ok()),
            class: failed.and_then(|it| serde_json::from_value(it["class"].clone()).ok()),
            message: failed.and_then(|it| it["message"].as_str().map(str::to_owned)),
        };
        let took = stage.and_then(|stage| stage["attempts"].as_array()?.last()).map(|attempt| {
            let bytes = |name: &str| attempt[name].as_u64().unwrap_or_default();
            Took {
                wall_ms: (attempt["wall_s"].as_f64().unwrap_or_default() * 1e3) as u64,
                peak_rss_bytes: bytes("peak_rss_bytes"),
                peak_vms_bytes: bytes("peak_vms_bytes"),
            }
        });
        let log: Vec<String> = locked(&self.lines).iter().cloned().collect();
        Outcome { exit, told, log: log.join("\n"), took }
    }
}

fn locked<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the last of a run's lines, which may be told in this worker's log, too.
fn pass_on(mut from: impl BufRead, lines_are: Lines, last: &Mutex<VecDeque<String>>) {
    loop {
        let mut line = Vec::new();
        match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if lines_are == Lines::Told {
            tell(&line);
        }
        let mut last = locked(last);
        if last.len() == LINES_MAX {
            last.pop_front();
        }
        last.push_back(line);
    }
}
