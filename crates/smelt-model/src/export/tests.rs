//! Exports the tiny synthetic model and looks at what came out.

use std::fs;
use std::path::Path;

use smelt_onnx::{DATA_FILE, Data, Dim, ElementType, MODEL_FILE, Model, read_initializer};
use tempfile::TempDir;

use super::{ExportError, vision};
use crate::checkpoint::{Checkpoint, WEIGHTS_FILE};
use crate::dtype::Dtype;
use crate::quantize::{Options, Scheme, quantize};
use crate::synthetic;

fn tiny() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    synthetic::write("internvl3-tiny", dir.path(), &mut |_| {}).unwrap();
    dir
}

fn export(checkpoint: &Path, dtype: Dtype) -> Result<TempDir, ExportError> {
    let out = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(checkpoint)?;
    vision(&checkpoint, dtype, &out.path().join("made"), &mut |_| {}).map(|()| out)
}

fn made(out: &TempDir, file: &str) -> Vec<u8> {
    fs::read(out.path().join("made").join(file)).unwrap()
}

#[track_caller]
fn check(dtype: Dtype, element_type: ElementType) {
    let checkpoint = tiny();
    let (one, two) =
        (export(checkpoint.path(), dtype).unwrap(), export(checkpoint.path(), dtype).unwrap());
    assert!(made(&one, MODEL_FILE) == made(&two, MODEL_FILE), "the graph differs");
    assert!(made(&one, DATA_FILE) == made(&two, DATA_FILE), "the weights differ");

    let graph = Model::read(&one.path().join("made").join(MODEL_FILE)).unwrap().graph;
    let tiles = Dim::Symbol("tiles".to_owned());
    let (input, output) = (&graph.inputs[0], &graph.outputs[0]);
    assert_eq!((input.name.as_str(), input.dtype), ("pixel_values", element_type));
    assert_eq!((output.name.as_str(), output.dtype), ("image_embeds", element_type));
    let sizes = |sizes: &[usize]| sizes.iter().map(|size| Dim::Fixed(*size)).collect::<Vec<_>>();
    assert_eq!(input.dims, Some([vec![tiles.clone()], sizes(&[3, 56, 56])].concat()));
    assert_eq!(output.dims, Some([vec![tiles], sizes(&[4, 64])].concat()));
    for tensor in &graph.initializers {
        assert!(tensor.dtype == element_type || tensor.dtype == ElementType::I64);
    }
}

#[test]
fn every_float_exports_the_same_bytes_twice() {
    check(Dtype::F32, ElementType::F32);
    check(Dtype::F16, ElementType::F16);
    check(Dtype::BF16, ElementType::Bf16);
}

#[test]
fn every_weight_is_there_with_its_values() {
    let dir = tiny();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let out = export(dir.path(), Dtype::F32).unwrap();
    let out_dir = out.path().join("made");
    let graph = Model::read(&out_dir.join(MODEL_FILE)).unwrap().graph;
    let mut seen = 0;
    for tensor in &graph.initializers {
        let Data::External { offset, length, .. } = tensor.data else { continue };
        assert_eq!(offset % 4096, 0);
        let mut bytes = vec![0; length as usize];
        read_initializer(&out_dir, tensor, 0, &mut bytes).unwrap();
        let mut values = Vec::new();
        assert!(Dtype::F32.widen(&bytes, &mut values));
        assert!(values == checkpoint.read_f32(&tensor.name).unwrap(), "{}", tensor.name);
        seen += 1;
    }
    let language = |name: &str| name.starts_with("language_model.");
    assert_eq!(seen, checkpoint.tensors().filter(|tensor| !language(&tensor.name)).count());
}

#[test]
fn the_graph_computes_no_shapes_and_branches_nowhere() {
    let out = export(tiny().path(), Dtype::BF16).unwrap();
    let graph = Model::read(&out.path().join("made").join(MODEL_FILE)).unwrap().graph;
    let mut ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
    ops.sort_unstable();
    ops.dedup();
    let expect = "Add Div Erf Gemm LayerNormalization MatMul Mul Pad Reshape Slice Softmax Split \
                  Transpose";
    assert_eq!(ops.join(" "), expect);
}

/// Overwrites the first element of a stored bf16 tensor.
fn patch(checkpoint: &Path, tensor: &str, bits: u16) {
    let path = checkpoint.join(WEIGHTS_FILE);
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    assert_eq!(table[tensor]["dtype"], "BF16");
    let at = 8 + header + table[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    fs::write(&path, bytes).unwrap();
}

#[test]
fn a_weight_beyond_f16_is_refused_by_name() {
    let tensor = "vision_model.encoder.layers.1.mlp.fc2.weight";
    let dir = tiny();
    patch(dir.path(), tensor, 0xC780); // -65536
    let error = export(dir.path(), Dtype::F16).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("tensor {tensor} holds -65536, beyond f16's 65504; export in bf16 or f32")
    );
    export(dir.path(), Dtype::BF16).unwrap();
    patch(dir.path(), tensor, 0x477F); // 65280
    export(dir.path(), Dtype::F16).unwrap();
}

#[test]
fn a_weight_that_is_not_finite_is_refused_by_name_and_place() {
    let tensor = "vision_model.encoder.layers.1.mlp.fc2.weight";
    for (bits, value) in [(0x7FC0, "NaN"), (0x7F80, "inf"), (0xFF80, "-inf")] {
        let dir = tiny();
        patch(dir.path(), tensor, bits);
        // Copied as it is, rounded and widened: all see it.
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            let error = export(dir.path(), dtype).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("tensor {tensor} holds {value} at element 0; ")),
                "{error}"
            );
        }
    }
}

#[test]
fn only_floats_are_exported() {
    let error = export(tiny().path(), Dtype::I8).unwrap_err().to_string();
    assert_eq!(error, "cannot export a graph in I8; use f32, f16 or bf16");
}

#[test]
fn a_quantised_checkpoint_has_no_tower() {
    let (dir, out) = (tiny(), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    quantize(&checkpoint, &Options::plain(Scheme::Int8), out.path(), &mut |_| {}).unwrap();
    let error = export(out.path(), Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("has no vision tower"), "{error}");
}
