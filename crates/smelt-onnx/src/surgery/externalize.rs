//! Makes weights inputs of the graph, so that whoever runs it brings them.
//!
//! Where their bytes lie is kept in the model's metadata, one entry a weight, so the data
//! files still belong to the model: see [`weights`].

use super::RuleError;
use super::patch::Patch;
use crate::model::{Data, Dim, Initializer, Model, ValueInfo};
use crate::survey::Survey;

/// Metadata key of a weight's place is this and its name; the value is
/// `offset length location`.
pub const WEIGHT_KEY: &str = "smelt.weight.";

/// Turns the weights `names` into graph inputs; all of them that lie in files when empty.
///
/// # Errors
/// When a name is no weight in a file.
pub fn externalize(model: &Model, names: &[String]) -> Result<Option<Patch>, RuleError> {
    let refuse = |why: String| RuleError { rule: "externalize", why };
    let survey = Survey::new(&model.graph);
    let mut patch = Patch::default();
    let mut inputs = model.graph.inputs.clone();
    for name in names {
        match survey.constant(name).map(|tensor| &tensor.data) {
            Some(Data::External { .. }) => {}
            Some(Data::Inline(_)) => {
                return Err(refuse(format!("{name:?} is a small constant in the graph")));
            }
            None => return Err(refuse(format!("the graph has no weight {name:?}"))),
        }
    }
    for tensor in &model.graph.initializers {
        let wanted = names.is_empty() || names.contains(&tensor.name);
        let Some(value) = place(tensor).filter(|_| wanted && !survey.is_input(&tensor.name)) else {
            continue;
        };
        let dims = tensor.dims.iter().map(|dim| Dim::Fixed(*dim)).collect();
        inputs.push(ValueInfo { name: tensor.name.clone(), dtype: tensor.dtype, dims: Some(dims) });
        patch.remove_initializers.insert(tensor.name.clone());
        patch.metadata.push((format!("{WEIGHT_KEY}{}", tensor.name), value));
    }
    let count = patch.remove_initializers.len();
    patch.summary = format!("{count} weights are inputs of the graph");
    patch.inputs = Some(inputs);
    Ok((count > 0).then_some(patch))
}

/// The weights that [`externalize`] made inputs of `model`, each with its place.
pub fn weights(model: &Model) -> Vec<Initializer> {
    let weight = |input: &ValueInfo| {
        let key = format!("{WEIGHT_KEY}{}", input.name);
        let (_, value) = model.metadata.iter().find(|(name, _)| *name == key)?;
        let mut words = value.splitn(3, ' ');
        let (offset, length) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let data = Data::External { location: words.next()?.to_owned(), offset, length };
        let size = |dim: &Dim| if let Dim::Fixed(size) = dim { Some(*size) } else { None };
        let dims = input.dims.as_ref()?.iter().map(size).collect::<Option<_>>()?;
        Some(Initializer { name: input.name.clone(), dtype: input.dtype, dims, data })
    };
    model.graph.inputs.iter().filter_map(weight).collect()
}

/// Writes the places of `weights` into the metadata of `model`.
pub(super) fn place_weights(model: &mut Model, weights: &[Initializer]) {
    for weight in weights {
        let key = format!("{WEIGHT_KEY}{}", weight.name);
        let entry = model.metadata.iter_mut().find(|(name, _)| *name == key);
        if let (Some((_, value)), Some(place)) = (entry, place(weight)) {
            *value = place;
        }
    }
}

fn place(tensor: &Initializer) -> Option<String> {
    match &tensor.data {
        Data::External { location, offset, length } => {
            Some(format!("{offset} {length} {location}"))
        }
        Data::Inline(_) => None,
    }
}
