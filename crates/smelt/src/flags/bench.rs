//! The flags of `smelt bench …`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Ask deployments questions with known answers: how right, how fast, how large, side by side
    Accuracy(AccuracyFlags),
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
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Override a param of the pipelines
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
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
    /// Where the first deployment's logits are written, and read for the others
    #[arg(long)]
    pub(crate) logits: PathBuf,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "a whole number from 1".to_owned())
}
