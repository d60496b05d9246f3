//! Finds out before a build how the deployments of a plan will see pictures, from small files alone.

use std::cell::Cell;
use std::path::PathBuf;

use smelt_model::grid::Grid as Picture;
use smelt_model::model::Model;
use smelt_plan::plan::Stage;
use smelt_plan::{Kind, Plan};
use smelt_runtime::deployment::{DeploymentError, ModelFamily};
use smelt_runtime::image::{Cutting, Grid, ImageOptions, ImageProcessor, PreprocessorConfig, Size};

use crate::checkpoints::{Checkpoints, Read, count, input};
use crate::photographs;
use crate::towers;

/// Why it is not said how a deployment will see.
pub(crate) enum Unseen {
    /// Something cannot be read yet.
    NotKnown(String),
    /// It will not see: its build will be refused.
    Refused(String),
}

/// What photographs will cost each deployment of a model that sees and speaks.
pub(crate) fn lines(checkpoints: &Checkpoints<'_>) -> Vec<String> {
    let stages = checkpoints.plan.stages();
    let deployments = stages.filter(|(_, stage)| stage.kind == Kind::Deployment);
    let told = deployments.flat_map(|(_, stage)| {
        let lines = of_deployment(checkpoints, stage);
        let lines = lines.unwrap_or_else(|unseen| match unseen {
            Unseen::NotKnown(why) => {
                vec![format!("what photographs cost in tokens is not known yet: {why}")]
            }
            // Told with the other refusals.
            Unseen::Refused(_) => Vec::new(),
        });
        lines.into_iter().map(move |line| match line.strip_prefix("warning: ") {
            Some(warning) => format!("warning: {}: {warning}", stage.name),
            None => format!("{}: {line}", stage.name),
        })
    });
    told.collect()
}

/// Nothing where there are no pictures, or where another program makes what would tell.
fn of_deployment(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Result<Vec<String>, Unseen> {
    let decoder = input(checkpoints.plan, stage, "llm").map(|(_, engine)| engine);
    // One that reads text alone is shown none, whatever its checkpoint is.
    if tower_of(checkpoints.plan, stage).is_none() {
        return Ok(Vec::new());
    }
    let model = checkpoints.model(stage).map_err(Unseen::NotKnown)?;
    let (Some(model), Some(decoder)) = (model, decoder) else { return Ok(Vec::new()) };
    let Some(image_processor) = image_processor_of(checkpoints, stage, &model)? else {
        return Ok(Vec::new());
    };
    let positions = model.llm.as_ref().map_or(usize::MAX, |llm| llm.max_positions);
    let context = count(stage, "max-seq-len").or_else(|| count(decoder, "max-seq-len"));
    let image_options =
        ImageOptions { tiles_max: count(stage, "tiles"), ..ImageOptions::default() };
    Ok(photographs::lines(
        &image_processor,
        &image_options,
        [context.unwrap_or(positions), positions],
    ))
}

/// How a deployment of `model` will see; nothing where there are no pictures, or where another program makes what
/// would tell.
pub(crate) fn image_processor_of(
    checkpoints: &Checkpoints<'_>,
    stage: &Stage,
    model: &Model,
) -> Result<Option<ImageProcessor>, Unseen> {
    let Some(source) = checkpoints.source(stage) else { return Ok(None) };
    let Some(tower) = tower_of(checkpoints.plan, stage) else { return Ok(None) };
    let Some(seeing) = checkpoints.model(tower).map_err(Unseen::NotKnown)? else { return Ok(None) };
    let read = |file: &str| checkpoints.file(source, file);
    image_processor(model, (tower, &seeing), count(stage, "tiles"), &read)
}

/// The export of the tower that a deployment sees with.
pub(crate) fn tower_of<'a>(plan: &'a Plan, stage: &Stage) -> Option<&'a Stage> {
    input(plan, stage, "vision").and_then(|(_, engine)| graph(plan, engine))
}

/// The export of a tower from whose graph an engine is built.
fn graph<'a>(plan: &'a Plan, engine: &'a Stage) -> Option<&'a Stage> {
    let mut stage = engine;
    // A chain of stages is no longer than the plan.
    for _ in 0..plan.len() {
        if stage.kind == Kind::OnnxExport {
            return Some(stage);
        }
        stage = input(plan, stage, "onnx")?.1;
    }
    None
}

/// How a model will see, whose tower is that of the model `seeing`, exported as the stage says, and which is shown
/// so many tiles.
fn image_processor(
    model: &Model,
    (tower, seeing): (&Stage, &Model),
    tiles: Option<usize>,
    read: &dyn Fn(&str) -> Read,
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
    let sizes = vision.grids(&towers::grids(tower));
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
pub(crate) fn cutting_by(
    model: &Model,
    processor: &PreprocessorConfig,
    clips: &PreprocessorConfig,
) -> Option<Cutting> {
    let family = ModelFamily::named(model.family)?;
    Cutting::of_model(family, model.vision.as_ref()?.input()?, processor, clips)
}
