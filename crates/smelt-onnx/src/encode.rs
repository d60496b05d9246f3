//! Writes plain values as a model file.
//!
//! The inverse of `decode`: equal models give equal bytes.  External data is referred to,
//! not copied; `external` writes it.

use std::io;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::model::{
    Attribute, AttributeValue, Data, Dim, Graph, Initializer, Model, Node, ValueInfo,
};
use crate::proto::{self, DimensionValue, attribute_type};
use crate::skim::PROTOBUF_BYTES_MAX;

/// Name of the model file in its directory.
pub const MODEL_FILE: &str = "model.onnx";

/// A model that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The operating system refused.
    #[error("cannot write ONNX model {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Inline tensors make the file longer than a protobuf may be.
    #[error(
        "cannot write an ONNX model of {bytes} bytes: protobuf's limit is 2 GiB; move weights to external data"
    )]
    TooLarge {
        /// Bytes the file would have.
        bytes: usize,
    },
    /// A weight still lies in the file that would be overwritten.
    #[error(
        "cannot write {file}: tensor {name:?} lies inside a file of that name; copy it to external data first"
    )]
    Overwrites {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
    },
}

/// The file of `model`, which is one or a directory with a [`MODEL_FILE`], and the directory in which its weights lie.
pub fn located(model: &Path) -> (PathBuf, PathBuf) {
    let file = if model.is_dir() { model.join(MODEL_FILE) } else { model.to_owned() };
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new(".")).to_owned();
    (file, dir)
}

impl Model {
    /// Writes the model as [`MODEL_FILE`] in `dir`; its external data must be written there
    /// too.  Equal models give equal bytes.
    ///
    /// # Errors
    /// When a weight lies in the file to be overwritten, the file would be over 2 GiB, or it
    /// cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), WriteError> {
        self.write_as(dir, MODEL_FILE)
    }

    /// Writes the model as `file` in `dir`, as [`Model::write`] does: for models that share their
    /// external data.
    ///
    /// # Errors
    /// Those of [`Model::write`].
    pub fn write_as(&self, dir: &Path, file: &str) -> Result<(), WriteError> {
        for tensor in &self.graph.initializers {
            if matches!(&tensor.data, Data::External { location, .. } if location == file) {
                let (file, name) = (file.to_owned(), tensor.name.clone());
                return Err(WriteError::Overwrites { file, name });
            }
        }
        let proto = model(self);
        let bytes = proto.encoded_len();
        if bytes as u64 > PROTOBUF_BYTES_MAX {
            return Err(WriteError::TooLarge { bytes });
        }
        let path = dir.join(file);
        std::fs::write(&path, proto.encode_to_vec())
            .map_err(|source| WriteError::Io { path, source })
    }
}

fn model(model: &Model) -> proto::ModelProto {
    let default = [(String::new(), model.opset)];
    let opsets = default.iter().chain(&model.other_opsets);
    proto::ModelProto {
        ir_version: model.ir_version,
        producer_name: model.producer.clone(),
        graph: Some(graph(&model.graph)),
        opset_import: opsets
            .map(|(domain, version)| proto::OperatorSetIdProto {
                domain: domain.clone(),
                version: *version,
            })
            .collect(),
        metadata_props: model.metadata.iter().map(|(key, value)| entry(key, value)).collect(),
    }
}

fn graph(graph: &Graph) -> proto::GraphProto {
    proto::GraphProto {
        node: graph.nodes.iter().map(node).collect(),
        name: graph.name.clone(),
        initializer: graph.initializers.iter().map(tensor).collect(),
        input: graph.inputs.iter().map(value_info).collect(),
        output: graph.outputs.iter().map(value_info).collect(),
        sparse_initializer: Vec::new(),
    }
}

fn value_info(value: &ValueInfo) -> proto::ValueInfoProto {
    let shape = value
        .dims
        .as_ref()
        .map(|dims| proto::TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = proto::TensorTypeProto { elem_type: value.dtype.number(), shape };
    proto::ValueInfoProto {
        name: value.name.clone(),
        r#type: Some(proto::TypeProto { tensor_type: Some(tensor_type) }),
    }
}

fn dim(dim: &Dim) -> proto::DimensionProto {
    let value = match dim {
        Dim::Fixed(size) => Some(DimensionValue::DimValue(*size as i64)),
        Dim::Symbol(symbol) => Some(DimensionValue::DimParam(symbol.clone())),
        Dim::Unknown => None,
    };
    proto::DimensionProto { value }
}

fn node(node: &Node) -> proto::NodeProto {
    proto::NodeProto {
        input: node.inputs.clone(),
        output: node.outputs.clone(),
        name: node.name.clone(),
        op_type: node.op.clone(),
        attribute: node.attributes.iter().map(attribute).collect(),
        domain: node.domain.clone(),
    }
}

fn attribute(attribute: &Attribute) -> proto::AttributeProto {
    let mut proto = proto::AttributeProto { name: attribute.name.clone(), ..Default::default() };
    proto.r#type = match &attribute.value {
        AttributeValue::Float(value) => {
            proto.f = Some(*value);
            attribute_type::FLOAT
        }
        AttributeValue::Int(value) => {
            proto.i = Some(*value);
            attribute_type::INT
        }
        AttributeValue::Text(value) => {
            proto.s = Some(value.clone().into_bytes());
            attribute_type::STRING
        }
        AttributeValue::Tensor(value) => {
            proto.t = Some(Box::new(tensor(value)));
            attribute_type::TENSOR
        }
        AttributeValue::Graph(value) => {
            proto.g = Some(Box::new(graph(value)));
            attribute_type::GRAPH
        }
        AttributeValue::Floats(values) => {
            proto.floats = values.clone();
            attribute_type::FLOATS
        }
        AttributeValue::Ints(values) => {
            proto.ints = values.clone();
            attribute_type::INTS
        }
        AttributeValue::Texts(values) => {
            proto.strings = values.iter().map(|value| value.clone().into_bytes()).collect();
            attribute_type::STRINGS
        }
    };
    proto
}

fn tensor(tensor: &Initializer) -> proto::TensorProto {
    let mut proto = proto::TensorProto {
        dims: tensor.dims.iter().map(|dim| *dim as i64).collect(),
        data_type: tensor.dtype.number(),
        name: tensor.name.clone(),
        ..Default::default()
    };
    match &tensor.data {
        Data::Inline(bytes) => proto.raw_data = Some(bytes.clone()),
        Data::External { location, offset, length } => {
            proto.data_location = Some(proto::DATA_LOCATION_EXTERNAL);
            proto.external_data = vec![
                entry("location", location),
                entry("offset", &offset.to_string()),
                entry("length", &length.to_string()),
            ];
        }
    }
    proto
}

fn entry(key: &str, value: &str) -> proto::StringStringEntryProto {
    proto::StringStringEntryProto { key: key.to_owned(), value: value.to_owned() }
}
