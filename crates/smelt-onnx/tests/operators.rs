//! Holds the evaluator to results that other programs computed: see `data/ops.py`.

use std::collections::BTreeMap;
use std::path::Path;

use smelt_onnx::eval::{Tensor, evaluate, load};
use smelt_onnx::{Graph, Initializer, Model, Node};

/// What a node differs by, if it does.
fn difference(
    model: &Model,
    tensors: &BTreeMap<&str, &Initializer>,
    node: &Node,
) -> Option<String> {
    let given = node.inputs.iter().filter_map(|name| tensors.get(name.as_str()));
    let outputs = model.graph.outputs.iter().filter(|info| node.outputs.contains(&info.name));
    let graph = Graph {
        nodes: vec![node.clone()],
        initializers: given.map(|tensor| (*tensor).clone()).collect(),
        outputs: outputs.cloned().collect(),
        ..Graph::default()
    };
    let one = Model { graph, ..model.clone() };
    let got = match evaluate(&one, Path::new(""), &BTreeMap::new()) {
        Ok(got) => got,
        Err(error) => return Some(error.to_string()),
    };
    let expect = |name: &String| load(Path::new(""), tensors[format!("{name}.expect").as_str()]);
    let expect: Vec<Tensor> = node.outputs.iter().map(|name| expect(name).unwrap()).collect();
    let equal = got.len() == expect.len() && got.iter().zip(&expect).all(|(a, b)| close(a, b));
    (!equal).then(|| format!("{}: {got:?} is not {expect:?}", node.name))
}

fn close(got: &Tensor, expect: &Tensor) -> bool {
    let near = |(got, expect): (&f64, &f64)| {
        got == expect || (got - expect).abs() <= 2e-6 * (1.0 + expect.abs())
    };
    let floats =
        got.as_floats().into_iter().flatten().zip(expect.as_floats().into_iter().flatten());
    got.dtype() == expect.dtype()
        && got.dims() == expect.dims()
        && got.as_ints() == expect.as_ints()
        && floats.into_iter().all(near)
}

#[track_caller]
fn check(file: &str, cases: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    let model = Model::read(&path).unwrap();
    smelt_onnx::check(&model, path.parent().unwrap()).unwrap();
    let tensors = model.graph.initializers.iter().map(|t| (t.name.as_str(), t)).collect();
    assert_eq!(model.graph.nodes.len(), cases);
    let wrong: Vec<String> =
        model.graph.nodes.iter().filter_map(|node| difference(&model, &tensors, node)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn operators_of_set_17_give_what_onnxruntime_gives() {
    check("ops-17.onnx", 128);
}

#[test]
fn operators_of_set_21_give_what_onnxruntime_gives() {
    check("ops-21.onnx", 21);
}
