//! Computes small integer subgraphs once, ahead of time.
//!
//! Shapes, indices and masks of constants: what exporters spell out in dozens of nodes.
//! Floats are left alone, so no weight is ever touched.

use std::collections::BTreeMap;

use super::RuleError;
use super::patch::Patch;
use crate::ElementType;
use crate::eval::{Call, Tensor};
use crate::model::{Data, Dim, Initializer, Model, Node};
use crate::survey::{Survey, has_subgraph};

/// Most elements of a tensor that is read or made: shapes have a handful, masks of small
/// grids some thousands.
pub const FOLD_ELEMENTS_MAX: usize = 4096;

/// Most bytes that folding may add to the model file.
pub const FOLD_BYTES_MAX: usize = 1 << 20;

/// Replaces nodes that compute integers from constants, and shapes of inputs that are fixed,
/// by their results.
///
/// # Errors
/// Never; a node that cannot be computed is left as it is.
pub fn fold_constants(model: &Model) -> Result<Option<Patch>, RuleError> {
    let survey = Survey::new(&model.graph);
    let mut fold = Fold { survey: &survey, values: BTreeMap::new(), made: Vec::new() };
    for tensor in &model.graph.initializers {
        if survey.constant(&tensor.name).is_some() {
            fold.values.extend(small(tensor).map(|value| (tensor.name.as_str(), value)));
        }
    }
    let mut bytes = 0;
    for (at, node) in model.graph.nodes.iter().enumerate() {
        let Some(value) = fold.compute(node) else { continue };
        bytes += value.to_bytes().len();
        if bytes > FOLD_BYTES_MAX {
            break;
        }
        fold.values.insert(&node.outputs[0], value);
        fold.made.push(at);
    }
    Ok((!fold.made.is_empty()).then(|| fold.patch()))
}

struct Fold<'s, 'm> {
    survey: &'s Survey<'m>,
    values: BTreeMap<&'m str, Tensor>,
    /// Nodes that were computed, in order.
    made: Vec<usize>,
}

impl<'m> Fold<'_, 'm> {
    /// The node's only result, if it is a small tensor of integers that is always the same.
    fn compute(&self, node: &'m Node) -> Option<Tensor> {
        let [output] = &node.outputs[..] else { return None };
        if has_subgraph(node) || self.survey.is_output(output) || output.is_empty() {
            return None;
        }
        let shape = if node.op == "Shape" { self.shape_of(node.inputs.first()?) } else { None };
        let mut inputs = Vec::new();
        for name in &node.inputs {
            inputs.push(match (&shape, name.is_empty()) {
                (Some(stand_in), _) => Some(stand_in),
                (None, true) => None,
                (None, false) => Some(self.values.get(name.as_str())?),
            });
        }
        let call = Call { node, inputs, elements_max: FOLD_ELEMENTS_MAX };
        let value = call.run().ok()?.pop()?;
        (!value.dtype().is_float() && value.elements() <= FOLD_ELEMENTS_MAX).then_some(value)
    }

    /// A stand-in with the shape of `name`, where that is fixed and small enough to hold.
    fn shape_of(&self, name: &str) -> Option<Tensor> {
        let dims: Vec<usize> = match self.survey.constant(name) {
            Some(tensor) => tensor.dims.clone(),
            None => {
                let info = self.survey.graph.inputs.iter().find(|info| info.name == name)?;
                let fixed = |dim: &Dim| if let Dim::Fixed(size) = dim { Some(*size) } else { None };
                info.dims.as_ref()?.iter().map(fixed).collect::<Option<_>>()?
            }
        };
        Some(Tensor::hollow(dims))
    }

    /// Folded nodes go; results that others still read come; constants nobody reads go.
    fn patch(&self) -> Patch {
        let nodes = &self.survey.graph.nodes;
        let mut patch = Patch {
            remove_nodes: self.made.iter().copied().collect(),
            summary: format!("{} nodes are computed", self.made.len()),
            ..Patch::default()
        };
        let mut gone: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self.made.iter().flat_map(|at| &nodes[*at].inputs) {
            *gone.entry(name).or_insert(0) += 1;
        }
        let unread = |name: &str| self.survey.reads(name) == gone.get(name).copied().unwrap_or(0);
        for at in &self.made {
            let name = &nodes[*at].outputs[0];
            let value = &self.values[name.as_str()];
            if !unread(name) {
                patch.add_initializers.push(Initializer {
                    name: name.clone(),
                    dtype: value.dtype(),
                    dims: value.dims().to_vec(),
                    data: Data::Inline(value.to_bytes()),
                });
            }
        }
        let dropped = gone.keys().filter(|name| {
            self.survey.constant(name).is_some() && unread(name) && !self.survey.is_output(name)
        });
        patch.remove_initializers = dropped.map(|name| (*name).to_owned()).collect();
        patch
    }
}

/// An inline tensor of few integers, as numbers.
fn small(tensor: &Initializer) -> Option<Tensor> {
    let Data::Inline(bytes) = &tensor.data else { return None };
    let elements = tensor.dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
    let counts = !tensor.dtype.is_float() && tensor.dtype != ElementType::U64;
    (counts && elements <= FOLD_ELEMENTS_MAX)
        .then(|| Tensor::from_bytes(tensor.dtype, &tensor.dims, bytes))?
}
