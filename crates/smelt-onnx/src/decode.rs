//! Turns a model file into plain values.
//!
//! `skim` supplies the protobuf messages and the ranges of embedded weights.  What a message
//! says about itself is believed only as far as it can be held; `check` judges the rest.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::ElementType;
use crate::model::{
    Attribute, AttributeValue, Data, Dim, Graph, Initializer, Model, Node, ValueInfo,
};
use crate::proto::{self, DimensionValue, attribute_type};
use crate::skim::{Embedded, ReadFault, Skimmed, data_field, skim};

/// A model file that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read ONNX model {}: {fault}", path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: ReadFault,
}

impl Model {
    /// Reads the model file at `path`; weights stay on disk, embedded ones too.
    ///
    /// # Errors
    /// When the file is missing, truncated, no ONNX model, or uses a feature this crate does
    /// not hold.  A model that reads may still be wrong: see [`crate::check`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let fail = |fault| ReadError { path: path.to_owned(), fault };
        let own_name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Asked before opening: a pipe would keep the open waiting for a writer.
        if !std::fs::metadata(path).map_err(|error| fail(error.into()))?.is_file() {
            return Err(fail(ReadFault::NotAFile));
        }
        let file = File::open(path).map_err(|error| fail(error.into()))?;
        skim(file).and_then(|skimmed| model(skimmed, own_name)).map_err(fail)
    }
}

fn model(skimmed: Skimmed, own_name: &str) -> Result<Model, ReadFault> {
    let mut opset = None;
    let mut other_opsets = Vec::new();
    for import in skimmed.model.opset_import {
        match default_domain(import.domain) {
            domain if !domain.is_empty() => other_opsets.push((domain, import.version)),
            _ if opset.is_some_and(|version| version != import.version) => {
                return Err(unsupported("two versions of the default operator set are"));
            }
            _ => opset = Some(import.version),
        }
    }
    let mut graph = graph(skimmed.graph)?;
    for (proto, embedded) in skimmed.tensors {
        graph.initializers.push(tensor(proto, embedded, own_name)?);
    }
    Ok(Model {
        ir_version: skimmed.model.ir_version,
        opset: opset.ok_or_else(|| unsupported("models without an operator set version are"))?,
        other_opsets,
        producer: skimmed.model.producer_name,
        metadata: skimmed.model.metadata_props.into_iter().map(|e| (e.key, e.value)).collect(),
        graph,
    })
}

fn graph(proto: proto::GraphProto) -> Result<Graph, ReadFault> {
    if !proto.sparse_initializer.is_empty() {
        return Err(unsupported("sparse initializers are"));
    }
    let tensors = proto.initializer.into_iter().map(|proto| tensor(proto, None, ""));
    Ok(Graph {
        name: proto.name,
        inputs: proto.input.into_iter().map(value_info).collect::<Result<_, _>>()?,
        outputs: proto.output.into_iter().map(value_info).collect::<Result<_, _>>()?,
        nodes: proto.node.into_iter().map(node).collect::<Result<_, _>>()?,
        initializers: tensors.collect::<Result<_, _>>()?,
    })
}

fn value_info(proto: proto::ValueInfoProto) -> Result<ValueInfo, ReadFault> {
    let name = proto.name;
    let fault = |why: String| ReadFault::Value { name: name.clone(), why };
    let Some(tensor) = proto.r#type.and_then(|kind| kind.tensor_type) else {
        return Err(fault("only tensors are supported".to_owned()));
    };
    let dtype = element_type(tensor.elem_type).map_err(&fault)?;
    let dims = match tensor.shape {
        None => None,
        Some(shape) => {
            Some(shape.dim.into_iter().map(dim).collect::<Result<_, _>>().map_err(&fault)?)
        }
    };
    Ok(ValueInfo { dtype, dims, name })
}

fn dim(proto: proto::DimensionProto) -> Result<Dim, String> {
    match proto.value {
        None => Ok(Dim::Unknown),
        Some(DimensionValue::DimParam(symbol)) if symbol.is_empty() => Ok(Dim::Unknown),
        Some(DimensionValue::DimParam(symbol)) => Ok(Dim::Symbol(symbol)),
        Some(DimensionValue::DimValue(value)) => {
            usize::try_from(value).map(Dim::Fixed).map_err(|_| format!("dimension {value}"))
        }
    }
}

fn node(proto: proto::NodeProto) -> Result<Node, ReadFault> {
    let label = match proto.output.first() {
        Some(output) if proto.name.is_empty() => output.clone(),
        _ => proto.name.clone(),
    };
    let attributes = proto.attribute.into_iter().map(|proto| attribute(proto, &label));
    Ok(Node {
        attributes: attributes.collect::<Result<_, _>>()?,
        name: proto.name,
        op: proto.op_type,
        domain: default_domain(proto.domain),
        inputs: proto.input,
        outputs: proto.output,
    })
}

fn attribute(proto: proto::AttributeProto, node: &str) -> Result<Attribute, ReadFault> {
    let name = proto.name;
    let fault = |why: &str| ReadFault::Node {
        name: node.to_owned(),
        why: format!("attribute {name:?} {why}"),
    };
    let text = |bytes| String::from_utf8(bytes).map_err(|_| fault("is not UTF-8"));
    let value = match proto.r#type {
        attribute_type::FLOAT => AttributeValue::Float(proto.f.unwrap_or_default()),
        attribute_type::INT => AttributeValue::Int(proto.i.unwrap_or_default()),
        attribute_type::STRING => AttributeValue::Text(text(proto.s.unwrap_or_default())?),
        attribute_type::TENSOR => {
            let tensor_proto = proto.t.ok_or_else(|| fault("has no tensor"))?;
            AttributeValue::Tensor(tensor(*tensor_proto, None, "")?)
        }
        attribute_type::GRAPH => {
            AttributeValue::Graph(graph(*proto.g.ok_or_else(|| fault("has no graph"))?)?)
        }
        attribute_type::FLOATS => AttributeValue::Floats(proto.floats),
        attribute_type::INTS => AttributeValue::Ints(proto.ints),
        attribute_type::STRINGS => {
            AttributeValue::Texts(proto.strings.into_iter().map(text).collect::<Result<_, _>>()?)
        }
        other => return Err(fault(&format!("has type {other}, which is not supported"))),
    };
    Ok(Attribute { name, value })
}

fn tensor(
    proto: proto::TensorProto,
    embedded: Option<Embedded>,
    own_name: &str,
) -> Result<Initializer, ReadFault> {
    let fault = |why: String| ReadFault::Tensor { name: proto.name.clone(), why };
    let dtype = element_type(proto.data_type).map_err(fault)?;
    let dims: Vec<usize> = proto
        .dims
        .iter()
        .map(|dim| usize::try_from(*dim).map_err(|_| fault(format!("dimension {dim}"))))
        .collect::<Result<_, _>>()?;
    let data = if proto.data_location == Some(proto::DATA_LOCATION_EXTERNAL) {
        external(&proto.external_data, dtype, &dims).map_err(fault)?
    } else if let Some(range) = embedded {
        left_in_file(range, dtype, own_name).map_err(fault)?
    } else {
        Data::Inline(inline(&proto, dtype))
    };
    Ok(Initializer { name: proto.name, dtype, dims, data })
}

/// The byte range an `external_data` list describes; a missing length is the tensor's own.
fn external(
    entries: &[proto::StringStringEntryProto],
    dtype: ElementType,
    dims: &[usize],
) -> Result<Data, String> {
    let find = |key: &str| entries.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str| match find(key) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("external data {key} {text:?} is not a number of bytes")),
        },
    };
    let location = find("location").ok_or("external data has no location")?.to_owned();
    let length = match number("length")? {
        Some(length) => length,
        None => dtype.byte_len(dims).ok_or("its shape overflows")? as u64,
    };
    Ok(Data::External { location, offset: number("offset")?.unwrap_or(0), length })
}

/// The range of a weight embedded in the model file itself.
fn left_in_file(range: Embedded, dtype: ElementType, own_name: &str) -> Result<Data, String> {
    let fits = match range.field {
        data_field::FLOAT => dtype == ElementType::F32,
        data_field::DOUBLE => dtype == ElementType::F64,
        _ => true,
    };
    if !fits {
        return Err(format!("field {} cannot hold {dtype}", range.field));
    }
    if own_name.is_empty() {
        return Err("the model's file name is not UTF-8; rename the file".to_owned());
    }
    Ok(Data::External { location: own_name.to_owned(), offset: range.offset, length: range.length })
}

/// The bytes of a tensor held in the message, whichever field holds them.
///
/// Narrow types lie one element to an `int32_data` entry, nibbles two, and the low bytes of
/// the entry are the element (`onnx.proto3`, comments of `TensorProto`).
fn inline(proto: &proto::TensorProto, dtype: ElementType) -> Vec<u8> {
    use ElementType::*;
    if let Some(raw) = proto.raw_data.as_ref().filter(|raw| !raw.is_empty()) {
        return raw.clone();
    }
    match dtype {
        F32 => proto.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        F64 => proto.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        I64 => proto.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        U64 => proto.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        U32 => proto.uint64_data.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        I32 => proto.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        F16 | Bf16 | I16 | U16 => {
            proto.int32_data.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect()
        }
        I8 | U8 | Bool | I4 | U4 => proto.int32_data.iter().map(|v| *v as u8).collect(),
    }
}

fn element_type(number: i32) -> Result<ElementType, String> {
    ElementType::from_number(number)
        .ok_or_else(|| format!("element type {number} is not supported"))
}

/// `ai.onnx` is the long spelling of the default domain.
fn default_domain(domain: String) -> String {
    if domain == "ai.onnx" { String::new() } else { domain }
}

fn unsupported(what: &str) -> ReadFault {
    ReadFault::Unsupported { what: what.to_owned() }
}
