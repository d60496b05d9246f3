//! Computes a graph in plain code: the oracle that says what a model means.
//!
//! Every operator is written from its definition in the ONNX standard, slowly and without
//! sharing a line with any engine.  Numbers are computed in f64 and rounded to their type
//! after every node.  Weights are read when a node needs them.  Knows nothing of surgery.

mod arithmetic;
mod index;
mod layout;
mod matrix;
mod quantised;
mod resize;
mod tensor;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use crate::ElementType;
use crate::check::label;
use crate::external::{DataError, read_initializer};
use crate::model::{AttributeValue, Graph, Initializer, Model, Node};
pub use tensor::Tensor;

/// Most elements of one tensor: 64 Mi of them take 512 MiB here; larger models are for
/// engines.
pub const EVAL_ELEMENTS_MAX: usize = 64 << 20;

/// Operator sets whose definitions are written here.
const OPSETS: std::ops::RangeInclusive<i64> = 13..=21;

/// A graph that could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The operator set is older or newer than the definitions here.
    #[error("the evaluator knows operator sets {} to {}, not {opset}", OPSETS.start(), OPSETS.end())]
    Opset {
        /// Its version.
        opset: i64,
    },
    /// No value was given for a graph input.
    #[error("no value is given for graph input {name:?}")]
    NoInput {
        /// The input.
        name: String,
    },
    /// A node could not be computed.
    #[error("{node}: {why}")]
    Node {
        /// The node.
        node: String,
        /// Why.
        why: String,
    },
    /// A weight does not fit the evaluator or its own shape.
    #[error("tensor {name:?} of shape {dims:?} is not one the evaluator can hold")]
    Tensor {
        /// The weight.
        name: String,
        /// Its shape.
        dims: Vec<usize>,
    },
    /// A weight could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// Computes the outputs of `model`, in the order it declares them; `dir` holds its weights.
///
/// # Errors
/// When an input is missing, a weight cannot be read, or a node is unknown or ill formed.
pub fn evaluate(
    model: &Model,
    dir: &Path,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<Tensor>, EvalError> {
    if !OPSETS.contains(&model.opset) {
        return Err(EvalError::Opset { opset: model.opset });
    }
    let graph = &model.graph;
    let weights = graph.initializers.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut run = EvalContext { dir, weights, values: BTreeMap::new() };
    for input in &graph.inputs {
        match inputs.get(&input.name) {
            Some(tensor) => {
                run.values.insert(input.name.clone(), Rc::new(tensor.clone()));
            }
            None if run.weights.contains_key(input.name.as_str()) => {}
            None => return Err(EvalError::NoInput { name: input.name.clone() }),
        }
    }
    let last_reads = last_reads(graph);
    for (at, node) in graph.nodes.iter().enumerate() {
        run.node(node)?;
        for name in last_reads.get(&at).into_iter().flatten() {
            run.values.remove(*name);
        }
    }
    let output = |name: &str| run.value(name).map(|tensor| Tensor::clone(&tensor));
    graph.outputs.iter().map(|info| output(&info.name)).collect()
}

/// Reads one tensor whole.
///
/// # Errors
/// When its bytes cannot be read, or are too many or too few.
pub fn load(dir: &Path, tensor: &Initializer) -> Result<Tensor, EvalError> {
    let refused = || EvalError::Tensor { name: tensor.name.clone(), dims: tensor.dims.clone() };
    let length = tensor.byte_len().filter(|length| *length <= EVAL_ELEMENTS_MAX * 8);
    let mut bytes = vec![0; length.ok_or_else(refused)?];
    read_initializer(dir, tensor, 0, &mut bytes)?;
    Tensor::from_bytes(tensor.dtype, &tensor.dims, &bytes).ok_or_else(refused)
}

/// For each node, the values that no later node and no output reads.
fn last_reads(graph: &Graph) -> BTreeMap<usize, Vec<&str>> {
    let kept: BTreeSet<&str> = graph.outputs.iter().map(|info| info.name.as_str()).collect();
    let mut last = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        node.reads(&mut |name| last.extend([(name, at)]));
        last.extend(node.outputs.iter().map(|name| (name.as_str(), at)));
    }
    let mut reads: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (name, at) in last.into_iter().filter(|(name, _)| !kept.contains(name)) {
        reads.entry(at).or_default().push(name);
    }
    reads
}

struct EvalContext<'m> {
    dir: &'m Path,
    weights: BTreeMap<&'m str, &'m Initializer>,
    values: BTreeMap<String, Rc<Tensor>>,
}

impl EvalContext<'_> {
    fn node(&mut self, node: &Node) -> Result<(), EvalError> {
        if node.op == "If" && node.domain.is_empty() {
            return self.branch(node);
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            inputs.push(if name.is_empty() { None } else { Some(self.value(name)?) });
        }
        let inputs = inputs.iter().map(|input| input.as_deref()).collect();
        let call = Call { node, inputs, elements_max: EVAL_ELEMENTS_MAX };
        let outputs = call.run().map_err(|why| EvalError::Node { node: label(node), why })?;
        for (name, tensor) in node.outputs.iter().zip(outputs) {
            self.values.insert(name.clone(), Rc::new(tensor));
        }
        Ok(())
    }

    /// Computes the branch of an If that its condition picks; names are unique across graphs.
    fn branch(&mut self, node: &Node) -> Result<(), EvalError> {
        let fail = |why: &str| EvalError::Node { node: label(node), why: why.to_owned() };
        let condition = node.inputs.first().ok_or_else(|| fail("it has no condition"))?;
        let condition = self.value(condition)?;
        let Some(&[flag]) = condition.as_ints() else {
            return Err(fail("its condition is no flag"));
        };
        let name = if flag != 0 { "then_branch" } else { "else_branch" };
        let Some(AttributeValue::Graph(graph)) = node.attribute(name) else {
            return Err(fail("it has no such branch"));
        };
        for tensor in &graph.initializers {
            self.values.insert(tensor.name.clone(), Rc::new(load(self.dir, tensor)?));
        }
        for inner in &graph.nodes {
            self.node(inner)?;
        }
        for (name, info) in node.outputs.iter().zip(&graph.outputs) {
            let value = self.value(&info.name)?;
            self.values.insert(name.clone(), value);
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Result<Rc<Tensor>, EvalError> {
        if let Some(tensor) = self.values.get(name) {
            return Ok(Rc::clone(tensor));
        }
        let Some(weight) = self.weights.get(name) else {
            return Err(EvalError::NoInput { name: name.to_owned() });
        };
        load(self.dir, weight).map(Rc::new)
    }
}

/// One node, its inputs at hand.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) inputs: Vec<Option<&'a Tensor>>,
    /// Most elements of a result.
    pub(crate) elements_max: usize,
}

/// What went wrong inside a node; [`EvalError::Node`] names the node.
type Why = String;

impl<'a> Call<'a> {
    /// Computes the node's results.
    pub(crate) fn run(&self) -> Result<Vec<Tensor>, Why> {
        if !self.node.domain.is_empty() {
            return Err(format!("operator set {:?} is not known here", self.node.domain));
        }
        let outputs = match self.node.op.as_str() {
            "Split" => self.split()?,
            _ => vec![self.one()?],
        };
        let wanted = self.node.outputs.iter().rposition(|name| !name.is_empty());
        match wanted {
            Some(last) if last >= outputs.len() => {
                Err(format!("output {last} is not computed here"))
            }
            _ => Ok(outputs),
        }
    }

    fn one(&self) -> Result<Tensor, Why> {
        match self.node.op.as_str() {
            "Identity" => self.input(0).cloned(),
            "Cast" => self.cast(),
            "Constant" => self.constant(),
            "Gemm" => self.gemm(),
            "MatMul" => self.matmul(),
            "Conv" => self.conv(),
            "MaxPool" => self.max_pool(),
            "Softmax" | "LogSoftmax" => self.softmax(),
            "LayerNormalization" => self.layer_normalization(),
            "DequantizeLinear" => self.dequantize(),
            "QuantizeLinear" => self.quantize(),
            "Where" => self.where_(),
            "Not" => self.not(),
            "IsNaN" | "IsInf" => self.is_odd(),
            "Clip" => self.clip(),
            "Min" | "Max" | "Sum" | "Mean" => self.variadic(),
            op if op.starts_with("Reduce") => self.reduce(),
            "Tile" => self.tile(),
            "GatherElements" => self.gather_elements(),
            "GatherND" => self.gather_nd(),
            "ScatterND" => self.scatter_nd(),
            "CumSum" => self.cumsum(),
            "ArgMax" => self.arg(true),
            "ArgMin" => self.arg(false),
            "Resize" => self.resize(),
            "Size" => {
                let count = self.input(0)?.elements() as i64;
                Ok(Tensor::ints(ElementType::I64, &[], vec![count]))
            }
            "CastLike" => Ok(self.input(0)?.cast(self.input(1)?.dtype())),
            "Reshape" => self.reshape(),
            "Transpose" => self.transpose(),
            "Pad" => self.pad(),
            "Slice" => self.slice(),
            "Concat" => self.concat(),
            "Squeeze" => self.squeeze(),
            "Unsqueeze" => self.unsqueeze(),
            "Flatten" => self.flatten(),
            "Expand" => self.expand(),
            "Gather" => self.gather(),
            "Shape" => self.shape(),
            "ConstantOfShape" => self.constant_of_shape(),
            "Range" => self.range(),
            "Trilu" => self.trilu(),
            _ => match self.unary()? {
                Some(tensor) => Ok(tensor),
                None => self.binary(),
            },
        }
    }

    fn input(&self, at: usize) -> Result<&'a Tensor, Why> {
        self.optional(at).ok_or_else(|| format!("input {at} is missing"))
    }

    fn optional(&self, at: usize) -> Option<&'a Tensor> {
        self.inputs.get(at).copied().flatten()
    }

    fn floats(&self, at: usize) -> Result<&'a [f64], Why> {
        self.input(at)?.as_floats().ok_or_else(|| format!("input {at} is no float"))
    }

    fn ints(&self, at: usize) -> Result<&'a [i64], Why> {
        self.input(at)?.as_ints().ok_or_else(|| format!("input {at} is no integer"))
    }

    /// A list that newer operator sets read as input `at`, older ones as an attribute.
    fn list(&self, at: usize, attribute: &str) -> Result<Option<Vec<i64>>, Why> {
        match self.optional(at) {
            Some(_) => Ok(Some(self.ints(at)?.to_vec())),
            None => Ok(self.node.ints(attribute).map(<[i64]>::to_vec)),
        }
    }

    fn text(&self, name: &str, default: &'a str) -> &'a str {
        match self.node.attribute(name) {
            Some(AttributeValue::Text(text)) => text,
            _ => default,
        }
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.node.int(name).map_or(default, |value| value != 0)
    }

    /// The number of elements of `dims`, if a tensor may have that many.
    fn fits(&self, dims: &[usize]) -> Result<usize, Why> {
        let product = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        product
            .filter(|elements| *elements <= self.elements_max)
            .ok_or_else(|| format!("its result of shape {dims:?} is over the limit"))
    }

    fn constant(&self) -> Result<Tensor, Why> {
        use ElementType::{F32, I64};
        match self.node.attributes.first().map(|attribute| &attribute.value) {
            Some(AttributeValue::Tensor(tensor)) => {
                let crate::model::Data::Inline(bytes) = &tensor.data else {
                    return Err("its tensor is external".to_owned());
                };
                Tensor::from_bytes(tensor.dtype, &tensor.dims, bytes)
                    .ok_or_else(|| "its tensor does not fit its shape".to_owned())
            }
            Some(AttributeValue::Int(value)) => Ok(Tensor::ints(I64, &[], vec![*value])),
            Some(AttributeValue::Ints(values)) => {
                Ok(Tensor::ints(I64, &[values.len()], values.clone()))
            }
            Some(AttributeValue::Float(value)) => {
                Ok(Tensor::floats(F32, &[], vec![f64::from(*value)]))
            }
            Some(AttributeValue::Floats(values)) => {
                let wide = values.iter().map(|value| f64::from(*value)).collect();
                Ok(Tensor::floats(F32, &[values.len()], wide))
            }
            _ => Err("it holds no number".to_owned()),
        }
    }

    fn cast(&self) -> Result<Tensor, Why> {
        Ok(self.input(0)?.cast(cast_target(self.node)?))
    }
}

/// The type a Cast gives.
pub(crate) fn cast_target(node: &Node) -> Result<ElementType, Why> {
    let number = node.int("to").ok_or("it has no target type")?;
    i32::try_from(number)
        .ok()
        .and_then(ElementType::from_number)
        .ok_or_else(|| format!("casts to ONNX type {number}, which is not known here"))
}

/// `axis` of a tensor of `rank` dimensions, counted from the end where negative.
fn axis_of(axis: i64, rank: usize) -> Result<usize, Why> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|axis| *axis < rank)
        .ok_or_else(|| format!("axis {axis} is outside rank {rank}"))
}

/// The only element of `values`.
fn one<T: Copy>(values: &[T]) -> Result<T, Why> {
    match values {
        [value] => Ok(*value),
        _ => Err("one of its inputs is not one number".to_owned()),
    }
}

/// Elements between two neighbours along each dimension.
fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for at in (1..dims.len()).rev() {
        strides[at - 1] = strides[at] * dims[at];
    }
    strides
}

/// The index along each dimension of element `flat`.
fn unravel(mut flat: usize, dims: &[usize], out: &mut [usize]) {
    for at in (0..dims.len()).rev() {
        out[at] = flat % dims[at];
        flat /= dims[at];
    }
}

/// The shape two shapes broadcast to.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Why> {
    let rank = a.len().max(b.len());
    let dim =
        |dims: &[usize], at: usize| (at + dims.len()).checked_sub(rank).map_or(1, |at| dims[at]);
    let join = |at| match (dim(a, at), dim(b, at)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => Err(format!("shapes {a:?} and {b:?} do not broadcast")),
    };
    (0..rank).map(join).collect()
}

/// The element of a tensor of shape `from` that `index` of a broadcast shape reads.
fn broadcast_source(from: &[usize], strides: &[usize], index: &[usize]) -> usize {
    let skip = index.len() - from.len();
    (0..from.len()).map(|at| if from[at] == 1 { 0 } else { index[skip + at] * strides[at] }).sum()
}
