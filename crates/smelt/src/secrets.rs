//! Knows which secrets stages are given: variables of smelt's own environment, by name.

use std::collections::BTreeSet;
use std::env;

use serde_json::Value;
use smelt_plan::kind::SECRETS;
use smelt_plan::plan::Stage;
use smelt_plan::{Plan, StageId};

use crate::exit::{Exit, Failed};

/// The stages of `wanted` whose secrets are not all there, each with the first that lacks.
pub(crate) fn missing(plan: &Plan, wanted: &BTreeSet<StageId>) -> Vec<(StageId, String)> {
    let lacks = |name: &&str| env::var(name).is_err();
    let of = |stage: &Stage| {
        let names = stage.params.get(SECRETS).and_then(Value::as_array)?;
        names.iter().filter_map(Value::as_str).find(lacks).map(str::to_owned)
    };
    let stages = plan.stages().filter(|(id, _)| wanted.contains(id));
    stages.filter_map(|(id, stage)| Some((id, of(stage)?))).collect()
}

/// Without it the stage is not begun.
pub(crate) fn refused(stage: &Stage, name: &str) -> Failed {
    let stage = &stage.name;
    let message = format!(
        "stage {stage} is given the secret {name}, which is not in smelt's environment (or is no UTF-8): export {name}=… before the run"
    );
    Failed::new(Exit::DoesNotFit, message)
}
