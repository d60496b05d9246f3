//! Says which stages a run of one side is about.
//!
//! Outputs of the other side come as a bundle, with the recipes that led to them, so a run finds them without what they
//! were made of.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::plan::{Plan, StageId};
use crate::side::Side;

/// What a run of one side is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Share {
    /// The stages of the side that can be built or are.
    pub targets: Vec<StageId>,
    /// The content keys of what is built already.  What such a stage needs is not looked at.
    pub known: BTreeMap<StageId, Digest>,
    /// Stages of the side that wait, each with a stage of the other side whose output is not here.
    pub waiting: Vec<(StageId, StageId)>,
}

impl Share {
    /// The share of `side`; `key` is the content key of a stage whose output is here, by its recipe.
    pub fn of(plan: &Plan, side: Side, key: impl Fn(StageId) -> Option<Digest>) -> Self {
        let sides = sides(plan);
        let mut share = Self::default();
        // Of each stage, what it waits for.
        let mut lacking: Vec<Option<StageId>> = Vec::with_capacity(plan.len());
        for (id, stage) in plan.stages() {
            let lacks = match key(id) {
                Some(key) => {
                    share.known.insert(id, key);
                    None
                }
                None if sides[id.index()] == Some(side.other()) => Some(id),
                None => stage.needs().find_map(|need| lacking[need.index()]),
            };
            lacking.push(lacks);
            if sides[id.index()] != Some(side) {
                continue;
            }
            match lacks {
                Some(lacks) => share.waiting.push((id, lacks)),
                None => share.targets.push(id),
            }
        }
        let wanted = plan.closure_but(&share.targets, &share.known);
        share.known.retain(|id, _| wanted.contains(id));
        share
    }
}

/// Whose each stage is: what it says itself, else the device's if it needs one of the device's, else the host's if it
/// needs one of the host's.  Others are built where they are needed.
fn sides(plan: &Plan) -> Vec<Option<Side>> {
    let mut sides: Vec<Option<Side>> = Vec::with_capacity(plan.len());
    for (_, stage) in plan.stages() {
        sides.push(stage.on.or_else(|| stage.needs().filter_map(|need| sides[need.index()]).max()));
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Overrides, Pipeline};
    use crate::plan::Pins;

    /// A checkpoint of nobody's, quantised on the host, of which the device makes an engine, and a report of the host's
    /// about that.
    fn plan() -> Plan {
        let stage = |name: &str, on: &str, inputs: &str| {
            format!(
                "[stage.{name}]\nkind = \"command\"\nargv = [\"x\"]\noutputs = [\"o\"]\ninputs = [{inputs}]\n{on}\n"
            )
        };
        let text = "smelt = 1\nname = \"p\"\n".to_owned()
            + &stage("checkpoint", "", "")
            + &stage("quant", "on = \"host\"", "\"checkpoint\"")
            + &stage("engine", "on = \"device\"", "\"quant\"")
            + &stage("deployment", "", "\"engine\", \"quant\"")
            + &stage("page", "on = \"host\"", "\"deployment\"")
            + &stage("apart", "", "");
        let pipeline = Pipeline::parse("p.toml", &text, &Overrides::default()).unwrap();
        Plan::build(&pipeline, &Pins::default()).unwrap()
    }

    #[track_caller]
    fn check(side: Side, built: &[&str], expect: [&str; 3]) {
        let plan = plan();
        let name = |id: StageId| plan.stage(id).name.to_string();
        let key =
            |id: StageId| built.contains(&&*name(id)).then(|| Digest::of(name(id).as_bytes()));
        let share = Share::of(&plan, side, key);
        let names =
            |ids: &mut dyn Iterator<Item = StageId>| ids.map(name).collect::<Vec<_>>().join(" ");
        let waits =
            share.waiting.iter().map(|(id, lacks)| format!("{}<{}", name(*id), name(*lacks)));
        let found = [
            names(&mut share.targets.iter().copied()),
            names(&mut share.known.keys().copied()),
            waits.collect::<Vec<_>>().join(" "),
        ];
        assert_eq!(found, expect.map(str::to_owned));
    }

    #[test]
    fn a_side_builds_what_is_its_own_and_what_that_needs() {
        check(Side::Host, &[], ["quant", "", "page<deployment"]);
        check(Side::Host, &["checkpoint"], ["quant", "checkpoint", "page<deployment"]);
        check(Side::Device, &[], ["", "", "engine<quant deployment<quant"]);
    }

    #[test]
    fn what_came_from_the_other_side_needs_nothing_that_it_was_made_of() {
        check(Side::Device, &["quant"], ["engine deployment", "quant", ""]);
        check(Side::Device, &["quant", "engine"], ["engine deployment", "quant engine", ""]);
        check(
            Side::Device,
            &["quant", "deployment"],
            ["engine deployment", "quant deployment", ""],
        );
        // The page needs the deployment alone, which the host may have been given with what it names.
        check(Side::Host, &["deployment"], ["quant page", "deployment", ""]);
    }
}
