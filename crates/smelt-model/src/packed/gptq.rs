//! Finds weights that GPTQ tools (AutoGPTQ, GPTQModel) stored.
//!
//! `qweight` I32 `[in/8, out]` is packed along the inputs, `qzeros` I32 `[in/g, out/8]` along the
//! outputs, both in natural order; `scales` `[in/g, out]`; `g_idx` I32 `[in]` gives the group of
//! each input channel.  Version 1 stores zeros less one, version 2 as they are.
//! Source: `auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py`, `pack` and `forward`, and
//! `gptqmodel/utils/model.py`, `convert_gptq_v1_to_v2_format`.
//! Knows nothing of how quants are presented.

use crate::safetensors::Tensor;

use super::PackedError;
use super::stored::{Finder, Stored};
use super::words::{Along, NATURAL, WordLayout};

/// The tensor that tells a packed module from one that was not converted.
pub(crate) const QUANTS: &str = "qweight";

/// The longest bias compared with zero; a longer one belongs to no projection.
const BIAS_BYTES_MAX: u64 = 8 << 20;

/// How quants of `bits` bits lie.
pub(crate) fn quants_grid(bits: u32) -> WordLayout {
    WordLayout { bits, along: Along::Columns, turned: true, lanes: NATURAL }
}

/// How zeros of `bits` bits lie.
pub(crate) fn zeros_grid(bits: u32) -> WordLayout {
    WordLayout { bits, along: Along::Rows, turned: true, lanes: NATURAL }
}

/// Finds the module's tensors; `group` is the group size, nothing for one group a row.
pub(crate) fn find(
    finder: &Finder<'_>,
    bits: u32,
    group: Option<usize>,
) -> Result<Stored, PackedError> {
    let shape = finder.shape;
    let (grid, zeros_grid) = (quants_grid(bits), zeros_grid(bits));
    let quants = finder.need(QUANTS, "scales")?;
    finder.check_words(quants, &grid.stored_shape(shape))?;
    let (scales, groups) = finder.scales("scales", QUANTS, true, group)?;
    let zeros = finder.need("qzeros", QUANTS)?;
    finder.check_words(zeros, &zeros_grid.stored_shape([shape[0], groups]))?;
    Ok(Stored {
        shape,
        groups,
        quants: (quants.clone(), grid),
        scales: (scales, true),
        zeros: Some((zeros.clone(), zeros_grid)),
        order: finder.order("g_idx", groups, group.unwrap_or(shape[1]))?,
    })
}

/// The module's bias, if it is there and adds nothing: some versions of the tools store one for
/// layers that have none.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn idle_bias<'a>(finder: &'a Finder<'_>) -> Result<Option<&'a Tensor>, PackedError> {
    let Some(bias) = finder.get("bias").filter(|bias| bias.size_bytes() <= BIAS_BYTES_MAX) else {
        return Ok(None);
    };
    let mut bytes = vec![0; bias.size_bytes() as usize];
    finder.files.read_at(bias, 0, &mut bytes)?;
    Ok(bytes.iter().all(|&byte| byte == 0).then_some(bias))
}
