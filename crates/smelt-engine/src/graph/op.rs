//! Names every operator the engine executes, with its attributes read and checked.
//!
//! A node and the version of the operator set in, an [`Op`] or one clear line out.  What an
//! operator computes is in `ops`.

use std::collections::BTreeSet;

use super::file::{AttributeFile, GraphFile, NodeFile};

/// Operator sets whose meaning of every operator below is known here.
const OPSETS: std::ops::RangeInclusive<i64> = 13..=20;

impl GraphFile {
    /// Refuses a graph with an operator that the engine does not have; the error is one line, and names
    /// the node.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn check_operators(&self) -> Result<(), String> {
        self.check_opset()?;
        for node in &self.nodes {
            Op::parse(node, self.opset)
                .map_err(|problem| format!("{}: {problem}", node.title()))?;
        }
        Ok(())
    }

    /// Refuses a graph of another operator set than [`OPSETS`].
    pub(super) fn check_opset(&self) -> Result<(), String> {
        if OPSETS.contains(&self.opset) {
            return Ok(());
        }
        let (first, last, found) = (OPSETS.start(), OPSETS.end(), self.opset);
        Err(format!("opset {found} is not in {first}..={last}; export the model again"))
    }
}

impl NodeFile {
    /// Whether it is a convolution that looks at each pixel once with a `kernel` of so many rows and
    /// columns, and so is a product of its patches.
    pub fn is_product_of_patches(&self, kernel: [usize; 2]) -> bool {
        match Op::parse(self, *OPSETS.end()) {
            Ok(Op::Conv(conv)) => conv.groups == 1 && conv.windows.is_tiling(kernel),
            _ => false,
        }
    }
}

/// One operator, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    Identity,
    Cast {
        to: CastTo,
    },
    Reshape {
        allow_zero: bool,
    },
    Transpose {
        order: Option<Vec<i64>>,
    },
    Gemm {
        alpha: f32,
        beta: f32,
        transpose_a: bool,
        transpose_b: bool,
    },
    MatMul,
    Binary(Binary),
    Unary(Unary),
    /// Two numbers to 0 or 1.
    Compare(Compare),
    Not,
    Where,
    /// The place of the largest number along `axis`.
    ArgMax {
        axis: i64,
        keep_dims: bool,
        last: bool,
    },
    CumSum {
        exclusive: bool,
        reverse: bool,
    },
    Range,
    Trilu {
        upper: bool,
    },
    Softmax {
        axis: i64,
    },
    LayerNormalization {
        axis: i64,
        eps: f32,
    },
    Pad,
    Slice,
    /// `parts` is the number of outputs.
    Split {
        axis: i64,
        parts: usize,
    },
    Concat {
        axis: i64,
    },
    Squeeze,
    Unsqueeze,
    Flatten {
        axis: i64,
    },
    Expand,
    Gather {
        axis: i64,
    },
    Shape {
        start: i64,
        end: Option<i64>,
    },
    ConstantOfShape,
    /// `axes` is the attribute of opset 17 and older; newer ones read an input.
    Reduce {
        kind: Reduce,
        axes: Option<Vec<i64>>,
        keep_dims: bool,
        none_is_nothing: bool,
    },
    Conv(Conv),
    MaxPool(Sliding),
    Resize(Resize),
}

/// What a Cast gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastTo {
    F32,
    F16,
    Bf16,
    I32,
    I64,
    Bool,
}

/// What becomes of the numbers along the axes that go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    Mean,
    Sum,
    Max,
    Min,
}

/// Operators over two broadcast values that give truth; truth is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
}

/// Operators over two broadcast values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
    /// a to the power of b
    Pow,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

/// Operators over each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// |a|
    Abs,
    /// The root.
    Sqrt,
    /// 1 / a
    Reciprocal,
    /// The cosine.
    Cos,
    /// The sine.
    Sin,
    /// The error function.
    Erf,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + exp(-a))
    Sigmoid,
    /// e to the power of a
    Exp,
    /// -a
    Neg,
    /// GELU by the error function.
    GeluErf,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
}

/// A two-dimensional convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conv {
    pub(crate) windows: Sliding,
    /// Channels and kernels are cut into so many groups, which see nothing of each other.
    pub(crate) groups: usize,
}

/// How two-dimensional windows slide over an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sliding {
    pub(crate) kernel: Option<[usize; 2]>,
    pub(crate) strides: [usize; 2],
    pub(crate) dilations: [usize; 2],
    pub(crate) pads: Pads,
    /// Whether a last window may end beyond the pads.
    pub(crate) ceil: bool,
}

/// What lies around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pads {
    /// Top, left, bottom, right.
    Given([usize; 4]),
    /// So much that there is a window for every stride; an odd one goes to the end.
    SameUpper,
    /// The same, but an odd one goes to the start.
    SameLower,
}

impl Sliding {
    /// What lies before and behind an axis of `size`, where windows reach over `reach`.
    pub(crate) fn pads_of(&self, axis: usize, size: usize, reach: usize) -> [usize; 2] {
        let stride = self.strides[axis];
        let span = || (size.div_ceil(stride).saturating_sub(1) * stride).saturating_add(reach);
        let all = || span().saturating_sub(size);
        match self.pads {
            Pads::Given(pads) => [pads[axis], pads[axis + 2]],
            Pads::SameUpper => [all() / 2, all() - all() / 2],
            Pads::SameLower => [all() - all() / 2, all() / 2],
        }
    }

    /// Whether windows of `kernel` lie side by side and cover an image without pads.
    pub(crate) fn is_tiling(&self, kernel: [usize; 2]) -> bool {
        self.strides == kernel && self.pads == Pads::Given([0; 4]) && self.dilations == [1, 1]
    }
}

/// How Resize looks numbers up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resize {
    pub(crate) blend: Blend,
    pub(crate) spot: Spot,
    /// The axes that scales or sizes are of; all where none are named.
    pub(crate) axes: Option<Vec<i64>>,
}

/// What becomes of a place between two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blend {
    Nearest(Rounding),
    Linear,
}

/// Which of two numbers is the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    HalfDown,
    HalfUp,
    Down,
    Up,
}

/// Where a place of the result lies in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    HalfPixel,
    TorchHalfPixel,
    AlignedCorners,
    Asymmetric,
}

impl Op {
    /// Reads a node under operator set `opset`; the error does not name the node.
    pub(crate) fn parse(node: &NodeFile, opset: i64) -> Result<Self, String> {
        let mut fields = Fields::new(node);
        let op = parse(node, opset, &mut fields)?;
        fields.finish()?;
        let (inputs, outputs) = arity(&op, opset);
        let count = node.inputs.len();
        if !inputs.contains(&count) {
            return Err(format!(
                "reads {count} values, not {} to {}",
                inputs.start(),
                inputs.end()
            ));
        }
        let required = node.inputs.iter().take(*inputs.start());
        if required.clone().any(String::is_empty) {
            return Err("leaves out an input it needs".to_owned());
        }
        if node.outputs.is_empty() || node.outputs.len() > outputs {
            return Err(format!("gives {} values, not 1 to {outputs}", node.outputs.len()));
        }
        Ok(op)
    }
}

/// How many values each operator reads, and how many it gives at most.
fn arity(op: &Op, opset: i64) -> (std::ops::RangeInclusive<usize>, usize) {
    match op {
        Op::Identity
        | Op::Cast { .. }
        | Op::Transpose { .. }
        | Op::Unary(_)
        | Op::Softmax { .. }
        | Op::Not
        | Op::ArgMax { .. }
        | Op::Flatten { .. }
        | Op::MaxPool(_)
        | Op::Shape { .. } => (1..=1, 1),
        Op::Resize(_) => (1..=4, 1),
        Op::Reshape { .. }
        | Op::MatMul
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::CumSum { .. }
        | Op::Unsqueeze
        | Op::Expand
        | Op::Gather { .. } => (2..=2, 1),
        Op::Where | Op::Range => (3..=3, 1),
        Op::Trilu { .. } => (1..=2, 1),
        Op::Gemm { .. } => (2..=3, 1),
        Op::Conv(_) => (2..=3, 1),
        Op::LayerNormalization { .. } => (2..=3, 3),
        Op::Pad => (2..=if opset >= 18 { 4 } else { 3 }, 1),
        Op::Slice => (3..=5, 1),
        Op::Split { parts, .. } => (1..=2, *parts),
        Op::Concat { .. } => (1..=usize::MAX, 1),
        Op::Squeeze | Op::ConstantOfShape => (1..=2, 1),
        Op::Reduce { kind, .. } => (1..=if reads_axes(*kind, opset) { 2 } else { 1 }, 1),
    }
}

fn parse(node: &NodeFile, opset: i64, fields: &mut Fields<'_>) -> Result<Op, String> {
    Ok(match node.op.as_str() {
        "Identity" => Op::Identity,
        "Cast" => Op::Cast { to: cast_to(fields)? },
        "Reshape" => Op::Reshape { allow_zero: fields.flag("allowzero", false)? },
        "Transpose" => Op::Transpose { order: fields.ints("perm")? },
        "Gemm" => Op::Gemm {
            alpha: fields.float("alpha", 1.0)?,
            beta: fields.float("beta", 1.0)?,
            transpose_a: fields.flag("transA", false)?,
            transpose_b: fields.flag("transB", false)?,
        },
        "MatMul" => Op::MatMul,
        "Add" => Op::Binary(Binary::Add),
        "Sub" => Op::Binary(Binary::Sub),
        "Mul" => Op::Binary(Binary::Mul),
        "Div" => Op::Binary(Binary::Div),
        "Pow" => Op::Binary(Binary::Pow),
        "Min" => Op::Binary(Binary::Min),
        "Max" => Op::Binary(Binary::Max),
        "Equal" => Op::Compare(Compare::Equal),
        "Less" => Op::Compare(Compare::Less),
        "LessOrEqual" => Op::Compare(Compare::LessOrEqual),
        "Greater" => Op::Compare(Compare::Greater),
        "GreaterOrEqual" => Op::Compare(Compare::GreaterOrEqual),
        "And" => Op::Compare(Compare::And),
        "Or" => Op::Compare(Compare::Or),
        "Not" => Op::Not,
        "Where" => Op::Where,
        "ArgMax" => Op::ArgMax {
            axis: fields.int("axis")?.unwrap_or(0),
            keep_dims: fields.flag("keepdims", true)?,
            last: fields.flag("select_last_index", false)?,
        },
        "CumSum" => Op::CumSum {
            exclusive: fields.flag("exclusive", false)?,
            reverse: fields.flag("reverse", false)?,
        },
        "Range" => Op::Range,
        "Trilu" => Op::Trilu { upper: fields.flag("upper", true)? },
        "Abs" => Op::Unary(Unary::Abs),
        "Reciprocal" => Op::Unary(Unary::Reciprocal),
        "Cos" => Op::Unary(Unary::Cos),
        "Sin" => Op::Unary(Unary::Sin),
        "Sqrt" => Op::Unary(Unary::Sqrt),
        "Erf" => Op::Unary(Unary::Erf),
        "Tanh" => Op::Unary(Unary::Tanh),
        "Sigmoid" => Op::Unary(Unary::Sigmoid),
        "Exp" => Op::Unary(Unary::Exp),
        "Neg" => Op::Unary(Unary::Neg),
        "Gelu" if opset >= 20 => Op::Unary(gelu(fields)?),
        "Softmax" => Op::Softmax { axis: fields.int("axis")?.unwrap_or(-1) },
        "LayerNormalization" if opset >= 17 => layer_normalization(fields)?,
        "Pad" => pad(fields)?,
        "Slice" => Op::Slice,
        "Split" => split(node, opset, fields)?,
        "Concat" => Op::Concat { axis: fields.int("axis")?.ok_or("has no axis")? },
        "Squeeze" => Op::Squeeze,
        "Unsqueeze" => Op::Unsqueeze,
        "Flatten" => Op::Flatten { axis: fields.int("axis")?.unwrap_or(1) },
        "Expand" => Op::Expand,
        "Gather" => Op::Gather { axis: fields.int("axis")?.unwrap_or(0) },
        "Shape" if opset >= 15 => {
            Op::Shape { start: fields.int("start")?.unwrap_or(0), end: fields.int("end")? }
        }
        "Shape" => Op::Shape { start: 0, end: None },
        "ConstantOfShape" => Op::ConstantOfShape,
        "ReduceMean" => reduce(Reduce::Mean, opset, fields)?,
        "ReduceSum" => reduce(Reduce::Sum, opset, fields)?,
        "ReduceMax" => reduce(Reduce::Max, opset, fields)?,
        "ReduceMin" => reduce(Reduce::Min, opset, fields)?,
        "Conv" => Op::Conv(conv(fields)?),
        "MaxPool" => Op::MaxPool(max_pool(fields)?),
        "Resize" => Op::Resize(resize(node, fields)?),
        _ => {
            return Err(format!(
                "the native engine does not have this operator at opset {opset}; backend = \"onnxruntime\" may"
            ));
        }
    })
}

fn cast_to(fields: &mut Fields<'_>) -> Result<CastTo, String> {
    // `saturate` (opset 19) matters for 8-bit floats only.
    fields.int("saturate")?;
    match fields.int("to")? {
        Some(1) => Ok(CastTo::F32),
        Some(10) => Ok(CastTo::F16),
        Some(16) => Ok(CastTo::Bf16),
        Some(6) => Ok(CastTo::I32),
        Some(7) => Ok(CastTo::I64),
        Some(9) => Ok(CastTo::Bool),
        Some(other) => {
            Err(format!("casts to ONNX type {other}, not f32, f16, bf16, i32, i64 or bool"))
        }
        None => Err("has no target type".to_owned()),
    }
}

fn gelu(fields: &mut Fields<'_>) -> Result<Unary, String> {
    match fields.text("approximate")?.unwrap_or("none") {
        "none" => Ok(Unary::GeluErf),
        "tanh" => Ok(Unary::GeluTanh),
        other => Err(format!("approximates by {other:?}, not \"none\" or \"tanh\"")),
    }
}

fn layer_normalization(fields: &mut Fields<'_>) -> Result<Op, String> {
    // Sums are f64 here, wider than any stash type.
    fields.int("stash_type")?;
    let axis = fields.int("axis")?.unwrap_or(-1);
    Ok(Op::LayerNormalization { axis, eps: fields.float("epsilon", 1e-5)? })
}

fn pad(fields: &mut Fields<'_>) -> Result<Op, String> {
    match fields.text("mode")?.unwrap_or("constant") {
        "constant" => Ok(Op::Pad),
        other => Err(format!("pads by {other:?}; only \"constant\" is supported")),
    }
}

fn split(node: &NodeFile, opset: i64, fields: &mut Fields<'_>) -> Result<Op, String> {
    let axis = fields.int("axis")?.unwrap_or(0);
    let parts = node.outputs.len();
    let wanted = if opset >= 18 { fields.int("num_outputs")? } else { None };
    if let Some(wanted) = wanted.filter(|&wanted| wanted != parts as i64) {
        return Err(format!("num_outputs is {wanted}, but {parts} values are named"));
    }
    Ok(Op::Split { axis, parts })
}

/// Whether the axes are an input: ReduceSum led the way.
fn reads_axes(kind: Reduce, opset: i64) -> bool {
    opset >= if kind == Reduce::Sum { 13 } else { 18 }
}

fn reduce(kind: Reduce, opset: i64, fields: &mut Fields<'_>) -> Result<Op, String> {
    let keep_dims = fields.flag("keepdims", true)?;
    if reads_axes(kind, opset) {
        let none_is_nothing = fields.flag("noop_with_empty_axes", false)?;
        return Ok(Op::Reduce { kind, axes: None, keep_dims, none_is_nothing });
    }
    let axes = fields.ints("axes")?;
    Ok(Op::Reduce { kind, axes, keep_dims, none_is_nothing: false })
}

fn conv(fields: &mut Fields<'_>) -> Result<Conv, String> {
    let groups = fields.int("group")?.unwrap_or(1);
    let groups = usize::try_from(groups).ok().filter(|&groups| groups > 0);
    let groups = groups.ok_or("has no group")?;
    Ok(Conv { windows: sliding(fields)?, groups })
}

fn max_pool(fields: &mut Fields<'_>) -> Result<Sliding, String> {
    if fields.flag("storage_order", false)? {
        return Err("counts places by columns; only storage_order 0 is supported".to_owned());
    }
    let windows = Sliding { ceil: fields.flag("ceil_mode", false)?, ..sliding(fields)? };
    if windows.kernel.is_none() { Err("has no kernel_shape".to_owned()) } else { Ok(windows) }
}

fn sliding(fields: &mut Fields<'_>) -> Result<Sliding, String> {
    let pads = fields.sizes("pads")?;
    let pads = match fields.text("auto_pad")?.unwrap_or("NOTSET") {
        "NOTSET" => Pads::Given(pads.unwrap_or([0; 4])),
        "VALID" => Pads::Given([0; 4]),
        "SAME_UPPER" => Pads::SameUpper,
        "SAME_LOWER" => Pads::SameLower,
        other => return Err(format!("auto_pad {other:?} is not known here")),
    };
    let strides = fields.sizes("strides")?.unwrap_or([1, 1]);
    let dilations = fields.sizes("dilations")?.unwrap_or([1, 1]);
    if strides.contains(&0) || dilations.contains(&0) {
        return Err("has a stride or a dilation of 0".to_owned());
    }
    let kernel = fields.sizes("kernel_shape")?;
    Ok(Sliding { kernel, strides, dilations, pads, ceil: false })
}

fn resize(node: &NodeFile, fields: &mut Fields<'_>) -> Result<Resize, String> {
    let only = |found: bool, what: &str| match found {
        true => Ok(()),
        false => Err(format!("{what} is not supported")),
    };
    only(!fields.flag("antialias", false)?, "antialiasing")?;
    only(!fields.flag("exclude_outside", false)?, "leaving out what lies outside")?;
    let policy = fields.text("keep_aspect_ratio_policy")?.unwrap_or("stretch");
    only(policy == "stretch", "keeping the aspect ratio")?;
    // They matter to forms that are refused.
    fields.float("cubic_coeff_a", -0.75)?;
    fields.float("extrapolation_value", 0.0)?;
    let rounding = match fields.text("nearest_mode")?.unwrap_or("round_prefer_floor") {
        "round_prefer_floor" => Rounding::HalfDown,
        "round_prefer_ceil" => Rounding::HalfUp,
        "floor" => Rounding::Down,
        "ceil" => Rounding::Up,
        other => return Err(format!("nearest_mode {other:?} is not known here")),
    };
    let blend = match fields.text("mode")?.unwrap_or("nearest") {
        "nearest" => Blend::Nearest(rounding),
        "linear" => Blend::Linear,
        other => return Err(format!("resizes by {other:?}, not \"nearest\" or \"linear\"")),
    };
    let spot = match fields.text("coordinate_transformation_mode")?.unwrap_or("half_pixel") {
        "half_pixel" => Spot::HalfPixel,
        "pytorch_half_pixel" => Spot::TorchHalfPixel,
        "align_corners" => Spot::AlignedCorners,
        "asymmetric" => Spot::Asymmetric,
        other => return Err(format!("coordinates {other:?} are not supported")),
    };
    let is_given = |at: usize| node.inputs.get(at).is_some_and(|name| !name.is_empty());
    only(is_given(2) || is_given(3), "resizing without scales or sizes")?;
    Ok(Resize { blend, spot, axes: fields.ints("axes")? })
}

/// A node's attributes while they are read; one that nobody asks for is an error, not ignored.
struct Fields<'a> {
    node: &'a NodeFile,
    read: BTreeSet<&'a str>,
}

impl<'a> Fields<'a> {
    fn new(node: &'a NodeFile) -> Self {
        Self { node, read: BTreeSet::new() }
    }

    fn get(&mut self, name: &str) -> Option<&'a AttributeFile> {
        let (name, value) = self.node.attributes.get_key_value(name)?;
        self.read.insert(name);
        Some(value)
    }

    fn int(&mut self, name: &str) -> Result<Option<i64>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(AttributeFile::Int(value)) => Ok(Some(*value)),
            Some(_) => Err(format!("attribute {name} is no integer")),
        }
    }

    fn flag(&mut self, name: &str, default: bool) -> Result<bool, String> {
        Ok(self.int(name)?.map_or(default, |value| value != 0))
    }

    fn float(&mut self, name: &str, default: f32) -> Result<f32, String> {
        match self.get(name) {
            None => Ok(default),
            Some(AttributeFile::Float(value)) => Ok(*value as f32),
            Some(_) => Err(format!("attribute {name} is no float")),
        }
    }

    fn text(&mut self, name: &str) -> Result<Option<&'a str>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(AttributeFile::Text(text)) => Ok(Some(text)),
            Some(_) => Err(format!("attribute {name} is no text")),
        }
    }

    fn ints(&mut self, name: &str) -> Result<Option<Vec<i64>>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(AttributeFile::Ints(values)) => Ok(Some(values.clone())),
            Some(_) => Err(format!("attribute {name} is no list of integers")),
        }
    }

    fn sizes<const N: usize>(&mut self, name: &str) -> Result<Option<[usize; N]>, String> {
        let Some(values) = self.ints(name)? else { return Ok(None) };
        let sizes: Result<Vec<usize>, _> = values.iter().map(|&value| value.try_into()).collect();
        let sizes = sizes.ok().and_then(|sizes| sizes.try_into().ok());
        sizes.map(Some).ok_or_else(|| format!("attribute {name} is {values:?}, not {N} sizes"))
    }

    fn finish(self) -> Result<(), String> {
        let unread = self.node.attributes.keys().find(|name| !self.read.contains(name.as_str()));
        unread.map_or(Ok(()), |name| Err(format!("attribute {name:?} is not known here")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(op: &str, inputs: usize, attributes: &[(&str, AttributeFile)]) -> NodeFile {
        NodeFile {
            name: "n".to_owned(),
            op: op.to_owned(),
            inputs: (0..inputs).map(|index| format!("i{index}")).collect(),
            outputs: vec!["o".to_owned()],
            attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        }
    }

    #[track_caller]
    fn refused(node: &NodeFile, opset: i64, words: &str) {
        let error = Op::parse(node, opset).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn what_the_engine_lacks_is_refused_by_name() {
        use AttributeFile::{Int, Ints, Text};
        refused(&node("Relu", 1, &[]), 17, "does not have this operator");
        refused(&node("Gelu", 1, &[]), 17, "opset 17");
        refused(&node("LayerNormalization", 3, &[]), 16, "opset 16");
        refused(&node("Conv", 2, &[("group", Int(0))]), 17, "no group");
        refused(&node("Conv", 2, &[("dilations", Ints(vec![2, 0]))]), 17, "dilation of 0");
        refused(&node("MaxPool", 1, &[]), 17, "no kernel_shape");
        refused(&node("MaxPool", 1, &[("kernel_shape", Ints(vec![2; 3]))]), 17, "not 2 sizes");
        refused(&node("Resize", 3, &[("mode", Text("cubic".into()))]), 17, "cubic");
        refused(&node("Resize", 3, &[("antialias", Int(1))]), 18, "antialiasing");
        refused(&node("Resize", 2, &[]), 17, "without scales or sizes");
        refused(&node("Conv", 2, &[("pads", Ints(vec![-1, 0, 0, 0]))]), 17, "not 4 sizes");
        refused(&node("Conv", 2, &[("strides", Ints(vec![0, 1]))]), 17, "has a stride");
        refused(&node("Conv", 2, &[("auto_pad", Text("SAME".into()))]), 17, "auto_pad");
        refused(&node("Pad", 2, &[("mode", Text("reflect".into()))]), 17, "reflect");
        refused(&node("Cast", 1, &[("to", Int(11))]), 17, "ONNX type 11");
        refused(&node("Softmax", 1, &[("axes", Int(1))]), 17, "\"axes\" is not known");
        refused(&node("Softmax", 1, &[("axis", Text("x".into()))]), 17, "no integer");
        refused(&node("Add", 1, &[]), 17, "reads 1 values");
        refused(&node("ReduceMean", 2, &[]), 17, "reads 2 values");
        refused(&node("ReduceMean", 1, &[("axes", Ints(vec![1]))]), 18, "\"axes\" is not known");
    }

    #[test]
    fn a_graph_is_refused_by_its_operator_set_and_then_by_its_first_unknown_node() {
        let check = |opset, op| {
            let nodes = vec![node("Identity", 1, &[]), node(op, 1, &[])];
            let (products, tactics) = (Default::default(), None);
            let graph =
                GraphFile { opset, inputs: vec![], outputs: vec![], nodes, products, tactics };
            graph.check_operators()
        };
        assert_eq!(check(17, "Identity"), Ok(()));
        let error = check(12, "Relu").unwrap_err();
        assert_eq!(error, "opset 12 is not in 13..=20; export the model again");
        let error = check(17, "Relu").unwrap_err();
        assert!(error.starts_with("node \"n\" (Relu): "), "{error}");
    }

    #[test]
    fn windows_that_lie_side_by_side_are_a_product_of_patches() {
        use AttributeFile::{Int, Ints};
        let strides = ("strides", Ints(vec![2, 2]));
        let conv = node("Conv", 2, std::slice::from_ref(&strides));
        assert!(conv.is_product_of_patches([2, 2]) && !conv.is_product_of_patches([3, 3]));
        let grouped = node("Conv", 2, &[strides, ("group", Int(2))]);
        assert!(!grouped.is_product_of_patches([2, 2]), "groups see nothing of each other");
        assert!(!node("MatMul", 2, &[]).is_product_of_patches([2, 2]));
    }

    #[test]
    fn defaults_follow_the_standard() {
        let parse = |op, inputs| Op::parse(&node(op, inputs, &[]), 17).unwrap();
        assert_eq!(parse("Softmax", 1), Op::Softmax { axis: -1 });
        assert_eq!(parse("Flatten", 1), Op::Flatten { axis: 1 });
        assert_eq!(
            parse("ReduceMean", 1),
            Op::Reduce { kind: Reduce::Mean, axes: None, keep_dims: true, none_is_nothing: false }
        );
        assert_eq!(
            parse("Gemm", 2),
            Op::Gemm { alpha: 1.0, beta: 1.0, transpose_a: false, transpose_b: false }
        );
        let tanh = [("approximate", AttributeFile::Text("tanh".to_owned()))];
        assert_eq!(Op::parse(&node("Gelu", 1, &tanh), 20), Ok(Op::Unary(Unary::GeluTanh)));
    }
}
