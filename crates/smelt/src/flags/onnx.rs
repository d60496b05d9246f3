//! Declares the flags of `smelt onnx`.

use std::path::PathBuf;

use clap::Args;
use smelt_onnx::surgery::HeadScheme;
use smelt_onnx::target::Target;
use smelt_plan::kind::calibrate::{PixelScale, RangeMethod};

use super::FloatType;

/// Where the result of an operation goes.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Use the model up: its data is renamed instead of copied
    #[arg(long)]
    pub(crate) consume: bool,
}

/// MODEL is an .onnx file, or a directory with model.onnx.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum OnnxCommand {
    /// Print inputs, outputs, operators and the largest weights
    Inspect {
        /// The model
        model: PathBuf,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say whether the model is sound, and whether a back end takes it
    Check {
        /// The model
        model: PathBuf,
        /// Hold it to the rules of this back end, too: tensorrt-10.3 or onnxruntime-cpu; or ask tensorrt-rtx itself
        #[arg(long = "for", value_name = "TARGET", value_parser = target)]
        target: Option<Judge>,
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Cut the vocabulary product into parts, so that no single tactic needs it whole
    SplitHead {
        /// The model
        model: PathBuf,
        /// The output the head gives; `logits`, or the only one, when not named
        #[arg(long, value_name = "OUTPUT")]
        head: Option<String>,
        /// Into how many
        #[arg(long, value_name = "K", conflicts_with = "max_bytes")]
        parts: Option<usize>,
        /// As few as keep each part's weight within this, as in 200MiB
        #[arg(long, value_name = "BYTES")]
        max_bytes: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Round the weight of the vocabulary product to 8 or 4 bits
    QuantizeHead {
        /// The model
        model: PathBuf,
        /// The output the head gives; `logits`, or the only one, when not named
        #[arg(long, value_name = "OUTPUT")]
        head: Option<String>,
        /// int8 (a scale per token), or int4-g32, int4-g64, int4-g128 (needs operator set 21)
        #[arg(long, value_parser = head_scheme)]
        scheme: HeadScheme,
        #[command(flatten)]
        output: Output,
    },
    /// Say the same in another operator set, 17 to 21
    ToOpset {
        /// The model
        model: PathBuf,
        /// Its version
        version: i64,
        #[command(flatten)]
        output: Output,
    },
    /// Fix the batch size
    SetBatch {
        /// The model
        model: PathBuf,
        /// Its size from now on
        #[arg(long)]
        size: usize,
        #[command(flatten)]
        output: Output,
    },
    /// Store equal weights once
    Dedupe {
        /// The model
        model: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Compute small integer subgraphs that depend on constants only
    FoldConstants {
        /// The model
        model: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Keep only what lies between values
    Extract {
        /// The model
        model: PathBuf,
        /// A value that becomes an input (may be given several times)
        #[arg(long = "input", value_name = "VALUE")]
        inputs: Vec<String>,
        /// A value that becomes an output (may be given several times)
        #[arg(long = "output", value_name = "VALUE", required = true)]
        outputs: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Compute nodes, given by name or operator, in another float type
    InsertCast {
        /// The model
        model: PathBuf,
        /// A node's name, or an operator for all of its kind
        #[arg(long, value_name = "NAME")]
        nodes: String,
        /// The type
        #[arg(long, value_enum)]
        to: FloatType,
        #[command(flatten)]
        output: Output,
    },
    /// Run it over pictures, and write between which numbers its values lie: for insert-qdq, and a calibration.cache for trtexec
    Calibrate {
        /// The model
        model: PathBuf,
        /// A picture, or a folder of them
        #[arg(long, value_name = "PATH")]
        images: PathBuf,
        /// How ranges are chosen: entropy (as TensorRT does), max, or percentile (99.99)
        #[arg(long, default_value = "entropy", value_parser = method)]
        method: RangeMethod,
        /// What it reads for the bytes of a picture: unit (0 to 1), halves (-1 to 1), imagenet or clip
        #[arg(long, default_value = "unit", value_parser = pixels)]
        pixels: PixelScale,
        /// Pixels on the sides of a picture that it leaves open
        #[arg(long, value_name = "PIXELS")]
        side: Option<usize>,
        /// The directory to make
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Have the products of stored weights multiply integers of 8 bits, by ranges that were seen
    InsertQdq {
        /// The model
        model: PathBuf,
        /// What calibrate made of it
        #[arg(long, value_name = "DIR")]
        calibration: PathBuf,
        /// A node's name or an operator that stays as it is (may be given several times)
        #[arg(long, value_name = "NAME")]
        except: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Make weights inputs of the graph
    Externalize {
        /// The model
        model: PathBuf,
        /// A weight's name (may be given several times)
        #[arg(long = "name", value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        output: Output,
    },
}

/// Who says whether a back end takes a model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Judge {
    /// smelt's own rules of a back end, and its word.
    Rules(&'static str, Target),
    /// The parser of TensorRT for RTX that is here.
    TensorRtRtx,
}

impl Judge {
    /// The word of the back end that its parser judges itself.
    const TENSORRT_RTX: &str = "tensorrt-rtx";

    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Rules(word, _) => word,
            Self::TensorRtRtx => Self::TENSORRT_RTX,
        }
    }
}

fn target(word: &str) -> Result<Judge, String> {
    if word == Judge::TENSORRT_RTX {
        return Ok(Judge::TensorRtRtx);
    }
    let found = Target::ALL.into_iter().find(|(name, _)| *name == word);
    let words = || Target::ALL.map(|(name, _)| name).join(", ") + " or " + Judge::TENSORRT_RTX;
    found.map(|(word, target)| Judge::Rules(word, target)).ok_or_else(words)
}

fn method(word: &str) -> Result<RangeMethod, String> {
    let found = RangeMethod::ALL.iter().copied().find(|method| method.word() == word);
    found.ok_or_else(|| RangeMethod::WORDS.join(" or "))
}

fn pixels(word: &str) -> Result<PixelScale, String> {
    let found = PixelScale::ALL.iter().copied().find(|pixels| pixels.word() == word);
    found.ok_or_else(|| PixelScale::WORDS.join(" or "))
}

fn head_scheme(word: &str) -> Result<HeadScheme, String> {
    HeadScheme::parse(word).ok_or_else(|| HeadScheme::ALL.map(|(name, _)| name).join(" or "))
}
