//! Builds a graph operation by operation, so that an exporter reads like its model.
//!
//! Each operation takes the names of what it reads (values, or weights by their checkpoint
//! name) and gives a [`Value`].  Names depend on nothing but the order of calls: the scope,
//! the operator, a count.  Knows nothing of where weights lie.

mod encoder;
mod language;
mod vision;

use std::collections::BTreeMap;
use std::ops::Deref;

use half::{bf16, f16};

use crate::ElementType;
use crate::model::{Attribute, AttributeValue, Data, Dim, Graph, Initializer, Node, ValueInfo};

/// The result of an operation; it derefs to its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(String);

impl Deref for Value {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// A graph under construction, whose floats are all of one type.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    dtype: ElementType,
    scope: String,
    /// How often a name was wanted.
    wanted: BTreeMap<String, usize>,
    /// Constants by name, so that equal ones are stored once.
    constants: BTreeMap<String, Initializer>,
}

impl GraphBuilder {
    /// Begins a graph over `weights` whose activations are `dtype`.
    ///
    /// # Panics
    /// When `dtype` is none of f32, f16, bf16.
    pub fn new(name: &str, dtype: ElementType, weights: Vec<Initializer>) -> Self {
        assert!(
            matches!(dtype, ElementType::F32 | ElementType::F16 | ElementType::Bf16),
            "activations are f32, f16 or bf16, not {dtype}"
        );
        let graph = Graph { name: name.to_owned(), initializers: weights, ..Graph::default() };
        let (wanted, constants) = (BTreeMap::new(), BTreeMap::new());
        Self { graph, dtype, scope: String::new(), wanted, constants }
    }

    /// Names the part of the model that the following operations belong to.
    pub fn scope(&mut self, name: &str) {
        self.scope = format!("/{name}");
    }

    /// Declares an input of the graph.
    pub fn input(&mut self, name: &str, dims: Vec<Dim>) -> Value {
        let info = ValueInfo { name: name.to_owned(), dtype: self.dtype, dims: Some(dims) };
        self.graph.inputs.push(info);
        Value(name.to_owned())
    }

    /// Declares `value`, the result of a node, as an output called `name`.
    pub fn output(&mut self, value: Value, name: &str, dims: Vec<Dim>) {
        for node in &mut self.graph.nodes {
            for used in node.inputs.iter_mut().chain(&mut node.outputs) {
                if *used == value.0 {
                    name.clone_into(used);
                }
            }
        }
        let info = ValueInfo { name: name.to_owned(), dtype: self.dtype, dims: Some(dims) };
        self.graph.outputs.push(info);
    }

    /// The finished graph.
    pub fn finish(mut self) -> Graph {
        self.graph.initializers.extend(self.constants.into_values());
        self.graph
    }

    /// `x` `weightᵀ` + `bias`; x `[rows, in]`, weight `[out, in]`, bias `[out]`.
    pub fn gemm(&mut self, x: &str, weight: &str, bias: &str) -> Value {
        self.node("Gemm", &[x, weight, bias], vec![int("transB", 1)])
    }

    /// Matrix product of the last two dimensions.
    pub fn matmul(&mut self, a: &str, b: &str) -> Value {
        self.node("MatMul", &[a, b], vec![])
    }

    /// `a` + `b`, broadcast.
    pub fn add(&mut self, a: &str, b: &str) -> Value {
        self.node("Add", &[a, b], vec![])
    }

    /// `a` · `b`, elementwise, broadcast.
    pub fn mul(&mut self, a: &str, b: &str) -> Value {
        self.node("Mul", &[a, b], vec![])
    }

    /// `a` / `b`, elementwise, broadcast.
    pub fn div(&mut self, a: &str, b: &str) -> Value {
        self.node("Div", &[a, b], vec![])
    }

    /// The error function, elementwise.
    pub fn erf(&mut self, x: &str) -> Value {
        self.node("Erf", &[x], vec![])
    }

    /// The hyperbolic tangent, elementwise.
    pub fn tanh(&mut self, x: &str) -> Value {
        self.node("Tanh", &[x], vec![])
    }

    /// Exact GELU, x/2 · (1 + erf(x/√2)) (Hendrycks & Gimpel 2016), in the form back ends
    /// recognise and fuse.
    pub fn gelu(&mut self, x: &str) -> Value {
        let (root, one, half) =
            (self.scalar(std::f32::consts::SQRT_2), self.scalar(1.0), self.scalar(0.5));
        let scaled = self.div(x, &root);
        let erf = self.erf(&scaled);
        let gate = self.add(&erf, &one);
        let gated = self.mul(x, &gate);
        self.mul(&gated, &half)
    }

    /// Softmax over the last dimension.
    pub fn softmax(&mut self, x: &str) -> Value {
        self.node("Softmax", &[x], vec![int("axis", -1)])
    }

    /// Normalises the last dimension with mean and variance in f32, then scale and bias.
    pub fn layer_norm(&mut self, x: &str, scale: &str, bias: &str, epsilon: f32) -> Value {
        let attributes = vec![
            int("axis", -1),
            Attribute { name: "epsilon".to_owned(), value: AttributeValue::Float(epsilon) },
            int("stash_type", 1),
        ];
        self.node("LayerNormalization", &[x, scale, bias], attributes)
    }

    /// Gives `x` another shape; 0 keeps a dimension, -1 is what remains.
    pub fn reshape(&mut self, x: &str, dims: &[i64]) -> Value {
        let shape = self.integers("dims", dims);
        self.node("Reshape", &[x, &shape], vec![])
    }

    /// Permutes the dimensions of `x`.
    pub fn transpose(&mut self, x: &str, order: &[i64]) -> Value {
        self.node("Transpose", &[x], vec![ints("perm", order)])
    }

    /// Cuts `x` along `axis` into `N` parts of `size` each.
    pub fn split<const N: usize>(&mut self, x: &str, axis: i64, size: usize) -> [Value; N] {
        let sizes = self.integers("sizes", &[size as i64; N]);
        let name = self.name("Split");
        let outputs: [String; N] = std::array::from_fn(|part| format!("{name}.{part}"));
        self.graph.nodes.push(Node {
            name,
            op: "Split".to_owned(),
            inputs: vec![x.to_owned(), sizes.0],
            outputs: outputs.to_vec(),
            attributes: vec![int("axis", axis)],
            ..Node::default()
        });
        outputs.map(Value)
    }

    /// `x` without the first `count` entries of `axis`.
    pub fn drop_front(&mut self, x: &str, axis: i64, count: i64) -> Value {
        let starts = self.integers("starts", &[count]);
        let ends = self.integers("ends", &[i64::MAX]);
        let axes = self.integers("axes", &[axis]);
        self.node("Slice", &[x, &starts, &ends, &axes], vec![])
    }

    /// Zeros around `x`: `before` and `after` give a count for every dimension.
    pub fn pad(&mut self, x: &str, before: &[i64], after: &[i64]) -> Value {
        let pads = self.integers("pads", &[before, after].concat());
        self.node("Pad", &[x, &pads], vec![])
    }

    /// A scalar constant, rounded to the type of the graph.
    pub fn scalar(&mut self, value: f32) -> Value {
        let bytes = match self.dtype {
            ElementType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            ElementType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        self.constant(format!("/scalar/{value}"), self.dtype, vec![], bytes)
    }

    /// A constant list of integers; `what` only names it.
    fn integers(&mut self, what: &str, values: &[i64]) -> Value {
        let texts: Vec<String> = values.iter().map(i64::to_string).collect();
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = format!("/{what}/{}", texts.join(","));
        self.constant(name, ElementType::I64, vec![values.len()], bytes)
    }

    fn constant(
        &mut self,
        name: String,
        dtype: ElementType,
        dims: Vec<usize>,
        bytes: Vec<u8>,
    ) -> Value {
        let tensor = Initializer { name: name.clone(), dtype, dims, data: Data::Inline(bytes) };
        self.constants.entry(name.clone()).or_insert(tensor);
        Value(name)
    }

    fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<Attribute>) -> Value {
        let name = self.name(op);
        self.graph.nodes.push(Node {
            name: name.clone(),
            op: op.to_owned(),
            inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
            outputs: vec![name.clone()],
            attributes,
            ..Node::default()
        });
        Value(name)
    }

    /// `/scope/Op`, and from the second of its kind on `/scope/Op_2`.  Weights of checkpoints
    /// have no slash in their names, so the two cannot meet.
    fn name(&mut self, op: &str) -> String {
        let base = format!("{}/{op}", self.scope);
        let count = self.wanted.entry(base.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { base } else { format!("{base}_{count}") }
    }
}

fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Int(value) }
}

fn ints(name: &str, values: &[i64]) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Ints(values.to_vec()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_order_of_calls() {
        let mut g = GraphBuilder::new("g", ElementType::F16, vec![]);
        let x = g.input("x", vec![]);
        g.scope("layers.0");
        let a = g.gelu(&x);
        let [b, c] = g.split::<2>(&a, 1, 4);
        g.scope("layers.1");
        let d = g.mul(&b, &c);
        assert_eq!([&*a, &*b, &*c], ["/layers.0/Mul_2", "/layers.0/Split.0", "/layers.0/Split.1"]);
        g.output(d, "y", vec![]);
        let graph = g.finish();
        let last = graph.nodes.last().unwrap();
        assert_eq!((last.name.as_str(), &last.outputs[..]), ("/layers.1/Mul", &["y".into()][..]));
    }

    #[test]
    fn equal_constants_are_stored_once_in_the_type_of_the_graph() {
        let mut g = GraphBuilder::new("g", ElementType::Bf16, vec![]);
        let x = g.gelu("x");
        let x = g.gelu(&x);
        let x = g.reshape(&x, &[0, -1]);
        g.reshape(&x, &[0, -1]);
        let constants = g.finish().initializers;
        let names: Vec<&str> = constants.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["/dims/0,-1", "/scalar/0.5", "/scalar/1", "/scalar/1.4142135"]);
        assert_eq!(constants[0].data, Data::Inline([0i64, -1].map(i64::to_le_bytes).concat()));
        assert_eq!(constants[1].data, Data::Inline(vec![0x00, 0x3F]));
    }
}
