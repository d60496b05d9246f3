//! Keeps the part of a graph that lies between named values.
//!
//! Walks back from the outputs and stops at the named inputs; what is not met goes, weights
//! too.

use std::collections::BTreeSet;

use super::RuleError;
use super::patch::Patch;
use crate::ElementType;
use crate::model::{Model, ValueInfo};
use crate::survey::Survey;

/// Cuts out what `outputs` need, taking `inputs` as given; graph inputs that are still needed
/// stay inputs.
///
/// # Errors
/// When a name is unknown or not needed, or the type of a value at the border is not known.
pub fn extract(
    model: &Model,
    inputs: &[String],
    outputs: &[String],
) -> Result<Option<Patch>, RuleError> {
    let survey = Survey::new(&model.graph);
    let border: BTreeSet<&str> = inputs.iter().map(String::as_str).collect();
    if let Some(name) = inputs.iter().chain(outputs).find(|name| !survey.knows(name)) {
        return Err(refuse(format!("the graph has no value {name:?}")));
    }
    if outputs.is_empty() {
        return Err(refuse("name at least one output".to_owned()));
    }
    let needed = Needed::from(&survey, &border, outputs);
    if let Some(name) = border.iter().find(|name| !needed.values.contains(*name)) {
        return Err(refuse(format!("the outputs do not need {name:?}")));
    }
    let made = needed.nodes.iter().flat_map(|at| &model.graph.nodes[*at].outputs);
    if let Some(name) = made.into_iter().find(|name| border.contains(name.as_str())) {
        return Err(refuse(format!("{name:?} cannot be an input: its node is needed otherwise")));
    }
    let graph = &model.graph;
    let info = |name: &str| value_info(&survey, name);
    let kept = graph.inputs.iter().filter(|info| needed.values.contains(info.name.as_str()));
    let mut new_inputs: Vec<ValueInfo> = kept.cloned().collect();
    for name in inputs.iter().filter(|name| !survey.is_input(name)) {
        new_inputs.push(info(name)?);
    }
    let new_outputs = outputs.iter().map(|name| info(name)).collect::<Result<_, _>>()?;
    let unread = graph.initializers.iter().filter(|tensor| {
        !needed.values.contains(tensor.name.as_str()) || border.contains(tensor.name.as_str())
    });
    Ok(Some(Patch {
        summary: format!("{} of {} nodes are kept", needed.nodes.len(), graph.nodes.len()),
        remove_nodes: (0..graph.nodes.len()).filter(|at| !needed.nodes.contains(at)).collect(),
        remove_initializers: unread.map(|tensor| tensor.name.clone()).collect(),
        inputs: Some(new_inputs),
        outputs: Some(new_outputs),
        ..Patch::default()
    }))
}

struct Needed<'m> {
    nodes: BTreeSet<usize>,
    values: BTreeSet<&'m str>,
}

impl<'m> Needed<'m> {
    fn from(survey: &Survey<'m>, border: &BTreeSet<&str>, outputs: &'m [String]) -> Self {
        let mut needed = Self { nodes: BTreeSet::new(), values: BTreeSet::new() };
        let mut open: Vec<&str> = outputs.iter().map(String::as_str).collect();
        while let Some(value) = open.pop() {
            if !needed.values.insert(value) || border.contains(value) {
                continue;
            }
            let Some(at) = survey.producer(value) else { continue };
            if needed.nodes.insert(at) {
                survey.graph.nodes[at].reads(&mut |name| open.push(name));
            }
        }
        needed
    }
}

fn value_info(survey: &Survey<'_>, name: &str) -> Result<ValueInfo, RuleError> {
    let graph = survey.graph;
    if let Some(info) = graph.inputs.iter().chain(&graph.outputs).find(|info| info.name == name) {
        return Ok(info.clone());
    }
    let dtype: Option<ElementType> = survey.types().get(name).copied();
    let dtype =
        dtype.ok_or_else(|| refuse(format!("the element type of {name:?} is not known")))?;
    Ok(ValueInfo { name: name.to_owned(), dtype, dims: None })
}

fn refuse(why: String) -> RuleError {
    RuleError { rule: "extract", why }
}
