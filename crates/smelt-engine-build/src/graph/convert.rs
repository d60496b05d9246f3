//! Turns an ONNX graph into the plain nodes of `engine.json`.
//!
//! Constants leave the nodes and are stored beside the weights, names stay.  Knows nothing of what
//! operators do.

use std::collections::{BTreeMap, BTreeSet};

use smelt_backend::{GraphInput, GraphOutput};
use smelt_engine::graph::{AttributeFile, GraphFile, NodeFile};
use smelt_onnx::{Attribute, AttributeValue, Data, Dim, ElementType, Initializer, Model};
use smelt_tensor::dtype::Dtype;

/// A graph and the constants it needs.
pub(super) struct Converted {
    pub(super) graph: GraphFile,
    /// Every constant a node reads, in the order of their first use.
    pub(super) constants: Vec<Initializer>,
}

/// Turns an ONNX model into a graph; the error is one line.
pub(super) fn convert(model: Model) -> Result<Converted, String> {
    let mut constants: BTreeMap<String, Initializer> = BTreeMap::new();
    for tensor in model.graph.initializers {
        constants.insert(tensor.name.clone(), tensor);
    }
    let mut inputs = model.graph.inputs;
    // Old files list initializers among the inputs.
    inputs.retain(|input| !constants.contains_key(&input.name));
    let inputs = inputs.iter().map(input_file).collect::<Result<Vec<_>, _>>()?;
    if model.graph.outputs.is_empty() {
        return Err("the graph has no output".to_owned());
    }
    // What shapes the outputs have is known when the engine is tried.
    let output = |value: smelt_onnx::ValueInfo| GraphOutput { name: value.name, tried: vec![] };
    let outputs = model.graph.outputs.into_iter().map(output).collect();
    let mut nodes = Vec::new();
    for node in model.graph.nodes {
        if let Some(node) = convert_node(node, &mut constants)? {
            nodes.push(node);
        }
    }
    let products = BTreeMap::new();
    let graph = GraphFile { opset: model.opset, inputs, outputs, nodes, products, tactics: None };
    let constants = used_constants(&graph, constants);
    Ok(Converted { graph, constants })
}

/// What `engine.json` says of an input; the error is one line.
pub(crate) fn input_file(input: &smelt_onnx::ValueInfo) -> Result<GraphInput, String> {
    use ElementType::{Bf16, Bool, F16, F32, I32, I64};
    let name = input.name.clone();
    let integer = match input.dtype {
        F32 | F16 | Bf16 => false,
        I64 | I32 | Bool => true,
        other => {
            return Err(format!("input {name:?} is {other}, not f32, f16, bf16, i64, i32 or bool"));
        }
    };
    let Some(dims) = &input.dims else {
        return Err(format!("input {name:?} has no declared dimensions"));
    };
    Ok(GraphInput { name, integer, dims: dims.iter().map(fixed).collect() })
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
    let given = graph.outputs.iter().map(|output| &output.name);
    let reads = graph.nodes.iter().flat_map(|node| &node.inputs).chain(given);
    let mut seen = BTreeSet::new();
    reads.filter(|name| seen.insert(*name)).filter_map(|name| constants.remove(name)).collect()
}

/// The dtype under which a constant is stored; i32 and bool are stored as i64.
pub(super) fn stored_dtype(constant: &Initializer) -> Result<Dtype, String> {
    match constant.dtype {
        ElementType::F32 => Ok(Dtype::F32),
        ElementType::F16 => Ok(Dtype::F16),
        ElementType::Bf16 => Ok(Dtype::BF16),
        ElementType::I64 | ElementType::I32 | ElementType::Bool => Ok(Dtype::I64),
        other => Err(format!(
            "constant {:?} is {other}; the native engine takes f32, f16, bf16, i64, i32 and bool",
            constant.name
        )),
    }
}
