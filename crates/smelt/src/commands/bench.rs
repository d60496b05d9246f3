//! `smelt bench accuracy`: asks deployments questions with known answers, each in a process of its
//! own, so that memory and time are that deployment's alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use smelt_backend::KvOptions;
use smelt_runtime::accuracy::plot::svg;
use smelt_runtime::accuracy::question;
use smelt_runtime::accuracy::report::{Row, document, markdown};
use smelt_runtime::accuracy::score::Tally;

use super::open;
use super::target::{self, Target};
use crate::accuracy;
use crate::atomic_dir::AtomicDir;
use crate::cards;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{AccuracyFlags, AccuracyOfFlags, BenchCommand};

/// How often a deployment says how far it has come.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(crate) fn run(command: &BenchCommand) -> Result<Exit, Failed> {
    match command {
        BenchCommand::Accuracy(flags) => accuracy(flags),
        BenchCommand::Serve(flags) => super::bench_serve::run(flags),
        #[cfg(feature = "build")]
        BenchCommand::Arms(flags) => super::bench_arms::run(flags),
        BenchCommand::AccuracyOf(flags) => accuracy_of(flags),
    }
}

fn accuracy(flags: &AccuracyFlags) -> Result<Exit, Failed> {
    question::read(&flags.questions, flags.limit).map_err(Failed::usage)?;
    let targets = target::all(&flags.targets, &flags.sets)?;
    let built = flags.report.as_deref().map(Built::read).transpose()?;
    let out = flags.out.as_deref().map(AtomicDir::begin).transpose()?;
    let beside = flags.out.clone().unwrap_or_else(|| std::env::temp_dir().join("smelt-accuracy"));
    let scratch = AtomicDir::scratch(&beside)?;
    let mut rows = Vec::with_capacity(targets.len());
    for (index, target) in targets.iter().enumerate() {
        tell(format_args!("[{}/{}] {} started", index + 1, targets.len(), target.name));
        match measured(flags, target, &scratch.path().join("logits"))? {
            Measured::Row(row) => {
                let build_rss_bytes =
                    built.as_ref().and_then(|built| built.peak_of(&target.stages));
                rows.push(Row { build_rss_bytes, ..row });
            }
            Measured::Failed(exit) => return Ok(exit),
        }
    }
    if let Some(out) = out {
        write(&rows, out)?;
    }
    if flags.json {
        answer(format_args!("{}\n", document(&rows)))?;
    } else {
        answer(markdown(&rows))?;
    }
    Ok(Exit::Ok)
}

/// The report of a run: the memory that the attempts at each stage took.
#[derive(Deserialize)]
struct Built {
    stages: Vec<BuiltStage>,
}

#[derive(Deserialize)]
struct BuiltStage {
    name: String,
    attempts: Vec<BuiltAttempt>,
}

#[derive(Deserialize)]
struct BuiltAttempt {
    peak_rss_bytes: u64,
}

impl Built {
    fn read(path: &Path) -> Result<Self, Failed> {
        let failed = |why: String| Failed::usage(format!("--report {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text)
            .map_err(|error| failed(format!("not what `smelt run --json` prints: {error}")))
    }

    /// The most that a stage of these names took; none where all were there already.
    fn peak_of(&self, names: &[String]) -> Option<u64> {
        let stages = self.stages.iter().filter(|stage| names.contains(&stage.name));
        stages.flat_map(|stage| &stage.attempts).map(|attempt| attempt.peak_rss_bytes).max()
    }
}

/// What came of one deployment's process.
enum Measured {
    Row(Row),
    /// It has said why.
    Failed(Exit),
}

/// Measures one deployment in a process of its own.
fn measured(flags: &AccuracyFlags, target: &Target, logits: &Path) -> Result<Measured, Failed> {
    let failed =
        |why: String| Failed::new(Exit::StageFailed, format!("measuring {}: {why}", target.name));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.args(["bench", "accuracy-of", "--name", &target.name, "--questions"]);
    command.arg(&flags.questions).arg("--logits").arg(logits);
    command.args(flags.limit.map(|limit| format!("--limit={limit}")));
    command.args(flags.max_seq_len.map(|tokens| format!("--max-seq-len={tokens}")));
    command.arg(format!("--device={}", flags.device));
    command.arg("--").arg(&target.dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    // Held open until the answer is there: its end is ours.
    let lifeline = child.stdin.take();
    let ended = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    drop(lifeline);
    if ended.status.success() {
        let row = serde_json::from_slice(&ended.stdout);
        return row.map(Measured::Row).map_err(|error| failed(error.to_string()));
    }
    let known = [Exit::Usage, Exit::BadModel, Exit::DoesNotFit, Exit::Bug];
    let exit = known.into_iter().find(|&exit| ended.status.code() == Some(exit as i32));
    exit.map(Measured::Failed).ok_or_else(|| failed(ended.status.to_string()))
}

/// Puts the figures, the table and the plot in place, all or none.
fn write(rows: &[Row], out: AtomicDir) -> Result<(), Failed> {
    let json = serde_json::to_string_pretty(&document(rows)).expect("plain data is JSON");
    let files = [
        ("accuracy.json", json + "\n"),
        ("accuracy.md", markdown(rows)),
        ("accuracy.svg", svg(rows)),
    ];
    for (name, text) in files {
        let path: PathBuf = out.path().join(name);
        fs::write(&path, text).map_err(|error| {
            Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", path.display()))
        })?;
    }
    out.finish()
}

/// The process of one deployment: prints its row as JSON.
fn accuracy_of(flags: &AccuracyOfFlags) -> Result<Exit, Failed> {
    end_with_the_parent();
    cards::want(flags.device);
    let questions = question::read(&flags.questions, flags.limit).map_err(Failed::usage)?;
    let folder = flags.questions.parent().unwrap_or(Path::new(""));
    let max_seq_len = flags.max_seq_len.map(|tokens| tokens as usize);
    let kv = KvOptions { max_seq_len, ..KvOptions::default() };
    open::on_device(&flags.dir)?;
    let opened = accuracy::open(&flags.dir, kv)?;
    let against = accuracy::against(&flags.logits)?;
    let mut told = Instant::now();
    let mut progress = |all: Tally| {
        let is_last = all.of == questions.len() as u64;
        if is_last || told.elapsed() >= HEARTBEAT {
            let Tally { right, of } = all;
            tell(format_args!("{}: asked {of} of {}, {right} right", flags.name, questions.len()));
            told = Instant::now();
        }
    };
    let name = (&flags.name[..], "--max-seq-len");
    let row = accuracy::row(name, opened, (&questions, folder), against, &mut progress)?;
    answer(serde_json::to_string(&row).expect("plain data is JSON"))?;
    Ok(Exit::Ok)
}

/// Ends this process when whoever started it does not hold its standard input any more: a bench that
/// was stopped leaves nobody behind who asks on.
fn end_with_the_parent() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(Exit::Interrupted as i32);
    });
}
