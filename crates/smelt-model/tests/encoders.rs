//! Holds exported encoders and CLIP's vision tower, in every float type, to numbers that
//! transformers computed: the graphs are evaluated as the ONNX standard says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use smelt_model::grid::Grid;
use smelt_model::safetensors::Reader;
use smelt_onnx::eval::{Tensor, evaluate};
use smelt_onnx::{ElementType, MODEL_FILE, Model};

/// Largest errors as parts of the largest value, by type; f16 and bf16 round after every node.
const TYPES: [(Dtype, ElementType, f64); 3] = [
    (Dtype::F32, ElementType::F32, 5e-5),
    (Dtype::F16, ElementType::F16, 5e-3),
    (Dtype::BF16, ElementType::Bf16, 4e-2),
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name)
}

/// A tensor of a golden's file, floats as `float`.
fn tensor(file: &Reader, name: &str, float: ElementType) -> Tensor {
    let stored = file.get(name).unwrap();
    let mut bytes = vec![0; stored.elements() * stored.dtype.size_bytes()];
    file.read_at(stored, 0, &mut bytes).unwrap();
    if stored.dtype == Dtype::I64 {
        return Tensor::from_bytes(ElementType::I64, &stored.shape, &bytes).unwrap();
    }
    let wide = Tensor::from_bytes(ElementType::F32, &stored.shape, &bytes).unwrap();
    Tensor::floats(float, &stored.shape, wide.as_floats().unwrap().to_vec())
}

/// How much wider the bounds of narrow types are for logits: sums of large terms that nearly cancel.
const LOGITS: f64 = 2.0;

#[track_caller]
fn check(name: &str, case: &str) {
    let checkpoint = Checkpoint::open(&golden(name).join("checkpoint")).unwrap();
    let file = Reader::open(&golden(name).join("cases.safetensors")).unwrap();
    for (dtype, float, bound) in TYPES {
        let is_wide = case == "classifier" && dtype != Dtype::F32;
        let bound = if is_wide { LOGITS * bound } else { bound };
        let out = tempfile::tempdir().unwrap();
        if case == "encoder" {
            export::encoder(&checkpoint, dtype, out.path(), &mut |_| {}).unwrap();
        } else if case == "classifier" {
            export::classifier(&checkpoint, dtype, out.path(), &mut |_| {}).unwrap();
        } else {
            let grid = case.strip_prefix("vision-").map(|grid| grid.parse().unwrap());
            let grids: Vec<Grid> = grid.into_iter().collect();
            export::vision_on(&checkpoint, &grids, dtype, out.path(), &mut |_| {}).unwrap();
        }
        let model = Model::read(&out.path().join(MODEL_FILE)).unwrap();
        let input = |input: &smelt_onnx::ValueInfo| {
            (input.name.clone(), tensor(&file, &format!("{case}/in/{}", input.name), float))
        };
        let inputs: BTreeMap<String, Tensor> = model.graph.inputs.iter().map(input).collect();
        let outputs = evaluate(&model, out.path(), &inputs).unwrap();
        for (info, found) in model.graph.outputs.iter().zip(&outputs) {
            let expect = tensor(&file, &format!("{case}/out/{}", info.name), ElementType::F32);
            assert_eq!((found.dims(), found.dtype()), (expect.dims(), float));
            let (found, expect) = (found.as_floats().unwrap(), expect.as_floats().unwrap());
            let scale = expect.iter().fold(0.0f64, |scale, value| scale.max(value.abs()));
            let pairs = found.iter().zip(expect);
            let error = pairs.fold(0.0f64, |most, (a, b)| most.max((a - b).abs())) / scale;
            assert!(error <= bound, "{name} {case} {dtype} {}: {error:e}", info.name);
        }
    }
}

#[test]
fn bert_means_the_same_in_every_type() {
    check("bert-tiny", "encoder");
    check("bert-mlm-tiny", "encoder");
}

#[test]
fn heads_of_bert_mean_the_same_in_every_type() {
    check("bert-rank-tiny", "classifier");
    check("bert-labels-tiny", "classifier");
    // The encoder alone, without kinds of tokens, is what it was.
    check("bert-labels-tiny", "encoder");
}

#[test]
fn clip_sees_the_same_in_every_type() {
    check("clip-tiny", "vision");
    check("clip-tiny", "vision-48x40");
    check("clip-vision-tiny", "vision-24x24");
}

#[test]
fn clip_reads_the_same_in_every_type() {
    check("clip-tiny", "encoder");
    check("clip-text-tiny", "encoder");
}

#[test]
fn norms_of_bert_stay_wide_and_nothing_else_does() {
    let out = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(&golden("bert-tiny").join("checkpoint")).unwrap();
    export::encoder(&checkpoint, Dtype::F16, out.path(), &mut |_| {}).unwrap();
    let graph = Model::read(&out.path().join(MODEL_FILE)).unwrap().graph;
    for weight in graph.initializers.iter().filter(|tensor| !tensor.name.starts_with('/')) {
        let wide = weight.name.contains("LayerNorm");
        let expect = if wide { ElementType::F32 } else { ElementType::F16 };
        assert_eq!(weight.dtype, expect, "{}", weight.name);
    }
    let mut ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
    ops.sort_unstable();
    ops.dedup();
    let expect = "Add Cast Concat Div Erf Gather Gemm LayerNormalization MatMul Mul Reshape Shape \
                  Slice Softmax Sub Transpose Unsqueeze";
    assert_eq!(ops.join(" "), expect);
}
