//! Says how a model's pictures are cut, by its family's facts and its checkpoint's own numbers.
//!
//! This is what a deployment keeps of both.  Knows nothing of engines or of single pictures.

use serde::{Deserialize, Serialize};
use smelt_family::{ClipLimits, CutFacts, ImageFacts, ModelFamily, SplitFacts, TowerInput};

use super::patches::{ClipPixels, Patching};
use super::preprocessor_config::PreprocessorConfig;
use super::scale::Scale;
use super::split::Splitting;
use super::tiles::Tiling;

/// How a family's pictures are cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cutting {
    /// Into square tiles: InternVL.
    Tiles(Tiling),
    /// Into patches of a grid of any shape: Qwen-VL.
    Patches(Patching),
    /// Into square tiles by the longest edge: SmolVLM.
    Split(Splitting),
}

impl Cutting {
    /// That of a model of `family` whose tower takes `input`, by what its files say of pictures and of clips, or else
    /// as the published models have it; nothing of a family that does not see so.
    pub fn of_model(
        family: ModelFamily,
        input: TowerInput,
        pictures: &PreprocessorConfig,
        clips: &PreprocessorConfig,
    ) -> Option<Self> {
        let images = family.images()?;
        match (images.cut, input) {
            (
                CutFacts::Tiles,
                TowerInput::Mosaic { side: image_size, min_tiles, max_tiles, use_thumbnail },
            ) => {
                // What a checkpoint says of means and deviations was never read for these models.
                let scale = images.normalization.into();
                Some(Self::Tiles(Tiling { image_size, min_tiles, max_tiles, use_thumbnail, scale }))
            }
            (CutFacts::Patches { pixels, clip }, TowerInput::Patches { patch, merge, frames }) => {
                let [min_pixels, max_pixels] = limits(pixels, pictures);
                let clip = Some(clip_pixels(clip, clips));
                let scale = scale(images, pictures);
                Some(Self::Patches(Patching {
                    patch,
                    merge,
                    frames,
                    min_pixels,
                    max_pixels,
                    clip,
                    scale,
                }))
            }
            (CutFacts::Split(facts), TowerInput::Tile { side }) => {
                let scale = scale(images, pictures);
                Some(Self::Split(splitting(facts, side, pictures, scale)))
            }
            _ => None,
        }
    }

    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Tiles(tiling) => tiling.fault(),
            Self::Patches(patching) => patching.fault(),
            Self::Split(splitting) => splitting.fault(),
        }
    }

    /// Whether models of `family` see pictures that are cut so.
    pub fn is_of(&self, family: ModelFamily) -> bool {
        let cut = family.images().map(|images| images.cut);
        matches!(
            (self, cut),
            (Self::Tiles(_), Some(CutFacts::Tiles))
                | (Self::Patches(_), Some(CutFacts::Patches { .. }))
                | (Self::Split(_), Some(CutFacts::Split(_)))
        )
    }

    /// Lets a picture have so many tiles: models may be shown more than they were made for.  Tells whether these
    /// pictures have tiles.
    pub fn allow_tiles(&mut self, tiles: usize) -> bool {
        match self {
            Self::Tiles(tiling) => {
                tiling.max_tiles = tiling.max_tiles.max(tiles);
                true
            }
            // The longest edge says how many there are, and a wish for fewer is kept to.
            Self::Split(_) => true,
            Self::Patches(_) => false,
        }
    }
}

/// How pictures are split for tiles of `side` pixels.
fn splitting(
    facts: SplitFacts,
    side: usize,
    pictures: &PreprocessorConfig,
    scale: Scale,
) -> Splitting {
    let said = pictures.longest_edge.map(|edge| edge.div_ceil(side.max(1)));
    let along = if pictures.splits == Some(false) { 1 } else { said.unwrap_or(facts.along) };
    let (tile, whole) = (facts.tile.to_owned(), facts.whole.to_owned());
    Splitting { image_size: side, along, tile, whole, scale }
}

/// Fewest and most pixels.
fn limits([min, max]: [usize; 2], config: &PreprocessorConfig) -> [usize; 2] {
    [config.min_pixels.unwrap_or(min), config.max_pixels.unwrap_or(max)]
}

fn clip_pixels(facts: ClipLimits, clips: &PreprocessorConfig) -> ClipPixels {
    let [min_pixels, max_pixels] = limits(facts.pixels, clips);
    ClipPixels { together: facts.together, min_pixels, max_pixels }
}

fn scale(images: &ImageFacts, pictures: &PreprocessorConfig) -> Scale {
    pictures.scale.unwrap_or_else(|| images.normalization.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOSAIC: TowerInput =
        TowerInput::Mosaic { side: 448, min_tiles: 1, max_tiles: 12, use_thumbnail: true };
    const PATCHES: TowerInput = TowerInput::Patches { patch: 14, merge: 2, frames: 2 };

    fn cutting(family: ModelFamily, input: TowerInput) -> Option<Cutting> {
        let nothing = PreprocessorConfig::default();
        Cutting::of_model(family, input, &nothing, &nothing)
    }

    #[test]
    fn families_cut_in_their_own_ways_and_in_no_other() {
        for family in ModelFamily::ALL {
            for input in [MOSAIC, PATCHES] {
                let Some(cutting) = cutting(family, input) else { continue };
                assert!(cutting.is_of(family) && cutting.fault().is_none(), "{family:?}");
            }
        }
        assert_eq!(cutting(ModelFamily::INTERNVL3, PATCHES), None);
        assert_eq!(cutting(ModelFamily::QWEN3_VL, MOSAIC), None);
        assert_eq!(cutting(ModelFamily::LLAMA, MOSAIC), None);
        let tiles = cutting(ModelFamily::INTERNVL3, MOSAIC).unwrap();
        assert!(!tiles.is_of(ModelFamily::QWEN3_VL) && !tiles.is_of(ModelFamily::LLAMA));
    }

    #[test]
    fn what_a_checkpoint_says_goes_before_what_its_family_does() {
        let said = |max| PreprocessorConfig { max_pixels: Some(max), ..Default::default() };
        let family = ModelFamily::QWEN2_5_VL;
        let found = Cutting::of_model(family, PATCHES, &said(4096), &said(8192));
        let Some(Cutting::Patches(patching)) = found else { panic!("{found:?}") };
        assert_eq!((patching.min_pixels, patching.max_pixels), (3136, 4096));
        let clip = ClipPixels { together: false, min_pixels: 3136, max_pixels: 8192 };
        assert_eq!((patching.clip, patching.scale), (Some(clip), Scale::CLIP));
    }

    #[test]
    fn more_tiles_than_a_model_was_made_for_may_be_shown_and_never_fewer() {
        let mut tiles = cutting(ModelFamily::INTERNVL3, MOSAIC).unwrap();
        for (asked, allowed) in [(6, 12), (24, 24)] {
            assert!(tiles.allow_tiles(asked));
            let Cutting::Tiles(tiling) = &tiles else { panic!("{tiles:?}") };
            assert_eq!(tiling.max_tiles, allowed);
        }
        assert!(!cutting(ModelFamily::QWEN3_VL, PATCHES).unwrap().allow_tiles(6));
    }
}
