//! Decides what becomes of each tensor of a language model.
//!
//! A checkpoint's tensors and the options come in, a list in the order of the file goes out.
//! Reads no weights.

use super::glob;
use super::{Options, QuantizeError};
use crate::checkpoint::{Checkpoint, ORDER_SUFFIX, ZERO_SUFFIX, is_linear, scale_name};
use crate::decoder::{EMBEDDING, LM_HEAD};
use crate::dtype::Dtype;
use crate::model::ModelPart;
use crate::safetensors::TensorSpec;
use crate::scheme::{IntGrid, Scheme};

/// One tensor of the result: where it comes from and what happens to it.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The tensor of the checkpoint it is made of.
    pub(super) source: String,
    pub(super) name: String,
    /// Its type as stored in the checkpoint.
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// [`Scheme::None`] for what keeps its bytes.
    pub(super) scheme: Scheme,
    /// Whether its columns are stored in another order.
    pub(super) is_ordered: bool,
}

impl Target {
    /// The integers it becomes, if any.
    pub(super) fn grid(&self) -> Option<IntGrid> {
        self.scheme.grid()
    }

    /// The entries this tensor makes in the table: itself, and what belongs to its integers.
    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        let spec = |name, dtype, shape| TensorSpec { name, dtype, shape };
        let Some(grid) = self.grid() else {
            return vec![spec(self.name.clone(), self.dtype, self.shape.clone())];
        };
        let (rows, width) = (self.shape[0], self.shape[1]);
        let quants = if grid.bits == 4 { Dtype::U8 } else { Dtype::I8 };
        let groups = grid.groups(width);
        let scales = if grid.group.is_none() { Dtype::F32 } else { Dtype::F16 };
        let scales_of = if groups == 1 { vec![rows] } else { vec![rows, groups] };
        let mut specs = vec![
            spec(self.name.clone(), quants, vec![rows, grid.row_bytes(width)]),
            spec(scale_name(&self.name), scales, scales_of),
        ];
        if grid.has_zero {
            specs.push(spec(format!("{}{ZERO_SUFFIX}", self.name), Dtype::U8, vec![rows, groups]));
        }
        if self.is_ordered {
            specs.push(spec(format!("{}{ORDER_SUFFIX}", self.name), Dtype::I32, vec![width]));
        }
        specs
    }
}

/// The tensors of the result, in the order of the file.
///
/// A tied head that gets integers is a copy of the embedding; one that does not is left out.
pub(super) fn targets(
    ckpt: &Checkpoint,
    options: &Options<'_>,
) -> Result<Vec<Target>, QuantizeError> {
    let tensors = ckpt.model().tensors(&[ModelPart::Llm, ModelPart::Head]);
    check_patterns(&tensors, options)?;
    let mut targets = Vec::new();
    for (name, shape) in tensors {
        let scheme = scheme_of(&name, options);
        let is_tied = name == LM_HEAD && !ckpt.has_lm_head();
        if is_tied && scheme == Scheme::None {
            continue;
        }
        let source = if is_tied { EMBEDDING.to_owned() } else { name.clone() };
        if scheme == Scheme::None {
            // What another tool packed goes as it is, with its scales, zeros and order.
            targets.extend(ckpt.parts(&source)?.into_iter().map(|part| Target {
                source: part.name.clone(),
                name: format!("{name}{}", &part.name[source.len()..]),
                dtype: part.dtype,
                shape: part.shape.clone(),
                scheme,
                is_ordered: false,
            }));
            continue;
        }
        let dtype = ckpt.dtype(&source)?;
        let has_groups = scheme.grid().is_some_and(|grid| grid.group.is_some());
        let is_ordered = options.method.reorders() && has_groups && name != EMBEDDING;
        targets.push(Target { source, name, dtype, shape, scheme, is_ordered });
    }
    Ok(targets)
}

/// The scheme of the tensor `name` where no pattern excludes it.
fn wanted(name: &str, options: &Options<'_>) -> Scheme {
    match name {
        LM_HEAD => options.head(),
        EMBEDDING => options.embeddings(),
        _ if is_linear(name) => options.scheme,
        _ => Scheme::None,
    }
}

fn scheme_of(name: &str, options: &Options<'_>) -> Scheme {
    let is_excluded = options.exclude.iter().any(|pattern| glob::matches(pattern, name));
    if is_excluded { Scheme::None } else { wanted(name, options) }
}

/// A pattern that keeps nothing from being rounded is a mistake.
fn check_patterns(
    tensors: &[(String, Vec<usize>)],
    options: &Options<'_>,
) -> Result<(), QuantizeError> {
    let rounded = tensors.iter().filter(|(name, _)| wanted(name, options) != Scheme::None);
    let keeps = |pattern: &&String| rounded.clone().any(|(name, _)| glob::matches(pattern, name));
    match options.exclude.iter().find(|pattern| !keeps(pattern)) {
        Some(pattern) => {
            let example =
                rounded.clone().next().map_or("none", |(name, _)| name.as_str()).to_owned();
            Err(QuantizeError::IdlePattern { pattern: pattern.clone(), example })
        }
        None => Ok(()),
    }
}
