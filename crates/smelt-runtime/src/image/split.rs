//! Splits a picture into square tiles by its longest edge, as Idefics3 and SmolVLM see it.
//!
//! The longest edge is resized to some tiles, the other keeps the shape and is then stretched to whole tiles; all tiles
//! are followed by the picture as one more (`Idefics3ImageProcessorPil` of transformers, with its steps from one size
//! to the next).  A picture that is one tile is seen once.  Knows nothing of tokens' ids.

use serde::{Deserialize, Serialize};

use super::Image;
use super::patches::Size;
use super::resample::{Filter, resize_by};
use super::scale::Scale;
use super::tiles::Mosaic;

/// What a model expects of its pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Splitting {
    /// Pixels on a side of one square tile.
    pub image_size: usize,
    /// Tiles along the longest edge.
    pub along: usize,
    /// The word before a tile's image tokens, in which `{row}` and `{column}` count from 1.
    pub tile: String,
    /// The word before those of the whole picture.
    pub whole: String,
    /// From bytes to what the model reads.
    pub scale: Scale,
}

impl Splitting {
    /// The most tiles along an edge any setting may ask for; published models have 4, and words for 6.
    pub const ALONG_MAX: usize = 8;
    /// The longest edge that transformers resizes a picture to.
    pub const EDGE_MAX: usize = 4096;

    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        let edge = self.image_size.checked_mul(self.along);
        match () {
            () if !(1..=Self::ALONG_MAX).contains(&self.along) => {
                Some("along must be between 1 and 8")
            }
            () if !edge.is_some_and(|edge| (1..=Self::EDGE_MAX).contains(&edge)) => {
                Some("image_size times along must be between 1 and 4096")
            }
            () => self.scale.fault(),
        }
    }

    /// The word of a tile, counted from 0.
    pub fn word(&self, row: usize, column: usize) -> String {
        let count = |at: usize| (at + 1).to_string();
        self.tile.replace("{row}", &count(row)).replace("{column}", &count(column))
    }

    /// How the tiles of a picture of `size` lie with so many along its longest edge.
    pub fn mosaic(&self, size: Size, along: usize) -> Mosaic {
        let Size { height, width } = self.tiled(self.fitted(size, along));
        Mosaic { columns: width / self.image_size, rows: height / self.image_size }
    }

    /// The tiles of `picture` as `[side, side, 3]` bytes: rows of the mosaic from the top, each from the left, then
    /// the whole picture.
    pub(super) fn tiles(&self, picture: &Image, mosaic: Mosaic) -> Vec<Vec<u8>> {
        let side = self.image_size;
        let filled = self.filled(picture, mosaic.columns.max(mosaic.rows));
        let tiles = mosaic.cut((filled.rgb(), filled.width()), side);
        tiles.chain([resize_by(Filter::Lanczos, &filled, side, side)]).collect()
    }

    /// The whole of `picture` as one tile.
    pub(super) fn whole(&self, picture: &Image) -> Vec<u8> {
        let fitted = resized(picture, self.fitted(picture.size(), 1));
        resize_by(Filter::Lanczos, &fitted, self.image_size, self.image_size)
    }

    /// `picture` as whole tiles, in two steps.
    fn filled(&self, picture: &Image, along: usize) -> Image {
        let fitted = self.fitted(picture.size(), along);
        resized(&resized(picture, fitted), self.tiled(fitted))
    }

    /// The size with so many tiles along the longest edge that keeps the shape; the other side is even.
    fn fitted(&self, Size { height, width }: Size, along: usize) -> Size {
        let (edge, ratio) = (along * self.image_size, width as f64 / height as f64);
        let even = |side: usize| (side + side % 2).max(1);
        match width >= height {
            true => Size { height: even((edge as f64 / ratio) as usize), width: edge },
            false => Size { height: edge, width: even((edge as f64 * ratio) as usize) },
        }
    }

    /// The size of whole tiles that is next above.
    fn tiled(&self, Size { height, width }: Size) -> Size {
        let ratio = width as f64 / height as f64;
        let up = |side: usize| side.max(1).next_multiple_of(self.image_size);
        match width >= height {
            true => {
                let width = up(width);
                Size { height: up((width as f64 / ratio) as usize), width }
            }
            false => {
                let height = up(height);
                Size { height, width: up((height as f64 * ratio) as usize) }
            }
        }
    }
}

fn resized(picture: &Image, Size { height, width }: Size) -> Image {
    let rgb = resize_by(Filter::Lanczos, picture, width, height);
    Image::from_rgb(width, height, rgb).expect("a resized picture has its size")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splitting() -> Splitting {
        Splitting {
            image_size: 512,
            along: 4,
            tile: "<row_{row}_col_{column}>".to_owned(),
            whole: "<global-img>".to_owned(),
            scale: Scale::HALVES,
        }
    }

    #[track_caller]
    fn check(width: usize, height: usize, along: usize, columns: usize, rows: usize) {
        let mosaic = splitting().mosaic(Size { height, width }, along);
        assert_eq!(mosaic, Mosaic { columns, rows }, "{width}x{height}");
    }

    #[test]
    fn the_longest_edge_has_its_tiles_whatever_the_size() {
        check(4032, 3024, 4, 4, 3);
        check(3024, 4032, 4, 3, 4);
        check(1920, 1080, 4, 4, 3);
        check(40, 40, 4, 4, 4);
        check(10_000, 10, 4, 4, 1);
        check(1, 10_000, 3, 1, 3);
        check(4032, 3024, 2, 2, 2);
        check(4032, 3024, 1, 1, 1);
    }

    #[test]
    fn tiles_have_words_that_count_from_one() {
        assert_eq!(splitting().word(0, 3), "<row_1_col_4>");
    }

    #[test]
    fn a_flat_picture_is_flat_in_every_tile_and_as_a_whole() {
        let splitting = Splitting { image_size: 4, ..splitting() };
        let picture = Image::from_rgb(6, 3, [7, 8, 9].repeat(18)).unwrap();
        let mosaic = splitting.mosaic(picture.size(), 2);
        assert_eq!(mosaic, Mosaic { columns: 2, rows: 1 });
        let tiles = splitting.tiles(&picture, mosaic);
        assert_eq!(tiles, vec![[7, 8, 9].repeat(16); 3]);
        assert_eq!(splitting.whole(&picture), tiles[0]);
    }

    #[test]
    fn settings_that_cannot_work_say_why() {
        assert_eq!(splitting().fault(), None);
        assert!(Splitting { along: 0, ..splitting() }.fault().is_some());
        assert!(Splitting { along: 9, ..splitting() }.fault().is_some());
        assert!(Splitting { image_size: 0, ..splitting() }.fault().is_some());
        assert!(Splitting { image_size: usize::MAX, ..splitting() }.fault().is_some());
        assert!(Splitting { image_size: 1025, ..splitting() }.fault().is_some());
        let flat = Scale { mean: [0.0; 3], std: [0.0; 3] };
        assert!(Splitting { scale: flat, ..splitting() }.fault().is_some());
    }
}
