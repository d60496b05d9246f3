//! Cuts a picture into the tiles InternVL sees, and normalises them.
//!
//! The grid whose shape is closest to the picture's is chosen, the picture is resized to fill it,
//! and several tiles are followed by the whole picture as one more (`dynamic_preprocess` of the
//! models' own code).  Knows nothing of tokens.

use serde::{Deserialize, Serialize};

use super::Picture;
use super::resample::resize;

/// What a model expects of its pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Pixels on a side of one square tile.
    pub image_size: usize,
    /// Fewest tiles a picture is cut into.
    pub min_tiles: usize,
    /// Most tiles a picture is cut into, the thumbnail apart.
    pub max_tiles: usize,
    /// Whether a picture of several tiles is also seen whole, as one more tile.
    pub use_thumbnail: bool,
    /// Subtracted from each channel, which runs from 0 to 1.
    pub mean: [f32; 3],
    /// Then divides each channel.
    pub std: [f32; 3],
}

impl Settings {
    /// The channel means of ImageNet, which the InternVL models use.
    pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
    /// The channel deviations of ImageNet, which the InternVL models use.
    pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];
    /// The most tiles any setting may ask for; published models use 12, and one takes 2.4 MB.
    pub const TILES_MAX: usize = 64;
    /// The largest tile side any setting may ask for; published models use 448.
    pub const SIDE_MAX: usize = 4096;

    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        let tiles = 1 <= self.min_tiles && self.min_tiles <= self.max_tiles;
        let scales = |values: [f32; 3]| values.iter().all(|x| x.is_finite());
        match () {
            () if !(1..=Self::SIDE_MAX).contains(&self.image_size) => {
                Some("image_size must be between 1 and 4096")
            }
            () if !tiles || self.max_tiles > Self::TILES_MAX => {
                Some("tiles must obey 1 <= min_tiles <= max_tiles <= 64")
            }
            () if !scales(self.mean) || !scales(self.std) || self.std.contains(&0.0) => {
                Some("mean and std must be finite, and std not zero")
            }
            () => None,
        }
    }
}

/// The tiles of one picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiles {
    /// How many there are.
    pub count: usize,
    /// `[count, 3, side, side]`, normalised.
    pub pixels: Vec<f32>,
}

/// How many tiles lie side by side and above each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Tiles in a row.
    pub columns: usize,
    /// Rows of tiles.
    pub rows: usize,
}

impl Grid {
    /// The grid a picture of `width` by `height` is cut into.
    ///
    /// The closest ratio of sides wins.  Of equal ones a larger grid wins if the picture has more
    /// than half its pixels.
    pub fn closest(width: usize, height: usize, settings: &Settings) -> Self {
        let ratio = width as f64 / height as f64;
        let area = width as f64 * height as f64;
        let tile_area = (settings.image_size * settings.image_size) as f64;
        let mut best = Self { columns: 1, rows: 1 };
        let mut best_difference = f64::INFINITY;
        for grid in Self::all(settings) {
            let difference = (ratio - grid.columns as f64 / grid.rows as f64).abs();
            let fills_half = area > 0.5 * tile_area * grid.tiles() as f64;
            if difference < best_difference || (difference == best_difference && fills_half) {
                (best, best_difference) = (grid, difference);
            }
        }
        best
    }

    /// Grids of allowed size: few tiles first, then few columns.
    fn all(settings: &Settings) -> Vec<Self> {
        let sides = 1..=settings.max_tiles;
        let grids =
            sides.clone().flat_map(|columns| sides.clone().map(move |rows| Self { columns, rows }));
        let allowed = settings.min_tiles..=settings.max_tiles;
        let mut grids: Vec<Self> = grids.filter(|grid| allowed.contains(&grid.tiles())).collect();
        grids.sort_by_key(|grid| (grid.tiles(), grid.columns));
        grids
    }

    fn tiles(self) -> usize {
        self.columns * self.rows
    }
}

/// How many tiles a picture of `width` by `height` becomes, the thumbnail included.
pub fn tile_count(width: usize, height: usize, settings: &Settings) -> usize {
    let tiles = Grid::closest(width, height, settings).tiles();
    tiles + usize::from(settings.use_thumbnail && tiles > 1)
}

/// The tiles of `picture`: rows of the grid from the top, each from the left, then the thumbnail.
pub fn tiles(picture: &Picture, settings: &Settings) -> Tiles {
    let grid = Grid::closest(picture.width(), picture.height(), settings);
    let side = settings.image_size;
    let count = tile_count(picture.width(), picture.height(), settings);
    let mut pixels = Vec::with_capacity(count * 3 * side * side);
    let filled = resize(picture, grid.columns * side, grid.rows * side);
    for row in 0..grid.rows {
        for column in 0..grid.columns {
            let corner = (row * side * grid.columns + column) * side * 3;
            normalise(&filled[corner..], grid.columns * side * 3, settings, &mut pixels);
        }
    }
    if count > grid.tiles() {
        normalise(&resize(picture, side, side), side * 3, settings, &mut pixels);
    }
    Tiles { count, pixels }
}

/// Appends one tile, whose top left corner is the first of `rgb` and whose rows start `stride`
/// bytes apart, as `[3, side, side]`.
fn normalise(rgb: &[u8], stride: usize, settings: &Settings, pixels: &mut Vec<f32>) {
    let side = settings.image_size;
    for channel in 0..3 {
        let (mean, std) = (settings.mean[channel], settings.std[channel]);
        for row in rgb.chunks(stride).take(side) {
            let samples = row[channel..].iter().step_by(3).take(side);
            pixels.extend(samples.map(|sample| (f32::from(*sample) / 255.0 - mean) / std));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(image_size: usize, min_tiles: usize, max_tiles: usize) -> Settings {
        let (mean, std) = (Settings::IMAGENET_MEAN, Settings::IMAGENET_STD);
        Settings { image_size, min_tiles, max_tiles, use_thumbnail: true, mean, std }
    }

    #[track_caller]
    fn check(width: usize, height: usize, columns: usize, rows: usize) {
        let grid = Grid::closest(width, height, &settings(448, 1, 12));
        assert_eq!(grid, Grid { columns, rows }, "{width}x{height}");
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
        let grid = Grid::closest(100, 100, &settings(448, 4, 4));
        assert_eq!(grid, Grid { columns: 2, rows: 2 });
    }

    #[test]
    fn tiles_are_cut_row_by_row_and_followed_by_the_thumbnail() {
        // Each 2x2 tile of the 4x2 picture is flat, and the size is kept, so nothing blurs.
        let pixel = |x: usize, y: usize| [if x < 2 { 10 } else { 200 }, (x * 2 + y) as u8, 0];
        let rgb = (0..2).flat_map(|y| (0..4).flat_map(move |x| pixel(x, y))).collect();
        let picture = Picture::from_rgb(4, 2, rgb).unwrap();
        let mut settings = settings(2, 1, 2);
        (settings.mean, settings.std) = ([0.0; 3], [1.0 / 255.0; 3]);
        let tiles = tiles(&picture, &settings);
        assert_eq!((tiles.count, tiles.pixels.len()), (3, 3 * 12));
        let bytes: Vec<u8> = tiles.pixels.iter().map(|x| x.round() as u8).collect();
        assert_eq!(bytes[..12], [10, 10, 10, 10, 0, 2, 1, 3, 0, 0, 0, 0]);
        assert_eq!(bytes[12..24], [200, 200, 200, 200, 4, 6, 5, 7, 0, 0, 0, 0]);
    }

    #[test]
    fn one_tile_needs_no_thumbnail() {
        let picture = Picture::from_rgb(5, 5, vec![0; 75]).unwrap();
        let tiles = tiles(&picture, &settings(4, 1, 1));
        assert_eq!((tiles.count, tiles.pixels.len()), (1, 48));
        let black = (0.0 - 0.485_f32) / 0.229;
        assert_eq!(tiles.pixels[0], black);
    }

    #[test]
    fn settings_that_cannot_work_say_why() {
        assert_eq!(settings(448, 1, 12).fault(), None);
        assert!(settings(0, 1, 12).fault().is_some());
        assert!(settings(448, 0, 12).fault().is_some());
        assert!(settings(448, 7, 6).fault().is_some());
        assert!(settings(448, 1, 65).fault().is_some());
        let flat = Settings { std: [0.1, 0.0, 0.1], ..settings(448, 1, 12) };
        assert!(flat.fault().is_some());
    }
}
