//! Holds the ranges that are seen of a graph to what the evaluator computes of every value, and what is quantised by them
//! to what the graph said before.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_backend::Tensor;
use smelt_engine_build::graph::{Method, Observer, RANGES_FILE, Ranges};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_onnx::surgery::{Consume, Rule, apply};
use smelt_onnx::{ElementType, Model, ValueInfo, eval};
use tempfile::TempDir;

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(path)
}

/// Numbers in waves, as a picture has them: different for each `seed`.
fn picture(shape: &[usize], seed: usize) -> Tensor {
    let number = |at: usize| (((at * 7 + seed * 1301) % 997) as f32 / 997.0).sin() * 0.9;
    let data = (0..shape.iter().product()).map(number).collect();
    Tensor::F32 { shape: shape.to_vec(), data }
}

fn evaluated(model: &Model, dir: &Path, input: &Tensor) -> Vec<eval::Tensor> {
    let Tensor::F32 { shape, data } = input else { panic!("pictures are floats") };
    let data = data.iter().map(|number| f64::from(*number)).collect();
    let name = model.graph.inputs[0].name.clone();
    let inputs = BTreeMap::from([(name, eval::Tensor::floats(ElementType::F32, shape, data))]);
    eval::evaluate(model, dir, &inputs).unwrap()
}

/// A tower of the smallest model, as a folder with `model.onnx`.
fn tower() -> TempDir {
    let dir = TempDir::new().unwrap();
    let checkpoint = Checkpoint::open(&golden("internvl3-tiny/checkpoint")).unwrap();
    let out = dir.path().join("graph");
    export::vision(&checkpoint, Dtype::F32, &out, &mut |_| {}).unwrap();
    dir
}

/// The least and the largest number of every value, by the evaluator.
fn seen(model: &Model, dir: &Path, inputs: &[Tensor]) -> BTreeMap<String, [f64; 2]> {
    let mut all = model.clone();
    let names = all.graph.nodes.iter().flat_map(|node| &node.outputs).cloned();
    let info = |name| ValueInfo { name, dtype: ElementType::F32, dims: None };
    all.graph.outputs = names.map(info).collect();
    let mut bounds = BTreeMap::new();
    for input in inputs {
        let values = evaluated(&all, dir, input);
        for (info, value) in all.graph.outputs.iter().zip(values) {
            for &number in value.as_floats().into_iter().flatten() {
                let [least, most] = bounds.entry(info.name.clone()).or_insert([f64::MAX, f64::MIN]);
                (*least, *most) = (least.min(number), most.max(number));
            }
        }
    }
    bounds
}

fn observed(file: &Path, inputs: &[Tensor]) -> Observer {
    let scratch = TempDir::new().unwrap();
    let mut observer = Observer::open(file, &scratch.path().join("engine"), &mut |_| {}).unwrap();
    inputs.iter().for_each(|input| observer.run(vec![input.clone()]).unwrap());
    observer
}

#[track_caller]
fn check(file: &Path, inputs: &[Tensor]) -> Observer {
    let model = Model::read(file).unwrap();
    let observer = observed(file, inputs);
    let found = observer.ranges(Method::Max);
    assert_eq!(found.runs, inputs.len());
    let expect = seen(&model, file.parent().unwrap(), inputs);
    let mut compared = 0;
    for (name, range) in &found.values {
        let Some(&[least, most]) = expect.get(name) else {
            assert_eq!(*name, model.graph.inputs[0].name, "only inputs are given by no node");
            continue;
        };
        let room = 1e-4 * least.abs().max(most.abs()).max(1e-3);
        let off = (f64::from(range.min) - least).abs().max((f64::from(range.max) - most).abs());
        assert!(off <= room, "{name}: {range:?}, not {least} to {most}");
        assert_eq!(range.threshold, range.min.abs().max(range.max.abs()));
        compared += 1;
    }
    // What follows from constants alone is no value of a picture.
    assert!(compared * 10 > expect.len() * 7, "{compared} of {}", expect.len());
    observer
}

/// By how much `rule` changes what the graph says of a picture that it was not calibrated by: a part of the largest number.
fn changed_by(file: &Path, thresholds: BTreeMap<String, f32>, input: &Tensor) -> f64 {
    let (dir, model) = (file.parent().unwrap(), Model::read(file).unwrap());
    let out = TempDir::new().unwrap();
    let made = out.path().join("made");
    let rule = Rule::InsertQdq { thresholds, except: Vec::new() };
    apply(file, &rule, &made, Consume::No).unwrap();
    let next = Model::read(&made.join("model.onnx")).unwrap();
    let [before, after] = [evaluated(&model, dir, input), evaluated(&next, &made, input)];
    let mut worst = 0.0f64;
    for (before, after) in before.iter().zip(&after) {
        let [before, after] = [before, after].map(|tensor| tensor.as_floats().unwrap());
        let largest = before.iter().fold(0.0f64, |most, it| most.max(it.abs()));
        let error: f64 = before.iter().zip(after).map(|(a, b)| (a - b).powi(2)).sum();
        worst = worst.max((error / before.len() as f64).sqrt() / largest);
    }
    worst
}

#[test]
fn a_detector_is_seen_as_it_is_and_quantised_by_that() {
    let dir = TempDir::new().unwrap();
    // People's files have names of their own.
    let file = dir.path().join("yolo-tiny.onnx");
    fs::copy(golden("yolo-tiny/yolo.onnx"), &file).unwrap();
    let shape = [1, 3, 64, 96];
    let pictures = [1, 2, 3].map(|seed| picture(&shape, seed));
    let observer = check(&file, &pictures);
    let another = picture(&shape, 9);
    let wide = changed_by(&file, observer.ranges(Method::Max).thresholds(), &another);
    assert!(wide < 0.02, "{wide}");
    // Ranges that nobody measured say nonsense: what the scales are matters.
    let made_up = observer.ranges(Method::Max).thresholds().into_keys().map(|name| (name, 0.05));
    let nonsense = changed_by(&file, made_up.collect(), &another);
    assert!(nonsense > 5.0 * wide, "{nonsense} is no worse than {wide}");
}

#[test]
fn a_tower_is_seen_as_it_is_and_quantised_by_that() {
    let dir = tower();
    let file = dir.path().join("graph/model.onnx");
    let model = Model::read(&file).unwrap();
    let side = match model.graph.inputs[0].dims.as_deref() {
        Some([_, _, smelt_onnx::Dim::Fixed(side), _]) => *side,
        other => panic!("{other:?}"),
    };
    let shape = [1, 3, side, side];
    let observer = check(&file, &[1, 2, 3, 4].map(|seed| picture(&shape, seed)));
    let another = picture(&shape, 11);
    for method in [Method::Max, Method::Percentile, Method::Entropy] {
        let off = changed_by(&file, observer.ranges(method).thresholds(), &another);
        assert!(off < 0.03, "{method:?}: {off}");
    }
}

#[test]
fn ranges_are_read_as_they_were_written_and_nothing_else_is() {
    let dir = TempDir::new().unwrap();
    let ranges = observed(&golden("yolo-tiny/yolo.onnx"), &[picture(&[1, 3, 64, 96], 5)]);
    let ranges = ranges.ranges(Method::Entropy);
    ranges.write(dir.path()).unwrap();
    assert_eq!(Ranges::read(dir.path()).unwrap(), ranges);
    let file = dir.path().join(RANGES_FILE);
    let text = fs::read_to_string(&file).unwrap();
    let refused = |text: String, words: &str| {
        fs::write(&file, text).unwrap();
        let why = Ranges::read(dir.path()).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    };
    refused(text.replace("\"format\": 1", "\"format\": 2"), "it is of format 2, not 1");
    refused(text.replacen("\"threshold\": ", "\"threshold\": -", 1), "no magnitude");
    refused(text.replacen("\"threshold\": ", "\"threshold\": 1e99, \"x\": ", 1), RANGES_FILE);
    refused(text[..text.len() / 2].to_owned(), "EOF");
    fs::remove_file(&file).unwrap();
    assert!(Ranges::read(dir.path()).unwrap_err().to_string().contains(RANGES_FILE));
}
