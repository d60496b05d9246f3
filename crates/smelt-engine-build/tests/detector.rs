//! Holds graphs of detectors to what onnxruntime computes of them: `tests/data/golden/yolo-tiny`.
//!
//! The native engine, the evaluator and, where its library is found, ONNX Runtime's engine all take the
//! same files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine::BACKENDS;
use smelt_engine::graph::{GraphEngine, Tensor};
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::onnxruntime;
use smelt_model::safetensors::Reader;
use smelt_onnx::{Model, eval};
use tempfile::TempDir;

/// Largest error of f32 arithmetic, as a part of an output's largest value.
const TOLERANCE: f32 = 1e-5;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/yolo-tiny")
}

/// A graph with its one input and what it must give, by name.
struct Case {
    /// The folder it lies in as `model.onnx`.
    dir: TempDir,
    input: (String, Tensor),
    expect: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Case {
    fn open(name: &str) -> Self {
        let file = Reader::open(&golden().join("cases.safetensors")).unwrap();
        let read = |of: &str| {
            let front = format!("{name}/{of}/");
            let own = file.tensors().filter_map(|tensor| {
                let name = tensor.name.strip_prefix(&front)?;
                let mut bytes = vec![0; tensor.shape.iter().product::<usize>() * 4];
                file.read_at(tensor, 0, &mut bytes).unwrap();
                let numbers =
                    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
                Some((name.to_owned(), (tensor.shape.clone(), numbers.collect::<Vec<f32>>())))
            });
            own.collect::<BTreeMap<_, _>>()
        };
        let dir = TempDir::new().unwrap();
        fs::copy(golden().join(format!("{name}.onnx")), dir.path().join("model.onnx")).unwrap();
        let (input, (shape, data)) = read("in").pop_first().unwrap();
        Self { dir, input: (input, Tensor::F32 { shape, data }), expect: read("out") }
    }

    fn native(&self) -> GraphEngine {
        let out = self.dir.path().join("native");
        graph::build(self.dir.path(), Precision::F32, &out, &mut |_| {}).unwrap();
        GraphEngine::open(&out).unwrap()
    }

    #[track_caller]
    fn check<'a>(&self, found: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>) {
        let mut count = 0;
        for (name, shape, numbers) in found {
            let (expect_shape, expect) = &self.expect[name];
            assert_eq!(shape, expect_shape, "{name}");
            let largest = expect.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let pairs = numbers.iter().zip(expect);
            let error = pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(error <= TOLERANCE * largest, "{name} is off by {error} of {largest}");
            count += 1;
        }
        assert_eq!(count, self.expect.len());
    }

    #[track_caller]
    fn check_outputs(&self, names: &[smelt_backend::GraphOutput], outputs: &[Tensor]) {
        let names = names.iter().map(|output| output.name.as_str());
        let given = names.zip(outputs).map(|(name, o)| (name, o.shape(), o.floats().unwrap()));
        self.check(given);
    }
}

#[test]
fn the_native_engine_gives_what_onnxruntime_gives() {
    for name in ["yolo", "windows", "open"] {
        let case = Case::open(name);
        let engine = case.native();
        let one = engine.run(vec![case.input.1.clone()]).unwrap();
        case.check_outputs(engine.outputs(), &one);
        let names = engine.outputs().to_vec();
        let many = engine.with_threads(3).run(vec![case.input.1.clone()]).unwrap();
        for (name, (one, many)) in names.iter().zip(one.iter().zip(&many)) {
            let bits = |t: &Tensor| -> Vec<u32> {
                t.floats().unwrap().iter().map(|value| value.to_bits()).collect()
            };
            assert!(bits(one) == bits(many), "{} depends on threads", name.name);
        }
    }
}

#[test]
fn the_evaluator_gives_what_onnxruntime_gives() {
    for name in ["yolo", "windows", "open"] {
        let case = Case::open(name);
        let model = Model::read(&case.dir.path().join("model.onnx")).unwrap();
        let (input, tensor) = &case.input;
        let wide = tensor.floats().unwrap().iter().map(|&value| f64::from(value)).collect();
        let tensor = eval::Tensor::floats(smelt_onnx::ElementType::F32, tensor.shape(), wide);
        let inputs = BTreeMap::from([(input.clone(), tensor)]);
        let outputs = eval::evaluate(&model, case.dir.path(), &inputs).unwrap();
        let narrow = |tensor: &eval::Tensor| -> Vec<f32> {
            tensor.as_floats().unwrap().iter().map(|&value| value as f32).collect()
        };
        let numbers: Vec<Vec<f32>> = outputs.iter().map(narrow).collect();
        let names = model.graph.outputs.iter().map(|output| output.name.as_str());
        let all = names.zip(outputs.iter().zip(&numbers));
        case.check(all.map(|(name, (tensor, numbers))| (name, tensor.dims(), &numbers[..])));
    }
}

#[test]
fn onnxruntime_takes_detectors_whose_scales_are_constants() {
    if let Err(why) = smelt_engine::onnxruntime::find() {
        eprintln!("NOT TESTED: {why}");
        return;
    }
    for name in ["yolo", "windows", "open"] {
        let case = Case::open(name);
        let out = case.dir.path().join("onnxruntime");
        onnxruntime::build(case.dir.path(), &out, &mut |_| {}).unwrap();
        let engine = BACKENDS.graph(&out).unwrap();
        let outputs = engine.run(vec![case.input.1.clone()]).unwrap();
        case.check_outputs(engine.outputs(), &outputs);
        engine.verify_digest(&mut |_| {}).unwrap();
    }
}
