//! Holds an ONNX model as plain values.
//!
//! `decode` makes them, `encode` writes them, `check` judges them.  Weights are named byte
//! ranges, not arrays.  Knows nothing of protobuf.

use crate::ElementType;

/// A model file: versions, who made it, and the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Version of the file format.
    pub ir_version: i64,
    /// Version of the default operator set (`ai.onnx`).
    pub opset: i64,
    /// Other operator sets the nodes use, by domain.
    pub other_opsets: Vec<(String, i64)>,
    /// Name of the program that made the model.
    pub producer: String,
    /// Free keys and values, in file order.
    pub metadata: Vec<(String, String)>,
    /// What the model computes.
    pub graph: Graph,
}

/// Nodes in execution order, and what they read and give.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    /// Name for people; may be empty.
    pub name: String,
    /// Values the caller supplies.
    pub inputs: Vec<ValueInfo>,
    /// Values the caller receives.
    pub outputs: Vec<ValueInfo>,
    /// Operations; each reads only what stands before it.
    pub nodes: Vec<Node>,
    /// Constant tensors, weights above all.
    pub initializers: Vec<Initializer>,
}

/// Name, type and shape of a graph input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueInfo {
    /// Name of the value.
    pub name: String,
    /// Type of its elements.
    pub dtype: ElementType,
    /// Its dimensions; `None` when not even the rank is declared.
    pub dims: Option<Vec<Dim>>,
}

/// One dimension of a declared shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dim {
    /// Always this size.
    Fixed(usize),
    /// Known when the model runs; equal symbols are equal sizes.
    Symbol(String),
    /// Nothing is declared.
    Unknown,
}

/// One operation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// Name for people; may be empty.
    pub name: String,
    /// Operator, such as `Gemm`.
    pub op: String,
    /// Operator set the operator belongs to; empty for the default one.
    pub domain: String,
    /// Values read; an empty name is an optional input left out.
    pub inputs: Vec<String>,
    /// Values given; an empty name is an optional output left out.
    pub outputs: Vec<String>,
    /// Constants that shape the operation.
    pub attributes: Vec<Attribute>,
}

impl Node {
    /// The value of attribute `name`, if the node has it.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|a| &a.value)
    }

    /// Calls `found` with every value that the node reads, and that its subgraphs read.
    pub(crate) fn reads<'m>(&'m self, found: &mut dyn FnMut(&'m str)) {
        self.inputs.iter().filter(|name| !name.is_empty()).for_each(|name| found(name));
        for attribute in &self.attributes {
            if let AttributeValue::Graph(graph) = &attribute.value {
                graph.nodes.iter().for_each(|node| node.reads(found));
                graph.outputs.iter().for_each(|output| found(&output.name));
            }
        }
    }

    /// Attribute `name` as an integer; `None` if absent or of another type.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Attribute `name` as a list of integers; `None` if absent or of another type.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// Attribute `name` as a float; `None` if absent or of another type.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            AttributeValue::Float(value) => Some(*value),
            _ => None,
        }
    }
}

impl Attribute {
    /// An attribute `name` that holds `value`.
    pub(crate) fn int(name: &str, value: i64) -> Self {
        Self { name: name.to_owned(), value: AttributeValue::Int(value) }
    }
}

/// A named constant of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// Name, unique in its node.
    pub name: String,
    /// Value.
    pub value: AttributeValue,
}

/// What an attribute holds.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A float.
    Float(f32),
    /// An integer; flags are 0 or 1.
    Int(i64),
    /// A text.
    Text(String),
    /// A tensor, as in `Constant`.
    Tensor(Initializer),
    /// A subgraph, as in `If`; it sees the values of the graph around it.
    Graph(Graph),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Texts(Vec<String>),
}

/// A constant tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Initializer {
    /// Name of the value.
    pub name: String,
    /// Type of its elements.
    pub dtype: ElementType,
    /// Its shape, row major; empty for a scalar.
    pub dims: Vec<usize>,
    /// Where its bytes are.
    pub data: Data,
}

impl Initializer {
    /// Bytes that type and shape ask for; `None` when the product overflows.
    pub fn byte_len(&self) -> Option<usize> {
        self.dtype.byte_len(&self.dims)
    }
}

/// The bytes of a tensor, little endian, row major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Here.
    Inline(Vec<u8>),
    /// In a file of the model's directory.  Large weights embedded in a model file read as a
    /// range of that very file, so they too stay on disk.
    External {
        /// Path of the file, relative to the model's directory.
        location: String,
        /// Where the tensor begins, in bytes.
        offset: u64,
        /// Bytes of the tensor.
        length: u64,
    },
}
