//! Says the same in another operator set, node by node, by a table of what changed when.
//!
//! Going up, older spellings become inputs or attributes of today; going down the other way.
//! What cannot be said is refused by name, before anything is written.  The table is that of
//! the operator sets' changelog (`onnx/docs/Changelog.md`, versions 13 to 21).

mod steps;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use super::RuleError;
use super::patch::Patch;
use crate::ElementType;
use crate::check::label;
use crate::model::{AttributeValue, Data, Graph, Initializer, Model, Node, ValueInfo};
use crate::survey::Survey;
use steps::ConvertFn;

/// Oldest operator set that models are converted to: the first with LayerNormalization.
pub const TARGET_MIN: i64 = 17;
/// Newest operator set that models are converted to: the first with 4-bit types.
pub const TARGET_MAX: i64 = 21;
/// Oldest operator set that models are converted from: the first with axes as inputs.
const SOURCE_MIN: i64 = 13;

/// The file formats that go with operator sets 17 to 21 (`onnx/docs/Versioning.md`).
const IR_VERSIONS: [i64; 5] = [8, 8, 9, 9, 10];

/// Rewrites the graph for operator set `version`.
///
/// # Errors
/// When a version is outside the table, or a node cannot be said in the other set.
pub fn to_opset(model: &Model, version: i64) -> Result<Option<Patch>, RuleError> {
    let refuse = |why: String| RuleError { rule: "to-opset", why };
    if !(TARGET_MIN..=TARGET_MAX).contains(&version) {
        return Err(refuse(format!(
            "it converts to operator sets {TARGET_MIN} to {TARGET_MAX}, not to {version}"
        )));
    }
    if !(SOURCE_MIN..=TARGET_MAX).contains(&model.opset) {
        return Err(refuse(format!(
            "it converts from operator sets {SOURCE_MIN} to {TARGET_MAX}, not from {}",
            model.opset
        )));
    }
    if model.opset == version {
        return Ok(None);
    }
    if version < 21 {
        no_nibbles(&model.graph).map_err(refuse)?;
    }
    convert(model, version).map(Some).map_err(refuse)
}

fn convert(model: &Model, version: i64) -> Result<Patch, String> {
    let survey = Survey::new(&model.graph);
    let types = survey.types();
    let mut conversion = Conversion {
        survey: &survey,
        types,
        from: model.opset,
        to: version,
        made: Vec::new(),
        taken: BTreeSet::new(),
    };
    let mut patch = Patch::default();
    for (at, node) in model.graph.nodes.iter().enumerate() {
        let nodes = conversion.node(node)?;
        if nodes.as_slice() != std::slice::from_ref(node) {
            patch.remove_nodes.insert(at);
            patch.insert_nodes.extend(nodes.into_iter().map(|node| (at, node)));
        }
    }
    patch.add_initializers = conversion.made;
    let ir_version = IR_VERSIONS[(version - TARGET_MIN) as usize];
    patch.versions = Some((version, ir_version));
    let changed = patch.remove_nodes.len();
    patch.summary =
        format!("operator set {} is {version}; {changed} nodes are said anew", model.opset);
    Ok(patch)
}

/// 4-bit tensors begin with operator set 21.
fn no_nibbles(graph: &Graph) -> Result<(), String> {
    let refuse = |name: &str| Err(format!("{name:?} has 4-bit numbers, which begin with set 21"));
    let is_nibble = |dtype: ElementType| dtype.bits() == 4;
    let mut found = None;
    crate::survey::tensors(graph, &mut |tensor| {
        if is_nibble(tensor.dtype) {
            found.get_or_insert_with(|| tensor.name.clone());
        }
    });
    if let Some(name) = found {
        return refuse(&name);
    }
    match graph.inputs.iter().chain(&graph.outputs).find(|info| is_nibble(info.dtype)) {
        Some(ValueInfo { name, .. }) => refuse(name),
        None => Ok(()),
    }
}

/// A conversion under way.
struct Conversion<'s, 'm> {
    survey: &'s Survey<'m>,
    types: BTreeMap<&'m str, ElementType>,
    from: i64,
    to: i64,
    /// Constants that come.
    made: Vec<Initializer>,
    taken: BTreeSet<String>,
}

impl Conversion<'_, '_> {
    /// The nodes that say what `node` says.
    fn node(&mut self, node: &Node) -> Result<Vec<Node>, String> {
        if !node.domain.is_empty() {
            return Ok(vec![node.clone()]);
        }
        let refuse = |why: String| format!("{}: {why}", label(node));
        let mut nodes = vec![self.subgraphs(node)?];
        for step in table::steps(&node.op, self.from, self.to).map_err(refuse)? {
            let mut next = Vec::new();
            for one in nodes {
                match one.op == node.op {
                    true => next.extend(step(self, one).map_err(refuse)?),
                    false => next.push(one),
                }
            }
            nodes = next;
        }
        Ok(nodes)
    }

    fn subgraphs(&mut self, node: &Node) -> Result<Node, String> {
        let mut node = node.clone();
        for attribute in &mut node.attributes {
            if let AttributeValue::Graph(graph) = &mut attribute.value {
                let mut nodes = Vec::new();
                for inner in &graph.nodes {
                    nodes.extend(self.node(inner)?);
                }
                graph.nodes = nodes;
            }
        }
        Ok(node)
    }

    /// A name that nothing has yet.
    fn free_name(&mut self, base: &str) -> String {
        let name = self.survey.free_name_besides(base, &self.taken);
        self.taken.insert(name.clone());
        name
    }

    /// The name of a new constant list of integers.
    fn integers(&mut self, base: &str, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(base, ElementType::I64, vec![values.len()], bytes)
    }

    fn constant(
        &mut self,
        base: &str,
        dtype: ElementType,
        dims: Vec<usize>,
        bytes: Vec<u8>,
    ) -> String {
        let name = self.free_name(base);
        self.made.push(Initializer { name: name.clone(), dtype, dims, data: Data::Inline(bytes) });
        name
    }

    /// The integers of a small constant.
    fn constant_integers(&self, name: &str) -> Option<Vec<i64>> {
        let Data::Inline(bytes) = &self.survey.constant(name)?.data else { return None };
        let known = self.survey.constant(name)?.dtype == ElementType::I64;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word));
        known.then(|| words.collect())
    }
}

/// The conversions of an operator between two sets, in order.
type Steps = Vec<ConvertFn>;
