//! Tells how the stages of a plan stand: a hit or not, and what has changed since the last run of the same pipeline.

use std::path::Path;

use serde_json::{Value, json};
use smelt_exec::Took;
use smelt_plan::{Digest, StageId};

use crate::exit::Failed;
use crate::last_run::{self, LastRun};
use crate::load::{self, Loaded, Standing};

/// How every stage stands, and what has changed since the last run.
pub(crate) struct Story<'a> {
    pub(crate) loaded: &'a Loaded,
    last: &'a LastRun,
    pub(crate) standings: Vec<(Standing, Option<Digest>)>,
}

impl<'a> Story<'a> {
    pub(crate) fn of(loaded: &'a Loaded, last: &'a LastRun) -> Result<Self, Failed> {
        Ok(Self { loaded, last, standings: load::standings(loaded)? })
    }

    /// The digest of a stage's output, where the store has it.
    fn output(&self, id: StageId) -> Option<Digest> {
        match &self.standings[id.index()].0 {
            Standing::Hit { digest, .. } => Some(*digest),
            Standing::Miss(_) | Standing::Unknown { .. } => None,
        }
    }

    /// Where a stage's output lies, if the store has it.
    pub(crate) fn path(&self, id: StageId) -> Option<&Path> {
        self.standings[id.index()].0.path()
    }

    /// What a stage that must be built took when it was built last, for want of a better forecast.
    pub(crate) fn forecast(&self, id: StageId) -> Option<Took> {
        match self.standings[id.index()].0 {
            Standing::Hit { .. } => None,
            Standing::Miss(_) | Standing::Unknown { .. } => {
                self.last.of(self.loaded.plan.stage(id).name.as_str())?.took
            }
        }
    }

    /// What is different from the last run that had this stage's output.
    pub(crate) fn changes(&self, id: StageId) -> Vec<String> {
        let Loaded { plan, store, .. } = self.loaded;
        let Some(before) = self.last.of(plan.stage(id).name.as_str()) else { return Vec::new() };
        let known = |need: StageId| {
            // What is not known yet is taken as it was: its own stage says what changed.
            self.output(need).or_else(|| self.output_then(id, need))
        };
        let now = last_run::walk(store, plan, id, "", false, &known);
        now.map_or_else(Vec::new, |now| last_run::changes(before, &now))
    }

    /// What `stage` was fed by `need` in the last run.
    fn output_then(&self, stage: StageId, need: StageId) -> Option<Digest> {
        let stage = self.loaded.plan.stage(stage);
        let fields = &self.last.of(stage.name.as_str())?.fields;
        let at = stage.needs_at(need)?;
        let inputs = &fields[fields.len().checked_sub(stage.inputs.len())?..];
        inputs[at].1.parse().ok()
    }

    /// The status with its reason, on one line.
    pub(crate) fn verdict(&self, id: StageId) -> String {
        let plan = &self.loaded.plan;
        let before = self.last.of(plan.stage(id).name.as_str());
        match (&self.standings[id.index()].0, before) {
            (Standing::Hit { .. }, _) if plan.stage(id).given().is_some() => {
                match self.changes(id).is_empty() {
                    true => "read in place, as it was".to_owned(),
                    false => "read in place, and changed".to_owned(),
                }
            }
            (Standing::Hit { .. }, Some(before)) if self.changes(id).is_empty() => {
                let how = if before.built { "built" } else { "found" };
                format!("hit, {how} by run {}", before.run)
            }
            (Standing::Hit { .. }, _) => "hit".to_owned(),
            (Standing::Unknown { until, .. }, _) => match &plan.stage(id).unread {
                Some(why) => format!("unknown here, {why}"),
                None => format!("unknown until {}", plan.stage(*until).name),
            },
            (Standing::Miss(Some(why)), _) => format!("miss, {why}"),
            (Standing::Miss(None), None) => {
                "miss, no run of this pipeline has built it here".to_owned()
            }
            (Standing::Miss(None), Some(before)) => match self.changes(id).len() {
                0 => format!("miss, its output of run {} is not in the store any more", before.run),
                1 => format!("miss, 1 change since run {}", before.run),
                count => format!("miss, {count} changes since run {}", before.run),
            },
        }
    }

    /// What `id` needs that is no hit or has changed, and `id`, each after what it needs.
    pub(crate) fn causes(&self, id: StageId) -> Vec<StageId> {
        let is_news = |&need: &StageId| {
            need == id || self.output(need).is_none() || !self.changes(need).is_empty()
        };
        self.loaded.plan.closure(&[id]).into_iter().filter(is_news).collect()
    }

    /// The same for programs, of one stage.
    pub(crate) fn json(&self, id: StageId) -> Value {
        let stage = self.loaded.plan.stage(id);
        let (standing, key) = &self.standings[id.index()];
        json!({
            "name": stage.name,
            "kind": stage.kind,
            "status": standing.word(),
            "reason": self.verdict(id),
            "key": key,
            "run": self.last.of(stage.name.as_str()).map(|before| &before.run),
            "changes": self.changes(id),
        })
    }
}
