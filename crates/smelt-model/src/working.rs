//! Estimates what executing a vision tower holds besides its weights.
//!
//! Sizes of a tower and of pictures in, bytes out.  Scores of attention are computed in passing and
//! never held, so what counts grows with patches and not with their square.  Knows nothing of engines.

use crate::grid::Grid;
use crate::model::Vision;

/// What is held of one patch: its values, and what a layer makes of it.
struct Patch {
    values: usize,
    hidden: usize,
    intermediate: usize,
}

impl Patch {
    /// Numbers of it that are held at the moment of most: the residual row and its norm beside queries, keys and
    /// values, both of the first turned as well, and what attention makes of them; or beside both sides of a
    /// gated MLP.
    fn numbers(&self) -> usize {
        let Self { values, hidden, intermediate } = self;
        values + (8 * hidden).max(2 * hidden + 2 * intermediate)
    }
}

impl Vision {
    /// About how many bytes of f32 executing the tower for the largest of `grids` holds at one time
    /// besides weights; for its usual pictures where there is no grid.  Nothing where a grid does not
    /// fit the tower.
    pub fn working_bytes(&self, grids: &[Grid]) -> Option<u64> {
        let [hidden, intermediate] = self.widths();
        let patch = Patch { values: self.patching().values(), hidden, intermediate };
        // A class token may stand before them.
        patch.bytes_of(self.rows(grids)? + 1)
    }
}

impl Patch {
    fn bytes_of(&self, patches: usize) -> Option<u64> {
        let bytes = patches.checked_mul(self.numbers())?.checked_mul(size_of::<f32>())?;
        u64::try_from(bytes).ok()
    }
}
