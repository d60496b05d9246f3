//! Holds the graph an engine executes, as `engine.json` keeps it.
//!
//! Nodes are plain here: constants are stored beside the weights, names are those of the ONNX graph.
//! Knows nothing of what operators do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smelt_backend::{GraphInput, GraphOutput};

use crate::tactics::Tactics;

/// A graph, its nodes in execution order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphFile {
    /// Version of the default operator set; some operators changed between versions.
    pub opset: i64,
    /// What it reads, in its order.
    pub inputs: Vec<GraphInput>,
    /// What it gives, in its order.
    pub outputs: Vec<GraphOutput>,
    /// What it does, in the order of execution.
    pub nodes: Vec<NodeFile>,
    /// Weights that lie as products read them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub products: BTreeMap<String, ProductFile>,
    /// How it is best run, on machines equal to the one that was tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactics: Option<Tactics>,
}

/// A weight that only products read; it lies as they read it, a row for each output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductFile {
    /// The shape the graph gives it.
    pub shape: Vec<usize>,
    /// Whether the graph has its outputs as columns.
    pub transposed: bool,
}

impl ProductFile {
    /// Outputs and columns.
    pub fn stored_shape(&self) -> [usize; 2] {
        let first = self.shape.first().copied().unwrap_or(1);
        let rest =
            self.shape.iter().skip(1).fold(1, |count: usize, &dim| count.saturating_mul(dim));
        if self.transposed { [rest, first] } else { [first, rest] }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    /// What it is called; messages name it.
    pub name: String,
    /// The operator, as ONNX calls it.
    pub op: String,
    /// The values it reads.  An empty name is an optional input left out.
    pub inputs: Vec<String>,
    /// The values it gives; an empty name is one that nothing reads.
    pub outputs: Vec<String>,
    /// What the operator is told besides its inputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, AttributeFile>,
}

/// What an attribute holds.  Floats are f64 because JSON then keeps every f32 exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttributeFile {
    /// An integer or flag.
    Int(i64),
    /// A float.
    Float(f64),
    /// Integers.
    Ints(Vec<i64>),
    /// A text.
    Text(String),
}

impl NodeFile {
    /// How messages call the node.
    pub(crate) fn title(&self) -> String {
        format!("node {:?} ({})", self.name, self.op)
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    #[test]
    fn every_float_survives_json() {
        let mut random = Random::new(9);
        for _ in 0..20_000 {
            let value = f32::from_bits(random.next_u64() as u32);
            if !value.is_finite() {
                continue;
            }
            let text = serde_json::to_string(&AttributeFile::Float(value.into())).unwrap();
            let AttributeFile::Float(back) = serde_json::from_str(&text).unwrap() else { panic!() };
            assert_eq!((back as f32).to_bits(), value.to_bits(), "{text}");
        }
    }
}
