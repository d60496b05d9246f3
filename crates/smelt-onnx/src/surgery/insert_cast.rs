//! Makes nodes compute in another float type: a Cast before every float they read, and one
//! back after every float they give.
//!
//! The values around them keep their types, so nothing else notices but the rounding.

use super::RuleError;
use super::patch::Patch;
use crate::ElementType;
use crate::model::{Attribute, AttributeValue, Model, Node};
use crate::survey::Survey;

/// Computes the nodes called `nodes` (by name, first output or operator) in type `to`.
///
/// # Errors
/// When no node is called so, `to` is no float, or the type of a value is not known.
pub fn insert_cast(
    model: &Model,
    nodes: &str,
    to: ElementType,
) -> Result<Option<Patch>, RuleError> {
    let refuse = |why: String| RuleError { rule: "insert-cast", why };
    if !to.is_float() {
        return Err(refuse(format!("{to} is no float type")));
    }
    let survey = Survey::new(&model.graph);
    let types = survey.types();
    let mut patch = Patch::default();
    let mut found = false;
    for (at, node) in model.graph.nodes.iter().enumerate().filter(|(_, n)| is_called(n, nodes)) {
        found = true;
        if matches!(node.op.as_str(), "Cast" | "Constant" | "If" | "Loop" | "Scan") {
            return Err(refuse(format!("{} has no type of its own", crate::check::label(node))));
        }
        let narrow = |name: &String| match types.get(name.as_str()) {
            Some(dtype) if dtype.is_float() && *dtype != to => Ok(Some(*dtype)),
            Some(_) => Ok(None),
            None if name.is_empty() => Ok(None),
            None => Err(refuse(format!("the element type of {name:?} is not known"))),
        };
        let mut inner = node.clone();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (slot, input) in inner.inputs.iter_mut().enumerate() {
            if narrow(input)?.is_some() {
                let name = survey.free_name(&format!("{}.in{slot}.{to}", node.outputs[0]));
                before.push(cast(input.clone(), name.clone(), to));
                *input = name;
            }
        }
        for (slot, output) in inner.outputs.iter_mut().enumerate() {
            if let Some(dtype) = narrow(output)? {
                let name = survey.free_name(&format!("{}.out{slot}.{to}", node.outputs[0]));
                after.push(cast(name.clone(), output.clone(), dtype));
                *output = name;
            }
        }
        if before.is_empty() {
            continue;
        }
        patch.remove_nodes.insert(at);
        let come = before.into_iter().chain([inner]).chain(after);
        patch.insert_nodes.extend(come.map(|node| (at, node)));
    }
    if !found {
        return Err(refuse(format!("no node is called {nodes:?}")));
    }
    patch.summary = format!("{} nodes compute in {to}", patch.remove_nodes.len());
    Ok((!patch.remove_nodes.is_empty()).then_some(patch))
}

pub(super) fn is_called(node: &Node, name: &str) -> bool {
    node.name == name || node.outputs.first().is_some_and(|o| o == name) || node.op == name
}

fn cast(from: String, into: String, to: ElementType) -> Node {
    let value = AttributeValue::Int(i64::from(to.number()));
    Node {
        name: into.clone(),
        op: "Cast".to_owned(),
        inputs: vec![from],
        outputs: vec![into],
        attributes: vec![Attribute { name: "to".to_owned(), value }],
        ..Node::default()
    }
}
