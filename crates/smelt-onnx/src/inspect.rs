//! Describes a model for people: what it reads and gives, its operators, where its bytes are.
//!
//! Knows only what the model file says; no weight is read.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::model::{Data, Dim, Initializer, Model, ValueInfo};

/// How many of the largest initializers are listed.
const LARGEST: usize = 10;

/// A text of some lines about `model`.
pub fn inspect(model: &Model) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = describe(model, &mut text);
    text
}

fn describe(model: &Model, out: &mut String) -> std::fmt::Result {
    let graph = &model.graph;
    writeln!(out, "opset {}, IR version {}", model.opset, model.ir_version)?;
    for (domain, version) in &model.other_opsets {
        writeln!(out, "operator set {domain} {version}")?;
    }
    if !model.producer.is_empty() {
        writeln!(out, "made by {}", model.producer)?;
    }
    for (title, values) in [("input", &graph.inputs), ("output", &graph.outputs)] {
        for value in values {
            writeln!(out, "{title} {} {} {}", value.name, value.dtype, shape(value))?;
        }
    }
    operators(model, out)?;
    weights(&graph.initializers, out)
}

fn shape(value: &ValueInfo) -> String {
    let Some(dims) = &value.dims else { return "of any shape".to_owned() };
    let words: Vec<String> = dims
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(size) => size.to_string(),
            Dim::Symbol(symbol) => symbol.clone(),
            Dim::Unknown => "?".to_owned(),
        })
        .collect();
    format!("[{}]", words.join(", "))
}

fn operators(model: &Model, out: &mut String) -> std::fmt::Result {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for node in &model.graph.nodes {
        *counts.entry((&node.domain, &node.op)).or_insert(0) += 1;
    }
    writeln!(out, "{} nodes", model.graph.nodes.len())?;
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for ((domain, op), count) in counts {
        let dot = if domain.is_empty() { "" } else { "." };
        writeln!(out, "  {count:>6} {domain}{dot}{op}")?;
    }
    Ok(())
}

fn weights(tensors: &[Initializer], out: &mut String) -> std::fmt::Result {
    let bytes = |tensor: &Initializer| tensor.byte_len().unwrap_or(0);
    let mut by_type: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for tensor in tensors {
        let (count, total) = by_type.entry(tensor.dtype.to_string()).or_default();
        *count += 1;
        *total = total.saturating_add(bytes(tensor));
    }
    writeln!(out, "{} initializers", tensors.len())?;
    for (dtype, (count, total)) in by_type {
        writeln!(out, "  {count:>6} {dtype}, {total} bytes")?;
    }
    let mut largest: Vec<&Initializer> = tensors.iter().collect();
    largest.sort_by_key(|tensor| std::cmp::Reverse(bytes(tensor)));
    writeln!(out, "largest")?;
    for tensor in largest.into_iter().take(LARGEST) {
        let place = match &tensor.data {
            Data::Inline(_) => "in the model file's graph".to_owned(),
            Data::External { location, offset, .. } => format!("{location} at {offset}"),
        };
        let Initializer { name, dtype, dims, .. } = tensor;
        writeln!(out, "  {:>12} {name} {dtype} {dims:?}, {place}", bytes(tensor))?;
    }
    Ok(())
}
