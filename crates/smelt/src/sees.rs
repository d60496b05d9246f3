//! Finds out before a build how the deployments of a plan will see pictures, from small files alone.

use smelt_deploy::photographs;
use smelt_deploy::seeing::{self, Unseen};
use smelt_forecast::grids;
use smelt_model::model::Model;
use smelt_plan::plan::Stage;
use smelt_plan::{Kind, Plan};
use smelt_runtime::image::{ImageOptions, ImageProcessor};

use crate::checkpoints::{Checkpoints, count, input};

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
    let Some(seen_by) = checkpoints.model(tower).map_err(Unseen::NotKnown)? else {
        return Ok(None);
    };
    let read = |file: &str| checkpoints.file(source, file);
    let grids = grids(tower);
    seeing::image_processor(model, (&seen_by, &grids), count(stage, "tiles"), &read)
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
