//! Rounds stored weights of products on behalf of rules: codes, scales and the DequantizeLinear that joins them.
//!
//! A weight that several products read is rounded once.  Knows nothing of which products a rule is about.

use std::collections::{BTreeMap, BTreeSet};

use super::head::Weight;
use super::new_file::NewFile;
use super::patch::{Making, Patch};
use super::quantise::{Quantisation, ROW_BYTES_MAX};
use super::quantize_head::HeadScheme;
use crate::ElementType;
use crate::model::{Attribute, Data, Initializer, Model, Node};
use crate::survey::Survey;

/// First operator set whose QuantizeLinear and DequantizeLinear have an axis.
pub(super) const OPSET_AXIS: i64 = 13;
/// First where they take the type of their scale, not only f32.
pub(super) const OPSET_FLOAT_TYPES: i64 = 19;

/// A patch that rounds weights.
pub(super) struct Rounding<'s, 'm> {
    survey: &'s Survey<'m>,
    opset: i64,
    file: NewFile,
    /// The value that stands for a stored weight from now on.
    real: BTreeMap<&'m str, String>,
    taken: BTreeSet<String>,
    pub(super) patch: Patch,
}

impl<'s, 'm> Rounding<'s, 'm> {
    pub(super) fn new(model: &Model, survey: &'s Survey<'m>) -> Self {
        Self {
            survey,
            opset: model.opset,
            file: NewFile::beside(model),
            real: BTreeMap::new(),
            taken: BTreeSet::new(),
            patch: Patch::default(),
        }
    }

    /// How many weights are rounded.
    pub(super) fn count(&self) -> usize {
        self.real.len()
    }

    /// Has `node`, the copy of product `at`, read the rounded `weight` as its second input, and stand for the product.
    pub(super) fn product(
        &mut self,
        at: usize,
        mut node: Node,
        weight: &Weight<'m>,
        scheme: HeadScheme,
    ) -> Result<(), String> {
        let tensor = weight.tensor;
        let mut name = match self.real.get(tensor.name.as_str()) {
            Some(name) => name.clone(),
            None => {
                let real = self.round(weight, scheme, at, node.op == "Gemm")?;
                self.real.insert(&tensor.name, real.clone());
                real
            }
        };
        for step in &weight.chain {
            let mut copy = self.survey.graph.nodes[*step].clone();
            copy.inputs[0] = name;
            name = self.free_name(&format!("{}.rounded", copy.outputs[0]));
            copy.outputs[0].clone_from(&name);
            self.patch.insert_nodes.push((at, copy));
        }
        node.inputs[1] = name;
        self.patch.insert_nodes.push((at, node));
        self.patch.remove_nodes.insert(at);
        weight.drop_unread(self.survey, at, &mut self.patch);
        Ok(())
    }

    /// Brings codes, scales and the node that joins them; gives the name of its result.  ONNX Runtime 1.23 joins a `Gemm` with them,
    /// and refuses what it made where zero points of bytes are not as many as scales, so these are told for it.
    fn round(
        &mut self,
        weight: &Weight<'_>,
        scheme: HeadScheme,
        before: usize,
        is_of_gemm: bool,
    ) -> Result<String, String> {
        let tensor = weight.tensor;
        let from = weight.matrix();
        let hidden = from.dims[1 - weight.axis];
        let row_bytes = (from.dims[1].saturating_mul(from.dtype.bits())).div_ceil(8);
        if row_bytes > ROW_BYTES_MAX || hidden == 0 || from.dims[weight.axis] == 0 {
            return Err(format!("{:?} has shape {:?}", tensor.name, tensor.dims));
        }
        let (bits, code_type, block) = match scheme {
            HeadScheme::Int8 => ("int8", ElementType::I8, hidden),
            HeadScheme::Int4(block) => ("int4", ElementType::I4, block),
        };
        let scale_type =
            if self.opset < OPSET_FLOAT_TYPES { ElementType::F32 } else { tensor.dtype };
        let scale_dims = match scheme {
            HeadScheme::Int8 => vec![from.dims[weight.axis]],
            HeadScheme::Int4(_) => {
                let mut dims = tensor.dims.clone();
                dims[1 - weight.axis] = hidden.div_ceil(block);
                dims
            }
        };
        let codes = format!("{}_{bits}", tensor.name);
        let codes = self.tensor(&codes, code_type, tensor.dims.clone())?;
        let scale = self.tensor(&format!("{}_scale", tensor.name), scale_type, scale_dims)?;
        let mut attributes = match scheme {
            HeadScheme::Int8 => vec![Attribute::int("axis", weight.axis as i64)],
            HeadScheme::Int4(_) => vec![
                Attribute::int("axis", 1 - weight.axis as i64),
                Attribute::int("block_size", block as i64),
            ],
        };
        let mut real = self.free_name(&format!("{}_real", tensor.name));
        let mut inputs = vec![codes.name.clone(), scale.name.clone()];
        if is_of_gemm && scheme == HeadScheme::Int8 {
            inputs.push(self.zeros(&format!("{}_zero", tensor.name), scale.dims.clone()));
        }
        self.insert(before, "DequantizeLinear", inputs, &real, attributes);
        if scale_type != tensor.dtype {
            attributes = vec![Attribute::int("to", tensor.dtype.number().into())];
            let narrow = self.free_name(&format!("{}_{}", tensor.name, tensor.dtype));
            self.insert(before, "Cast", vec![real], &narrow, attributes);
            real = narrow;
        }
        let along_rows = weight.axis == 0;
        let making = Quantisation { from, codes, scale, along_rows, block };
        self.patch.makings.push(Making::Quantised(making));
        Ok(real)
    }

    /// Brings zero points of bytes, all of them zero.
    fn zeros(&mut self, name: &str, dims: Vec<usize>) -> String {
        let name = self.free_name(name);
        let data = Data::Inline(vec![0; dims.iter().product()]);
        let tensor = Initializer { name: name.clone(), dtype: ElementType::I8, dims, data };
        self.patch.add_initializers.push(tensor);
        name
    }

    fn tensor(
        &mut self,
        name: &str,
        dtype: ElementType,
        dims: Vec<usize>,
    ) -> Result<Initializer, String> {
        let name = self.free_name(name);
        let tensor = self.file.tensor(name, dtype, dims).ok_or("the weight's size overflows")?;
        self.patch.add_initializers.push(tensor.clone());
        Ok(tensor)
    }

    /// Brings a node that stands before node `before`.
    pub(super) fn insert(
        &mut self,
        before: usize,
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
        self.patch.insert_nodes.push((before, node));
    }

    pub(super) fn free_name(&mut self, base: &str) -> String {
        let name = self.survey.free_name_besides(base, &self.taken);
        self.taken.insert(name.clone());
        name
    }
}
