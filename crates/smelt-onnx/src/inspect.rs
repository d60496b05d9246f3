//! Describes a model: what it reads and gives, its operators, where its bytes are.
//!
//! Knows only what the model file says; no weight is read.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::{AttributeValue, Data, Dim, Graph, Initializer, Model, ValueInfo};
use crate::survey::tensors;

/// How many of the largest tensors are listed.
const LARGEST: usize = 10;

/// What [`inspect`] says of a model; it prints as a text of some lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Version of the default operator set.
    pub opset: i64,
    /// Version of the file format.
    pub ir_version: i64,
    /// Other operator sets and their versions.
    pub other_opsets: Vec<(String, i64)>,
    /// Name of the program that made the model; may be empty.
    pub producer: String,
    /// Values the caller supplies.
    pub inputs: Vec<Port>,
    /// Values the caller receives.
    pub outputs: Vec<Port>,
    /// How often each operator is used, subgraphs included, the most frequent first.
    pub operators: Vec<(String, usize)>,
    /// Constant tensors by element type, the most bytes first.
    pub weights: Vec<Weights>,
    /// The largest constant tensors.
    pub largest: Vec<Large>,
}

/// An input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Name of its element type.
    pub dtype: String,
    /// Its dimensions, `?` where nothing is declared; `None` for any shape.
    pub dims: Option<Vec<String>>,
}

/// Tensors of one element type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// Name of the element type.
    pub dtype: String,
    /// How many.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// One large tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Large {
    /// Its name.
    pub name: String,
    /// Name of its element type.
    pub dtype: String,
    /// Its shape.
    pub dims: Vec<usize>,
    /// Its bytes.
    pub bytes: u64,
    /// The file it lies in and where it begins; `None` inside the graph.
    pub place: Option<(String, u64)>,
}

/// Describes `model`.
pub fn inspect(model: &Model) -> Inspection {
    let mut held: Vec<Initializer> = Vec::new();
    tensors(&model.graph, &mut |tensor| {
        let data = match &tensor.data {
            Data::Inline(_) => Data::Inline(Vec::new()),
            outside => outside.clone(),
        };
        held.push(Initializer {
            data,
            dims: tensor.dims.clone(),
            name: tensor.name.clone(),
            ..*tensor
        });
    });
    held.sort_by_key(|tensor| std::cmp::Reverse(bytes(tensor)));
    Inspection {
        opset: model.opset,
        ir_version: model.ir_version,
        other_opsets: model.other_opsets.clone(),
        producer: model.producer.clone(),
        inputs: model.graph.inputs.iter().map(port).collect(),
        outputs: model.graph.outputs.iter().map(port).collect(),
        operators: operators(&model.graph),
        weights: weights(&held),
        largest: held.iter().take(LARGEST).map(large).collect(),
    }
}

fn port(value: &ValueInfo) -> Port {
    let word = |dim: &Dim| match dim {
        Dim::Fixed(size) => size.to_string(),
        Dim::Symbol(symbol) => symbol.clone(),
        Dim::Unknown => "?".to_owned(),
    };
    Port {
        name: value.name.clone(),
        dtype: value.dtype.to_string(),
        dims: value.dims.as_ref().map(|dims| dims.iter().map(word).collect()),
    }
}

fn operators(graph: &Graph) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::new();
    count(graph, &mut counts);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn count(graph: &Graph, counts: &mut BTreeMap<String, usize>) {
    for node in &graph.nodes {
        let dot = if node.domain.is_empty() { "" } else { "." };
        *counts.entry(format!("{}{dot}{}", node.domain, node.op)).or_insert(0) += 1;
        for attribute in &node.attributes {
            if let AttributeValue::Graph(inner) = &attribute.value {
                count(inner, counts);
            }
        }
    }
}

fn weights(held: &[Initializer]) -> Vec<Weights> {
    let mut by_type: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in held {
        let (count, total) = by_type.entry(tensor.dtype.to_string()).or_default();
        *count += 1;
        *total = total.saturating_add(bytes(tensor));
    }
    let row = |(dtype, (count, bytes))| Weights { dtype, count, bytes };
    let mut rows: Vec<Weights> = by_type.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn large(tensor: &Initializer) -> Large {
    Large {
        name: tensor.name.clone(),
        dtype: tensor.dtype.to_string(),
        dims: tensor.dims.clone(),
        bytes: bytes(tensor),
        place: match &tensor.data {
            Data::Inline(_) => None,
            Data::External { location, offset, .. } => Some((location.clone(), *offset)),
        },
    }
}

fn bytes(tensor: &Initializer) -> u64 {
    tensor.byte_len().unwrap_or(0) as u64
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opset {}, IR version {}", self.opset, self.ir_version)?;
        for (domain, version) in &self.other_opsets {
            write!(f, ", {domain} {version}")?;
        }
        match self.producer.is_empty() {
            true => writeln!(f)?,
            false => writeln!(f, ", made by {}", self.producer)?,
        }
        for (title, ports) in [("inputs", &self.inputs), ("outputs", &self.outputs)] {
            writeln!(f, "{title}")?;
            rows(
                f,
                ports.iter().map(|port| [&port.name, &port.dtype, &shape(port)].map(Clone::clone)),
            )?;
        }
        let nodes: usize = self.operators.iter().map(|(_, count)| count).sum();
        writeln!(f, "nodes {nodes}")?;
        rows(f, self.operators.iter().map(|(op, count)| [op.clone(), count.to_string()]))?;
        let total = self.weights.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
        writeln!(f, "tensors {}, {}", self.tensors(), amount(total))?;
        let weight = |row: &Weights| [row.dtype.clone(), row.count.to_string(), amount(row.bytes)];
        rows(f, self.weights.iter().map(weight))?;
        writeln!(f, "largest")?;
        rows(f, self.largest.iter().map(line))
    }
}

impl Inspection {
    /// How many constant tensors there are.
    pub fn tensors(&self) -> usize {
        self.weights.iter().map(|row| row.count).sum()
    }
}

fn shape(port: &Port) -> String {
    match &port.dims {
        None => "of any shape".to_owned(),
        Some(dims) => format!("[{}]", dims.join(", ")),
    }
}

fn line(large: &Large) -> [String; 4] {
    let Large { name, dtype, dims, bytes, place } = large;
    let place = match place {
        None => "in the graph".to_owned(),
        Some((location, offset)) => format!("{location} at {offset}"),
    };
    [amount(*bytes), name.clone(), format!("{dtype} {dims:?}"), place]
}

/// Cells in columns as wide as they need.
fn rows<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    cells: impl Iterator<Item = [String; N]>,
) -> fmt::Result {
    let cells: Vec<[String; N]> = cells.collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    for row in &cells {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(f, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// `512 B`, `3.5 KiB`, `34.5 MiB`, `4.18 GiB`.
fn amount(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", value / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", value / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", value / f64::from(1 << 30)),
    }
}
