//! Finds the deployment that a command asks: a directory, or the output of a pipeline's stage.

use std::path::{Path, PathBuf};

use smelt_plan::{Kind, Plan, StageId};
use smelt_runtime::deployment::DEPLOYMENT_FILE;

use crate::exit::{Exit, Failed};
use crate::flags::PipelineFlags;
use crate::load::{self, Access};

/// The deployment's directory: given, or the output of the pipeline's deployment stage.
pub(super) fn directory(target: &Path, sets: &[String]) -> Result<PathBuf, Failed> {
    if target.is_dir() {
        if !target.join(DEPLOYMENT_FILE).exists() {
            return Err(Failed::usage(format!(
                "{} is no deployment: it has no {DEPLOYMENT_FILE}; name a pipeline or a deployment's directory",
                target.display()
            )));
        }
        return Ok(target.to_owned());
    }
    let flags = PipelineFlags { pipeline: target.to_owned(), sets: sets.to_vec() };
    let loaded = load::plan(&flags, Access::Use)?;
    let stage = deployment_stage(&loaded.plan, &flags)?;
    load::output(&flags, &loaded, stage)
}

fn deployment_stage(plan: &Plan, flags: &PipelineFlags) -> Result<StageId, Failed> {
    let is_deployment = |(id, stage): (StageId, &smelt_plan::plan::Stage)| {
        (stage.kind == Kind::Deployment).then_some(id)
    };
    let found: Vec<StageId> = plan.stages().filter_map(is_deployment).collect();
    match found.as_slice() {
        [stage] => Ok(*stage),
        [] => Err(Failed::new(
            Exit::BadPipeline,
            format!("{} has no stage of kind \"deployment\"", flags.pipeline.display()),
        )),
        several => {
            let outs: Vec<String> =
                several.iter().map(|id| plan.stage(*id).name.to_string()).collect();
            Err(Failed::usage(format!(
                "{} has several deployments ({}); name one's directory, which `smelt out` prints",
                flags.pipeline.display(),
                outs.join(", ")
            )))
        }
    }
}
