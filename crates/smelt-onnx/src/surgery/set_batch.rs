//! Fixes the batch: the symbol in the first dimension of the inputs becomes a number.
//!
//! The same symbol elsewhere is the same size, so it becomes that number, too.

use std::collections::BTreeSet;

use super::RuleError;
use super::patch::Patch;
use crate::model::{Dim, Model, ValueInfo};

/// Gives the symbolic first dimension of the inputs the size `size`.
///
/// # Errors
/// When no input has one, or inputs have different symbols, or `size` is 0.
pub fn set_batch(model: &Model, size: usize) -> Result<Option<Patch>, RuleError> {
    let refuse = |why: String| Err(RuleError { rule: "set-batch", why });
    if size == 0 {
        return refuse("a batch of 0 computes nothing".to_owned());
    }
    let graph = &model.graph;
    let first = |info: &ValueInfo| info.dims.as_ref().and_then(|dims| dims.first().cloned());
    let firsts: Vec<Dim> = graph.inputs.iter().filter_map(first).collect();
    let symbols: BTreeSet<&String> = firsts
        .iter()
        .filter_map(|dim| if let Dim::Symbol(s) = dim { Some(s) } else { None })
        .collect();
    let open = firsts.contains(&Dim::Unknown);
    if symbols.len() > 1 {
        return refuse(format!("the inputs begin with different symbols: {symbols:?}"));
    }
    if symbols.is_empty() && !open {
        if firsts.contains(&Dim::Fixed(size)) {
            return Ok(None);
        }
        return refuse("no input has a symbolic first dimension".to_owned());
    }
    let symbol = symbols.first().map(|symbol| Dim::Symbol((*symbol).clone()));
    let fix = |infos: &[ValueInfo], inputs: bool| -> Vec<ValueInfo> {
        let fixed = |info: &ValueInfo| {
            let mut info = info.clone();
            for (at, dim) in info.dims.iter_mut().flatten().enumerate() {
                if Some(&*dim) == symbol.as_ref() || inputs && at == 0 && *dim == Dim::Unknown {
                    *dim = Dim::Fixed(size);
                }
            }
            info
        };
        infos.iter().map(fixed).collect()
    };
    let summary = format!("the batch is {size}");
    let (inputs, outputs) = (fix(&graph.inputs, true), fix(&graph.outputs, false));
    Ok(Some(Patch { summary, inputs: Some(inputs), outputs: Some(outputs), ..Patch::default() }))
}
