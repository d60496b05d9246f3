//! Has NVIDIA's `trtexec` build a plan: a request to its arguments, its process to a report.
//!
//! Flags and how their values are read are those of TensorRT 10.3 (`samples/common/sampleOptions.cpp` of
//! github.com/NVIDIA/TensorRT); which versions know which of them is the caller's to ask.  The program builds on the GPU that it builds for.

mod report;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

pub use report::{Fault, ProgramEnd, TrtexecReport};

use crate::Shapes;

/// A line of it is shorter; what comes behind that is not kept, since some print megabytes without an end of line.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Lines that wait to be read; whoever writes more waits.
const LINES_WAITING_MAX: usize = 256;
/// How long what it printed may take to come when it has ended: then somebody else still holds its output.
const REST_MAX: Duration = Duration::from_secs(5);
const MIB: f64 = (1 << 20) as f64;
const TICK: Duration = Duration::from_millis(50);

/// The types of a plan's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32, and TF32 where the GPU has it.
    F32,
    /// Halves where they are faster.
    F16,
    /// The upper half of an f32 where that is faster.
    Bf16,
    /// Integers of 8 bits, and halves where those are faster.
    Int8,
    /// The types that the graph has.
    StronglyTyped,
}

impl Precision {
    /// What the program is told.
    pub const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &[],
            Self::F16 => &["--fp16"],
            Self::Bf16 => &["--bf16"],
            Self::Int8 => &["--int8", "--fp16"],
            Self::StronglyTyped => &["--stronglyTyped"],
        }
    }
}

/// The deep-learning accelerator that runs a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dla {
    /// Its number.
    pub core: u32,
    /// Whether layers that it has not run on the GPU.
    pub gpu_fallback: bool,
}

/// What a plan is built from, and how.
#[derive(Clone, Copy, Debug)]
pub struct TrtexecRequest<'a> {
    /// The graph's file; its weights lie where it says.
    pub onnx: &'a Path,
    /// Where the plan goes.
    pub plan: &'a Path,
    /// What was measured before, and where what is measured now is kept.
    pub timing: &'a Path,
    /// The shapes of inputs that have sizes which vary.
    pub shapes: &'a BTreeMap<String, Shapes>,
    /// The types of products.
    pub precision: Precision,
    /// The scales of its values, where the graph has none of its own.
    pub calibration: Option<&'a Path>,
    /// Bytes that kernels may use besides tensors.
    pub workspace_bytes: Option<u64>,
    /// How long it looks for kernels, 0 to 5.
    pub level: Option<u32>,
    /// Streams besides the first.
    pub aux_streams: Option<u32>,
    /// Libraries of kernels that are looked at or left out.
    pub tactic_sources: &'a [String],
    /// Types and layouts of inputs.
    pub input_formats: &'a [String],
    /// Types and layouts of outputs.
    pub output_formats: &'a [String],
    /// What runs it, where not the GPU.
    pub dla: Option<Dla>,
}

impl TrtexecRequest<'_> {
    /// The arguments, without the program.
    ///
    /// # Errors
    /// A line, where a path or the name of an input cannot be an argument.
    pub fn arguments(&self) -> Result<Vec<String>, String> {
        let path = |flag: &str, path: &Path| {
            let text = path.to_str().map(|path| format!("{flag}={path}"));
            text.ok_or_else(|| {
                format!("{} is no text, which trtexec's arguments are", path.display())
            })
        };
        let mut all = vec![
            path("--onnx", self.onnx)?,
            path("--saveEngine", self.plan)?,
            // Else it loads what it saved once more and measures it, with all the memory that this takes.
            "--skipInference".to_owned(),
            path("--timingCacheFile", self.timing)?,
        ];
        all.extend(self.precision.flags().iter().map(|&flag| flag.to_owned()));
        all.extend(self.calibration.map(|cache| path("--calib", cache)).transpose()?);
        // In MiB without a unit, which 8.6 has no word for and later versions take as MiB too.
        let workspace = |bytes: u64| format!("--memPoolSize=workspace:{}", bytes as f64 / MIB);
        all.extend(self.workspace_bytes.map(workspace));
        all.extend(self.level.map(|level| format!("--builderOptimizationLevel={level}")));
        all.extend(self.aux_streams.map(|streams| format!("--maxAuxStreams={streams}")));
        let list = |flag: &str, words: &[String]| {
            (!words.is_empty()).then(|| format!("{flag}={}", words.join(",")))
        };
        all.extend(list("--tacticSources", self.tactic_sources));
        all.extend(list("--inputIOFormats", self.input_formats));
        all.extend(list("--outputIOFormats", self.output_formats));
        if let Some(Dla { core, gpu_fallback }) = self.dla {
            all.push(format!("--useDLACore={core}"));
            all.extend(gpu_fallback.then(|| "--allowGPUFallback".to_owned()));
        }
        for (flag, of) in SHAPES {
            let one = |(name, shapes): (&String, &Shapes)| {
                Ok(format!("{}:{}", plain(name)?, dims(of(shapes))))
            };
            let all_shapes: Vec<String> =
                self.shapes.iter().map(one).collect::<Result<_, String>>()?;
            all.extend(list(flag, &all_shapes));
        }
        Ok(all)
    }
}

type OfShapes = fn(&Shapes) -> &[i64];
const SHAPES: [(&str, OfShapes); 3] = [
    ("--minShapes", |shapes| &shapes.min),
    ("--optShapes", |shapes| &shapes.opt),
    ("--maxShapes", |shapes| &shapes.max),
];

fn dims(sizes: &[i64]) -> String {
    sizes.iter().map(i64::to_string).collect::<Vec<_>>().join("x")
}

/// A list is split at commas and quotes before anything else is looked at, and a star stands for any name.
fn plain(name: &str) -> Result<&str, String> {
    match name.contains([',', '\'', '*']) {
        true => Err(format!(
            "trtexec's arguments cannot hold {name:?}: give that input a name without quotes, commas and stars"
        )),
        false => Ok(name),
    }
}

/// Runs `program` in the folder `scratch`; `tell` hears each line that it prints.
///
/// # Errors
/// When it cannot be started or waited for.
pub fn run(
    program: &Path,
    arguments: &[String],
    scratch: &Path,
    tell: &mut dyn FnMut(&str),
) -> io::Result<TrtexecReport> {
    let (output, writer) = io::pipe()?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(scratch)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    let (sender, lines) = sync_channel(LINES_WAITING_MAX);
    thread::spawn(move || read_lines(output, &sender));
    let mut report = TrtexecReport::default();
    let mut ended: Option<Instant> = None;
    loop {
        let has_more = hear(&lines, &mut |line| {
            report.take(line);
            tell(line);
        });
        if let Some(status) = child.try_wait()? {
            report.ending = ProgramEnd::of(status);
            ended.get_or_insert_with(Instant::now);
        }
        let is_late = ended.is_some_and(|at| at.elapsed() > REST_MAX);
        if is_late || ended.is_some() && !has_more {
            report.leaves_others = is_late && has_more;
            return Ok(report);
        }
    }
}

/// Hears what has come, or waits a moment; whether there may be more.
fn hear(lines: &Receiver<String>, take: &mut dyn FnMut(&str)) -> bool {
    match lines.recv_timeout(TICK) {
        Ok(line) => {
            take(&line);
            lines.try_iter().take(LINES_WAITING_MAX).for_each(|line| take(&line));
            true
        }
        Err(RecvTimeoutError::Timeout) => true,
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(TICK);
            false
        }
    }
}

/// Reads lines until nobody writes any more.
fn read_lines(mut from: impl Read, to: &SyncSender<String>) {
    let (mut buffer, mut line) = (vec![0; 64 << 10], Vec::new());
    let send = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        to.send(text).is_ok()
    };
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        for part in buffer[..read].split_inclusive(|&byte| byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") && !send(&mut line) {
                return;
            }
        }
    }
    if !line.is_empty() {
        send(&mut line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(shapes: &'a BTreeMap<String, Shapes>) -> TrtexecRequest<'a> {
        TrtexecRequest {
            onnx: Path::new("/m/model.onnx"),
            plan: Path::new("/o/engine.plan"),
            timing: Path::new("/o/timing.cache"),
            shapes,
            precision: Precision::F32,
            calibration: None,
            workspace_bytes: None,
            level: None,
            aux_streams: None,
            tactic_sources: &[],
            input_formats: &[],
            output_formats: &[],
            dla: None,
        }
    }

    fn of(name: &str) -> BTreeMap<String, Shapes> {
        let shapes = Shapes { min: vec![1, 3], opt: vec![2, 3], max: vec![8, 3] };
        [(name.to_owned(), shapes)].into()
    }

    #[test]
    fn what_is_not_asked_for_is_no_argument() {
        let arguments = request(&BTreeMap::new()).arguments().unwrap();
        let expect = [
            "--onnx=/m/model.onnx",
            "--saveEngine=/o/engine.plan",
            "--skipInference",
            "--timingCacheFile=/o/timing.cache",
        ];
        assert_eq!(arguments, expect);
    }

    #[test]
    fn every_setting_is_its_flag() {
        let shapes = of("images");
        let [sources, formats] = [["-CUDNN", "+CUBLAS"], ["fp16:chw", "int32:chw"]]
            .map(|words| words.map(str::to_owned));
        let request = TrtexecRequest {
            precision: Precision::Int8,
            calibration: Some(Path::new("/t/calibration.cache")),
            workspace_bytes: Some(512 << 20),
            level: Some(1),
            aux_streams: Some(0),
            tactic_sources: &sources,
            input_formats: &formats,
            output_formats: &formats[..1],
            dla: Some(Dla { core: 1, gpu_fallback: true }),
            ..request(&shapes)
        };
        let expect = [
            "--int8",
            "--fp16",
            "--calib=/t/calibration.cache",
            "--memPoolSize=workspace:512",
            "--builderOptimizationLevel=1",
            "--maxAuxStreams=0",
            "--tacticSources=-CUDNN,+CUBLAS",
            "--inputIOFormats=fp16:chw,int32:chw",
            "--outputIOFormats=fp16:chw",
            "--useDLACore=1",
            "--allowGPUFallback",
            "--minShapes=images:1x3",
            "--optShapes=images:2x3",
            "--maxShapes=images:8x3",
        ];
        assert_eq!(request.arguments().unwrap()[4..], expect);
    }

    #[test]
    fn names_that_its_lists_cannot_hold_are_refused() {
        let last =
            |name: &str| request(&of(name)).arguments().map(|all| all.last().unwrap().clone());
        // It splits at the last colon.
        assert_eq!(last("Input:0").unwrap(), "--maxShapes=Input:0:8x3");
        for name in ["it's", "a,b", "x*"] {
            assert!(last(name).unwrap_err().contains("cannot hold"), "{name}");
        }
    }

    /// What a shell does as the program, and the lines that were heard.
    fn ran(script: &str) -> (TrtexecReport, Vec<String>) {
        let scratch = tempfile::tempdir().unwrap();
        let mut lines = Vec::new();
        let arguments = ["-c".to_owned(), script.to_owned()];
        let mut tell = |line: &str| lines.push(line.to_owned());
        let report = run(Path::new("/bin/sh"), &arguments, scratch.path(), &mut tell).unwrap();
        (report, lines)
    }

    #[test]
    fn lines_come_from_both_streams_and_long_ones_are_cut() {
        let (report, lines) = ran(
            "echo one; echo two >&2; head -c 3000000 /dev/zero | tr '\\0' x; echo; printf last",
        );
        assert_eq!(report.ending, ProgramEnd::Code(0));
        assert!(!report.leaves_others);
        let lengths: Vec<usize> = lines.iter().map(String::len).collect();
        assert_eq!(lengths, [3, 3, LINE_BYTES_MAX, 4]);
    }

    #[test]
    fn how_it_ended_is_told_and_who_is_left_is_noticed() {
        assert_eq!(ran("exit 3").0.ending, ProgramEnd::Code(3));
        assert_eq!(ran("kill -9 $$").0.ending, ProgramEnd::Signal(9));
        let begin = Instant::now();
        let (report, lines) = ran("echo first; sleep 20 & exit 0");
        assert!(report.leaves_others && begin.elapsed() < REST_MAX * 2);
        assert_eq!(lines, ["first"]);
    }
}
