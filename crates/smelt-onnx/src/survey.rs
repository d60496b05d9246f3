//! Answers what rules ask of a graph: who gives a value, who reads it, what type it is,
//! which names are free.
//!
//! Subgraphs are looked into, for they read values of the graph around them.

use std::collections::{BTreeMap, BTreeSet};

use crate::ElementType;
use crate::eval::cast_target;
use crate::model::{AttributeValue, Graph, Initializer, Node};

/// A graph, looked over once.
pub(crate) struct Survey<'m> {
    pub(crate) graph: &'m Graph,
    producers: BTreeMap<&'m str, usize>,
    reads: BTreeMap<&'m str, usize>,
    initializers: BTreeMap<&'m str, &'m Initializer>,
    inputs: BTreeSet<&'m str>,
    outputs: BTreeSet<&'m str>,
}

impl<'m> Survey<'m> {
    pub(crate) fn new(graph: &'m Graph) -> Self {
        let mut producers = BTreeMap::new();
        let mut reads = BTreeMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            producers.extend(node.outputs.iter().map(|name| (name.as_str(), at)));
            node.reads(&mut |name| *reads.entry(name).or_insert(0) += 1);
        }
        Self {
            graph,
            producers,
            reads,
            initializers: graph.initializers.iter().map(|t| (t.name.as_str(), t)).collect(),
            inputs: graph.inputs.iter().map(|info| info.name.as_str()).collect(),
            outputs: graph.outputs.iter().map(|info| info.name.as_str()).collect(),
        }
    }

    /// The node that gives `value`.
    pub(crate) fn producer(&self, value: &str) -> Option<usize> {
        self.producers.get(value).copied()
    }

    /// The constant tensor `name`; an initializer that a caller may override is none.
    pub(crate) fn constant(&self, name: &str) -> Option<&'m Initializer> {
        self.initializers.get(name).copied().filter(|_| !self.inputs.contains(name))
    }

    /// How many inputs of nodes, subgraphs included, read `value`.
    pub(crate) fn reads(&self, value: &str) -> usize {
        self.reads.get(value).copied().unwrap_or(0)
    }

    pub(crate) fn is_input(&self, value: &str) -> bool {
        self.inputs.contains(value)
    }

    pub(crate) fn is_output(&self, value: &str) -> bool {
        self.outputs.contains(value)
    }

    /// Whether anything in the graph is called `name`.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.is_input(name)
            || self.initializers.contains_key(name)
            || self.producers.contains_key(name)
            || self.reads.contains_key(name)
    }

    /// `base`, or `base.2`, `base.3` … if the graph already has that name.
    pub(crate) fn free_name(&self, base: &str) -> String {
        self.free_name_besides(base, &BTreeSet::new())
    }

    /// The same, where names in `taken` are not free either.
    pub(crate) fn free_name_besides(&self, base: &str, taken: &BTreeSet<String>) -> String {
        let spellings = (2..).map(|count| format!("{base}.{count}"));
        std::iter::once(base.to_owned())
            .chain(spellings)
            .find(|name| !self.knows(name) && !taken.contains(name))
            .expect("a finite graph leaves a name free")
    }

    /// The element types of all values whose type follows from what is declared.
    pub(crate) fn types(&self) -> BTreeMap<&'m str, ElementType> {
        let mut types: BTreeMap<&str, ElementType> =
            self.graph.inputs.iter().map(|info| (info.name.as_str(), info.dtype)).collect();
        types.extend(self.graph.initializers.iter().map(|t| (t.name.as_str(), t.dtype)));
        types.extend(self.graph.outputs.iter().map(|info| (info.name.as_str(), info.dtype)));
        for node in &self.graph.nodes {
            let Some(dtype) = result_type(node, &types) else { continue };
            for output in &node.outputs {
                types.entry(output).or_insert(dtype);
            }
        }
        types
    }
}

fn result_type(node: &Node, types: &BTreeMap<&str, ElementType>) -> Option<ElementType> {
    let input = |at: usize| types.get(node.inputs.get(at)?.as_str()).copied();
    if !node.domain.is_empty() {
        return None;
    }
    match node.op.as_str() {
        "Cast" => cast_target(node).ok(),
        "Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" => Some(ElementType::I64),
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Not" | "And" | "Or"
        | "Xor" | "IsNaN" | "IsInf" => Some(ElementType::Bool),
        "Where" | "DequantizeLinear" | "CastLike" => input(1),
        "OneHot" => input(2),
        "MatMulInteger" | "ConvInteger" => Some(ElementType::I32),
        "QuantizeLinear" => Some(input(2).unwrap_or(ElementType::U8)),
        "Constant" | "ConstantOfShape" => match node.attributes.first().map(|a| &a.value) {
            Some(AttributeValue::Tensor(tensor)) => Some(tensor.dtype),
            Some(AttributeValue::Int(_) | AttributeValue::Ints(_)) => Some(ElementType::I64),
            Some(AttributeValue::Float(_) | AttributeValue::Floats(_)) | None => {
                Some(ElementType::F32)
            }
            _ => None,
        },
        // Their results differ in type, or lie in a subgraph.
        "If" | "Loop" | "Scan" | "TopK" | "Unique" | "Dropout" => None,
        // The indices that a second output of it gives are of another type.
        "MaxPool" if node.outputs.len() > 1 => None,
        // Their attributes say, or types of inputs that may be left out.
        "EyeLike"
        | "RandomNormalLike"
        | "RandomUniformLike"
        | "Bernoulli"
        | "Multinomial"
        | "DynamicQuantizeLinear"
        | "QLinearConv"
        | "QLinearMatMul" => None,
        _ => input(0),
    }
}

/// Whether a node holds a subgraph.
pub(crate) fn has_subgraph(node: &Node) -> bool {
    node.attributes.iter().any(|a| matches!(a.value, AttributeValue::Graph(_)))
}

/// Calls `visit` with every tensor of the graph: initializers, attributes, subgraphs.
pub(crate) fn tensors(graph: &Graph, visit: &mut dyn FnMut(&Initializer)) {
    graph.initializers.iter().for_each(&mut *visit);
    for attribute in graph.nodes.iter().flat_map(|node| &node.attributes) {
        match &attribute.value {
            AttributeValue::Tensor(tensor) => visit(tensor),
            AttributeValue::Graph(graph) => tensors(graph, visit),
            _ => {}
        }
    }
}

/// Calls `visit` with every tensor of the graph, to change it.
pub(crate) fn tensors_mut(graph: &mut Graph, visit: &mut dyn FnMut(&mut Initializer)) {
    graph.initializers.iter_mut().for_each(&mut *visit);
    for attribute in graph.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
        match &mut attribute.value {
            AttributeValue::Tensor(tensor) => visit(tensor),
            AttributeValue::Graph(graph) => tensors_mut(graph, visit),
            _ => {}
        }
    }
}
