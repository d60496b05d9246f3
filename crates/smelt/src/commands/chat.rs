//! `smelt chat`: asks a built model about text and pictures.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use smelt_plan::{Kind, Plan, StageId};
use smelt_runtime::deployment::{DEPLOYMENT_FILE, Deployment};
use smelt_runtime::generate::{Answer, Request, generate};
use smelt_runtime::image::Picture;
use smelt_runtime::prompt::Turn;

use crate::exit::{Exit, Failed};
use crate::flags::{ChatFlags, PipelineFlags};
use crate::load::{self, Access};
use crate::say::{answer, tell};
use crate::table;

pub(crate) fn run(flags: &ChatFlags) -> Result<Exit, Failed> {
    if flags.max_tokens == 0 {
        return Err(Failed::usage("--max-tokens must be at least 1"));
    }
    let dir = directory(flags)?;
    let pictures: Vec<Picture> = flags
        .image
        .iter()
        .map(|path| Picture::open(path))
        .collect::<Result<_, _>>()
        .map_err(Failed::model)?;
    let mut deployment = Deployment::open(&dir).map_err(Failed::model)?;
    let turn = Turn::from_marked("user", &flags.prompt, pictures.len()).map_err(Failed::usage)?;
    let request = Request {
        turns: &[turn],
        pictures: &pictures,
        new_tokens_max: flags.max_tokens,
        now_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    let mut said = Ok(());
    let result = generate(&mut deployment, &request, &mut |text| {
        // Told at the end, since the answer cannot be stopped half-way.
        said = std::mem::replace(&mut said, Ok(())).and_then(|()| answer(text));
    });
    let result = result.map_err(Failed::model)?;
    said.and_then(|()| answer("\n"))?;
    tell(summary(&result));
    Ok(Exit::Ok)
}

/// The deployment's directory: given, or the output of the pipeline's deployment stage.
fn directory(flags: &ChatFlags) -> Result<PathBuf, Failed> {
    if flags.target.is_dir() {
        if !flags.target.join(DEPLOYMENT_FILE).exists() {
            return Err(Failed::usage(format!(
                "{} is no deployment: it has no {DEPLOYMENT_FILE}; name a pipeline or a deployment's directory",
                flags.target.display()
            )));
        }
        return Ok(flags.target.clone());
    }
    let flags = PipelineFlags { pipeline: flags.target.clone(), sets: flags.sets.clone() };
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

/// What the answer cost.
fn summary(answer: &Answer) -> String {
    let timing = &answer.timing;
    let rate = timing
        .tokens_per_second()
        .map_or_else(String::new, |rate| format!(", then {rate:.1} tokens/s"));
    format!(
        "{} prompt tokens ({} tiles), {} answered; first token after {}{rate}",
        answer.prompt_tokens,
        answer.tiles,
        answer.tokens.len(),
        table::seconds(timing.first_token.as_secs_f64()),
    )
}
