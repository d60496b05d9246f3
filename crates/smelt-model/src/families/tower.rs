//! Says what every vision tower tells of itself: sizes, pictures it takes, features it gives.
//!
//! Exporter, reference, forecasts and deployments ask this, so none of them knows a family.  Knows no family either.

use smelt_family::TowerInput;

use crate::config::List;
use crate::grid::{Grid, GridError, Patching};

/// What a tower that takes square tiles reads and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Colour channels.
    pub channels: usize,
    /// Pixels on a side.
    pub side: usize,
    /// Image tokens of one.
    pub tokens: usize,
}

/// A vision tower with its way into the space of what follows.
pub(crate) trait VisionTower {
    /// Every tensor, input to output.
    fn list(&self, list: &mut List);

    /// How it cuts pictures.
    fn patching(&self) -> Patching;

    /// Channels of a patch, and those inside the MLP.
    fn widths(&self) -> [usize; 2];

    /// Numbers of an image token, and how many blocks tell more of it (deepstack); nothing of a tower before no
    /// decoder.
    fn gives(&self) -> Option<[usize; 2]>;

    /// What a deployment cuts pictures for; nothing of a tower before no decoder.
    fn input(&self) -> Option<TowerInput>;

    /// The tile, of a tower that takes tiles of one size before a decoder.
    fn tile(&self) -> Option<Tile> {
        None
    }

    /// The grids that are used where none are named.
    fn usual_grids(&self) -> Vec<Grid> {
        self.patching().default_grids()
    }

    /// The sizes of pictures that an export for `named` grids takes, and image tokens of each.
    ///
    /// # Errors
    /// [`GridError`] if a grid does not fit.
    fn grids(&self, named: &[Grid]) -> Result<Vec<(Grid, usize)>, GridError> {
        let usual = self.usual_grids();
        let lattices = self.patching().lattices(if named.is_empty() { &usual } else { named })?;
        Ok(lattices.into_iter().map(|(grid, lattice)| (grid, lattice.tokens())).collect())
    }

    /// Rows of patches that the largest of these pictures has, a class row not counted; nothing where a grid does
    /// not fit.
    fn rows(&self, named: &[Grid]) -> Option<usize> {
        let usual = self.usual_grids();
        let lattices = self.patching().lattices(if named.is_empty() { &usual } else { named });
        lattices.ok()?.iter().map(|(_, lattice)| lattice.patches()).max()
    }

    /// Places in time that a second of a clip takes, of a decoder that counts them.
    fn places_per_second(&self) -> Option<u32> {
        None
    }

    /// Mean and deviation of a synthetic weight stored as `name`, where those of all models would not keep activations
    /// at the size they have in a trained one.
    fn noise(&self, _name: &str, _shape: &[usize]) -> Option<[f64; 2]> {
        None
    }
}
