//! Finds weights that AutoAWQ stored in its "gemm" layout.
//!
//! `qweight` I32 `[in, out/8]` and `qzeros` I32 `[in/g, out/8]` are packed along the outputs, lane
//! `i` of a word holding output `[0,2,4,6,1,3,5,7][i]` of its eight; `scales` `[in/g, out]`; zeros
//! are stored as they are.  Source: `awq/modules/linear/gemm.py` of AutoAWQ, `WQLinear_GEMM`.
//! Knows nothing of how quants are presented.

use super::PackedError;
use super::stored::{Finder, Stored};
use super::words::{Along, WordLayout};

/// How quants and zeros lie.
pub(crate) const GRID: WordLayout =
    WordLayout { bits: 4, along: Along::Rows, turned: true, lanes: [0, 2, 4, 6, 1, 3, 5, 7] };

/// The tensor that tells a packed module from one that was not converted.
pub(crate) const QUANTS: &str = "qweight";

/// Finds the module's tensors; `group` is the group size, nothing for one group a row.
pub(crate) fn find(finder: &Finder<'_>, group: Option<usize>) -> Result<Stored, PackedError> {
    let shape = finder.shape;
    let quants = finder.need(QUANTS, "scales")?;
    finder.check_words(quants, &GRID.stored_shape(shape))?;
    let (scales, groups) = finder.scales("scales", QUANTS, true, group)?;
    let zeros = finder.need("qzeros", QUANTS)?;
    finder.check_words(zeros, &GRID.stored_shape([shape[0], groups]))?;
    Ok(Stored {
        shape,
        groups,
        quants: (quants.clone(), GRID),
        scales: (scales, true),
        zeros: Some((zeros.clone(), GRID)),
        order: None,
    })
}
