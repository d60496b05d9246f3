//! Engines that ONNX Runtime executes, beside native ones of the same graphs.
//!
//! Where no library of it is (`SMELT_ONNXRUNTIME`, an active Python environment), the tests say so and
//! check what can be checked without; `cargo xtask ci` gives them one from PyPI.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine::graph::Tensor;
use smelt_engine::{BACKENDS, vision};
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::onnxruntime;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::{export, synthetic};
use smelt_onnx::{Attribute, AttributeValue, Dim, ElementType, Graph, Model, Node, ValueInfo};
use tempfile::TempDir;

fn is_here() -> bool {
    let found = smelt_engine::onnxruntime::find();
    if let Err(why) = &found {
        eprintln!("NOT TESTED: {why}");
    }
    found.is_ok()
}

/// The vision tower of the smallest synthetic model, as ONNX.
fn exported(dir: &Path, dtype: Dtype) -> PathBuf {
    let (checkpoint, onnx) = (dir.join("checkpoint"), dir.join(format!("onnx-{dtype}")));
    synthetic::write("internvl3-tiny", &checkpoint, &mut |_| {}).unwrap();
    export::vision(&Checkpoint::open(&checkpoint).unwrap(), dtype, &onnx, &mut |_| {}).unwrap();
    onnx
}

fn build(onnx: &Path, out: &Path) {
    onnxruntime::build(onnx, out, &mut |_| {}).unwrap();
}

fn pixels(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 251) as f32 / 62.5 - 2.0).collect()
}

#[track_caller]
fn check_alike(dtype: Dtype, error_max: f32) {
    if !is_here() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let onnx = exported(dir.path(), dtype);
    let (native, other) = (dir.path().join("native"), dir.path().join("other"));
    graph::build(&onnx, Precision::F32, &native, &mut |_| {}).unwrap();
    build(&onnx, &other);
    let [native, other] = [native, other].map(|dir| vision::open(&dir).unwrap());
    assert_eq!(other.tokens_per_tile(), native.tokens_per_tile());
    let pixels = pixels(2 * native.takes().numbers());
    let [expect, found] = [&native, &other].map(|one| one.encode(&pixels, 2).unwrap());
    let largest = expect.iter().fold(0.0f32, |most, number| most.max(number.abs()));
    for (expect, found) in expect.iter().zip(&found) {
        assert!((expect - found).abs() <= error_max * largest, "{expect} {found}");
    }
    other.verify_digest(&mut |_| {}).unwrap();
}

#[test]
fn pictures_get_the_embeddings_of_the_native_engine() {
    check_alike(Dtype::F32, 5e-5);
}

#[test]
fn a_graph_in_f16_takes_the_same_pictures() {
    check_alike(Dtype::F16, 5e-3);
}

#[test]
fn its_constants_are_those_of_the_graph() {
    if !is_here() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let onnx = exported(dir.path(), Dtype::F32);
    let [native, other] = ["native", "other"].map(|name| dir.path().join(name));
    graph::build(&onnx, Precision::F32, &native, &mut |_| {}).unwrap();
    build(&onnx, &other);
    let [native, other] = [native, other].map(|dir| vision::open(&dir).unwrap());
    let checkpoint = Checkpoint::open(&dir.path().join("checkpoint")).unwrap();
    let mut compared = 0;
    for (name, _) in checkpoint.model().tensors(&[smelt_model::model::ModelPart::Vision]) {
        let Some(constant) = native.constant(&name) else { continue };
        let mut expect = vec![0.0; constant.count()];
        constant.widen(0, &mut expect);
        let mut found = vec![0.0; expect.len()];
        other.constant(&name).unwrap().widen(0, &mut found);
        assert_eq!(found, expect, "{name}");
        compared += 1;
    }
    assert!(compared > 10, "{compared}");
}

#[test]
fn builds_are_equal_and_damage_is_found() {
    if !is_here() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let onnx = exported(dir.path(), Dtype::F32);
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    build(&onnx, &one);
    build(&onnx, &two);
    for name in ["engine.json", "weights.bin", "model.onnx"] {
        assert_eq!(fs::read(one.join(name)).unwrap(), fs::read(two.join(name)).unwrap(), "{name}");
    }
    let path = two.join("model.onnx");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = BACKENDS.graph(&two).unwrap().verify_digest(&mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("model.onnx is damaged") && !error.contains('\n'), "{error}");
    fs::write(&path, b"no graph").unwrap();
    let error = vision::open(&two).unwrap().encode(&pixels(3 * 56 * 56), 1).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("ONNX Runtime") && !error.contains('\n'), "{error}");
    fs::write(two.join("weights.bin"), b"").unwrap();
    let error = BACKENDS.graph(&two).unwrap_err().to_string();
    assert!(error.contains("0 bytes where"), "{error}");
}

/// A graph of one node that the native engine does not have.
fn of_one_node(dir: &Path) {
    let value = |name: &str| ValueInfo {
        name: name.to_owned(),
        dtype: ElementType::F32,
        dims: Some(vec![Dim::Symbol("rows".to_owned()), Dim::Fixed(2)]),
    };
    let node = Node {
        name: "leak".to_owned(),
        op: "LeakyRelu".to_owned(),
        inputs: vec!["x".to_owned()],
        outputs: vec!["y".to_owned()],
        attributes: vec![Attribute { name: "alpha".to_owned(), value: AttributeValue::Float(0.5) }],
        ..Node::default()
    };
    let graph = Graph {
        name: "one".to_owned(),
        inputs: vec![value("x")],
        outputs: vec![value("y")],
        nodes: vec![node],
        initializers: vec![],
    };
    let model = Model {
        ir_version: smelt_onnx::IR_VERSION,
        opset: smelt_onnx::OPSET,
        other_opsets: vec![],
        producer: String::new(),
        metadata: vec![],
        graph,
    };
    fs::create_dir_all(dir).unwrap();
    model.write(dir).unwrap();
}

#[test]
fn what_the_native_engine_does_not_have_runs_here() {
    let dir = TempDir::new().unwrap();
    let (onnx, engine) = (dir.path().join("onnx"), dir.path().join("engine"));
    of_one_node(&onnx);
    let error = graph::build(&onnx, Precision::F32, &engine, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("leak") && error.contains("LeakyRelu"), "{error}");
    if !is_here() {
        return;
    }
    build(&onnx, &engine);
    assert_eq!(smelt_backend::Heading::read(&engine).unwrap().kind, "onnxruntime");
    let engine = BACKENDS.graph(&engine).unwrap();
    let input = Tensor::F32 { shape: vec![2, 2], data: vec![1.0, -1.0, 0.0, -4.0] };
    let outputs = engine.run(vec![input]).unwrap();
    assert_eq!(outputs[0].floats(), Some(&[1.0, -0.5, 0.0, -2.0][..]));
    let wrong = Tensor::F32 { shape: vec![2, 3], data: vec![0.0; 6] };
    let error = engine.run(vec![wrong]).unwrap_err().to_string();
    assert!(error.contains("input \"x\""), "{error}");
}
