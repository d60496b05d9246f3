//! Says about what an engine of a vision tower will take on disk, before there is a graph of it.
//!
//! Weights of products lie as [`super::pack`] puts them, all else as it was exported.  What an export makes beside
//! weights (tables of positions for each size of pictures) is not counted: some thousandths of a tower of true size.

use smelt_engine::engine_file::{Layout, TensorSpec, weights_bytes};
use smelt_engine::graph::{ProductFile, scale_name};
use smelt_tensor::dtype::Dtype;

use super::Precision;

/// About how many bytes the file of weights of an engine takes whose graph holds `tensors` of type `dtype`.
pub fn tower_bytes(tensors: &[(String, Vec<usize>)], dtype: Dtype, precision: Precision) -> u64 {
    let specs: Vec<TensorSpec> =
        tensors.iter().flat_map(|tensor| specs(tensor, dtype, precision)).collect();
    weights_bytes(&specs).unwrap_or(u64::MAX)
}

fn specs(
    (name, shape): &(String, Vec<usize>),
    dtype: Dtype,
    precision: Precision,
) -> Vec<TensorSpec> {
    let spec = |name: String, dtype, shape: &[usize], layout| TensorSpec {
        name,
        dtype,
        shape: shape.to_vec(),
        layout,
    };
    if !is_product(name, shape) {
        return vec![spec(name.clone(), dtype, shape, Layout::Rows)];
    }
    let stored = ProductFile { shape: shape.clone(), transposed: false }.stored_shape();
    match precision {
        Precision::F32 => vec![spec(name.clone(), dtype, &stored, Layout::Stripes)],
        Precision::Int8 => vec![
            spec(name.clone(), Dtype::I8, &stored, Layout::Quads),
            spec(scale_name(name), Dtype::F32, &stored[..1], Layout::Stripes),
        ],
    }
}

/// Whether a product reads the tensor: a matrix or the weight of a convolution, but no table of positions.
fn is_product(name: &str, shape: &[usize]) -> bool {
    let is_table = ["position_embedding", "pos_embed"].iter().any(|table| name.contains(table));
    shape.len() != 1 && shape.len() != 3 && !is_table
}

#[cfg(test)]
mod tests {
    use std::fs;

    use smelt_model::checkpoint::Checkpoint;
    use smelt_model::export;
    use smelt_model::model::ModelPart;
    use smelt_model::synthetic;

    use super::*;

    #[test]
    fn a_tower_takes_about_what_was_said() {
        for name in ["internvl3-tiny", "smolvlm-tiny"] {
            let [dir, onnx, out] = [0; 3].map(|_| tempfile::tempdir().unwrap());
            synthetic::write(name, dir.path(), &mut |_| {}).unwrap();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            export::vision(&checkpoint, Dtype::F16, onnx.path(), &mut |_| {}).unwrap();
            let tensors = checkpoint.model().tensors(&[ModelPart::Vision]);
            for precision in [Precision::F32, Precision::Int8] {
                super::super::build(onnx.path(), precision, out.path(), &mut |_| {}).unwrap();
                let found = fs::metadata(out.path().join("weights.bin")).unwrap().len();
                let said = tower_bytes(&tensors, Dtype::F16, precision);
                // What is beside weights counts in a tiny one, and is a page or two.
                assert!(found.abs_diff(said) <= found / 20 + 8192, "{name}: {said}, took {found}");
            }
        }
    }
}
