//! Declares the flags of commands that read checkpoints: `smelt export`, `calibrate` and `quantize`.

use std::path::PathBuf;

use clap::Args;
use smelt_model::calibrate::ROWS_MAX;
use smelt_model::grid::Grid;
use smelt_model::quantize::{BUDGET_MAX, Method, Scheme};

use super::jobs;
use crate::checkpoint::QuantFormat;

#[derive(Debug, Args)]
pub(crate) struct ExportFlags {
    /// A directory, or what a pipeline's "from" says: hf:ORG/NAME@REV:FILE, path:DIR, synthetic:NAME
    pub(crate) checkpoint: PathBuf,
    /// What to export
    #[arg(long, value_enum)]
    pub(crate) part: ExportPart,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The type of the weights and of the arithmetic
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: FloatType,
    /// A size of pictures, for a vision tower that takes any (Qwen-VL, CLIP): one graph for each (may
    /// be given several times; if never, a square and two oblong ones of some 250 tokens, for CLIP
    /// the size it was trained on)
    #[arg(long = "grid", value_name = "HEIGHTxWIDTH")]
    pub(crate) grids: Vec<Grid>,
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
pub(crate) enum ExportPart {
    /// The vision tower with its projector
    Vision,
    /// The decoder with its head, and its cache as inputs and outputs
    Llm,
    /// The encoder of texts
    Encoder,
    /// The encoder of texts with its classification head
    Classifier,
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
pub(crate) struct CalibrateFlags {
    /// A directory, or what a pipeline's "from" says: hf:ORG/NAME@REV:FILE, path:DIR, synthetic:NAME
    pub(crate) checkpoint: PathBuf,
    /// A file of prompts, one a line; without it and pictures the built-in set is used
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// A PNG or JPEG picture to look at (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
    /// Questions with their answers, as bench accuracy reads them; pictures lie beside the file
    #[arg(long, value_name = "FILE")]
    pub(crate) questions: Option<PathBuf>,
    /// Of how many tokens to keep the activations
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = tokens)]
    pub(crate) tokens: usize,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct QuantizeFlags {
    /// A directory, or what a pipeline's "from" says: hf:ORG/NAME@REV:FILE, path:DIR, synthetic:NAME
    pub(crate) checkpoint: PathBuf,
    /// none, int8 (per output channel), int8-g32, or int4-g32, -g64 or -g128, each int4 also -asym; int4
    /// (per output channel) for tensorrt-llm
    #[arg(long, value_parser = scheme)]
    pub(crate) scheme: Scheme,
    /// smelt, or what others load: compressed-tensors, awq, gptq or tensorrt-llm (0.12)
    #[arg(long, default_value = "smelt", value_parser = QuantFormat::parse)]
    pub(crate) format: QuantFormat,
    /// The head's scheme; that of the layers, but int8 where they have int4, when not given (none for awq,
    /// gptq and tensorrt-llm)
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    pub(crate) head: Option<Scheme>,
    /// The embedding's scheme; it stays as it is when not given
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    pub(crate) embeddings: Option<Scheme>,
    /// How integers are chosen: rtn, mse, awq, gptq, gptq-act-order or best
    #[arg(long, default_value = "rtn", value_parser = method)]
    pub(crate) method: Method,
    /// Dampings that best tries for each input; 3 when not given
    #[arg(long, value_name = "N", value_parser = budget)]
    pub(crate) budget: Option<usize>,
    /// What `smelt calibrate` made of this checkpoint; awq, gptq and best need it, mse may have it
    #[arg(long, value_name = "DIR")]
    pub(crate) calibration: Option<PathBuf>,
    /// Leave the tensors of these names as they are; * is any run of characters (may be given
    /// several times)
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Round weights once more that another tool packed as integers (GGUF, AWQ, GPTQ)
    #[arg(long)]
    pub(crate) allow_requantize: bool,
    /// Threads to work with; the result does not depend on it
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub(crate) threads: Option<usize>,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    Scheme::parse(name).ok_or_else(|| Scheme::WORDS.join(" or "))
}

fn method(name: &str) -> Result<Method, String> {
    Method::parse(name).ok_or_else(|| Method::WORDS.join(" or "))
}

fn tokens(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|tokens| (1..=ROWS_MAX).contains(tokens))
        .ok_or_else(|| format!("a whole number from 1 to {ROWS_MAX}"))
}

fn budget(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|budget| (1..=BUDGET_MAX).contains(budget))
        .ok_or_else(|| format!("a whole number from 1 to {BUDGET_MAX}"))
}
