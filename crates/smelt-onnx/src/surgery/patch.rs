//! Holds a change to a model as a value, and applies it to give a new model.
//!
//! A patch names what goes, what comes and what is read instead; the old model stays whole.
//! Knows nothing of why: the rules do.

use std::collections::{BTreeMap, BTreeSet};

use super::quantise::Quantisation;
use crate::model::{AttributeValue, Graph, Initializer, Model, Node, ValueInfo};

/// What a rule wants changed.  Indices and names are those of the model it looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Patch {
    /// What is done, one line for people.
    pub summary: String,
    /// Nodes that go.
    pub remove_nodes: BTreeSet<usize>,
    /// Nodes that come, each before the node of that index, in this order.
    pub insert_nodes: Vec<(usize, Node)>,
    /// Initializers that go.
    pub remove_initializers: BTreeSet<String>,
    /// Initializers that come.
    pub add_initializers: Vec<Initializer>,
    /// Values that every node shall read instead of others; `old -> new`.
    pub rewire: BTreeMap<String, String>,
    /// The graph's inputs from now on.
    pub inputs: Option<Vec<ValueInfo>>,
    /// The graph's outputs from now on.
    pub outputs: Option<Vec<ValueInfo>>,
    /// Metadata that comes.
    pub metadata: Vec<(String, String)>,
    /// The operator set and the file format from now on.
    pub versions: Option<(i64, i64)>,
    /// Tensor data that must be made, in files that do not exist yet.
    pub makings: Vec<Making>,
}

/// Tensor data that is made from a tensor of the old model.
#[derive(Debug, Clone, PartialEq)]
pub enum Making {
    /// Columns are dealt out.
    Columns(ColumnCut),
    /// Numbers are rounded to few bits.
    Quantised(Quantisation),
}

impl Making {
    /// The tensors that are made.
    pub(super) fn results(&self) -> Vec<&Initializer> {
        match self {
            Making::Columns(cut) => cut.parts.iter().collect(),
            Making::Quantised(made) => vec![&made.codes, &made.scale],
        }
    }
}

/// A matrix whose columns are dealt out to several new tensors in one pass over its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnCut {
    /// The matrix, as it lies in the old model.
    pub from: Initializer,
    /// The parts, left to right; together they have all its columns.
    pub parts: Vec<Initializer>,
}

/// A patch that does not fit the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// It names a node that is not there.
    #[error("the patch names node {at} of {nodes}")]
    NoNode {
        /// The index.
        at: usize,
        /// Nodes of the model.
        nodes: usize,
    },
    /// It removes an initializer that is not there.
    #[error("the patch removes initializer {name:?}, which is not there")]
    NoInitializer {
        /// The name.
        name: String,
    },
}

impl Patch {
    /// The model with the patch applied; the graph is in order only if the patch kept it so.
    ///
    /// # Errors
    /// When the patch names nodes or initializers the model does not have.
    pub fn apply(&self, model: &Model) -> Result<Model, PatchError> {
        self.fits(&model.graph)?;
        let mut next = model.clone();
        let graph = &mut next.graph;
        graph.nodes = self.nodes(&model.graph);
        graph.initializers.retain(|tensor| !self.remove_initializers.contains(&tensor.name));
        graph.initializers.extend(self.add_initializers.iter().cloned());
        if let Some(inputs) = &self.inputs {
            graph.inputs.clone_from(inputs);
        }
        if let Some(outputs) = &self.outputs {
            graph.outputs.clone_from(outputs);
        }
        if let Some((opset, ir_version)) = self.versions {
            (next.opset, next.ir_version) = (opset, ir_version);
        }
        next.metadata.extend(self.metadata.iter().cloned());
        Ok(next)
    }

    fn fits(&self, graph: &Graph) -> Result<(), PatchError> {
        let nodes = graph.nodes.len();
        let removed = self.remove_nodes.iter().find(|at| **at >= nodes);
        let inserted = self.insert_nodes.iter().map(|(at, _)| at).find(|at| **at > nodes);
        if let Some(at) = removed.or(inserted) {
            return Err(PatchError::NoNode { at: *at, nodes });
        }
        let known: BTreeSet<&String> = graph.initializers.iter().map(|t| &t.name).collect();
        match self.remove_initializers.iter().find(|name| !known.contains(name)) {
            Some(name) => Err(PatchError::NoInitializer { name: name.clone() }),
            None => Ok(()),
        }
    }

    fn nodes(&self, graph: &Graph) -> Vec<Node> {
        let mut nodes = Vec::with_capacity(graph.nodes.len() + self.insert_nodes.len());
        for at in 0..=graph.nodes.len() {
            let come = self.insert_nodes.iter().filter(|(before, _)| *before == at);
            nodes.extend(come.map(|(_, node)| node.clone()));
            if let Some(node) = graph.nodes.get(at).filter(|_| !self.remove_nodes.contains(&at)) {
                let mut node = node.clone();
                rewire(&mut node, &self.rewire);
                nodes.push(node);
            }
        }
        nodes
    }
}

/// Makes a node and its subgraphs read other values; a subgraph's own names stay its own.
fn rewire(node: &mut Node, names: &BTreeMap<String, String>) {
    if names.is_empty() {
        return;
    }
    for input in &mut node.inputs {
        if let Some(new) = names.get(input) {
            input.clone_from(new);
        }
    }
    for attribute in &mut node.attributes {
        if let AttributeValue::Graph(graph) = &mut attribute.value {
            let mut outer = names.clone();
            outer.retain(|name, _| !defines(graph, name));
            for output in &mut graph.outputs {
                if let Some(new) = outer.get(&output.name) {
                    output.name.clone_from(new);
                }
            }
            graph.nodes.iter_mut().for_each(|node| rewire(node, &outer));
        }
    }
}

fn defines(graph: &Graph, name: &str) -> bool {
    graph.inputs.iter().any(|input| input.name == name)
        || graph.initializers.iter().any(|tensor| tensor.name == name)
        || graph.nodes.iter().any(|node| node.outputs.iter().any(|output| output == name))
}
