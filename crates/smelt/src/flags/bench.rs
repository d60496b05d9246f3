//! The flags of `smelt bench …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use smelt_load::plan::{Lengths, Mix};
#[cfg(feature = "build")]
use smelt_plan::Rung;

use crate::cards::DeviceChoice;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Ask deployments questions with known answers: how right, how fast, how large, side by side
    Accuracy(AccuracyFlags),
    /// Measure a server as its clients see it: smelt, llama-server, vLLM, Ollama, any that speaks
    /// OpenAI's API
    Serve(BenchServeFlags),
    /// Build one stage again and again, behind nothing and behind what its ladder has: does a warm-up help?
    #[cfg(feature = "build")]
    Arms(ArmsFlags),
    /// Measure one deployment (smelt starts this itself)
    #[command(hide = true)]
    AccuracyOf(AccuracyOfFlags),
}

#[derive(Debug, Args)]
pub(crate) struct AccuracyFlags {
    /// Pipelines, PIPELINE#STAGE or deployments' directories, the first being what others are
    /// compared with; a pipeline stands for all its deployments in the order of its file
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<PathBuf>,
    /// Questions, a JSON object a line: {"question", "answer"}, optionally "task", "images" (relative
    /// to the file) and "choices" (then the answer is a letter)
    #[arg(long, value_name = "FILE")]
    pub(crate) questions: PathBuf,
    /// Ask only the first N questions
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    /// What `smelt run --json` printed when it built the pipeline: adds the most memory that a stage
    /// of each deployment took
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// The directory to make, with accuracy.json, accuracy.md and the plot accuracy.svg
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The longest question with its answer, up to the positions of the models (default: what each
    /// deployment says, else what its engine was built for)
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_seq_len: Option<u32>,
    /// What runs them: the GPU where card and engine agree (auto), the processors, or a card by its number, as in cuda:1
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value_t)]
    pub(crate) device: DeviceChoice,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Override a param of the pipelines
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

#[cfg(feature = "build")]
#[derive(Debug, Args)]
pub(crate) struct ArmsFlags {
    /// The stage, as PIPELINE#STAGE; what it needs is built first
    #[arg(value_name = "PIPELINE#STAGE")]
    pub(crate) target: PathBuf,
    /// What is compared: cold is nothing, and else rungs of the ladder, several joined by +, as in
    /// warm-up+drop-caches
    #[arg(long, value_name = "ARM,…", value_delimiter = ',', value_parser = arm)]
    #[arg(default_value = "cold,drop-caches")]
    pub(crate) arms: Vec<Arm>,
    /// Trials of each arm
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = trials)]
    pub(crate) runs: usize,
    /// Decides the order of the trials [default: the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

/// What is done before a trial.
#[cfg(feature = "build")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arm {
    /// As the user wrote it.
    pub(crate) name: String,
    pub(crate) rungs: Vec<Rung>,
}

#[cfg(feature = "build")]
fn arm(text: &str) -> Result<Arm, String> {
    let rungs = match text {
        "cold" => Vec::new(),
        text => text.split('+').map(super::rung).collect::<Result<_, _>>()?,
    };
    Ok(Arm { name: text.to_owned(), rungs })
}

/// More trials of an arm than this take weeks.
#[cfg(feature = "build")]
const TRIALS_MAX: usize = 1000;

#[cfg(feature = "build")]
fn trials(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|trials| (1..=TRIALS_MAX).contains(trials));
    number.ok_or_else(|| format!("a whole number from 1 to {TRIALS_MAX}"))
}

#[derive(Debug, Args)]
pub(crate) struct BenchServeFlags {
    /// A server's address, without /v1, and what it is called in the table, as
    /// int8=http://127.0.0.1:8000; several take turns and are rows of one table
    #[arg(long, value_name = "[NAME=]URL", default_value = "http://127.0.0.1:8000", value_parser = named_url)]
    pub(crate) url: Vec<(Option<String>, String)>,
    /// The model to ask for, one for all servers or one for each; the first that a server names if it
    /// is not said; several of one server are rows of one table
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Vec<String>,
    /// The servers' key; without, SMELT_API_KEY of the environment if it is set
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// How many requests are under way at once, one table row each
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8")]
    pub(crate) concurrency: Vec<usize>,
    /// Tokens of prompts and answers, one table row each
    #[arg(long, value_name = "PROMPT:ANSWER,…", value_delimiter = ',', default_value = "128:128")]
    pub(crate) lengths: Vec<Lengths>,
    /// Images of a request, or frames of a video, one table row each [default: 0, or 1 with --image]
    #[arg(long, alias = "frames", value_name = "N,…", value_delimiter = ',')]
    pub(crate) images: Vec<usize>,
    /// A picture to show, PNG or JPEG, several in turns; without, new ones are drawn
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
    /// Width and height of drawn pictures in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 448, value_parser = clap::value_parser!(u32).range(8..=8192))]
    pub(crate) image_size: u32,
    /// Requests without and with images, mixed evenly, as 3:1
    #[arg(long, value_name = "TEXT:IMAGE")]
    pub(crate) mix: Option<Mix>,
    /// Requests of a run [default: four for each stream]
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<usize>,
    /// Over how many seconds the streams of a run begin; what is asked before the last has begun does not count
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds, conflicts_with = "rate")]
    pub(crate) ramp: Duration,
    /// How many requests come a second, whether others are answered or not; --concurrency is the most that
    /// are under way [default: each stream asks as soon as it was answered]
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
    /// Runs that count
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) runs: usize,
    /// Runs before them that do not
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) warm_ups: usize,
    /// Decides the words and pictures of requests; servers may have kept those of a seed they met
    /// before [default: the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    /// Send nothing that OpenAI's API does not have; answers may then end before their length
    #[arg(long)]
    pub(crate) strict: bool,
    /// A request that takes longer has failed
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// The process of each server, if they are on this machine, to watch its memory
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// The directory to make, with serve.json, serve.md and the plot serve.svg
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AccuracyOfFlags {
    /// The deployment's directory
    pub(crate) dir: PathBuf,
    /// What it is called
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) questions: PathBuf,
    #[arg(long, value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    #[arg(long)]
    pub(crate) max_seq_len: Option<u32>,
    #[arg(long, default_value_t)]
    pub(crate) device: DeviceChoice,
    /// Where the first deployment's logits are written, and read for the others
    #[arg(long)]
    pub(crate) logits: PathBuf,
}

/// A name ends at the first `=`, unless that lies in an address.
fn named_url(text: &str) -> Result<(Option<String>, String), String> {
    let named = text.split_once('=').filter(|(name, _)| !name.contains([':', '/']));
    let (name, url) = named.map_or((None, text), |(name, url)| (Some(name.to_owned()), url));
    let is_url = url.starts_with("http://") || url.starts_with("https://");
    if is_url && name.as_deref() != Some("") {
        return Ok((name, url.to_owned()));
    }
    Err("http://HOST:PORT or https://HOST, with or without NAME= before it".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "a whole number from 1".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds from 0 to 86400".to_owned())
}
