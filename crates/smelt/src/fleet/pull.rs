//! Takes from a fleet what a pipeline would else build, only as far as something needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde_json::{Value, json};
use smelt_fleet::pull::{Offer, PullError, offer};
use smelt_fleet::remote::Key;
use smelt_fleet::statement::Provenance;
use smelt_plan::plan::Stage;
use smelt_plan::{Digest, Plan, StageId};
use smelt_store::{Holder, Lookup, OutputItem, Store};

use super::{Fleet, judging_time, saw_time};
use crate::console::warn;
use crate::exit::{Exit, Failed};
use crate::load::Loaded;
use crate::table::bytes;
use crate::telling::Telling;

/// What is left free beside what is fetched: records and the journals of others.
const RESERVE_BYTES: u64 = 64 << 20;
/// Each is read and cut, which takes a second a gigabyte.
const OLDER_MAX: usize = 2;
/// Outputs name engines, and these nothing more; a chain is no longer than this.
const REFERS_DEPTH_MAX: u32 = 8;

/// What is here now, and need not be built.
pub(crate) struct Pulled {
    /// What was asked for: nothing of the pipeline needs these.
    pub(crate) targets: Vec<StageId>,
    /// The content keys of the outputs that are here; what only they need is not asked for.
    pub(crate) known: BTreeMap<StageId, Digest>,
    /// What came from the server.
    pub(crate) fetched: Vec<Taken>,
    /// Of them, in this call and in ones before that were cut short.
    pub(crate) bytes: u64,
    pub(crate) kept: u64,
    /// From other versions that were here.
    pub(crate) local: u64,
    /// A collection spares them as long as this lives.
    _holder: Holder,
}

/// An output that came from the server.
pub(crate) struct Taken {
    pub(crate) stage: StageId,
    pub(crate) tree: Digest,
    pub(crate) bytes: u64,
    /// Who vouches for it.
    pub(crate) by: Vec<String>,
}

impl Taken {
    pub(crate) fn as_json(&self, plan: &Plan) -> Value {
        let stage = &plan.stage(self.stage).name;
        json!({ "stage": stage.as_str(), "tree": self.tree, "bytes": self.bytes, "by": self.by })
    }
}

/// The stages that nothing else of the pipeline needs.
pub(crate) fn sinks(plan: &Plan) -> Vec<StageId> {
    let needed: BTreeSet<StageId> = plan.stages().flat_map(|(_, stage)| stage.needs()).collect();
    plan.stages().map(|(id, _)| id).filter(|id| !needed.contains(id)).collect()
}

/// Takes what `only` needs, or all of the pipeline: an output that is here or in the fleet, else what it is made of.  Those of
/// `force` are to be built whatever is there.  What cannot be had is told in one line and left to be built.
pub(crate) fn pull(
    fleet: &Fleet,
    loaded: &Loaded,
    (only, force): (&[StageId], &BTreeSet<StageId>),
    stop: &Arc<AtomicBool>,
) -> Result<Pulled, Failed> {
    let Loaded { plan, store, .. } = loaded;
    let targets = if only.is_empty() { sinks(plan) } else { only.to_vec() };
    let holder = store.begin_hold(SystemTime::now())?;
    let mut pulling = Pulling {
        fleet,
        store,
        stop,
        telling: Telling::new(),
        is_lost: false,
        told: BTreeSet::new(),
        time: judging_time(store),
        bytes: 0,
        kept: 0,
        local: 0,
    };
    let mut needed: BTreeSet<StageId> = targets.iter().copied().collect();
    let (mut known, mut fetched) = (BTreeMap::new(), Vec::new());
    // Each stage comes behind those that it needs.
    for id in plan.stages().map(|(id, _)| id).collect::<Vec<_>>().into_iter().rev() {
        let stage = plan.stage(id);
        if !needed.contains(&id) || stage.given().is_some() {
            continue;
        }
        let is_forced = force.contains(&id) || stage.unread.is_some();
        let here = if is_forced { None } else { here(store, &stage.recipe_key)? };
        if let Some(key) = here {
            known.insert(id, key);
        } else if let Some(offer) = pulling.offered(plan, id, is_forced) {
            match pulling.take(&holder, &offer, 0) {
                Ok(()) => {
                    let statement = &offer.vouched.statement;
                    known.insert(id, statement.key);
                    let (tree, bytes) = (statement.tree, statement.files.bytes());
                    fetched.push(Taken { stage: id, tree, bytes, by: offer.vouched.by.clone() });
                }
                Err(failed) if failed.exit == Exit::Interrupted => return Err(failed),
                Err(failed) => {
                    pulling.refuse(stage, &failed);
                    needed.extend(stage.needs());
                }
            }
        } else {
            needed.extend(stage.needs());
        }
    }
    store.sync()?;
    let Pulling { bytes, kept, local, .. } = pulling;
    Ok(Pulled { targets, known, fetched, bytes, kept, local, _holder: holder })
}

/// The content key of what a recipe led to, where that is here.
fn here(store: &Store, recipe: &Digest) -> Result<Option<Digest>, Failed> {
    let key = store.resolve(recipe)?;
    let hit = key.map(|key| store.lookup(&key)).transpose()?.and_then(Lookup::hit);
    Ok(key.filter(|_| hit.is_some()))
}

struct Pulling<'a> {
    fleet: &'a Fleet,
    store: &'a Store,
    stop: &'a Arc<AtomicBool>,
    telling: Telling,
    /// The server is gone: it is asked no more.
    is_lost: bool,
    told: BTreeSet<String>,
    /// By which statements are judged.
    time: u64,
    bytes: u64,
    kept: u64,
    local: u64,
}

impl Pulling<'_> {
    /// What the fleet has of a stage; what is wrong with that is told.
    fn offered(&mut self, plan: &Plan, id: StageId, is_forced: bool) -> Option<Offer> {
        let stage = plan.stage(id);
        if is_forced || self.is_lost || self.is_stopped() {
            return None;
        }
        let found =
            offer(&self.fleet.client, Key::Recipe(stage.recipe_key), &self.fleet.trust, self.time);
        match found {
            Ok(found) => found,
            Err(error) => {
                self.is_lost = matches!(error, PullError::Remote(_));
                self.refuse(stage, &error);
                None
            }
        }
    }

    /// Says why something is not taken; once where that is true of many.
    fn refuse(&mut self, stage: &Stage, why: &dyn fmt::Display) {
        let why = why.to_string();
        if self.told.insert(why.clone()) {
            warn(format_args!("{} is not taken from the fleet: {why}", stage.name));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Fetches and seals an output, behind those that it names.
    fn take(&mut self, holder: &Holder, offer: &Offer, depth: u32) -> Result<(), Failed> {
        let statement = &offer.vouched.statement;
        saw_time(self.store, statement.finished);
        let keys: Vec<Digest> =
            std::iter::once(statement.key).chain(statement.refers.iter().copied()).collect();
        holder.hold(&keys)?;
        for tree in &statement.refers {
            if !self.store.has_tree(tree) {
                self.take_named(holder, tree, depth + 1)?;
            }
        }
        let failed = |error: PullError| Failed::new(exit_of(&error), error);
        let held = || {
            let name = statement.tree.short();
            Failed::new(Exit::Held, format!("another run fetches or builds output {name} just now"))
        };
        let _locks = [statement.key, statement.tree]
            .iter()
            .map(|key| self.store.try_lock_key(key)?.ok_or_else(held))
            .collect::<Result<Vec<_>, Failed>>()?;
        self.has_room(statement.files.bytes())?;
        let older = self.older(&statement.provenance)?;
        let folder = self.store.pull_dir(&statement.tree)?;
        let (name, all, stop) =
            (statement.provenance.stage.clone(), statement.files.bytes(), self.stop.clone());
        let (mut done, telling) = (0, &mut self.telling);
        let mut told = |some: u64| {
            done += some;
            telling.hear(&format!("[{done}/{all}] fetching {name}"));
            !stop.load(Ordering::Relaxed)
        };
        let local = offer.local(&older);
        let fetched =
            offer.fetch(&self.fleet.client, &local, &folder, &mut told).map_err(failed)?;
        self.bytes += fetched.bytes;
        self.kept += fetched.kept;
        self.local += fetched.local;
        let mut record = statement.record.clone();
        if let Some(record) = record.as_object_mut() {
            let server = smelt_fleet::remote::Remote::name(&self.fleet.client);
            record.insert("fleet".to_owned(), json!({ "server": server, "by": offer.vouched.by }));
        }
        let sealed = self.store.seal_referring(&statement.key, &folder, record, &statement.refers);
        sealed.map_err(|error| Failed::new(Exit::StageFailed, error))?;
        statement
            .recipes
            .iter()
            .try_for_each(|recipe| self.store.alias_later(recipe, &statement.key))?;
        Ok(())
    }

    /// The outputs of the same stage that were used last: what comes is another version of them.
    fn older(&self, provenance: &Provenance) -> Result<Vec<PathBuf>, Failed> {
        let is_of_stage = |item: &&OutputItem| {
            let says = |name: &str, what: &str| item.record[name].as_str() == Some(what);
            says("stage", &provenance.stage) && says("pipeline", &provenance.pipeline)
        };
        let inventory = self.store.inventory()?;
        let mut older: Vec<&OutputItem> = inventory.outputs.iter().filter(is_of_stage).collect();
        older.sort_by_key(|item| std::cmp::Reverse(item.used_ns));
        let place = |item: &&OutputItem| self.store.root().join("out").join(item.tree.to_string());
        Ok(older.iter().take(OLDER_MAX).map(place).collect())
    }

    /// Fetches an output that another one names.
    fn take_named(&mut self, holder: &Holder, tree: &Digest, depth: u32) -> Result<(), Failed> {
        let lacks = |why: &str| {
            Failed::new(Exit::StageFailed, format!("it names output {}, {why}", tree.short()))
        };
        if depth > REFERS_DEPTH_MAX {
            return Err(lacks("at the end of too long a chain"));
        }
        let found = offer(&self.fleet.client, Key::Tree(*tree), &self.fleet.trust, self.time);
        let found = found.map_err(|error| Failed::new(exit_of(&error), error))?;
        let offer = found.ok_or_else(|| lacks("which the fleet does not have"))?;
        self.take(holder, &offer, depth)
    }

    fn has_room(&self, needed: u64) -> Result<(), Failed> {
        let free = self.store.free_bytes()?;
        if needed.saturating_add(RESERVE_BYTES) <= free {
            return Ok(());
        }
        let message = format!(
            "{} are to be fetched and the store's disk has {} free: smelt cache gc, or SMELT_CACHE on a larger disk",
            bytes(needed),
            bytes(free)
        );
        Err(Failed::new(Exit::DoesNotFit, message))
    }
}

fn exit_of(error: &PullError) -> Exit {
    match error {
        PullError::Stopped => Exit::Interrupted,
        PullError::Remote(_) => Exit::NotSeen,
        _ => Exit::StageFailed,
    }
}
