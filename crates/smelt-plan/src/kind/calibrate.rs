//! `calibrate`: a checkpoint and prompts to statistics of what goes into its layers, or a graph and pictures to the ranges
//! of its values.

use serde::Deserialize;

use super::definition::{Absent, Definition, Field, MemoryUse, Takes, field};
use super::words::words;
use super::{CHECKPOINT, ENGINE, GRAPH};

words! {
    /// How the range of a value of a graph is chosen.
    RangeMethod {
        /// By the least Kullback-Leibler divergence, as TensorRT's calibrators do.
        Entropy = "entropy",
        /// All numbers that were seen.
        Max = "max",
        /// All but one of ten thousand.
        Percentile = "percentile",
    }
}

words! {
    /// What a graph reads for the bytes of a picture.
    PixelScale {
        /// From 0 to 1, as detectors do.
        Unit = "unit",
        /// From -1 to 1.
        Halves = "halves",
        /// Less ImageNet's mean, over its deviation.
        Imagenet = "imagenet",
        /// The same of CLIP's pictures.
        Clip = "clip",
    }
}

/// Quantisers square the number of tokens kept.
const CALIBRATION_TOKENS_MAX: u64 = 4096;

/// The params of a stage.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Calibrate {
    /// Prompts in words.
    #[serde(default)]
    pub texts: Vec<String>,
    /// Tokens of which activations are kept.
    pub tokens: usize,
    /// How ranges are chosen; entropy where nothing is said.
    pub method: Option<RangeMethod>,
    /// What the graph reads for the bytes of a picture; from 0 to 1 where nothing is said.
    pub pixels: Option<PixelScale>,
    /// Pixels on the sides of a picture that the graph leaves open.
    pub side: Option<usize>,
}

const ONNX: &str = "onnx";
const METHOD: &str = "method";
const PIXELS: &str = "pixels";
const SIDE: &str = "side";
const TOKENS: &str = "tokens";
const TOKENS_USUAL: u64 = 2048;
/// What only a graph has, and what only a checkpoint.
const OF_GRAPHS: [&str; 3] = [METHOD, PIXELS, SIDE];
const OF_CHECKPOINTS: [&str; 4] = ["checkpoint", "texts", "prompts", "vision"];
/// Larger pictures are no input of a graph on these devices.
const SIDE_MAX: u64 = 8192;

const FIELDS: &[Field] = &[
    field("checkpoint", CHECKPOINT, Absent::Nothing),
    field(ONNX, GRAPH, Absent::Nothing),
    field("texts", Takes::Texts, Absent::Nothing),
    field("prompts", Takes::Path, Absent::Nothing),
    field("images", Takes::Path, Absent::Nothing),
    field("vision", ENGINE, Absent::Nothing),
    field(TOKENS, Takes::Count(1, CALIBRATION_TOKENS_MAX), Absent::Number(TOKENS_USUAL)),
    field(METHOD, Takes::Choice(RangeMethod::WORDS), Absent::Nothing),
    field(PIXELS, Takes::Choice(PixelScale::WORDS), Absent::Nothing),
    field(SIDE, Takes::Count(1, SIDE_MAX), Absent::Nothing),
];

/// Version 8: the reference's products are fused; of pictures of 16 bits the upper 8 count.
pub(super) const KIND: Definition = Definition {
    memory: |_| MemoryUse::Learns,
    smaller: "shorter texts, fewer prompts",
    fault,
    ..Definition::new("calibrate", 8, FIELDS)
};

/// A checkpoint is calibrated, or a graph.
fn fault(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    let given = |fields: &[&str]| fields.iter().any(|field| is_given(field));
    match (is_given(ONNX), is_given("checkpoint")) {
        (false, false) => Some("needs \"checkpoint\", or \"onnx\" with \"images\""),
        (true, _) if given(&OF_CHECKPOINTS) => Some(
            "\"onnx\" is run over \"images\"; leave out \"checkpoint\", \"texts\", \"prompts\" and \"vision\"",
        ),
        (true, _) => (!is_given("images"))
            .then_some("\"onnx\" needs \"images\": a picture, or a folder of them"),
        (false, true) => given(&OF_GRAPHS)
            .then_some("\"method\", \"pixels\" and \"side\" are of a graph: name that as \"onnx\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_or_a_graph_is_calibrated() {
        let fault = |fields: &[&str]| fault(&|name| fields.contains(&name));
        assert_eq!(fault(&["checkpoint"]), None);
        assert_eq!(fault(&["checkpoint", "texts", "images", "tokens"]), None);
        assert_eq!(fault(&["onnx", "images", "method", "pixels", "side"]), None);
        let refused = |fields: &[&str], words: &str| {
            assert!(fault(fields).unwrap().contains(words), "{fields:?}");
        };
        refused(&["images"], "needs \"checkpoint\", or \"onnx\"");
        refused(&["onnx"], "needs \"images\"");
        refused(&["onnx", "images", "checkpoint"], "leave out");
        refused(&["checkpoint", "method"], "are of a graph");
    }
}
