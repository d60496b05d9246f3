//! Finds weights that compressed-tensors stored in its "pack-quantized" format.
//!
//! `weight_packed` I32 `[out, in/8]` is packed along the inputs in natural order, each quant offset
//! by 8 (by 128 for 8 bits); `weight_scale` `[out, in/g]`; `weight_zero_point` I32 `[out/8, in/g]`,
//! packed along the outputs with the same offset, where asymmetric; `weight_shape` I64 `[2]`, since
//! words pad rows; `weight_g_idx` I32 `[in]` with act-order.
//! Source: `compressed_tensors/compressors/pack_quantized` of compressed-tensors 0.20.
//! Knows nothing of how quants are presented.

use crate::dtype::Dtype;
use crate::safetensors::Tensor;

use super::PackedError;
use super::quantization::Layer;
use super::stored::{Finder, Stored};
use super::words::{Along, NATURAL, WordLayout};

/// The tensor that tells a packed module from one that was not converted.
pub(crate) const QUANTS: &str = "weight_packed";

/// How quants of `bits` bits lie.
pub(crate) fn quants_grid(bits: u32) -> WordLayout {
    WordLayout { bits, along: Along::Columns, turned: false, lanes: NATURAL }
}

/// How zeros of `bits` bits lie.
pub(crate) fn zeros_grid(bits: u32) -> WordLayout {
    WordLayout { bits, along: Along::Rows, turned: false, lanes: NATURAL }
}

/// Finds the module's tensors, stored as the one of `layers` whose shapes they have.
pub(crate) fn find(finder: &Finder<'_>, layers: &[Layer]) -> Result<Stored, PackedError> {
    let shape = finder.shape;
    let quants = finder.need(QUANTS, "weight_scale")?;
    let layer = fitting(finder, quants, layers);
    let grid = quants_grid(layer.bits);
    finder.check_words(quants, &grid.stored_shape(shape))?;
    check_shape(finder)?;
    let (scales, groups) = finder.scales("weight_scale", QUANTS, false, layer.group)?;
    let zeros = zeros(finder, &layer, groups)?;
    let order = finder.order("weight_g_idx", groups, layer.group.unwrap_or(shape[1]))?;
    let (quants, scales) = ((quants.clone(), grid), (scales, false));
    Ok(Stored { shape, groups, quants, scales, zeros, order })
}

/// The first layer description that quants and scales fit, else the first one.
fn fitting(finder: &Finder<'_>, quants: &Tensor, layers: &[Layer]) -> Layer {
    let [rows, columns] = finder.shape;
    let fits = |layer: &&Layer| {
        let groups = layer.group.map_or(1, |group| columns.div_ceil(group));
        quants.shape == quants_grid(layer.bits).stored_shape(finder.shape)
            && finder.get("weight_scale").is_none_or(|scale| scale.shape == [rows, groups])
    };
    *layers.iter().find(fits).or(layers.first()).expect("a configuration describes a layer")
}

fn zeros(
    finder: &Finder<'_>,
    layer: &Layer,
    groups: usize,
) -> Result<Option<(Tensor, WordLayout)>, PackedError> {
    if layer.is_symmetric {
        return Ok(None);
    }
    let (zeros, grid) = (finder.need("weight_zero_point", QUANTS)?, zeros_grid(layer.bits));
    finder.check_words(zeros, &grid.stored_shape([finder.shape[0], groups]))?;
    Ok(Some((zeros.clone(), grid)))
}

/// Refuses a module whose own word on its shape contradicts the model's.
fn check_shape(finder: &Finder<'_>) -> Result<(), PackedError> {
    let tensor = finder.need("weight_shape", QUANTS)?;
    finder.check(tensor, &[2], &[Dtype::I64, Dtype::I32], "I64")?;
    let mut bytes = vec![0; tensor.size_bytes() as usize];
    finder.files.read_at(tensor, 0, &mut bytes)?;
    let found: Vec<i64> = match tensor.dtype {
        Dtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
    };
    if found == finder.shape.map(|size| size as i64) {
        return Ok(());
    }
    let problem = format!("says {found:?}, but the model calls for {:?}", finder.shape);
    let (path, tensor) = (finder.files.path().into(), tensor.name.clone());
    Err(PackedError::BadValues { path, tensor, problem })
}
