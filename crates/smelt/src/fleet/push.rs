//! Publishes outputs of a pipeline: what each is, what it was made of and with, signed by this machine's key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};
use smelt_fleet::held::is_published;
use smelt_fleet::keys::SigningKey;
use smelt_fleet::push::{PushError, Pushed, push};
use smelt_fleet::remote::Remote as _;
use smelt_fleet::statement::{Provenance, Statement, from_rfc3339};
use smelt_fleet::trust::Trust;
use smelt_plan::plan::{From, Stage};
use smelt_plan::{Digest, Kind, Plan, StageId};
use smelt_store::{Inventory, Location, Lookup, Output, RunId};

use super::delivered::Delivered;
use super::vouched::{Origin, built_at, doubted_stages};
use super::{Fleet, holdings, now, with_dependents};
use crate::exit::{Exit, Failed};
use crate::flags::PushLimits;
use crate::load::Loaded;
use crate::table::bytes;
use crate::telling::Telling;
use crate::version::BUILDER;

/// What became of a stage's output.
pub(crate) enum Outcome {
    Pushed(Pushed),
    /// The server has it, and somebody whom this machine believes vouches for it.
    WasThere,
    /// It is nothing that others can use, and why.
    Kept(String),
    Failed(PushError),
}

impl Outcome {
    pub(crate) fn as_json(&self, stage: &Stage) -> Value {
        let name = stage.name.as_str();
        match self {
            Self::Pushed(Pushed { bytes, sent }) => {
                json!({ "stage": name, "status": "pushed", "bytes": bytes, "sent_bytes": sent })
            }
            Self::WasThere => json!({ "stage": name, "status": "there" }),
            Self::Kept(why) => json!({ "stage": name, "status": "kept", "why": why }),
            Self::Failed(error) => {
                json!({ "stage": name, "status": "failed", "why": error.to_string() })
            }
        }
    }
}

/// Publishes the outputs of `chosen`, and of the stages that made what these name, each behind what it names, as long as
/// that `goes_on`.
pub(crate) fn push_each(
    fleet: &Fleet,
    loaded: &Loaded,
    signer: &SigningKey,
    (chosen, limits): (&BTreeSet<StageId>, &PushLimits),
    goes_on: &dyn Fn() -> bool,
) -> Result<Vec<(StageId, Outcome)>, Failed> {
    let shelf = Shelf::of(loaded, &fleet.trust)?;
    let mut telling = Telling::new();
    let with_named = shelf.with_named(&limits.of_kind(&loaded.plan, chosen));
    let (mut outcomes, mut published) = (Vec::new(), Vec::new());
    for (id, sealed) in shelf.outputs.iter().filter(|(id, _)| with_named.contains(id)) {
        let outcome = match shelf.statement(*id, sealed, fleet.client.instance()) {
            Err(why) => Outcome::Kept(why),
            Ok((statement, _)) if limits.is_too_large(&statement) => {
                Outcome::Kept(format!("it has {}", bytes(statement.files.bytes())))
            }
            Ok((statement, _)) if is_there(fleet, &statement) => Outcome::WasThere,
            Ok((statement, folder)) => {
                let (name, all) = (&statement.provenance.stage, statement.files.bytes());
                let mut done = 0;
                let pushed = push(&fleet.paced(), &statement, &folder, signer, &mut |some| {
                    done += some;
                    telling.hear(&format!("[{done}/{all}] pushing {name}"));
                    goes_on()
                });
                pushed.map_or_else(Outcome::Failed, Outcome::Pushed)
            }
        };
        let is_lost =
            matches!(&outcome, Outcome::Failed(PushError::Remote(error)) if error.is_gone);
        if matches!(outcome, Outcome::Pushed(_) | Outcome::WasThere) {
            published.push(sealed.output.digest);
        }
        outcomes.push((*id, outcome));
        if is_lost || !goes_on() {
            break;
        }
    }
    holdings::keep_published(&loaded.store, &published);
    Ok(outcomes)
}

impl PushLimits {
    /// Of these stages those of the kinds that are published.
    pub(super) fn of_kind(&self, plan: &Plan, chosen: &BTreeSet<StageId>) -> BTreeSet<StageId> {
        let is_one = |id: &&StageId| self.push_kind.contains(&plan.stage(**id).kind);
        let is_any = self.push_kind.is_empty();
        chosen.iter().filter(|id| is_any || is_one(id)).copied().collect()
    }

    fn is_too_large(&self, statement: &Statement) -> bool {
        self.push_max.is_some_and(|most| statement.files.bytes() > most)
    }
}

/// Whether the fleet has this very output under its keys, vouched for and with all of its bytes: what a server has removed
/// is sent again.
fn is_there(fleet: &Fleet, statement: &Statement) -> bool {
    is_published(&fleet.client, statement, &fleet.trust, now()).unwrap_or(false)
}

/// The stages that a verify stage among `good` has covered, it itself, and the deployments that name it.
pub(crate) fn verified(plan: &Plan, good: &BTreeSet<StageId>) -> BTreeSet<StageId> {
    let kind = |id: StageId| plan.stage(id).kind;
    let verifies = |id: &StageId| good.contains(id) && kind(*id) == Kind::Verify;
    let names_one = |id: &&StageId| {
        kind(**id) == Kind::Deployment && plan.stage(**id).needs().any(|need| verifies(&need))
    };
    let covers: Vec<StageId> = good.iter().copied().filter(verifies).collect();
    let mut covered = plan.closure(&covers);
    covered.extend(good.iter().filter(names_one));
    covered
}

/// What the store has of a plan.
pub(crate) struct Shelf<'a> {
    plan: &'a Plan,
    inventory: Inventory,
    /// In the order of the plan: each behind what it is made of.
    outputs: Vec<(StageId, Sealed)>,
    trees: BTreeMap<StageId, Digest>,
    /// The stages whose recipe keys mean nothing to others: what they are made of is not here.
    unread: BTreeSet<StageId>,
    anywhere: Vec<Digest>,
    /// The stages whose outputs are made of what nobody vouches for any more.
    doubted: BTreeSet<StageId>,
}

/// An output and the key that leads to it.
struct Sealed {
    key: Digest,
    output: Output,
}

impl<'a> Shelf<'a> {
    /// `trust` says whose outputs are believed.
    pub(crate) fn of(loaded: &'a Loaded, trust: &Trust) -> Result<Self, Failed> {
        let Loaded { plan, store, .. } = loaded;
        let doubted = doubted_stages(plan, store, trust)?;
        let doubted = with_dependents(plan, |id, _| doubted.contains_key(&id));
        let unread = with_dependents(plan, |_, stage| stage.unread.is_some());
        let (mut outputs, mut trees) = (Vec::new(), BTreeMap::new());
        for (id, stage) in plan.stages() {
            if let Some(pin) = stage.given() {
                trees.insert(id, pin.digest);
                continue;
            }
            let key = store.resolve(&stage.recipe_key)?;
            let hit = key.map(|key| store.lookup(&key)).transpose()?.and_then(Lookup::hit);
            if let (Some(key), Some(output)) = (key, hit) {
                trees.insert(id, output.digest);
                outputs.push((id, Sealed { key, output }));
            }
        }
        Ok(Self {
            plan,
            inventory: store.inventory()?,
            outputs,
            trees,
            unread,
            anywhere: plan.keys_anywhere(),
            doubted,
        })
    }

    /// The stages whose outputs are here.
    pub(crate) fn stages(&self) -> BTreeSet<StageId> {
        self.outputs.iter().map(|(id, _)| *id).collect()
    }

    fn refers(&self, tree: &Digest) -> &[Digest] {
        let item = self.inventory.outputs.iter().find(|item| item.tree == *tree);
        item.map_or(&[], |item| &item.refers)
    }

    /// `chosen`, and the stages whose outputs those of `chosen` name.
    fn with_named(&self, chosen: &BTreeSet<StageId>) -> BTreeSet<StageId> {
        let mut all = chosen.clone();
        for (id, sealed) in self.outputs.iter().rev().filter(|(id, _)| chosen.contains(id)) {
            let refers = self.refers(&sealed.output.digest);
            let named =
                self.outputs.iter().filter(|(_, other)| refers.contains(&other.output.digest));
            all.extend(named.map(|(other, _)| *other).filter(|other| other != id));
        }
        all
    }

    /// What is true of a stage's output, for a fleet of that name, and where it lies; or why it is of no use to others.
    pub(crate) fn statement_of(
        &self,
        id: StageId,
        instance: &str,
    ) -> Option<Result<(Statement, PathBuf), String>> {
        let (_, sealed) = self.outputs.iter().find(|(other, _)| *other == id)?;
        Some(self.statement(id, sealed, instance))
    }

    /// A stage's output, where it is here, with what is kept of it.
    pub(crate) fn output(&self, id: StageId) -> Option<&Output> {
        self.outputs.iter().find(|(other, _)| *other == id).map(|(_, sealed)| &sealed.output)
    }

    /// What a stage's output was made of, by the names of its inputs.
    pub(crate) fn inputs(&self, id: StageId) -> Option<Vec<(String, Digest)>> {
        let output = self.output(id)?;
        match Origin::of(&output.record) {
            None => Some(self.provenance(self.plan.stage(id), &output.record).inputs),
            Some(origin) => Some(origin.ok()?.said().ok()?.provenance.inputs),
        }
    }

    fn statement(
        &self,
        id: StageId,
        sealed: &Sealed,
        instance: &str,
    ) -> Result<(Statement, PathBuf), String> {
        let stage = self.plan.stage(id);
        let Location::Sealed(folder) = &sealed.output.location else {
            return Err("it lies where the hub's cache keeps it".to_owned());
        };
        let Output { digest, manifest, record, .. } = &sealed.output;
        // Whoever built it vouches for it; this machine only knows who that is said to be.
        if Origin::of(record).is_some() {
            return Err("it came from the fleet, where whoever built it vouches for it".to_owned());
        }
        if let Some(machine) = built_at(record) {
            return Err(format!("{machine} built it, and that machine alone can vouch for it"));
        }
        if Delivered::is_in(record) {
            return Err("it came by a delivery, which whoever signed that vouches for".to_owned());
        }
        if self.doubted.contains(&id) {
            return Err(
                "it is made of what nobody vouches for any more: smelt run makes that anew"
                    .to_owned(),
            );
        }
        let provenance = self.provenance(stage, record);
        if provenance.inputs.len() < stage.inputs.len() {
            return Err("what it was made of is not here, so nobody could check its key".to_owned());
        }
        if !stage.is_shared() {
            let why = match stage.share {
                Some(_) => "it says share = false",
                None => "its key does not cover the program that made it: share = true, or tools",
            };
            return Err(why.to_owned());
        }
        let is_whole = !self.unread.contains(&id);
        let recipes = if is_whole { vec![stage.recipe_key] } else { Vec::new() };
        let statement = Statement {
            key: sealed.key,
            recipes,
            anywhere: is_whole.then(|| self.anywhere[id.index()]),
            instance: instance.to_owned(),
            tree: *digest,
            files: manifest.clone(),
            refers: self.refers(digest).to_vec(),
            record: plain(record),
            finished: began(&provenance.run).unwrap_or_else(now),
            provenance,
            builder: BUILDER.to_owned(),
        };
        Ok((statement, folder.clone()))
    }

    fn provenance(&self, stage: &Stage, record: &Value) -> Provenance {
        provenance(self.plan, stage, &self.trees, record)
    }
}

/// What led to a stage's output of that record, where the outputs of other stages are those; what is not among them is left out.
pub(crate) fn provenance(
    plan: &Plan,
    stage: &Stage,
    trees: &BTreeMap<StageId, Digest>,
    record: &Value,
) -> Provenance {
    let input = |from: &From| match from {
        From::Stage(id) => trees.get(id).copied(),
        From::Path(pin) => Some(pin.digest),
        From::Hub(pin) => {
            Some(smelt_plan::key::of_commit(&pin.repo, &pin.commit, pin.file.as_deref()))
        }
    };
    let inputs = stage.inputs.iter();
    let device = stage.device.iter();
    Provenance {
        stage: stage.name.to_string(),
        kind: stage.kind.name().to_owned(),
        kind_version: stage.kind.version(),
        pipeline: plan.name.clone(),
        params: stage.params.clone(),
        device: device.map(|(fact, value)| ((*fact).to_owned(), value.clone())).collect(),
        tools: stage.tools.iter().map(|tool| (tool.name.clone(), tool.pin.digest)).collect(),
        inputs: inputs.filter_map(|it| Some((it.label.clone(), input(&it.from)?))).collect(),
        run: record["run"].as_str().unwrap_or_default().to_owned(),
    }
}

/// When a run began, in seconds of the Unix era, by its name.
fn began(run: &str) -> Option<u64> {
    let run: RunId = run.parse().ok()?;
    from_rfc3339(&(run.began().replace(' ', "T") + "Z"))
}

/// A record without what is true of this machine alone: its folders.
fn plain(record: &Value) -> Value {
    let mut record = record.clone();
    if let Some(fields) = record.as_object_mut() {
        fields.remove("command");
    }
    record
}

/// The exit code of a push.
pub(crate) fn exit_of(outcomes: &[(StageId, Outcome)]) -> Exit {
    let mut failed = outcomes.iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Failed(PushError::Stopped) => Some(Exit::Interrupted),
        Outcome::Failed(PushError::Remote(_)) => Some(Exit::NotSeen),
        Outcome::Failed(_) => Some(Exit::StageFailed),
        _ => None,
    });
    failed.next().unwrap_or(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runs_name_says_when_it_began() {
        assert_eq!(began("20261128-132500-4e21"), Some(1_795_872_300));
        assert_eq!(began(""), None);
        assert_eq!(began("warm-up"), None);
    }
}
