//! Exports tiny Qwen-VL towers and a large InternViT, and evaluates the graphs against what
//! transformers computed.

use std::fs;
use std::path::Path;

use smelt_onnx::eval::evaluate;
use smelt_onnx::{DATA_FILE, Data, ElementType, MODEL_FILE, Model};
use tempfile::TempDir;

use super::{ExportError, GRIDS_FILE, vision, vision_on};
use crate::checkpoint::{Checkpoint, WEIGHTS_FILE};
use crate::dtype::Dtype;
use crate::golden::{Golden, check_close};
use crate::grid::Grid;

/// The largest errors, as parts of the largest value of an output.
const F32: f64 = 5e-5;
/// Weights and every activation have 11 bits.
const F16: f64 = 1e-2;
/// Weights and every activation have 8 bits.
const BF16: f64 = 8e-2;

const QWEN2: &str = "qwen2_vl-tiny";
const QWEN25: &str = "qwen2_5_vl-tiny";
const QWEN3: &str = "qwen3_vl-tiny";

fn grids(texts: &[&str]) -> Vec<Grid> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The grids of a golden's cases.
fn golden_grids(golden: &Golden) -> Vec<Grid> {
    let cases = golden.cases();
    let names: Vec<&str> = cases.iter().filter_map(|case| case.strip_prefix("vision-")).collect();
    assert_eq!(names.len(), 3);
    grids(&names)
}

fn export(checkpoint: &Checkpoint, grids: &[Grid], dtype: Dtype) -> Result<TempDir, ExportError> {
    let dir = tempfile::tempdir().unwrap();
    vision_on(checkpoint, grids, dtype, dir.path(), &mut |_| {}).map(|()| dir)
}

/// Evaluates the graph `file` on a case.
#[track_caller]
fn check_graph(golden: &Golden, dir: &Path, file: &str, case: &str, bound: f64) {
    let model = Model::read(&dir.join(file)).unwrap();
    let given = golden.tensors(case, "in");
    let cast =
        |info: &smelt_onnx::ValueInfo| (info.name.clone(), given[&info.name].cast(info.dtype));
    let inputs = model.graph.inputs.iter().map(cast).collect();
    let outputs = evaluate(&model, dir, &inputs).unwrap();
    let expected = golden.tensors(case, "out");
    assert_eq!(outputs.len(), expected.len(), "{case}");
    for (info, found) in model.graph.outputs.iter().zip(&outputs) {
        let (what, expect) = (format!("{case} {}", info.name), &expected[&info.name]);
        assert_eq!(found.dims(), expect.dims(), "{what}");
        check_close(&what, found.as_floats().unwrap(), expect.as_floats().unwrap(), bound);
    }
}

#[track_caller]
fn check(name: &str, dtype: Dtype, bound: f64) {
    let golden = Golden::open(name);
    let grids = golden_grids(&golden);
    let dir = export(&golden.checkpoint(), &grids, dtype).unwrap();
    for grid in grids {
        let (file, case) = (format!("grid-{grid}.onnx"), format!("vision-{grid}"));
        check_graph(&golden, dir.path(), &file, &case, bound);
    }
}

#[test]
fn towers_over_grids_are_those_of_transformers() {
    check(QWEN2, Dtype::F32, F32);
    check(QWEN25, Dtype::F32, F32);
    check(QWEN3, Dtype::F32, F32);
}

#[test]
fn narrow_towers_stay_close() {
    for name in [QWEN2, QWEN25, QWEN3] {
        check(name, Dtype::F16, F16);
        check(name, Dtype::BF16, BF16);
    }
}

#[test]
fn the_large_intern_vit_is_that_of_transformers() {
    let golden = Golden::open("internvit6b-tiny");
    for (dtype, bound) in [(Dtype::F32, F32), (Dtype::F16, F16), (Dtype::BF16, BF16)] {
        let dir = export(&golden.checkpoint(), &[], dtype).unwrap();
        check_graph(&golden, dir.path(), MODEL_FILE, "vision", bound);
    }
    // Among other sizes its own is the same graph, and its positions are its own.
    let several = grids(&["28x28", "56x56", "112x112"]);
    let dir = export(&golden.checkpoint(), &several, Dtype::F32).unwrap();
    check_graph(&golden, dir.path(), "grid-56x56.onnx", "vision", F32);
    let error = export(&golden.checkpoint(), &grids(&["56x112"]), Dtype::F32).unwrap_err();
    assert!(error.to_string().contains("the tower takes square tiles"), "{error}");
}

#[test]
fn smolvlms_tower_is_that_of_transformers_for_tiles_of_one_size() {
    let golden = Golden::open("smolvlm-tiny");
    for (dtype, bound) in [(Dtype::F32, F32), (Dtype::F16, F16), (Dtype::BF16, BF16)] {
        let dir = export(&golden.checkpoint(), &[], dtype).unwrap();
        check_graph(&golden, dir.path(), MODEL_FILE, "vision", bound);
    }
    let error = export(&golden.checkpoint(), &grids(&["32x32"]), Dtype::F32).unwrap_err();
    assert_eq!(error.to_string(), "the tower takes tiles of 18x18 alone; leave \"grids\" out");
}

#[test]
fn one_grid_makes_the_usual_file_and_several_share_their_weights() {
    let golden = Golden::open(QWEN25);
    let (checkpoint, all) = (golden.checkpoint(), golden_grids(&golden));
    let one = export(&checkpoint, &all[..1], Dtype::F16).unwrap();
    check_graph(&golden, one.path(), MODEL_FILE, &format!("vision-{}", all[0]), F16);
    let size = |dir: &TempDir| fs::metadata(dir.path().join(DATA_FILE)).unwrap().len();
    let several = export(&checkpoint, &all, Dtype::F16).unwrap();
    let again = export(&checkpoint, &all, Dtype::F16).unwrap();
    let mut files: Vec<_> = fs::read_dir(several.path()).unwrap().map(|e| e.unwrap()).collect();
    files.sort_by_key(fs::DirEntry::file_name);
    for entry in &files {
        let other = again.path().join(entry.file_name());
        assert!(fs::read(entry.path()).unwrap() == fs::read(other).unwrap(), "{entry:?}");
    }
    assert_eq!(files.len(), all.len() + 2);
    // Ten tables of a page or two each, and not the weights again.
    assert!(size(&several) < size(&one) + (200 << 10), "{} {}", size(&several), size(&one));
}

#[test]
fn the_list_of_grids_names_files_and_sizes() {
    let golden = Golden::open(QWEN3);
    let dir = export(&golden.checkpoint(), &grids(&["24x40", "48x16"]), Dtype::F32).unwrap();
    let text = fs::read_to_string(dir.path().join(GRIDS_FILE)).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expect = serde_json::json!({
        "format": 1, "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
        "grids": [
            {"file": "grid-24x40.onnx", "height": 24, "width": 40, "patches": 60, "tokens": 15},
            {"file": "grid-48x16.onnx", "height": 48, "width": 16, "patches": 48, "tokens": 12},
        ],
    });
    assert_eq!(record, expect);
    let usual = tempfile::tempdir().unwrap();
    vision(&golden.checkpoint(), Dtype::F16, usual.path(), &mut |_| {}).unwrap();
    for file in ["grid-128x128.onnx", "grid-96x160.onnx", "grid-160x96.onnx"] {
        assert!(usual.path().join(file).exists(), "{file}");
    }
}

#[test]
fn grids_that_do_not_fit_leave_nothing() {
    let checkpoint = Golden::open(QWEN25).checkpoint();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("made");
    let error = vision_on(&checkpoint, &grids(&["24x20"]), Dtype::F32, &out, &mut |_| {});
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("grid 24x20: both sides must be multiples of 8"), "{error}");
    assert!(!out.exists());
}

#[test]
fn a_learned_position_that_is_no_number_is_named() {
    let dir = tempfile::tempdir().unwrap();
    Golden::open(QWEN3).copy_checkpoint(dir.path());
    let weights = dir.path().join(WEIGHTS_FILE);
    let mut tensors = crate::sample::load(&weights);
    let positions = crate::sample::named(&mut tensors, super::qwen3_vl::POSITIONS);
    // Row 7, channel 3, of rows of 32.
    positions.1[2 * (7 * 32 + 3)..][..2].copy_from_slice(&0x7FC0_u16.to_le_bytes());
    crate::sample::save(&weights, &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = export(&checkpoint, &grids(&["24x40"]), Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("pos_embed.weight holds NaN at element 227"), "{error}");
}

#[test]
fn graphs_compute_no_shapes_and_norms_are_in_f32() {
    let golden = Golden::open(QWEN25);
    let dir = export(&golden.checkpoint(), &grids(&["40x56"]), Dtype::F16).unwrap();
    let graph = Model::read(&dir.path().join(MODEL_FILE)).unwrap().graph;
    let mut ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
    // Four blocks of two norms, and that of the merger.
    assert_eq!(ops.iter().filter(|op| **op == "Cast").count(), 2 * 9);
    ops.sort_unstable();
    ops.dedup();
    let expect = "Add Cast Concat Div Erf Gather Gemm MatMul Mul ReduceMean Reshape Sigmoid \
                  Softmax Split Sqrt Sub Transpose";
    assert_eq!(ops.join(" "), expect);
    let is_stored =
        |tensor: &&smelt_onnx::Initializer| matches!(tensor.data, Data::External { .. });
    assert!(
        graph
            .initializers
            .iter()
            .filter(is_stored)
            .all(|tensor| { [ElementType::F16, ElementType::I64].contains(&tensor.dtype) })
    );
}
