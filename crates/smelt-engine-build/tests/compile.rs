//! Holds operators that are done together to the same operators one by one.
//!
//! A graph that also gives a value in the middle cannot put the operators around it together, so
//! both ways can be compared.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smelt_engine::graph::{GraphEngine, Pause, Tensor};
use smelt_engine_build::graph::{self, Precision};
use smelt_onnx::{
    Attribute, AttributeValue, Data, Dim, ElementType, Graph, Initializer, Model, Node, ValueInfo,
};
use tempfile::TempDir;

fn node(op: &str, inputs: &[&str], output: &str) -> Node {
    Node {
        name: output.to_owned(),
        op: op.to_owned(),
        inputs: inputs.iter().map(|&s| s.to_owned()).collect(),
        outputs: vec![output.to_owned()],
        ..Node::default()
    }
}

fn with(mut node: Node, name: &str, value: AttributeValue) -> Node {
    node.attributes.push(Attribute { name: name.to_owned(), value });
    node
}

fn floats(name: &str, dims: &[usize], values: &[f32]) -> Initializer {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let (name, dims) = (name.to_owned(), dims.to_vec());
    Initializer { name, dtype: ElementType::F32, dims, data: Data::Inline(bytes) }
}

fn value(name: &str, dims: Vec<Dim>) -> ValueInfo {
    ValueInfo { name: name.to_owned(), dtype: ElementType::F32, dims: Some(dims) }
}

/// Numbers without order in -1..1.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// A graph of inputs with their shapes, the first output being what is compared.
struct Case {
    inputs: Vec<(&'static str, Vec<usize>)>,
    nodes: Vec<Node>,
    constants: Vec<Initializer>,
}

impl Case {
    /// What the graph gives, and how many tasks of `kind` it has.
    fn run(&self, outputs: &[&str], kind: &str) -> (Vec<f32>, usize) {
        let (engine, given) = (self.engine(outputs), self.given());
        let count = engine.survey(&given).unwrap().tasks.get(kind).copied().unwrap_or(0);
        (engine.run(given).unwrap()[0].floats().unwrap().to_vec(), count)
    }

    fn engine(&self, outputs: &[&str]) -> GraphEngine {
        let dims = |shape: &[usize]| shape.iter().copied().map(Dim::Fixed).collect();
        let inputs = self.inputs.iter().map(|(name, shape)| value(name, dims(shape))).collect();
        let outputs = outputs.iter().map(|name| value(name, vec![])).collect();
        let (nodes, initializers) = (self.nodes.clone(), self.constants.clone());
        let graph = Graph { name: "case".to_owned(), inputs, outputs, nodes, initializers };
        let producer = "test".to_owned();
        let model = Model {
            ir_version: 8,
            opset: 17,
            other_opsets: vec![],
            producer,
            metadata: vec![],
            graph,
        };
        let dir = TempDir::new().unwrap();
        let (onnx, engine) = (dir.path().join("onnx"), dir.path().join("engine"));
        fs::create_dir_all(&onnx).unwrap();
        model.write(&onnx).unwrap();
        graph::build(&onnx, Precision::F32, &engine, &mut |_| {}).unwrap();
        GraphEngine::open(&engine).unwrap()
    }

    fn given(&self) -> Vec<Tensor> {
        let given = self.inputs.iter().enumerate().map(|(seed, (_, shape))| {
            let data = noise(shape.iter().product(), seed + 1);
            Tensor::F32 { shape: shape.clone(), data }
        });
        given.collect()
    }

    /// Compares the graph done together, as one task of `kind`, with the one that also gives
    /// `middle`, which has none.
    #[track_caller]
    fn check(&self, kind: &str, middle: &str) {
        let (together, one) = self.run(&["out"], kind);
        let (apart, none) = self.run(&["out", middle], kind);
        assert_eq!((one, none), (1, 0), "{kind} around {middle}");
        let far = together.iter().zip(&apart).fold(0.0f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(far < 2e-6 && together.len() == apart.len(), "{kind}: {far} apart");
    }
}

fn attention(scaled: Vec<Node>, masked: bool) -> Case {
    let mut nodes = scaled;
    let scores = if masked { "masked" } else { "scores" };
    nodes.extend(masked.then(|| node("Add", &["mask", "scores"], "masked")));
    nodes.push(node("Softmax", &[scores], "shares"));
    nodes.push(node("MatMul", &["shares", "v"], "out"));
    Case {
        inputs: vec![
            ("q", vec![2, 3, 37, 8]),
            ("k", vec![2, 3, 8, 21]),
            ("v", vec![2, 3, 21, 5]),
            ("mask", vec![2, 1, 1, 21]),
        ],
        nodes,
        constants: vec![floats("scale", &[], &[0.35]), floats("root", &[1], &[2.5])],
    }
}

#[test]
fn an_engine_may_be_made_to_pause_before_each_task() {
    let case = attention(vec![node("MatMul", &["q", "k"], "scores")], true);
    let pauses = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pauses);
    let pause = Pause(Arc::new(move || _ = count.fetch_add(1, Ordering::SeqCst)));
    let engine = case.engine(&["out", "scores"]).with_pause(pause);
    let tasks: usize = engine.survey(&case.given()).unwrap().tasks.values().sum();
    assert!(tasks > 1, "{tasks}");
    let paused = engine.run(case.given()).unwrap();
    assert_eq!(pauses.load(Ordering::SeqCst), tasks);
    let (plain, _) = case.run(&["out", "scores"], "attention");
    assert_eq!(paused[0].floats().unwrap(), plain);
}

#[test]
fn attention_is_the_same_wherever_its_scale_stands() {
    let before =
        || vec![node("Mul", &["scale", "q"], "small"), node("MatMul", &["small", "k"], "scores")];
    let after = vec![node("MatMul", &["q", "k"], "dots"), node("Div", &["dots", "root"], "scores")];
    attention(before(), false).check("attention", "shares");
    attention(before(), true).check("attention", "masked");
    attention(after, true).check("attention", "scores");
}

fn norm(mut nodes: Vec<Node>, x: &str) -> Case {
    let squares = node("Mul", &[x, x], "squares");
    let mean =
        with(node("ReduceMean", &["squares"], "mean"), "axes", AttributeValue::Ints(vec![-1]));
    nodes.extend([
        squares,
        mean,
        node("Add", &["mean", "eps"], "variance"),
        node("Sqrt", &["variance"], "deviation"),
        node("Div", &[x, "deviation"], "normal"),
        node("Mul", &["gain", "normal"], "out"),
    ]);
    Case {
        inputs: vec![("x", vec![5, 33])],
        nodes,
        constants: vec![floats("eps", &[], &[1e-5]), floats("gain", &[33], &noise(33, 7))],
    }
}

#[test]
fn norms_are_found_in_their_parts() {
    norm(vec![], "x").check("norm", "variance");
    let mean = with(node("ReduceMean", &["x"], "middle"), "axes", AttributeValue::Ints(vec![1]));
    let centred = vec![mean, node("Sub", &["x", "middle"], "centred")];
    norm(centred, "centred").check("norm", "deviation");
}

#[test]
fn what_is_given_in_the_middle_changes_no_bit_of_a_chain() {
    let case = Case {
        inputs: vec![("x", vec![7, 19])],
        nodes: vec![
            node("Mul", &["x", "slope"], "steep"),
            node("Sigmoid", &["steep"], "gate"),
            node("Mul", &["x", "gate"], "gated"),
            node("Add", &["gated", "shift"], "out"),
        ],
        constants: vec![floats("slope", &[], &[1.702]), floats("shift", &[19], &noise(19, 3))],
    };
    let ((together, one), (apart, two)) =
        (case.run(&["out"], "map"), case.run(&["out", "gate"], "map"));
    assert_eq!((one, two), (1, 2));
    assert_eq!(together, apart);
}

#[test]
fn parts_are_written_where_they_are_joined() {
    // Halves turned as rotary positions do; the joined value needs no copy.
    let split = Node {
        outputs: vec!["low".to_owned(), "high".to_owned()],
        ..with(node("Split", &["x"], "low"), "axis", AttributeValue::Int(2))
    };
    let case = Case {
        inputs: vec![("x", vec![4, 3, 10]), ("cos", vec![4, 1, 5]), ("sin", vec![4, 1, 5])],
        nodes: vec![
            split,
            node("Mul", &["low", "cos"], "a"),
            node("Mul", &["high", "sin"], "b"),
            node("Mul", &["high", "cos"], "c"),
            node("Mul", &["low", "sin"], "d"),
            node("Sub", &["a", "b"], "left"),
            node("Add", &["c", "d"], "right"),
            with(node("Concat", &["left", "right"], "out"), "axis", AttributeValue::Int(2)),
        ],
        constants: vec![],
    };
    let (together, copies) = case.run(&["out"], "copy");
    let (apart, more) = case.run(&["out", "left"], "copy");
    assert_eq!((copies, more), (0, 1));
    assert_eq!(together, apart);
}
