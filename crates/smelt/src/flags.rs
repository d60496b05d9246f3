//! Declares the command line.

mod onnx;

use std::path::PathBuf;

use clap::{Args, Parser};
use smelt_model::quantize::Scheme;

pub(crate) use onnx::{OnnxCommand, Output};

/// Turns vision-language models into inference engines on devices too small for the job.
#[derive(Debug, Parser)]
#[command(name = "smelt", version, max_term_width = 100)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Build everything a pipeline describes; what is already built is reused
    Run(RunFlags),
    /// Say what a run would do, without doing it
    Plan(PlanFlags),
    /// Print the directory of a stage's sealed output
    Out(OutFlags),
    /// Ask a built model about text and pictures
    Chat(ChatFlags),
    /// Write parts of a checkpoint as ONNX, in bounded memory
    Export(ExportFlags),
    /// Write a checkpoint's decoder with smaller weights, in bounded memory
    Quantize(QuantizeFlags),
    /// Look at, check and operate on ONNX models, weights left on disk
    #[command(subcommand)]
    Onnx(OnnxCommand),
    /// Run one part of a stage (smelt starts these itself)
    #[command(hide = true)]
    Stage(StageFlags),
}

/// Which pipeline, and with which params.
#[derive(Debug, Args)]
pub(crate) struct PipelineFlags {
    /// The pipeline file
    pub(crate) pipeline: PathBuf,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// Build only this stage and what it needs (may be given several times)
    #[arg(long, value_name = "STAGE")]
    pub(crate) only: Vec<String>,
    /// Build this stage even if the store has its result (may be given several times)
    #[arg(long, value_name = "STAGE")]
    pub(crate) force: Vec<String>,
    /// After a failure, go on with the stages that do not need the failed one
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Stages at once; memory, not cores, is what small devices lack
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = jobs)]
    pub(crate) jobs: usize,
    /// Exit with 7 instead of waiting when another run is building the same thing
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Print the report as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlanFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// Print the plan as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OutFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// The stage
    pub(crate) stage: String,
}

#[derive(Debug, Args)]
pub(crate) struct ChatFlags {
    /// A pipeline that builds a deployment, or a deployment's directory
    pub(crate) target: PathBuf,
    /// What to ask
    pub(crate) prompt: String,
    /// A PNG or JPEG picture to ask about (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
    /// The most tokens to answer with
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) max_tokens: usize,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportFlags {
    /// A directory, or what a pipeline's "from" says: hf:ORG/NAME@REV, path:DIR, synthetic:NAME
    pub(crate) checkpoint: PathBuf,
    /// What to export
    #[arg(long, value_enum)]
    pub(crate) part: Part,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The type of the weights and of the arithmetic
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: FloatType,
    /// A size of pictures, for a vision tower that takes any (Qwen-VL): one graph for each (may be
    /// given several times; a square and two oblong ones of some 250 tokens if never)
    #[arg(long = "grid", value_name = "HEIGHTxWIDTH")]
    pub(crate) grids: Vec<smelt_model::grid::Grid>,
    /// How tokens enter the decoder; as ids where the model is text alone, else as embeddings
    #[arg(long, value_enum)]
    pub(crate) input: Option<TokenInput>,
    /// Run the f32 reference first, record the largest activations in probe.json, and refuse f16
    /// where one is beyond it
    #[arg(long)]
    pub(crate) probe: bool,
}

/// How tokens enter a decoder's graph.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum TokenInput {
    /// input_ids
    Ids,
    /// inputs_embeds
    Embeds,
}

/// A part of a model that becomes a graph of its own.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Part {
    /// The vision tower with its projector
    Vision,
    /// The decoder with its head, and its cache as inputs and outputs
    Llm,
    /// Every part there is, each in a directory of its name
    All,
}

/// The float types, by the words used everywhere.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum FloatType {
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Args)]
pub(crate) struct QuantizeFlags {
    /// A directory, or what a pipeline's "from" says: hf:ORG/NAME@REV, path:DIR, synthetic:NAME
    pub(crate) checkpoint: PathBuf,
    /// none, or int8 (per output channel)
    #[arg(long, value_parser = scheme)]
    pub(crate) scheme: Scheme,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    let known = || Scheme::ALL.map(|scheme| scheme.name()).join(" or ");
    Scheme::parse(name).ok_or_else(known)
}

#[derive(Debug, Args)]
pub(crate) struct StageFlags {
    #[command(subcommand)]
    pub(crate) part: StagePart,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum StagePart {
    /// Lead a stage's processes
    Shim,
    /// Become a stage's program
    Exec {
        /// The process id of the shim
        shim: u32,
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        argv: Vec<String>,
    },
    /// Do the work of a stage of smelt's own
    Work,
}

/// More attempts at once than this is a mistake: every one is a whole model in memory.
const JOBS_MAX: usize = 256;

fn jobs(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|jobs| (1..=JOBS_MAX).contains(jobs))
        .ok_or_else(|| format!("a whole number from 1 to {JOBS_MAX}"))
}
