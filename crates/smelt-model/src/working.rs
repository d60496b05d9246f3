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
        let (patching, patch) = match self {
            Self::InternVit(tower) => {
                let (hidden, intermediate) = (tower.vit.hidden, tower.vit.intermediate);
                let patching = tower.patching();
                let tile = Grid { height: tower.image_size, width: tower.image_size };
                let grids = if grids.is_empty() { &[tile][..] } else { grids };
                let patch = Patch { values: patching.values(), hidden, intermediate };
                return patch.bytes(patching.lattices(grids).ok()?);
            }
            Self::Clip(vision) => {
                let (side, tower) = (vision.image_size / vision.patch_size.max(1), &vision.tower);
                let values = vision.patch_size * vision.patch_size * vision.channels;
                let (hidden, intermediate) = (tower.hidden, tower.intermediate);
                return Patch { values, hidden, intermediate }.bytes_of(side * side + 1);
            }
            Self::Qwen25(tower) => {
                let (hidden, intermediate) = (tower.hidden, tower.intermediate);
                let values = tower.patching.values();
                (&tower.patching, Patch { values, hidden, intermediate })
            }
            Self::Qwen3(tower) => {
                let (hidden, intermediate) = (tower.hidden, tower.intermediate);
                let values = tower.patching.values();
                (&tower.patching, Patch { values, hidden, intermediate })
            }
        };
        patch.bytes(patching.lattices(grids).ok()?)
    }
}

impl Patch {
    fn bytes(&self, lattices: Vec<(Grid, crate::grid::Lattice)>) -> Option<u64> {
        let patches = lattices.iter().map(|(_, lattice)| lattice.patches()).max()?;
        // A class token may stand before them.
        self.bytes_of(patches + 1)
    }

    fn bytes_of(&self, patches: usize) -> Option<u64> {
        let bytes = patches.checked_mul(self.numbers())?.checked_mul(size_of::<f32>())?;
        u64::try_from(bytes).ok()
    }
}
