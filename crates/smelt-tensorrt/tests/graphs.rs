//! Makes small graphs.

use std::path::{Path, PathBuf};

use smelt_onnx::{
    Attribute, AttributeValue, Data, Dim, ElementType, Graph, Initializer, MODEL_FILE, Model, Node,
    ValueInfo,
};

/// A value of these sizes.
pub(crate) fn value(name: &str, dtype: ElementType, sizes: &[usize]) -> ValueInfo {
    let dims = sizes.iter().map(|size| Dim::Fixed(*size)).collect();
    ValueInfo { name: name.to_owned(), dtype, dims: Some(dims) }
}

/// A node of the standard's operators.
pub(crate) fn node(op: &str, inputs: &[&str], output: &str) -> Node {
    Node {
        name: format!("{op} of {output}"),
        op: op.to_owned(),
        inputs: inputs.iter().map(|name| (*name).to_owned()).collect(),
        outputs: vec![output.to_owned()],
        ..Node::default()
    }
}

/// An attribute that is a number.
pub(crate) fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Int(value) }
}

/// A constant whose bytes are all `byte`.
pub(crate) fn constant(name: &str, dtype: ElementType, dims: &[usize], byte: u8) -> Initializer {
    let bits = dims.iter().product::<usize>() * dtype.bits();
    let data = Data::Inline(vec![byte; bits.div_ceil(8)]);
    Initializer { name: name.to_owned(), dtype, dims: dims.to_vec(), data }
}

/// A model of one graph.
pub(crate) fn model(opset: i64, graph: Graph) -> Model {
    Model {
        ir_version: if opset < 21 { 8 } else { 10 },
        opset,
        other_opsets: Vec::new(),
        producer: "test".to_owned(),
        metadata: Vec::new(),
        graph,
    }
}

/// Writes a model into a folder of its own; gives its file.
pub(crate) fn written(model: &Model, folder: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).unwrap();
    model.write(folder).unwrap();
    folder.join(MODEL_FILE)
}

/// One product of `x` [batch, 8] and a constant, of these types; `batch` varies.
pub(crate) fn product(x: ElementType, weight: ElementType) -> Model {
    let mut input = value("x", x, &[1, 8]);
    input.dims.as_mut().unwrap()[0] = Dim::Symbol("batch".to_owned());
    let output = ValueInfo { dims: None, ..value("y", x, &[]) };
    let graph = Graph {
        name: "g".to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        nodes: vec![node("MatMul", &["x", "w"], "y")],
        initializers: vec![constant("w", weight, &[8, 8], 0)],
    };
    model(17, graph)
}
