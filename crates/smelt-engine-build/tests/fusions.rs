//! States what the graph of every exporter becomes: which operators are done together.
//!
//! An exporter that writes another graph, or a pattern that finds it no more, changes these counts.

use std::path::Path;

use smelt_engine::graph::{GraphEngine, Tensor};
use smelt_engine_build::graph::{self, Precision};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use tempfile::TempDir;

/// Inputs as engines are tried with: one of everything open, eight tokens.
fn inputs(engine: &GraphEngine) -> Vec<Tensor> {
    let input = |declared: &smelt_backend::GraphInput| {
        let size = |(axis, dim): (usize, &Option<usize>)| dim.unwrap_or([1, 8][axis.min(1)]);
        let shape: Vec<usize> = declared.dims.iter().enumerate().map(size).collect();
        let count = shape.iter().product();
        match declared.integer {
            true => Tensor::I64 { shape, data: vec![1; count] },
            false => Tensor::F32 { shape, data: vec![0.5; count] },
        }
    };
    engine.inputs().iter().map(input).collect()
}

/// The tasks of the engine of a golden's `part`: `vision`, a grid, or `encoder`.
fn tasks(name: &str, part: &str, dtype: Dtype, precision: Precision) -> String {
    let dir = TempDir::new().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(name);
    let checkpoint = Checkpoint::open(&golden.join("checkpoint")).unwrap();
    let (onnx, built) = (dir.path().join("onnx"), dir.path().join("engine"));
    match part {
        "encoder" => export::encoder(&checkpoint, dtype, &onnx, &mut |_| {}).unwrap(),
        "vision" => export::vision(&checkpoint, dtype, &onnx, &mut |_| {}).unwrap(),
        grid => {
            let grids = [grid.parse().unwrap()];
            export::vision_on(&checkpoint, &grids, dtype, &onnx, &mut |_| {}).unwrap();
        }
    }
    graph::build(&onnx, precision, &built, &mut |_| {}).unwrap();
    let engine = GraphEngine::open(&built).unwrap();
    let survey = engine.survey(&inputs(&engine)).unwrap();
    let counts = survey.tasks.iter().map(|(task, count)| format!("{count} {task}"));
    counts.collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn check(name: &str, part: &str, f32: &str, f16: &str) {
    assert_eq!(tasks(name, part, Dtype::F32, Precision::F32), f32, "{name} {part} f32");
    assert_eq!(tasks(name, part, Dtype::F32, Precision::Int8), f32, "{name} {part} int8");
    assert_eq!(tasks(name, part, Dtype::F16, Precision::F32), f16, "{name} {part} f16");
}

#[test]
fn internvit_is_linear_layers_attention_and_norms() {
    // Copies: the patches, their rows behind the class row, and two of the pixel shuffle.
    let tower = "3 attention, 4 copy, 1 fill, 15 linear, 11 map, 7 norm";
    check("internvl3-tiny", "vision", tower, tower);
    check("internvl3_5-tiny", "vision", tower, tower);
}

#[test]
fn the_large_internvit_norms_queries_and_keys_by_themselves() {
    // RMSNorm rounds to f16 before its weight there, which is a map of its own.
    check(
        "internvit6b-tiny",
        "vision",
        "3 attention, 10 copy, 1 fill, 15 linear, 11 map, 13 norm",
        "3 attention, 10 copy, 1 fill, 15 linear, 23 map, 13 norm",
    );
}

#[test]
fn qwens_towers_rotate_in_maps_that_write_where_they_belong() {
    // The operators are the gathers that put rows in the order of the windows and back.
    let masked = "4 attention, 23 linear, 29 map, 9 norm, 2 operator";
    let rounded = "4 attention, 23 linear, 38 map, 9 norm, 2 operator";
    check("qwen2_5_vl-tiny", "24x24", masked, rounded);
    check("qwen2_5_vl-tiny", "40x56", masked, rounded);
    let tower = "4 attention, 23 linear, 32 map, 11 norm";
    check("qwen3_vl-tiny", "32x32", tower, tower);
}

#[test]
fn encoders_are_fused_under_open_shapes() {
    let tower = "3 attention, 2 copy, 1 fill, 20 linear, 10 map, 8 norm";
    check("clip-tiny", "vision", tower, tower);
    // Operators that read or give integers run by themselves.
    let text = "2 attention, 13 linear, 8 map, 5 norm, 8 operator";
    check("clip-tiny", "encoder", text, text);
    check(
        "bert-tiny",
        "encoder",
        "3 attention, 18 linear, 11 map, 7 norm, 2 operator",
        "3 attention, 18 linear, 18 map, 7 norm, 2 operator",
    );
}
