//! Has TensorRT for RTX itself take what the rule `insert-qdq` makes of graphs, and build plans of it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_onnx::surgery::{Consume, Rule, apply};
use smelt_onnx::{ElementType, Graph, Model};

use crate::graphs::{constant, model, node, value, written};
use crate::real::request;
use crate::world::{World, golden};

/// The graph in `file` with integers in all its products of stored weights: every value reaches to 4.
fn quantised(file: &Path, out: PathBuf) -> (PathBuf, usize) {
    let model = Model::read(file).unwrap();
    let nodes = model.graph.nodes.iter().flat_map(|node| &node.outputs);
    let values = nodes.chain(model.graph.inputs.iter().map(|input| &input.name));
    let thresholds: BTreeMap<String, f32> = values.map(|name| (name.clone(), 4.0)).collect();
    let rule = Rule::InsertQdq { thresholds, except: Vec::new() };
    apply(file, &rule, &out, Consume::No).unwrap();
    let made = out.join("model.onnx");
    let next = Model::read(&made).unwrap();
    let count = next.graph.nodes.iter().filter(|node| node.op == "QuantizeLinear").count();
    (made, count)
}

#[test]
fn what_multiplies_integers_is_parsed_and_built() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let [any, tower] = ["any", "fixed"].map(|name| world.file(name));
    let checkpoint = Checkpoint::open(&golden("internvl3-tiny/checkpoint")).unwrap();
    export::vision(&checkpoint, Dtype::F32, &any, &mut |_| {}).unwrap();
    apply(&any, &Rule::SetBatch { size: 1 }, &tower, Consume::No).unwrap();
    for (name, file) in
        [("detector", golden("yolo-tiny/yolo.onnx")), ("tower", tower.join("model.onnx"))]
    {
        let (quantised, count) = quantised(&file, world.file(name));
        assert!(count >= 8, "{name}: {count}");
        let answer = session.check(&quantised).unwrap();
        assert!(
            answer.refusals.is_empty() && answer.network.is_some(),
            "{name}: {:?}",
            answer.refusals
        );
        let plan = world.file(&format!("{name}.plan"));
        let mut go_on = |_: Option<smelt_tensorrt::Step<'_>>| ControlFlow::Continue(());
        let built = session.build(&request(&quantised, &plan), &mut go_on).unwrap();
        let built = built.unwrap_or_else(|failure| panic!("{name}: {failure:?}"));
        assert_eq!(fs::metadata(&plan).unwrap().len(), built.bytes, "{name}");
    }
}

/// A builder asks of every scale to be more than nothing, and of a column of zeros it would be nothing.
#[test]
fn a_weight_that_is_zero_in_places_is_taken() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let graph = Graph {
        name: "zeros".to_owned(),
        nodes: vec![node("MatMul", &["x", "w"], "y")],
        initializers: vec![constant("w", ElementType::F32, &[8, 4], 0)],
        inputs: vec![value("x", ElementType::F32, &[2, 8])],
        outputs: vec![value("y", ElementType::F32, &[2, 4])],
    };
    let file = written(&model(17, graph), &world.file("zeros"));
    let (quantised, count) = quantised(&file, world.file("zeros-quantised"));
    assert_eq!(count, 1);
    let answer = session.check(&quantised).unwrap();
    assert!(answer.refusals.is_empty() && answer.network.is_some(), "{:?}", answer.refusals);
}
