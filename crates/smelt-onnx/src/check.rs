//! Judges a model: versions, names, order, and that every weight is where it says.
//!
//! Reads the graph and the sizes of data files, never a weight.  What one back end accepts
//! of the standard is judged by `target`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::external::{DataError, place};
use crate::model::{AttributeValue, Data, Graph, Initializer, Model, Node};

/// Oldest operator set accepted: TensorRT 10's parser begins at 9 (onnx-tensorrt's
/// `operators.md`, 10.1).
pub const OPSET_MIN: i64 = 9;
/// Newest operator set accepted: that of ONNX 1.23.  What one back end takes is less: see
/// `target`.
pub const OPSET_MAX: i64 = 28;
/// Oldest file format accepted: 3 is the first with operator set versions.
pub const IR_VERSION_MIN: i64 = 3;
/// Newest file format accepted: 14 is what ONNX 1.23 writes by default, whatever the
/// operator set.
pub const IR_VERSION_MAX: i64 = 14;

/// The first rule a model breaks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The operator set is outside the window.
    #[error(
        "operator set {opset} is not between {OPSET_MIN} and {OPSET_MAX}; export the model with opset 17"
    )]
    Opset {
        /// Its version.
        opset: i64,
    },
    /// The file format is outside the window.
    #[error("IR version {version} is not between {IR_VERSION_MIN} and {IR_VERSION_MAX}")]
    IrVersion {
        /// Its version.
        version: i64,
    },
    /// The graph gives nothing.
    #[error("graph {graph:?} has no outputs")]
    NoOutputs {
        /// Name of the graph.
        graph: String,
    },
    /// Something that others refer to has no name.
    #[error("{what} has no name")]
    Nameless {
        /// What it is.
        what: String,
    },
    /// A name is given twice.
    #[error("value {name:?} is defined twice, the second time by {by}")]
    DefinedTwice {
        /// The value.
        name: String,
        /// What defines it again.
        by: String,
    },
    /// A node reads what no earlier node, input or initializer gives.
    #[error("{reader} reads {name:?}, which nothing before it defines")]
    Undefined {
        /// The value.
        name: String,
        /// Who reads it.
        reader: String,
    },
    /// A node uses an operator set that the model does not import.
    #[error("{node} uses operator set {domain:?}, which the model does not import")]
    UnknownDomain {
        /// The node.
        node: String,
        /// Its domain.
        domain: String,
    },
    /// A node names an attribute twice.
    #[error("{node} has attribute {attribute:?} twice")]
    AttributeTwice {
        /// The node.
        node: String,
        /// The attribute.
        attribute: String,
    },
    /// A tensor's bytes do not match its shape.
    #[error("tensor {name:?}: {dtype} {dims:?} takes {expected} bytes and has {length}")]
    ByteLength {
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: crate::ElementType,
        /// Its shape.
        dims: Vec<usize>,
        /// Bytes of type and shape.
        expected: u64,
        /// Bytes it has.
        length: u64,
    },
    /// A tensor's range reaches beyond its file.
    #[error("tensor {name:?}: bytes {offset}+{length} lie beyond {location:?}, which has {bytes}")]
    BeyondFile {
        /// The tensor.
        name: String,
        /// Its file.
        location: String,
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        length: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// A tensor's data cannot be found.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// Checks `model`, whose external data lies in `dir`.
///
/// # Errors
/// The first broken rule: versions inside the window; every value defined once and before it
/// is read; every operator set imported; every tensor's bytes as long as its shape, inside
/// `dir` and inside their file.
pub fn check(model: &Model, dir: &Path) -> Result<(), CheckError> {
    if !(OPSET_MIN..=OPSET_MAX).contains(&model.opset) {
        return Err(CheckError::Opset { opset: model.opset });
    }
    if !(IR_VERSION_MIN..=IR_VERSION_MAX).contains(&model.ir_version) {
        return Err(CheckError::IrVersion { version: model.ir_version });
    }
    let domains = model.other_opsets.iter().map(|(domain, _)| domain.as_str()).collect();
    let checker = Checker { dir, domains };
    checker.graph(&model.graph, &BTreeSet::new())
}

struct Checker<'m> {
    dir: &'m Path,
    domains: BTreeSet<&'m str>,
}

impl Checker<'_> {
    /// Checks `graph`; `outer` are the values a subgraph sees from around it.
    fn graph<'g>(&self, graph: &'g Graph, outer: &BTreeSet<&'g str>) -> Result<(), CheckError> {
        if graph.outputs.is_empty() {
            return Err(CheckError::NoOutputs { graph: graph.name.clone() });
        }
        let mut defined = self.sources(graph)?;
        for node in &graph.nodes {
            let visible = |name: &str| defined.contains(name) || outer.contains(name);
            self.node(node, visible)?;
            self.subgraphs(node, &defined, outer)?;
            for output in node.outputs.iter().filter(|name| !name.is_empty()) {
                define(&mut defined, output, || label(node))?;
            }
        }
        for output in &graph.outputs {
            if !defined.contains(output.name.as_str()) && !outer.contains(output.name.as_str()) {
                let reader = "the graph's output list".to_owned();
                return Err(CheckError::Undefined { name: output.name.clone(), reader });
            }
        }
        Ok(())
    }

    /// Values defined before the first node.  An initializer may carry the name of an input:
    /// it is then the input's default.
    fn sources<'g>(&self, graph: &'g Graph) -> Result<BTreeSet<&'g str>, CheckError> {
        let (mut inputs, mut defined) = (BTreeSet::new(), BTreeSet::new());
        for input in &graph.inputs {
            define(&mut inputs, &input.name, || "a graph input".to_owned())?;
        }
        for tensor in &graph.initializers {
            define(&mut defined, &tensor.name, || "an initializer".to_owned())?;
            self.tensor(tensor)?;
        }
        defined.append(&mut inputs);
        Ok(defined)
    }

    fn node(&self, node: &Node, visible: impl Fn(&str) -> bool) -> Result<(), CheckError> {
        if node.op.is_empty() {
            return Err(CheckError::Nameless { what: format!("the operator of {}", label(node)) });
        }
        if !node.domain.is_empty() && !self.domains.contains(node.domain.as_str()) {
            let domain = node.domain.clone();
            return Err(CheckError::UnknownDomain { node: label(node), domain });
        }
        if let Some(name) = node.inputs.iter().find(|name| !name.is_empty() && !visible(name)) {
            return Err(CheckError::Undefined { name: name.clone(), reader: label(node) });
        }
        let mut attributes = BTreeSet::new();
        for attribute in &node.attributes {
            if !attributes.insert(&attribute.name) {
                let attribute = attribute.name.clone();
                return Err(CheckError::AttributeTwice { node: label(node), attribute });
            }
            if let AttributeValue::Tensor(tensor) = &attribute.value {
                self.tensor(tensor)?;
            }
        }
        Ok(())
    }

    fn subgraphs<'g>(
        &self,
        node: &'g Node,
        defined: &BTreeSet<&'g str>,
        outer: &BTreeSet<&'g str>,
    ) -> Result<(), CheckError> {
        for attribute in &node.attributes {
            if let AttributeValue::Graph(graph) = &attribute.value {
                self.graph(graph, &(defined | outer))?;
            }
        }
        Ok(())
    }

    fn tensor(&self, tensor: &Initializer) -> Result<(), CheckError> {
        let name = || tensor.name.clone();
        let Some(expected) = tensor.byte_len() else {
            return Err(DataError::Overflow { name: name(), dims: tensor.dims.clone() }.into());
        };
        let length = match &tensor.data {
            Data::Inline(bytes) => bytes.len() as u64,
            Data::External { location, offset, length } => {
                self.range(&tensor.name, location, *offset, *length)?;
                *length
            }
        };
        if length != expected as u64 {
            return Err(CheckError::ByteLength {
                name: name(),
                dtype: tensor.dtype,
                dims: tensor.dims.clone(),
                expected: expected as u64,
                length,
            });
        }
        Ok(())
    }

    fn range(
        &self,
        name: &str,
        location: &str,
        offset: u64,
        length: u64,
    ) -> Result<(), CheckError> {
        let path = place(self.dir, name, location)?;
        let bytes = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(source) => return Err(DataError::Io { path, source }.into()),
        };
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(CheckError::BeyondFile {
                name: name.to_owned(),
                location: location.to_owned(),
                offset,
                length,
                bytes,
            });
        }
        Ok(())
    }
}

fn define<'g>(
    defined: &mut BTreeSet<&'g str>,
    name: &'g str,
    by: impl Fn() -> String,
) -> Result<(), CheckError> {
    if name.is_empty() {
        return Err(CheckError::Nameless { what: by() });
    }
    if !defined.insert(name) {
        return Err(CheckError::DefinedTwice { name: name.to_owned(), by: by() });
    }
    Ok(())
}

/// A node as messages name it.
pub(crate) fn label(node: &Node) -> String {
    let name = match node.outputs.first() {
        Some(output) if node.name.is_empty() => output,
        _ => &node.name,
    };
    format!("{} node {name:?}", node.op)
}
