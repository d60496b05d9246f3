//! Rounds the weight of the vocabulary product to 8 or 4 bits, with a DequantizeLinear before it.
//!
//! The head is found as `split-head` finds it, whole or in parts.  int8 has a scale for every
//! token; int4 has one for every block of hidden channels, which operator set 21 can say.
//! Zero points are left out: TensorRT takes no others than zero.

use std::collections::{BTreeMap, BTreeSet};

use super::RuleError;
use super::head::{self, Weight};
use super::new_file::NewFile;
use super::patch::{Making, Patch};
use super::quantise::{Quantisation, ROW_BYTES_MAX};
use crate::ElementType;
use crate::model::{Attribute, Initializer, Model, Node};
use crate::survey::Survey;

/// First operator set whose DequantizeLinear has an axis.
const OPSET_AXIS: i64 = 13;
/// First whose DequantizeLinear gives the type of its scale, not only f32.
const OPSET_FLOAT_TYPES: i64 = 19;
/// First with 4-bit types and blocks.
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
    let mut rounding = Rounding {
        survey: &survey,
        scheme,
        opset: model.opset,
        file: NewFile::beside(model),
        real: BTreeMap::new(),
        taken: BTreeSet::new(),
        patch: Patch::default(),
    };
    for product in products {
        rounding.product(product)?;
    }
    let saved: usize = rounding.real.len();
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

struct Rounding<'s, 'm> {
    survey: &'s Survey<'m>,
    scheme: HeadScheme,
    opset: i64,
    file: NewFile,
    /// The value that stands for a stored weight from now on.
    real: BTreeMap<&'m str, String>,
    taken: BTreeSet<String>,
    patch: Patch,
}

impl Rounding<'_, '_> {
    fn product(&mut self, product: usize) -> Result<(), String> {
        let nodes = &self.survey.graph.nodes;
        let weight = Weight::find(self.survey, product)?;
        let tensor = weight.tensor;
        if !matches!(tensor.dtype, ElementType::F32 | ElementType::F16 | ElementType::Bf16) {
            return Err(format!("the head's weight {:?} is {} already", tensor.name, tensor.dtype));
        }
        let mut name = match self.real.get(tensor.name.as_str()) {
            Some(name) => name.clone(),
            None => {
                let real = self.round(&weight, product)?;
                self.real.insert(&tensor.name, real.clone());
                real
            }
        };
        for at in &weight.chain {
            let mut copy = nodes[*at].clone();
            copy.inputs[0] = name;
            name = self.free_name(&format!("{}.rounded", copy.outputs[0]));
            copy.outputs[0].clone_from(&name);
            self.patch.insert_nodes.push((product, copy));
        }
        let mut node = nodes[product].clone();
        node.inputs[1] = name;
        self.patch.insert_nodes.push((product, node));
        self.patch.remove_nodes.insert(product);
        weight.drop_unread(self.survey, product, &mut self.patch);
        Ok(())
    }

    /// Brings codes, scales and the node that joins them; gives the name of its result.
    fn round(&mut self, weight: &Weight<'_>, product: usize) -> Result<String, String> {
        let tensor = weight.tensor;
        let hidden = tensor.dims[1 - weight.axis];
        let row_bytes = (tensor.dims[1].saturating_mul(tensor.dtype.bits())).div_ceil(8);
        if row_bytes > ROW_BYTES_MAX || hidden == 0 || weight.vocab() == 0 {
            return Err(format!("{:?} has shape {:?}", tensor.name, tensor.dims));
        }
        let (bits, code_type, block) = match self.scheme {
            HeadScheme::Int8 => ("int8", ElementType::I8, hidden),
            HeadScheme::Int4(block) => ("int4", ElementType::I4, block),
        };
        let scale_type =
            if self.opset < OPSET_FLOAT_TYPES { ElementType::F32 } else { tensor.dtype };
        let scale_dims = match self.scheme {
            HeadScheme::Int8 => vec![weight.vocab()],
            HeadScheme::Int4(_) => {
                let mut dims = tensor.dims.clone();
                dims[1 - weight.axis] = hidden.div_ceil(block);
                dims
            }
        };
        let codes = format!("{}_{bits}", tensor.name);
        let codes = self.tensor(&codes, code_type, tensor.dims.clone())?;
        let scale = self.tensor(&format!("{}_scale", tensor.name), scale_type, scale_dims)?;
        let mut attributes = match self.scheme {
            HeadScheme::Int8 => vec![Attribute::int("axis", weight.axis as i64)],
            HeadScheme::Int4(_) => vec![
                Attribute::int("axis", 1 - weight.axis as i64),
                Attribute::int("block_size", block as i64),
            ],
        };
        let mut real = self.free_name(&format!("{}_real", tensor.name));
        let inputs = vec![codes.name.clone(), scale.name.clone()];
        self.insert(product, "DequantizeLinear", inputs, &real, attributes);
        if scale_type != tensor.dtype {
            attributes = vec![Attribute::int("to", tensor.dtype.number().into())];
            let narrow = self.free_name(&format!("{}_{}", tensor.name, tensor.dtype));
            self.insert(product, "Cast", vec![real], &narrow, attributes);
            real = narrow;
        }
        let along_rows = weight.axis == 0;
        let from = tensor.clone();
        let making = Quantisation { from, codes, scale, along_rows, block };
        self.patch.makings.push(Making::Quantised(making));
        Ok(real)
    }

    fn tensor(
        &mut self,
        name: &str,
        dtype: ElementType,
        dims: Vec<usize>,
    ) -> Result<Initializer, String> {
        let name = self.free_name(name);
        let tensor = self.file.tensor(name, dtype, dims).ok_or("the head's size overflows")?;
        self.patch.add_initializers.push(tensor.clone());
        Ok(tensor)
    }

    fn insert(
        &mut self,
        product: usize,
        op: &str,
        inputs: Vec<String>,
        output: &str,
        attributes: Vec<Attribute>,
    ) {
        let node = Node {
            name: output.to_owned(),
            op: op.to_owned(),
            inputs,
            outputs: vec![output.to_owned()],
            attributes,
            ..Node::default()
        };
        self.patch.insert_nodes.push((product, node));
    }

    fn free_name(&mut self, base: &str) -> String {
        let name = self.survey.free_name_besides(base, &self.taken);
        self.taken.insert(name.clone());
        name
    }
}
