//! The rules of TensorRT 10.3's ONNX parser, and what its builder is known to get wrong.
//!
//! Sources: onnx-tensorrt's `docs/operators.md` and importers of the 10.x line, and the issues
//! that each rule names.

use super::{Findings, Subject, TargetRule, finite};
use crate::ElementType;
use crate::check::label;
use crate::external::{DataError, read_initializer};
use crate::model::{AttributeValue, Dim, Node, ValueInfo};

/// Operator sets the parser is made for (`operators.md`, 10.1-GA).
const OPSETS: std::ops::RangeInclusive<i64> = 9..=20;
/// The set 4-bit types begin with; the parser reads their DequantizeLinear from it.
const OPSET_NIBBLES: i64 = 21;
/// The file format of ONNX 1.16, which the parser is built with.
const IR_VERSION_MAX: i64 = 10;

/// Products whose weight is larger are fused into one kernel that must get it in one piece: on
/// an 8 GB board 622 MB fail and half of it builds.
const PRODUCT_BYTES_MAX: usize = 320 << 20;

pub(super) const RULES: [TargetRule; 16] = [
    TargetRule { name: "opset", judge: opset },
    TargetRule { name: "ir-version", judge: ir_version },
    TargetRule { name: "domain", judge: domain },
    TargetRule { name: "operator", judge: operator },
    TargetRule { name: "data-dependent-shape", judge: data_dependent },
    TargetRule { name: "element-type", judge: element_type },
    TargetRule { name: "mixed-types", judge: mixed_types },
    TargetRule { name: "constant-input", judge: constant_input },
    TargetRule { name: "layer-norm", judge: layer_norm },
    TargetRule { name: "quantisation", judge: quantisation },
    TargetRule { name: "resize", judge: resize },
    TargetRule { name: "dynamic-dims", judge: dynamic_dims },
    TargetRule { name: "f16-range", judge: f16_range },
    TargetRule { name: "attention-scale", judge: attention_scale },
    TargetRule { name: "large-product", judge: large_product },
    TargetRule { name: "weight-range", judge: finite::weight_range },
];

type Judged = Result<(), DataError>;

fn opset(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let opset = subject.model.opset;
    if OPSETS.contains(&opset) {
        return Ok(());
    }
    let what = format!("operator set {opset} is not between 9 and 20");
    let nibbles = subject.types.values().any(|dtype| dtype.bits() == 4);
    if opset == OPSET_NIBBLES && nibbles {
        let remedy = "4-bit weights need set 21: keep the rest of the graph to what set 20 has";
        found.warning("model", what, remedy);
    } else {
        found.error("model", what, "convert it with to-opset 17, or export it with opset 17");
    }
    Ok(())
}

fn ir_version(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let version = subject.model.ir_version;
    if version > IR_VERSION_MAX {
        let what = format!("file format {version} is newer than {IR_VERSION_MAX}");
        found.warning("model", what, "convert it with to-opset, which sets the matching format");
    }
    Ok(())
}

/// The only operator of another domain that the parser itself has.
const OWN: &str = "TRT_INT4DequantizeLinear";

fn domain(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|n| !n.domain.is_empty() && n.op != OWN) {
        let what = format!("operator set {:?} is not TensorRT's", node.domain);
        let remedy = match node.domain.as_str() {
            "com.microsoft" => "export without ONNX Runtime's fusions",
            _ => "load a plugin for it, or write it in operators of ONNX",
        };
        found.error(label(node), what, remedy);
    }
    Ok(())
}

/// Operators that the parser imports, besides those [`DATA_DEPENDENT`] refuses.
const OPERATORS: &str = "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool \
    BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant ConstantOfShape Conv \
    ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div Dropout Einsum Elu Equal Erf \
    Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm \
    GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample \
    GroupNormalization HardSigmoid HardSwish Hardmax Identity ImageScaler InstanceNormalization \
    IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax \
    LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg \
    Not OneHot Or PRelu Pad ParametricSoftplus Pow QuantizeLinear RNN RandomNormal \
    RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 \
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum \
    ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign Round ScaledTanh Scatter \
    ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus \
    Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose \
    Trilu Unsqueeze Upsample Where Xor";

/// Operators whose results have a shape that depends on data, or that run an unknown number of
/// times: their memory cannot be planned.
const DATA_DEPENDENT: [&str; 8] =
    ["Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "StringSplit", "Unique"];

fn operator(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let known = |op: &str| OPERATORS.split(' ').any(|known| known == op);
    for node in subject.nodes().iter().filter(|node| node.domain.is_empty()) {
        if known(&node.op) || DATA_DEPENDENT.contains(&node.op.as_str()) || node.op == OWN {
            continue;
        }
        let remedy = match node.op.as_str() {
            "Attention" => "write it as MatMul, Softmax and MatMul; its layer is TensorRT 10.14's",
            "RMSNormalization" => "write it in primitives between casts to f32",
            "RotaryEmbedding" => "write it as Mul, Sub and Add; its layer is TensorRT 10.15's",
            "Swish" => "write it as Mul of x and Sigmoid of x",
            _ => "write it in operators that the parser has",
        };
        found.error(label(node), "the parser does not have this operator", remedy);
    }
    Ok(())
}

fn data_dependent(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let nodes = subject.nodes();
    for node in nodes.iter().filter(|node| DATA_DEPENDENT.contains(&node.op.as_str())) {
        let what = "its result's shape, or its run time, depends on data";
        let remedy = "export with fixed sizes, or try fold-constants after set-batch";
        found.error(label(node), what, remedy);
    }
    Ok(())
}

fn element_type(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    use ElementType::{Bf16, F64, I16, U8, U16, U32, U64};
    for (name, dtype) in &subject.types {
        match dtype {
            I16 | U16 | U32 | U64 => found.error(
                format!("value {name:?}"),
                format!("it is {dtype}, which TensorRT does not have"),
                "cast to i32, or to f32",
            ),
            F64 => found.warning(
                format!("value {name:?}"),
                "it is f64, which TensorRT clamps to f32",
                "export in f32",
            ),
            U8 if !subject.survey.is_input(name) && !subject.survey.is_output(name) => found.error(
                format!("value {name:?}"),
                "it is u8, which TensorRT takes as input and output only",
                "cast it to f32 or i32 where it comes in",
            ),
            _ => {}
        }
    }
    for node in subject.nodes().iter().filter(|node| NO_BF16.contains(&node.op.as_str())) {
        if subject.model.opset < 22 && node.outputs.iter().any(|o| subject.dtype(o) == Some(Bf16)) {
            let what = format!("operator set {} has no bf16 {}", subject.model.opset, node.op);
            found.warning(label(node), what, "compute it in f32: insert-cast --to f32");
        }
    }
    Ok(())
}

/// Operators that got bf16 with set 22 (`onnx/docs/Changelog.md`), of those graphs here use.
const NO_BF16: [&str; 12] = [
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Einsum",
    "Elu",
    "HardSwish",
    "InstanceNormalization",
    "Resize",
    "Round",
    "Sin",
    "Softplus",
];

/// Operators whose layers take one type alone, and the first input that counts: the parser of TensorRT
/// for RTX 1.7 refuses any mixture there, of floats, of integers, of constants, and casts for no
/// operator but Pow and Clip.
const ONE_TYPE: [(&str, usize); 22] = [
    ("Add", 0),
    ("Concat", 0),
    ("Conv", 0),
    ("ConvTranspose", 0),
    ("Div", 0),
    ("Einsum", 0),
    ("Equal", 0),
    ("Gemm", 0),
    ("Greater", 0),
    ("GreaterOrEqual", 0),
    ("LayerNormalization", 0),
    ("Less", 0),
    ("LessOrEqual", 0),
    ("MatMul", 0),
    ("Max", 0),
    ("Min", 0),
    ("Mod", 0),
    ("Mul", 0),
    ("PRelu", 0),
    ("Sub", 0),
    ("Sum", 0),
    ("Where", 1),
];

fn mixed_types(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|node| node.domain.is_empty()) {
        let Some((_, first)) = ONE_TYPE.iter().find(|(op, _)| *op == node.op) else { continue };
        let inputs = node.inputs.iter().skip(*first);
        let mut typed = inputs.filter_map(|name| Some((name, subject.dtype(name)?)));
        let Some((one, dtype)) = typed.next() else { continue };
        if let Some((other, second)) = typed.find(|(_, second)| clamped(*second) != clamped(dtype))
        {
            let what =
                format!("{one:?} is {dtype} and {other:?} is {second}, and it takes one type");
            found.error(label(node), what, "cast one of them, or export all in one type");
        }
    }
    Ok(())
}

/// As what values of a type come in: f64 becomes f32 there.
fn clamped(dtype: ElementType) -> ElementType {
    if dtype == ElementType::F64 { ElementType::F32 } else { dtype }
}

/// Inputs that the importers read when they build the network.
const CONSTANT_INPUTS: [(&str, usize, &str); 10] = [
    ("Slice", 3, "axes"),
    ("CumSum", 1, "axis"),
    ("Squeeze", 1, "axes"),
    ("Unsqueeze", 1, "axes"),
    ("TopK", 1, "k"),
    ("OneHot", 1, "depth"),
    ("InstanceNormalization", 1, "scale"),
    ("InstanceNormalization", 2, "bias"),
    ("DequantizeLinear", 1, "scale"),
    ("QuantizeLinear", 1, "scale"),
];

fn constant_input(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in &subject.model.graph.nodes {
        let reduces = node.op.starts_with("Reduce").then_some((1, "axes"));
        let named = CONSTANT_INPUTS.iter().filter(|(op, ..)| *op == node.op);
        for (at, what) in named.map(|(_, at, what)| (*at, *what)).chain(reduces) {
            let input = node.inputs.get(at).filter(|name| !name.is_empty());
            if let Some(name) = input.filter(|name| !subject.is_constant(name)) {
                let what = format!("its {what} {name:?} must be an initializer");
                found.error(label(node), what, "fix the sizes, then fold-constants");
            }
        }
    }
    Ok(())
}

/// The importer takes a missing scale for zero unless it is f16, and stash_type for the type of
/// the arithmetic: 1, f32, is what keeps f16 towers exact (TensorRT#4111, pytorch/TensorRT#4061).
fn layer_norm(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|node| node.op == "LayerNormalization") {
        let given = |at: usize| node.inputs.get(at).is_some_and(|name| !name.is_empty());
        if !given(1) || !given(2) {
            let remedy = "give both scale and bias: ones and zeros where there are none";
            found.error(label(node), "a missing scale or bias is taken for zero", remedy);
        }
        if node.int("stash_type").unwrap_or(1) != 1 {
            let remedy = "set stash_type to 1, which is f32";
            found.error(label(node), "it computes mean and variance in its own type", remedy);
        }
        if node.outputs.iter().skip(1).any(|output| !output.is_empty()) {
            let remedy = "compute them with ReduceMean where they are needed";
            found.error(label(node), "its mean and deviation are outputs", remedy);
        }
    }
    Ok(())
}

fn quantisation(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let nodes = subject.nodes();
    let is_either = |node: &&&Node| matches!(&*node.op, "QuantizeLinear" | "DequantizeLinear");
    for node in nodes.iter().filter(is_either) {
        code_type(subject, node, found);
        zero_point(subject, node, found)?;
    }
    Ok(())
}

fn code_type(subject: &Subject<'_>, node: &Node, found: &mut Findings) {
    let coded = if node.op == "QuantizeLinear" { node.inputs.get(2) } else { node.inputs.first() };
    let dtype = coded.and_then(|name| subject.dtype(name));
    let blocks = node.int("block_size").unwrap_or(0) > 0;
    match dtype {
        Some(ElementType::I8) if blocks => {
            let what = "blocks of 8-bit codes are not TensorRT's";
            found.error(label(node), what, "use one scale per channel");
        }
        Some(ElementType::I8) => {}
        Some(ElementType::I4) if subject.model.opset < OPSET_NIBBLES => {
            let what = "4-bit codes begin with operator set 21";
            found.error(label(node), what, "convert the model with to-opset 21");
        }
        Some(ElementType::I4) => {}
        Some(other) => found.error(
            label(node),
            format!("its codes are {other}, and TensorRT takes i8 and i4"),
            "quantise symmetrically to i8, or to i4",
        ),
        None if node.op == "QuantizeLinear" => found.error(
            label(node),
            "without zero point it gives u8, which TensorRT does not take",
            "give a zero point of zeros in i8",
        ),
        None => {}
    }
}

fn zero_point(subject: &Subject<'_>, node: &Node, found: &mut Findings) -> Judged {
    let Some(name) = node.inputs.get(2).filter(|name| !name.is_empty()) else { return Ok(()) };
    let remedy = "quantise symmetrically: TensorRT takes no zero point but zero";
    let Some(tensor) = subject.survey.constant(name) else {
        found.error(label(node), format!("its zero point {name:?} is no initializer"), remedy);
        return Ok(());
    };
    let length = tensor.byte_len().unwrap_or(0);
    let mut block = vec![0; length.min(finite::BLOCK_BYTES)];
    for begin in (0..length).step_by(finite::BLOCK_BYTES) {
        let block = &mut block[..(length - begin).min(finite::BLOCK_BYTES)];
        read_initializer(subject.dir(), tensor, begin as u64, block)?;
        if block.iter().any(|byte| *byte != 0) {
            found.error(label(node), format!("its zero point {name:?} is not zero"), remedy);
            break;
        }
    }
    Ok(())
}

fn resize(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|node| node.op == "Resize") {
        let remedy = "compute the resampled values ahead: export with a fixed grid";
        if matches!(node.attribute("mode"), Some(AttributeValue::Text(mode)) if mode == "cubic") {
            found.error(label(node), "cubic resampling is not TensorRT's", remedy);
        }
        if node.int("antialias").unwrap_or(0) != 0 {
            found.error(label(node), "antialiasing is not TensorRT's", remedy);
        }
    }
    Ok(())
}

/// Only the batch of a vision graph may vary; text graphs also vary in length, by symbols.
fn dynamic_dims(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let inputs = &subject.model.graph.inputs;
    let is_text = |info: &ValueInfo| {
        info.dtype == ElementType::I64
            || info.dtype == ElementType::I32
            || info.name.starts_with("past_key_values")
            || info.name == "inputs_embeds"
    };
    let text = inputs.iter().any(is_text);
    for info in inputs {
        let place = format!("input {:?}", info.name);
        let Some(dims) = &info.dims else {
            found.error(place, "it declares no shape", "declare one; the builder needs its rank");
            continue;
        };
        for (at, dim) in dims.iter().enumerate() {
            match dim {
                Dim::Fixed(_) => {}
                Dim::Symbol(symbol) if !text && at > 0 => found.error(
                    &place,
                    format!("its dimension {at} is {symbol:?}, and only the batch may vary"),
                    "export with a fixed grid",
                ),
                Dim::Unknown if at > 0 => found.error(
                    &place,
                    format!("its dimension {at} is not declared"),
                    "fix it, or give it a symbol if it is a length of text",
                ),
                Dim::Symbol(_) | Dim::Unknown => {}
            }
        }
    }
    Ok(())
}

/// Operators that square or sum: 256² is beyond f16 (TensorRT-LLM#3223, TensorRT#4723).
const WIDE: [&str; 8] = [
    "Pow",
    "ReduceMean",
    "ReduceSum",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
    "ReduceProd",
];

fn f16_range(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|node| WIDE.contains(&node.op.as_str())) {
        let input = node.inputs.first().and_then(|name| subject.dtype(name));
        if input == Some(ElementType::F16) {
            let what = "it squares or sums in f16, which ends at 65504";
            let remedy = "compute it in f32 and build strongly typed: insert-cast --to f32";
            found.warning(label(node), what, remedy);
        }
    }
    Ok(())
}

/// Queries and keys both scaled by a root, as torch writes attention, were fused wrongly, in f32
/// too (TensorRT#4333, #4328); one scale on the queries is what the fused kernel expects.
fn attention_scale(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let graph = &subject.model.graph;
    for node in graph.nodes.iter().filter(|node| node.op == "Softmax") {
        let scores = node.inputs.first().and_then(|name| product_behind(subject, name));
        let Some(scores) = scores else { continue };
        if scores.inputs.iter().all(|name| is_scaled(subject, name)) {
            let what = "queries and keys are both scaled, which is fused wrongly";
            found.warning(label(scores), what, "scale the queries alone, by the whole factor");
        }
    }
    Ok(())
}

/// The MatMul that gives the scores `value`, perhaps under a mask.
fn product_behind<'m>(subject: &Subject<'m>, value: &str) -> Option<&'m Node> {
    let node = given_by(subject, value)?;
    match node.op.as_str() {
        "MatMul" => Some(node),
        "Add" => node
            .inputs
            .iter()
            .find_map(|name| given_by(subject, name).filter(|node| node.op == "MatMul")),
        _ => None,
    }
}

/// Whether `value` is a product with a constant of one number, perhaps turned.
fn is_scaled(subject: &Subject<'_>, value: &str) -> bool {
    let Some(node) = given_by(subject, value) else { return false };
    let is_number = |name: &String| {
        subject.survey.constant(name).is_some_and(|t| t.dims.iter().product::<usize>() == 1)
    };
    match node.op.as_str() {
        "Transpose" => node.inputs.first().is_some_and(|name| is_scaled(subject, name)),
        "Mul" => node.inputs.iter().any(is_number),
        _ => false,
    }
}

fn given_by<'m>(subject: &Subject<'m>, value: &str) -> Option<&'m Node> {
    subject.survey.producer(value).map(|at| &subject.model.graph.nodes[at])
}

fn large_product(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|n| matches!(&*n.op, "MatMul" | "Gemm")) {
        let weights = node.inputs.iter().filter_map(|name| subject.survey.constant(name));
        for tensor in weights {
            let bytes = tensor.byte_len().unwrap_or(usize::MAX);
            if bytes > PRODUCT_BYTES_MAX {
                let what = format!("its weight {:?} of {bytes} bytes is one request", tensor.name);
                let remedy = "cut it with split-head --max-bytes 320MiB if the board is small";
                found.warning(label(node), what, remedy);
            }
        }
    }
    Ok(())
}
