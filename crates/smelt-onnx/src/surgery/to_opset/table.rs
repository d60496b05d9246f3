//! Lists what changed between operator sets 13 and 21, operator by operator.
//!
//! An operator that is in neither list is not of the default domain, or newer than set 21.

use super::Steps;
use super::steps::{self, ConvertFn};

/// One change: the operator, the set it came with, and how to cross it up and down.  Sets up
/// to 17 are crossed upwards only.
type Change = (&'static str, i64, ConvertFn, ConvertFn);

/// Operators that begin after set 13, with the set they begin with.
const BEGIN: [(&str, i64); 31] = [
    ("AffineGrid", 20),
    ("Bernoulli", 15),
    ("BitwiseAnd", 18),
    ("BitwiseNot", 18),
    ("BitwiseOr", 18),
    ("BitwiseXor", 18),
    ("BlackmanWindow", 17),
    ("CastLike", 15),
    ("CenterCropPad", 18),
    ("Col2Im", 18),
    ("DFT", 17),
    ("DeformConv", 19),
    ("Gelu", 20),
    ("GridSample", 16),
    ("GroupNormalization", 18),
    ("HammingWindow", 17),
    ("HannWindow", 17),
    ("HardSwish", 14),
    ("ImageDecoder", 20),
    ("LayerNormalization", 17),
    ("MelWeightMatrix", 17),
    ("Mish", 18),
    ("Optional", 15),
    ("OptionalGetElement", 15),
    ("OptionalHasElement", 15),
    ("RegexFullMatch", 20),
    ("STFT", 17),
    ("SequenceMap", 17),
    ("StringConcat", 20),
    ("StringSplit", 20),
    ("Trilu", 14),
];

/// What changed in a way that a node can show.  Changes that only admit more element types, and
/// none that this crate holds but 4-bit ones, are left out.
const CHANGES: [Change; 31] = [
    ("BatchNormalization", 14, steps::one_output, steps::same),
    ("RoiAlign", 16, steps::roi_align_16, steps::same),
    ("LpPool", 18, steps::same, steps::lp_pool_below_18),
    ("Pad", 18, steps::same, steps::pad_below_18),
    ("ReduceL1", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceL2", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceLogSum", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceLogSumExp", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceMax", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceMean", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceMin", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceProd", 18, steps::reduce_18, steps::reduce_below_18),
    ("ReduceSumSquare", 18, steps::reduce_18, steps::reduce_below_18),
    ("Resize", 18, steps::same, steps::resize_below_18),
    ("ScatterElements", 18, steps::same, steps::scatter_below_18),
    ("ScatterND", 18, steps::same, steps::scatter_below_18),
    ("Split", 18, steps::split_18, steps::split_below_18),
    ("AveragePool", 19, steps::same, steps::average_pool_below_19),
    ("Cast", 19, steps::same, steps::cast_below_19),
    ("CastLike", 19, steps::same, steps::cast_below_19),
    ("DequantizeLinear", 19, steps::same, steps::dequantize_below_19),
    ("QuantizeLinear", 19, steps::same, steps::quantize_below_19),
    ("Pad", 19, steps::same, steps::pad_below_19),
    ("Resize", 19, steps::same, steps::resize_below_19),
    ("ReduceMax", 20, steps::same, steps::reduce_below_20),
    ("ReduceMin", 20, steps::same, steps::reduce_below_20),
    ("DFT", 20, steps::never, steps::never),
    ("GridSample", 20, steps::grid_sample_20, steps::grid_sample_below_20),
    ("DequantizeLinear", 21, steps::same, steps::blocks_below_21),
    ("QuantizeLinear", 21, steps::same, steps::blocks_below_21),
    ("GroupNormalization", 21, steps::never, steps::never),
];

/// Operators that are the same in all these sets, or differ in admitted types only.
const KNOWN: &str = "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift Ceil Celu \
    Clip Compress Concat ConcatFromSequence Constant ConstantOfShape Conv ConvInteger \
    ConvTranspose Cos Cosh CumSum DepthToSpace Det Div Dropout DynamicQuantizeLinear Einsum Elu \
    Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gemm \
    GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual HardSigmoid Hardmax \
    Identity If InstanceNormalization IsInf IsNaN LRN LSTM LeakyRelu Less LessOrEqual Log \
    LogSoftmax Loop LpNormalization MatMul MatMulInteger Max MaxPool MaxRoiPool MaxUnpool Mean \
    MeanVarianceNormalization Min Mod Mul Multinomial Neg NegativeLogLikelihoodLoss \
    NonMaxSuppression NonZero Not OneHot Or PRelu Pow QLinearConv QLinearMatMul RNN RandomNormal \
    RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceSum Relu Reshape \
    ReverseSequence Round Scan Selu SequenceAt SequenceConstruct SequenceEmpty SequenceErase \
    SequenceInsert SequenceLength Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax \
    SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth SplitToSequence Sqrt Squeeze \
    StringNormalizer Sub Sum Tan Tanh TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Unique \
    Unsqueeze Where Xor";

/// How `op` gets from set `from` to set `to`.
pub(super) fn steps(op: &str, from: i64, to: i64) -> Result<Steps, String> {
    let changes = CHANGES.iter().filter(|change| change.0 == op);
    let begin = BEGIN.iter().find(|(name, _)| *name == op).map(|(_, begin)| *begin);
    if begin.is_none() && changes.clone().next().is_none() && !KNOWN.split(' ').any(|k| k == op) {
        return Err("operator sets 13 to 21 do not have it; replace it first".to_owned());
    }
    let crossed =
        changes.filter(|(_, since, ..)| (from.min(to) + 1..=from.max(to)).contains(since));
    let mut steps: Steps = match from < to {
        true => crossed.map(|(_, _, up, _)| *up).collect(),
        false => crossed.rev().map(|(_, _, _, down)| *down).collect(),
    };
    match begin.filter(|begin| *begin > to) {
        Some(20) if op == "Gelu" => steps.push(steps::gelu_below_20),
        Some(begin) => return Err(format!("it begins with operator set {begin}")),
        None => {}
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_stands_in_one_list() {
        for name in KNOWN.split(' ') {
            assert!(BEGIN.iter().all(|(begin, _)| *begin != name), "{name}");
            assert!(CHANGES.iter().all(|change| change.0 != name), "{name}");
        }
        assert!(CHANGES.is_sorted_by_key(|change| change.1), "changes stand in order of sets");
    }
}
