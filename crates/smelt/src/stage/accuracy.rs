//! `accuracy`: asks engines or a deployment questions with known answers, and fails where they are out of bounds.
//!
//! Figures are those of `smelt bench accuracy`, the deployment that is named as `against` being what the other is
//! compared with.  One after the other is open, so that memory is that of the larger one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use smelt_backend::KvOptions;
use smelt_deploy::text_files::TextFiles;
use smelt_plan::kind::accuracy::{Accuracy, AccuracyFigures};
use smelt_runtime::accuracy::golden::PROMPTS_FILE;
use smelt_runtime::accuracy::question::{self, Question};
use smelt_runtime::accuracy::report::{Row, document, markdown};
use smelt_runtime::accuracy::score::{Score, Tally};
use smelt_runtime::deployment::{Deployment, DeploymentError, Engines};

use super::request::{Request, say};
use super::{Worker, deployment};
use crate::accuracy::{self, Opened};
use crate::device::BACKENDS;
use crate::exit::{Exit, Failed};

pub(super) const WORKER: Worker = Worker { executes_graphs: true, ..Worker::new(run) };

/// What the rows of the report are called.
const BASELINE: &str = "baseline";
const CANDIDATE: &str = "candidate";

/// Where the baseline's logits lie until the candidate is compared with them.
const LOGITS_FILE: &str = ".logits";

/// How often it is said how far it has come.
const HEARTBEAT: Duration = Duration::from_secs(2);

fn run(request: &Request) -> Result<(), Failed> {
    let params: Accuracy = request.typed()?;
    let folder = request.input("questions")?;
    let questions = question::read(&folder.join(PROMPTS_FILE), params.limit);
    let questions = questions.map_err(Failed::usage)?;
    let logits = request.out.join(LOGITS_FILE);
    let against = request.optional_input("against");
    let rows_max = 1 + usize::from(against.is_some());
    let mut session = Session { questions: &questions, folder, rows: Vec::new(), rows_max };
    let kv = KvOptions { max_seq_len: params.max_seq_len, ..KvOptions::default() };
    if let Some(dir) = against {
        say("opening the baseline");
        session.measure(BASELINE, accuracy::open(dir, kv)?, &logits)?;
    }
    say("opening the candidate");
    let figures = session.measure(CANDIDATE, candidate(request, kv)?, &logits)?;
    fs::remove_file(&logits).map_err(|error| failed("remove the logits", error))?;
    write(&request.out, &session.rows, &params)?;
    match params.complaint(figures) {
        Some(why) => {
            Err(Failed::invalid(format!("{why}; take a scheme that rounds less, or another bound")))
        }
        None => Ok(()),
    }
}

/// What is measured: a deployment as it is, or engines behind the checkpoint's own tokenizer, template and preprocessing.
fn candidate(request: &Request, kv: KvOptions) -> Result<Opened, Failed> {
    if let Some(dir) = request.optional_input("deployment") {
        return accuracy::open(dir, kv);
    }
    let checkpoint = request.checkpoint("checkpoint")?;
    let texts = TextFiles::of(&checkpoint, &request.out, &say)?;
    let (vision, llm) = (request.optional_input("vision"), request.input("llm")?);
    let said = deployment::chat_spec(request, &checkpoint, texts.dir(), CANDIDATE)?;
    let engines = Engines { vision: vision.map(Path::to_owned), llm: llm.to_owned() };
    let vision = vision.map(|dir| BACKENDS.vision(dir)).transpose();
    let vision = vision.map_err(DeploymentError::from)?.unwrap_or_default();
    let decoder = BACKENDS.decoder(llm, kv).map_err(DeploymentError::from)?;
    Ok((Deployment::of_engines(texts.dir(), said, vision, decoder)?, engines))
}

/// What is asked, and what came of it.
struct Session<'a> {
    questions: &'a [Question],
    /// Where their pictures are.
    folder: &'a Path,
    rows: Vec<Row>,
    /// How many there will be.
    rows_max: usize,
}

impl Session<'_> {
    /// Asks all questions and adds a row called `name`.
    fn measure(
        &mut self,
        name: &str,
        opened: Opened,
        logits: &Path,
    ) -> Result<AccuracyFigures, Failed> {
        let against = accuracy::against(logits)?;
        let (before, count) = (self.rows.len() * self.questions.len(), self.questions.len());
        let all = self.rows_max * count;
        let mut told: Option<Instant> = None;
        let mut progress = |Tally { right, of }: Tally| {
            let is_last = of == count as u64;
            if is_last || told.is_none_or(|told| told.elapsed() >= HEARTBEAT) {
                let done = before as u64 + of;
                say(&format!("[{done}/{all}] {name}: asked {of} of {count}, {right} right"));
                told = Some(Instant::now());
            }
        };
        let (name, questions) = ((name, "\"max-seq-len\""), (self.questions, self.folder));
        let row = accuracy::row(name, opened, questions, against, &mut progress)?;
        let figures = figures(&row.score);
        self.rows.push(row);
        Ok(figures)
    }
}

fn figures(score: &Score) -> AccuracyFigures {
    let (exact, perplexity) = (score.overall().share(), score.perplexity());
    AccuracyFigures { exact, perplexity, kl_nats: score.kl_nats }
}

/// The figures with their bounds, and the table that people read.
fn write(out: &Path, rows: &[Row], params: &Accuracy) -> Result<(), Failed> {
    let mut report = document(rows);
    report["bounds"] = json!({
        "min_exact": params.min_exact,
        "max_perplexity": params.max_perplexity,
        "max_kl_nats": params.max_kl_nats,
    });
    let json = serde_json::to_string_pretty(&report).expect("plain data is JSON") + "\n";
    for (name, text) in [("accuracy.json", json), ("accuracy.md", markdown(rows))] {
        let path = out.join(name);
        let written = fs::write(&path, text);
        written.map_err(|error| failed(&format!("write {}", path.display()), error))?;
    }
    Ok(())
}

fn failed(what: &str, error: std::io::Error) -> Failed {
    Failed::new(Exit::StageFailed, format!("cannot {what}: {error}"))
}
