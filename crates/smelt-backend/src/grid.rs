//! Fixes the size of images: a grid of pixels, the patches of it, the order they come in.
//!
//! Exporters, engines and whoever prepares requests mean the same by these words.  Knows nothing of tensors or graphs.

use std::fmt;
use std::str::FromStr;

/// The most image tokens of one picture: where the largest picture that the image processors of
/// these models let through ends (12,845,056 pixels of 28 x 28 a token).
pub const TOKENS_MAX: usize = 16_384;

/// The most grids of one artifact; each is a graph, and preprocessing looks through all of them.
pub const GRIDS_MAX: usize = 64;

/// A picture's size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grid {
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
}

/// A list of grids that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// The text is no size.
    #[error("grid {0:?} is not HEIGHTxWIDTH in pixels, for example 448x448")]
    NotASize(String),
    /// A side is no multiple of what one image token covers.
    #[error(
        "grid {grid}: both sides must be multiples of {step}, the pixels of one image token (patch {patch}, merge {merge}); the closest is {closest}"
    )]
    Uneven {
        /// The grid.
        grid: Grid,
        /// Pixels on a side of an image token.
        step: usize,
        /// Pixels on a side of a patch.
        patch: usize,
        /// Patches on a side of an image token.
        merge: usize,
        /// A grid that would do.
        closest: Grid,
    },
    /// More image tokens than any picture has.
    #[error("grid {0} has more than {TOKENS_MAX} image tokens; choose a smaller one")]
    TooLarge(Grid),
    /// Two graphs would have one name.
    #[error("grid {0} is listed twice")]
    Twice(Grid),
    /// Too long a list.
    #[error("{0} grids are listed; at most {GRIDS_MAX} fit one model")]
    TooMany(usize),
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

impl FromStr for Grid {
    type Err = GridError;

    fn from_str(text: &str) -> Result<Self, GridError> {
        // Signs and spaces, which `parse` or people would let pass, make another file name.
        let side = |digits: &str| {
            let plain =
                !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| plain)
        };
        let sides = text.split_once('x').and_then(|(h, w)| Some((side(h)?, side(w)?)));
        let (height, width) = sides.ok_or_else(|| GridError::NotASize(text.to_owned()))?;
        Ok(Self { height, width })
    }
}

/// How a tower cuts pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patching {
    /// Pixels on a side of a patch.
    pub patch: usize,
    /// Patches on a side of an image token.
    pub merge: usize,
    /// Frames of a patch; a still is repeated.
    pub frames: usize,
    /// Colour channels.
    pub channels: usize,
}

/// Tokens on the sides of the grids used where none are named: a square and two oblong ones of
/// about 250 tokens, whole in windows of 4 x 4 tokens.
const DEFAULT_TOKENS: [(usize, usize); 3] = [(16, 16), (12, 20), (20, 12)];

impl Patching {
    /// Values of one patch, `channels * frames * patch * patch`.
    pub fn values(&self) -> usize {
        self.channels * self.frames * self.patch * self.patch
    }

    /// Patches of one image token.
    pub fn unit(&self) -> usize {
        self.merge * self.merge
    }

    /// The grids that are used where none are named.
    pub fn default_grids(&self) -> Vec<Grid> {
        let step = self.patch * self.merge;
        let grid = |(rows, columns)| Grid { height: rows * step, width: columns * step };
        DEFAULT_TOKENS.map(grid).to_vec()
    }

    /// The patches of every grid; the default grids' if the list is empty.
    ///
    /// # Errors
    /// [`GridError`] naming the grid.
    pub fn lattices(&self, grids: &[Grid]) -> Result<Vec<(Grid, Lattice)>, GridError> {
        if grids.len() > GRIDS_MAX {
            return Err(GridError::TooMany(grids.len()));
        }
        let twice = |(at, grid): &(usize, &Grid)| grids[..*at].contains(grid);
        if let Some((_, grid)) = grids.iter().enumerate().find(twice) {
            return Err(GridError::Twice(*grid));
        }
        let chosen = if grids.is_empty() { self.default_grids() } else { grids.to_vec() };
        chosen.into_iter().map(|grid| Ok((grid, self.lattice(grid)?))).collect()
    }

    /// The patches of `grid`.
    ///
    /// # Errors
    /// [`GridError`] if the grid cuts an image token or has too many.
    pub fn lattice(&self, grid: Grid) -> Result<Lattice, GridError> {
        let Self { patch, merge, .. } = *self;
        let step = patch * merge;
        let Grid { height, width } = grid;
        if height == 0 || width == 0 || height % step != 0 || width % step != 0 {
            let near = |side: usize| (side.saturating_add(step / 2) / step).max(1) * step;
            let closest = Grid { height: near(height), width: near(width) };
            return Err(GridError::Uneven { grid, step, patch, merge, closest });
        }
        let tokens = (height / step).checked_mul(width / step);
        if tokens.is_none_or(|tokens| tokens > TOKENS_MAX) {
            return Err(GridError::TooLarge(grid));
        }
        Ok(Lattice { rows: height / patch, columns: width / patch, merge })
    }
}

/// The patches of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lattice {
    /// Patches from top to bottom.
    pub rows: usize,
    /// Patches from left to right.
    pub columns: usize,
    /// Patches on a side of an image token; divides both.
    pub merge: usize,
}

impl Lattice {
    /// Patches of the picture.
    pub fn patches(&self) -> usize {
        self.rows * self.columns
    }

    /// Image tokens from top to bottom.
    pub fn token_rows(&self) -> usize {
        self.rows / self.merge
    }

    /// Image tokens from left to right.
    pub fn token_columns(&self) -> usize {
        self.columns / self.merge
    }

    /// Image tokens of the picture.
    pub fn tokens(&self) -> usize {
        self.token_rows() * self.token_columns()
    }

    /// Row and column of every patch in the order the image processor gives them: image token by
    /// image token, row by row inside.
    pub fn places(&self) -> Vec<[usize; 2]> {
        let Self { merge, .. } = *self;
        let unit = merge * merge;
        let place = |index: usize| {
            let (token, inside) = (index / unit, index % unit);
            let row = token / self.token_columns() * merge + inside / merge;
            [row, token % self.token_columns() * merge + inside % merge]
        };
        (0..self.patches()).map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCHING: Patching = Patching { patch: 14, merge: 2, frames: 2, channels: 3 };

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let lattice = text.parse::<Grid>().and_then(|grid| PATCHING.lattice(grid));
        let error = lattice.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn sizes_round_trip() {
        let grid: Grid = "448x336".parse().unwrap();
        assert_eq!((grid.height, grid.width, grid.to_string()), (448, 336, "448x336".to_owned()));
        for text in ["", "448", "448X448", "x", "448x", "-28x28", "+28x28", "028x28", "28x28x28"] {
            refused(text, "is not HEIGHTxWIDTH in pixels");
        }
    }

    #[test]
    fn sides_are_whole_tokens() {
        refused("448x440", "grid 448x440: both sides must be multiples of 28");
        refused("448x440", "(patch 14, merge 2); the closest is 448x448");
        refused("5x28", "the closest is 28x28");
        refused("28000x28000", "more than 16384 image tokens");
        refused("2800000000000000000x2800000000000000000", "more than 16384");
        let lattice = PATCHING.lattice(Grid { height: 84, width: 56 }).unwrap();
        assert_eq!((lattice.patches(), lattice.tokens(), PATCHING.values()), (24, 6, 1176));
    }

    #[test]
    fn lists_have_their_limits() {
        let grid = Grid { height: 28, width: 28 };
        let twice = PATCHING.lattices(&[grid, Grid { height: 28, width: 56 }, grid]);
        assert_eq!(twice, Err(GridError::Twice(grid)));
        assert_eq!(PATCHING.lattices(&[grid; 65]), Err(GridError::TooMany(65)));
        let names: Vec<String> =
            PATCHING.lattices(&[]).unwrap().iter().map(|(grid, _)| grid.to_string()).collect();
        assert_eq!(names, ["448x448", "336x560", "560x336"]);
    }

    #[test]
    fn patches_come_token_by_token() {
        let places = Lattice { rows: 4, columns: 4, merge: 2 }.places();
        assert_eq!(places[..5], [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]);
        assert_eq!(places[15], [3, 3]);
    }
}
