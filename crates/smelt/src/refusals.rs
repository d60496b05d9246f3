//! Finds out before a build which of its stages will be refused: a build takes hours, and a deployment is its last stage.

use std::collections::BTreeMap;

use smelt_plan::plan::Stage;
use smelt_plan::{Plan, StageId};

use crate::checkpoints::Checkpoints;
use crate::load::Standing;
use crate::stage::{Refusal, worker};

/// Whether a plan has stages that could be refused so: of others nothing need be looked up.
pub(crate) fn may_be(plan: &Plan) -> bool {
    plan.stages().any(|(_, stage)| refusal(stage).is_some())
}

/// The stages still to be built that will be refused, and why.
pub(crate) fn of(checkpoints: &Checkpoints<'_>) -> BTreeMap<StageId, String> {
    let standings = &checkpoints.story.standings;
    let is_hit = |id: StageId| matches!(standings[id.index()].0, Standing::Hit { .. });
    let stages = checkpoints.plan.stages().filter(|(id, _)| !is_hit(*id));
    stages.filter_map(|(id, stage)| Some((id, refusal(stage)?(checkpoints, stage)?))).collect()
}

/// The same in words.
pub(crate) fn line(plan: &Plan, id: StageId, why: &str) -> String {
    format!("{} will be refused: {why}", plan.stage(id).name)
}

fn refusal(stage: &Stage) -> Option<Refusal> {
    worker(stage.kind)?.refusal
}
