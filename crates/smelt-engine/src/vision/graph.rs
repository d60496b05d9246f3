//! Holds the graph an engine executes, as `engine.json` keeps it.
//!
//! An ONNX graph becomes plain nodes here: constants leave the nodes and are stored beside the
//! weights, names stay.  Knows nothing of what operators do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use smelt_model::dtype::Dtype;
use smelt_onnx::{Attribute, AttributeValue, Data, Dim, ElementType, Initializer, Model};

/// A graph with one input and one output, in execution order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GraphFile {
    /// Version of the default operator set; some operators changed between versions.
    pub(crate) opset: i64,
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) nodes: Vec<NodeFile>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeFile {
    pub(crate) name: String,
    pub(crate) op: String,
    /// An empty name is an optional input left out.
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<String, AttributeFile>,
}

/// What an attribute holds.  Floats are f64 because JSON then keeps every f32 exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AttributeFile {
    /// An integer or flag.
    Int(i64),
    /// A float.
    Float(f64),
    /// Integers.
    Ints(Vec<i64>),
    /// A text.
    Text(String),
}

impl NodeFile {
    /// How messages call the node.
    pub(crate) fn title(&self) -> String {
        format!("node {:?} ({})", self.name, self.op)
    }
}

/// What a graph reads and gives, and the constants it needs.
pub(crate) struct Converted {
    pub(crate) graph: GraphFile,
    /// Declared dimensions of the input, `None` where they may vary.
    pub(crate) input_dims: Vec<Option<usize>>,
    /// Every constant a node reads, in the order of their first use.
    pub(crate) constants: Vec<Initializer>,
}

/// Turns an ONNX model into a graph; the error is one line.
pub(crate) fn convert(model: Model) -> Result<Converted, String> {
    let mut constants: BTreeMap<String, Initializer> = BTreeMap::new();
    for tensor in model.graph.initializers {
        constants.insert(tensor.name.clone(), tensor);
    }
    let mut inputs = model.graph.inputs;
    // Old files list initializers among the inputs.
    inputs.retain(|input| !constants.contains_key(&input.name));
    let names = |values: &[smelt_onnx::ValueInfo]| {
        values.iter().map(|value| value.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let [input] = &inputs[..] else {
        return Err(format!("a vision graph has one input, this one has [{}]", names(&inputs)));
    };
    let [output] = &model.graph.outputs[..] else {
        let found = names(&model.graph.outputs);
        return Err(format!("a vision graph has one output, this one has [{found}]"));
    };
    if !matches!(input.dtype, ElementType::F32 | ElementType::F16 | ElementType::Bf16) {
        return Err(format!("input {:?} is {}, not f32, f16 or bf16", input.name, input.dtype));
    }
    let input_dims = input.dims.as_deref().unwrap_or_default().iter().map(fixed).collect();
    let (input, output) = (input.name.clone(), output.name.clone());
    let mut nodes = Vec::new();
    for node in model.graph.nodes {
        if let Some(node) = convert_node(node, &mut constants)? {
            nodes.push(node);
        }
    }
    let graph = GraphFile { opset: model.opset, input, output, nodes };
    let constants = used_constants(&graph, constants);
    Ok(Converted { graph, input_dims, constants })
}

fn fixed(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Fixed(size) => Some(*size),
        Dim::Symbol(_) | Dim::Unknown => None,
    }
}

/// The node, or `None` where it was a constant that is now among `constants`.
fn convert_node(
    node: smelt_onnx::Node,
    constants: &mut BTreeMap<String, Initializer>,
) -> Result<Option<NodeFile>, String> {
    let title = format!("node {:?} ({})", node.name, node.op);
    if !node.domain.is_empty() && node.domain != "ai.onnx" {
        return Err(format!("{title}: operators of domain {:?} are not supported", node.domain));
    }
    if node.op == "Constant" {
        let output = node.outputs.first().cloned().unwrap_or_default();
        let constant = constant_of(&node.attributes, output.clone())
            .ok_or_else(|| format!("{title}: has no tensor, float or integer value"))?;
        constants.insert(output, constant);
        return Ok(None);
    }
    let mut converted = NodeFile {
        name: node.name,
        op: node.op,
        inputs: node.inputs,
        outputs: node.outputs,
        attributes: BTreeMap::new(),
    };
    for Attribute { name, value } in node.attributes {
        let value = match value {
            AttributeValue::Int(value) => AttributeFile::Int(value),
            AttributeValue::Float(value) if value.is_finite() => AttributeFile::Float(value.into()),
            AttributeValue::Ints(values) => AttributeFile::Ints(values),
            AttributeValue::Text(text) => AttributeFile::Text(text),
            // The only tensor attribute besides Constant's: it becomes a second input.
            AttributeValue::Tensor(tensor) if converted.op == "ConstantOfShape" => {
                let own = format!("{}#value", converted.outputs.join(","));
                converted.inputs.push(own.clone());
                constants.insert(own.clone(), Initializer { name: own, ..tensor });
                continue;
            }
            _ => return Err(format!("{title}: attribute {name:?} is of an unsupported type")),
        };
        converted.attributes.insert(name, value);
    }
    Ok(Some(converted))
}

fn constant_of(attributes: &[Attribute], name: String) -> Option<Initializer> {
    let [Attribute { value, .. }] = attributes else { return None };
    let floats = |dims: Vec<usize>, values: &[f32]| {
        (ElementType::F32, dims, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    };
    let ints = |dims: Vec<usize>, values: &[i64]| {
        (ElementType::I64, dims, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    };
    let (dtype, dims, bytes): (_, _, Vec<u8>) = match value {
        AttributeValue::Tensor(tensor) => return Some(Initializer { name, ..tensor.clone() }),
        AttributeValue::Float(value) => floats(vec![], &[*value]),
        AttributeValue::Floats(values) => floats(vec![values.len()], values),
        AttributeValue::Int(value) => ints(vec![], &[*value]),
        AttributeValue::Ints(values) => ints(vec![values.len()], values),
        AttributeValue::Text(_) | AttributeValue::Texts(_) | AttributeValue::Graph(_) => {
            return None;
        }
    };
    Some(Initializer { name, dtype, dims, data: Data::Inline(bytes) })
}

fn used_constants(
    graph: &GraphFile,
    mut constants: BTreeMap<String, Initializer>,
) -> Vec<Initializer> {
    let reads = graph.nodes.iter().flat_map(|node| &node.inputs).chain([&graph.output]);
    let mut seen = BTreeSet::new();
    reads.filter(|name| seen.insert(*name)).filter_map(|name| constants.remove(name)).collect()
}

/// The dtype under which a constant is stored; i32 is stored as i64.
pub(crate) fn stored_dtype(constant: &Initializer) -> Result<Dtype, String> {
    match constant.dtype {
        ElementType::F32 => Ok(Dtype::F32),
        ElementType::F16 => Ok(Dtype::F16),
        ElementType::Bf16 => Ok(Dtype::BF16),
        ElementType::I64 | ElementType::I32 => Ok(Dtype::I64),
        other => Err(format!(
            "constant {:?} is {other}; the native engine takes f32, f16, bf16, i64 and i32",
            constant.name
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_survives_json() {
        let mut random = crate::kernels::testing::Random::new(9);
        for _ in 0..20_000 {
            let value = f32::from_bits(random.next() as u32);
            if !value.is_finite() {
                continue;
            }
            let text = serde_json::to_string(&AttributeFile::Float(value.into())).unwrap();
            let AttributeFile::Float(back) = serde_json::from_str(&text).unwrap() else { panic!() };
            assert_eq!((back as f32).to_bits(), value.to_bits(), "{text}");
        }
    }
}
