//! Rounds the weight of the vocabulary product to 8 or 4 bits, with a DequantizeLinear before it.
//!
//! The head is found as `split-head` finds it, whole or in parts.  int8 has a scale for every
//! token; int4 has one for every block of hidden channels, which operator set 21 can say.
//! Zero points are left out: TensorRT takes no others than zero.

use std::collections::BTreeSet;

use super::RuleError;
use super::head::{self, Weight};
use super::patch::{Making, Patch};
use super::rounding::{OPSET_AXIS, Rounding};
use crate::model::{Initializer, Model};
use crate::survey::Survey;

/// First operator set with 4-bit types and blocks.
const OPSET_BLOCKS: i64 = 21;

/// How a head is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadScheme {
    /// 8 bits, a scale for every token.
    Int8,
    /// 4 bits, a scale for this many hidden channels of a token.
    Int4(usize),
}

impl HeadScheme {
    /// Every scheme with its word.
    pub const ALL: [(&str, Self); 4] = [
        ("int8", Self::Int8),
        ("int4-g32", Self::Int4(32)),
        ("int4-g64", Self::Int4(64)),
        ("int4-g128", Self::Int4(128)),
    ];

    /// The scheme of that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(name, _)| *name == word).map(|(_, scheme)| scheme)
    }
}

/// Rounds the weight behind `output` (`logits`, or the only output, when not named).
///
/// # Errors
/// When the output or a float weight behind it is not found, or the operator set is too old.
pub fn quantize_head(
    model: &Model,
    output: Option<&str>,
    scheme: HeadScheme,
) -> Result<Option<Patch>, RuleError> {
    patch(model, output, scheme).map(Some).map_err(|why| RuleError { rule: "quantize-head", why })
}

fn patch(model: &Model, output: Option<&str>, scheme: HeadScheme) -> Result<Patch, String> {
    let needed = if scheme == HeadScheme::Int8 { OPSET_AXIS } else { OPSET_BLOCKS };
    if model.opset < needed {
        let opset = model.opset;
        return Err(format!(
            "it needs operator set {needed} and the model has {opset}; apply to-opset {needed} first"
        ));
    }
    let survey = Survey::new(&model.graph);
    let products = head::products(&survey, head::output(&survey, output)?)?;
    let products: BTreeSet<usize> = products.into_iter().collect();
    let mut rounding = Rounding::new(model, &survey);
    for product in products {
        let weight = Weight::find(&survey, product)?;
        if !weight.tensor.dtype.is_float() {
            let Initializer { name, dtype, .. } = weight.tensor;
            return Err(format!("the head's weight {name:?} is {dtype} already"));
        }
        rounding.product(product, survey.graph.nodes[product].clone(), &weight, scheme)?;
    }
    let saved = rounding.count();
    let mut patch = rounding.patch;
    let kept = patch.makings.iter().filter(|making| match making {
        Making::Quantised(q) => !patch.remove_initializers.contains(&q.from.name),
        Making::Columns(_) => false,
    });
    let kept = match kept.count() {
        0 => String::new(),
        count => format!("; {count} stay as they are, too, since other nodes read them"),
    };
    patch.summary = format!("{saved} weights of the head are rounded{kept}");
    Ok(patch)
}
