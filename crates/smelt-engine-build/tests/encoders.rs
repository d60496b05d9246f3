//! Holds engines built from exported encoders to numbers that transformers computed.
//!
//! The whole path runs: checkpoint, export, build, open, run; BERT with and without its prefix,
//! CLIP's towers with and without projections, pictures of other sizes, Qwen's towers of a grid.

use std::path::{Path, PathBuf};

use smelt_engine::graph::{GraphEngine, Tensor};
use smelt_engine_build::graph::{self, Precision};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::grid::Grid;
use smelt_model::safetensors::Reader;
use tempfile::TempDir;

/// Largest error of f32 arithmetic, as a part of the largest value.
const F32_TOLERANCE: f32 = 5e-5;
/// The same where weights are rounded to f16 and activations stay wide, as they do in the engine.
const F16_TOLERANCE: f32 = 4e-3;

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

/// The tensors `CASE/direction/NAME` of a golden's file, without the front of their names.
pub(crate) fn tensors(name: &str, front: &str) -> Vec<(String, Tensor)> {
    let file = Reader::open(&golden(name).join("cases.safetensors")).unwrap();
    let of_case = file.tensors().filter_map(|t| Some((t.name.strip_prefix(front)?.to_owned(), t)));
    let read = |(name, tensor): (String, &smelt_model::safetensors::Tensor)| {
        let mut bytes = vec![0; tensor.elements() * tensor.dtype.size_bytes()];
        file.read_at(tensor, 0, &mut bytes).unwrap();
        let shape = tensor.shape.clone();
        let tensor = if tensor.dtype == Dtype::I64 {
            let data = bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect();
            Tensor::I64 { shape, data }
        } else {
            let data = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            Tensor::F32 { shape, data }
        };
        (name, tensor)
    };
    of_case.map(read).collect()
}

/// Exports the part a case is of and builds its engine.
fn engine(dir: &Path, name: &str, case: &str, (dtype, kept): (Dtype, Precision)) -> GraphEngine {
    let checkpoint = Checkpoint::open(&golden(name).join("checkpoint")).unwrap();
    let (onnx, built) = (dir.join("onnx"), dir.join("engine"));
    if case == "encoder" {
        export::encoder(&checkpoint, dtype, &onnx, &mut |_| {}).unwrap();
    } else if case == "classifier" {
        export::classifier(&checkpoint, dtype, &onnx, &mut |_| {}).unwrap();
    } else {
        let grids: Vec<Grid> =
            case.strip_prefix("vision-").map(|grid| grid.parse().unwrap()).into_iter().collect();
        export::vision_on(&checkpoint, &grids, dtype, &onnx, &mut |_| {}).unwrap();
    }
    graph::build(&onnx, kept, &built, &mut |_| {}).unwrap();
    GraphEngine::open(&built).unwrap()
}

#[test]
fn engines_of_several_grids_share_their_weights() {
    let cases = [
        ("qwen3_vl-tiny", Precision::F32, ["32x32", "24x40", "48x16"]),
        ("qwen2_5_vl-tiny", Precision::Int8, ["24x24", "40x56", "16x32"]),
    ];
    for (name, precision, sizes) in cases {
        let dir = TempDir::new().unwrap();
        let checkpoint = Checkpoint::open(&golden(name).join("checkpoint")).unwrap();
        let build = |grids: &[Grid], built: &Path| {
            let onnx = dir.path().join("onnx");
            export::vision_on(&checkpoint, grids, Dtype::F32, &onnx, &mut |_| {}).unwrap();
            graph::build(&onnx, precision, built, &mut |_| {}).unwrap();
            std::fs::remove_dir_all(&onnx).unwrap();
            std::fs::metadata(built.join("weights.bin")).unwrap().len()
        };
        let grids = sizes.map(|grid| grid.parse().unwrap());
        let together = dir.path().join("together");
        let bytes = build(&grids, &together);
        let engines = GraphEngine::open_all(&together).unwrap();
        assert_eq!(engines.len(), grids.len());
        assert!(GraphEngine::open(&together).is_err());
        engines[0].1.verify_digest(&mut |_| {}).unwrap();
        let mut alone_bytes = 0;
        for (size, (found, engine)) in grids.iter().zip(&engines) {
            assert_eq!(*found, Some(*size));
            let alone = dir.path().join(size.to_string());
            alone_bytes += build(&[*size], &alone);
            let alone = GraphEngine::open(&alone).unwrap();
            let given = tensors(name, &format!("vision-{size}/in/"));
            let inputs = || vec![given[0].1.clone()];
            assert_eq!(engine.run(inputs()).unwrap(), alone.run(inputs()).unwrap());
        }
        assert!(bytes * 2 < alone_bytes, "{bytes} of {alone_bytes}");
    }
}

#[test]
fn a_decoder_with_a_cache_is_no_graph_engine() {
    let dir = TempDir::new().unwrap();
    let checkpoint = Checkpoint::open(&golden("llama3-tiny").join("checkpoint")).unwrap();
    let input = export::LlmInput::Ids;
    export::llm(&checkpoint, Dtype::F32, input, dir.path(), &mut |_| {}).unwrap();
    let error = graph::build(dir.path(), Precision::F32, &dir.path().join("engine"), &mut |_| {})
        .unwrap_err();
    assert!(error.to_string().contains("by llm-engine-build, from the checkpoint"), "{error}");
}

fn error(got: &Tensor, expect: &Tensor) -> f32 {
    assert_eq!(got.shape(), expect.shape());
    let (got, expect) = (got.floats().unwrap(), expect.floats().unwrap());
    let scale = expect.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
    got.iter().zip(expect).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / scale
}

/// What an engine of a case says and what transformers does, with the name of the output.
fn outputs(name: &str, case: &str, kept: (Dtype, Precision)) -> Vec<(String, Tensor, Tensor)> {
    let dir = TempDir::new().unwrap();
    let engine = engine(dir.path(), name, case, kept);
    let given = tensors(name, &format!("{case}/in/"));
    let input = |name: &str| given.iter().find(|(n, _)| n == name).unwrap().1.clone();
    let inputs = engine.inputs().iter().map(|declared| input(&declared.name)).collect();
    let outputs = engine.run(inputs).unwrap();
    let expect = tensors(name, &format!("{case}/out/"));
    assert_eq!((outputs.len(), given.len()), (expect.len(), engine.inputs().len()));
    let names = engine.outputs().iter().map(|declared| declared.name.clone());
    let expected = |name: &String| expect.iter().find(|(n, _)| n == name).unwrap().1.clone();
    let triple = |(name, got)| {
        let expect = expected(&name);
        (name, got, expect)
    };
    names.zip(outputs).map(triple).collect()
}

#[track_caller]
fn check(name: &str, case: &str, dtype: Dtype, tolerance: f32) {
    for (output, got, expect) in outputs(name, case, (dtype, Precision::F32)) {
        let error = error(&got, &expect);
        assert!(error <= tolerance, "{name} {case} {output}: {error:e} of scale");
    }
}

/// Least cosine of a row of the last axis.
fn cosine(got: &Tensor, expect: &Tensor) -> f64 {
    let width = *expect.shape().last().unwrap();
    let rows = |tensor: &Tensor| -> Vec<Vec<f64>> {
        let rows = tensor.floats().unwrap().chunks_exact(width);
        rows.map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect()
    };
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let alike = |(a, b): (Vec<f64>, Vec<f64>)| dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
    rows(got).into_iter().zip(rows(expect)).map(alike).fold(f64::INFINITY, f64::min)
}

#[track_caller]
fn check_all(name: &str, cases: &[&str]) {
    for case in cases {
        check(name, case, Dtype::F32, F32_TOLERANCE);
        check(name, case, Dtype::F16, F16_TOLERANCE);
    }
}

#[test]
fn bert_gives_the_states_of_transformers() {
    check_all("bert-tiny", &["encoder"]);
}

#[test]
fn bert_under_a_head_and_a_prefix_is_the_same_encoder() {
    check_all("bert-mlm-tiny", &["encoder"]);
}

#[test]
fn clip_sees_pictures_of_any_size_and_reads_texts() {
    check_all("clip-tiny", &["vision", "vision-48x40", "vision-24x24", "encoder"]);
}

#[test]
fn clips_towers_stand_alone_without_projections() {
    check_all("clip-vision-tiny", &["vision", "vision-48x40", "vision-24x24"]);
    check_all("clip-text-tiny", &["encoder"]);
}

#[test]
fn heads_give_the_logits_of_transformers() {
    check_all("bert-rank-tiny", &["classifier"]);
    check_all("bert-labels-tiny", &["classifier", "encoder"]);
    // Eight bits of every product, the head's among them.
    for name in ["bert-rank-tiny", "bert-labels-tiny"] {
        for (_, got, expect) in outputs(name, "classifier", (Dtype::F32, Precision::Int8)) {
            let error = error(&got, &expect);
            println!("{name}: {error:e} of scale");
            assert!(error <= 0.1, "{name}: {error:e}");
        }
    }
}

#[test]
fn towers_of_any_grid_give_the_embeddings_of_transformers() {
    check_all("qwen2_vl-tiny", &["vision-16x32", "vision-24x24", "vision-40x56"]);
    check_all("qwen2_5_vl-tiny", &["vision-16x32", "vision-24x24", "vision-40x56"]);
    check_all("qwen3_vl-tiny", &["vision-24x40", "vision-32x32", "vision-48x16"]);
    check_all("internvit6b-tiny", &["vision"]);
    check_all("smolvlm-tiny", &["vision"]);
}

#[test]
fn towers_in_eight_bits_stay_close_to_transformers() {
    for (name, case) in [
        ("internvit6b-tiny", "vision"),
        ("qwen2_5_vl-tiny", "vision-24x24"),
        ("qwen2_5_vl-tiny", "vision-40x56"),
        ("qwen3_vl-tiny", "vision-32x32"),
        ("qwen3_vl-tiny", "vision-24x40"),
        ("clip-vision-tiny", "vision"),
    ] {
        for (output, got, expect) in outputs(name, case, (Dtype::F32, Precision::Int8)) {
            let cosine = cosine(&got, &expect);
            println!("{name} {case} {output}: cosine {cosine:.5}");
            assert!(cosine >= 0.995, "{name} {case} {output}: cosine {cosine}");
        }
    }
}

#[test]
fn what_does_not_fit_the_graph_is_refused() {
    let dir = TempDir::new().unwrap();
    let engine = engine(dir.path(), "bert-tiny", "encoder", (Dtype::F32, Precision::F32));
    let ids = |shape: &[usize], id: i64| {
        let data = vec![id; shape.iter().product()];
        Tensor::I64 { shape: shape.to_vec(), data }
    };
    let refused = |inputs: Vec<Tensor>| engine.run(inputs).unwrap_err().to_string();
    let good = ids(&[1, 4], 1);
    let error = refused(vec![ids(&[4], 1), good.clone()]);
    assert!(error.contains("input \"input_ids\": shape [4]"), "{error}");
    let error = refused(vec![good.clone(), Tensor::F32 { shape: vec![1, 4], data: vec![1.0; 4] }]);
    assert!(error.contains("\"attention_mask\": it takes integers, not floats"), "{error}");
    let error = refused(vec![good.clone()]);
    assert!(error.contains("reads 2 inputs, 1 are given"), "{error}");
    let error = refused(vec![good.clone(), Tensor::I64 { shape: vec![1, 4], data: vec![1] }]);
    assert!(error.contains("do not fill"), "{error}");
    let error = refused(vec![ids(&[1, 4], 80), good]);
    assert!(error.contains("index 80 is outside 80"), "{error}");
    // Longer than the table of positions: 32 places.
    let error = refused(vec![ids(&[1, 33], 1), ids(&[1, 33], 1)]);
    assert!(error.contains("do not broadcast"), "{error}");
}
