//! Holds a conversation with the loader: one request, its events, the next request.
//!
//! What the child does wrong is data; `Err` means that there is no conversation any more.  Dropping a session ends its
//! child, whatever that is doing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::event::{Event, Log, LogSeverity, MemoryAsked, Refusal, Tensor, words};
use crate::library::Libraries;
use crate::loader::{Loader, first_lines};

/// An event lists the inputs of a graph, each a few hundred bytes: of ten thousand there is room.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Events that wait to be heard; the loader waits where there are more.
const EVENTS_MAX: usize = 256;
/// The end of what a child said besides events.
const SAID_BYTES_MAX: usize = 8 << 10;
/// Loading the library takes a tenth of a second, on a board with a cold disk some seconds.
const LOAD_MAX: Duration = Duration::from_secs(120);
/// A parser looks at each node once; large graphs take seconds.
const CHECK_MAX: Duration = Duration::from_secs(600);
/// How long a build that was told to end may take to its next step; then its process is ended.
const CANCEL_MAX: Duration = Duration::from_secs(10);
/// How often a build that says nothing is asked whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Errors of a builder that are kept; the first is most often the cause.
const ERRORS_MAX: usize = 16;

/// Why there is no conversation.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The loader does not start.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The loader.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The library does not load, or has another interface than is known.
    #[error("{} cannot be used: {why}", library.display())]
    Library {
        /// Its file.
        library: PathBuf,
        /// What it or the loader said.
        why: String,
    },
    /// It ended in the middle of a request.
    #[error("TensorRT ended with {status} while it {doing}{}{said}", if said.is_empty() { "" } else { ": " })]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it was asked.
        doing: &'static str,
        /// The end of what it said.
        said: String,
    },
    /// It took longer than any graph does, and was ended.
    #[error("TensorRT said nothing for {} s while it {doing}, and was ended", after.as_secs())]
    Slow {
        /// What it was asked.
        doing: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// It said what it should not.
    #[error("the program that loads TensorRT said {0:?}, which is none of its events")]
    Odd(String),
}

/// A network as TensorRT made it of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Its layers.
    pub layers: i64,
    /// Its inputs.
    pub inputs: Vec<Tensor>,
    /// Its outputs.
    pub outputs: Vec<Tensor>,
}

/// What the parser says of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParserAnswer {
    /// The network, where it takes the graph.
    pub network: Option<Network>,
    /// Why not, or what it found on the way.
    pub refusals: Vec<Refusal>,
    /// Messages.
    pub logs: Vec<Log>,
}

/// The smallest, the likeliest and the largest sizes of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// The smallest.
    pub min: Vec<i64>,
    /// What kernels are chosen for.
    pub opt: Vec<i64>,
    /// The largest.
    pub max: Vec<i64>,
}

/// What is to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildRequest<'a> {
    /// The graph's file; its weights lie where it says.
    pub onnx: &'a Path,
    /// The file to make; there must be none.
    pub plan: &'a Path,
    /// The GPUs' compute capability, as 86; that of the GPU that is here where nothing is asked.
    pub target: Option<u32>,
    /// Bytes that kernels may use besides tensors, where they are limited.
    pub workspace_bytes: Option<u64>,
    /// How long the builder looks for kernels, 0 to 5.
    pub level: Option<u32>,
    /// Bytes of a GPU's memory that the builder may hold at once, where they are limited.
    pub memory_bytes: Option<u64>,
    /// Of the inputs whose sizes vary, their shapes.
    pub shapes: BTreeMap<String, Shapes>,
}

/// A plan that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Its length.
    pub bytes: u64,
    /// What it was made of.
    pub network: Network,
    /// What of a GPU's memory was asked for on the way.
    pub memory: MemoryAsked,
    /// How often the builder said that it goes on.
    pub steps: i64,
    /// Warnings.
    pub logs: Vec<Log>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The parser does not take the graph.
    Refused(Vec<Refusal>),
    /// The builder does not take what it was asked for: a target, a shape.
    Setting(String),
    /// The builder gave nothing up to here; its errors say why.
    Builder {
        /// In a few words.
        why: String,
        /// Its errors, the first ones.
        errors: Vec<String>,
        /// What of a GPU's memory was asked for on the way.
        memory: MemoryAsked,
    },
    /// The plan cannot be written.
    Write(String),
    /// It was told to end.
    Cancelled,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// What TensorRT calls what it is doing.
    pub phase: &'a str,
    /// Steps of it that are done.
    pub done: i64,
    /// All of its steps; 0 where nobody knows.
    pub all: i64,
}

/// A loader that has loaded the library.
#[derive(Debug)]
pub struct Session {
    child: Child,
    requests: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Arc<Mutex<Vec<u8>>>,
    /// The library's version, as `1.7.1`.
    version: String,
}

impl Session {
    /// Starts the loader and has it load the libraries.
    ///
    /// # Errors
    /// When it does not start, or the libraries do not load or are of a version that is not known.
    pub fn open(loader: &Loader, libraries: &Libraries) -> Result<Self, SessionError> {
        let mut session = Self::start(&loader.program())?;
        let Libraries { core, parser } = libraries;
        session.send(&json!({ "library": text(core), "parser": text(parser) }));
        let failed = |why| SessionError::Library { library: core.clone(), why };
        match session.next("loaded the library", LOAD_MAX)? {
            Event::Loaded { version, .. } => {
                let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
                session.version = format!("{major}.{minor}.{patch}");
                Ok(session)
            }
            Event::Failed { why, .. } => Err(failed(why)),
            other => Err(SessionError::Odd(format!("{other:?}"))),
        }
    }

    fn start(program: &Path) -> Result<Self, SessionError> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| SessionError::Start { program: program.to_owned(), source })?;
        let requests = child.stdin.take();
        let (out, error) = (child.stdout.take(), child.stderr.take());
        let (sender, lines) = mpsc::sync_channel(EVENTS_MAX);
        let out = out.expect("a pipe was asked for");
        thread::spawn(move || pass_on(BufReader::new(out), &sender));
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&said);
        let error = error.expect("a pipe was asked for");
        thread::spawn(move || keep_end(error, &kept));
        Ok(Self { child, requests, lines, said, version: String::new() })
    }

    /// The library's version, as `1.7.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The process' id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Asks the parser of the graph in `onnx`.
    ///
    /// # Errors
    /// When the child ends, says nothing any more, or something odd.
    pub fn check(&mut self, onnx: &Path) -> Result<ParserAnswer, SessionError> {
        self.send(&json!({ "do": "check", "onnx": text(onnx) }));
        let mut answer = ParserAnswer::default();
        loop {
            match self.next("parsed", CHECK_MAX)? {
                Event::Message(log) => answer.logs.push(log),
                Event::Refused(refusal) => add(&mut answer.refusals, refusal),
                Event::Parsed { layers, inputs, outputs } => {
                    answer.network = Some(Network { layers, inputs, outputs });
                }
                Event::Done { .. } => return Ok(answer),
                other => return Err(SessionError::Odd(format!("{other:?}"))),
            }
        }
    }

    /// Builds a plan.  `progress` hears how far it is, some times a second, and says whether to go on; a build that does
    /// not end at its next step is ended with its process.
    ///
    /// # Errors
    /// When the child ends or says something odd.
    pub fn build(
        &mut self,
        request: &BuildRequest<'_>,
        progress: &mut dyn FnMut(Option<Step<'_>>) -> ControlFlow<()>,
    ) -> Result<Result<Built, Failure>, SessionError> {
        self.send(&written(request));
        let (mut course, mut phases) = (Course::default(), BTreeMap::new());
        let mut cancelled: Option<Instant> = None;
        loop {
            let event = self.next_within("built", LOOK_EVERY)?;
            let step = match &event {
                Some(Event::Phase { name, steps }) => {
                    phases.insert(name.clone(), *steps);
                    Some(Step { phase: name, done: 0, all: *steps })
                }
                Some(Event::Step { name, step }) => {
                    let all = phases.get(name).copied().unwrap_or(0);
                    Some(Step { phase: name, done: step + 1, all })
                }
                _ => None,
            };
            if cancelled.is_none() && progress(step).is_break() {
                self.send(&json!({ "do": "cancel" }));
                cancelled = Some(Instant::now());
            }
            if cancelled.is_some_and(|since| since.elapsed() > CANCEL_MAX) {
                return Ok(Err(Failure::Cancelled));
            }
            match event {
                Some(Event::Done { .. }) => return course.end(),
                Some(event) => course.hear(event)?,
                None => {}
            }
        }
    }

    /// A child that is gone is noticed where its next event is waited for.
    fn send(&mut self, request: &Value) {
        if let Some(pipe) = &mut self.requests {
            let _ = writeln!(pipe, "{request}").and_then(|()| pipe.flush());
        }
    }

    fn next(&mut self, doing: &'static str, after: Duration) -> Result<Event, SessionError> {
        self.next_within(doing, after)?.ok_or(SessionError::Slow { doing, after })
    }

    /// The next event; nothing where there is none for so long.
    fn next_within(
        &mut self,
        doing: &'static str,
        after: Duration,
    ) -> Result<Option<Event>, SessionError> {
        match self.lines.recv_timeout(after) {
            Ok(line) => {
                let odd = |_| SessionError::Odd(first_lines(line.as_bytes()));
                serde_json::from_str(&line).map(Some).map_err(odd)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended(doing)),
        }
    }

    fn ended(&mut self, doing: &'static str) -> SessionError {
        self.requests = None;
        // It closed its output; what goes on without one is of no use.
        let _ = self.child.kill();
        let said = self.said.lock().map(|said| first_lines(&said)).unwrap_or_default();
        match self.child.wait() {
            Ok(status) => SessionError::Ended { status, doing, said },
            Err(source) => SessionError::Start { program: PathBuf::from("the loader"), source },
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a build has said so far.
#[derive(Default)]
struct Course {
    network: Network,
    refusals: Vec<Refusal>,
    logs: Vec<Log>,
    memory: MemoryAsked,
    steps: i64,
    bytes: Option<u64>,
    failed: Option<(String, String)>,
    is_cancelled: bool,
}

impl Course {
    fn hear(&mut self, event: Event) -> Result<(), SessionError> {
        match event {
            Event::Message(log) => self.logs.push(log),
            Event::Refused(refusal) => add(&mut self.refusals, refusal),
            Event::Parsed { layers, inputs, outputs } => {
                self.network = Network { layers, inputs, outputs };
            }
            Event::Memory(memory) => self.memory = memory,
            Event::Steps { count } => self.steps = count,
            Event::Built { bytes } => self.bytes = Some(bytes),
            Event::Failed { what, why } => self.failed = Some((what, why)),
            Event::Cancelled {} => self.is_cancelled = true,
            Event::Phase { .. } | Event::Step { .. } | Event::MemoryRefused { .. } => {}
            Event::Loaded { .. } | Event::Done { .. } => {
                return Err(SessionError::Odd(format!("{event:?}")));
            }
        }
        Ok(())
    }

    fn end(self) -> Result<Result<Built, Failure>, SessionError> {
        let Self { network, refusals, logs, memory, steps, bytes, failed, is_cancelled } = self;
        if is_cancelled {
            return Ok(Err(Failure::Cancelled));
        }
        let failure = match failed {
            None if bytes.is_none() => Failure::Refused(refusals),
            None => {
                let bytes = bytes.unwrap_or_default();
                return Ok(Ok(Built { bytes, network, memory, steps, logs }));
            }
            Some((what, why)) => match what.as_str() {
                "target" | "shape" => Failure::Setting(with_first(&why, &errors(&logs))),
                "write" => Failure::Write(why),
                "build" | "config" | "parser" => {
                    Failure::Builder { why, errors: errors(&logs), memory }
                }
                _ => return Err(SessionError::Odd(format!("{what}: {why}"))),
            },
        };
        Ok(Err(failure))
    }
}

/// The parser says of some nodes twice what is wrong with them.
fn add(refusals: &mut Vec<Refusal>, refusal: Refusal) {
    if !refusals.contains(&refusal) {
        refusals.push(refusal);
    }
}

fn errors(logs: &[Log]) -> Vec<String> {
    let errors = logs.iter().filter(|log| log.severity == LogSeverity::Error);
    let errors = errors.map(|log| words(&log.text)).filter(|words| !words.is_empty());
    errors.take(ERRORS_MAX).collect()
}

fn with_first(why: &str, errors: &[String]) -> String {
    errors.first().map_or_else(|| why.to_owned(), |first| format!("{why}: {first}"))
}

/// Lines hold text: a path that is none leads nowhere, which whoever opens it says.
fn text(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

fn written(request: &BuildRequest<'_>) -> Value {
    let shapes = request.shapes.iter().map(|(name, Shapes { min, opt, max })| {
        (name.clone(), json!({ "min": min, "opt": opt, "max": max }))
    });
    json!({
        "do": "build",
        "onnx": text(request.onnx),
        "plan": text(request.plan),
        "target": request.target,
        "workspace": request.workspace_bytes,
        "level": request.level,
        "memory": request.memory_bytes,
        "shapes": Value::Object(shapes.collect()),
    })
}

/// Passes lines on until there is none, or one is longer than any of ours.
fn pass_on(mut out: impl BufRead, lines: &mpsc::SyncSender<String>) {
    loop {
        let mut line = String::new();
        let read = (&mut out).take(LINE_BYTES_MAX).read_line(&mut line);
        let is_whole = read.is_ok() && line.ends_with('\n');
        if line.is_empty() || lines.send(line).is_err() || !is_whole {
            return;
        }
    }
}

/// Reads on, so that the child never waits, and keeps the end.
fn keep_end(mut from: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut block = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut block) {
        let Ok(mut kept) = kept.lock() else { return };
        kept.extend_from_slice(&block[..count]);
        let over = kept.len().saturating_sub(SAID_BYTES_MAX);
        kept.drain(..over);
    }
}
