//! Says how a model will see pictures, by its configuration and its preprocessor's alone.

use std::cell::Cell;
use std::path::PathBuf;

use smelt_model::grid::Grid as Picture;
use smelt_model::model::Model;
use smelt_runtime::deployment::{DeploymentError, ModelFamily};
use smelt_runtime::image::{Cutting, Grid, ImageProcessor, PreprocessorConfig, Size};

/// Why it is not said how a deployment will see.
pub enum Unseen {
    /// Something cannot be read yet.
    NotKnown(String),
    /// It will not see: its build will be refused.
    Refused(String),
}

/// How a model will see, whose tower is that of the model `seeing`, exported for these sizes of pictures, and which is
/// shown so many tiles.
pub fn image_processor(
    model: &Model,
    (seeing, grids): (&Model, &[Picture]),
    tiles: Option<usize>,
    read: &dyn Fn(&str) -> Result<Option<String>, String>,
) -> Result<Option<ImageProcessor>, Unseen> {
    let is_read = Cell::new(true);
    let bad = |file: &str, why: String| {
        is_read.set(false);
        DeploymentError::Bad { path: PathBuf::from(file), why }
    };
    let text = |file: &str| {
        let text = read(file).map_err(|why| bad(file, why))?;
        Ok(text.map(|text| (PathBuf::from(file), text)))
    };
    let processor =
        PreprocessorConfig::of_pictures(&text).map_err(|error| match is_read.get() {
            true => Unseen::Refused(error.to_string()),
            false => Unseen::NotKnown(error.to_string()),
        })?;
    // What is said of clips is of no use for photographs.
    let Some(mut cutting) = cutting_by(model, &processor, &processor) else { return Ok(None) };
    if let Some(tiles) = tiles {
        cutting.allow_tiles(tiles);
    }
    let Some(vision) = seeing.vision.as_ref().filter(|vision| vision.input().is_some()) else {
        return Ok(None);
    };
    let sizes = vision.grids(grids);
    let sizes = sizes.map_err(|error| Unseen::NotKnown(error.to_string()))?;
    let grid = |(Picture { height, width }, tokens)| Grid { size: Size { height, width }, tokens };
    let mut grids: Vec<Grid> = sizes.into_iter().map(grid).collect();
    grids.sort_by_key(|grid| (grid.size.pixels(), grid.size.height));
    let image_processor = ImageProcessor { cutting, grids, router: None };
    match image_processor.fault() {
        Some(why) => Err(Unseen::Refused(why)),
        None => Ok(Some(image_processor)),
    }
}

/// The preprocessing of a model, by what its files say of pictures and of clips; none of one that does not
/// see and speak.
pub fn cutting_by(
    model: &Model,
    processor: &PreprocessorConfig,
    clips: &PreprocessorConfig,
) -> Option<Cutting> {
    let family = ModelFamily::named(model.family)?;
    Cutting::of_model(family, model.vision.as_ref()?.input()?, processor, clips)
}
