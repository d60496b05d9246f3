//! Reads a model file's protobuf and leaves the weights on disk.
//!
//! Walks the three outer levels (model, graph, initializer) field by field.  The payload of
//! a large weight is stepped over and remembered as a byte range; all else goes to prost.
//! Knows nothing of what the fields mean beyond their numbers.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::cost::{self, Message as Kind};
use crate::proto::{GraphProto, ModelProto, TensorProto};

/// Largest model file: protobuf lengths are signed 32-bit in most readers, so no tool writes
/// a longer one; larger weights belong in external data.
pub const PROTOBUF_BYTES_MAX: u64 = i32::MAX as u64;

/// Most memory that a decoded model file may take, weights apart.  A 28-layer decoder takes about
/// 5 MB; while a file is turned into plain values, it is held about three times.
pub const GRAPH_BYTES_MAX: u64 = 64 << 20;

/// Longest tensor payload kept in memory: shapes and scalars are far below, weights above.
pub const INLINE_BYTES_MAX: u64 = 16 << 10;

/// Why bytes are not a model this crate can read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFault {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path names a directory or device.
    #[error("not a regular file; name the .onnx file itself")]
    NotAFile,
    /// Larger than a protobuf may be.
    #[error("{bytes} bytes exceed protobuf's limit of 2 GiB; save the weights as external data")]
    TooLarge {
        /// Size of the file.
        bytes: u64,
    },
    /// The graph without its weights is absurdly large.
    #[error(
        "the graph takes over {} MiB without its weights; keep weights as raw data of initializers",
        GRAPH_BYTES_MAX >> 20
    )]
    GraphTooLarge,
    /// A field says it is longer than what is left.
    #[error("truncated: a field at byte {at} needs {needed} bytes and {left} are left")]
    Truncated {
        /// Where the field begins.
        at: u64,
        /// Bytes it asks for.
        needed: u64,
        /// Bytes that remain in the message around it.
        left: u64,
    },
    /// The bytes are no ONNX protobuf.
    #[error("not an ONNX model: {why}")]
    NotOnnx {
        /// What gave it away.
        why: String,
    },
    /// There is no graph in the model.
    #[error("the model has no graph; export it again")]
    NoGraph,
    /// A legal feature that no supported model uses.
    #[error("{what} not supported")]
    Unsupported {
        /// The feature, with its verb: "model-local functions are".
        what: String,
    },
    /// A tensor's declaration contradicts itself.
    #[error("tensor {name:?}: {why}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A node's declaration contradicts itself.
    #[error("node {name:?}: {why}")]
    Node {
        /// The node, or its first output where it has no name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A graph input or output is ill declared.
    #[error("graph value {name:?}: {why}")]
    Value {
        /// The input or output.
        name: String,
        /// What is wrong.
        why: String,
    },
}

impl From<prost::DecodeError> for ReadFault {
    fn from(error: prost::DecodeError) -> Self {
        Self::NotOnnx { why: error.to_string() }
    }
}

/// A model file taken apart.
pub(crate) struct Skimmed {
    /// The model without its graph.
    pub(crate) model: ModelProto,
    /// The graph without its initializers.
    pub(crate) graph: GraphProto,
    /// The initializers, in file order.
    pub(crate) tensors: Vec<(TensorProto, Option<Embedded>)>,
}

/// A tensor payload left in the model file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Embedded {
    /// Number of the field that holds it: raw, float or double data.
    pub(crate) field: u32,
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) length: u64,
}

/// Field numbers the walk decides on; the rest of `onnx.proto3` is in `proto`.
mod number {
    pub(super) const MODEL_KEPT: [u32; 4] = [1, 2, 8, 14];
    pub(super) const MODEL_GRAPH: u32 = 7;
    pub(super) const MODEL_FUNCTIONS: u32 = 25;
    pub(super) const GRAPH_KEPT: [u32; 5] = [1, 2, 11, 12, 15];
    pub(super) const GRAPH_INITIALIZER: u32 = 5;
    pub(super) const TENSOR_KEPT: [u32; 10] = [1, 2, 4, 5, 7, 8, 9, 10, 11, 13];
    pub(super) const TENSOR_DATA_LOCATION: u32 = 14;
}

/// Data fields whose payload on the wire is the tensor's bytes as they are.
pub(crate) mod data_field {
    pub(crate) const FLOAT: u32 = 4;
    pub(crate) const RAW: u32 = 9;
    pub(crate) const DOUBLE: u32 = 10;
}

/// Takes `file` apart.
pub(crate) fn skim(file: File) -> Result<Skimmed, ReadFault> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ReadFault::NotAFile);
    }
    let end = metadata.len();
    if end > PROTOBUF_BYTES_MAX {
        return Err(ReadFault::TooLarge { bytes: end });
    }
    let mut walk = Walk { bytes: BufReader::new(file), at: 0, kept: 0 };
    walk.model(end)
}

struct Walk<R> {
    bytes: R,
    at: u64,
    kept: u64,
}

#[derive(Clone, Copy)]
struct Field {
    number: u32,
    payload: Payload,
}

#[derive(Clone, Copy)]
enum Payload {
    Varint(u64),
    Fixed64,
    Fixed32,
    Bytes(u64),
}

impl<R: Read + Seek> Walk<BufReader<R>> {
    fn model(&mut self, end: u64) -> Result<Skimmed, ReadFault> {
        let (mut model, mut graph, mut tensors) = (Vec::new(), None, Vec::new());
        while let Some(field) = self.field(end)? {
            match (field.number, field.payload) {
                (number::MODEL_GRAPH, Payload::Bytes(length)) => {
                    let kept = graph.get_or_insert_with(Vec::new);
                    self.graph(self.at + length, kept, &mut tensors)?;
                }
                (number::MODEL_FUNCTIONS, _) => {
                    let what = "model-local functions (inline them with onnx.inliner) are";
                    return Err(ReadFault::Unsupported { what: what.to_owned() });
                }
                (number, _) if number::MODEL_KEPT.contains(&number) => {
                    self.keep(field, Kind::Model, &mut model)?;
                }
                _ => self.skip(field)?,
            }
        }
        let model = ModelProto::decode(model.as_slice())?;
        if model.ir_version == 0 {
            return Err(ReadFault::NotOnnx { why: "it has no ir_version".to_owned() });
        }
        let graph = GraphProto::decode(graph.ok_or(ReadFault::NoGraph)?.as_slice())?;
        Ok(Skimmed { model, graph, tensors })
    }

    fn graph(
        &mut self,
        end: u64,
        kept: &mut Vec<u8>,
        tensors: &mut Vec<(TensorProto, Option<Embedded>)>,
    ) -> Result<(), ReadFault> {
        while let Some(field) = self.field(end)? {
            match (field.number, field.payload) {
                (number::GRAPH_INITIALIZER, Payload::Bytes(length)) => {
                    self.charge(cost::field(Kind::Graph, field.number, &[]))?;
                    tensors.push(self.tensor(self.at + length)?);
                }
                (number, _) if number::GRAPH_KEPT.contains(&number) => {
                    self.keep(field, Kind::Graph, kept)?
                }
                _ => self.skip(field)?,
            }
        }
        Ok(())
    }

    fn tensor(&mut self, end: u64) -> Result<(TensorProto, Option<Embedded>), ReadFault> {
        let (mut kept, mut embedded) = (Vec::new(), None);
        while let Some(field) = self.field(end)? {
            match (field.number, field.payload) {
                (
                    data_field::RAW | data_field::FLOAT | data_field::DOUBLE,
                    Payload::Bytes(length),
                ) if length > INLINE_BYTES_MAX => {
                    let found = Embedded { field: field.number, offset: self.at, length };
                    if embedded.replace(found).is_some() {
                        let why = "a tensor's data comes in several pieces".to_owned();
                        return Err(ReadFault::NotOnnx { why });
                    }
                    self.skip(field)?;
                }
                (number::TENSOR_DATA_LOCATION, _) => self.keep(field, Kind::Tensor, &mut kept)?,
                (number, _) if number::TENSOR_KEPT.contains(&number) => {
                    self.keep(field, Kind::Tensor, &mut kept)?;
                }
                _ => self.skip(field)?,
            }
        }
        Ok((TensorProto::decode(kept.as_slice())?, embedded))
    }

    /// The next field of the message that ends at `end`; its payload, if bytes, fits in it.
    fn field(&mut self, end: u64) -> Result<Option<Field>, ReadFault> {
        if self.at == end {
            return Ok(None);
        }
        let begin = self.at;
        let key = self.varint(end)?;
        let number = u32::try_from(key >> 3).unwrap_or(0);
        let payload = match key & 7 {
            0 => Payload::Varint(self.varint(end)?),
            1 => Payload::Fixed64,
            2 => Payload::Bytes(self.varint(end)?),
            5 => Payload::Fixed32,
            wire => {
                let why = format!("the field at byte {begin} has wire type {wire}");
                return Err(ReadFault::NotOnnx { why });
            }
        };
        if number == 0 {
            let why = format!("the field at byte {begin} has no legal number");
            return Err(ReadFault::NotOnnx { why });
        }
        let (needed, left) = (payload.length(), end - self.at);
        if needed > left {
            return Err(ReadFault::Truncated { at: begin, needed, left });
        }
        Ok(Some(Field { number, payload }))
    }

    fn varint(&mut self, end: u64) -> Result<u64, ReadFault> {
        let begin = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            if self.at == end {
                return Err(ReadFault::Truncated { at: begin, needed: 1, left: 0 });
            }
            let mut byte = [0];
            self.read(&mut byte)?;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(ReadFault::NotOnnx { why: format!("the number at byte {begin} has no end") })
    }

    /// Copies a field of a `within`, key and all, to `kept`.
    fn keep(&mut self, field: Field, within: Kind, kept: &mut Vec<u8>) -> Result<(), ReadFault> {
        encode_key(field.number, field.payload.wire_type(), kept);
        match field.payload {
            Payload::Varint(value) => encode_varint(value, kept),
            Payload::Bytes(length) => encode_varint(length, kept),
            Payload::Fixed64 | Payload::Fixed32 => {}
        }
        let length = field.payload.length();
        self.charge(length)?;
        let begin = kept.len();
        kept.resize(begin + length as usize, 0);
        self.read(&mut kept[begin..])?;
        // Its bytes are charged already, before they were read.
        self.charge(cost::field(within, field.number, &kept[begin..]).saturating_sub(length))
    }

    /// Counts memory against the limit.
    fn charge(&mut self, bytes: u64) -> Result<(), ReadFault> {
        self.kept += bytes;
        if self.kept > GRAPH_BYTES_MAX { Err(ReadFault::GraphTooLarge) } else { Ok(()) }
    }

    fn skip(&mut self, field: Field) -> Result<(), ReadFault> {
        let length = field.payload.length();
        self.bytes.seek_relative(length as i64)?;
        self.at += length;
        Ok(())
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), ReadFault> {
        self.bytes.read_exact(out)?;
        self.at += out.len() as u64;
        Ok(())
    }
}

impl Payload {
    /// Bytes of the payload that are still to be read.
    fn length(self) -> u64 {
        match self {
            Payload::Varint(_) => 0,
            Payload::Fixed64 => 8,
            Payload::Fixed32 => 4,
            Payload::Bytes(length) => length,
        }
    }

    fn wire_type(self) -> WireType {
        match self {
            Payload::Varint(_) => WireType::Varint,
            Payload::Fixed64 => WireType::SixtyFourBit,
            Payload::Fixed32 => WireType::ThirtyTwoBit,
            Payload::Bytes(_) => WireType::LengthDelimited,
        }
    }
}
