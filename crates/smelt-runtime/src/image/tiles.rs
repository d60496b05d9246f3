//! Cuts a picture into the tiles InternVL sees.
//!
//! The mosaic whose shape is closest to the picture's is chosen, the picture is resized to fill it,
//! and several tiles are followed by the whole picture as one more (`dynamic_preprocess` of the
//! models' own code).  Knows nothing of tokens.

use serde::{Deserialize, Serialize};

use super::Image;
use super::resample::resize;
use super::scale::Scale;

/// What a model expects of its pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// Pixels on a side of one square tile.
    pub image_size: usize,
    /// Fewest tiles a picture is cut into.
    pub min_tiles: usize,
    /// Most tiles a picture is cut into, the thumbnail apart.
    pub max_tiles: usize,
    /// Whether a picture of several tiles is also seen whole, as one more tile.
    pub use_thumbnail: bool,
    /// From bytes to what the model reads.
    pub scale: Scale,
}

impl Tiling {
    /// The most tiles any setting may ask for; published models use 12, and one takes 2.4 MB.
    pub const TILES_MAX: usize = 64;
    /// The largest tile side any setting may ask for; published models use 448.
    pub const SIDE_MAX: usize = 4096;

    /// The same with at most so many tiles, if that is fewer.
    pub(super) fn with_most(&self, tiles_max: Option<usize>) -> Self {
        let max_tiles = tiles_max.map_or(self.max_tiles, |most| most.clamp(1, self.max_tiles));
        Self { min_tiles: self.min_tiles.min(max_tiles), max_tiles, ..self.clone() }
    }

    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        let tiles = 1 <= self.min_tiles && self.min_tiles <= self.max_tiles;
        match () {
            () if !(1..=Self::SIDE_MAX).contains(&self.image_size) => {
                Some("image_size must be between 1 and 4096")
            }
            () if !tiles || self.max_tiles > Self::TILES_MAX => {
                Some("tiles must obey 1 <= min_tiles <= max_tiles <= 64")
            }
            () => self.scale.fault(),
        }
    }
}

/// How many tiles lie side by side and above each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mosaic {
    /// Tiles in a row.
    pub columns: usize,
    /// Rows of tiles.
    pub rows: usize,
}

impl Mosaic {
    /// The whole picture as one tile.
    pub const ONE: Self = Self { columns: 1, rows: 1 };

    /// The mosaic a picture of `width` by `height` is cut into.
    ///
    /// The closest ratio of sides wins.  Of equal ones a larger mosaic wins if the picture has more
    /// than half its pixels.
    pub fn closest(width: usize, height: usize, settings: &Tiling) -> Self {
        let ratio = width as f64 / height as f64;
        let area = width as f64 * height as f64;
        let tile_area = (settings.image_size * settings.image_size) as f64;
        let mut best = Self::ONE;
        let mut best_difference = f64::INFINITY;
        for mosaic in Self::all(settings) {
            let difference = (ratio - mosaic.columns as f64 / mosaic.rows as f64).abs();
            let fills_half = area > 0.5 * tile_area * mosaic.tiles() as f64;
            if difference < best_difference || (difference == best_difference && fills_half) {
                (best, best_difference) = (mosaic, difference);
            }
        }
        best
    }

    /// Mosaics of allowed size: few tiles first, then few columns.
    fn all(settings: &Tiling) -> Vec<Self> {
        let sides = 1..=settings.max_tiles;
        let mosaics =
            sides.clone().flat_map(|columns| sides.clone().map(move |rows| Self { columns, rows }));
        let allowed = settings.min_tiles..=settings.max_tiles;
        let mut mosaics: Vec<Self> =
            mosaics.filter(|mosaic| allowed.contains(&mosaic.tiles())).collect();
        mosaics.sort_by_key(|mosaic| (mosaic.tiles(), mosaic.columns));
        mosaics
    }

    /// Tiles of the mosaic alone.
    pub fn tiles(self) -> usize {
        self.columns * self.rows
    }

    /// The tiles of a picture of so many pixels in a line, which they fill, as `[side, side, 3]` bytes: rows from the top,
    /// each from the left.
    pub(super) fn cut(
        self,
        (rgb, width): (&[u8], usize),
        side: usize,
    ) -> impl Iterator<Item = Vec<u8>> {
        (0..self.tiles()).map(move |index| {
            let (row, column) = (index / self.columns, index % self.columns);
            let lines = rgb.chunks_exact(width * 3).skip(row * side).take(side);
            let parts = lines.flat_map(|line| &line[column * side * 3..][..side * 3]);
            parts.copied().collect::<Vec<u8>>()
        })
    }

    /// Tiles of the mosaic, and the thumbnail where there is one.
    pub fn with_thumbnail(self, settings: &Tiling) -> usize {
        self.tiles() + usize::from(settings.use_thumbnail && self.tiles() > 1)
    }
}

/// The first `count` tiles of `picture` as `[side, side, 3]` bytes: rows of the mosaic from the top,
/// each from the left, then the whole picture as a thumbnail.
pub fn tiles(picture: &Image, mosaic: Mosaic, side: usize, count: usize) -> Vec<Vec<u8>> {
    let width = mosaic.columns * side;
    let filled = resize(picture, width, mosaic.rows * side);
    let mut tiles: Vec<Vec<u8>> = mosaic.cut((&filled, width), side).take(count).collect();
    if count > mosaic.tiles() {
        tiles.push(resize(picture, side, side));
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(image_size: usize, min_tiles: usize, max_tiles: usize) -> Tiling {
        let scale = Scale::IMAGENET;
        Tiling { image_size, min_tiles, max_tiles, use_thumbnail: true, scale }
    }

    #[track_caller]
    fn check(width: usize, height: usize, columns: usize, rows: usize) {
        let mosaic = Mosaic::closest(width, height, &settings(448, 1, 12));
        assert_eq!(mosaic, Mosaic { columns, rows }, "{width}x{height}");
    }

    #[test]
    fn the_closest_shape_wins() {
        check(800, 600, 4, 3);
        check(600, 800, 3, 4);
        check(1920, 1080, 4, 2);
        check(10_000, 100, 12, 1);
        check(100, 10_000, 1, 12);
    }

    #[test]
    fn of_equal_shapes_the_larger_needs_pixels() {
        check(448, 448, 1, 1);
        // Four tiles take over above half of 4 * 448², nine above half of 9 * 448².
        check(633, 633, 1, 1);
        check(634, 634, 2, 2);
        check(950, 950, 2, 2);
        check(951, 951, 3, 3);
    }

    #[test]
    fn the_fewest_tiles_are_kept_to() {
        let mosaic = Mosaic::closest(100, 100, &settings(448, 4, 4));
        assert_eq!(mosaic, Mosaic { columns: 2, rows: 2 });
    }

    #[test]
    fn tiles_are_cut_row_by_row_and_followed_by_the_thumbnail() {
        // Each 2x2 tile of the 4x2 picture is flat, and the size is kept, so nothing blurs.
        let pixel = |x: usize, y: usize| [if x < 2 { 10 } else { 200 }, (x * 2 + y) as u8, 0];
        let rgb = (0..2).flat_map(|y| (0..4).flat_map(move |x| pixel(x, y))).collect();
        let picture = Image::from_rgb(4, 2, rgb).unwrap();
        let settings = settings(2, 1, 2);
        let mosaic = Mosaic::closest(4, 2, &settings);
        let tiles = tiles(&picture, mosaic, 2, mosaic.with_thumbnail(&settings));
        assert_eq!(tiles.len(), 3);
        assert_eq!(tiles[0], [10, 0, 0, 10, 2, 0, 10, 1, 0, 10, 3, 0]);
        assert_eq!(tiles[1], [200, 4, 0, 200, 6, 0, 200, 5, 0, 200, 7, 0]);
    }

    #[test]
    fn one_tile_needs_no_thumbnail() {
        let picture = Image::from_rgb(5, 5, vec![0; 75]).unwrap();
        assert_eq!(Mosaic::ONE.with_thumbnail(&settings(4, 1, 1)), 1);
        assert_eq!(tiles(&picture, Mosaic::ONE, 4, 1), [vec![0; 48]]);
    }

    #[test]
    fn settings_that_cannot_work_say_why() {
        assert_eq!(settings(448, 1, 12).fault(), None);
        assert!(settings(0, 1, 12).fault().is_some());
        assert!(settings(448, 0, 12).fault().is_some());
        assert!(settings(448, 7, 6).fault().is_some());
        assert!(settings(448, 1, 65).fault().is_some());
        let flat = Scale { std: [0.1, 0.0, 0.1], ..Scale::IMAGENET };
        let flat = Tiling { scale: flat, ..settings(448, 1, 12) };
        assert!(flat.fault().is_some());
    }
}
