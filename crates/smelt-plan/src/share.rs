//! Says which stages a run of one side is about.
//!
//! Outputs of the other side come as a bundle with their shared keys, so a run finds them without what they were made of,
//! whatever made them there.

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::key;
use crate::plan::{Plan, StageId};
use crate::side::Side;

/// The content keys of a stage whose output is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Led {
    /// What its recipe led to.
    pub by_recipe: Option<Digest>,
    /// What its shared key led to.
    pub by_shared: Option<Digest>,
}

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
    /// The share of `side`, by the content keys of what is here.
    pub fn of(plan: &Plan, side: Side, led: impl Fn(StageId) -> Led) -> Self {
        let sides = sides(plan);
        let is_other = |id: StageId| sides[id.index()] == Some(side.other());
        let mut share = Self::default();
        // Of each stage, what it waits for, and whether it is made of something of the other side.
        let mut lacking: Vec<Option<StageId>> = Vec::with_capacity(plan.len());
        let mut crosses: Vec<bool> = Vec::with_capacity(plan.len());
        for (id, stage) in plan.stages() {
            let crossed = stage.needs().any(|need| is_other(need) || crosses[need.index()]);
            let lacks = stage.needs().find_map(|need| lacking[need.index()]);
            let led = led(id);
            let key = match sides[id.index()] {
                Some(one) if one == side.other() => led.by_shared.or(led.by_recipe),
                // What came since it was built may be another: its key is known as soon as that is looked at.
                Some(_) if crossed && lacks.is_none() => None,
                Some(_) => led.by_recipe,
                None => led.by_recipe.or(led.by_shared.filter(|_| stage.unread.is_some())),
            };
            share.known.extend(key.map(|key| (id, key)));
            let lacks = match key {
                Some(_) => None,
                None if is_other(id) => Some(id),
                None => lacks,
            };
            lacking.push(lacks);
            crosses.push(crossed);
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

/// Shared keys, stage by stage: of what the pipeline file says of a stage and of all it needs on its own side, and which
/// outputs of the other side it was made of.  What else is on a machine does not count, so both sides have the same.
pub struct SharedKeys<'a> {
    plan: &'a Plan,
    sides: Vec<Option<Side>>,
    /// Of the stages that were asked for.
    keys: Vec<Option<Digest>>,
}

impl<'a> SharedKeys<'a> {
    /// Of no stage yet.
    pub fn new(plan: &'a Plan) -> Self {
        Self { plan, sides: sides(plan), keys: Vec::with_capacity(plan.len()) }
    }

    /// Of every stage; `output` is the digest of what is there of a stage.
    pub fn all(plan: &'a Plan, output: impl Fn(StageId) -> Option<Digest>) -> Vec<Option<Digest>> {
        let mut shared = Self::new(plan);
        for (id, _) in plan.stages() {
            shared.of(id, &output);
        }
        shared.into_keys()
    }

    /// Whose a stage is, if it is anyone's.
    pub fn side(&self, id: StageId) -> Option<Side> {
        self.sides[id.index()]
    }

    /// The keys of the stages that were asked for.
    pub fn into_keys(self) -> Vec<Option<Digest>> {
        self.keys
    }

    /// Of the next stage in the order of the plan; `None` where no stage says its side, and where an output of the other
    /// side is not there.
    pub fn of(
        &mut self,
        id: StageId,
        output: impl Fn(StageId) -> Option<Digest>,
    ) -> Option<Digest> {
        debug_assert_eq!(id.index(), self.keys.len(), "stages come in order");
        let stage = self.plan.stage(id);
        let side = self.sides[id.index()];
        let is_other =
            |need: StageId| self.sides[need.index()].is_some_and(|its| Some(its) != side);
        let of_need = |need: StageId| match is_other(need) {
            true => output(need),
            false => self.keys[need.index()],
        };
        let needs: Option<Vec<Digest>> = stage.needs().map(of_need).collect();
        let key =
            stage.spec_key.zip(needs).map(|(spec, needs)| key::of_shared(spec, needs.into_iter()));
        self.keys.push(key);
        key
    }
}

/// The stages that a side may have to build, whatever is there: its own, and those of nobody that they need.
pub fn may_build(plan: &Plan, side: Side) -> BTreeSet<StageId> {
    let sides = sides(plan);
    let stages: Vec<StageId> = plan.stages().map(|(id, _)| id).collect();
    let mut found = BTreeSet::new();
    for &id in stages.iter().rev() {
        if sides[id.index()] == Some(side) || found.contains(&id) {
            found.insert(id);
            found.extend(plan.stage(id).needs().filter(|need| sides[need.index()].is_none()));
        }
    }
    found
}

/// Whose each stage is: what it says itself, else the device's if it needs one of the device's, else the host's if it
/// needs one of the host's.  Others are built where they are needed.
pub fn sides(plan: &Plan) -> Vec<Option<Side>> {
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

    /// What is built by name, with `~` where the file's words alone lead to it.
    #[track_caller]
    fn check(side: Side, built: &[&str], expect: [&str; 3]) {
        let plan = plan();
        let name = |id: StageId| plan.stage(id).name.to_string();
        let led = |id: StageId| {
            let key = |named: &str| built.contains(&named).then(|| Digest::of(name(id).as_bytes()));
            Led { by_recipe: key(&name(id)), by_shared: key(&format!("~{}", name(id))) }
        };
        let share = Share::of(&plan, side, led);
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
        check(Side::Device, &["~quant"], ["engine deployment", "quant", ""]);
        // The engine is looked up by what is there now, and where that is gone the engine is enough.
        check(Side::Device, &["quant", "engine"], ["engine deployment", "quant", ""]);
        check(Side::Device, &["engine"], ["engine", "engine", "deployment<quant"]);
        // The page needs the deployment alone, which the host may have been given with what it names.
        check(Side::Host, &["deployment"], ["quant page", "deployment", ""]);
    }

    #[test]
    fn a_shared_key_says_which_outputs_of_the_other_side_count() {
        let plan = plan();
        let keys = |quant: Option<&str>, engine: Option<&str>| {
            let of = |text: Option<&str>| text.map(|text| Digest::of(text.as_bytes()));
            let keys = SharedKeys::all(&plan, |id| match plan.stage(id).name.as_str() {
                "quant" => of(quant),
                "engine" => of(engine),
                _ => None,
            });
            let named = plan.stages().map(|(_, stage)| stage.name.to_string());
            named.zip(keys).collect::<BTreeMap<_, _>>()
        };
        let none = keys(None, None);
        let has = ["apart", "checkpoint", "deployment", "engine", "page", "quant"]
            .map(|name| none[name].is_some());
        assert_eq!(has, [true, true, false, false, false, true]);
        let [one, other] = ["1", "2"].map(|quant| keys(Some(quant), None));
        // The same on both sides; of what is made of another output of the other side, another.
        assert_eq!(one["quant"], none["quant"]);
        assert!(one["engine"].is_some() && one["engine"] != other["engine"]);
        let whose = ["checkpoint", "quant", "deployment"].map(|name| plan.find(name).unwrap());
        let whose = whose.map(|id| SharedKeys::new(&plan).side(id));
        assert_eq!(whose, [None, Some(Side::Host), Some(Side::Device)]);
        // On its own side an output counts by its key.
        assert_eq!(keys(Some("1"), Some("3"))["deployment"], one["deployment"]);
        assert_eq!(keys(Some("1"), Some("3"))["page"], None);
    }

    #[test]
    fn a_side_may_build_its_own_and_what_is_nobody_s() {
        let plan = plan();
        let named = |side| {
            let all = may_build(&plan, side).into_iter();
            all.map(|id| plan.stage(id).name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(named(Side::Host), "checkpoint quant page");
        assert_eq!(named(Side::Device), "engine deployment");
    }

    #[test]
    fn a_side_s_own_is_known_by_its_recipe_alone() {
        check(Side::Host, &["~quant", "~checkpoint"], ["quant", "", "page<deployment"]);
        check(Side::Device, &["~engine"], ["", "", "engine<quant deployment<quant"]);
    }
}
