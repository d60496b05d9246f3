//! Finds the vocabulary product behind an output, and the stored weight behind the product.
//!
//! What stands between them may be a Cast, an Identity, a Reshape, a Transpose or an Add of
//! constants; a head in parts is found part by part.  Knows nothing of what is done to it.

use super::patch::Patch;
use crate::check::label;
use crate::model::{Initializer, Node};
use crate::survey::Survey;

/// Output that is taken for the head's when none is named.
const LOGITS: &str = "logits";

/// Why there is no such head.
pub(super) type Why = String;

/// The value whose product is looked for: `named`, else `logits`, else the only output.
pub(super) fn output<'m>(survey: &Survey<'m>, named: Option<&'m str>) -> Result<&'m str, Why> {
    let outputs = &survey.graph.outputs;
    match (named, &outputs[..]) {
        (Some(name), _) if survey.knows(name) => Ok(name),
        (Some(name), _) => Err(format!("the graph has no value {name:?}")),
        (None, [only]) => Ok(&only.name),
        (None, _) => outputs
            .iter()
            .map(|info| info.name.as_str())
            .find(|name| *name == LOGITS)
            .ok_or_else(|| format!("no output is called {LOGITS:?}; name the output")),
    }
}

/// The indices of the products behind `value`: one, or those that a Concat joins.
pub(super) fn products(survey: &Survey<'_>, value: &str) -> Result<Vec<usize>, Why> {
    let mut value = value;
    loop {
        let Some(at) = survey.producer(value) else {
            return Err(format!("walking back ends at {value:?}, which no node gives"));
        };
        let node = &survey.graph.nodes[at];
        let step = match node.op.as_str() {
            _ if !node.domain.is_empty() => None,
            "MatMul" | "Gemm" => return Ok(vec![at]),
            "Concat" => {
                let parts = node.inputs.iter().map(|part| products(survey, part));
                return parts.collect::<Result<Vec<_>, _>>().map(|parts| parts.concat());
            }
            "Cast" | "Identity" | "Reshape" | "Transpose" => node.inputs.first(),
            "Add" => {
                let mut moving = node.inputs.iter().filter(|name| !is_constant(survey, name));
                moving.next().filter(|_| moving.next().is_none())
            }
            _ => None,
        };
        value = step
            .ok_or_else(|| format!("walking back ends at {}, which is no product", label(node)))?;
    }
}

fn is_constant(survey: &Survey<'_>, value: &str) -> bool {
    let from_node = || survey.producer(value).map(|at| &survey.graph.nodes[at]);
    survey.constant(value).is_some() || from_node().is_some_and(|node| node.op == "Constant")
}

/// The head's weight and the nodes between it and the product, weight first.
pub(super) struct Weight<'m> {
    pub(super) tensor: &'m Initializer,
    pub(super) chain: Vec<usize>,
    /// The vocabulary's dimension in the stored tensor.
    pub(super) axis: usize,
}

impl<'m> Weight<'m> {
    pub(super) fn find(survey: &Survey<'m>, product: usize) -> Result<Self, Why> {
        let node = &survey.graph.nodes[product];
        let mut name = node.inputs.get(1).ok_or("the head has no weight")?;
        let turned = node.op == "Gemm" && node.int("transB").unwrap_or(0) != 0;
        let mut axis = if turned { 0 } else { 1 };
        let mut chain = Vec::new();
        let tensor = loop {
            if let Some(tensor) = survey.constant(name) {
                break tensor;
            }
            let producer = survey.producer(name);
            let step = producer.map(|at| &survey.graph.nodes[at]).filter(|n| n.domain.is_empty());
            let Some(step) = step.filter(|node| carries_weight(node)) else {
                return Err(format!("the head's weight {name:?} is no initializer"));
            };
            if turns(step) {
                axis = 1 - axis;
            }
            chain.extend(producer);
            name = &step.inputs[0];
        };
        if tensor.dims.len() != 2 {
            return Err(format!("the head's weight has shape {:?}, not a matrix's", tensor.dims));
        }
        chain.reverse();
        Ok(Self { tensor, chain, axis })
    }

    /// It as a matrix: of the kernels of a convolution each is a row.
    pub(super) fn matrix(&self) -> Initializer {
        let mut tensor = self.tensor.clone();
        if let [rows, rest @ ..] = &self.tensor.dims[..] {
            tensor.dims = vec![*rows, rest.iter().product()];
        }
        tensor
    }

    pub(super) fn vocab(&self) -> usize {
        self.tensor.dims[self.axis]
    }

    /// The vocabulary's dimension where node `at` of the chain reads the weight.
    pub(super) fn axis_at(&self, survey: &Survey<'_>, at: usize) -> usize {
        let before = self.chain.iter().take_while(|step| **step != at);
        (self.axis + before.filter(|step| turns(&survey.graph.nodes[**step])).count()) % 2
    }

    /// Removes from the patched graph what only the old `product` and its chain read.
    pub(super) fn drop_unread(&self, survey: &Survey<'_>, product: usize, patch: &mut Patch) {
        let mut left = Vec::new();
        for at in self.chain.iter().rev() {
            let node = &survey.graph.nodes[*at];
            left.extend(node.inputs.iter().cloned());
            if is_unread(survey, patch, &node.outputs[0]) {
                patch.remove_nodes.insert(*at);
            }
        }
        left.extend(survey.graph.nodes[product].inputs.iter().skip(1).cloned());
        for name in left {
            if survey.constant(&name).is_some() && is_unread(survey, patch, &name) {
                patch.remove_initializers.insert(name);
            }
        }
    }
}

/// Whether no node that stays or comes reads `value`, nor the caller.
fn is_unread(survey: &Survey<'_>, patch: &Patch, value: &str) -> bool {
    let dropped = patch.remove_nodes.iter().map(|at| {
        let mut count = 0;
        survey.graph.nodes[*at].reads(&mut |name| count += usize::from(name == value));
        count
    });
    let kept = survey.reads(value) > dropped.sum();
    let come = patch.insert_nodes.iter().any(|(_, node)| node.inputs.iter().any(|i| i == value));
    !kept && !come && !survey.is_output(value)
}

/// Nodes that may stand between a stored weight and the product.
fn carries_weight(node: &Node) -> bool {
    match node.op.as_str() {
        "Cast" | "Identity" | "DequantizeLinear" => !node.inputs.is_empty(),
        "Transpose" => {
            !node.inputs.is_empty() && matches!(node.ints("perm"), None | Some([0, 1] | [1, 0]))
        }
        _ => false,
    }
}

fn turns(node: &Node) -> bool {
    node.op == "Transpose" && node.ints("perm") != Some(&[0, 1])
}
